"""The networks whose data-parallel step is measured, with a batch for each: those of bench/models.h.

Each function gives (network, data, target); cross_entropy(network(data), target) is the loss.
"""

import torch
from torch import nn


def mlp(width, batch):
    net = nn.Sequential(nn.Linear(512, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return net, torch.randn(batch, 512), torch.randint(10, (batch,))


def deep():
    layers = [layer for _ in range(48) for layer in (nn.Linear(22, 22), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(22, 22)), torch.randn(32, 22), torch.randint(22, (32,))


def cnn():
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )
    return net, torch.rand(64, 1, 28, 28), torch.randint(10, (64,))


def convolution(before, after, kernel, stride):
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(convolution(before, after, 3, stride), nn.BatchNorm2d(after), nn.ReLU(),
                                  convolution(after, after, 3, 1), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(convolution(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet34():
    layers = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for after, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Residual(before, after, 2 if block == 0 and after != 64 else 1))
            before = after
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))
    return net, torch.randn(8, 3, 64, 64), torch.randint(100, (8,))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts.unbind())
        y = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return y + self.mlp(y)


def transformer(batch=8, length=32):
    net = nn.Sequential(nn.Embedding(1000, 512), *(EncoderLayer(512, 8) for _ in range(6)), nn.Linear(512, 1000),
                        nn.Flatten(0, 1))
    return net, torch.randint(1000, (batch, length)), torch.randint(1000, (batch * length,))

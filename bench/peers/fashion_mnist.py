"""Hugging Face Accelerate on the work of examples/fashion_mnist.cpp: the same CNN, optimizer, batches and evaluation.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 fashion_mnist.py`. The main process
prints a line an epoch, in the form of the example's.
"""

import argparse
import gzip
import pathlib
import time

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


def fashion_mnist(folder, split, limit=None):
    def values(name, header):
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    images = values(f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = values(f"{split}-labels-idx1-ubyte.gz", 8)
    dataset = TensorDataset(torch.from_numpy(images.copy()).float() / 255, torch.from_numpy(labels.copy()).long())
    return Subset(dataset, range(limit)) if limit else dataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 32, 5, padding=2), nn.BatchNorm2d(32)
        self.conv2, self.norm2 = nn.Conv2d(32, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.hidden, self.output = nn.Linear(64 * 7 * 7, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.output(F.relu(self.hidden(x.flatten(1))))


def train_epoch(accelerator, model, optimizer, schedule, loader):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
    return loss.item()


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    correct = seen = 0
    for data, target in loader:
        prediction, target = accelerator.gather_for_metrics((model(data).argmax(1), target))
        correct += (prediction == target).sum().item()
        seen += target.numel()
    return correct, seen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--data", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--limit", type=int, help="first training samples only")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels-last", action="store_true", help="the order in memory that examples/fashion_mnist.cpp asks for")
    parser.add_argument("--mixed-precision", default="no")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    set_seed(options.seed)
    accelerator = Accelerator(cpu=True, mixed_precision=options.mixed_precision)
    train_set = fashion_mnist(options.data, "train", options.limit)
    model = Net()
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    model, optimizer, train, test = accelerator.prepare(
        model, optimizer,
        DataLoader(train_set, batch_size=64, shuffle=True),
        DataLoader(fashion_mnist(options.data, "t10k"), batch_size=500),
    )

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.optimizer, T_max=len(train) * options.epochs)

    for epoch in range(options.epochs):
        start = time.perf_counter()
        loss = train_epoch(accelerator, model, optimizer, schedule, train)
        rate = len(train_set) / (time.perf_counter() - start)
        correct, seen = evaluate(accelerator, model, test)
        accelerator.print(
            f"epoch {epoch}: loss {loss:.2f}, accuracy {correct / seen:.4f} of {seen}, {rate:.0f} samples/s")


if __name__ == "__main__":
    main()

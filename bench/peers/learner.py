"""Peer: fastai on the tiny MLP of bench_learner.cpp, and the plain PyTorch loop beside it, an epoch each in turn."""
import argparse
import json
import math
import statistics
import time
import torch
import torch.nn.functional as F
from fastai.learner import Learner
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.callback.schedule import *  # noqa: F401,F403  (fit_one_cycle)
from fastai.metrics import accuracy

FEATURES, CLASSES, BATCH = 32, 5, 64
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--width", type=int, default=64)
args = parser.parse_args()
torch.set_num_threads(1)
x, y = torch.randn(args.steps * BATCH, FEATURES), torch.randint(CLASSES, (args.steps * BATCH,))


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, CLASSES))


class Batches:
    def __init__(self, shuffle):
        self.shuffle = shuffle

    def __iter__(self):
        order = torch.randperm(len(x)) if self.shuffle else torch.arange(len(x))
        for rows in order.split(BATCH):
            yield x[rows], y[rows]


def cosine(start, end, part):
    return start + (1 + math.cos(math.pi * (1 - part))) * (end - start) / 2


plain_net = net()
adam = torch.optim.AdamW(plain_net.parameters(), 1e-3, betas=(0.9, 0.99), eps=1e-5, fused=True)


def plain():
    plain_net.train()
    smooth = 0.0
    for i, (bx, by) in enumerate(Batches(True)):
        part = i / args.steps
        for group in adam.param_groups:
            group["lr"] = cosine(4e-5, 1e-3, part * 4) if part < 0.25 else cosine(1e-3, 1e-8, (part - 0.25) / 0.75)
        loss = F.cross_entropy(plain_net(bx), by)
        loss.backward()
        adam.step()
        adam.zero_grad()
        smooth += 0.02 * (loss.item() - smooth)
    plain_net.eval()
    correct = total = 0
    with torch.no_grad():
        for bx, by in Batches(False):
            out = plain_net(bx)
            total += F.cross_entropy(out, by).item() * len(by)
            correct += (out.argmax(1) == by).sum().item()


class Fetched(DataLoader):
    def __init__(self, shuffle):
        super().__init__(list(range(len(x))), bs=BATCH, shuffle=shuffle, num_workers=0)

    def create_batches(self, samps):
        rows = list(samps)
        for start in range(0, len(rows), BATCH):
            part = rows[start:start + BATCH]
            yield x[part], y[part]


learn = Learner(DataLoaders(Fetched(True), Fetched(False)), net(), loss_func=F.cross_entropy, metrics=accuracy)


def fastai():
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, 1e-3)


def milliseconds(side):
    start = time.perf_counter()
    side()
    return (time.perf_counter() - start) * 1000 / args.steps


plain(), fastai()
times = {"plain": [], "fastai": []}
for turn in range(args.rounds):
    for name, side in (("plain", plain), ("fastai", fastai)) if turn % 2 else (("fastai", fastai), ("plain", plain)):
        times[name].append(milliseconds(side))
print(json.dumps({"plain_ms": statistics.median(times["plain"]), "learner_ms": statistics.median(times["fastai"])}))

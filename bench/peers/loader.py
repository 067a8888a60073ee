#!/usr/bin/env python3
"""The peer of bench_loader.cpp: torch.utils.data.DataLoader on the same samples, batch 64, shuffled, with 0, 1 and 2
worker processes that live on between epochs; images through Pillow as torchvision's ImageFolder and ToTensor do it."""
import argparse
import json
import os
import pathlib
import statistics
import time

import numpy
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


def normalised(data):
    return data.float().div_(255).sub_(0.5).div_(0.5)


class Samples(Dataset):
    def __init__(self, data, targets):
        self.data, self.targets = data, targets

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        """One sample for a number, a whole batch for a list."""
        return normalised(self.data[index]), self.targets[index]


class Images(Dataset):
    def __init__(self, root):
        classes = sorted(entry.name for entry in pathlib.Path(root).iterdir() if entry.is_dir())
        self.samples = [(str(path), target) for target, name in enumerate(classes)
                        for path in sorted((pathlib.Path(root) / name).iterdir())]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(numpy.array(image, copy=True)).permute((2, 0, 1)).contiguous()
        return pixels.to(torch.float32).div(255), target


def memory_mb():
    """This process and its workers, with shared pages counted once."""
    mine, total = str(os.getpid()), 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
            if mine in (process.name, fields[1]):
                rollup = (process / "smaps_rollup").read_text()
                total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return total / 1024


def rate(loader, epochs, num_samples, watch=None):
    rates = []
    for epoch in range(epochs + 1):
        start = time.perf_counter()
        for step, _ in enumerate(loader):
            if watch is not None and epoch == 0 and step == 400:
                watch.append(memory_mb())
        rates.append(num_samples / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = torch.randint(0, 255, (60000, 1, 28, 28), dtype=torch.uint8)
    samples = Samples(data, torch.randint(0, 10, (60000,)))
    memory, sample, batch = [], {}, {}
    for workers in (2, 1, 0):
        more = {"num_workers": workers, "persistent_workers": workers > 0}
        sample[workers] = rate(DataLoader(samples, batch_size=64, shuffle=True, **more), 2, len(samples),
                               memory if workers == 2 else None)
        whole = BatchSampler(RandomSampler(samples), 64, drop_last=False)
        batch[workers] = rate(DataLoader(samples, batch_size=None, sampler=whole, **more), 2, len(samples))
    images = Images(options.images)
    image = rate(DataLoader(images, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True), 1, len(images))
    print(json.dumps({"sample": sample[2], "sample_best": max(sample.values()), "batch_best": max(batch.values()),
                      "images": image, "memory_mb": memory[0]}))


if __name__ == "__main__":
    main()

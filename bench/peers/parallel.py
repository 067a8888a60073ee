"""Peer: PyTorch on the work of bench_parallel.cpp, one way a call. DataParallel and SyncBatchNorm need GPUs there.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 parallel.py --way ddp`, or alone for --way one.
"""
import argparse
import gzip
import json
import pathlib
import resource
import time

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch import nn
from torch.nn import functional as F

FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")
parser = argparse.ArgumentParser()
parser.add_argument("--way", default="one", choices=["one", "ddp", "ddp_amp", "local_sgd"])
parser.add_argument("--limit", type=int, default=12800)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)


def values(name, header):
    return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8, offset=header)


def images(split, count):
    data = torch.from_numpy(values(f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:count].copy()).float() / 255
    return torch.utils.data.TensorDataset(data, torch.from_numpy(values(f"{split}-labels-idx1-ubyte.gz", 8)[:count].copy()).long())


net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.ReLU(),
                    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 36, 600), nn.Dropout(0.25), nn.Linear(600, 120), nn.Linear(120, 10))
net = net.to(memory_format=torch.channels_last)
accelerator = Accelerator(cpu=True, mixed_precision="bf16" if "amp" in args.way else "no")
model, optimizer, train, test = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 1e-3), torch.utils.data.DataLoader(images("train", args.limit), 64, shuffle=True),
                                                    torch.utils.data.DataLoader(images("t10k", 5000), 500))


def epoch(local):
    for data, target in train:
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(data), target))
        optimizer.step()
        if local:
            local.step()


seconds = 0
for number in range(2):
    model.train()
    accelerator.wait_for_everyone()
    start = time.perf_counter()
    if args.way == "local_sgd":
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8) as local:
            epoch(local)
    else:
        epoch(None)
    accelerator.wait_for_everyone()
    seconds = time.perf_counter() - start
model.eval()
correct = total = 0
with torch.no_grad():
    for data, target in test:
        found, wanted = accelerator.gather_for_metrics((model(data).argmax(1), target))
        correct += (found == wanted).sum().item()
        total += len(wanted)
peak = accelerator.gather(torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])).max().item()
if accelerator.is_main_process:
    print(json.dumps({"seconds": seconds, "samples_per_s": args.limit / seconds, "peak_mb": peak, "accuracy": correct / total}))
if dist.is_initialized():
    dist.destroy_process_group()

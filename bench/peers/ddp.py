"""PyTorch's DistributedDataParallel on the work of bench_ddp.cpp: a network of models.py over Gloo.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 ddp.py`. Rank 0 prints one JSON object:
step_ms (mean over the measured steps), peak_mb (VmHWM), start_mb (VmRSS before the model is built).
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import models


def memory_mb(field):
    with open("/proc/self/status") as status:
        kilobytes = next(line.split()[1] for line in status if line.startswith(field + ":"))
    return int(kilobytes) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("mlp", "deep", "cnn", "resnet34", "transformer"), default="mlp")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    start_mb = memory_mb("VmRSS")

    torch.manual_seed(0)
    make = getattr(models, options.model)
    sizes = (options.width, options.batch) if options.model == "mlp" else ()
    net = make(*sizes)[0]
    model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank() + 1)
    _, data, target = make(*sizes)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()

    for _ in range(options.warmup):
        step()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(options.steps):
        step()
    step_ms = (time.perf_counter() - start) * 1e3 / options.steps

    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": step_ms, "peak_mb": memory_mb("VmHWM"), "start_mb": start_mb}), flush=True)
    # Gloo's threads now and then abort the interpreter's orderly end, and torchrun calls the run failed.
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()

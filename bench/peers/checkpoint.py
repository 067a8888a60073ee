"""The state of bench_checkpoint, saved and loaded by Accelerate and by torch.distributed.checkpoint.

Prints one JSON object: pauses, times until written, and Accelerate's load, in ms; medians.
"""
import argparse
import json
import os
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="/tmp/hasten_bench_checkpoint_peer")
parser.add_argument("--width", type=int, default=2880)
parser.add_argument("--saves", type=int, default=4)
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
net = torch.nn.Sequential(*[torch.nn.Linear(args.width, args.width) for _ in range(10)])
optimizer = torch.optim.AdamW(net.parameters())
for parameter in net.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()
optimizer.zero_grad()
net, optimizer = accelerator.prepare(net, optimizer)
full = {"model": net.state_dict(), "optim": optimizer.state_dict()}
if not dist.is_initialized():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29733"), RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")


def timed(function, wait=None):
    shutil.rmtree(args.folder, ignore_errors=True)
    start = time.perf_counter()
    result = function()
    pause = time.perf_counter() - start
    if wait:
        wait(result)
    return 1000 * pause, 1000 * (time.perf_counter() - start)


pauses, async_pauses, async_totals, loads = [], [], [], []
for _ in range(args.saves):
    pauses.append(timed(lambda: accelerator.save_state(args.folder))[0])
    start = time.perf_counter()
    accelerator.load_state(args.folder)
    loads.append(1000 * (time.perf_counter() - start))
    pause, total = timed(lambda: dcp.async_save(full, checkpoint_id=args.folder), lambda future: future.result())
    async_pauses.append(pause)
    async_totals.append(total)
shutil.rmtree(args.folder, ignore_errors=True)
median = statistics.median
print(json.dumps({"accelerate_pause_ms": median(pauses), "accelerate_load_ms": median(loads),
                  "async_pause_ms": median(async_pauses), "async_total_ms": median(async_totals)}))
dist.destroy_process_group()

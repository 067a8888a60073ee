"""Peer: DTensor and torch.distributed.pipelining over Gloo on the work of bench_model_parallel.cpp.

Start it alone for --way one and parts, else with `python -m torch.distributed.run --standalone --nproc-per-node 2`.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, INNER, BLOCKS, PARTS = 256, 1024, 8, 8
parser = argparse.ArgumentParser()
parser.add_argument("--way", default="one")
way = parser.parse_args().way
torch.set_num_threads(1)
torch.manual_seed(0)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


net = nn.Sequential(*[FeedForward() for _ in range(BLOCKS)])
pipelined = way not in ("one", "parts", "tensor")
x = torch.randn(512 if pipelined or way == "parts" else 128, WIDTH, generator=torch.Generator().manual_seed(1))
if way not in ("one", "parts"):
    dist.init_process_group("gloo")
parameters = net.parameters()
if way == "tensor":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(net, mesh, {f"{i}.{name}": style for i in range(BLOCKS)
                                   for name, style in (("up", ColwiseParallel()), ("down", RowwiseParallel()))})
elif pipelined:
    import torch.distributed.pipelining as pipelining

    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = 1 if way in ("GPipe", "1F1B") else 2
    layers = BLOCKS // (ranks * chunks)
    stages = [pipelining.PipelineStage(net[(c * ranks + rank) * layers:(c * ranks + rank + 1) * layers], c * ranks + rank, ranks * chunks, torch.device("cpu"))
              for c in range(chunks)]
    schedule = getattr(pipelining, "Schedule" + way)(stages if chunks > 1 else stages[0], PARTS, loss_fn=lambda out, target: (out - target).pow(2).mean())
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
sgd = torch.optim.SGD(parameters, 1e-3)


def step():
    sgd.zero_grad()
    if pipelined:
        first, last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
        schedule.step(*([x] if first else []), **({"target": torch.zeros_like(x)} if last else {}))
    elif way == "parts":
        for part in x.chunk(PARTS):
            (net(part).pow(2).mean() / PARTS).backward()
    else:
        net(x).pow(2).mean().backward()
    sgd.step()


def addition_us(value):
    rounds = []
    with torch.no_grad():
        for _ in range(15):
            start = time.perf_counter()
            for _ in range(500):
                value.add(value)
            rounds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(rounds) / 500


times = []
for number in range((20 if pipelined else 30) + 5):
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    step()
    if number >= 5:
        times.append(time.perf_counter() - start)
result = {"median_ms": 1e3 * statistics.median(times), "best_ms": 1e3 * min(times)}
if way == "tensor":
    from torch.distributed.tensor import Shard, distribute_tensor

    value = torch.ones(1, INNER)
    result["operator_us"] = addition_us(distribute_tensor(value, mesh, [Shard(1)]))
    result["plain_us"] = addition_us(value[:, :INNER // 2].clone())
if not dist.is_initialized() or dist.get_rank() == 0:
    print(json.dumps(result), flush=True)
if dist.is_initialized():
    dist.barrier()
    os._exit(0)

"""Peer: DTensor and torch.distributed.pipelining over Gloo on the work of bench_model_parallel.cpp.

Start it alone for --way one and parts, else with `python -m torch.distributed.run --standalone --nproc-per-node 2`, for
--way llama (FSDP2 over two, DTensor over two others) with 4.
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


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaBlock(nn.Module):
    def __init__(self, width, inner, heads, kv_heads):
        super().__init__()
        self.head = width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.head, bias=False) for _ in range(2))
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((width, inner), (width, inner), (inner, width)))

    def forward(self, x, cos, sin):
        def heads_of(values):
            return values.unflatten(-1, (-1, self.head)).transpose(1, 2)

        def turned(values):
            one, two = values.chunk(2, -1)
            return values * cos + torch.cat((-two, one), -1) * sin

        y = self.norm1(x)
        q, k, v = turned(heads_of(self.q(y))), turned(heads_of(self.k(y))), heads_of(self.v(y))
        k, v = (values.repeat_interleave(q.size(1) // values.size(1), 1) for values in (k, v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary=1024, width=256, inner=1024, layers=4, heads=8, kv_heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, inner, heads, kv_heads) for _ in range(layers))
        self.norm, self.lm_head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head = width // heads

    def forward(self, ids):
        x = self.embed(ids)
        angles = torch.outer(torch.arange(ids.size(1)), 10000.0 ** (-torch.arange(0, self.head, 2) / self.head))
        angles = torch.cat((angles, angles), -1)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.lm_head(self.norm(x))


def llama_step():
    """A step of FSDP2 over DTensor's parts: the plan of PyTorch's tutorial, with the loss on whole logits."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Llama()
    parallelize_module(model, mesh["tp"], {"embed": RowwiseParallel(input_layouts=Replicate()),
                                           "lm_head": ColwiseParallel(output_layouts=Replicate())})
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {**{name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")},
                                               **{name: RowwiseParallel() for name in ("o", "down")}})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    adamw = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    ids = torch.randint(1024, (8, 65), generator=torch.Generator().manual_seed(1)).chunk(2)[dist.get_rank() // 2]

    def step():
        adamw.zero_grad()
        logits = model(ids[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        adamw.step()

    return step


net = nn.Sequential(*[FeedForward() for _ in range(BLOCKS)])
pipelined = way not in ("one", "parts", "tensor", "llama")
x = torch.randn(512 if pipelined or way == "parts" else 128, WIDTH, generator=torch.Generator().manual_seed(1))
if way not in ("one", "parts", "llama"):
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


if way == "llama":
    step = llama_step()


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

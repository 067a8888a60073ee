"""Collectives of torch.distributed and steps of training from Python, on the ranks of torchrun.

python_module.py gloo|hasten [collectives]: with `gloo` all is torch's. With `hasten` collectives and the unchanged programs run
over the package of docs/python.md, and `distribute` takes the place of DistributedDataParallel and FSDP2 in rows of its own.
With `collectives` there are no steps of training.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

ROUNDS = 5


def median_us(times, fn):
    for _ in range(3):
        fn()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        fn()
        found.append(time.perf_counter() - start)
    return 1e6 * statistics.median(found)


def collectives(line):
    for name, numel, times in (("4_kb", 1024, 300), ("64_kb", 16384, 200), ("1_mb", 1 << 18, 60), ("25_mb", 25 << 18, 8)):
        tensor = torch.ones(numel)
        dist.barrier()
        line[f"all_reduce_{name}_us"] = median_us(times, lambda: dist.all_reduce(tensor))
    part, whole = torch.ones(25 << 18), torch.ones(dist.get_world_size() * (25 << 18))
    line["all_gather_25_mb_us"] = median_us(8, lambda: dist.all_gather_into_tensor(whole, part))
    line["reduce_scatter_25_mb_us"] = median_us(8, lambda: dist.reduce_scatter_tensor(part, whole))
    line["barrier_us"] = median_us(300, dist.barrier)
    objects = [None] * dist.get_world_size()
    line["all_gather_object_us"] = median_us(100, lambda: dist.all_gather_object(objects, {"rank": dist.get_rank()}))


def median_ms(step, steps):
    rounds = []
    for number in range(ROUNDS + 1):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if number > 0:
            rounds.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(rounds)


def mlp_step(prepare):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                              torch.nn.Linear(1024, 10))
    model, optimizer = prepare(net)
    inputs, labels = torch.randn(32, 512), torch.randint(10, (32,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return median_ms(step, 20)


def split_step(prepare):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(8)])
    optimizer = prepare(net)
    inputs = torch.randn(32, 1024)

    def step():
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    return median_ms(step, 8)


def fsdp2(net):
    from torch.distributed.fsdp import fully_shard

    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    return torch.optim.AdamW(net.parameters(), 1e-3, fused=True)


def main():
    backend = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    line = {}
    collectives(line)
    if "collectives" not in sys.argv:
        steps_of_training(backend, line)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def steps_of_training(backend, line):
    line["ddp_ms"] = mlp_step(lambda net: (DistributedDataParallel(net), torch.optim.SGD(net.parameters(), 0.01)))
    line["fsdp2_ms"] = split_step(fsdp2)
    if backend == "hasten":
        import hasten

        line["distribute_ms"] = mlp_step(
            lambda net: (hasten.distribute(net), hasten.optimizer(torch.optim.SGD(net.parameters(), 0.01))))
        line["distribute_shard_ms"] = split_step(
            lambda net: hasten.optimizer(torch.optim.AdamW(hasten.distribute(net, shard=3).parameters(), 1e-3)))


if __name__ == "__main__":
    main()

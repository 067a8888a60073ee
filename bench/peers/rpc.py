"""torch.distributed.rpc between two processes of one host; the peer of bench/bench_rpc.cpp, with the same work."""
import json
import os
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc


def plus_one(x):
    return x + 1


def echo(x):
    return x


def median_us(count, function):
    for _ in range(min(count, 50)):
        function()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e6 * sorted(times)[count // 2]


def main():
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    start = time.perf_counter()
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)
    line = {"start_ms": 1e3 * (time.perf_counter() - start)}
    if rank == 0:
        line["call_us"] = median_us(1000, lambda: rpc.rpc_sync("w1", plus_one, args=(1,)))
        one = torch.ones(1)
        line["call_builtin_us"] = median_us(1000, lambda: rpc.rpc_sync("w1", torch.add, args=(one, 1)))
        for kb in (64, 1024, 25 * 1024, 100 * 1024):
            x = torch.ones(kb * 256)
            line[f"echo_{kb}_kb_us"] = median_us(200 if kb < 5000 else 10, lambda: rpc.rpc_sync("w1", echo, args=(x,)))
        start = time.perf_counter()
        futures = [rpc.rpc_async("w1", plus_one, args=(1,)) for _ in range(5000)]
        for future in futures:
            future.wait()
        line["calls_per_s"] = 5000 / (time.perf_counter() - start)
        start = time.perf_counter()
        references = [rpc.remote("w1", torch.add, args=(one, 1)) for _ in range(1000)]
        for reference in references:
            reference.to_here()
        line["remote_us"] = 1e6 * (time.perf_counter() - start) / 1000
        del references
        w = torch.ones(4, 4, requires_grad=True)

        def step():
            with dist_autograd.context() as context:
                dist_autograd.backward(context, [rpc.rpc_sync("w1", torch.mm, args=(w, w)).sum()])

        line["autograd_us"] = median_us(300, step)
    start = time.perf_counter()
    rpc.shutdown()
    line["shutdown_ms"] = 1e3 * (time.perf_counter() - start)
    if rank == 0:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The peer of bench_optimizer.cpp: a step of PyTorch's Adam by default, with foreach and fused, on the same parameters. The
three take turns; medians in ms."""
import argparse
import json
import statistics
import time

import torch

KINDS = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def parameters(sizes):
    params = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def time_steps(sizes, steps):
    optimizers = {kind: torch.optim.Adam(parameters(sizes), lr=1e-3, **arguments) for kind, arguments in KINDS.items()}
    times = {kind: [] for kind in KINDS}
    for step in range(-3, steps):
        for kind, optimizer in optimizers.items():
            start = time.perf_counter()
            optimizer.step()
            if step >= 0:
                times[kind].append(1e3 * (time.perf_counter() - start))
    return {kind: statistics.median(values) for kind, values in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    large = time_steps([4_194_304] * 2, options.steps)
    small = time_steps([256] * 98, 10 * options.steps)
    print(json.dumps({f"{size}_{kind}": ms for size, times in (("large", large), ("small", small))
                      for kind, ms in times.items()}))


if __name__ == "__main__":
    main()

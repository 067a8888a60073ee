"""torch.utils.checkpoint (use_reentrant=False) on the work of bench_recompute.cpp.

Prints one JSON object: plain_ms, recompute_ms, record_us and operator_us; with --memory: over_start_mb.
"""

import argparse
import json
import statistics
import time

import torch
from torch.utils.checkpoint import checkpoint

import models


def memory_mb(field):
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith(field + ":"))) / 1024


def time_ms(function):
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def operator_us(again, backward):
    count = 500
    weight, start = torch.ones(4, requires_grad=True), torch.ones(4)

    def chain(x):
        for _ in range(count):
            x = x * weight
        return x

    def run():
        x = checkpoint(chain, start, use_reentrant=False) if again else chain(start)
        if backward:
            x.sum().backward()

    return 1e3 * statistics.median(time_ms(run) for _ in range(30)) / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", choices=("plain", "recompute"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()

    torch.set_num_threads(1)
    start = memory_mb("VmRSS")
    net, data, target = models.transformer(options.batch, options.length)
    sgd = torch.optim.SGD(net.parameters(), 0.01)

    def step(again):
        sgd.zero_grad()
        x = data
        for layer in net:
            region = again and isinstance(layer, models.EncoderLayer)
            x = checkpoint(layer, x, use_reentrant=False) if region else layer(x)
        torch.nn.functional.cross_entropy(x, target).backward()
        sgd.step()

    if options.memory:
        for _ in range(3):
            step(options.memory == "recompute")
        print(json.dumps({"over_start_mb": memory_mb("VmHWM") - start}))
        return
    for _ in range(3):
        for again in (False, True):
            step(again)
    times = [(time_ms(lambda: step(False)), time_ms(lambda: step(True))) for _ in range(options.steps)]
    print(json.dumps({
        "plain_ms": statistics.median(plain for plain, _ in times),
        "recompute_ms": statistics.median(again for _, again in times),
        "record_us": operator_us(True, False) - operator_us(False, False),
        "operator_us": operator_us(True, True) - operator_us(False, True),
    }))


if __name__ == "__main__":
    main()

"""torch.distributed over Gloo on the work of bench_collectives.cpp: blocking all-reduces by size, and the barrier.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 collectives.py`. Rank 0 prints one JSON
object of milliseconds per call.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

SIZES = {"all_reduce_4KB": 4 << 10, "all_reduce_1MB": 1 << 20, "all_reduce_25MB": 25 << 20}


def median_ms(calls, operation):
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        operation()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="of the small ones; the large ones a tenth of it")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    times = {}
    for name, num_bytes in SIZES.items():
        tensor = torch.ones(num_bytes // 4)
        calls = options.calls if num_bytes <= 1 << 20 else max(1, options.calls // 10)
        times[name] = median_ms(calls, lambda: dist.all_reduce(tensor))
    times["barrier"] = median_ms(options.calls, dist.barrier)

    if dist.get_rank() == 0:
        print(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""torch.distributed over Gloo, or over the module, on the work of bench_collectives.cpp: blocking collectives by size.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 collectives.py`. Rank 0 prints one JSON
object of milliseconds per call.
"""

import argparse
import json
import multiprocessing
import statistics
import time

import torch
import torch.distributed as dist

KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
SIZES = {"4KB": 4 * KILOBYTE, "64KB": 64 * KILOBYTE, "1MB": MEGABYTE, "25MB": 25 * MEGABYTE, "100MB": 100 * MEGABYTE}


def median_ms(calls, num_bytes, operation):
    dist.barrier()
    times = []
    for _ in range(calls if num_bytes <= MEGABYTE else max(3, calls // 10)):
        start = time.perf_counter()
        operation()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def spin():
    while True:
        pass


def beside_busy_programs(calls, count):
    """Means of small all-reduces, in a row and with 2 ms of work between, as bench_collectives.cpp --busy."""
    dist.barrier()
    programs = [multiprocessing.get_context("fork").Process(target=spin, daemon=True)
                for _ in range(count if dist.get_rank() == 0 else 0)]
    for program in programs:
        program.start()
    times = {}
    for name in ("4KB", "64KB", "1MB"):
        tensor = torch.ones(SIZES[name] // 4)
        for between, kind in ((0, "row"), (2e-3, "work")):
            dist.barrier()
            total = 0
            for _ in range(calls):
                end = time.perf_counter() + between
                while time.perf_counter() < end:
                    pass
                start = time.perf_counter()
                dist.all_reduce(tensor)
                total += time.perf_counter() - start
            times[f"all_reduce_{name}_{kind}"] = total / calls * 1e3
    dist.barrier()
    for program in programs:
        program.kill()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="of the small ones; the large ones a tenth of it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="small all-reduces beside so many busy programs")
    parser.add_argument("--backend", choices=["gloo", "hasten"], default="gloo", help="hasten: over the package of docs/python.md")
    options = parser.parse_args()

    if options.backend == "hasten":
        import hasten  # noqa: F401 - registers the backend
    torch.set_num_threads(options.threads)
    dist.init_process_group(options.backend)
    times = {}
    warm_up = torch.ones(MEGABYTE // 4)
    for _ in range(options.calls):
        dist.all_reduce(warm_up)
    if options.busy:
        times = beside_busy_programs(options.calls, options.busy)
        if dist.get_rank() == 0:
            print(json.dumps(times))
        dist.destroy_process_group()
        return
    for name, num_bytes in SIZES.items():
        tensor = torch.ones(num_bytes // 4)
        times[f"all_reduce_{name}"] = median_ms(options.calls, num_bytes, lambda: dist.all_reduce(tensor))
    world, large = dist.get_world_size(), 25 * MEGABYTE
    part = torch.ones(large // world // 4)
    whole = torch.ones(part.numel() * world)
    number = torch.ones(1, dtype=torch.long)
    times["all_gather_25MB"] = median_ms(options.calls, large, lambda: dist.all_gather_into_tensor(whole, part))
    times["reduce_scatter_25MB"] = median_ms(options.calls, large, lambda: dist.reduce_scatter_tensor(part, whole))
    received = torch.ones_like(whole)
    times["all_to_all_25MB"] = median_ms(options.calls, large, lambda: dist.all_to_all_single(received, whole))
    message, answer, rank = torch.ones(large // 4), torch.ones(large // 4), dist.get_rank()

    def send():
        sent = dist.isend(message, (rank + 1) % world)
        dist.recv(answer, (rank + world - 1) % world)
        sent.wait()

    times["send_25MB"] = median_ms(options.calls, large, send)
    times["broadcast_8B"] = median_ms(options.calls, 8, lambda: dist.broadcast(number, 0))
    times["barrier"] = median_ms(options.calls, 0, dist.barrier)

    if dist.get_rank() == 0:
        print(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

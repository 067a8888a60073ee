"""torch.distributed on the work of bench_first_collective.cpp: a group over Gloo and one reduction.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 first_collective.py`. Rank 0 prints one JSON
object: done_s, the system's clock after the reduction, which the launcher's caller reads too.
"""

import json
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    done_s = time.time()
    if total.item() != dist.get_world_size():
        raise RuntimeError("the reduction is wrong")
    if dist.get_rank() == 0:
        print(json.dumps({"done_s": done_s}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

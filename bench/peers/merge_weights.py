"""Accelerate's merge-weights: `make DIR MB` saves a DCP folder of a model's weights, `merge DIR OUT` merges it and prints the time
without imports and the peak memory of the process."""
import json
import pathlib
import resource
import sys
import time

import torch
import torch.distributed.checkpoint as dcp


def make(folder, megabytes):
    layers = 10
    width = int((megabytes * 1e6 / 4 / layers) ** 0.5)
    state = {f"{i}.weight": torch.randn(width, width) for i in range(layers)}
    dcp.save({"model": state}, checkpoint_id=folder, no_dist=True)


def merge(folder, out):
    from accelerate.utils import merge_fsdp_weights
    start = time.perf_counter()
    merge_fsdp_weights(folder, out, safe_serialization=True)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if sys.argv[1] == "make":
    make(sys.argv[2], float(sys.argv[3]))
else:
    pathlib.Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
    merge(sys.argv[2], sys.argv[3])

#!/usr/bin/env python3
"""The peer of bench_big_model.cpp: Accelerate's big-model path on a CPU. `big_model.py save FOLDER` saves 60 x Linear(2048, 2048)
as safetensors files of 200 MB; `cpu` and `disk` load the folder into an empty model by such a device map, and time forwards."""
import json
import resource
import shutil
import statistics
import sys
import time

import torch
from torch import nn

LAYERS, WIDTH = 60, 2048
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def timed(function):
    start = time.perf_counter()
    result = function()
    return (time.perf_counter() - start) * 1000, result


def main(where, folder):
    if where == "save":
        from accelerate import Accelerator
        Accelerator(cpu=True).save_model(Net(), folder, max_shard_size="200MB")
        return
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch
    with init_empty_weights():
        net = Net()
    device_map = {"": "cpu"} if where == "cpu" else {f"layers.{i}": "disk" if i else "cpu" for i in range(LAYERS)}
    offload = folder + "/offload"
    load_ms, net = timed(lambda: load_checkpoint_and_dispatch(net, folder, device_map=device_map, offload_folder=offload))
    x = torch.randn(1, WIDTH)
    with torch.no_grad():
        first_ms, _ = timed(lambda: net(x))
        forward_ms = statistics.median(timed(lambda: net(x))[0] for _ in range(5))
    shutil.rmtree(offload, ignore_errors=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"load_ms": load_ms, "first_ms": first_ms, "forward_ms": forward_ms, "peak_mb": peak_mb}))


main(*sys.argv[1:])

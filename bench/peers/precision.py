"""The peer of bench_precision.cpp: PyTorch's autocast and GradScaler round the same layers; medians in ms."""
import json
import statistics
import time

import torch

torch.set_num_threads(1)
SIZE = 1024


def linears(number):
    return torch.nn.Sequential(*[torch.nn.Linear(SIZE, SIZE) for _ in range(number)])


def forward_ms():
    net, data = linears(6), torch.randn(16, SIZE)
    times = []
    with torch.no_grad():
        for i in range(-3, 100):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                net(data).float()
            if i >= 0:
                times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def window_ms():
    """Unscale, clip, step and update behind a scaled backward, and the casts of the next forward."""
    net, data = linears(8), torch.randn(1, SIZE) * 1e-3
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
    scaler = torch.amp.GradScaler(device="cpu")
    times = []
    for i in range(-3, 30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = net(data).float().sum()
        scaler.scale(loss).backward()
        start = time.perf_counter()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            net(data).float()
        if i >= 0:
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


print(json.dumps({"forward_ms": forward_ms(), "window_ms": window_ms()}))

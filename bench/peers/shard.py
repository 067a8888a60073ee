"""PyTorch's FSDP2 (fully_shard), or DeepSpeed's ZeRO, on the work of bench_shard.cpp, over Gloo on the CPU.

Start it with `python -m torch.distributed.run --standalone --nproc-per-node 2 shard.py`. Rank 0 prints one JSON
object: step_ms, pss_mb (sum over the processes), peak_mb (VmHWM of rank 0). `--deepspeed` needs that package.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def pss_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024


def memory_mb(field):
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith(field + ":"))) / 1024


class GruLm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8000, 512), nn.Linear(512, 8000)
        self.gru = nn.GRU(512, 512, num_layers=2, batch_first=True)

    def forward(self, tokens):
        return self.head(self.gru(self.embedding(tokens))[0])


class TransformerLm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8000, 256), nn.Linear(256, 8000)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0), 4, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens).transpose(0, 1)))


def make(model, width):
    if model == "gru":
        return GruLm(), torch.randint(8000, (8, 32))
    if model == "transformer":
        return TransformerLm(), torch.randint(8000, (8, 32))
    return nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(width, width), nn.ReLU())]), torch.randn(32, width)


def with_fsdp(net):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.GRU, nn.Embedding, nn.TransformerEncoderLayer)) and module is not net:
            if not any(isinstance(parent, nn.TransformerEncoderLayer) and module in parent.modules() and parent is not module
                       for parent in net.modules()):
                fully_shard(module, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(data):
        optimizer.zero_grad()
        net(data).pow(2).mean().backward()
        optimizer.step()

    return step


def with_deepspeed(net, stage):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import logging

    import deepspeed

    logging.disable(logging.CRITICAL)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    config = {"train_micro_batch_size_per_gpu": 32, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    engine = deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]

    def step(data):
        engine.backward(engine(data).pow(2).mean())
        engine.step()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("linear", "gru", "transformer"), default="linear")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--deepspeed", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.deepspeed:  # its import takes memory that no step needs
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed

        deepspeed.init_distributed("gloo")
    start = torch.tensor([pss_mb()], dtype=torch.double)
    dist.all_reduce(start)
    torch.manual_seed(0)
    net, data = make(options.model, options.width)
    step = with_deepspeed(net, options.stage) if options.deepspeed else with_fsdp(net)
    for _ in range(options.warmup):
        step(data)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(options.steps):
        step(data)
    step_ms = (time.perf_counter() - begin) * 1e3 / options.steps
    memory = torch.tensor([pss_mb()], dtype=torch.double)
    dist.all_reduce(memory)
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": step_ms, "pss_mb": memory.item(), "start_pss_mb": start.item(),
                          "peak_mb": memory_mb("VmHWM")}), flush=True)
    # Gloo's threads now and then abort the interpreter's orderly end, and torchrun calls the run failed.
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()

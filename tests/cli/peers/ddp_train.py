"""A torchrun program: torch DDP over Gloo trains a small net; every rank prints its loss after each step, to the last bit.

It knows nothing of who starts it: init_process_group takes everything from the environment.
"""
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS = 10


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # so that training goes right only if rank 0's parameters reach all
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, target = torch.randn(8, 16), torch.randint(4, (8,))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        # One write a line: the ranks share the output, and print() writes the end of a line by itself.
        sys.stdout.write(f"rank {rank}/{world} step {step} loss {loss.item().hex()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What Python's autograd does: hooks, checkpoint, exceptions, anomalies, a fork. Printed, to be compared."""
import os

import torch
from torch.utils.checkpoint import checkpoint

# LOAD


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("words of mine")


x = torch.ones(3, requires_grad=True)
try:
    Bad.apply(x).sum().backward()
except BaseException as error:
    print("exception in backward:", type(error).__name__, error)
calls = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: calls.append(1) or t, lambda t: t):
    y = (x * x).sum()
y.backward()
print("saved_tensors_hooks called:", len(calls))
linear, runs = torch.nn.Linear(4, 4), []


def block(z):
    runs.append(1)
    return linear(z).relu()


checkpoint(block, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
print("checkpoint recomputed:", len(runs))
seen = []
a = torch.ones(2, requires_grad=True)
a.register_hook(lambda gradient: seen.append(gradient.sum().item()))
(a * 3).sum().backward()
print("hooks", seen)
child = os.fork()
if child == 0:
    (torch.ones(2, requires_grad=True) * 2).sum().backward()
    os._exit(0)
print("fork", os.waitpid(child, 0)[1])

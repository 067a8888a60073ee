#!/usr/bin/env python3
"""Writes optimizer_reference.json: what PyTorch's optimizers make of two parameters, for optimizer_reference_golden_test.cpp.

Needs torch (made with 2.13.0, on the CPU): tests/optim/steps/make_optimizer_reference.py > tests/optim/steps/optimizer_reference.json
Element i of parameter k begins at cos(i + k); its gradient at step s is sin(0.3 s + 1.7 i + k), and parameter 1 has none at
steps 3, 6, 9 … All in float64; values have 12 digits, after the steps named.
"""
import itertools
import json
import sys

import torch

SHAPES = [(3, 5), (7,)]
STEPS = [1, 2, 3, 4, 12]
OPTIMIZERS = [
    {"type": "SGD", "lr": 0.1},
    {"type": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0.2},
    {"type": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": True},
    {"type": "Adam", "lr": 0.05, "betas": [0.8, 0.95], "eps": 1e-6},
    {"type": "Adam", "lr": 0.05, "amsgrad": True},
    {"type": "AdamW", "lr": 0.05},
    {"type": "AdamW", "lr": 0.05, "amsgrad": True},
    {"type": "Adagrad", "lr": 0.1},
    {"type": "Adagrad", "lr": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.3},
    {"type": "RMSprop", "lr": 0.01, "momentum": 0.5},
    {"type": "RMSprop", "lr": 0.01, "alpha": 0.9, "eps": 1e-6},
    {"type": "RMSprop", "lr": 0.01, "momentum": 0.5, "centered": True},
]


def values(spec):
    params = [torch.nn.Parameter(torch.arange(torch.Size(shape).numel(), dtype=torch.float64).add(k).cos().reshape(shape))
              for k, shape in enumerate(SHAPES)]
    arguments = {key: value for key, value in spec.items() if key != "type"}
    optimizer = getattr(torch.optim, spec["type"])(params, foreach=False, **arguments)
    rows = []
    for step in range(1, STEPS[-1] + 1):
        for k, param in enumerate(params):
            elements = torch.arange(param.numel(), dtype=torch.float64)
            gradient = (0.3 * step + 1.7 * elements + k).sin().reshape(param.shape)
            param.grad = None if k == 1 and step % 3 == 0 else gradient
        optimizer.step()
        if step in STEPS:
            rows.append([[float(f"{value:.12g}") for value in param.detach().flatten()] for param in params])
    return rows


def main():
    cases = []
    for spec, decay, maximize in itertools.product(OPTIMIZERS, (0.0, 0.1), (False, True)):
        spec = {**spec, "weight_decay": decay, "maximize": maximize}
        cases.append({"optimizer": spec, "values": values(spec)})
    print(json.dumps({"torch": torch.__version__, "shapes": SHAPES, "steps": STEPS, "cases": "CASES"})
          .replace('"CASES"', "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"))


if __name__ == "__main__":
    sys.exit(main())

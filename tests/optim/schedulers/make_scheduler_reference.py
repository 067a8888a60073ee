#!/usr/bin/env python3
"""Writes scheduler_reference.json: what PyTorch's schedulers do, step by step, for scheduler_reference_golden_test.cpp.

Needs torch (made with 2.13.0, on the CPU): tests/optim/schedulers/make_scheduler_reference.py > tests/optim/schedulers/scheduler_reference.json
Rates and momenta have 12 digits, one row a step, the first row before any step. WarmupLR has no class of PyTorch's; its
reference is put together from LambdaLR, LinearLR and SequentialLR.
"""
import json
import math
import sys
import warnings

import torch
from torch.optim import lr_scheduler as peer

warnings.filterwarnings("ignore")
STEPS = 200
LRS = [0.1, 0.02]


def optimizer_of(name, lrs):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]
    return getattr(torch.optim, name)(groups, lr=1.0, **({"momentum": 0.9} if name in ("SGD", "RMSprop") else {}))


def scheduler_of(spec, optimizer):
    arguments = {key: value for key, value in spec.items() if key != "type"}
    if spec["type"] in ("LambdaLR", "MultiplicativeLR"):  # lr_lambda(s) = base ** s, or base, for each group
        power = spec["type"] == "LambdaLR"
        return getattr(peer, spec["type"])(
            optimizer, [(lambda s, base=base: base ** s if power else base) for base in spec["bases"]])
    if spec["type"] == "SequentialLR":
        parts = [scheduler_of(part, optimizer) for part in spec["schedulers"]]
        return peer.SequentialLR(optimizer, parts, spec["milestones"])
    if spec["type"] == "ChainedScheduler":
        return peer.ChainedScheduler([scheduler_of(part, optimizer) for part in spec["schedulers"]], optimizer)
    if spec["type"] == "WarmupLR":
        return warmup_of(spec, optimizer)
    if "scale_fn" in arguments:
        arguments["scale_fn"] = lambda x: 0.5 * (1 + math.sin(x * math.pi / 2))
    return getattr(peer, spec["type"])(optimizer, **arguments)


def warmup_of(spec, optimizer):
    total, start, end = spec["total_iters"], spec["start_factor"], spec["end_factor"]
    for group in optimizer.param_groups:
        group["lr"] *= end
    rise = peer.LambdaLR(optimizer, lambda s: (start + (end - start) * min(1.0, s / total)) / end)
    if "after" not in spec:
        return rise
    return peer.SequentialLR(optimizer, [rise, scheduler_of(spec["after"], optimizer)], [total])


def digits(value):
    return float(f"{value:.12g}")


def momentum_of(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


def record(name, spec, lrs=None, optimizer="SGD", steps=STEPS, metrics=None):
    lrs = lrs or LRS
    made = optimizer_of(optimizer, lrs)
    scheduler = scheduler_of(spec, made)
    rates, momenta = [], []

    def note():
        rates.append([digits(group["lr"]) for group in made.param_groups])
        if has_momentum:
            momenta.append([digits(momentum_of(group)) for group in made.param_groups])

    has_momentum = spec["type"] in ("CyclicLR", "OneCycleLR") and spec.get("cycle_momentum", True)
    note()
    for step in range(steps):
        made.step()
        scheduler.step(*([metrics[step]] if metrics else []))
        note()
    case = {"case": name, "scheduler": spec, "optimizer": optimizer, "lrs": lrs, "lr": rates}
    if has_momentum:
        case["momentum"] = momenta
    if metrics:
        case["metrics"] = metrics
    return case


def closed_forms():
    yield "lambda", {"type": "LambdaLR", "bases": [0.95, 0.99]}
    yield "multiplicative", {"type": "MultiplicativeLR", "bases": [0.97, 1.01]}
    yield "step", {"type": "StepLR", "step_size": 7, "gamma": 0.9}
    yield "multistep", {"type": "MultiStepLR", "milestones": [0, 5, 5, 40, 120], "gamma": 0.3}
    yield "constant", {"type": "ConstantLR", "factor": 0.3, "total_iters": 50}
    yield "constant_defaults", {"type": "ConstantLR"}
    yield "linear_up", {"type": "LinearLR", "start_factor": 0.1, "end_factor": 1.0, "total_iters": 60}
    yield "linear_down", {"type": "LinearLR", "start_factor": 1.0, "end_factor": 0.05, "total_iters": 150}
    yield "linear_defaults", {"type": "LinearLR"}
    yield "exponential", {"type": "ExponentialLR", "gamma": 0.98}
    yield "exponential_up", {"type": "ExponentialLR", "gamma": 1.02}
    yield "polynomial", {"type": "PolynomialLR", "total_iters": 150, "power": 2.0}
    yield "polynomial_root", {"type": "PolynomialLR", "total_iters": 201, "power": 0.5}
    yield "cosine", {"type": "CosineAnnealingLR", "T_max": 200, "eta_min": 0.001}
    yield "cosine_again_and_again", {"type": "CosineAnnealingLR", "T_max": 37, "eta_min": 0.001}
    yield "restarts", {"type": "CosineAnnealingWarmRestarts", "T_0": 15}
    yield "restarts_longer", {"type": "CosineAnnealingWarmRestarts", "T_0": 10, "T_mult": 2, "eta_min": 0.001}


def cycles():
    bounds = {"type": "CyclicLR", "base_lr": [0.01, 0.002], "max_lr": [0.1, 0.05]}
    yield "cyclic", {**bounds, "step_size_up": 7, "step_size_down": 13}, "SGD"
    yield "cyclic_2", {**bounds, "step_size_up": 10, "mode": "triangular2", "base_momentum": 0.7}, "Adam"
    yield "cyclic_exp", {**bounds, "step_size_up": 8, "mode": "exp_range", "gamma": 0.99}, "RMSprop"
    yield "cyclic_own", {**bounds, "step_size_up": 9, "scale_fn": "sine", "scale_mode": "cycle"}, "SGD"
    yield "cyclic_own_steps", {**bounds, "step_size_up": 9, "scale_fn": "sine", "scale_mode": "iterations"}, "AdamW"
    yield "cyclic_rate_only", {**bounds, "step_size_up": 9, "cycle_momentum": False}, "Adagrad"
    one = {"type": "OneCycleLR", "max_lr": [0.5, 0.1], "total_steps": 201}
    yield "one_cycle", one, "SGD"
    yield "one_cycle_linear", {**one, "anneal_strategy": "linear", "pct_start": 0.25}, "AdamW"
    yield "one_cycle_three", {**one, "three_phase": True, "div_factor": 10.0, "final_div_factor": 100.0}, "Adam"
    yield "one_cycle_three_linear", {**one, "three_phase": True, "anneal_strategy": "linear", "pct_start": 0.4}, "SGD"
    yield "one_cycle_epochs", {"type": "OneCycleLR", "max_lr": 0.3, "epochs": 10, "steps_per_epoch": 25,
                               "cycle_momentum": False}, "Adagrad"


def composed():
    linear = {"type": "LinearLR", "start_factor": 0.1, "end_factor": 1.0, "total_iters": 20}
    cosine = {"type": "CosineAnnealingLR", "T_max": 180, "eta_min": 0.0001}
    constant = {"type": "ConstantLR", "factor": 0.5, "total_iters": 30}
    exponential = {"type": "ExponentialLR", "gamma": 0.99}
    steps = {"type": "MultiStepLR", "milestones": [0, 10, 50], "gamma": 0.5}
    restarts = {"type": "CosineAnnealingWarmRestarts", "T_0": 10, "T_mult": 3}
    cyclic = {"type": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 10}
    multiplicative = {"type": "MultiplicativeLR", "bases": [0.97, 0.99]}
    polynomial = {"type": "PolynomialLR", "total_iters": 200, "power": 0.9}
    yield "sequential", {"type": "SequentialLR", "schedulers": [linear, cosine], "milestones": [20]}
    yield "sequential_many", {"type": "SequentialLR", "schedulers": [constant, exponential, steps, restarts, linear],
                              "milestones": [20, 60, 100, 170]}
    yield "sequential_cyclic", {"type": "SequentialLR", "schedulers": [linear, cyclic, multiplicative],
                                "milestones": [30, 150]}
    yield "sequential_from_the_second", {"type": "SequentialLR", "schedulers": [linear, polynomial], "milestones": [0]}
    yield "chained", {"type": "ChainedScheduler", "schedulers": [constant, exponential]}
    yield "chained_three", {"type": "ChainedScheduler", "schedulers": [linear, steps, polynomial]}
    yield "chained_cosine", {"type": "ChainedScheduler", "schedulers": [constant, cosine]}
    yield "chained_restarts", {"type": "ChainedScheduler", "schedulers": [restarts, constant]}
    yield "chained_sequential", {"type": "ChainedScheduler", "schedulers": [
        {"type": "SequentialLR", "schedulers": [linear, cosine], "milestones": [20]}, exponential]}
    warmup = {"type": "WarmupLR", "total_iters": 25, "start_factor": 0.0, "end_factor": 1.0}
    yield "warmup", warmup
    yield "warmup_cosine", {**warmup, "start_factor": 0.1, "after": cosine}
    yield "gradual_warmup", {**warmup, "start_factor": 1.0, "end_factor": 8.0}
    yield "gradual_warmup_steps", {**warmup, "start_factor": 1.0, "end_factor": 4.0, "after": steps}


def plateaus():
    falling = [digits(1 / (1 + s // 9) + 0.01 * math.sin(s)) for s in range(STEPS)]
    plateau = {"type": "ReduceLROnPlateau"}
    yield "plateau", {**plateau, "factor": 0.5, "patience": 2}, falling
    yield "plateau_defaults", plateau, falling
    yield "plateau_cooldown", {**plateau, "factor": 0.8, "patience": 1, "cooldown": 3, "threshold": 0.05}, falling
    yield "plateau_abs", {**plateau, "factor": 0.7, "patience": 0, "threshold": 0.02, "threshold_mode": "abs",
                          "min_lr": [0.01, 0.001], "eps": 1e-3}, falling
    rising = [digits(-value) for value in falling]
    yield "plateau_max", {**plateau, "mode": "max", "factor": 0.5, "patience": 3, "threshold_mode": "abs"}, rising
    yield "plateau_max_rel", {**plateau, "mode": "max", "factor": 0.5, "patience": 3, "min_lr": 0.001}, rising


def main():
    cases = [record(name, spec, lrs) for name, spec in closed_forms()
             for lrs in ([LRS if "bases" in spec else [0.1, 0.02, 3e-4]])]
    cases += [record(name, spec, optimizer=optimizer) for name, spec, optimizer in cycles()]
    cases += [record(name, spec) for name, spec in composed()]
    cases += [record(name, spec, metrics=metrics) for name, spec, metrics in plateaus()]
    out = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    sys.stdout.write('{"versions":{"torch":"%s"},"cases":[\n%s\n]}\n' % (torch.__version__, out))


if __name__ == "__main__":
    main()

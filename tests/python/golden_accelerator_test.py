"""Cases recorded from Accelerate (tests/golden), through hasten.Accelerator with torch's DataLoader: what ranks gather and dispatch,
loss scales, precisions. As golden_test.py; its loaders' plans by themselves are C++'s, and Accelerate's own classes.
"""
import pytest
from golden_test import COMMON, Counted, near, on_ranks

pytest.importorskip("accelerate")

LOADERS = COMMON + '''
    import os
    from accelerate import DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState
    from hasten import Accelerator
    class Counting(torch.utils.data.IterableDataset):
        def __init__(self, n): self.n = n
        def __iter__(self): return iter(range(self.n))
        def __len__(self): return self.n
    class Items(torch.utils.data.Dataset):
        def __init__(self, n, make): self.n, self.make = n, make
        def __len__(self): return self.n
        def __getitem__(self, i): return self.make(i)
    ITEMS = {"dict": lambda i: {"x": torch.tensor([i, 10 * i]), "y": torch.tensor(i)},
             "tuple": lambda i: (torch.tensor(i), [torch.tensor([i, i + 100])])}
    def loader_of(given, iterable, dispatch):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(
            split_batches=given["split_batches"], dispatch_batches=dispatch))
        make = ITEMS.get(given.get("nested"))
        data = Counting(given["n"]) if iterable else Items(given["n"], make) if make else list(range(given["n"]))
        return accelerator, accelerator.prepare(torch.utils.data.DataLoader(data, given["batch_size"], drop_last=given["drop_last"]))
    def plain(value):
        if isinstance(value, dict): return {name: plain(each) for name, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value.tolist()
    def print_all(run):
        for case in all_cases():
            try:
                print("case", json.dumps([case["case"], run(case["input"], case["case"].split("/")[0])]))
            except (TypeError, ValueError) as error:  # on all ranks alike
                print("case", json.dumps([case["case"], {"error": type(error).__name__}]))
        accelerator = Accelerator(cpu=True)
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")) if accelerator.num_processes > 1 else None
        assert backend is None or type(backend).__name__ == "ProcessGroupHasten"
        accelerator.end_training()
'''


def seen_of(counted, body, tmp_path, **variables):
    sizes = sorted({case["input"].setdefault("num_processes", 1) for case in counted.cases})
    seen = {}
    for size in sizes:
        seen |= on_ranks(counted, size, body, tmp_path, common=LOADERS, **variables)
    return seen


GATHER = '''
    def gathered(accelerator, kind, batch):
        if kind == "nested": return accelerator.gather_for_metrics({"x": batch})["x"].tolist()
        if kind == "tensor_as_object": return plain(accelerator.gather_for_metrics([batch], use_gather_object=True))
        if kind == "object": return accelerator.gather_for_metrics([f"s{i}" for i in batch.tolist()], use_gather_object=True)
        return accelerator.gather_for_metrics(batch).tolist()
    def run(given, family):
        accelerator, whole = loader_of(given, given["kind"].startswith("iterable"), "_dispatch" in given["kind"])
        passes = {"gathered": accelerator.skip_first_batches(whole, 1), "whole": whole} if family.endswith("_skip") else {"gathered": whole}
        return {name: [gathered(accelerator, given["data"], batch) for batch in loader] for name, loader in passes.items()}
    print_all(run)
'''


def take_as_expected(counted, seen, names):
    """Each rank saw what Accelerate gave there, errors by their class."""
    for case in counted.cases:
        own, expected = seen[case["case"]], case["expected"]
        wanted = {"error": expected["error"]} if "error" in expected else {name: expected[name] for name in names if name in expected}
        right = len(own) == case["input"]["num_processes"] and all(each == wanted for each in own)
        counted.take(case, "expected" if right else None, own)


def test_gather_for_metrics(tmp_path):
    counted = Counted("gather_for_metrics", "map", "iterable_shard", "iterable_dispatch", "map_dispatch", "iterable_shard_skip", "map_skip",
                      "iterable_dispatch_skip")
    take_as_expected(counted, seen_of(counted, GATHER, tmp_path), ("gathered", "whole"))
    counted.end(732)


DISPATCH = '''
    def run(given, family):
        accelerator, loader = loader_of(given, given["iterable"], True)
        if given["num_batches_to_skip"]: loader = accelerator.skip_first_batches(loader, given["num_batches_to_skip"])
        out = {"batches": [], "end_of_dataloader": [], "remainder": []}
        for batch in loader:
            out["batches"].append(plain(batch))
            out["end_of_dataloader"].append(accelerator.gradient_state.end_of_dataloader)
            out["remainder"].append(accelerator.gradient_state.remainder)
        return out
    print_all(run)
'''


def test_dispatcher(tmp_path):
    counted = Counted("dispatcher", "grid", "skip", "nested", "indivisible")
    seen = seen_of(counted, DISPATCH, tmp_path)
    for case in counted.cases:
        expected, size = case["expected"], case["input"]["num_processes"]
        by_rank = [{"error": expected["error"]} if "error" in expected else
                   {name: expected[name][rank] for name in ("batches", "end_of_dataloader", "remainder")} for rank in range(size)]
        counted.take(case, "expected" if sorted(map(str, seen[case["case"]])) == sorted(map(str, by_rank)) else None, seen[case["case"]])
    counted.end(382)


PRECISION = '''
    from accelerate.utils import AutocastKwargs, GradScalerKwargs
    def run(given, family):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        for name in ("ACCELERATE_MIXED_PRECISION",):
            os.environ.pop(name, None)
            if given["env"] is not None: os.environ[name] = given["env"]
        asked = given["handlers"] or {}
        handlers = [AutocastKwargs(**asked["autocast"])] if "autocast" in asked else []
        handlers += [GradScalerKwargs(**asked["scaler"])] if "scaler" in asked else []
        handlers += [AutocastKwargs(), AutocastKwargs()] if asked.get("twice") else []
        accelerator = Accelerator(cpu=True, mixed_precision=given["mixed_precision"], kwargs_handlers=handlers or None)
        inside = []
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
            def forward(self, x):
                inside.append(self.layer(x).dtype)
                return self.layer(x)
        net, optimizer = Net(), None
        plain_net = net
        net = accelerator.prepare(net)
        name = lambda dtype: str(dtype).removeprefix("torch.")
        x = torch.ones(1, 2)
        output = net(x).dtype
        inner = AutocastKwargs(**asked["inner"]) if "inner" in asked else None
        with accelerator.autocast(inner) if inner else accelerator.autocast():
            in_autocast = torch.nn.functional.linear(x, torch.ones(2, 2)).dtype
        out = {"mixed_precision": accelerator.mixed_precision, "native_amp": accelerator.native_amp, "scaler": accelerator.scaler is not None,
               "inside": name(inside[0]), "output": name(output), "in_autocast": name(in_autocast),
               "outside": name(torch.nn.functional.linear(x, torch.ones(2, 2)).dtype)}
        # The module is distributed, and steps in the engine.
        optimizer = accelerator.prepare(torch.optim.SGD(plain_net.parameters(), 0.5))
        before = plain_net.layer.bias.detach().clone()
        accelerator.backward(net(x).sum())
        optimizer.step()
        assert torch.allclose(plain_net.layer.bias, before - 0.5) and hasattr(optimizer.optimizer, "_hasten_twin")
        return out
    print_all(run)
'''


def test_precision_of_the_accelerator(tmp_path):
    counted = Counted("precision", "accelerator")
    for case in counted.cases:
        case["expected"].pop("unwrapped", None)  # the module itself runs in the precision; unwrap_model gives the same object
    take_as_expected(counted, seen_of(counted, PRECISION, tmp_path),
                     ("mixed_precision", "native_amp", "scaler", "inside", "output", "in_autocast", "outside"))
    counted.end(20)


TRAIN = '''
    import contextlib
    def run(given, family):
        AcceleratorState._reset_state()
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        net, _ = model_of(given["model"])
        optimizer = optimizer_of(given["optimizer"], net.parameters())
        x, y = torch.tensor(given["x"]), torch.tensor(given["y"])
        rank, size = accelerator.process_index, accelerator.num_processes
        net, optimizer = accelerator.prepare(net, optimizer)
        out = {"losses": [], "norms": []}
        for step in range(given["steps"]):
            first = (step * size + rank) * given["batch"]
            rows = [(first + i) % len(x) for i in range(given["batch"])]
            # As recorded: a window's first batch is exchanged, and the others add to that on their rank.
            with contextlib.nullcontext() if step % given["num_steps"] == 0 else accelerator.no_sync(net):
                loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
                accelerator.backward(loss / given["num_steps"])
            out["losses"].append(loss.item())
            if step % given["num_steps"] == given["num_steps"] - 1:
                if given["max_norm"] is not None:
                    out["norms"].append(accelerator.clip_grad_norm_(net.parameters(), given["max_norm"]).item())
                optimizer.step()
                optimizer.zero_grad()
        return out
    print_all(run)
'''


def test_training_in_bfloat16(tmp_path):
    # float16 with a loss scale is a GPU's in Accelerate, which leaves it out on CPUs.
    counted = Counted("precision", "train_bfloat16")
    seen = seen_of(counted, TRAIN, tmp_path)
    for case in counted.cases:
        own, tolerance = seen[case["case"]], case["input"]["tolerance"]
        right = len(own) == case["input"]["num_processes"] and all(
            near(each["losses"], expected["losses"], tolerance["losses"]) and near(each["norms"], expected["norms"], tolerance["norms"])
            for each, expected in zip(own, case["expected"]["ranks"]))
        counted.take(case, "expected" if right else None, own)
    counted.end(5)

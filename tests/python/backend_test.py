"""The backend of torch.distributed: by name, in Gloo's place, and what ranks learn of each other's ends."""
import base64
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch
from ranks import environment, expect_success, run_ranks

from hasten import _load

HERE = os.path.dirname(os.path.abspath(__file__))

COLLECTIVES = """
    import sys, torch, torch.distributed as dist
    from torch.distributed import ReduceOp
    dist.init_process_group(sys.argv[1])
    me, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == sys.argv[1]
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert type(backend).__name__ == "ProcessGroupHasten", type(backend)
    assert backend.transport == sys.argv[2], backend.transport

    def full(value, n=5, dtype=torch.float32):
        return torch.full((n,), value, dtype=dtype)

    for op, value in [(ReduceOp.SUM, 6), (ReduceOp.AVG, 2), (ReduceOp.PRODUCT, 6), (ReduceOp.MIN, 1), (ReduceOp.MAX, 3)]:
        t = full(me + 1)
        dist.all_reduce(t, op)
        assert torch.equal(t, full(value)), (op, t)
    for op, value in [(ReduceOp.BAND, 0), (ReduceOp.BOR, 3), (ReduceOp.BXOR, 0)]:
        t = full(me + 1, dtype=torch.int64)
        dist.all_reduce(t, op)
        assert torch.equal(t, full(value, dtype=torch.int64)), (op, t)
    t = full(me + 1)
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5)) if hasattr(dist, "_make_nccl_premul_sum") else t.fill_(3)
    assert torch.equal(t, full(3)), t
    t = full(me)
    dist.broadcast(t, 1)
    assert torch.equal(t, full(1))
    outputs = [full(0) for _ in range(size)]
    dist.all_gather(outputs, full(me))
    assert all(torch.equal(outputs[r], full(r)) for r in range(size))
    out = torch.empty(size * 5)
    dist.all_gather_into_tensor(out, full(me))
    assert torch.equal(out, torch.arange(size).repeat_interleave(5).float())
    part = full(0)
    dist.reduce_scatter_tensor(part, torch.arange(size * 5).float())
    assert torch.equal(part, size * torch.arange(5 * me, 5 * me + 5).float())
    out = torch.empty(size * (me + 1))
    dist.all_to_all_single(out, torch.arange(6.0), [me + 1] * size, [1, 2, 3])
    assert out.numel() == size * (me + 1) and out[0] == [0, 1, 3][me]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": me})
    assert [o["rank"] for o in objects] == list(range(size))
    if me == 0:
        got = full(0)
        seen = {dist.recv(got) for _ in range(size - 1)}
        assert seen == set(range(1, size)), seen
    else:
        dist.send(full(me), 0)
    sub = dist.new_group([0, 2])
    if me != 1:
        t = full(1)
        dist.all_reduce(t, group=sub)
        assert torch.equal(t, full(2))
    version = (t := full(1))._version
    dist.all_reduce(t)
    assert t._version == version
    dist.barrier()
    if sys.argv[1] == "gloo":  # torch.distributed refuses it to others
        dist.monitored_barrier()
    dist.destroy_process_group()
    print("all held")
"""


@pytest.mark.parametrize("name, transport, variables", [
    ("hasten", "shm", {}),
    ("gloo", "shm", {"HASTEN_FOR_GLOO": "1"}),
    ("hasten", "shm", {"HASTEN_DEBUG": "1"}),
    ("hasten", "gloo", {"HASTEN_BACKEND": "gloo"}),
    ("gloo", "gloo", {"HASTEN_FOR_GLOO": "1", "HASTEN_BACKEND": "gloo"}),
    ("hasten", "gloo", {"HASTEN_BACKEND": "gloo", "HASTEN_DEBUG": "1"}),
])
def test_collectives_by_name_and_in_gloos_place(name, transport, variables):
    ranks = run_ranks(3, COLLECTIVES, name, transport, **{"HASTEN_FOR_GLOO": None, **variables})
    assert all("all held" in rank.output for rank in expect_success(ranks))


def test_gloo_stays_gloo_without_the_variable():
    ranks = run_ranks(2, """
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        assert "hasten._engine" not in sys.modules
        assert type(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupGloo"
        dist.destroy_process_group()
    """, HASTEN_FOR_GLOO=None)
    expect_success(ranks)


DDP = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group(sys.argv[1])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    net = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(torch.randn(8, 20)), torch.randn(8, 3)).backward()
        optimizer.step()
    print("sum", *[p.double().sum().item().hex() for p in net.module.state_dict().values()])
    dist.destroy_process_group()
"""


def test_ddp_trains_the_same_parameters_bit_for_bit_as_over_gloo():
    lines = {name: expect_success(run_ranks(2, DDP, name, HASTEN_FOR_GLOO=None)) for name in ("gloo", "hasten")}
    sums = {name: [line for rank in ranks for line in rank.output.splitlines() if line.startswith("sum")]
            for name, ranks in lines.items()}
    assert len(sums["gloo"]) == 2
    assert sums["gloo"] == sums["hasten"]


FAULT = """
    import os, signal, sys, time, torch, torch.distributed as dist, datetime
    dist.init_process_group("hasten", timeout=datetime.timedelta(seconds=int(sys.argv[2])))
    what, me = sys.argv[1], dist.get_rank()
    t = torch.ones(1000)
    for i in range(20):
        dist.all_reduce(t)
    if me == 1:
        if what == "raise": raise ValueError("bad sample 17")
        if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit": sys.exit(3)
        if what == "hang": time.sleep(3600)
        if what == "call": dist.broadcast(t, 0)
        if what == "shape": dist.all_reduce(torch.ones(999))
        if what == "dtype": dist.all_reduce(torch.ones(1000, dtype=torch.float64))
    try:
        dist.all_reduce(t)
    except RuntimeError as error:
        import hasten
        assert isinstance(error, hasten.CommError), type(error)
        print("learned:", error)
        os._exit(7)
"""


@pytest.mark.parametrize("what, words", [
    ("raise", "rank 1 failed: ValueError: bad sample 17, program.py:9"),
    ("kill", "rank 1"),
    ("exit", "rank 1"),
    ("call", "broadcast"),
    ("shape", "999"),
    ("dtype", "disagree"),
])
def test_a_rank_learns_what_became_of_another(what, words):
    ranks = run_ranks(2, FAULT, what, "60", timeout=40)
    assert ranks[0].code == 7, ranks[0].output
    assert words in ranks[0].output


@pytest.mark.parametrize("what, words", [("raise", "rank 1 failed: ValueError: bad sample 17"), ("kill", "rank 1")])
def test_a_rank_learns_the_same_over_gloo(what, words):
    ranks = run_ranks(2, FAULT, what, "60", timeout=60, HASTEN_BACKEND="gloo")
    assert ranks[0].code == 7, ranks[0].output
    assert words in ranks[0].output


def test_a_group_is_destroyed_with_work_under_way():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist
        dist.init_process_group("hasten")
        t = torch.ones(4)
        dist.all_reduce(t, async_op=True)
        dist.destroy_process_group()
        dist.init_process_group("hasten")
        dist.all_reduce(t := torch.ones(4))
        assert t[0] == 2
        dist.destroy_process_group()
    """))


def test_a_rank_that_hangs_is_named_at_the_timeout():
    ranks = run_ranks(2, FAULT, "hang", "1", timeout=15)
    assert ranks[0].code == 7, ranks[0].output
    assert "not there yet: rank 1" in ranks[0].output


def test_ctrl_c_ends_a_wait():
    ranks = run_ranks(2, """
        import os, signal, threading, time, torch, torch.distributed as dist
        dist.init_process_group("hasten")
        dist.barrier()
        try:
            if dist.get_rank() == 0:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                dist.all_reduce(torch.ones(4))
            else:
                dist.recv(torch.ones(4), 0)
        except KeyboardInterrupt:
            print("interrupted")
            os._exit(5)
        except RuntimeError as error:
            print("learned:", error)
            os._exit(7)
    """, timeout=40)
    assert ranks[0].code == 5, ranks[0].output
    assert ranks[1].code == 7, ranks[1].output


def test_a_group_is_refused_in_a_forked_child():
    ranks = run_ranks(2, """
        import os, torch, torch.distributed as dist
        dist.init_process_group("hasten")
        dist.all_reduce(torch.ones(4))
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(4))
                os._exit(1)
            except ValueError as error:
                os._exit(0 if "forked" in str(error) else 2)
        assert os.waitpid(child, 0)[1] == 0
        dist.barrier()
        data = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2, num_workers=2, multiprocessing_context="fork")
        assert sum(batch.sum() for batch in data) == 28
        dist.barrier()
    """)
    expect_success(ranks)


def test_a_group_that_is_not_destroyed_does_not_change_the_exit_code():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist
        dist.init_process_group("hasten")
        work = dist.all_reduce(torch.ones(4), async_op=True)
    """))


def python(text, **variables):
    return subprocess.run([sys.executable, "-c", text], env=environment(size=0, **variables), capture_output=True, text=True,
                          timeout=120)


def test_import_torch_registers_the_name_and_loads_no_engine():
    result = python("import sys, torch.distributed as d; print('hasten' in d.Backend.backend_list, 'hasten._engine' in sys.modules)")
    assert result.stdout.strip() == "True False", result.stderr


@pytest.mark.parametrize("first", ["hasten", "torch"])
def test_either_may_be_imported_first(first):
    then = {"hasten": "torch", "torch": "hasten"}[first]
    result = python(f"import {first}; import {then}; import torch, hasten; print(hasten.distribute(torch.nn.Linear(2, 1)).weight.shape)")
    assert result.stdout.strip() == "torch.Size([1, 2])", result.stderr


def test_an_error_while_registering_is_a_warning_and_torch_is_imported(tmp_path):
    # A package of that name that cannot be imported in the middle of the entry point.
    result = python("import hasten.errors, sys; sys.modules['hasten.faults'] = None; import torch; print(torch.ones(1).sum().item())")
    assert result.returncode == 0 and result.stdout.strip() == "1.0", result.stderr
    assert "its backend for torch.distributed is not registered" in result.stderr


def test_a_torch_of_another_minor_release_is_named():
    result = python("""
import torch
torch.__version__ = "2.5.0"
from hasten._load import engine
try: engine()
except ImportError as error: print(error)
""")
    minor = ".".join(torch.__version__.split(".")[:2])
    assert f"built for torch {minor}, and this is torch 2.5.0" in result.stdout and "./dev python" in result.stdout, result.stderr
    # import torch, its own backends and the package's names go on.
    result = python("""
import torch, torch.distributed as dist
torch.__version__ = "2.5.0"
import hasten
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
try: dist.init_process_group("hasten", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error: print("refused:", error)
""")
    assert result.returncode == 0 and "refused: hasten was built for torch" in result.stdout, result.stderr


def package_with(engines, folder):
    """A copy of the package with these files in the place of its engines."""
    here = os.path.dirname(importlib.util.find_spec("hasten").origin)
    shutil.copytree(here, folder / "hasten", ignore=shutil.ignore_patterns("_engine*", "__pycache__"))
    for name, source in engines.items():
        (folder / "hasten" / (name + importlib.machinery.EXTENSION_SUFFIXES[0])).write_bytes(source)
    return folder


def test_of_several_engines_that_of_the_torch_is_loaded(tmp_path):
    minor = "_".join(torch.__version__.split(".")[:2])
    with open(_load.engine().__file__, "rb") as file:
        own = file.read()
    folder = package_with({"_engine_2_1": b"no library", f"_engine_{minor}": own}, tmp_path)
    text = """
import torch
{change}
from hasten._load import engine
try: print(engine().torch_version == torch.__version__.split("+")[0], engine().__file__)
except ImportError as error: print(error)
"""
    result = python(text.format(change=""), PYTHONPATH=str(folder))
    assert result.stdout.startswith(f"True {folder}"), result.stdout + result.stderr
    result = python(text.format(change="torch.__version__ = '2.5.0'"), PYTHONPATH=str(folder))
    assert f"built for torch 2.1 and {minor.replace('_', '.')}, and this is torch 2.5.0" in result.stdout, result.stderr


def wheel(path, files):
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "hasten-0.1.0.dist-info/RECORD": "old"}.items():
            archive.writestr(name, text)
    return str(path)


def test_wheels_of_several_torches_become_one(tmp_path):
    name = "hasten-0.1.0-cp311-cp311-linux_x86_64.whl"
    own, other, strange = (wheel(tmp_path / folder / name, files) for folder, files in {
        "a": {"hasten/__init__.py": "one", "hasten/_engine_2_13.so": "13"}, "b": {"hasten/__init__.py": "two", "hasten/_engine_2_12.so": "12"},
        "c": {"hasten/__init__.py": "three"}}.items())
    script = os.path.join(HERE, "..", "..", "scripts", "merge_wheels.py")

    def merge(*wheels):
        return subprocess.run([sys.executable, script, str(tmp_path / "out"), *wheels], capture_output=True, text=True, timeout=60)

    assert "has the engine hasten/_engine_2_13.so as well" in merge(own, own).stderr
    assert "has no engine" in merge(own, strange).stderr
    assert not (tmp_path / "out").exists()
    result = merge(own, other)
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(result.stdout.strip()) as archive:
        assert {each: archive.read(each) for each in archive.namelist() if "RECORD" not in each} == {
            "hasten/__init__.py": b"one", "hasten/_engine_2_12.so": b"12", "hasten/_engine_2_13.so": b"13"}
        record = archive.read("hasten-0.1.0.dist-info/RECORD").decode().splitlines()
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"12").digest()).decode().rstrip("=")
    assert f"hasten/_engine_2_12.so,sha256={digest},2" in record and len(record) == 4, record
    assert record[-1] == "hasten-0.1.0.dist-info/RECORD,,"


def test_pythons_autograd_is_the_same_with_the_engine_loaded():
    outputs = []
    for load in ("", "from hasten._load import engine; engine()"):
        with open(os.path.join(HERE, "autograd_check.py")) as file:
            result = python(file.read().replace("# LOAD", load))
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout)
    assert "saved_tensors_hooks called: 2" in outputs[0]
    assert outputs[0] == outputs[1]


def test_two_copies_of_the_engine_load_in_one_process(tmp_path):
    result = python(f"""
import importlib.util, shutil, torch
from hasten._load import engine
first = engine()
path = {str(tmp_path)!r} + "/" + first.__file__.rsplit("/", 1)[1]
shutil.copy(first.__file__, path)
spec = importlib.util.spec_from_file_location("copy._engine", path)
second = importlib.util.module_from_spec(spec)
spec.loader.exec_module(second)
print(first is not second and first.version == second.version)
""")
    assert result.stdout.strip() == "True", result.stderr


def test_debug_mode_of_torch_works():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        t = torch.ones(4)
        dist.all_reduce(t)
        assert t[0] == 2
        dist.destroy_process_group()
    """, TORCH_DISTRIBUTED_DEBUG="DETAIL", HASTEN_FOR_GLOO="1"))


def test_where_memory_cannot_be_shared_one_warning_says_so_and_gloo_is_used():
    program = """
        import logging, resource, sys, torch, torch.distributed as dist
        if sys.argv[1] == "logging":
            logging.basicConfig(format="LOG %(name)s %(levelname)s %(message)s", stream=sys.stdout)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        dist.init_process_group("hasten")
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        dist.all_reduce(t := torch.ones(4))
        assert t[0] == 2 and backend.transport == "gloo", backend.transport
        dist.destroy_process_group()
    """
    words = "[comm] rank 0/2: memory cannot be shared between the ranks of group"
    for how, line in (("logging", f"LOG hasten WARNING {words}"), ("plain", f"warning {words}")):
        outputs = [rank.output for rank in expect_success(run_ranks(2, program, how))]
        assert outputs[0].count(words) == 1 and line in outputs[0], outputs
        assert words not in outputs[1]

"""`hasten launch --for_gloo`, torchrun, and the examples of examples/python."""
import json
import os
import subprocess
import sys

import pytest
import torch
from ranks import environment

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples", "python")
COMMAND = os.environ.get("HASTEN_COMMAND", "hasten")

SAYS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
print(type(backend).__name__, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def run(command, **variables):
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    return subprocess.run(command, env=environment(size=0, PATH=path, **variables), capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", [
    [COMMAND, "launch", "-n", "2", "--for_gloo"],
    [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
])
def test_launched_ranks_get_the_engine(command, tmp_path):
    (tmp_path / "says.py").write_text(SAYS)
    variables = {} if "--for_gloo" in command else {"HASTEN_FOR_GLOO": "1"}
    result = run([*command, str(tmp_path / "says.py")], **variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("ProcessGroupHasten") == 2


def test_the_launchers_report_has_the_first_failure(tmp_path):
    (tmp_path / "fails.py").write_text(SAYS.replace("dist.barrier()", """
if dist.get_rank() == 1: raise ValueError("bad sample 17")
dist.barrier()"""))
    result = run([COMMAND, "launch", "-n", "2", "--for_gloo", str(tmp_path / "fails.py")])
    assert result.returncode != 0
    assert "bad sample 17" in result.stderr + result.stdout
    assert "rank 1 failed: ValueError: bad sample 17" in result.stderr + result.stdout


def test_a_rank_that_stands_still_is_reported_by_the_launchers_watch(tmp_path):
    (tmp_path / "stops.py").write_text(SAYS.replace("dist.barrier()", """
import os, signal
dist.all_reduce(torch.ones(7))
if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(7))"""))
    result = run([COMMAND, "launch", "-n", "2", "--for_gloo", "--on_hang", "kill", str(tmp_path / "stops.py")])
    assert result.returncode != 0
    assert "rank 1 of 2 is missing" in result.stderr and "rank 1 is stopped" in result.stderr, result.stderr
    assert "all_reduce 2 of 'world': sum of float32 [7]" in result.stderr, result.stderr


@pytest.mark.parametrize("program, words", [
    ("import torch\nraise ValueError('bad sample 17')", "ValueError: bad sample 17"),
    ("import torch\nfrom torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main(): raise KeyError('recorded')\nmain()",
     "KeyError: 'recorded'"),
    ("import torch\nraise KeyboardInterrupt", None),
    ("import torch, sys\nsys.exit(3)", None),
])
def test_the_launchers_error_file_has_the_exception(program, words, tmp_path):
    (tmp_path / "train.py").write_text(program)
    path = tmp_path / "error.json"
    result = run([sys.executable, str(tmp_path / "train.py")], TORCHELASTIC_ERROR_FILE=str(path))
    assert result.returncode != 0
    if words is None:
        assert not path.exists()
        return
    message = json.loads(path.read_text())["message"]
    assert message["message"] == words
    assert "train.py" in message["extraInfo"]["py_callstack"] and int(message["extraInfo"]["timestamp"]) > 0


# Each program as it stands, over Gloo and over the engine in its place, and with its one line changed.
WAYS = {"gloo": ([], False), "for_gloo": (["--for_gloo"], False), "one_line": ([], True)}
PROGRAMS = {
    "ddp.py": ('dist.init_process_group("gloo")', 'dist.init_process_group("hasten")'),
    "fsdp2.py": ('dist.init_process_group("gloo")', 'dist.init_process_group("hasten")'),
    "fine_tuning.py": ("from accelerate import Accelerator", "from hasten import Accelerator"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_reaches_its_floor_with_the_same_numbers_unchanged_and_with_one_line_changed(program, tmp_path):
    options = []
    if program == "fine_tuning.py":
        pytest.importorskip("accelerate")
        pytest.importorskip("transformers")
        options = ["--cpu"]
    before, after = PROGRAMS[program]
    with open(os.path.join(EXAMPLES, program)) as file:
        text = file.read()
    assert text.count(before) == 1
    lines = {}
    for way, (more, changed) in WAYS.items():
        path = tmp_path / f"{way}.py"
        path.write_text(text.replace(before, after) if changed else text)
        result = run([COMMAND, "launch", "-n", "2", *options, *more, str(path)], HASTEN_FOR_GLOO=None)
        assert result.returncode == 0, (way, result.stderr)
        lines[way] = [line for line in result.stdout.splitlines() if line.startswith(("epoch", "step", "done"))]
    assert lines["gloo"][-1] == "done" and len(lines["gloo"]) > 2
    assert lines["for_gloo"] == lines["gloo"] and lines["one_line"] == lines["gloo"]


@pytest.mark.parametrize("shard", ["0", "3"])
def test_the_example_of_distribute_reaches_its_floor_and_goes_on_from_its_state(shard, tmp_path):
    for _ in range(2):
        result = run([COMMAND, "launch", "-n", "2", os.path.join(EXAMPLES, "distribute.py"), "--shard", shard, "--folder", str(tmp_path)])
        assert result.returncode == 0, result.stderr
        assert "done" in result.stdout
    assert torch.load(tmp_path / "state.pt", weights_only=True)["loader"]["epoch"] == 4

"""Starts ranks: processes with torchrun's variables, each with the end of its output."""
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap


@dataclasses.dataclass
class Rank:
    code: int
    output: str


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(rank=0, size=1, port=0, **more):
    variables = dict(os.environ, OMP_NUM_THREADS="1", **more)
    if size:
        variables |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return {name: value for name, value in variables.items() if value is not None}


def run_ranks(size, program, *arguments, timeout=120, **variables):
    """Runs a program's text, or a file, on `size` ranks. Ranks that outlast the timeout are killed; their code is -9."""
    with tempfile.TemporaryDirectory() as folder:
        if "\n" in program:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:
                file.write(textwrap.dedent(program))
        else:
            path = program
        port, ranks = free_port(), []
        for rank in range(size):
            out = open(os.path.join(folder, str(rank)), "w+")
            ranks.append((out, subprocess.Popen(
                [sys.executable, path, *arguments], stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env=environment(rank, size, port, **variables))))
        results = []
        for out, process in ranks:
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            out.seek(0)
            results.append(Rank(code, out.read()))
        return results


def expect_success(ranks):
    for number, rank in enumerate(ranks):
        assert rank.code == 0, f"rank {number}: exit code {rank.code}\n{rank.output[-4000:]}"
    return ranks

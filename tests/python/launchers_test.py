"""notebook_launcher: values, output, failures; in forked and in spawned processes, and in a notebook."""
import os

import pytest

import hasten
from hasten.launchers import RankFailed


def adds(number):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(float(number + dist.get_rank()))
    dist.all_reduce(total)
    print("adds", dist.get_rank(), type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)
    dist.destroy_process_group()
    return total.item()


def fails(rank):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == rank:
        raise ValueError("bad sample 17")
    dist.all_reduce(torch.ones(1))


def dies(rank):
    if int(os.environ["RANK"]) == rank:
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_values_come_back_and_lines_carry_their_rank(method, capfd):
    assert hasten.notebook_launcher(adds, (10,), 2, start_method=method) == [21.0, 21.0]
    lines = capfd.readouterr().out
    for rank in range(2):
        assert f"[rank {rank}] adds {rank} ProcessGroupHasten" in lines


def test_the_first_failure_is_raised_with_its_rank():
    with pytest.raises(RankFailed, match="rank 1 failed(.|\n)*ValueError: bad sample 17") as caught:
        hasten.notebook_launcher(fails, (1,), 2)
    assert caught.value.rank == 1


def test_a_rank_that_is_killed_is_named():
    with pytest.raises(RankFailed, match="rank 1 failed: it ended with exit code -9"):
        hasten.notebook_launcher(dies, (1,), 2)


def test_a_number_of_processes_that_is_none_is_refused():
    with pytest.raises(hasten.UsageError, match="num_processes=0"):
        hasten.notebook_launcher(adds, (1,), 0)


def test_in_a_notebook(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("""
import torch, torch.distributed as dist, hasten
def train(number):
    dist.init_process_group("hasten")
    total = torch.tensor(float(number + dist.get_rank()))
    dist.all_reduce(total)
    print("total", total.item())
    return total.item()
print(hasten.notebook_launcher(train, (10,), 2))
""")])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    text = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert "[rank 0] total 21.0" in text and "[rank 1] total 21.0" in text and "[21.0, 21.0]" in text, text

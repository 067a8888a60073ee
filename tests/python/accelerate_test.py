"""Accelerate's own scripts, unchanged, over the engine in Gloo's place, and its launcher."""
import os

import pytest
from ranks import expect_success, run_ranks

accelerate = pytest.importorskip("accelerate")
SCRIPTS = os.path.join(os.path.dirname(accelerate.__file__), "test_utils", "scripts")


@pytest.mark.parametrize("script", ["test_script.py", "test_sync.py", "test_ops.py"])
def test_a_script_of_accelerate(script):
    ranks = run_ranks(2, os.path.join(SCRIPTS, script), timeout=280, HASTEN_FOR_GLOO="1", ACCELERATE_USE_CPU="true")
    expect_success(ranks)


def test_save_state_and_gather_for_metrics(tmp_path):
    ranks = run_ranks(2, """
        import sys, torch
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        group = torch.distributed.distributed_c10d._get_default_group()
        assert type(group._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupHasten"
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(28.0).view(7, 4)), batch_size=2)
        net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 1e-3), data)
        seen = []
        for (batch,) in data:
            optimizer.zero_grad()
            accelerator.backward(net(batch).pow(2).mean())
            optimizer.step()
            seen.append(accelerator.gather_for_metrics(batch[:, 0]))
        assert sorted(torch.cat(seen).tolist()) == [4.0 * i for i in range(7)], seen
        weights = accelerator.unwrap_model(net).weight.clone()
        accelerator.save_state(sys.argv[1])
        with torch.no_grad():
            accelerator.unwrap_model(net).weight.zero_()
        accelerator.load_state(sys.argv[1])
        assert torch.equal(weights, accelerator.unwrap_model(net).weight)
        accelerator.end_training()
    """, str(tmp_path / "state"), HASTEN_FOR_GLOO="1", ACCELERATE_USE_CPU="true")
    expect_success(ranks)

"""hasten.Accelerator: Accelerate's loop with the engine, its folders, and Accelerate's own scripts through the subclass."""
import importlib.util
import os

import pytest
from ranks import expect_success, run_ranks

LOOP = """
    import os, sys, torch
    os.environ["ACCELERATE_USE_CPU"] = "true"
    which, folder, shard = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if which == "hasten":
        from hasten import Accelerator
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, shard=shard)
    else:
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(accelerator.process_index)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    torch.manual_seed(7)
    for p in net.parameters():
        torch.nn.init.normal_(p)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    # The optimizer before its model.
    optimizer, net, loader, scheduler = accelerator.prepare(optimizer, net, torch.utils.data.DataLoader(data, 4), scheduler)
    def epoch():
        for (batch,) in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(batch).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    def facts():
        plain = accelerator.unwrap_model(net)
        return [round(p.double().sum().item(), 4) for p in plain.parameters()] + [optimizer.param_groups[0]["lr"]]
    epoch()
    print("facts", *facts())
    if which == "hasten":
        assert net is accelerator.unwrap_model(net) and not optimizer.optimizer.state
        for name, options in (("own", dict(background=True)), ("theirs", {})):
            save = accelerator.save_state(os.path.join(folder, name), **options)
            if options:
                save.wait()
            accelerator.wait_for_everyone()
        epoch()
        on = facts()
        for name in ("own", "theirs"):
            accelerator.load_state(os.path.join(folder, name))
            assert facts() != on
            epoch()
            assert facts() == on, (name, facts(), on)
    accelerator.end_training()
"""


def facts(*arguments):
    ranks = expect_success(run_ranks(2, LOOP, *map(str, arguments), HASTEN_FOR_GLOO="1"))
    return [line for rank in ranks for line in rank.output.splitlines() if line.startswith("facts")]


@pytest.mark.parametrize("shard", [0, 3])
def test_the_loop_gives_accelerates_numbers_and_resumes_from_both_folders(tmp_path, shard):
    theirs = facts("accelerate", tmp_path, 0)
    assert len(theirs) == 2
    assert facts("hasten", tmp_path, shard) == theirs


def test_weights_of_losses():
    expect_success(run_ranks(2, """
        import torch
        from hasten import Accelerator
        accelerator = Accelerator(cpu=True)
        net = accelerator.prepare(torch.nn.Linear(2, 1, bias=False))
        rows = torch.ones(1 + 2 * accelerator.process_index, 2) * (accelerator.process_index + 1)
        accelerator.backward(net(rows).mean(), weight=len(rows))
        assert net.weight.grad.tolist() == [[1.75, 1.75]], net.weight.grad
        accelerator.end_training()
    """, HASTEN_FOR_GLOO="1"))


def test_values_of_accelerate_go_to_the_journal(tmp_path):
    expect_success(run_ranks(1, """
        import os, sys
        from hasten import Accelerator, JournalTracker
        tracker = JournalTracker("csv", sys.argv[1], project="p")
        accelerator = Accelerator(cpu=True, log_with=tracker)
        accelerator.init_trackers("p", config={"lr": 0.125})
        accelerator.log({"loss": 0.5}, step=3)
        with open(os.path.join(accelerator.get_tracker("hasten", unwrap=True).run_folder, "journal.jsonl")) as file:
            text = file.read()
        assert "0.125" in text and "loss" in text and "0.5" in text, text
        accelerator.end_training()
    """, str(tmp_path)))


SUBCLASS = """
    import runpy, sys
    import accelerate, accelerate.accelerator, hasten
    accelerate.Accelerator = accelerate.accelerator.Accelerator = hasten.Accelerator
    path, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.parametrize("script", ["test_script.py", "test_sync.py"])
def test_accelerates_scripts_pass_with_the_subclass(script):
    folder = os.path.dirname(importlib.util.find_spec("accelerate").origin)
    path = os.path.join(folder, "test_utils", "scripts", script)
    expect_success(run_ranks(2, SUBCLASS, path, timeout=500, HASTEN_FOR_GLOO="1", ACCELERATE_USE_CPU="true"))

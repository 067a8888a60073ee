"""hasten.Accelerator: Accelerate's loop with the engine, its folders, loops of uneven length, and plugins."""

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



UNEVEN = """
    import sys, torch
    from hasten import Accelerator
    stage, steps = int(sys.argv[1]), int(sys.argv[2])
    accelerator = Accelerator(cpu=True, shard=stage, gradient_accumulation_steps=steps)
    torch.manual_seed(accelerator.process_index)
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    # 5 batches, of which rank 0 gets 3.
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(20.0).view(10, 2)), batch_size=2)
    net, optimizer, data, scheduler = accelerator.prepare(net, optimizer, data, scheduler)
    seen = 0
    with accelerator.join_uneven_inputs([net], even_batches=False):
        for (batch,) in data:
            with accelerator.accumulate(net):
                accelerator.backward(net(batch).square().mean())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen += 1
    assert seen == 3 - accelerator.process_index, seen
    mine = [p.double().sum().item() for p in net.parameters()] + [group["lr"] for group in optimizer.param_groups]
    mine.append(scheduler.scheduler.last_epoch)
    theirs = accelerator.gather(torch.tensor([mine], dtype=torch.double))
    assert theirs[0].equal(theirs[1]), theirs
    state = optimizer.optimizer.state_dict()["state"]
    steps_taken = accelerator.gather(torch.tensor([float(state[0]["step"])]))
    assert steps_taken.eq(3 if steps == 1 else 2).all(), steps_taken
    # And goes on alike, with as many batches on each.
    for (batch,) in data:
        accelerator.backward(net(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    theirs = accelerator.gather(torch.stack([p.double().sum() for p in net.parameters()])[None])
    assert theirs[0].equal(theirs[1]), theirs
    accelerator.end_training()
"""


@pytest.mark.parametrize("stage, steps", [(0, 1), (0, 2), (3, 1)])
def test_a_loop_of_uneven_length_ends_with_equal_parameters_optimizers_and_schedules(stage, steps):
    expect_success(run_ranks(2, UNEVEN, str(stage), str(steps), HASTEN_FOR_GLOO="1"))


def test_it_goes_beside_accelerates_own_class():
    expect_success(run_ranks(2, """
        import accelerate, hasten, torch
        theirs, own = accelerate.Accelerator(cpu=True), hasten.Accelerator(cpu=True)
        assert theirs.num_processes == own.num_processes == 2 and theirs.state.__dict__ is own.state.__dict__
        for accelerator in (theirs, own):
            net = torch.nn.Linear(2, 1, bias=False)
            model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
            accelerator.backward(model(torch.ones(1, 2) * (accelerator.process_index + 1)).sum())
            assert net.weight.grad.tolist() == [[1.5, 1.5]], net.weight.grad
            optimizer.step()
        own.end_training()
    """, HASTEN_FOR_GLOO="1"))


# ---- Plugins.

PLUGINS = """
    import json, os, sys, torch
    from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from hasten import Accelerator
    what = sys.argv[1]
    def accelerator_of():
        if what == "plain":
            return Accelerator(cpu=True)
        if what == "fsdp1":
            return Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(
                sharding_strategy="SHARD_GRAD_OP", auto_wrap_policy="size_based_wrap", min_num_params=10, state_dict_type="sharded_state_dict"))
        if what == "fsdp2":
            return Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Linear"], cpu_offload=True))
        if what == "fsdp_variables":
            os.environ["ACCELERATE_USE_FSDP"] = "true"
            os.environ["FSDP_SHARDING_STRATEGY"] = "FULL_SHARD"
            return Accelerator(cpu=True)
        if what == "deepspeed":
            return Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=3, gradient_clipping=0.125, offload_optimizer_device="cpu"))
        return Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config={
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 64}, "gradient_clipping": 0.125, "gradient_accumulation_steps": 1,
            "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}))
    accelerator = accelerator_of()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
    net, optimizer = accelerator.prepare(net, optimizer)
    assert accelerator._trainer.shards == (what != "plain")
    torch.manual_seed(accelerator.process_index)
    for _ in range(4):
        accelerator.backward(net(torch.randn(4, 4)).square().mean() * 16)
        if what == "plain" and sys.argv[2] == "clips":
            accelerator.clip_grad_norm_(net.parameters(), 0.125)
        optimizer.step()
        optimizer.zero_grad()
    print("facts", *[round(p.double().sum().item(), 4) for p in net.parameters()])
    if what == "fsdp1":
        accelerator.save_state(sys.argv[3])
        assert os.path.isfile(os.path.join(sys.argv[3], "manifest.json"))  # each rank's slices
        accelerator.load_state(sys.argv[3])
    accelerator.end_training()
"""


def trained(*arguments):
    ranks = expect_success(run_ranks(2, PLUGINS, *map(str, arguments), HASTEN_FOR_GLOO="1"))
    lines = [line for rank in ranks for line in rank.output.splitlines() if line.startswith("facts")]
    assert len(lines) == 2
    return lines


@pytest.mark.parametrize("plugins, clips", [(["fsdp1", "fsdp2", "fsdp_variables"], "whole"), (["deepspeed", "deepspeed_file"], "clips")])
def test_plugins_split_and_clip_with_the_plain_loops_numbers(tmp_path, plugins, clips):
    plain = trained("plain", clips, tmp_path)
    for plugin in plugins:
        assert trained(plugin, clips, tmp_path / plugin) == plain, plugin


REFUSED = """
    import functools, sys, torch
    from accelerate import DeepSpeedPlugin as DeepSpeed, FullyShardedDataParallelPlugin as Fsdp
    import hasten
    def config(**more):
        return {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, **more}
    def attempt(*words, **named):
        try:
            accelerator = hasten.Accelerator(cpu=True, **named)
            accelerator.prepare(torch.nn.Linear(2, 2))
        except hasten.UsageError as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError(f"{words} was not refused")
    attempt("activation_checkpointing", "gradient_checkpointing_enable", fsdp_plugin=Fsdp(activation_checkpointing=True))
    attempt("auto_wrap_policy", "size_based_wrap", fsdp_plugin=Fsdp(auto_wrap_policy=functools.partial(print)))
    attempt("Block", "no module", fsdp_plugin=Fsdp(auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]))
    attempt("LOCAL_STATE_DICT", "SHARDED_STATE_DICT", fsdp_plugin=Fsdp(state_dict_type="LOCAL_STATE_DICT"))
    attempt("param_dtype bfloat16", "fp16", mixed_precision="fp16", fsdp_plugin=Fsdp(mixed_precision_policy="bf16"))
    attempt("'optimizer'", "prepare it", deepspeed_plugin=DeepSpeed(config(optimizer={"type": "AdamW"})))
    attempt("gradient_accumulation_steps=3", "has 2", gradient_accumulation_steps=3,
            deepspeed_plugin=DeepSpeed(config(gradient_accumulation_steps=2)))
    attempt("sparse_attention", deepspeed_plugin=DeepSpeed(config(sparse_attention={"mode": "fixed"})))
    attempt("plugins a, b", deepspeed_plugins={"a": DeepSpeed(), "b": DeepSpeed()})
    attempt("Use one of them", fsdp_plugin=Fsdp(), deepspeed_plugin=DeepSpeed())
    attempt("beside a plugin", shard=3, fsdp_plugin=Fsdp())
    # The last: this plugin sets a variable.
    attempt("cpu_ram_efficient_loading", fsdp_plugin=Fsdp(fsdp_version=2, cpu_ram_efficient_loading=True))
"""


def test_what_a_plugin_asks_for_and_the_engine_has_not_is_refused_by_name():
    expect_success(run_ranks(1, REFUSED))


def test_the_launchers_numbers_of_accelerate_count_once():
    ranks = expect_success(run_ranks(2, """
        import torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        net = hasten.distribute(torch.nn.Linear(2, 1, bias=False))
        hasten.backward(net(torch.ones(1, 2) * (dist.get_rank() + 1)).sum())
        print("grad", net.weight.grad.tolist())
        dist.barrier()
        dist.destroy_process_group()
    """, ACCELERATE_GRADIENT_ACCUMULATION_STEPS="4", ACCELERATE_USE_FSDP="true", ACCELERATE_MIXED_PRECISION="bf16"))
    assert all("grad [[1.5, 1.5]]" in rank.output for rank in ranks), ranks

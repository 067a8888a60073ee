"""distribute and optimizer: the same numbers as DistributedDataParallel and torch's own steps, and what is refused."""
import copy
import pickle

import pytest
import torch
from ranks import expect_success, run_ranks

import hasten


def lines(ranks, word):
    return [line for rank in expect_success(ranks) for line in rank.output.splitlines() if line.startswith(word)]


TRAIN = """
    import sys, torch, torch.distributed as dist
    how, backend = sys.argv[1], sys.argv[2]
    dist.init_process_group(backend)
    torch.manual_seed(dist.get_rank())
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    names, keys, ids = list(dict(net.named_parameters())), list(net.state_dict()), [id(p) for p in net.parameters()]
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(net)
    else:
        import hasten
        model = hasten.distribute(net, shard=int(how))
        assert model is net and names == list(dict(net.named_parameters())) and keys == list(net.state_dict())
        assert ids == [id(p) for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
    if how not in ("ddp", "0"):
        optimizer = hasten.optimizer(optimizer)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.randn(8, 20)), torch.randn(8, 3)).backward()
        optimizer.step()
    print("sum", *[p.double().sum().item().hex() for p in net.parameters()])
    print("loose", *[round(p.double().sum().item(), 4) for p in net.state_dict().values()])
    dist.barrier()
    dist.destroy_process_group()
"""


def test_it_trains_as_ddp_over_gloo_bit_for_bit():
    ddp, own = (lines(run_ranks(2, TRAIN, *how, HASTEN_FOR_GLOO=None), "sum") for how in (("ddp", "gloo"), ("0", "hasten")))
    assert len(set(ddp)) == 1 and ddp == own


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_what_is_split_trains_alike(stage):
    whole = lines(run_ranks(2, TRAIN, "0", "hasten", HASTEN_FOR_GLOO=None), "loose")
    split = lines(run_ranks(2, TRAIN, stage, "hasten", HASTEN_FOR_GLOO=None), "loose")
    assert whole == split


def test_over_gloos_world_it_has_a_group_beside():
    assert lines(run_ranks(2, TRAIN, "0", "gloo", HASTEN_FOR_GLOO=None), "sum") == lines(
        run_ranks(2, TRAIN, "0", "hasten", HASTEN_FOR_GLOO=None), "sum")


def test_ranks_without_torchs_world_meet_by_themselves():
    ranks = run_ranks(2, """
        import torch, hasten
        net = hasten.distribute(torch.nn.Linear(3, 1))
        net(torch.ones(2, 3) * (1 + torch.distributed.get_rank())).sum().backward()
        print("grad", net.weight.grad.tolist())
    """)
    assert lines(ranks, "grad") == ["grad [[3.0, 3.0, 3.0]]"] * 2


SCOPES = """
    import torch, torch.distributed as dist, hasten
    dist.init_process_group("hasten")
    me = dist.get_rank()
    net = hasten.distribute(torch.nn.Linear(2, 1, bias=False))
    optimizer = hasten.optimizer(torch.optim.SGD(net.parameters(), 0.0))
    ones = torch.ones(1, 2) * (me + 1)

    with hasten.no_sync(net):
        net(ones).sum().backward()
        assert net.weight.grad.tolist() == [[me + 1.0] * 2]
    net(ones).sum().backward()
    assert net.weight.grad.tolist() == [[3.0, 3.0]], net.weight.grad

    # 1 sample of value 1 on rank 0, 3 of value 2 on rank 1.
    optimizer.zero_grad()
    assert net.weight.grad is None
    rows = ones.repeat(1 + 2 * me, 1)
    hasten.backward(net(rows).mean(), weight=len(rows))
    assert net.weight.grad.tolist() == [[1.75, 1.75]], net.weight.grad

    norm = hasten.clip_grad_norm_(net, 1.0)
    assert abs(norm.item() - 1.75 * 2 ** 0.5) < 1e-6
    assert abs(net.weight.grad.norm().item() - 1) < 1e-5
    hasten.clip_grad_value_(net.parameters(), 0.25)
    assert net.weight.grad.tolist() == [[0.25, 0.25]]

    with hasten.local_sgd(net, num_steps=2) as apart:
        for _ in range(2):
            with torch.no_grad():
                net.weight.fill_(me)
            apart.step()
    assert net.weight.tolist() == [[0.5, 0.5]], net.weight
    dist.barrier()
    dist.destroy_process_group()
"""


def test_scopes_weights_clipping_and_averages():
    expect_success(run_ranks(2, SCOPES))


CHANGES = """
    import copy, torch, torch.distributed as dist, hasten
    dist.init_process_group("hasten")
    me = dist.get_rank()
    net = hasten.distribute(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    def grads():
        net.zero_grad()
        net(torch.randn(4, 2, dtype=net[0].weight.dtype)).square().sum().backward()
        mine = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
        both = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(both, mine)
        assert both[0].equal(both[1])
        return len(mine)
    torch.manual_seed(me)
    assert grads() == 10
    net.double()
    assert grads() == 10
    net[0].weight = torch.nn.Parameter(torch.full((2, 2), float(me), dtype=torch.double))
    assert grads() == 10 and net[0].weight.eq(0).all()
    net.append(torch.nn.Linear(2, 1).double())
    assert grads() == 13
    net[0].bias.requires_grad_(False)
    assert grads() == 11
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[0].weight.fill_(me)
    other(torch.ones(4, 2, dtype=torch.double)).sum().backward()
    assert other[0].weight.eq(me).all()
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_changed_module_is_followed():
    expect_success(run_ranks(2, CHANGES))


def test_exceptions_of_pythons_backward_keep_their_class():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        class Breaks(torch.autograd.Function):
            @staticmethod
            def forward(context, x): return x * 2
            @staticmethod
            def backward(context, grad): raise KeyError("bad sample 17")
        net = hasten.distribute(torch.nn.Linear(2, 2))
        for backward in (lambda loss: loss.backward(), hasten.backward):
            try:
                backward(Breaks.apply(net(torch.ones(1, 2))).sum())
            except KeyError as error:
                assert "bad sample 17" in str(error)
            else:
                raise AssertionError("no exception")
        dist.barrier()
        dist.destroy_process_group()
    """))


def test_an_error_of_the_engine_in_a_backward_keeps_its_class():
    ranks = run_ranks(2, """
        import os, torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        net = hasten.distribute(torch.nn.Linear(2, 1))
        if dist.get_rank() == 1:
            raise ValueError("bad sample 17")
        try:
            hasten.backward(net(torch.ones(1, 2)).sum())
        except hasten.CommError as error:
            print("learned:", error, flush=True)
            os._exit(7)
    """)
    assert ranks[0].code == 7 and "bad sample 17" in ranks[0].output, ranks


# ---- Twins, in a world of one.

CLASSES = [
    (torch.optim.SGD, dict(lr=0.1)), (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
    (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1)), (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    (torch.optim.AdamW, dict(lr=0.01, betas=(0.8, 0.9))), (torch.optim.Adagrad, dict(lr=0.1, initial_accumulator_value=0.5)),
    (torch.optim.RMSprop, dict(lr=0.01, momentum=0.5, centered=True)),
]


def net_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def train(net, optimizer, steps, seed, scheduler=None):
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


def difference(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize("kind, options", CLASSES)
def test_a_twin_steps_as_the_class_and_exchanges_states_with_it(kind, options):
    plain, own = net_of(), hasten.distribute(net_of())
    optimizer, twin = kind(plain.parameters(), **options), kind(own.parameters(), **options)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (optimizer, twin)]
    assert hasten.optimizer(twin) is twin and isinstance(twin, kind) and type(twin).__name__ == kind.__name__
    train(plain, optimizer, 5, 1, schedulers[0])
    train(own, twin, 5, 1, schedulers[1])
    assert difference(plain, own) < 1e-6
    assert not twin.state  # the engine has it

    one, other = optimizer.state_dict(), twin.state_dict()
    assert one["param_groups"] == other["param_groups"] and one["state"].keys() == other["state"].keys()
    for number, state in one["state"].items():
        for name, value in state.items():
            if value is not None:
                assert torch.allclose(torch.as_tensor(value), torch.as_tensor(other["state"][number][name]), atol=1e-6), name

    # Each goes on from the other's state.
    one, other = copy.deepcopy(one), copy.deepcopy(other)
    optimizer.load_state_dict(other)
    twin.load_state_dict(one)
    train(plain, optimizer, 3, 2)
    train(own, twin, 3, 2)
    assert difference(plain, own) < 2e-6


def test_a_learning_rate_that_python_changes_counts_at_the_next_step():
    net = hasten.distribute(torch.nn.Linear(2, 1, bias=False))
    optimizer = hasten.optimizer(torch.optim.SGD(net.parameters(), 0.0))
    before = net.weight.detach().clone()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert net.weight.equal(before)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert torch.allclose(net.weight, before - 0.5)


def test_groups_that_are_added_are_stepped():
    net = hasten.distribute(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
    optimizer = hasten.optimizer(torch.optim.SGD(net[0].parameters(), 0.1))
    optimizer.add_param_group({"params": list(net[1].parameters()), "lr": 0.2})
    before = net[1].bias.detach().clone()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.allclose(net[1].bias, before - 0.2)


def test_steps_have_hooks_and_closures():
    net = hasten.distribute(torch.nn.Linear(2, 1))
    optimizer = hasten.optimizer(torch.optim.SGD(net.parameters(), 0.1))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first
    assert seen == ["before", "after"] * 2


SHARDED_STATE = """
    import sys, torch, torch.distributed as dist, hasten
    dist.init_process_group("hasten")
    torch.manual_seed(0)
    net = hasten.distribute(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)), shard=3)
    optimizer = hasten.optimizer(torch.optim.AdamW(net.parameters(), 1e-2))
    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(4, 5)).square().sum().backward()
            hasten.clip_grad_norm_(net, 1.0)
            optimizer.step()
    train(3)
    state, weights, random = optimizer.state_dict(), {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    assert sorted(state["state"][0]) == ["exp_avg", "exp_avg_sq", "step"] and state["state"][0]["step"] == 3
    assert state["state"][0]["exp_avg"].shape == (7, 5) and state["state"][0]["exp_avg"].abs().min() > 0
    train(2)
    first = [p.detach().clone() for p in net.parameters()]
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)
    torch.set_rng_state(random)
    train(2)
    assert all(a.equal(b) for a, b in zip(first, net.parameters()))
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_split_optimizers_state_is_whole_in_state_dict_and_loads_again():
    expect_success(run_ranks(2, SHARDED_STATE))


# ---- Refusals.


def test_an_option_that_is_not_known_is_refused_with_the_nearest():
    with pytest.raises(hasten.UsageError, match="did you mean 'static_graph'"):
        hasten.distribute(net_of(), static_graf=True)
    with pytest.raises(hasten.UsageError, match=r"distribute\(shard=5\)"):
        hasten.distribute(net_of(), shard=5)


def test_parameters_that_cannot_be_mirrored_are_named():
    meta = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    with pytest.raises(hasten.UsageError, match="'1.weight' is on meta"):
        hasten.distribute(meta)
    with pytest.raises(hasten.UsageError, match="'0.weight' is lazy"):
        hasten.distribute(torch.nn.Sequential(torch.nn.LazyLinear(2)))


def test_fully_shard_and_distribute_do_not_go_together():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist, hasten
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("hasten")
        net = torch.nn.Linear(4, 4)
        fully_shard(net, mesh=dist.init_device_mesh("cpu", (2,)))
        try:
            hasten.distribute(net)
        except hasten.UsageError as error:
            assert "'weight' is a DTensor" in str(error), error
        else:
            raise AssertionError("not refused")
        dist.barrier()
        dist.destroy_process_group()
    """))


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(hasten.UsageError, match="hasten.distribute"):
        hasten.optimizer(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1))


def test_a_class_without_a_twin_steps_by_itself():
    net = hasten.distribute(net_of())
    other = torch.optim.Adamax(net.parameters())
    assert hasten.optimizer(other) is other and type(other) is torch.optim.Adamax


def test_lbfgs_steps_as_it_does_over_a_plain_module():
    nets = [net_of(), hasten.distribute(net_of())]
    for net in nets:
        optimizer, x = hasten.optimizer(torch.optim.LBFGS(net.parameters(), max_iter=4)) if net is nets[1] else torch.optim.LBFGS(
            net.parameters(), max_iter=4), torch.ones(2, 5)

        def closure():
            optimizer.zero_grad()
            loss = net(x).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert difference(*nets) < 1e-6 and difference(nets[0], net_of()) > 1e-3


OTHER_MODULES = """
    import torch, torch.distributed as dist, hasten
    from torch.utils.checkpoint import checkpoint
    dist.init_process_group("hasten")
    me = dist.get_rank()

    # Rows of rank 0 are 1 and 2, those of rank 1 are 2 and 3; the gradient is the mean.
    words = hasten.distribute(torch.nn.Embedding(5, 2, sparse=True))
    words(torch.tensor([1 + me, 2 + me])).sum().backward()
    assert words.weight.grad.is_sparse
    assert words.weight.grad.to_dense()[:, 0].tolist() == [0, 0.5, 1, 0.5, 0], words.weight.grad

    class Again(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2, bias=False)
        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)
    net = hasten.distribute(Again())
    net(torch.ones(1, 2) * (me + 1)).sum().backward()
    assert net.inner.weight.grad.tolist() == [[1.5, 1.5]] * 2, net.inner.weight.grad

    # A step inside no_sync takes this rank's gradients alone, as DistributedDataParallel's do.
    optimizer = hasten.optimizer(torch.optim.SGD(net.parameters(), 1.0))
    optimizer.zero_grad()
    before = net.inner.weight.detach().clone()
    with hasten.no_sync(net):
        net(torch.ones(1, 2) * (me + 1)).sum().backward()
        optimizer.step()
    assert torch.allclose(net.inner.weight, before - (me + 1)), net.inner.weight
    dist.barrier()
    dist.destroy_process_group()
"""


def test_sparse_gradients_checkpointed_modules_and_a_step_inside_no_sync():
    expect_success(run_ranks(2, OTHER_MODULES))


def test_a_class_without_a_twin_is_refused_where_parameters_are_split():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        net = hasten.distribute(torch.nn.Linear(2, 2), shard=1)
        try:
            hasten.optimizer(torch.optim.Adamax(net.parameters()))
        except hasten.UsageError as error:
            assert "Adamax has no twin" in str(error), error
        else:
            raise AssertionError("not refused")
        dist.barrier()
        dist.destroy_process_group()
    """))


def test_copies_and_files_of_a_distributed_module_are_plain_ones():
    net = hasten.distribute(net_of())
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other(torch.ones(1, 5)).equal(net(torch.ones(1, 5)))
        with pytest.raises(hasten.UsageError, match="not distributed"):
            hasten.no_sync(other).__enter__()


def test_compiled_modules_train_and_compiled_autograd_is_refused_by_name():
    from torch._dynamo import compiled_autograd

    plain, own = net_of(), hasten.distribute(net_of())
    train(plain, torch.optim.SGD(plain.parameters(), 0.1), 3, 1)
    train(torch.compile(own, backend="eager"), hasten.optimizer(torch.optim.SGD(own.parameters(), 0.1)), 3, 1)
    assert difference(plain, own) < 1e-6
    with pytest.raises(hasten.UsageError, match="compiled autograd"):
        with compiled_autograd._enable(torch.compile(backend="eager")):
            own(torch.ones(1, 5)).sum().backward()


def test_gradients_of_gradients_are_torchs():
    grads = []
    for net in (net_of(), hasten.distribute(net_of())):
        inputs = torch.ones(2, 5, requires_grad=True)
        (of_inputs,) = torch.autograd.grad(net(inputs).sum(), inputs, create_graph=True)
        of_inputs.square().sum().backward()
        grads.append([p.grad for p in net.parameters() if p.grad is not None])
    assert len(grads[0]) == len(grads[1]) > 0 and all(a.equal(b) for a, b in zip(*grads))


TIED = """
    import torch, torch.distributed as dist, hasten
    dist.init_process_group("hasten")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    # Made before distribute, and used as well after it.
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    before = net[0].weight.detach().clone()
    hasten.distribute(net)
    assert hasten.optimizer(optimizer) is optimizer
    net(torch.ones(1, 3) * (dist.get_rank() + 1)).sum().backward()
    whole = torch.nn.functional.linear(torch.ones(1, 3) * 1.5, w := before.clone().requires_grad_())
    torch.nn.functional.linear(whole, w).sum().backward()
    assert torch.allclose(net[0].weight.grad, w.grad), (net[0].weight.grad, w.grad)
    optimizer.step()
    assert net[1].weight is net[0].weight and torch.allclose(net[0].weight, before - w.grad)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_parameter_of_two_modules_is_exchanged_once():
    expect_success(run_ranks(2, TIED))


# ---- Loops of uneven length.

JOIN = """
    import torch, torch.distributed as dist, hasten
    dist.init_process_group("hasten")
    me = dist.get_rank()
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.zeros_(self.a.weight), torch.nn.init.zeros_(self.b.weight)
        def forward(self, x):
            return {"one": self.a(x), "more": [self.b(x), "text"]}
    net = hasten.distribute(Two())
    optimizer = hasten.optimizer(torch.optim.SGD(net.parameters(), 1.0))
    grads = []
    with hasten.join(net):
        for i in range(1 + 2 * me):  # 1 batch on rank 0, 3 on rank 1
            optimizer.zero_grad()
            out = net(torch.ones(1, 2) * (me + 1))
            (out["one"] + 2 * out["more"][0]).sum().backward()
            grads.append([net.a.weight.grad[0, 0].item(), net.b.weight.grad[0, 0].item()])
            optimizer.step()
    # The mean over those who had data: 1.5 of both once, then 2 of rank 1 alone.
    assert grads == [[1.5, 3.0], [2.0, 4.0], [2.0, 4.0]][: 1 + 2 * me], grads
    assert net.a.weight.tolist() == [[-5.5, -5.5]] and net.b.weight.tolist() == [[-11.0, -11.0]], net.a.weight

    # Weights: 3 samples of value 1 on rank 0 and 1 of value 2 on rank 1; then rank 0 alone.
    optimizer.zero_grad()
    seen = []
    with hasten.join(net):
        for i in range(2 - me):
            optimizer.zero_grad()
            rows = torch.ones(3 - 2 * me, 2) * (me + 1)
            hasten.backward(net(rows)["one"].mean(), weight=len(rows))
            seen.append(net.a.weight.grad[0, 0].item())
    assert seen == [1.25, 1.0][: 2 - me], seen

    # Without gradients nothing is exchanged, and a loop of equal length is as any other.
    with hasten.join(net):
        with torch.no_grad():
            for i in range(me):
                net(torch.ones(1, 2))
        optimizer.zero_grad()
        net(torch.ones(1, 2) * (me + 1))["one"].sum().backward()
        assert net.a.weight.grad.tolist() == [[1.5, 1.5]]
    # Behind it outputs are the module's own again.
    assert "Linear" in str(net.a) and net(torch.ones(1, 2))["one"].grad_fn.name() != "JoinsBackward"
    dist.barrier()
    dist.destroy_process_group()
"""


def test_ranks_may_have_different_numbers_of_batches_inside_join():
    expect_success(run_ranks(2, JOIN))


def test_an_exception_inside_join_is_what_the_others_learn():
    ranks = run_ranks(2, """
        import os, torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        net = hasten.distribute(torch.nn.Linear(2, 1))
        try:
            with hasten.join(net):
                net(torch.ones(1, 2)).sum().backward()
                if dist.get_rank() == 0:
                    raise KeyError("bad sample 17")
                while True:
                    net(torch.ones(1, 2)).sum().backward()
        except (KeyError, hasten.CommError) as error:
            print("learned", type(error).__name__, error, flush=True)
            os._exit(7)
    """)
    assert [rank.code for rank in ranks] == [7, 7], ranks
    assert "learned KeyError 'bad sample 17'" in ranks[0].output
    assert "learned CommError" in ranks[1].output and "rank 0" in ranks[1].output and "bad sample 17" in ranks[1].output


def test_ctrl_c_ends_the_wait_at_joins_end():
    ranks = run_ranks(2, """
        import os, signal, threading, torch, torch.distributed as dist, hasten
        dist.init_process_group("hasten")
        net = hasten.distribute(torch.nn.Linear(2, 1))
        try:
            with hasten.join(net):
                if dist.get_rank() == 0:
                    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                else:
                    dist.recv(torch.ones(1), 0)
        except KeyboardInterrupt:
            os._exit(5)
        except hasten.CommError:
            os._exit(7)
    """, timeout=40)
    assert [rank.code for rank in ranks] == [5, 7], ranks


def test_what_cannot_be_joined_is_refused():
    net, behind = hasten.distribute(net_of()), hasten.distribute(torch.nn.Linear(3, 3))
    with hasten.join(net):
        with pytest.raises(hasten.UsageError, match="open already"):
            with hasten.join(net):
                pass
        with pytest.raises(hasten.UsageError, match="into one module"):
            behind(net(torch.ones(1, 5))).sum().backward()
        with pytest.raises(hasten.UsageError, match="create_graph"):
            hasten.backward(net(torch.ones(1, 5)).sum(), create_graph=True)


def test_join_of_one_process_is_the_plain_loop():
    plain, own = net_of(), hasten.distribute(net_of())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (plain, own)]
    train(plain, optimizers[0], 4, 1)
    with hasten.join(own):
        train(own, hasten.optimizer(optimizers[1]), 4, 1)
    assert difference(plain, own) < 1e-6

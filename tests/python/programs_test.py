"""Programs of torch.distributed, unchanged: the same numbers over the engine in Gloo's place as over Gloo."""
import pytest
from ranks import expect_success, run_ranks

COMMON = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    me, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    def batches():
        torch.manual_seed(100 + me)
        return [torch.randn(6, 8) for _ in range(4)]
    def show(*values):
        print("numbers", *[value.double().sum().item().hex() for value in values])
    def end():
        dist.barrier()
        dist.destroy_process_group()
"""

PROGRAMS = {
    "fsdp1": """
    import warnings
    warnings.simplefilter("ignore")
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    net = FSDP(net, device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for batch in batches():
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        show(loss.detach())
    end()
""",
    "zero_redundancy_optimizer": """
    from torch.distributed.optim import ZeroRedundancyOptimizer
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-2)
    for batch in batches():
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    show(*net.parameters())
    optimizer.consolidate_state_dict(to=0)
    if me == 0: show(*[each["exp_avg"] for each in optimizer.state_dict()["state"].values()])
    end()
""",
    "tensor_parallel": """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (size,))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.manual_seed(7)
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(torch.randn(6, 8)).square().mean()
        loss.backward()
        optimizer.step()
        show(loss.detach())
    show(*[parameter.full_tensor().detach() for parameter in net.parameters()])
    end()
""",
    "pipeline": """
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, Schedule1F1B
    part = [torch.nn.Sequential(net[0], net[1]), net[2]][me]
    for kind in (ScheduleGPipe, Schedule1F1B):
        stage = PipelineStage(part, me, size, torch.device("cpu"))
        schedule = kind(stage, n_microbatches=2, loss_fn=lambda y, target: (y - target).square().mean())
        torch.manual_seed(7)
        x, losses = torch.randn(6, 8), []
        schedule.step(x) if me == 0 else schedule.step(target=torch.zeros(6, 4), losses=losses)
        show(*[parameter.grad for parameter in part.parameters()], *[loss.detach() for loss in losses])
    end()
""",
    "join_of_ddp": """
    from torch.distributed.algorithms.join import Join
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with Join([net]):
        for batch in batches()[: 4 - me]:
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
    show(*net.parameters())
    end()
""",
}


def numbers(program, **variables):
    ranks = expect_success(run_ranks(2, COMMON + PROGRAMS[program], **variables))
    return [[line for line in rank.output.splitlines() if line.startswith("numbers")] for rank in ranks]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_the_numbers_that_it_has_over_gloo(program):
    gloo = numbers(program, HASTEN_FOR_GLOO=None)
    assert len(gloo[0]) > 0
    assert numbers(program, HASTEN_FOR_GLOO="1") == gloo


def test_workers_of_a_loader_start_by_each_method():
    expect_success(run_ranks(2, """
        import torch, torch.distributed as dist
        if __name__ == "__main__":
            dist.init_process_group("hasten")
            for method in ("fork", "spawn", "forkserver"):
                data = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=2, num_workers=2, multiprocessing_context=method)
                assert sum(batch.sum() for batch in data) == 28, method
                dist.barrier()
            dist.destroy_process_group()
    """))

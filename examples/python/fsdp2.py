"""A loop with FSDP2 (fully_shard) on CPUs: each rank keeps a part of the parameters and of the optimizer's state.

hasten launch -n 2 --for_gloo examples/python/fsdp2.py

Or with one line changed, and without --for_gloo: dist.init_process_group("hasten").
"""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(4)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(150):
        inputs = torch.randn(64, 64)
        loss = (model(inputs).squeeze(1) - inputs[:, :8].sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    assert loss < 4, loss
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A loop with DistributedDataParallel, as it would be for Gloo: nothing of hasten's in it.

hasten launch -n 2 --for_gloo examples/python/ddp.py
HASTEN_FOR_GLOO=1 torchrun --nproc_per_node 2 examples/python/ddp.py

Or with one line changed, and without the variable: dist.init_process_group("hasten").
"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(2048, 16)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for batch, label in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), label).backward()
            optimizer.step()
        right = (model(inputs).argmax(1) == data.tensors[1]).float().mean()
        dist.all_reduce(right, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {right:.3f}")
    assert right > 0.95, right
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

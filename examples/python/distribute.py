"""A loop with hasten's own data parallelism, loader, optimizer and checkpoints; it goes on from its last state.

hasten launch -n 2 examples/python/distribute.py [--shard 3] [--folder FOLDER]
"""
import argparse
import os

import hasten
import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shard", type=int, default=0, help="0: nothing is split over the ranks; 3: parameters and all else")
    parser.add_argument("--folder", help="where the state is saved, and read if it is there")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    inputs = torch.randn(2048, 16)
    labels = (inputs.sum(1) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    net = hasten.distribute(net, shard=arguments.shard)
    optimizer = hasten.optimizer(torch.optim.AdamW(net.parameters(), 3e-3))
    loader = hasten.loader(DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True))
    path = arguments.folder and os.path.join(arguments.folder, "state.pt")
    if path and os.path.exists(path):
        state = hasten.load(path)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    save = None
    while loader.epoch < 4:
        for batch, label in loader:
            optimizer.zero_grad()
            # The last batch may be smaller on some rank: each sample counts alike.
            hasten.backward(torch.nn.functional.cross_entropy(net(batch), label), weight=len(label))
            hasten.clip_grad_norm_(net, 1.0)
            optimizer.step()
        if path:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            save = hasten.save(state, path, background=True)
    if save:
        save.wait()
    with torch.no_grad():
        accuracy = (net(inputs).argmax(1) == labels).float().mean().item()
    assert accuracy > 0.95, accuracy
    if int(os.environ.get("RANK") or 0) == 0:
        print(f"accuracy {accuracy:.3f}\ndone")


if __name__ == "__main__":
    main()

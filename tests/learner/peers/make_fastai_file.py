"""Writes ../fastai/{adam.pth, adam.json}: a file of fastai's Learner.save, and what another epoch makes of it (fastai 2.8)."""
import json
import pathlib
import torch
from fastai.callback.progress import *  # noqa: F401,F403  (no_bar)
from fastai.data.core import DataLoaders
from fastai.learner import Learner

folder = pathlib.Path(__file__).resolve().parent.parent / "fastai"
torch.manual_seed(3)
x, y = torch.randn(24, 6), torch.randint(3, (24,))
batches = [(x[i:i + 8], y[i:i + 8]) for i in range(0, 24, 8)]


class Batches(list):
    device, after_batch = torch.device("cpu"), None

    def to(self, device):
        return self


dls = DataLoaders(Batches(batches), Batches(batches))
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
learn = Learner(dls, net, loss_func=torch.nn.functional.cross_entropy, path=folder, model_dir=".", splitter=lambda m: [list(m[0].parameters()), list(m[2].parameters())])
with learn.no_bar(), learn.no_logging():
    learn.fit(1, 0.02)
    learn.save("adam")
    learn.fit(1, 0.02)
values = {"x": x.tolist(), "y": y.tolist(), "state": {k: v.tolist() for k, v in net.state_dict().items()}}
(folder / "adam.json").write_text(json.dumps(values))

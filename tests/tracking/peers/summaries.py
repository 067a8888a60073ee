"""Prints, as hex, the Summary messages that torch.utils.tensorboard makes of fixed values.

With a folder it writes an embedding there.
"""
import sys

import numpy as np
from torch.utils.tensorboard import summary

bins = []
limit = 1e-12
while limit < 1e20:  # SummaryWriter.default_bins
    bins.append(limit)
    limit *= 1.1
bins = [-limit for limit in reversed(bins)] + [0] + bins
values = np.array([-1.0, 0.0, 0.5, 0.5, 3.0, 1e-14, 250.0])
made = {
    "scalar": summary.scalar("train/loss", 0.25),
    "zero": summary.scalar("zero", 0.0),
    "text": summary.text("note", "hello **you**"),
    "histogram": summary.histogram("weights", values, bins),
}
for name, message in made.items():
    print(name, message.SerializeToString().hex())
if len(sys.argv) > 1:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    points = torch.tensor([[1, 0.5], [-2, 0.1], [1e-8, 123456.789], [7, 9], [2, 3]])
    images = torch.stack([torch.full((3, 4, 4), (50.0 * i + 0.25) / 255) for i in range(5)])
    with SummaryWriter(sys.argv[1]) as writer:
        writer.add_embedding(points, [["a", 0], ["b", 1], ["c", 2], ["d", 3], ["e", 4]], images, 42, "net/last", ["name", "class"])

"""Prints, as hex, the Summary messages that torch.utils.tensorboard makes of fixed values."""
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

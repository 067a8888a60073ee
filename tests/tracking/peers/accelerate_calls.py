"""Prints the calls that Accelerate's class of a tracker makes to its client, one a line. Arguments: the tracker's name, the file, the logging directory.

The client is the fake module of this folder's fake_clients, which is what the bridge is given in the test, too.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_clients"))
os.environ["FAKE_CLIENT_CALLS"] = os.devnull
from accelerate.state import PartialState  # noqa: E402
from accelerate.tracking import LOGGER_TYPE_TO_CLASS  # noqa: E402

PartialState(cpu=True)
os.environ["FAKE_CLIENT_CALLS"] = sys.argv[2]
name = sys.argv[1]
kwargs = {"mode": "offline"} if name in ("wandb", "swanlab", "trackio") else {}
if name == "aim":
    kwargs["logging_dir"] = sys.argv[3]
tracker = LOGGER_TYPE_TO_CLASS[name]("p", **kwargs)
tracker.start()
tracker.store_init_configuration({"lr": 0.5, "net": "cnn"})
tracker.log({"train_loss": 1.5, "n": 2}, step=3)
tracker.log({"train_loss": 1.25, "n": 3}, step=4)
tracker.finish()

from fake_client import Recorder

__version__ = "3.58.0"
init = Recorder("wandb.init")
start = Recorder("wandb.start")
config = Recorder("wandb.config")
Run = Recorder("wandb.Run")

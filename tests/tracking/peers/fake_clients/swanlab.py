from fake_client import Recorder

__version__ = "3.58.0"
init = Recorder("swanlab.init")
start = Recorder("swanlab.start")
config = Recorder("swanlab.config")
Run = Recorder("swanlab.Run")

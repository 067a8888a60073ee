from fake_client import Recorder

__version__ = "3.58.0"
init = Recorder("trackio.init")
start = Recorder("trackio.start")
config = Recorder("trackio.config")
Run = Recorder("trackio.Run")

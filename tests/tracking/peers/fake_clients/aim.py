from fake_client import Recorder

__version__ = "3.58.0"
init = Recorder("aim.init")
start = Recorder("aim.start")
config = Recorder("aim.config")
Run = Recorder("aim.Run")

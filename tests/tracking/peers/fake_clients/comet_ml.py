from fake_client import Recorder

__version__ = "3.58.0"
init = Recorder("comet_ml.init")
start = Recorder("comet_ml.start")
config = Recorder("comet_ml.config")
Run = Recorder("comet_ml.Run")

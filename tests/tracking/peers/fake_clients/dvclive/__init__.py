from fake_client import Recorder

Live = Recorder("Live")

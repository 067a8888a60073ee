from fake_client import Recorder


class Task:
    init = Recorder("Task.init")

    @staticmethod
    def current_task():
        return None

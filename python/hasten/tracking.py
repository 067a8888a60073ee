"""Tracker: values of a run to TensorBoard, CSV, MLflow, W&B and the others of docs/tracking.md, which no step waits for."""
import atexit
import os
import sys


class Tracker:
    """A run. The main process logs; other ranks may make one as well, which logs nothing.

    log_with: names of trackers. folder: where their files and the run's journal go. config: settings shown with the run.
    init_kwargs: options by tracker. Raises UsageError for a name that is not known, with the nearest.
    """

    def __init__(self, log_with, folder="runs", *, project="run", config=None, init_kwargs=None):
        from hasten._load import engine

        rank, size, key = _place()
        names = [log_with] if isinstance(log_with, str) else list(log_with)
        self._trackers = engine().Trackers(names, os.fspath(folder), rank, size, key)
        self._is_main, self._failed = rank == 0, False
        self._trackers.init(project, config or {}, init_kwargs or {})
        atexit.register(self._end)

    @property
    def run_folder(self):
        """Where the journal is; `hasten board` shows it."""
        return self._trackers.run_folder

    @property
    def run_id(self):
        return self._trackers.run_id

    def log(self, values, step=None):
        """Logs numbers and texts by key; a dict in their place is a group. Tensors of one element count as numbers. Takes
        microseconds. step: without one, the number of calls so far. Raises UsageError for a value that is no number, with its
        key."""
        if self._is_main:
            self._trackers.log(values, step)

    def log_artifact(self, file):
        """Hands a file over, which stays where it is until the run has ended."""
        if self._is_main:
            self._trackers.log_artifact(os.fspath(file))

    def note(self, text):
        """Puts a line on the run's time line."""
        self._trackers.note(text)

    def finish(self):
        """Ends the run and waits for its trackers, a minute at most. Called at the program's end otherwise."""
        atexit.unregister(self._end)
        self._trackers.finish(False)

    def _end(self):
        self._trackers.finish(getattr(sys, "last_value", None) is not None)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        atexit.unregister(self._end)
        self._trackers.finish(kind is not None)


def _place():
    """Rank, world size, and a text that is this run's alone, from torchrun's variables."""
    get = os.environ.get
    run = "/".join(get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return int(get("RANK") or 0), int(get("WORLD_SIZE") or 1), get("HASTEN_RUN_KEY") or run

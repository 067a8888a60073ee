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

        rank, size = (int(os.environ.get(name) or default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
        self._trackers = None
        if rank == 0:
            names = [log_with] if isinstance(log_with, str) else list(log_with)
            self._trackers = engine().Trackers(names, os.fspath(folder), rank, size, "")
            self._trackers.init(project, config or {}, init_kwargs or {})
            atexit.register(self._end)

    @property
    def run_folder(self):
        """Where the journal is, which `hasten board` shows; None on other ranks than the main one."""
        return self._trackers.run_folder if self._trackers else None

    @property
    def run_id(self):
        return self._trackers.run_id if self._trackers else None

    def log(self, values, step=None):
        """Logs numbers and texts by key; a dict in their place is a group. Tensors of one element count as numbers. Takes
        microseconds. step: without one, the number of calls so far. Raises UsageError for a value that is no number, with its
        key."""
        if self._trackers:
            self._trackers.log(values, step)

    def log_artifact(self, file):
        """Hands a file over, which stays where it is until the run has ended."""
        if self._trackers:
            self._trackers.log_artifact(os.fspath(file))

    def note(self, text):
        """Puts a line on the run's time line."""
        if self._trackers:
            self._trackers.note(text)

    def finish(self):
        """Ends the run and waits for its trackers, a minute at most. Called at the program's end otherwise."""
        self._finish(False)

    def _end(self):
        self._finish(getattr(sys, "last_value", None) is not None)

    def _finish(self, failed):
        atexit.unregister(self._end)
        if self._trackers:
            self._trackers.finish(failed)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self._finish(kind is not None)

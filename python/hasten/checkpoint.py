"""save and load: states of any trainer in files that are whole or not there.

save writes torch.save's form, which torch.load(weights_only=True) reads. load reads what Python programs write: torch.save,
pickles, safetensors, their indexes, and the folders of DCP, FSDP, DeepSpeed, Accelerate and the C++ library.
"""
import os
import threading

_FILE = "state.pt"
_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


class Inert:
    """An object of a file that is not made, since that would run code: the name of its class, its arguments, its state."""

    def __init__(self, name, arguments=(), state=None, items=(), pairs=None):
        self.name, self.arguments, self.state, self.items, self.pairs = name, arguments, state, items, pairs or {}

    def __repr__(self):
        return f"Inert({self.name!r})"


class Save:
    """A save under way."""

    def __init__(self, write, path, background):
        self.path, self._error = path, None
        self._thread = threading.Thread(target=self._run, args=(write,)) if background else None
        if self._thread:
            self._thread.start()  # not a daemon: the process waits for it at its exit
        else:
            write(path)

    def _run(self, write):
        try:
            write(self.path)
        except Exception as error:
            self._error = error

    @property
    def done(self):
        return self._thread is None or not self._thread.is_alive()

    def wait(self):
        """Returns when the file is there. Raises what ended the save."""
        if self._thread:
            self._thread.join()
        if self._error:
            raise self._error


def _is_main():
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def save(state, path, *, background=False, on_each_rank=False):
    """Writes numbers, texts, tensors, and lists, tuples and dicts of them; the file appears by rename.

    path: a file (.pt, .pth, .bin, .ckpt, .pkl), or a folder that gets state.pt. background: the tensors are copied, and a
    thread writes while training goes on; wait() of the result raises what went wrong. Rank 0 of torch.distributed's world
    writes, the others return at once; on_each_rank: each rank writes, to a path of its own. Raises UsageError for a value of
    another type, with its place; DataError where the disk fails.
    """
    from hasten._load import engine

    path = os.fspath(path)
    if not (on_each_rank or _is_main()):
        return Save(lambda _: None, path, False)
    snapshot = engine().Snapshot(state, background)
    if not path.endswith(_SUFFIXES):
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, _FILE)
    elif os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    return Save(snapshot.write, path, background)


def load(path, *, python=False, form=""):
    """Reads a file or a folder, whatever wrote it. Tensors are on the CPU.

    What save wrote, or torch.save or pickle, comes as it was; objects of classes come as Inert. Safetensors and folders come
    as a dict of tensors by name. python: torch.load(weights_only=True) reads the file instead. form: insists on one of
    safetensors, torch, hasten, dcp, fsdp, deepspeed, accelerate. Raises UsageError for a path that is not there or of no
    known form; DataError for a damaged file.
    """
    from hasten._load import engine

    path = os.fspath(path)
    inside = os.path.join(path, _FILE)
    if not form and os.path.isfile(inside):
        path = inside
    if python:
        import torch

        return torch.load(path, map_location="cpu", weights_only=True)
    if not form and os.path.isfile(path) and engine().is_python_file(path):
        return engine().load_value(path)
    return engine().load_tensors(path, form)

"""hasten for Python: docs/python.md.

`import torch` registers the backend of torch.distributed by itself; programs need this import for the rest only. The
engine, and torch, are loaded with the first name that needs them.
"""
import importlib

# Public names, and the modules that hold them.
_WHERE = {
    "CommError": "errors", "DataError": "errors", "Error": "errors", "InternalError": "errors", "UsageError": "errors",
    "Accelerator": "accelerator", "JournalTracker": "accelerator", "Tracker": "tracking",
    "backward": "distributing", "clip_grad_norm_": "distributing", "clip_grad_value_": "distributing", "distribute": "distributing",
    "local_sgd": "distributing", "no_sync": "distributing", "join": "joining",
    "load": "checkpoint", "save": "checkpoint",
    "loader": "loaders",
    "notebook_launcher": "launchers",
    "optimizer": "optimizers",
}

__all__ = sorted(_WHERE)
__version__ = "0.1.0"


def __getattr__(name):
    if name not in _WHERE:
        raise AttributeError(f"module 'hasten' has no attribute '{name}'")
    return getattr(importlib.import_module(f"hasten.{_WHERE[name]}"), name)


def __dir__():
    return [*globals(), *__all__]

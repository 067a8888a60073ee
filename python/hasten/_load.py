"""Loads the engine that was built for the minor release of torch that is here, once. One of another torch would end the process.

Each build makes hasten/_engine_2_13.….so, named after its torch; a wheel may hold those of several (scripts/merge_wheels.py).
"""
import atexit
import functools
import importlib.machinery
import importlib.util
import os
import re
import sys

from hasten import logs


def _engines():
    """Files of engines for this Python, by the minor release of torch."""
    folder, suffix = os.path.dirname(__file__), re.escape(importlib.machinery.EXTENSION_SUFFIXES[0])
    found = (re.fullmatch(rf"_engine_(\d+)_(\d+){suffix}", name) for name in sorted(os.listdir(folder)))
    return {f"{match[1]}.{match[2]}": os.path.join(folder, match[0]) for match in found if match}


@functools.cache
def engine():
    """The module hasten._engine. Raises ImportError for a torch of a minor release that no engine was built for."""
    import torch

    engines = _engines()
    path = engines.get(".".join(torch.__version__.split(".")[:2]))
    if path is None:
        raise ImportError(
            f"hasten was built for torch {' and '.join(engines) or '(no engine is here for this Python)'}, and this is torch "
            f"{torch.__version__}. Install one that it was built for, or build it anew in its folder: ./dev python, or pip install . "
            "--no-build-isolation")
    spec = importlib.util.spec_from_file_location("hasten._engine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["hasten._engine"] = module
    atexit.register(module.end_watch)
    logs.take(module)
    return module

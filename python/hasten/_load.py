"""Loads the engine, once, after a comparison of versions: a module of another torch would end the process."""
import functools
import importlib


def _minor(version):
    return ".".join(version.split(".")[:2])


@functools.cache
def engine():
    """The module hasten._engine. Raises ImportError for a torch of another minor release than the engine's."""
    import torch

    from hasten import _build_info

    if _minor(torch.__version__) != _minor(_build_info.TORCH):
        raise ImportError(
            f"hasten was built for torch {_build_info.TORCH}, and this is torch {torch.__version__}. Build it anew in its "
            "folder: ./dev python, or pip install . --no-build-isolation")
    return importlib.import_module("hasten._engine")

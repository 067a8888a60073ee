"""The backend of torch.distributed: "hasten" by name, or in Gloo's place where HASTEN_FOR_GLOO=1.

In Gloo's place groups keep Gloo's name, for programs that ask for it; the profile's titles and monitored_barrier's words
are Gloo's as well.
"""
import datetime
import os

_NAME = "hasten"


def _load():
    from hasten._load import engine

    return engine()


def _create(store, rank, size, timeout, name="", backend_name=_NAME):
    default = datetime.timedelta(minutes=30)
    # Connected by the constructor, as Gloo is.
    return _load().create_group(store, rank, size, timeout or default, name or "world", backend_name)


def _create_by_name(options, _):
    return _create(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


def register():
    """Makes backend="hasten" known. Programs need not call this: `import torch` does."""
    import torch.distributed as dist

    if dist.is_available() and _NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(_NAME, _create_by_name, extended_api=True, devices=["cpu"])


def is_ours(backend):
    """Whether an object of torch.distributed is one of the engine's backends."""
    return type(backend).__name__ == "ProcessGroupHasten"


def take_over_gloo_if_asked():
    if os.environ.get("HASTEN_FOR_GLOO") == "1":
        take_over_gloo()


def take_over_gloo():
    """Groups that ask for Gloo from now on get the engine, under Gloo's name."""
    from torch.distributed import distributed_c10d as c10d

    real = getattr(c10d, "ProcessGroupGloo", None)
    if real is None or hasattr(real, "_real_gloo"):
        return

    class TakesOver(type(real)):
        def __call__(cls, store, rank, size, timeout=None, *_):
            if not isinstance(timeout, (datetime.timedelta, type(None))):  # ProcessGroupGloo._Options
                timeout = timeout._timeout
            return _create(store, rank, size, timeout, backend_name="gloo")

        def __instancecheck__(cls, instance):
            return isinstance(instance, real) or is_ours(instance)

    c10d.ProcessGroupGloo = TakesOver("ProcessGroupGloo", (real,), {"_real_gloo": real})


def backends():
    """The engine's backends of all groups of this process, the world's first."""
    import torch
    from torch.distributed import distributed_c10d as c10d

    found = []
    for group in list(c10d._world.pg_map):
        try:
            backend = group._get_backend(torch.device("cpu"))
        except RuntimeError:
            continue  # a group of GPUs alone
        if is_ours(backend):
            found.append(backend)
    return found

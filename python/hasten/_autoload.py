"""What `import torch` calls (entry point torch.backends): registers the backend, loads no engine.

An exception here would make `import torch` fail for every program of the environment, so none leaves it.
"""
import warnings


def autoload():
    try:
        from hasten import distributed, faults

        distributed.register()
        distributed.take_over_gloo_if_asked()
        faults.install()
    except BaseException as error:  # noqa: B902
        warnings.warn(f"hasten: its backend for torch.distributed is not registered: {type(error).__name__}: {error}",
                      stacklevel=2)

"""Last words: where a rank ends by an exception, the other ranks' errors name it and the exception.

Without this they would see a closed connection.
"""
import sys
import threading
import traceback


def words_of(kind, value, trace):
    """'ValueError: bad sample 17, train.py:61', the place in the program's own file where it was raised."""
    words = f"{kind.__name__}: {value}" if str(value) else kind.__name__
    frames = traceback.extract_tb(trace) if trace else []
    return f"{words}, {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else words


def fail(words):
    """Tells the other ranks of all groups that this one has failed, and ends its operations."""
    distributed, engine = sys.modules.get("torch.distributed"), sys.modules.get("hasten._engine")
    if engine is None or distributed is None or not distributed.is_initialized():
        return
    from hasten.distributed import backends

    for backend in backends():
        engine.fail(backend, words)


def _fail_quietly(kind, value, trace):
    try:
        fail(words_of(kind, value, trace))
    except Exception:  # the program's own exception is what has to be seen
        pass


def install():
    """Sets hooks before those that are there. Programs need not call this: `import torch` does."""
    if getattr(sys.excepthook, "_is_hastens", False):
        return
    hook, thread_hook = sys.excepthook, threading.excepthook

    def at_exception(kind, value, trace):
        _fail_quietly(kind, value, trace)
        hook(kind, value, trace)

    def at_thread_exception(arguments):
        if arguments.exc_type is not SystemExit:
            _fail_quietly(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        thread_hook(arguments)

    at_exception._is_hastens = True
    sys.excepthook, threading.excepthook = at_exception, at_thread_exception

"""Last words: where a rank ends by an exception, the other ranks' errors name it and the exception.

Without this they would see a closed connection. The launcher learns it by its error file.
"""
import contextlib
import json
import os
import sys
import threading
import time
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


def _write_error_file(kind, value, trace):
    """The launcher's file, in torchrun's form; torch.distributed.elastic's `record` has written it where the program has that."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or not issubclass(kind, Exception) or (os.path.exists(path) and os.path.getsize(path)):  # Ctrl-C is no failure
        return
    more = {"py_callstack": "".join(traceback.format_exception(kind, value, trace)), "timestamp": str(int(time.time()))}
    with open(path, "w") as file:
        json.dump({"message": {"message": f"{kind.__name__}: {value}", "extraInfo": more}}, file)


def _quietly(function, *arguments):
    # The program's own exception is what has to be seen.
    with contextlib.suppress(Exception):
        function(*arguments)


def install():
    """Sets hooks before those that are there. Programs need not call this: `import torch` does."""
    if getattr(sys.excepthook, "_is_hastens", False):
        return
    hook, thread_hook = sys.excepthook, threading.excepthook

    def at_exception(kind, value, trace):
        _quietly(lambda: fail(words_of(kind, value, trace)))
        _quietly(_write_error_file, kind, value, trace)
        hook(kind, value, trace)

    def at_thread_exception(arguments):
        if arguments.exc_type is not SystemExit:
            _quietly(lambda: fail(words_of(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)))
        thread_hook(arguments)

    at_exception._is_hastens = True
    sys.excepthook, threading.excepthook = at_exception, at_thread_exception

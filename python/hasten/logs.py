"""Lines of the engine's log in Python's logging: the logger "hasten". They are on standard error where it has no handlers.

HASTEN_LOG_LEVEL chooses which lines there are (warnings and errors), logging's levels and handlers what becomes of them.
"""
import logging
import sys
import time

# By the engine's levels: trace, debug, info, warning, error, critical.
_LEVELS = [logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL]


def _take(level, line):
    logger = logging.getLogger("hasten")
    if logger.hasHandlers():
        logger.log(_LEVELS[level], "%s", line)
    elif sys.stderr is not None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"
        print(stamp, logging.getLevelName(_LEVELS[level]).lower(), line, file=sys.stderr, flush=True)


def take(engine):
    """Takes the lines of the engine's log from now on; standard error has those behind the end of Python."""
    import atexit

    engine.take_log(_take)
    atexit.register(engine.give_log_back)

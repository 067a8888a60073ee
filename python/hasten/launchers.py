"""notebook_launcher: a function on several processes, from a notebook or a script.

Processes are forked, so that the function may be one of the notebook's own. Where that is not safe (a CUDA context is there),
they start anew, and the function travels by cloudpickle, or pickle. Lines of all ranks come out in the order in which they
are printed, with the rank before them. The first failure ends the others, and is raised with its rank.
"""
import os
import pickle
import sys
import threading
import traceback

# How long the cause of a failure is waited for that another rank has learned of.
_PATIENCE_S = 10


class RankFailed(RuntimeError):
    """A rank of notebook_launcher has failed. `rank` is its number; the message has its traceback, or its signal."""

    def __init__(self, rank, words):
        super().__init__(f"rank {rank} failed: {words}")
        self.rank = rank


def _free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class _Descriptor:
    """A file descriptor on its way to a child: inherited by a fork, handed over otherwise."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        from multiprocessing.reduction import DupFd

        return (_received, (DupFd(self.number),))


def _received(handed):
    return _Descriptor(handed.detach())


def _become_rank(output, variables):
    os.environ.update(variables)
    for number in (1, 2):
        os.dup2(output.number, number)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    if "torch" in sys.modules:
        # Threads of a pool are not there after a fork, and the entry point has run without the variables.
        from hasten import distributed

        sys.modules["torch"].set_num_threads(int(variables["OMP_NUM_THREADS"]))
        distributed.take_over_gloo_if_asked()


def _run(packed, output, result, variables):
    """In the child: runs the function, and sends what it returned, or why it failed."""
    _become_rank(output, variables)
    try:
        function, arguments = pickle.loads(packed) if isinstance(packed, bytes) else packed
        result.send(_sent(function(*arguments)))
    except BaseException as error:
        from hasten import errors, faults

        # First, so that the others' errors, which name this one, come behind it.
        result.send(("follows" if isinstance(error, errors.CommError) else "failed", "".join(traceback.format_exception(error))))
        faults.fail(faults.words_of(type(error), error, error.__traceback__))
    result.close()
    sys.stdout.flush()
    sys.stderr.flush()


def _sent(value):
    try:
        pickle.dumps(value)
    except Exception:
        return ("value", None)
    return ("value", value)


def _show(rank, pipe):
    with os.fdopen(pipe, errors="replace") as lines:
        for line in lines:
            sys.stdout.write(f"[rank {rank}] {line.rstrip(chr(10))}\n")
            sys.stdout.flush()


def _start_method():
    torch = sys.modules.get("torch")
    return "spawn" if torch is not None and torch.cuda.is_initialized() else "fork"


def _pack(method, function, arguments):
    if method == "fork":
        return (function, arguments)
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    return pickler.dumps((function, arguments))


def _collect(ranks, wait):
    """What all ranks returned, once all have. Raises at the first failure; one that follows from another waits for that."""
    values, left, follows = [None] * len(ranks), dict(ranks), None
    while left:
        ready = wait(list(left), timeout=_PATIENCE_S if follows else None)
        if not ready:
            break
        for receive in ready:
            rank, process = left.pop(receive)
            try:
                kind, value = receive.recv()
            except EOFError:
                process.join()
                raise RankFailed(rank, f"it ended with exit code {process.exitcode}") from None
            if kind == "failed":
                raise RankFailed(rank, value)
            if kind == "follows":
                follows = follows or RankFailed(rank, value)
            values[rank] = value
    if follows:
        raise follows
    return values


def notebook_launcher(function, args=(), num_processes=2, *, start_method=None):
    """Runs function(*args) on num_processes processes, and returns the list of what they returned (None for what cannot travel).

    They have torchrun's variables, so that torch.distributed, hasten and Accelerate find each other, and HASTEN_FOR_GLOO=1.
    start_method: fork or spawn; unset: fork, or spawn where CUDA is initialised. Raises RankFailed with the first failure,
    after the other processes have ended.
    """
    import multiprocessing
    from multiprocessing.connection import wait

    from hasten.errors import UsageError

    if num_processes < 1:
        raise UsageError(f"[python] notebook_launcher: num_processes={num_processes}; expected at least 1.")
    method = start_method or _start_method()
    context = multiprocessing.get_context(method)
    packed = _pack(method, function, args)
    port, ranks, threads = _free_port(), {}, []
    for rank in range(num_processes):
        variables = dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_processes), LOCAL_WORLD_SIZE=str(num_processes),
                         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
                         HASTEN_FOR_GLOO="1", OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
        reader, writer = os.pipe()
        receive, send = context.Pipe(duplex=False)
        with os.fdopen(writer, "w") as output:
            process = context.Process(target=_run, args=(packed, _Descriptor(output.fileno()), send, variables))
            process.start()
        send.close()
        threads.append(threading.Thread(target=_show, args=(rank, reader)))
        threads[-1].start()
        ranks[receive] = (rank, process)
    try:
        return _collect(ranks, wait)
    finally:
        for _, process in ranks.values():
            if process.is_alive():
                process.terminate()
            process.join()
        for thread in threads:
            thread.join()

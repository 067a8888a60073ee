"""distribute: the engine's data parallelism, and one mapping a host, for any training loop.

The module stays the object that it was: same parameters, names and state_dict keys. Gradients are exchanged by hooks of
autograd, so that loss.backward() is enough; backward() adds weights. A process that torch.distributed does not know trains
alone.
"""
import atexit
import contextlib
import os
import sys
import weakref

_backends = {}  # by torch.distributed's world, None for this process alone
_trainers = {}  # by that and options
_known = weakref.WeakKeyDictionary()  # modules, and what makes them distributed


class _Distributed:
    """The hook before a module's forward. Copies of the module, and files of it, get one that does nothing."""

    def __init__(self, trainer, module):
        from hasten._load import engine

        self.trainer, self.engine = trainer, engine().DistributedModule(trainer, module)
        self._module = weakref.ref(module)

    def __call__(self, module, _):
        if module is self._module():
            _refuse_compiled_autograd()
            self.engine.before_forward(module)

    def __deepcopy__(self, _):
        return _nothing

    def __reduce__(self):
        return (_make_nothing, ())


def _refuse_compiled_autograd():
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.compiled_autograd_enabled:
        from hasten.errors import UsageError

        raise UsageError("[python] distribute: compiled autograd (torch._dynamo.compiled_autograd) has no hooks of gradients, which the "
                         "engine needs. Leave it off; torch.compile of the module works.")


def _nothing(_module, _inputs):
    pass


def _make_nothing():
    return _nothing


def _world():
    """All ranks: torch.distributed's world, or None for this process alone. The world is made where only torchrun knows it."""
    import torch.distributed as dist

    if not dist.is_available():
        return None
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        dist.init_process_group("hasten")
    return dist.group.WORLD if dist.is_initialized() else None


def _backend_of(world):
    """The engine's backend of all ranks: the world's own, one beside that of another backend, or one of this process alone."""
    import torch
    import torch.distributed as dist

    from hasten import distributed

    if world is None:
        return distributed._create(dist.HashStore(), 0, 1, None, "alone")
    try:
        backend = world._get_backend(torch.device("cpu"))
    except RuntimeError:
        backend = None  # a group of GPUs alone
    if distributed.is_ours(backend):
        return backend
    return dist.new_group(backend="hasten")._get_backend(torch.device("cpu"))


def _hashable(value):
    return tuple(value) if isinstance(value, list) else value


@contextlib.contextmanager
def _without_variables_of_accelerate():
    """They are the program's Accelerator's, in Python; the engine's own would follow them a second time."""
    prefixes = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(prefixes)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def trainer_for(**options):
    """The engine's trainer of all ranks with these options, made once. Collective where it is made."""
    from hasten._load import engine

    world = _world()
    if world not in _backends:
        _backends[world] = _backend_of(world)
    key = (world, tuple(sorted((name, _hashable(value)) for name, value in options.items())))
    if key not in _trainers:
        place = [int(os.environ.get(name) or default) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))]
        with _without_variables_of_accelerate():
            _trainers[key] = engine().Trainer(_backends[world], *place, options)
    return _trainers[key]


@atexit.register
def _end():
    for trainer in _trainers.values():
        trainer.end_saves()
    _known.clear()
    _trainers.clear()
    _backends.clear()


def distribute(module, shard=0, **options):
    """Makes a module of the CPU ready for all ranks, and returns it. Collective.

    All ranks get rank 0's parameters and buffers. From then on gradients are the mean over the ranks when backward ends.
    shard: what is split over the ranks: 0 nothing, 1 the optimizer's state, 2 and gradients, 3 and parameters; the ranks of a
    host then hold one mapping of what is split. options: those of DdpOptions and ShardOptions (docs/python.md). Preparing
    twice is the same as once. Raises UsageError naming what differs between the ranks, a parameter that is no dense tensor of
    the CPU, or an option that is not known.
    """
    if module not in _known:
        trainer = trainer_for(shard=shard, **options)
        hook = _Distributed(trainer, module)
        module.register_forward_pre_hook(hook, prepend=True)
        _known[module] = hook
    return module


def is_distributed(module):
    return module in _known


def _hook_of(module):
    from hasten.errors import UsageError

    hook = _known.get(module)
    if hook is None:
        raise UsageError(f"[python] this {type(module).__name__} is not distributed. Call hasten.distribute with it first.")
    return hook


def modules_of(trainer):
    return [module for module, hook in list(_known.items()) if hook.trainer is trainer]


def trainer_of(parameters):
    """The trainer whose modules have any of these parameters, or None."""
    wanted = {id(parameter) for parameter in parameters}
    for module, hook in list(_known.items()):
        if any(id(parameter) in wanted for parameter in module.parameters()):
            return hook.trainer
    return None


def _trainer_now(what, parameters=None):
    """The trainer of these parameters; without them that of all modules, which has to be one."""
    from hasten.errors import UsageError

    if parameters is not None:
        found = trainer_of(parameters)
        if found is not None:
            return found
        raise UsageError(f"[python] {what}: no parameter is of a distributed module. Call hasten.distribute with it first.")
    trainers = {id(hook.trainer): hook.trainer for hook in _known.values()}
    if len(trainers) != 1:
        raise UsageError(f"[python] {what}: {len(trainers)} sets of options are in use by distributed modules; expected one.")
    return next(iter(trainers.values()))


def backward(loss, *, weight=None, gradient=None, retain_graph=None, create_graph=False):
    """loss.backward(), also where a rank's loss depends on no distributed module. Collective.

    weight: how much the loss counts, where it is a mean: its number of samples or tokens, 0 for none. Gradients are then the
    mean over all samples on all ranks. Each backward of a step has one, on every rank, or none has.
    """
    from hasten import joining

    trainer = _trainer_now("backward")
    if not joining.backward(trainer, loss, weight, gradient, retain_graph, create_graph):
        trainer.backward(loss, weight, gradient, retain_graph, create_graph)


def _parameters(of):
    import torch

    if isinstance(of, torch.nn.Module):
        return list(of.parameters())
    return [of] if isinstance(of, torch.Tensor) else list(of)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0):
    """As torch.nn.utils.clip_grad_norm_, for gradients that may be split. parameters: a module or tensors.

    Returns the norm of all gradients before, a tensor without dims. Collective where something is split.
    """
    import torch

    tensors = _parameters(parameters)
    return torch.tensor(_trainer_now("clip_grad_norm_", tensors).clip_grad_norm_(tensors, float(max_norm), float(norm_type)))


def clip_grad_value_(parameters, clip_value):
    """As torch.nn.utils.clip_grad_value_, for gradients that may be split. Collective where something is split."""
    tensors = _parameters(parameters)
    _trainer_now("clip_grad_value_", tensors).clip_grad_value_(tensors, float(clip_value))


@contextlib.contextmanager
def no_sync(module):
    """Backwards inside add gradients up on their rank; the first one behind exchanges the sum."""
    from hasten._load import engine

    hook = _hook_of(module)
    held = engine().HeldGradients(hook.trainer, hook.engine)
    try:
        yield
    finally:
        held.close()


@contextlib.contextmanager
def local_sgd(module, num_steps=8, enabled=True):
    """Ranks train apart, and average parameters every num_steps calls of the result's step(), and at the end."""
    hook = _hook_of(module)
    apart = hook.trainer.local_sgd(hook.engine, num_steps, enabled)
    yield apart
    apart.finish()

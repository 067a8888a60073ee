"""optimizer: steps of a torch optimizer in the engine. It stays the object that it was, for schedulers and loops.

The engine has twins of SGD, Adam, AdamW, Adagrad and RMSprop, which hold the state. Learning rates and the like stay
Python's: param_groups are taken over before each step. Other classes, and options that a twin lacks, step by themselves,
which needs parameters that are not split.
"""
import functools
import weakref

# Options that make no difference to the result, or that only other devices have.
_IGNORED = {"params", "foreach", "fused", "maximize", "capturable", "differentiable", "decoupled_weight_decay"}


def _kind(optimizer):
    """The name of its twin's class, and why there is none."""
    import torch

    kinds = {torch.optim.SGD: "SGD", torch.optim.Adam: "Adam", torch.optim.AdamW: "AdamW", torch.optim.Adagrad: "Adagrad",
             torch.optim.RMSprop: "RMSprop"}
    kind = kinds.get(type(optimizer))
    if kind is None:
        return None, f"{type(optimizer).__name__} has no twin in the engine"
    for group in optimizer.param_groups:
        for option in ("maximize", "capturable", "differentiable"):
            if group.get(option):
                return None, f"{option}=True has no twin in the engine"
    if kind == "Adam" and all(group.get("decoupled_weight_decay") for group in optimizer.param_groups):
        kind = "AdamW"
    return kind, ""


def _plain(value):
    return float(value) if hasattr(value, "item") else value


def _options(optimizer):
    return [{name: _plain(value) for name, value in group.items() if name not in _IGNORED} for group in optimizer.param_groups]


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _for_engine(optimizer, options):
    return [{**values, "params": group["params"]} for values, group in zip(options, optimizer.param_groups)]


class _Twin:
    """The engine's side of an optimizer."""

    def __init__(self, trainer, optimizer, kind):
        from hasten._load import engine

        self.seen = _options(optimizer)
        self.num_parameters = [len(group["params"]) for group in optimizer.param_groups]
        self.engine = engine().Twin(trainer, kind, _for_engine(optimizer, self.seen))

    def options(self, optimizer):
        """Learning rates and the like by group, as a state holds them."""
        return _options(optimizer)

    def load_options(self, optimizer, saved):
        for group, options in zip(optimizer.param_groups, saved):
            group.update({name: tuple(value) if isinstance(value, list) else value for name, value in options.items()})
        self.seen = None
        self.follow(optimizer)

    def follow(self, optimizer):
        from hasten.errors import UsageError

        now = _options(optimizer)
        if now == self.seen:
            return
        counts = [len(group["params"]) for group in optimizer.param_groups]
        if counts[: len(self.num_parameters)] != self.num_parameters:
            raise UsageError("[python] step: parameters were added to a group, or taken from it, after hasten.optimizer. Use "
                             "add_param_group.")
        self.engine.set_options(_for_engine(optimizer, now))
        self.seen, self.num_parameters = now, counts


@functools.cache
def _class_with_twin(base):
    """A subclass of an optimizer's class, of the same name, whose state is its twin's."""
    import torch

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._hasten_twin.follow(self)
        self._hasten_twin.engine.step()
        return loss

    def zero_grad(self, set_to_none=True):
        self._hasten_twin.engine.zero_grad(set_to_none)

    def state_dict(self):
        parameters = _parameters(self)
        self.state.update({parameters[number]: state for number, state in self._hasten_twin.engine.state().items()})
        try:
            return base.state_dict(self)
        finally:
            self.state.clear()

    def load_state_dict(self, given):
        base.load_state_dict(self, given)
        _hand_over_state(self, base)

    names = dict(step=torch.optim.Optimizer.profile_hook_step(step), zero_grad=zero_grad, state_dict=state_dict,
                 load_state_dict=load_state_dict, __module__=base.__module__, __qualname__=base.__qualname__)
    names["step"].hooked = True
    return type(base.__name__, (base,), names)


def _hand_over_state(optimizer, base):
    """Gives the twin the state and options that the optimizer has in Python, and forgets that state here."""
    twin = optimizer._hasten_twin
    given = base.state_dict(optimizer)
    for group in given["param_groups"]:
        for name in [name for name, value in group.items() if not isinstance(value, (int, float, bool, str, tuple, list))]:
            group[name] = _plain(group[name]) if group[name] is not None and hasattr(group[name], "item") else None
    twin.seen = None
    twin.follow(optimizer)
    if given["state"]:
        twin.engine.load_state({"state": given["state"], "param_groups": given["param_groups"]})
    optimizer.state.clear()


def _counted_step(given):
    """What a scheduler puts in the place of step(): it notes the call. The one that is there calls the class's old step."""

    def step(*arguments, **named):
        optimizer = given()
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *arguments, **named)

    step._wrapped_by_lr_sched = True
    return step


def optimizer(given):
    """Lets the engine step a torch optimizer whose parameters a distributed module has; returns it.

    Its step(), zero_grad(), state_dict() and load_state_dict() are the engine's from then on. state_dict() has PyTorch's form,
    whole on every rank, and is collective where state is split. Raises UsageError for an optimizer without a twin whose
    parameters are split, or one without a parameter of a distributed module.
    """
    from hasten.distributing import _trainer_now
    from hasten.errors import UsageError

    if hasattr(given, "_hasten_twin"):
        return given
    trainer = _trainer_now("optimizer", _parameters(given))
    kind, reason = _kind(given)
    if kind is None:
        if trainer.shards:
            raise UsageError(f"[python] optimizer: {reason}, and its parameters are split. Use SGD, Adam, AdamW, Adagrad or "
                             "RMSprop, or distribute with shard=0.")
        return given
    base = type(given)
    given._hasten_twin = _Twin(trainer, given, kind)
    given.__class__ = _class_with_twin(base)
    if hasattr(given.__dict__.get("step"), "_wrapped_by_lr_sched"):
        given.step = _counted_step(weakref.ref(given))
    if given.state:
        _hand_over_state(given, base)
    return given

"""Accelerator: Accelerate's class with the engine where a module is trained on CPUs.

Everything that is not overridden here is Accelerate's. Of Accelerate it uses public names, and prepare's lists of prepared
objects. On GPUs, and under Megatron's plugin, all is Accelerate's. plugins.py has FSDP's and DeepSpeed's.
"""
import contextlib
import inspect
import os
import warnings

try:
    import accelerate
except ImportError as error:
    raise ImportError("hasten.Accelerator is a subclass of Accelerate's, which is not here: pip install 'accelerate>=1.10,<2'. "
                      "hasten.distribute does without it.") from error
import torch
from accelerate.tracking import GeneralTracker
from accelerate.utils import DistributedType

from hasten import distributing, joining, optimizers, plugins, tracking
from hasten.errors import UsageError

_MANIFEST = "manifest.json"


def _version(text):
    return tuple(int(part) for part in text.split(".")[:2])


if not (1, 10) <= _version(accelerate.__version__) < (2, 0):
    raise ImportError(f"hasten.Accelerator follows Accelerate 1.10 to 1.x, and this is {accelerate.__version__}. Install another "
                      "with pip install 'accelerate>=1.10,<2'.")


def _is_for_cpus(cpu):
    """Whether Accelerate's state will be one of CPUs, before it is made."""
    return cpu or str(os.environ.get("ACCELERATE_USE_CPU", "")).lower() in ("1", "true", "yes", "y", "on", "t") or not (
        torch.accelerator.is_available())


@contextlib.contextmanager
def _without_plugins_variables(hide):
    """Accelerate makes plugins of its own where these are set."""
    names = [name for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED") if hide and name in os.environ]
    hidden = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(hidden)


class Accelerator(accelerate.Accelerator):
    """accelerate.Accelerator's arguments, and:

    shard: what is split over the ranks, as in hasten.distribute. distribute: further options of it, as a dict; they take the
    place of DistributedDataParallelKwargs, which serve Accelerate's own wrapper. On CPUs the plugins of FSDP and DeepSpeed
    stand for such options. Raises UsageError for a setting of theirs that the engine has not, and for a plugin beside shard.
    """

    def __init__(self, *arguments, shard=0, distribute=None, **named):
        given = inspect.signature(super().__init__).bind_partial(*arguments, **named).arguments
        self._plan = plugins.plan_for(given, _is_for_cpus(given.get("cpu", False)))
        if self._plan and (shard or distribute):
            raise UsageError("[python] Accelerator(shard=, distribute=) beside a plugin of FSDP or DeepSpeed, which says it as well. "
                             "Leave one out.")
        with _without_plugins_variables(self._plan is not None):
            super().__init__(**{**given, **(self._plan.arguments if self._plan else {})})
        self._distribute_options = dict(distribute or {}, shard=shard)
        self._trainer, self._clipped = None, []
        if not self._takes_part() and (shard or distribute):
            raise UsageError(f"[python] Accelerator(shard=, distribute=) is for CPUs without a plugin; this is "
                             f"{self.distributed_type} on {self.device}.")

    def _takes_part(self):
        return self.device.type == "cpu" and self.distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU)

    # ---- Prepare.

    def prepare(self, *arguments, **named):
        result = super().prepare(*arguments, **named)
        self._take_optimizers()  # those that came before their model
        return result

    def prepare_model(self, model, device_placement=None, evaluation_mode=False):
        own = self._takes_part() and not evaluation_mode and any(p.requires_grad for p in model.parameters())
        model = super().prepare_model(model, device_placement, evaluation_mode or own)
        if own:
            plain = self.unwrap_model(model)
            options = self._plan.options(plain) if self._plan else self._distribute_options
            distributing.distribute(plain, **options)
            self._trainer = distributing.trainer_for(**options)
        return model

    def prepare_optimizer(self, optimizer, device_placement=None):
        optimizer = super().prepare_optimizer(optimizer, device_placement)
        self._take_optimizers()
        return optimizer

    def _take_optimizers(self):
        # A loss scale's steps are Accelerate's: it takes the optimizer's step apart.
        if self.scaler is not None:
            return
        for prepared in self._optimizers:
            plain = prepared.optimizer
            parameters = [p for group in plain.param_groups for p in group["params"]]
            if isinstance(plain, torch.optim.Optimizer) and distributing.trainer_of(parameters) is not None:
                optimizers.optimizer(plain)
                self._clip_in_steps(plain)

    def _clip_in_steps(self, plain):
        """DeepSpeed's gradient_clipping: each step clips, whether the program does or not."""
        if self._plan is None or self._plan.clips_to is None or plain in self._clipped:
            return
        self._clipped.append(plain)

        def clip(optimizer, _arguments, _named):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            distributing.clip_grad_norm_(parameters, self._plan.clips_to)

        plain.register_step_pre_hook(clip)

    # ---- Training.

    def backward(self, loss, *, weight=None, **named):
        """Accelerate's, and with a weight the mean over all samples of a step: hasten.backward."""
        if weight is None:
            return super().backward(loss, **named)
        if self._trainer is None:
            raise UsageError("[python] Accelerator.backward(weight=): no model is prepared. Call prepare first.")
        return distributing.backward(loss, weight=weight, **named)

    @contextlib.contextmanager
    def no_sync(self, model):
        if distributing.is_distributed(self.unwrap_model(model)):
            with distributing.no_sync(self.unwrap_model(model)):
                yield
        else:
            with super().no_sync(model):
                yield

    def clip_grad_norm_(self, parameters, max_norm, norm_type=2):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if distributing.trainer_of(parameters) is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        self.unscale_gradients()
        return distributing.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters, clip_value):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if distributing.trainer_of(parameters) is None:
            return super().clip_grad_value_(parameters, clip_value)
        self.unscale_gradients()
        distributing.clip_grad_value_(parameters, clip_value)

    @contextlib.contextmanager
    def join_uneven_inputs(self, joinables, even_batches=None):
        """Accelerate's, on CPUs as well: hasten.join. At the end all ranks have the state of one that went on to the end."""
        own = [each for each in joinables if isinstance(each, torch.nn.Module) and distributing.is_distributed(self.unwrap_model(each))]
        if not self._takes_part() or not own or self.num_processes == 1:
            with super().join_uneven_inputs(joinables, even_batches):
                yield
            return
        with self._even_batches(even_batches):
            is_even = self.even_batches if even_batches is None else even_batches
            if is_even:
                yield
                return
            # Inside the wrappers, so that their states are the classes' own.
            objects = [prepared.scheduler for prepared in self._schedulers] + [prepared.optimizer for prepared in self._optimizers]
            with joining.join(self.unwrap_model(own[0]), *objects):
                yield

    @contextlib.contextmanager
    def _even_batches(self, value):
        samplers = [loader.batch_sampler for loader in self._dataloaders if hasattr(loader.batch_sampler, "even_batches")]
        if value is not None and len(samplers) < len(self._dataloaders):
            warnings.warn("Overriding even_batches is only supported for map-style datasets, yet some dataloaders given were iterable",
                          stacklevel=4)
        before = [sampler.even_batches for sampler in samplers]
        for sampler in samplers:
            sampler.even_batches = sampler.even_batches if value is None else value
        try:
            yield
        finally:
            for sampler, given in zip(samplers, before):
                sampler.even_batches = given

    # ---- Saving and loading.

    def save_state(self, output_dir=None, safe_serialization=True, *, background=False, layout=None, **named):
        """Accelerate's folder, or with background=True or layout="hasten" one of the engine's, which appears whole. FSDP's
        SHARDED_STATE_DICT stands for layout="hasten".

        background: returns once the state is copied; wait() of the result returns when the folder is there. The folder holds
        models, optimizers with a twin, schedulers, torch's random states and registered objects, for any number of ranks.
        load_state reads both. Collective.
        """
        if layout not in (None, "accelerate", "hasten"):
            raise UsageError(f"[python] Accelerator.save_state(layout={layout!r}): it can be accelerate or hasten.")
        if layout is None and self._plan:
            layout = self._plan.layout
        if not background and layout != "hasten":
            return super().save_state(output_dir, safe_serialization, **named)
        if layout == "accelerate":
            raise UsageError("[python] Accelerator.save_state(background=True) writes the engine's folder. Leave layout out.")
        return self._require_trainer("save_state").save_state(self._folder(output_dir), background, "hasten")

    def load_state(self, input_dir=None, load_kwargs=None, **named):
        if input_dir is None or not os.path.isfile(os.path.join(input_dir, _MANIFEST)):
            return super().load_state(input_dir, load_kwargs, **named)
        self._require_trainer("load_state").load_state(os.fspath(input_dir), True)

    def _require_trainer(self, call):
        if self._trainer is None:
            raise UsageError(f"[python] Accelerator.{call}: no model is prepared. Call prepare with it first.")
        if not self.__dict__.setdefault("_is_registered", False):
            self._trainer.register_state("accelerate", self._python_state, self._load_python_state)
            self._is_registered = True
        return self._trainer

    def _folder(self, output_dir):
        if output_dir is not None:
            return os.path.expanduser(os.fspath(output_dir))
        if not self.project_configuration.automatic_checkpoint_naming:
            raise UsageError("[python] Accelerator.save_state: no folder is given, and naming is not automatic "
                             "(ProjectConfiguration.automatic_checkpoint_naming).")
        folder = os.path.join(self.project_dir, "checkpoints", f"checkpoint_{self.save_iteration}")
        self.project_configuration.iteration += 1
        return folder

    def _python_state(self):
        state = {"step": self.step}
        for name, objects in (("schedulers", self._schedulers), ("objects", self._custom_objects)):
            state[name] = {str(i): _plain(each.state_dict()) for i, each in enumerate(objects)}
        state["options"] = {str(i): _plain(twin.options(plain)) for i, (plain, twin) in enumerate(self._twins())}
        return state

    def _twins(self):
        plain = [prepared.optimizer for prepared in self._optimizers]
        return [(each, each._hasten_twin) for each in plain if hasattr(each, "_hasten_twin")]

    def _load_python_state(self, state):
        self.step = state["step"]
        for name, objects in (("schedulers", self._schedulers), ("objects", self._custom_objects)):
            saved = state.get(name, {})
            if len(saved) != len(objects):
                raise UsageError(f"[python] Accelerator.load_state: the folder has {len(saved)} {name}, and {len(objects)} are "
                                 "prepared or registered. Prepare and register the same ones.")
            for i, each in enumerate(objects):
                each.load_state_dict(saved[str(i)])
        for i, (plain, twin) in enumerate(self._twins()):
            twin.load_options(plain, state["options"][str(i)])


class JournalTracker(GeneralTracker):
    """hasten.Tracker for Accelerate's log_with: Accelerator(log_with=JournalTracker(["tensorboard"], "runs", project="mnist")).

    Takes hasten.Tracker's arguments; the config is that of init_trackers.
    """

    name, requires_logging_directory, main_process_only = "hasten", False, True

    def __init__(self, log_with, folder="runs", *, project="run", init_kwargs=None):
        super().__init__()
        self._make = lambda config: tracking.Tracker(log_with, folder, project=project, config=config, init_kwargs=init_kwargs)
        self._tracker = None

    @property
    def tracker(self):
        """The hasten.Tracker; made by the first value, or by init_trackers with a config."""
        if self._tracker is None:
            self._tracker = self._make(None)
        return self._tracker

    def start(self):
        pass

    def store_init_configuration(self, values):
        if self._tracker is None:
            self._tracker = self._make(dict(values))

    def log(self, values, step=None, **_):
        self.tracker.log(values, step)

    def finish(self):
        if self._tracker is not None:
            self._tracker.finish()


def _plain(value):
    """A state without what is no number, text, tensor or container of them, as functions of LambdaLR are."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if _has_form(item)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value if _has_form(item)]
    return value


def _has_form(value):
    return value is None or isinstance(value, (bool, int, float, str, dict, list, tuple, torch.Tensor))

"""FSDP's and DeepSpeed's plugins of Accelerate on CPUs, as options of hasten.distribute and of Accelerate itself.

Accelerate leaves an FSDP plugin out on CPUs, without a word. hasten.Accelerator takes what the plugin splits, offloads and
clips, and refuses by name what the engine has no part for.
"""
import dataclasses
import json
import math
import os
import re

from hasten.errors import UsageError


@dataclasses.dataclass
class Plan:
    """What a plugin comes to. options: those of distribute for a model. arguments: those of Accelerate's class."""

    options: object
    arguments: dict
    clips_to: float = None
    layout: str = "accelerate"


def _refuse(plugin, setting, remedy):
    raise UsageError(f"[python] {plugin}({setting}): hasten.Accelerator has no such thing on CPUs. {remedy}")


def _asked_for(name):
    return os.environ.get(name, "false").lower() in ("1", "true", "yes", "y", "on", "t")


def plan_for(given, is_cpu):
    """Takes the plugins out of an Accelerator's arguments, or out of the launcher's variables, and plans with one of them.

    Returns None where there is none, or no CPU: the plugin is Accelerate's then. Raises UsageError naming the setting.
    """
    if not is_cpu:
        return None
    fsdp, deepspeed = given.get("fsdp_plugin"), given.get("deepspeed_plugin") or given.get("deepspeed_plugins")
    wants_fsdp = fsdp is not None or _asked_for("ACCELERATE_USE_FSDP")
    wants_deepspeed = deepspeed is not None or _asked_for("ACCELERATE_USE_DEEPSPEED")
    if wants_fsdp and wants_deepspeed:
        raise UsageError("[python] Accelerator: settings of FSDP and of DeepSpeed are both given (arguments, or ACCELERATE_USE_FSDP "
                         "and ACCELERATE_USE_DEEPSPEED). Use one of them.")
    if not wants_fsdp and not wants_deepspeed:
        return None
    for name in ("fsdp_plugin", "deepspeed_plugin", "deepspeed_plugins"):
        given.pop(name, None)
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin

    if wants_fsdp:
        return _of_fsdp(fsdp or FullyShardedDataParallelPlugin(), given)
    return _of_deepspeed(deepspeed or DeepSpeedPlugin(), given)


# ---- FSDP.


def _enum(value):
    return getattr(value, "name", value)


def _dtype(value):
    return None if value is None else str(value).removeprefix("torch.")


def _ignored(plugin, model):
    asked = plugin.ignored_modules
    if not asked:
        return []
    named = [(name, module) for name, module in model.named_modules() if name]
    if isinstance(asked, str):
        return [name for name, _ in named if re.fullmatch(asked, name)]
    wanted = {id(module) for module in asked}
    return [name for name, module in named if id(module) in wanted]


def _wrapping(plugin, model):
    from torch.distributed.fsdp import wrap

    policy = plugin.auto_wrap_policy
    if policy is None:
        return {}
    if policy is wrap.size_based_auto_wrap_policy:
        return {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": plugin.min_num_params or 0}
    if policy is wrap.transformer_auto_wrap_policy:
        names = plugin.transformer_cls_names_to_wrap or list(getattr(model, "_no_split_modules", None) or [])
        present = {type(module).__name__ for module in model.modules()}
        missing = [name for name in names if name not in present]
        if missing or not names:
            raise UsageError(f"[python] FSDP(transformer_cls_names_to_wrap={names}): {type(model).__name__} has no module of "
                             f"{missing or 'a class that is named there'}. Name classes of its layers.")
        return {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_cls_names_to_wrap": names}
    _refuse("FSDP", "auto_wrap_policy=a function", "Use transformer_based_wrap, size_based_wrap or no_wrap.")


def _check_fsdp(plugin):
    if plugin.activation_checkpointing:
        _refuse("FSDP", "activation_checkpointing=True",
                "Call model.gradient_checkpointing_enable(), or torch.utils.checkpoint in its forward.")
    if plugin.cpu_ram_efficient_loading:
        _refuse("FSDP", "cpu_ram_efficient_loading=True", "Leave it out: each rank loads, and split parameters are kept once a host.")
    if plugin.param_init_fn is not None:
        _refuse("FSDP", "param_init_fn", "Give the model values before prepare (to_empty).")
    if _enum(plugin.state_dict_type) == "LOCAL_STATE_DICT":
        _refuse("FSDP", "state_dict_type=LOCAL_STATE_DICT", "Use SHARDED_STATE_DICT or FULL_STATE_DICT.")


def _precision(plugin, given, options):
    """The policy's dtypes: autocast's, which is Accelerate's mixed_precision, and that of the exchange."""
    policy = plugin.mixed_precision_policy
    dtypes = {name: _dtype(getattr(policy, name, None)) for name in ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")}
    wanted = {"bfloat16": "bf16", "float16": "fp16", "float32": "no", None: None}.get(dtypes["param_dtype"], "")
    asked = given.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION")
    asked = None if asked == "no" and wanted else asked
    if wanted == "" or (asked and wanted and asked != wanted):
        _refuse("FSDP", f"mixed_precision_policy with param_dtype {dtypes['param_dtype']}, beside mixed_precision={asked}",
                "Give both the same dtype: bf16 or fp16.")
    for name in ("buffer_dtype", "output_dtype"):
        if dtypes[name] not in (None, dtypes["param_dtype"]):
            _refuse("FSDP", f"mixed_precision_policy with {name} {dtypes[name]}", "Leave it out, or give it the dtype of param_dtype.")
    if dtypes["reduce_dtype"] in ("bfloat16", "float16"):
        options["communication_dtype"] = dtypes["reduce_dtype"]
    precision = asked or wanted
    return precision, {"bf16": "bfloat16", "fp16": "float16"}.get(precision)


def _of_fsdp(plugin, given):
    _check_fsdp(plugin)
    options = {}
    precision, param_dtype = _precision(plugin, given, options)
    strategy = plugin.sharding_strategy if plugin.sharding_strategy is not None else plugin.reshard_after_forward
    settings = {"fsdp_version": plugin.fsdp_version, "limit_all_gathers": plugin.limit_all_gathers,
                "forward_prefetch": plugin.forward_prefetch, "backward_prefetch": _enum(plugin.backward_prefetch),
                "param_dtype": param_dtype}
    settings["reshard_after_forward" if plugin.fsdp_version == 2 else "sharding_strategy"] = (
        plugin.reshard_after_forward if plugin.fsdp_version == 2 else _enum(strategy))

    def for_model(model):
        own = {**settings, **_wrapping(plugin, model), "ignored_modules": _ignored(plugin, model)}
        return {**options, "fsdp": json.dumps({name: value for name, value in own.items() if value is not None})}

    sharded = _enum(plugin.state_dict_type) == "SHARDED_STATE_DICT"
    return Plan(for_model, {"mixed_precision": precision} if precision else {}, layout="hasten" if sharded else "accelerate")


# ---- DeepSpeed.


def _is_set(value):
    return value is not None and value != "auto" and not (isinstance(value, float) and math.isinf(value))


def _settings_of(config):
    """The configuration without what is for Accelerate to fill in."""
    if isinstance(config, dict):
        return {name: _settings_of(value) for name, value in config.items() if _is_set(value)}
    return config


def _of_deepspeed(plugin, given):
    if isinstance(plugin, dict):
        _refuse("DeepSpeed", f"plugins {', '.join(plugin)}", "Give one plugin.")
    if plugin.enable_msamp:
        _refuse("DeepSpeed", "enable_msamp=True", "Use mixed_precision='bf16'.")
    config = _settings_of(plugin.deepspeed_config)
    for section, remedy in (("optimizer", "Make the optimizer in the program, and prepare it."),
                            ("scheduler", "Make the scheduler in the program, and prepare it."), ("msamp", "Leave it out.")):
        if section in config:
            _refuse("DeepSpeed", f"configuration with '{section}'", remedy)
    arguments = {}
    steps = config.get("gradient_accumulation_steps")
    if _is_set(steps):
        asked = given.get("gradient_accumulation_steps", 1)
        if asked not in (1, steps):
            raise UsageError(f"[python] Accelerator(gradient_accumulation_steps={asked}): DeepSpeed's configuration has {steps}. Give "
                             "both the same number.")
        arguments["gradient_accumulation_steps"] = steps
    for section, precision in (("bf16", "bf16"), ("fp16", "fp16")):
        if config.get(section, {}).get("enabled"):
            if given.get("mixed_precision") not in (None, precision):
                raise UsageError(f"[python] Accelerator(mixed_precision={given['mixed_precision']!r}): DeepSpeed's configuration has "
                                 f"{section}.enabled. Give both the same precision.")
            arguments["mixed_precision"] = precision
    clips_to = config.pop("gradient_clipping", None)
    text = json.dumps(config)
    return Plan(lambda model: {"deepspeed": text}, arguments, clips_to=float(clips_to) if clips_to else None)

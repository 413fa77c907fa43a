"""Sections of a DeepSpeed configuration: what it refuses in them, and their values as it takes them.

References
----------
DeepSpeed pull requests 8167 and 8168: tensor parallelism of its own under ZeRO-3, since 0.19.4.
DeepSpeed 0.19: ``runtime/config.py`` (keys that were removed, ``_do_error_check``), ``runtime/config_utils.py``
("auto" stands for the default), ``runtime/zero/config.py``, ``runtime/zero/offload_config.py``,
``runtime/precision_config.py``.
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from hardware.package_table import package_table
from planner.ingest.options import Fault, near_key
from planner.rules.table import Found

ZERO: Final = "zero_optimization"
MOST_STAGE: Final = 3
_AUTOTP_SHARDED: Final = (0, 19, 4)
_PLAIN_REPLICAS: Final = (0, 17, 6)
"""Without ZeRO, gradients are summed in the format that is computed in (pull request 7515)."""
_OLD_FORMATS: Final = MappingProxyType({"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"})
_AUTO: Final = "auto"
_STRICT: Final = "strict "
_DEVICES: Final = ("none", "cpu", "nvme")
_ON: Final = ("true", "t", "yes", "y", "on", "1")
_OFF: Final = ("false", "f", "no", "n", "off", "0")
_OLDER: Final = MappingProxyType({"bf16": "bfloat16"})
_REDUCE: Final = "gradient_allreduce_op"
_REDUCTIONS: Final = ("mean", "sum")
_TYPES: Final = ("fp16", "bf16", "fp32")
_OPTIONAL: Final = (
    *("overlap_comm", "zenflow", "offload_param", "offload_optimizer", "nvme_path"),
    *("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"),
)


def key_table() -> Mapping[str, Any]:
    """Keys that DeepSpeed reads, and options of Megatron-DeepSpeed."""
    return package_table("planner.ingest.deepspeed", "keys.toml")


def section_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Values of a section that state something; what is no section is empty (it is a fault), as is "auto".

    ``zero_optimization: true``, an old form, is stage 1; ``bf16`` has an older name.
    """
    value = given_section(config, name)
    if name == ZERO and isinstance(value, bool):
        return {"stage": int(value)}
    return {key: held for key, held in value.items() if held != _AUTO} if isinstance(value, dict) else {}


def given_section(config: Mapping[str, Any], name: str) -> Any:
    """What stands in the place of a section, under its name or its older one."""
    if config.get(name) is None and name in _OLDER:
        return config.get(_OLDER[name], {})
    return config.get(name, {})


def switched(section: Mapping[str, Any], name: str) -> bool:
    """Whether a switch of a section is on: ``true``, 1, or a word for it."""
    value = section.get(name, False)
    return value == 1 if isinstance(value, int | float) else str(value).lower() in _ON


def stage_of(config: Mapping[str, Any]) -> int:
    """ZeRO stage; 0 where none is stated or what is stated is none."""
    value = section_of(config, ZERO).get("stage", 0)
    return int(value) if _fits(value, "stage") else 0


def offloaded(config: Mapping[str, Any], part: str) -> bool:
    """Whether ``optimizer`` or ``param`` lies in the host's memory or on its disks."""
    zero = section_of(config, ZERO)
    section = zero.get(f"offload_{part}")
    old = "cpu_offload" if part == "optimizer" else "cpu_offload_param"
    device = section.get("device", "none") if isinstance(section, dict) else "none"
    return device in ("cpu", "nvme") or switched(zero, old)


def config_faults(config: Mapping[str, Any]) -> tuple[Fault, ...]:
    """What DeepSpeed refuses in a configuration, but for its batch.

    Parameters
    ----------
    config : mapping
        The decoded JSON.
    """
    table = key_table()
    gone = "was removed from DeepSpeed 0.19; allowed: without it"
    found = [_fault(key, f"{key} {gone}") for key in table["removed"] if key in config]
    zero = config.get(ZERO, {})
    for key in table["removed_of_zero"] if isinstance(zero, dict) else ():
        found += [_fault(f"{ZERO}.{key}", f"{ZERO}: {key} {gone}")] if key in zero else []
    for key in table["objects"]:
        if key in config and not isinstance(config[key], dict):
            found.append(_fault(key, f"{key}: {type(config[key]).__name__} instead of an object; allowed: an object"))
    for name in (ZERO, "bf16", "fp16"):
        found += _section_faults(config, name)
    return (*found, *_conflicts(config))


def faults_of_version(config: Mapping[str, Any], version: str) -> tuple[Fault, ...]:
    """What depends on the release: refused by it in a configuration that another one takes.

    Parameters
    ----------
    config : mapping
        The decoded JSON.
    version : str
        Release, whose last number may be left out: then it is the last of its kind.
    """
    degree = section_of(config, "tensor_parallel").get("autotp_size", 1)
    many = isinstance(degree, int) and degree > 1
    faults = _unlike_sums(config, version)
    if not many or stage_of(config) < MOST_STAGE or _release(version) >= _AUTOTP_SHARDED:
        return faults
    told = f"autotp_size {degree} with ZeRO stage {MOST_STAGE} on DeepSpeed {version}"
    since = ".".join(map(str, _AUTOTP_SHARDED))
    allowed = f"ZeRO 0 to 2, autotp_size 1, or DeepSpeed {since} and later"
    return (*faults, _fault("tensor_parallel.autotp_size", f"{told}; allowed: {allowed}", "autotp-zero3"))


def summed_in(config: Mapping[str, Any]) -> str:
    """The format that gradients are summed in, as a configuration tells it; empty: it does not."""
    told = config.get("data_types")
    name = told.get("grad_accum_dtype") if isinstance(told, dict) else None
    return _OLD_FORMATS.get(name, name) if isinstance(name, str) else ""


def copies_gradients(config: Mapping[str, Any], version: str) -> bool:
    """Whether ``BF16_Optimizer`` sums the gradients of a launch in bf16 in fp32, as copies of its own.

    Under ZeRO-1 where fp32 is told and nothing is offloaded; without ZeRO until 0.17.5, unless bf16 is told.

    References
    ----------
    DeepSpeed ``runtime/engine.py``, ``get_data_types`` and ``_do_optimizer_sanity_check``; pull requests 2706 and 7515.
    """
    stage, told = stage_of(config), summed_in(config)
    if stage == 1:
        return told == "fp32" and not offloaded(config, "optimizer")
    return stage == 0 and told in ("", "fp32") and _release(version) < _PLAIN_REPLICAS


def _unlike_sums(config: Mapping[str, Any], version: str) -> tuple[Fault, ...]:
    """Gradients of a launch without ZeRO that are summed in another format than it computes in, since 0.17.6."""
    told = summed_in(config)
    computed = next((name for name in ("bf16", "fp16") if switched(section_of(config, name), "enabled")), "fp32")
    if stage_of(config) or told in ("", computed) or told not in _TYPES or _release(version) < _PLAIN_REPLICAS:
        return ()
    message = f"grad_accum_dtype {told} without ZeRO in {computed}; allowed: {computed}, or ZeRO 1 to 3"
    return (_fault("data_types.grad_accum_dtype", message),)


def _release(version: str) -> tuple[float, ...]:
    numbers = tuple(float(part) for part in version.split(".")[:3] if part.isdecimal())
    return (*numbers, math.inf) if len(numbers) < 3 else numbers


def _fault(argument: str, message: str, kind: str = "value", found: Found = Found.PARSE) -> Fault:
    return Fault(rule=f"deepspeed-{kind}", argument=argument, message=message, found=found)


def _section_faults(config: Mapping[str, Any], name: str) -> Iterator[Fault]:
    given = given_section(config, name)
    if isinstance(given, dict):
        yield from _value_faults(given, name, name)
    elif not (name == ZERO and isinstance(given, bool)):
        yield _fault(name, f"{name}: {type(given).__name__} instead of an object; allowed: an object")


def _value_faults(given: Mapping[str, Any], name: str, place: str) -> Iterator[Fault]:
    table = key_table()
    known = table["sections"][name]
    for key, value in given.items():
        where = f"{place}.{key}"
        if value == _AUTO or (name == ZERO and key in table["removed_of_zero"]):
            continue
        if key not in known:
            yield _fault(where, f"{place}: {key} is unknown{near_key(key, list(known))}", "unknown-key")
        elif value is None and key in _OPTIONAL:
            continue
        elif known[key] == "table" and key in table["sections"] and isinstance(value, dict):
            yield from _value_faults(value, key, where)
        elif not _fits(value, known[key]):
            yield _fault(where, f"{place}: {key} {value!r}; allowed: {_allowed(known[key])}")


def _allowed(kind: str) -> str:
    kind = kind.removeprefix(_STRICT)
    words = {
        "flag": "true or false",
        "stage": "0, 1, 2 or 3",
        "device": ", ".join(_DEVICES),
        "table": "an object",
        "text": "a text",
    }
    return words.get(kind) or f"a {kind.replace('whole', 'whole number')}"  # else "number" or "whole", with its range


def _fits(value: object, kind: str) -> bool:
    """Whether a value is one of a kind as pydantic takes them: texts of numbers and numbers of switches too."""
    if kind == "flag":
        return value in (0, 1) if isinstance(value, int | float) else str(value).lower() in (*_ON, *_OFF)
    if kind == "device":
        return value in _DEVICES
    if kind in ("table", "text"):
        return isinstance(value, dict if kind == "table" else str)
    number = None if kind.startswith(_STRICT) and isinstance(value, bool) else _number(value)
    kind = kind.removeprefix(_STRICT)
    if number is None or (not kind.startswith("number") and not _is_whole(value, number)):
        return False
    if kind == "stage":
        return 0 <= number <= MOST_STAGE
    words = kind.split()
    least = float(words[2]) if "from" in words else -math.inf
    most = float(words[4]) if "to" in words else math.inf
    return least <= number <= most


def _is_whole(value: object, number: float) -> bool:
    """Whether a value is a whole number; a text of one has digits alone, without an exponent."""
    return number.is_integer() and not (isinstance(value, str) and "e" in value)


def _number(value: object) -> float | None:
    """A number, also one that is written as a text; None for what is none."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _conflicts(config: Mapping[str, Any]) -> Iterator[Fault]:
    """Values that exclude each other."""
    stage, bf16, fp16 = stage_of(config), section_of(config, "bf16"), section_of(config, "fp16")
    zero = section_of(config, ZERO)
    if switched(bf16, "enabled") and switched(fp16, "enabled"):
        yield _fault("fp16.enabled", "bf16 and fp16 are both enabled; allowed: one of them")
    for section, name in ((fp16, "fp16_master_weights_and_grads"), (bf16, "bf16_master_weights_and_grads")):
        if switched(section, name) and not stage:
            yield _fault(name, f"{name} with ZeRO stage 0; allowed: ZeRO 1 to 3, or without it")
    if switched(bf16, "bf16_optimizer_states") and not (stage and switched(bf16, "bf16_master_weights_and_grads")):
        told = "bf16_optimizer_states needs ZeRO 1 to 3 and bf16_master_weights_and_grads"
        yield _fault("bf16_optimizer_states", told)
    if "compute_grad_norm" in zero and not switched(zero, "compute_grad_norm") and stage not in (1, 2):
        yield _fault("compute_grad_norm", f"compute_grad_norm false with ZeRO stage {stage}; allowed: ZeRO 1 or 2")
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if zero.get(old) is not None and zero.get(new) is not None:
            yield _fault(old, f"{ZERO}: {old} beside {new}; allowed: {new} alone")
    offload = zero.get("offload_optimizer")
    ratio = _number(offload.get("ratio", 1.0)) if isinstance(offload, dict) else None
    if ratio is not None and ratio < 1 and stage != MOST_STAGE:
        told = f"offload_optimizer: ratio {ratio:g} with ZeRO stage {stage}; allowed: ratio 1, or ZeRO 3"
        yield _fault("offload_optimizer.ratio", told)
    yield from _dynamic_scale(fp16)
    yield from _reductions(config, stage)
    yield from _disks(zero, stage)


def _disks(zero: Mapping[str, Any], stage: int) -> Iterator[Fault]:
    """Parts on disks without a folder there, which ZeRO-3 joins to others when the engine is built (``stage3.py``)."""
    for name in ("offload_param", "offload_optimizer") if stage == MOST_STAGE else ():
        part = zero.get(name)
        if isinstance(part, dict) and part.get("device") == "nvme" and not part.get("nvme_path"):
            told = f"{name}: device nvme without nvme_path; allowed: the path of a folder on the disk"
            yield _fault(f"{name}.nvme_path", told, found=Found.BUILD)


def overlaps(config: Mapping[str, Any]) -> bool | None:
    """Whether ZeRO reduces gradients beside the backward pass; None without it.

    Parameters
    ----------
    config : mapping
        The decoded JSON.

    References
    ----------
    DeepSpeed ``runtime/zero/config.py``: ``overlap_comm`` is on for stage 3 alone where it is not stated.
    """
    stage, told = stage_of(config), section_of(config, ZERO).get("overlap_comm")
    if not stage:
        return None
    return stage == MOST_STAGE if told is None else switched({"overlap_comm": told}, "overlap_comm")


def data_notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What of ``data_efficiency`` changes the work of a step and has no price: curricula and dropped tokens."""
    given = section_of(config, "data_efficiency")
    if not switched(given, "enabled"):
        return ()
    parts = {
        "data_sampling": ("curriculum_learning", "the curriculum begins with other samples, such as shorter ones"),
        "data_routing": ("random_ltd", "layers skip tokens at random"),
    }
    found = []
    for name, (key, what) in parts.items():
        section = section_of(given, name)
        if switched(section, "enabled") and switched(section_of(section, key), "enabled"):
            found.append(f"data_efficiency: {what}; every step is priced with whole sequences in every layer")
    return tuple(found)


def _dynamic_scale(fp16: Mapping[str, Any]) -> Iterator[Fault]:
    """Limits of a dynamic loss scale, which fp16 has unless it states one."""
    if switched(fp16, "enabled") and not _number(fp16.get("loss_scale", 0)):
        for name, default in (("loss_scale_window", 1000), ("min_loss_scale", 1)):
            value = _number(fp16.get(name, default))
            if value is not None and value < 1:
                yield _fault(f"fp16.{name}", f"fp16: {name} {value:g} with a dynamic loss scale; allowed: from 1")


def _reductions(config: Mapping[str, Any], stage: int) -> Iterator[Fault]:
    for name in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = config.get(name)
        if value is not None and str(value).lower() not in _TYPES:
            yield _fault(name, f"{name} {value!r}; allowed: {', '.join(_TYPES)}")
    operation = config.get(_REDUCE, "mean")
    operation = operation.lower() if isinstance(operation, str) else operation
    if operation not in _REDUCTIONS:
        yield _fault(_REDUCE, f"{_REDUCE} {operation!r}; allowed: {', '.join(_REDUCTIONS)}")
    elif operation == "sum" and stage == MOST_STAGE:
        yield _fault(_REDUCE, f"{_REDUCE} sum with ZeRO stage 3; allowed: mean")

"""Launches by accelerate as what its plugins make of them: DeepSpeed's configuration, or PyTorch's FSDP or DDP.

FSDP and DDP are stated in the words of a DeepSpeed configuration, whose ZeRO stages shard the same: full sharding is
stage 3, sharding of gradients and optimizer alone stage 2.

References
----------
accelerate 1.15 ``utils/dataclasses.py`` (``DeepSpeedPlugin``, ``FullyShardedDataParallelPlugin``),
``parallelism_config.py``, ``utils/launch.py``; Hugging Face Transformers 5.12 ``trainer.py``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import MOST_RANKS, Fault, near_key
from planner.ingest.trainers.accelerate_settings import FSDP_PREFIX, accelerate_table
from planner.ingest.trainers.words import FALSE, TRUE, switched_on, told_options


class Engine(StrEnum):
    """What accelerate hands the model to."""

    DEEPSPEED = "DeepSpeed"
    FSDP = "FSDP"
    DDP = "DDP"
    MEGATRON = "Megatron-LM"


_ENGINES: Final = MappingProxyType(
    {
        "DEEPSPEED": Engine.DEEPSPEED,
        "FSDP": Engine.FSDP,
        "MEGATRON_LM": Engine.MEGATRON,
        "MULTI_GPU": Engine.DDP,
        "NO": Engine.DDP,
    }
)
_STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Sharding strategies of FSDP 1 in the order of their numbers."""
_STAGES: Final = MappingProxyType(dict(zip(_STRATEGIES, (3, 2, 0, 3, 2), strict=True)))
_PRECISIONS: Final = ("no", "fp16", "bf16", "fp8")
_SIZE: Final = "parallelism_config_{}_size"
_AXES: Final = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
_AUTO: Final = MappingProxyType(dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto"))
_STEPS: Final = "gradient_accumulation_steps"
_SYNC: Final = "--accelerator-config.gradient-accumulation-kwargs.sync-each-batch"
_BESIDE_FILE: Final = (
    *(_STEPS, "gradient_clipping", "zero_stage", "offload_optimizer_device", "offload_param_device"),
    *("offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
)
"""Keys of the section that accelerate refuses beside a file of DeepSpeed's, as it does ``mixed_precision``."""
_RECOMPUTE: Final = "--gradient-checkpointing"


@dataclass(frozen=True, kw_only=True)
class Accelerated:
    """What a launch by accelerate states.

    Attributes
    ----------
    engine : Engine
        Who shards the model.
    version : int
        Of FSDP.
    grid : bool
        FSDP can be told degrees of a grid.
    config : mapping
        The same as a configuration of DeepSpeed.
    words : tuple of str
        Options of the trainer that say what the settings say.
    shard_group : int
        Ranks that states are sharded over; 0: all replicas.
    sync_each_batch : bool
        Gradients that FSDP shards are reduced with every micro-batch, not their sum with the last.
    in_host : bool
        FSDP's parameters, with gradients and optimizer, lie in host memory.
    faults : tuple of Fault
        What accelerate, or the Trainer with it, refuses.
    ignored : tuple of str
        Keys of sections that accelerate does not read.
    notes : tuple of str
        What has no price.
    """

    engine: Engine
    config: Mapping[str, Any]
    version: int = 0
    grid: bool = False
    words: tuple[str, ...] = ()
    shard_group: int = 0
    in_host: bool = False
    sync_each_batch: bool = False
    faults: tuple[Fault, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Who runs the launch, in words."""
        return f"accelerate, {self.engine.value} {self.version}" if self.version else f"accelerate, {self.engine.value}"


def accelerated(text: LaunchText, world: int) -> Accelerated | None:
    """Read the settings of accelerate that a launch has; None for a launch without.

    Parameters
    ----------
    text : LaunchText
        Of a trainer.
    world : int
        Number of ranks.

    Raises
    ------
    InputError
        The kind of distribution is not known.
    """
    if text.accelerate is None:
        return None
    settings, kind = text.accelerate.values, text.accelerate.distribution
    if kind not in _ENGINES:
        allowed = ", ".join(_ENGINES)
        raise InputError(f"distributed_type {kind} has no reader here", allowed=allowed, where="accelerate")
    faults, ignored = _keys(settings)
    engine = _ENGINES[kind]
    if engine is Engine.DEEPSPEED:
        found = _deepspeed(settings, text)
    elif engine is Engine.FSDP:
        found = _fsdp(settings, text, world)
    else:
        found = Accelerated(engine=engine, config={**_AUTO, _STEPS: "auto", "zero_optimization": {"stage": 0}})
    precision, wrong = _precision(settings, found, text)
    return replace(
        found,
        config={**found.config, **precision},
        faults=(*faults, *found.faults, *wrong),
        ignored=ignored,
        notes=(*found.notes, *_unpriced(settings)),
    )


def with_accelerate(text: LaunchText, found: Accelerated | None) -> LaunchText:
    """The launch in the words of DeepSpeed's configuration and of the trainer's options."""
    if found is None:
        return text
    config = text.config or json.dumps(dict(found.config))
    return replace(text, config=config, arguments=(*text.arguments, *found.words))


def _fault(argument: str, message: str, kind: str = "value") -> Fault:
    return Fault(rule=f"accelerate-{kind}", argument=argument, message=message)


def _keys(settings: Mapping[str, Any]) -> tuple[list[Fault], tuple[str, ...]]:
    """Keys that accelerate refuses, and keys of sections that it ignores."""
    table = accelerate_table()
    refused = [
        _fault(key, f"accelerate refuses the key {key}{near_key(key, table['top_level'])}", "unknown-key")
        for key in settings
        if key not in table["top_level"]
    ]
    ignored = []
    for section, known in table["sections"].items():
        inner = settings.get(section) or {}
        for key in inner if isinstance(inner, dict) else ():
            named = key if section != "fsdp_config" or key.startswith(FSDP_PREFIX) else f"{FSDP_PREFIX}{key}"
            if named not in known:
                ignored.append(f"{section}.{key}{near_key(named, known)}")
    return refused, tuple(ignored)


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section, with the prefix that accelerate adds to FSDP's keys."""
    inner = settings.get(name)
    if not isinstance(inner, dict):
        return {}
    prefix = FSDP_PREFIX if name == "fsdp_config" else ""
    return {key if key.startswith(prefix) else f"{prefix}{key}": value for key, value in inner.items()}


def _on(section: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = section.get(name)
    return default if value is None else str(value).lower() in TRUE


def _whole(section: Mapping[str, Any], name: str, default: int, faults: list[Fault]) -> int:
    """A whole number from 1 of a section, written as a number or a text."""
    told = section.get(name, default)
    text = str(told)
    if isinstance(told, bool) or not text.isdecimal() or not 1 <= int(text[:9]) <= MOST_RANKS:
        faults.append(_fault(name, f"{name} {told!r}; allowed: a whole number from 1"))
        return default
    return int(text)


def _deepspeed(settings: Mapping[str, Any], text: LaunchText) -> Accelerated:
    """The configuration that accelerate's plugin builds, or the file that the section names."""
    section = _section(settings, "deepspeed_config")
    faults: list[Fault] = []
    sizes = _sizes(settings, faults)
    named = str(section.get("deepspeed_config_file") or "none")
    if named != "none":
        beside = [name for name in _BESIDE_FILE if name in section]
        beside += ["mixed_precision"] if settings.get("mixed_precision") is not None else []
        if beside:
            told = f"{', '.join(beside)} beside deepspeed_config_file; allowed: them in that file alone"
            faults.append(_fault(beside[0], told))
        if not text.config:
            raise InputError(
                f"{named} is not found", allowed="the file beside the launch", where="deepspeed_config_file"
            )
        return Accelerated(engine=Engine.DEEPSPEED, config={}, faults=tuple(faults))
    steps = section.get(_STEPS, "auto")
    config: dict[str, Any] = {**_AUTO, _STEPS: int(steps) if str(steps).isdecimal() else steps}
    zero: dict[str, Any] = {"stage": section.get("zero_stage", 2)}
    for part in ("optimizer", "param"):
        zero[f"offload_{part}"] = {"device": section.get(f"offload_{part}_device") or "none"}
    config["zero_optimization"] = zero
    if sizes["sp"] > 1:
        config["sequence_parallel_size"] = sizes["sp"]
    others = [axis for axis in _AXES[:-1] if sizes[axis] > 1]
    if others:
        faults.append(_fault("parallelism_config", f"{', '.join(others)} with DeepSpeed; allowed: sp, or FSDP 2"))
    own = told_options(text.arguments).get("--gradient-accumulation-steps", "")
    if str(steps).isdecimal() and own.isdecimal() and int(own) != int(steps):
        told = f"{_STEPS} {steps} in the settings of accelerate, {own} in the Trainer's options; allowed: one number"
        faults.append(_fault(_STEPS, told))
    return Accelerated(engine=Engine.DEEPSPEED, config=config, faults=tuple(faults))


def _sizes(settings: Mapping[str, Any], faults: list[Fault]) -> dict[str, int]:
    """Degrees of ``parallelism_config``; 1 where it says nothing."""
    section = _section(settings, "parallelism_config")
    return {axis: _whole(section, _SIZE.format(axis), 1, faults) for axis in _AXES}


def _fsdp(settings: Mapping[str, Any], text: LaunchText, world: int) -> Accelerated:
    section = _section(settings, "fsdp_config")
    faults: list[Fault] = []
    version = _whole(section, "fsdp_version", 1, faults)
    if version not in (1, 2):
        faults.append(_fault("fsdp_version", f"fsdp_version {version}; allowed: 1, 2"))
    stage, group = _newer(section, faults) if version == 2 else _older(section, settings, world, faults)
    sizes = _sizes(settings, faults)
    if settings.get("parallelism_config"):
        faults += _grid_faults(sizes, version, world)
        if sizes["dp_replicate"] > 1 and sizes["dp_shard"] * sizes["cp"] > 1:
            group = sizes["dp_shard"] * sizes["cp"]
        elif sizes["dp_shard"] * sizes["cp"] == 1:
            stage = 0  # replicas alone
    faults += _switch_faults(section, version, text)
    config = {
        **_AUTO,
        _STEPS: "auto",
        "zero_optimization": {"stage": stage},
        "tensor_parallel": {"autotp_size": sizes["tp"]},
        "sequence_parallel_size": sizes["cp"],
    }
    checkpointing = _on(section, "fsdp_activation_checkpointing")
    return Accelerated(
        engine=Engine.FSDP,
        version=version,
        grid=version == 2 and text.accelerate is not None and text.accelerate.grid,
        config=config,
        words=(_RECOMPUTE,) if checkpointing else (),
        shard_group=group if stage else 0,
        in_host=_on(section, "fsdp_offload_params"),
        sync_each_batch=switched_on(told_options(text.arguments), _SYNC),
        faults=tuple(faults),
        notes=tuple(_fsdp_notes(section)),
    )


def _newer(section: Mapping[str, Any], faults: list[Fault]) -> tuple[int, int]:
    """Stage and group of FSDP 2, which gathers weights again backward unless told otherwise."""
    told = str(section.get("fsdp_reshard_after_forward", "true")).lower()
    if told not in (*TRUE, *FALSE):
        faults.append(
            _fault("fsdp_reshard_after_forward", f"fsdp_reshard_after_forward {told}; allowed with FSDP 2: true, false")
        )
    return (2 if told in FALSE else 3), 0


def _older(section: Mapping[str, Any], settings: Mapping[str, Any], world: int, faults: list[Fault]) -> tuple[int, int]:
    """Stage and group of FSDP 1, whose hybrid strategies shard within a machine."""
    told = str(section.get("fsdp_sharding_strategy", _STRATEGIES[0])).upper()
    if told.isdecimal() and 1 <= int(told[:2]) <= len(_STRATEGIES):
        told = _STRATEGIES[int(told) - 1]
    if told not in _STAGES:
        faults.append(
            _fault("fsdp_sharding_strategy", f"fsdp_sharding_strategy {told}; allowed: {', '.join(_STRATEGIES)}")
        )
        return 3, 0
    machines = _whole(settings, "num_machines", 1, faults)
    return _STAGES[told], world // machines if told.startswith("HYBRID") and machines > 1 else 0


def _grid_faults(sizes: Mapping[str, int], version: int, world: int) -> Iterator[Fault]:
    """What ``ParallelismConfig`` and the launcher refuse."""
    name = "parallelism_config"
    product = 1
    for size in sizes.values():
        product *= size
    told = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    if version == 1:
        yield _fault(name, f"{name} with FSDP 1; allowed: fsdp_version 2")
    if sizes["sp"] > 1:
        yield _fault(name, f"sp {sizes['sp']} with FSDP; allowed: cp, or sp with DeepSpeed")
    if product != world:
        yield _fault(name, f"{told} is {product}, the launch has {world} processes; allowed: a product of {world}")
    if max(sizes["tp"], sizes["cp"]) > 1 and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1:
        yield _fault(
            name, f"{told}: tp or cp beside replicas without shards; allowed: dp_shard above 1, or no replicas"
        )


def _switch_faults(section: Mapping[str, Any], version: int, text: LaunchText) -> Iterator[Fault]:
    checkpointing = _on(section, "fsdp_activation_checkpointing")
    if checkpointing and switched_on(told_options(text.arguments), _RECOMPUTE):
        told = f"fsdp_activation_checkpointing beside {_RECOMPUTE}: the Trainer refuses both; allowed: one of them"
        yield _fault("fsdp_activation_checkpointing", told)
    offload = "fsdp_activation_checkpointing_offload"
    if _on(section, offload) and not (checkpointing and version == 2):
        yield _fault(offload, f"{offload} needs fsdp_activation_checkpointing and fsdp_version 2")
    loading = "fsdp_cpu_ram_efficient_loading"
    if _on(section, loading, default=True) and not _on(section, "fsdp_sync_module_states", default=True):
        yield _fault(loading, f"{loading} without fsdp_sync_module_states; allowed: both, or neither")


def _fsdp_notes(section: Mapping[str, Any]) -> Iterator[str]:
    policy = str(section.get("fsdp_auto_wrap_policy", "NO_WRAP")).upper()
    if policy == "NO_WRAP":
        yield "no wrapping policy: FSDP gathers the whole model at once, priced is a gather for each layer"
    elif policy == "SIZE_BASED_WRAP":
        yield "SIZE_BASED_WRAP: units of a size of parameters are priced as layers"
    if _on(section, "fsdp_activation_checkpointing_offload"):
        yield "fsdp_activation_checkpointing_offload has no price here: inputs of layers are priced on the GPUs"


def _precision(
    settings: Mapping[str, Any], found: Accelerated, text: LaunchText
) -> tuple[Mapping[str, Any], list[Fault]]:
    """Sections of 16 bits: the Trainer's own switch wins over the settings."""
    told = settings.get("mixed_precision") or ("fp16" if settings.get("fp16") else "no")
    told = "no" if told is False else str(told).lower()  # YAML reads a bare `no` as false
    faults = []
    if told not in _PRECISIONS:
        faults = [_fault("mixed_precision", f"mixed_precision {told}; allowed: {', '.join(_PRECISIONS)}")]
    if not found.config:
        return {}, faults
    own = told_options(text.arguments)
    named = next((name for name in ("fp16", "bf16") if switched_on(own, f"--{name}")), "")
    half = named or ("bf16" if told == "fp8" else told)
    return {name: {"enabled": half == name} for name in ("bf16", "fp16")}, faults


def _unpriced(settings: Mapping[str, Any]) -> Iterator[str]:
    if str(settings.get("mixed_precision")).lower() == "fp8":
        yield "mixed_precision fp8 of accelerate has no price here: it is priced as bf16"
    if settings.get("use_cpu") is True:
        yield "use_cpu: the launch trains on processors, which have no price here"


def refused(found: Accelerated | None, faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Faults of a launch, those of accelerate's settings first."""
    return (*(found.faults if found else ()), *faults)

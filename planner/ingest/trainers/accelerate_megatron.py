"""Launches of accelerate's Megatron-LM plugin as the flags of Megatron-LM that they stand for.

References
----------
accelerate 1.15 ``utils/dataclasses.py`` (``MegatronLMPlugin``: what it takes where the settings say nothing, a context
parallelism of 2 and whole recompute among it), ``utils/megatron_lm.py``: a step has ``num_micro_batches`` of them.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.judged import assumed_seq
from planner.ingest.launch_text import LaunchText
from planner.ingest.trainers.filled_in import preset_of_path
from planner.ingest.trainers.words import TRUE, told_options
from planner.rules.proposal import facts_of, replicas_of

_KIND: Final = "MEGATRON_LM"
_PREFIX: Final = "megatron_lm_"
_SECTION: Final = "megatron_lm_config"
_DEFAULTS: Final = MappingProxyType(
    {
        "tp_degree": 1,
        "pp_degree": 1,
        "context_parallel_size": 2,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
        "num_micro_batches": 1,
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
)
_NUMBERS: Final = MappingProxyType(
    {
        "tp_degree": "--tensor-model-parallel-size",
        "pp_degree": "--pipeline-model-parallel-size",
        "context_parallel_size": "--context-parallel-size",
        "decoder_last_pipeline_num_layers": "--decoder-last-pipeline-num-layers",
    }
)
_OF_EXPERTS: Final = MappingProxyType(
    {
        "expert_model_parallel_size": "--expert-model-parallel-size",
        "expert_tensor_parallel_size": "--expert-tensor-parallel-size",
    }
)
_SWITCHES: Final = MappingProxyType(
    {
        "sequence_parallelism": "--sequence-parallel",
        "use_distributed_optimizer": "--use-distributed-optimizer",
        "optimizer_cpu_offload": "--optimizer-cpu-offload",
        "use_precision_aware_optimizer": "--use-precision-aware-optimizer",
    }
)
_MODEL: Final = ("--model-name-or-path", "--config-name", "--model")
_HALVES: Final = ("bf16", "fp16")
_MICRO: Final = "--micro-batch-size"
_SEQ: Final = "--seq-length"


def by_plugin(text: LaunchText) -> bool:
    """Whether settings of accelerate hand the model to Megatron-LM."""
    return text.accelerate is not None and text.accelerate.distribution == _KIND


def of_plugin(text: LaunchText, world: int, model: ModelSpec | None) -> tuple[LaunchText, ModelSpec | None]:
    """A launch in Megatron-LM's flags, and the model that it names.

    Parameters
    ----------
    text : LaunchText
        With settings of accelerate.
    world : int
        Number of ranks.
    model : ModelSpec or None
        As the user names it; None: as the launch does.

    Raises
    ------
    InputError
        The micro-batch is not stated.
    """
    settings = text.accelerate.values if text.accelerate else {}
    inner = settings.get(_SECTION)
    section: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    told: dict[str, Any] = {**_DEFAULTS, **{key.removeprefix(_PREFIX): value for key, value in section.items()}}
    own = told_options(text.arguments)
    spellings = key_table()["spellings"]
    known = {str(spellings.get(name, name)): value for name, value in own.items()}
    found = model or next((named for name in _MODEL if (named := preset_of_path(own.get(name, "")))), None)
    if not known.get(_MICRO, "").isdecimal():
        raise InputError("the micro-batch is not stated", allowed="--per_device_train_batch_size N behind the settings")
    degrees = [int(told[name]) if str(told[name]).isdecimal() else 0 for name in list(_NUMBERS)[:3]]
    replicas = replicas_of(world, degrees[0], degrees[2], degrees[1]) if all(degrees) else 1
    steps = int(told["num_micro_batches"]) if str(told["num_micro_batches"]).isdecimal() else 1
    words = [_MICRO, known[_MICRO], "--global-batch-size", str(int(known[_MICRO]) * steps * max(1, replicas))]
    seq = known.get(_SEQ) or str(assumed_seq(found))
    words += [_SEQ, seq]
    numbers = {**_NUMBERS, **(_OF_EXPERTS if found and facts_of(found).experts else {})}
    for name, flag in numbers.items():
        words += [flag, str(told[name])] if told.get(name) is not None else []
    words += [flag for name, flag in _SWITCHES.items() if str(told.get(name)).lower() in TRUE]
    words += _recompute(told)
    half = str(settings.get("mixed_precision")).lower()
    words += [f"--{half}"] if half in _HALVES else []
    unstated = (
        () if known.get(_SEQ) else (f"the launch states no sequence: {seq} tokens are assumed; {_SEQ} states it",)
    )
    notes = (*text.notes, *_filled(section), *unstated)
    return replace(text, arguments=tuple(words), program="", environment=None, notes=notes), found


def _recompute(told: Mapping[str, Any]) -> list[str]:
    if str(told["recompute_granularity"]) == "selective":
        return ["--recompute-granularity", "selective"]
    return [
        *("--recompute-granularity", str(told["recompute_granularity"])),
        *("--recompute-method", str(told["recompute_method"])),
        *("--recompute-num-layers", str(told["recompute_num_layers"])),
    ]


def _filled(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what the plugin fills in where a section leaves it out."""
    filled = ", ".join(f"{name} {value}" for name, value in _DEFAULTS.items() if f"{_PREFIX}{name}" not in section)
    return (f"accelerate's plugin fills in what the settings leave out: {filled}",) if filled else ()

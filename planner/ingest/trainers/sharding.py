"""How a trainer shards without DeepSpeed and without a file of accelerate's: its own options as accelerate's settings.

Hugging Face's Trainer hands ``--fsdp`` with ``--fsdp_config`` to accelerate's plugin of FSDP, and trains replicas
without them. Axolotl and LLaMA-Factory have the same keys; Axolotl has degrees of a grid beside them.

References
----------
Hugging Face Transformers 5.12 ``training_args.py`` (``_process_fsdp_args``, ``_apply_legacy_fsdp_to_config``). Axolotl
``src/axolotl/utils/schemas/fsdp.py``, ``config.py`` (``dp_shard_size``, ``tensor_parallel_size``), ``validation.py``
(``check_tensor_parallel_size_update_ds_json``, tied embeddings: pull request 2999).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault, whole
from planner.ingest.trainers.accelerate_settings import AccelerateSettings
from planner.ingest.trainers.filled_in import named_config
from planner.ingest.trainers.words import told_options, trains

_FSDP: Final = "--fsdp"
_SECTION: Final = "--fsdp-config."
_ACCELERATOR: Final = "--accelerator-config"
_NAMES_CONFIGURATION: Final = ("--deepspeed", "--deepspeed-config")
_STRATEGIES: Final = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard_zero2", "hybrid_shard")
_NEWEST: Final = "2"
_AXOLOTL: Final = "--base-model"
_WITH_DEGREES: Final = (_AXOLOTL, "--cp-size")
"""Options of trainers whose own options have degrees."""
_OF_MODEL: Final = (
    *("--base-model", "--model-name-or-path", "--model", "--plugins", "--adapter", "--finetuning-type", "--use-peft"),
    *("--train-type", "--tuner-type", "--sft-type", "--lora-r", "--lora-rank", "--lora-target", "--lora-target-linear"),
    *("--lora-target-modules", "--target-modules", "--load-in-4bit", "--load-in-8bit", "--quantization-bit"),
    *("--quant-bits",),
)
"""Options that say which model is trained, and what of it (:mod:`planner.ingest.adapters`)."""
_NONE: Final = ("", "none", "null", "false", "[]")
_SIZES: Final = MappingProxyType(
    {
        "tp": ("--tensor-parallel-size",),
        "cp": ("--context-parallel-size", "--sequence-parallel-degree", "--cp-size"),
        "dp_replicate": ("--dp-replicate-size",),
        "dp_shard": ("--dp-shard-size",),
    }
)
"""Degrees of Axolotl, and of LLaMA-Factory's version 1, by accelerate's name of the axis."""


def with_own_sharding(text: LaunchText, world: int) -> LaunchText:
    """A launch of a trainer with the settings of accelerate that its own options come to; any other as it is.

    Parameters
    ----------
    text : LaunchText
        Of a trainer, or of another program.
    world : int
        Number of ranks.
    """
    told = told_options(text.arguments)
    if text.config or text.accelerate or named_config(text) or not trains(text.program, told):
        return text
    section = _section(told)
    kind = "MULTI_GPU" if section is None else "FSDP"
    settings: dict[str, Any] = {"distributed_type": kind}
    if section is not None:
        settings |= {"fsdp_config": section, **_grid(told, world)}
    grid = any(name in told for name in _WITH_DEGREES)
    return replace(text, accelerate=AccelerateSettings(distribution=kind, values=settings, grid=grid))


def _section(told: Mapping[str, str]) -> Mapping[str, str] | None:
    """Settings of FSDP; None for replicas."""
    words = told.get(_FSDP, "").lower().strip("[]").replace(",", " ").split()
    inner = {_plain(name): value for name, value in told.items() if name.startswith(_SECTION)}
    if not (words or inner) or told.get(_FSDP, "true").lower() in _NONE:
        return None
    version = told.get("--fsdp-version") or inner.get("version") or _NEWEST
    section = {"fsdp_version": version, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    section["fsdp_cpu_ram_efficient_loading"] = "false"
    strategy = next((name for name in _STRATEGIES if name in words), "")
    strategy = strategy or inner.get("sharding_strategy", "").lower()
    if version == _NEWEST:
        gathered_again = inner.get("reshard_after_forward", "").lower()
        section["fsdp_reshard_after_forward"] = gathered_again or str(strategy != "shard_grad_op").lower()
    elif strategy:
        section["fsdp_sharding_strategy"] = strategy.upper()
    offloads = ("true" if "offload" in words else "", inner.get("cpu_offload", ""), inner.get("offload_params", ""))
    section["fsdp_offload_params"] = next(filter(None, offloads), "false")
    section["fsdp_activation_checkpointing"] = inner.get("activation_checkpointing", "false")
    return section


def _plain(name: str) -> str:
    """Key of the section without the prefix that it may have."""
    return name.removeprefix(_SECTION).replace("-", "_").removeprefix("fsdp_")


def _grid(told: Mapping[str, str], world: int) -> Mapping[str, Mapping[str, int]]:
    """Degrees of a grid, where a launch states any: shards over what the others leave unless it says how many."""
    sizes = {
        axis: next(filter(None, (whole(told.get(name, "")) for name in names)), 0) for axis, names in _SIZES.items()
    }
    if not any(sizes.values()):
        return {}
    others = max(1, sizes["tp"]) * max(1, sizes["cp"]) * max(1, sizes["dp_replicate"])
    sizes["dp_shard"] = sizes["dp_shard"] or max(1, world // others)
    return {"parallelism_config": {f"parallelism_config_{axis}_size": max(1, size) for axis, size in sizes.items()}}


def not_read(words: Sequence[str], unknown: Collection[str], other: Collection[str]) -> tuple[str, ...]:
    """Names of the options among words that say nothing here.

    Parameters
    ----------
    words : sequence of str
        Options with their values.
    unknown : collection of str
        Those that nobody knows, without dashes.
    other : collection of str
        Those that others read, with dashes alone.
    """
    names = (word.partition("=")[0] for word in words if word.startswith("--"))
    left = (name for name in names if not _reads(dashed := name.replace("_", "-")) and dashed not in other)
    return tuple(name for name in left if name.lstrip("-") not in unknown)


def _reads(name: str) -> bool:
    sizes = (option for options in _SIZES.values() for option in options)
    whole_names = (
        *_NAMES_CONFIGURATION,
        _FSDP,
        "--fsdp-version",
        "--fsdp-config",
        "--optim",
        "--optimizer",
        _ACCELERATOR,
        *sizes,
    )
    return name in (*whole_names, *_OF_MODEL) or name.startswith((_SECTION, f"{_ACCELERATOR}."))


def tied_over_tensors(arguments: Sequence[str], *, tied: bool) -> tuple[Fault, ...]:
    """What Axolotl refuses of a model whose output matrix is its embedding; empty where it takes the launch.

    Parameters
    ----------
    arguments : sequence of str
        Of the launch.
    tied : bool
        Whether the model's output matrix is its embedding.
    """
    told = told_options(arguments)
    degree = whole(told.get("--tensor-parallel-size", "")) or 1
    if not tied or degree < 2 or _AXOLOTL not in told:
        return ()
    message = f"tensor_parallel_size {degree} with tied embeddings; allowed: tensor_parallel_size 1 for this model"
    return (Fault(rule="axolotl-tied-tp", argument="tensor_parallel_size", message=message),)

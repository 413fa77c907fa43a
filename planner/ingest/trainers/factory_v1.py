"""Settings of LLaMA-Factory's version 1 as those of the version before, which are read.

References
----------
LLaMA-Factory ``src/llamafactory/v1``: ``config/training_args.py`` (defaults), ``config/model_args.py``
(``peft_config``), ``plugins/trainer_plugins/distributed`` (``dist_config``: fsdp2 shards over all ranks and gathers
again, deepspeed has a ``config_file``), ``plugins/model_plugins/peft.py`` (rank 8 beside all linear modules).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.trainers.words import told_options

SIGN: Final = "--dist-config.name"
"""An option that version 1 alone has."""
_PEFT: Final = "--peft-config.name"
_NAMES: Final = MappingProxyType(
    {
        "--model": "--model-name-or-path",
        "--micro-batch-size": "--per-device-train-batch-size",
        "--enable-activation-checkpointing": "--gradient-checkpointing",
        "--peft-config.r": "--lora-rank",
        "--peft-config.target-modules": "--lora-target",
        _PEFT: "--finetuning-type",
        "--dist-config.reshard-after-forward": "--fsdp-config.reshard-after-forward",
        "--dist-config.config-file": "--deepspeed",
    }
)
_DEFAULTS: Final = MappingProxyType(
    {"--per-device-train-batch-size": "1", "--gradient-checkpointing": "true", "--bf16": "true", "--cutoff-len": "2048"}
)
_SHARDED: Final = MappingProxyType({"--fsdp": "full_shard", "--fsdp-config.version": "2"})
_SECTIONS: Final = ("--dist-config.", "--peft-config.", "--kernel-config.", "--init-config.")


def of_factory_v1(words: Sequence[str]) -> tuple[str, ...]:
    """Options of LLaMA-Factory's version 1 as those that say the same in the version before; others as they are.

    Parameters
    ----------
    words : sequence of str
        ``--name=value``, as the settings of a YAML file are written out.

    Raises
    ------
    InputError
        Its kind of sharding is not read.
    """
    told = told_options(words)
    if SIGN not in told and _PEFT not in told:
        return tuple(words)
    renamed = {_NAMES.get(name, name): value for name, value in told.items()}
    found = {**_DEFAULTS, **renamed, **_sharding(told)}
    return tuple(
        f"{name}={value}" for name, value in found.items() if not name.startswith(_SECTIONS) and name != "--dist-config"
    )


def _sharding(told: Mapping[str, str]) -> Mapping[str, str]:
    kind = told.get(SIGN, "")
    if kind not in ("", "fsdp2", "deepspeed"):
        raise InputError(f"dist_config {kind} is not read", allowed="fsdp2 or deepspeed", where="dist_config.name")
    return _SHARDED if kind == "fsdp2" else {}

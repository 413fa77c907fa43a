"""OpenRLHF's trainers: their options as the configuration of DeepSpeed that they make of them.

Options have two forms: grouped since 0.9 (``--ds.zero_stage``), plain before (``--zero_stage``).

References
----------
OpenRLHF ``openrlhf/utils/deepspeed/deepspeed_utils.py`` (``get_train_ds_config``), ``deepspeed.py``
(``DeepspeedStrategy``), ``openrlhf/cli/train_sft.py``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault
from planner.ingest.trainers.words import switched_on, told_options

_PACKAGE: Final = "openrlhf"
_SIGNS: Final = (("--ds.zero-stage",), ("--pretrain", "--zero-stage"))
_STAGE: Final = ("--ds.zero-stage", "--zero-stage")
_MICRO: Final = ("--train.micro-batch-size", "--micro-train-batch-size")
_BATCH: Final = ("--train.batch-size", "--train-batch-size")
_DTYPE: Final = ("--ds.param-dtype", "--param-dtype")
_TENSOR: Final = ("--ds.tensor-parallel-size", "--ds-tensor-parallel-size")
_RING: Final = ("--ds.ring-attn-size", "--ring-attn-size")
_MODEL: Final = ("--model.model-name-or-path", "--actor.model-name-or-path", "--pretrain")
_LENGTH: Final = ("--data.max-len", "--max-len")
_RANK: Final = ("--ds.lora.rank", "--lora-rank")
_KEPT: Final = (("--ds.zpg", "--zpg"), "zero_hpz_partition_size")
_DEFAULT_LENGTH: Final = "2048"
OWN_NAMES: Final = tuple(
    name.lstrip("-").replace("-", "_")
    for names in (_STAGE, _MICRO, _BATCH, _DTYPE, _TENSOR, _RING, _MODEL, _LENGTH, _RANK)
    for name in names
)
"""Options that decide on a layout or its price, without dashes."""


def of_openrlhf(text: LaunchText) -> LaunchText:
    """A launch of OpenRLHF as one of a trainer with DeepSpeed's configuration; any other as it is.

    Parameters
    ----------
    text : LaunchText
        Of any program.
    """
    told = told_options(text.arguments)
    if text.config or not starts_openrlhf(text.program, told):
        return text
    words = {
        "--model-name-or-path": _first(told, _MODEL),
        "--seq-length": _first(told, _LENGTH, _DEFAULT_LENGTH),
        "--ds-sequence-parallel-size": _first(told, _RING),
    }
    if _on(told, "--model.gradient-checkpointing-enable", "--gradient-checkpointing"):
        words["--gradient-checkpointing"] = "true"
    if _on(told, "--ds.use-liger-kernel", "--use-liger-kernel"):
        words["--use-liger-kernel"] = "true"
    if (rank := _first(told, _RANK, "0")) != "0":
        words |= {"--finetuning-type": "lora", "--lora-rank": rank}
    notes = ["OpenRLHF makes DeepSpeed's configuration of its options"]
    if _first(told, _RING, "1") != "1":
        notes.append("its ring of attention is priced as an exchange of heads")
    return replace(
        text,
        arguments=tuple(f"{name}={value}" for name, value in words.items() if value),
        config=json.dumps(_config(told)),
        notes=(*text.notes, *notes),
    )


def openrlhf_faults(program: str, arguments: Sequence[str]) -> tuple[Fault, ...]:
    """What OpenRLHF itself refuses; nothing in a launch of another program."""
    told = told_options(arguments)
    kind = _first(told, _DTYPE, "bf16")
    degree = _first(told, _TENSOR, "1")
    if not starts_openrlhf(program, told) or degree == "1" or kind == "bf16":
        return ()
    message = f"tensor parallelism {degree} with parameters of {kind}; allowed: bf16"
    return (Fault(rule="openrlhf-tp-bf16", argument=_TENSOR[0], message=message),)


def starts_openrlhf(program: str, told: Mapping[str, str]) -> bool:
    """Whether a launch is OpenRLHF's, by its program, or by options of :func:`told_options` where it names none."""
    return program.startswith(_PACKAGE) or (not program and any(set(signs) <= told.keys() for signs in _SIGNS))


def _config(told: Mapping[str, str]) -> Mapping[str, Any]:
    kind = _first(told, _DTYPE, "bf16")
    zero: dict[str, Any] = {"stage": _whole(_first(told, _STAGE, "2"))}
    if _on(told, "--ds.adam-offload", "--adam-offload"):
        zero["offload_optimizer"] = {"device": "cpu"}
    names, key = _KEPT
    if (group := _whole(_first(told, names, "1"))) != 1:
        zero[key] = group
    config = {
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": _whole(_first(told, _MICRO, "8")),
        "train_batch_size": _whole(_first(told, _BATCH, "128")),
        "bf16": {"enabled": kind == "bf16"},
        "fp16": {"enabled": kind == "fp16"},
        "tensor_parallel": {"autotp_size": _whole(_first(told, _TENSOR, "1"))},
    }
    if summed := _first(told, ("--ds.grad-accum-dtype", "--grad-accum-dtype")):
        config["data_types"] = {"grad_accum_dtype": summed}
    return config


def _whole(value: str) -> int | str:
    """A number, or the text that is none, which DeepSpeed refuses."""
    return int(value) if value.isdecimal() else value


def _on(told: Mapping[str, str], *names: str) -> bool:
    return any(switched_on(told, name) for name in names)


def _first(told: Mapping[str, str], names: Sequence[str], default: str = "") -> str:
    return next((told[name] for name in names if told.get(name)), default)

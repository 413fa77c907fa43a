"""Launches of ms-swift's ``megatron sft`` and ``megatron pt`` as the flags of Megatron-LM that they stand for.

Its options are Megatron-LM's with underscores, switches are told ``true`` or ``false``, the model is named by a path.

References
----------
ms-swift ``swift/megatron/argument/megatron_args.py`` and its page on the parameters of Megatron-SWIFT. Where nothing is
said: a micro-batch of 1, a global batch of 16, bf16, the distributed optimizer, selective recompute, grouped GEMM, the
all-to-all dispatcher, no tensor parallelism of experts (Megatron-LM's own default is tp);
CUDA_DEVICE_MAX_CONNECTIONS is set to 1. ``swift/megatron/model/utils.py``: no fusion of biases with dropout where
experts have biases.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Option, whole
from planner.ingest.scripts.training_command import SWIFT
from planner.ingest.scripts.values import BLANK
from planner.ingest.trainers.filled_in import preset_of_path
from planner.ingest.trainers.words import switched_on, told_options
from planner.rules.proposal import facts_of

_MODEL: Final = ("--model", "--load", "--mcore-model", "--mcore-base-model")
_PATHS: Final = (*_MODEL, "--hf-checkpoint")
_DEFAULTS: Final = MappingProxyType(
    {
        "--micro-batch-size": "1",
        "--global-batch-size": "16",
        "--seq-length": "2048",
        "--recompute-granularity": "selective",
        "--use-distributed-optimizer": "true",
        "--bf16": "true",
    }
)
_OF_EXPERTS: Final = MappingProxyType(
    {
        "--moe-grouped-gemm": "true",
        "--moe-token-dispatcher-type": "alltoall",
        "--expert-tensor-parallel-size": "1",
    }
)
_NAMES: Final = MappingProxyType(
    {
        "--virtual-pipeline-model-parallel-size": "--num-virtual-stages-per-pipeline-rank",
        "--microbatch-group-size-per-vp-stage": "--microbatch-group-size-per-virtual-pipeline-stage",
        "--max-length": "--seq-length",
    }
)
"""Options of Megatron-LM that have another name here."""
_OTHER: Final = ("--loss-scale",)
"""Options that are Megatron-LM's by name alone: this one weighs the parts of a conversation."""
_GPUS: Final = "--train.gpus"
_TASK: Final = "--task-type"
_WITHOUT_HEAD: Final = ("embedding", "seq_cls", "reranker")
"""Tasks whose model has no matrix over the vocabulary at its end (``swift/megatron/model``)."""
_NOTHING: Final = "none"
_HALF: Final = "float16"
_GROUPED: Final = "--moe-grouped-gemm"


def is_swift(text: LaunchText) -> bool:
    """Whether a script starts ms-swift's Megatron."""
    return text.program == SWIFT


def gpus_of_swift(text: LaunchText) -> int:
    """GPUs of the group that trains, where Ray starts it; 0: a launch without groups, or of another program.

    Parameters
    ----------
    text : LaunchText
        As read.
    """
    return (whole(told_options(text.arguments).get(_GPUS, "")) or 0) if is_swift(text) else 0


def of_swift(
    text: LaunchText, options: Mapping[str, Option], model: ModelSpec | None
) -> tuple[LaunchText, ModelSpec | None]:
    """A launch in Megatron-LM's flags, and the model that it names.

    Parameters
    ----------
    text : LaunchText
        Of ms-swift.
    options : mapping of str to Option
        Of Megatron-LM's parser; other options are the trainer's, and are noted.
    model : ModelSpec or None
        As the user names it; None: as the launch does.
    """
    own = told_options(text.arguments)
    told = {_NAMES.get(name, name): value for name, value in own.items() if name not in _OTHER}
    found = model or next((named for name in _MODEL if (named := preset_of_path(own.get(name, "")))), None)
    experts = bool(found and facts_of(found).experts) or "--num-experts" in told
    settings = {**_DEFAULTS, **(_OF_EXPERTS if experts else {}), **told}
    if own.get("--torch-dtype") == _HALF and "--bf16" not in own:
        settings["--fp16"] = "true"
    if switched_on(settings, "--fp16"):
        settings.pop("--bf16")
    if found and facts_of(found).linear_bias and switched_on(settings, _GROUPED):
        settings["--no-bias-dropout-fusion"] = "true"
    words: list[str] = []
    for name, value in settings.items():
        option = options.get(name)
        if option is None or (value == _NOTHING and option.choices and _NOTHING not in option.choices):
            continue
        switch = option.values == "0"
        words += ([name] if switched_on(settings, name) else []) if switch else [name, *value.split()]
    task = own.get(_TASK, "")
    told_of_task = f"task_type {task} has no matrix over the vocabulary at its end: it is priced with one"
    notes = (*text.notes, *((told_of_task,) if task in _WITHOUT_HEAD else ()))
    return replace(text, arguments=tuple(words), program="", environment=None, notes=notes), found


def names_of_swift(options: Mapping[str, Option]) -> Mapping[str, str]:
    """Options of ms-swift that say what flags of Megatron-LM say, by flag.

    Parameters
    ----------
    options : mapping of str to Option
        Of Megatron-LM's parser.
    """
    other = {flag: name for name, flag in _NAMES.items()}
    return {flag: f"--{other.get(flag, flag).removeprefix('--').replace('-', '_')}" for flag in options}


def refuse_unnamed(text: LaunchText, model: ModelSpec | None, own: LaunchText) -> None:
    """Refuse a launch whose model is not known: it is named by its path, and no option states its sizes.

    Parameters
    ----------
    text : LaunchText
        In Megatron-LM's flags.
    model : ModelSpec or None
        As the user or the launch names it.
    own : LaunchText
        As the user wrote it.

    Raises
    ------
    InputError
        Says how to name it.
    """
    if model is None and "--num-layers" not in text.arguments:
        told = told_options(own.arguments)
        path = next((told[name] for name in _PATHS if told.get(name)), "")
        named = f"the model {path} is not known" if path and BLANK not in path else "the model is not known"
        raise InputError(named, allowed="--model MODEL: a name of plan catalog models, or a file")

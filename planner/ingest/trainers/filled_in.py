"""What a trainer on DeepSpeed fills in where a launch does not say: LLaMA-Factory, ms-swift's ``swift``, Axolotl, TRL.

The facts, with their sources, are in ``trainers.toml``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from planner.ingest.adapters import unpriced_kind
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import whole
from planner.ingest.trainers.openrlhf import starts_openrlhf
from planner.ingest.trainers.words import switched_on, told_options, trainer_table, trains
from planner.sayable import EVERYTHING, LLAMAFACTORY, OPENRLHF, TRAINER, Sayable

MODEL_OPTIONS: Final = ("--model-name-or-path", "--base-model", "--model", "--model-name")
_AUTO: Final = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_DTYPES: Final = MappingProxyType({"float16": "--fp16", "float32": ""})
_KINDS: Final = ("--rlhf-type", "--stage", "--rl")
_WITH_MORE_MODELS: Final = ("dpo", "kto", "ppo", "grpo", "gkd", "cpo", "orpo", "simpo", "rm", "gdpo", "ipo")
_OPTIMIZERS: Final = ("--optim", "--optimizer")
_ADAM_BYTES: Final = 8.0
_EIGHT_BITS: Final = MappingProxyType({"adam": 2.0, "lion": 1.0})
"""Bytes per parameter of both moments of Adam, of the one of Lion, in 8 bits (Dettmers et al., arXiv 2110.02861).

Names of ``OptimizerNames`` in Hugging Face's ``training_args.py``: ``adamw_bnb_8bit``, ``paged_adamw_8bit``,
``adamw_torch_8bit``, ``lion_8bit``; Axolotl's ``adamw_8bit`` is one of them.
"""
_CUT_PLUGIN: Final = "CutCrossEntropyPlugin"
_PROMPT: Final = "--max-prompt-length"
_COMPLETION: Final = "--max-completion-length"
_WITHOUT_CONTEXT: Final = "llamafactory"


def with_fills(text: LaunchText, world: int) -> LaunchText:
    """A launch with what its trainer takes where it says nothing; one of no known trainer stays as it is.

    Parameters
    ----------
    text : LaunchText
        Of DeepSpeed.
    world : int
        Number of ranks.
    """
    text = _with_sample_length(text)
    told = told_options(text.arguments)
    trainer = trainer_of(text, told)
    if not trainer:
        return text
    facts = trainer_table()[trainer]
    fills: dict[str, str] = dict(facts["fills"])
    for option, switched in facts.get("off", {}).items():
        if switched_on(told, option):
            fills.pop(switched)
    if facts.get("sixteen") and not {"--bf16", "--fp16"} & told.keys():
        fills |= {name: "true" for name in [_DTYPES.get(told.get("--torch-dtype", ""), "--bf16")] if name}
    if _CUT_PLUGIN in told.get("--plugins", ""):
        fills["--cut-cross-entropy"] = "true"
    if batch := whole(told.get("--global-batch-size", "")) or facts.get("global_batch"):
        micro = whole(_stated(told, "--micro-batch-size")) or 1
        replicas = max(1, world // (whole(told.get("--cp-size", "")) or 1))
        fills["--gradient-accumulation-steps"] = str(max(1, -(-batch // (micro * replicas))))
    known = {_known(option) for option in told}
    words = [f"{option}={value}" for option, value in fills.items() if _known(option) not in known]
    notes = [f"{trainer} fills in what the launch leaves out: {', '.join(words)}"] if words else []
    notes += [note for note in trainer_remarks(text.arguments) if note not in text.notes]
    config = text.config or _own_config(facts, told)
    return replace(text, arguments=(*text.arguments, *words), config=config, notes=(*text.notes, *notes))


def told_to(text: LaunchText) -> Sayable:
    """What the trainer on DeepSpeed that a launch starts can be told; everything for a program that is none."""
    told = told_options(text.arguments)
    if starts_openrlhf(text.program, told):
        return OPENRLHF
    if not trains(text.program, told):
        return EVERYTHING
    return LLAMAFACTORY if trainer_of(text, told) == _WITHOUT_CONTEXT else TRAINER


def optimizer_bytes(words: Sequence[str]) -> float:
    """Bytes per parameter of the optimizer's states by a trainer's arguments: those of fp32 Adam but for 8 bits."""
    told = told_options(words)
    named = next((told[name].lower() for name in _OPTIMIZERS if told.get(name)), "")
    if "8bit" not in named:
        return _ADAM_BYTES
    return next((size for family, size in _EIGHT_BITS.items() if family in named), _ADAM_BYTES)


def trainer_remarks(words: Sequence[str]) -> tuple[str, ...]:
    """What a trainer, by its arguments, does besides a training step of the whole model."""
    return tuple(_remarks(words, told_options(words)))


def _remarks(words: Sequence[str], told: Mapping[str, str]) -> Iterator[str]:
    kind = next((told[name] for name in _KINDS if told.get(name) in _WITH_MORE_MODELS), "")
    if kind:
        yield f"{kind} has further models or passes than one training step of this model, which have no price here"
    part = unpriced_kind(words)
    if part:
        yield f"{part} trains other parameters than all, which has no price here: it is priced as training all"


def model_named(text: LaunchText) -> ModelSpec | None:
    """The preset that a launch's model path ends in, such as ``qwen25_7b`` of ``Qwen/Qwen2.5-7B-Instruct``."""
    told = told_options(text.arguments)
    named = [told[name] for name in MODEL_OPTIONS if told.get(name)]
    if not named or (not trains(text.program, told) and MODEL_OPTIONS[0] not in told):
        return None
    return preset_of_path(named[0])


def preset_of_path(path: str) -> ModelSpec | None:
    """The preset that the last part of a path begins with, such as ``qwen25_14b`` of ``Qwen/Qwen2.5-14B-mcore``."""
    return presets.beginning(path.rstrip("/").rpartition("/")[2])


def named_config(text: LaunchText) -> str:
    """The file that a launch has DeepSpeed's configuration from; empty where it names none."""
    told = told_options(text.arguments)
    settings = next((word for word in text.arguments[:1] if word.endswith((".yaml", ".yml"))), "")
    return settings or next((told[name] for name in ("--deepspeed-config", "--deepspeed") if told.get(name)), "")


def trainer_of(text: LaunchText, told: Mapping[str, str]) -> str:
    """The trainer that a launch starts, else the one whose options it has; empty for none that is known."""
    table = trainer_table()
    if text.program in table:
        return text.program
    return next((name for name, facts in table.items() if any(sign in told for sign in facts["signs"])), "")


def _with_sample_length(text: LaunchText) -> LaunchText:
    """A launch of a policy's training with the length of its samples: prompt and completion (TRL ``GRPOConfig``)."""
    told = told_options(text.arguments)
    prompt, answer = (whole(told.get(name, "")) for name in (_PROMPT, _COMPLETION))
    if not (prompt and answer) or _stated(told, "--seq-length"):
        return text
    note = f"a sample is as long as {_PROMPT} and {_COMPLETION} together, its longest"
    return replace(text, arguments=(*text.arguments, f"--max-length={prompt + answer}"), notes=(*text.notes, note))


def _known(name: str) -> str:
    return str(key_table()["spellings"].get(name, name))


def _stated(told: Mapping[str, str], known: str) -> str:
    return next((value for name, value in told.items() if _known(name) == known), "")


def _own_config(facts: Mapping[str, Any], told: Mapping[str, str]) -> str:
    """The configuration that a trainer has by the name that a launch gives; empty for none."""
    zero = facts.get("configurations", {}).get(told.get("--deepspeed", ""))
    if zero is None:
        return ""
    halves = {name: {"enabled": "auto"} for name in ("bf16", "fp16")}
    return json.dumps({**dict.fromkeys(_AUTO, "auto"), **halves, "zero_optimization": zero})

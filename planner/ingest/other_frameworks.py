"""Launches that are read as those of a framework that they are not for."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from hardware.errors import InputError
from hardware.package_table import package_table
from planner.ingest.bridge.overrides import override_keys
from planner.ingest.bridge.programs import is_bridge_program
from planner.ingest.bridge.recipes import recipe_names
from planner.ingest.judged import LaunchInput
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault
from planner.ingest.scripts.training_command import NEMO, TITAN
from planner.ingest.trainers.accelerate_megatron import by_plugin
from planner.ingest.trainers.nanotron import is_nanotron
from planner.ingest.trainers.policies import program_of
from planner.ingest.trainers.sharded_policies import sharded_program_of
from planner.ingest.trainers.swift import is_swift
from planner.ingest.trainers.words import told_options, trainer_sign, trainer_table
from planner.request import Framework

_SIGNS: Final = MappingProxyType(
    {
        Framework.TORCHTITAN: ("--parallelism.", "--training.", "--activation_checkpoint.", "--job."),
        Framework.NEMO: ("trainer.strategy.", "trainer.num_nodes=", "trainer.devices="),
        Framework.BRIDGE: ("model.", "train.", "optimizer.", "ddp.", "dataset."),
        Framework.DEEPSPEED: ("--deepspeed",),
        Framework.MEGATRON: ("--tensor-model-parallel-size", "--num-layers", "--hidden-size", "--micro-batch-size"),
    }
)
"""How words begin that one framework alone takes."""
_SHARED: Final = MappingProxyType(
    {
        Framework.BRIDGE: (Framework.NEMO, Framework.DEEPSPEED, Framework.GALVATRON),
        Framework.DEEPSPEED: (Framework.GALVATRON, Framework.BRIDGE, Framework.NEMO),
        Framework.MEGATRON: (Framework.DEEPSPEED, Framework.GALVATRON, Framework.BRIDGE, Framework.NEMO),
        Framework.NEMO: (Framework.DEEPSPEED, Framework.GALVATRON),
        Framework.TORCHTITAN: (),
    }
)
"""Who takes such words too, or passes them by."""
_OPTIONS: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
)
"""Options of Megatron-LM whose names programs on Megatron-core keep."""
_SIZES: Final = 5
"""Missing options among the six that every launch of Megatron-LM has."""
_CHAT: Final = ("--zero-stage", "--per-device-train-batch-size")
"""Options that DeepSpeed-Chat's ``main.py`` has together, beside others that Hugging Face's Trainer has not."""
_READ: Final = "a launch of Megatron-LM, or --framework with the framework that it is for"
_OF_GALVATRON: Final = ('"tp_sizes_enc"', '"pp_deg"')
"""Keys of a Galvatron configuration."""


def _programs() -> Mapping[str, Any]:
    """Programs with settings of their own, by name."""
    return package_table("planner.ingest", "other_programs.toml")


def refuse_other_framework(given: LaunchInput) -> None:
    """Refuse a launch in the words of another framework, or program, than it is to be judged by.

    Raises
    ------
    InputError
        Names the framework or program whose words they are.
    """
    found = _mismatch(given)
    if found is not None:
        told, allowed = found
        raise InputError(told, allowed=allowed)


def framework_meant(text: LaunchText) -> tuple[Framework, str]:
    """Whose launch a text is by what it says itself, and by what; Megatron-LM's, and an empty text, where it does not.

    Parameters
    ----------
    text : LaunchText
        As read.
    """
    own = is_nanotron(text) or bool(program_of(text)) or by_plugin(text)
    found = None if own else (_by_program(text) or _by_words(text))
    return found or (Framework.MEGATRON, "")


def _by_program(text: LaunchText) -> tuple[Framework, str] | None:
    """Whose launch a text is by the program, or the launcher, that it starts."""
    if sharded := sharded_program_of(text):
        return Framework.DEEPSPEED, f"{sharded} shards it"
    if text.accelerate is not None:
        return Framework.DEEPSPEED, "its settings of accelerate"
    if text.program.startswith(NEMO):
        return Framework.NEMO, text.program
    return (Framework.TORCHTITAN, text.program) if text.program == TITAN else None


def _by_words(text: LaunchText) -> tuple[Framework, str] | None:
    """Whose launch a text is by its options, settings or configuration."""
    given = LaunchInput(text=text, framework=Framework.MEGATRON, version="", world=1, model=None)
    found = _mismatch(given)
    if found is not None:
        told, allowed = found
        return next(((one, told) for one in Framework if allowed == f"--framework {one}"), None)
    if text.config and not text.arguments:
        galvatron = any(key in text.config for key in _OF_GALVATRON)
        return (Framework.GALVATRON if galvatron else Framework.DEEPSPEED), "its configuration is JSON"
    read = ((one, _own_word(text.arguments, one)) for one in (Framework.DEEPSPEED, Framework.NEMO))
    known = {name for key in override_keys(Framework.BRIDGE) for name in key.keys}
    names = (word.lstrip("+").partition("=")[0] for word in text.arguments)
    bridge = ((Framework.BRIDGE, name) for name in names if name in known)  # others have sections of these names too
    return next(((one, f"it has {word}") for one, word in (*read, *bridge) if word), None)


def _mismatch(given: LaunchInput) -> tuple[str, str] | None:
    """Whose words a launch has, and what to ask for; None where they may be those of its framework."""
    trains = {Framework.MEGATRON: program_of, Framework.DEEPSPEED: sharded_program_of}.get(given.framework)
    if is_nanotron(given.text) or (trains is not None and trains(given.text)):
        return None  # settings of a program that trains by it
    found = _of_trainer(given) or _of_program(given)
    if found is not None:
        return found
    bridge = f"--framework {Framework.BRIDGE}"
    if given.framework is not Framework.BRIDGE and is_bridge_program(given.text):
        name = given.text.program.rpartition("/")[2]
        return f"this is a launch of Megatron-Bridge{', by its ' + name if name else ''}", bridge
    if given.framework is not Framework.BRIDGE and given.text.recipe.rpartition(".")[2] in recipe_names():
        return f"{given.text.recipe} is a recipe of Megatron-Bridge", bridge
    for framework in _SIGNS:
        if given.framework is framework or given.framework in _SHARED[framework]:
            continue
        if word := _own_word(given.text.arguments, framework):
            return f"this looks like a launch of {framework}, as it has {word}", f"--framework {framework}"
    return None


def _own_word(words: Sequence[str], framework: Framework) -> str:
    """The first word that begins as one of a framework's; empty for none."""
    signs = _SIGNS[framework]
    found = (word.partition("=")[0] for word in words if word.startswith(signs))
    return next((word for word in found if word.startswith("--") is signs[0].startswith("--")), "")


def _of_trainer(given: LaunchInput) -> tuple[str, str] | None:
    """A launch of a trainer on DeepSpeed, by its program or by settings that no framework has."""
    text = given.text
    told = told_options(text.arguments)
    if all(name in told for name in _CHAT):
        return "these are options of DeepSpeed-Chat, as there is zero_stage", "plan estimate with the layout"
    if given.framework is Framework.DEEPSPEED or text.accelerate is not None:
        return None
    allowed = f"--framework {Framework.DEEPSPEED}"
    if text.program in trainer_table():
        return f"this is a launch of {text.program}, which trains on DeepSpeed", allowed
    own = _SIGNS.get(given.framework, ())
    found = trainer_sign(told)
    if found and not is_swift(text) and not any(word.startswith(own) for word in text.arguments if own):
        trainer, sign = found
        return f"these are settings of {trainer}, as there is {sign}", allowed
    return None


def _of_program(given: LaunchInput) -> tuple[str, str] | None:
    """Settings of a program that is none of the frameworks."""
    told = {}
    for word in given.text.arguments:
        name, sign, value = word.lstrip("+-").partition("=")
        if sign:
            told[name.replace("-", "_")] = value
    found = {
        program: [name for name in told if name in facts["signs"] or f"*.{name.rpartition('.')[2]}" in facts["signs"]]
        for program, facts in _programs().items()
    }
    program = max(found, key=lambda name: len(found[name]))
    facts, signs = _programs()[program], found[program]
    if signs and given.framework != facts.get("reads"):
        return f"these are settings of {program}, as there is {signs[0]}", _instead(facts, told)
    return None


def _instead(facts: Mapping[str, Any], told: Mapping[str, str]) -> str:
    """What to ask in the place of settings that the framework does not read."""
    if facts.get("reads"):
        return f"--framework {facts['reads']}"
    sections = facts.get("sections", ())
    found = {
        name: told[f"{section}.{name}"] for section in sections for name in _OPTIONS if f"{section}.{name}" in told
    }
    words = [f"--{name.replace('_', '-')} {value}" for name, value in found.items() if value.isdecimal()]
    return f"{facts['says']}: {' '.join(words)}" if words else str(facts["says"])


def refuse_foreign(program: str, foreign: Sequence[str], faults: Sequence[Fault]) -> None:
    """Refuse arguments of which none is Megatron-LM's, for a program that is not its own, or settings without one.

    Raises
    ------
    InputError
        Names the program.
    """
    missing = [fault for fault in faults if fault.rule == "megatron-option-missing"]
    if foreign and len(missing) >= _SIZES:
        name = program.rpartition("/")[2]
        raise InputError(
            f"the arguments of {name} are not Megatron-LM's ({', '.join(foreign[:3])})",
            allowed=_READ,
        )
    settings = [fault.argument.partition("=")[0] for fault in faults if "=" in fault.argument]
    if len(missing) >= _SIZES and settings and not program:
        told = ", ".join(settings[:3])
        raise InputError(f"these are settings of a program that is not known ({told})", allowed=_READ)

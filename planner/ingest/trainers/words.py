"""Words of trainers on DeepSpeed: which console command is whose, and settings of a YAML file as options.

References
----------
LLaMA-Factory ``examples/train_full``, Axolotl ``examples``, ms-swift ``examples/train``: a YAML file of settings, or
the same as options, names DeepSpeed's configuration by ``deepspeed``. Hugging Face ``hf_argparser.py``
(``string_to_bool``): a switch is told nothing, or yes, true, t, y, 1, or no, false, f, n, 0.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from hardware.package_table import package_table

_CONFIG: Final = "deepspeed"
_NONE: Final = ("", "null")
_BATCH: Final = "--per-device-train-batch-size"  # of Hugging Face's TrainingArguments
TRUE: Final = ("yes", "true", "t", "y", "1")
FALSE: Final = ("no", "false", "f", "n", "0")
"""What a switch is told, in lower case."""
_OFF: Final = (*FALSE, "none", "null")


def trainer_table() -> Mapping[str, Any]:
    """Trainers by name: commands, signs, what they fill in."""
    return package_table("planner.ingest.trainers", "filled_in.toml")


def started_trainer(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The trainer that a console command starts and its arguments; None for another command.

    Parameters
    ----------
    words : sequence of str
        Of the command, the program first.
    """
    command = " ".join((words[0].rpartition("/")[2], *words[1:2])) if words else ""
    found = (name for name, facts in trainer_table().items() if command in facts["commands"])
    return next(((name, tuple(words[2:])) for name in found), None)


def is_settings(overrides: Sequence[str]) -> bool:
    """Whether settings, as ``name=value``, are a trainer's.

    They name a JSON file as DeepSpeed's configuration, or have settings that a trainer alone has.
    """
    named = any(word.startswith(f"{_CONFIG}=") and word.endswith(".json") for word in overrides)
    return named or trains("", told_options(as_options([word for word in overrides if not word.startswith("-")])))


def trains(program: str, told: Mapping[str, str]) -> bool:
    """Whether a launch is one of Hugging Face's Trainer, or of a trainer that is built on it.

    Parameters
    ----------
    program : str
        What the launch starts; empty where it does not say.
    told : mapping of str to str
        Of :func:`told_options`.
    """
    return program in trainer_table() or bool(trainer_sign(told))


def trainer_sign(told: Mapping[str, str]) -> tuple[str, str] | None:
    """The trainer whose options a launch has, and the option that shows it; None where there is none.

    Parameters
    ----------
    told : mapping of str to str
        Of :func:`told_options`.
    """
    for name, facts in trainer_table().items():
        for sign in facts["signs"]:
            if sign in told:
                return name, sign.lstrip("-").replace("-", "_")
    return ("Hugging Face's Trainer", _BATCH.lstrip("-").replace("-", "_")) if _BATCH in told else None


def as_options(overrides: Sequence[str]) -> tuple[str, ...]:
    """Settings as the options that say the same; those without a value are left out.

    Parameters
    ----------
    overrides : sequence of str
        ``name=value``, as a YAML file is written out; options stay as they are.
    """
    found = []
    for word in overrides:
        name, sign, value = word.partition("=")
        if name.startswith("-") or not sign:
            found.append(word)
        elif value not in _NONE:
            found.append(f"--{name}={value}")
    return tuple(found)


def told_options(words: Sequence[str]) -> Mapping[str, str]:
    """Options as every trainer takes them: the last of a name counts, and a hyphen is an underscore.

    Parameters
    ----------
    words : sequence of str
        Arguments: ``--name``, ``--name value ...``, ``--name=value``. Words before the first option are left out.

    Returns
    -------
    mapping of str to str
        Names with hyphens; several values joined by blanks; an empty text for an option that is told none.
    """
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            found[name] = value
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return MappingProxyType(found)


def without_options(words: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Arguments without some options and their values.

    Parameters
    ----------
    words : sequence of str
        As of :func:`told_options`.
    names : collection of str
        As written, with or without dashes.
    """
    bare = {name.lstrip("-") for name in names}
    kept: list[str] = []
    dropped = False
    for word in words:
        dropped = word.partition("=")[0].lstrip("-") in bare if word.startswith("--") else dropped
        kept += [] if dropped else [word]
    return tuple(kept)


def switched_on(told: Mapping[str, str], name: str) -> bool:
    """Whether an option is there and not told to be off: without a value, a switch is on.

    Parameters
    ----------
    told : mapping of str to str
        Of :func:`told_options`.
    name : str
        With hyphens.
    """
    return name in told and told[name].lower() not in _OFF

"""Words of trainers on DeepSpeed: which console command is whose, and settings of a YAML file as options.

References
----------
LLaMA-Factory ``examples/train_full``, Axolotl ``examples``, ms-swift ``examples/train``: a YAML file of settings, or
the same as options, names DeepSpeed's configuration by ``deepspeed``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

_CONFIG: Final = "deepspeed"
_NONE: Final = ("", "null")


@lru_cache(maxsize=1)
def trainer_table() -> Mapping[str, Any]:
    """Trainers by name: commands, signs, what they fill in."""
    text = files("planner.ingest").joinpath("trainers.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


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
    """Whether settings, as ``name=value``, are a trainer's: they name a JSON file as DeepSpeed's configuration."""
    return any(word.startswith(f"{_CONFIG}=") and word.endswith(".json") for word in overrides)


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

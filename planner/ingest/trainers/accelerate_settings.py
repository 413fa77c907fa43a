"""Settings of ``accelerate launch``: its configuration file with the options of the launcher put over it.

References
----------
accelerate 1.15 ``commands/launch.py`` (``_validate_launch_command``: options that are given win over the file, whose
sections are options too), ``commands/config/config_args.py`` (keys of the file that are not known are refused).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from hardware.package_table import package_table

_TYPES: Final = MappingProxyType(
    {
        "use_deepspeed": "DEEPSPEED",
        "use_fsdp": "FSDP",
        "use_megatron_lm": "MEGATRON_LM",
        "multi_gpu": "MULTI_GPU",
    }
)
"""Switches of the launcher that say what the file calls ``distributed_type``."""
_SIGN: Final = "distributed_type"
FSDP_PREFIX: Final = "fsdp_"
TRL_OPTION: Final = "--accelerate_config"
"""What TRL's commands call the configuration file of accelerate, or name one of their own by."""


@dataclass(frozen=True, kw_only=True)
class AccelerateSettings:
    """Settings of a launch by accelerate, read once.

    Attributes
    ----------
    distribution : str
        Kind of distribution, as written.
    values : mapping
        By the keys of the configuration file.
    grid : bool
        Degrees of a grid can be stated beside them.
    """

    distribution: str
    values: Mapping[str, Any]
    grid: bool = True

    @property
    def processes(self) -> int:
        """Processes that are started; 0 where the settings do not say, or say -1."""
        told = str(self.values.get("num_processes", ""))
        return int(told[:9]) if told.isdecimal() else 0

    @property
    def plugin_file(self) -> str:
        """The file of DeepSpeed's that the settings name; empty for none."""
        section = self.values.get("deepspeed_config")
        return str(section.get("deepspeed_config_file") or "") if isinstance(section, dict) else ""


def accelerate_table() -> Mapping[str, Any]:
    """Keys and options that accelerate knows."""
    return package_table("planner.ingest.trainers", "accelerate_keys.toml")


def is_accelerate(content: object) -> bool:
    """Whether a file's content is a configuration of accelerate."""
    return isinstance(content, dict) and isinstance(content.get(_SIGN), str) and "MODEL_ARGS" not in content


def launcher_words(words: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """Options of the launcher: between ``accelerate launch`` and the program, or TRL's own among its arguments.

    Parameters
    ----------
    words : sequence of str
        Of the command.
    arguments : sequence of str
        Behind the program.
    """
    if words[0].rpartition("/")[2] == "accelerate" and "launch" in words:
        return tuple(words[words.index("launch") + 1 : len(words) - len(arguments) - 1])
    if words[0].rpartition("/")[2] != "trl":
        return ()
    own = (TRL_OPTION, "--num_processes")
    found = [(name, value) for name, value in pairwise(words) if name in own]
    return tuple(word for pair in found for word in pair) if any(name == TRL_OPTION for name, _ in found) else ()


def named_settings(name: str, words: Sequence[str]) -> Mapping[str, Any]:
    """Settings that TRL has by a name; empty for a file, and for launches by accelerate itself."""
    settings: Mapping[str, Any] = accelerate_table()["trl"].get(name, {}) if TRL_OPTION in words else {}
    return settings


def settings_of(content: Mapping[str, Any], words: Sequence[str]) -> AccelerateSettings | None:
    """The settings of a launch; None where neither file nor options say how it is distributed.

    Parameters
    ----------
    content : mapping
        Of the configuration file; empty without one.
    words : sequence of str
        Options of the launcher.
    """
    merged: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in content.items()}
    sections = accelerate_table()["sections"]
    for name, value in _told(words).items():
        section = next((key for key, known in sections.items() if name in known), "")
        if name in _TYPES:
            merged[_SIGN] = _TYPES[name]
        elif section:
            inner = merged.setdefault(section, {})
            if isinstance(inner, dict):
                inner.pop(name.removeprefix(FSDP_PREFIX), None)  # the file may leave the prefix out
                inner[name] = value
        elif name in accelerate_table()["top_level"]:
            merged[name] = value
    if _SIGN not in merged:
        return None
    values = json.loads(json.dumps(merged, default=str))  # what YAML reads as a date is a text to accelerate
    return AccelerateSettings(distribution=str(values[_SIGN]), values=values)


def _told(words: Sequence[str]) -> Mapping[str, Any]:
    """Options of the launcher by name, with underscores; the first word that is no option's value ends them."""
    switches = accelerate_table()["switches"]
    told: dict[str, Any] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, sign, value = words[index].lstrip("-").partition("=")
        name = name.replace("-", "_")
        index += 1
        if name in switches:
            told[name] = True
        elif sign:
            told[name] = value
        elif index < len(words):
            told[name] = words[index]
            index += 1
    return told

"""Words of programs on DeepSpeed in one spelling: Megatron-DeepSpeed's, GPT-NeoX's, the Hugging Face Trainer's.

GPT-NeoX has one YAML file for DeepSpeed's configuration, the degrees and the model; it is taken apart into both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hardware.errors import InputError
from planner.ingest.deepspeed_text import read_config
from planner.ingest.launch_text import LaunchText
from planner.ingest.trainer_words import FALSE, TRUE

NEOX_SIGNS: Final = ("pipe_parallel_size", "model_parallel_size")
"""Keys, with underscores, by which a configuration is known as GPT-NeoX's."""
_NEOX_HALF: Final = ("bfloat16", "bf16", "fp16")


def spelled(words: Sequence[str], spellings: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    """Arguments of a program with the options that are known spelled as in the table.

    Parameters
    ----------
    words : sequence of str
        Arguments; ``--name value`` and ``--name=value``.
    spellings : mapping of str to str
        Other spellings of options, with hyphens.
    options : mapping of str to str
        Options by name with the number of their values; ``0`` is a switch, which may be told to be on or off
        in the words of :mod:`planner.ingest.trainer_words`.

    Returns
    -------
    list of str
        Names that are not known stay as they are.
    """
    found: list[str] = []
    index = 0
    while index < len(words):
        name, sign, value = words[index].partition("=")
        index += 1
        hyphened = name.replace("_", "-") if name.startswith("--") else name
        known = spellings.get(hyphened, hyphened)
        if known not in options:
            found.append(f"{name}{sign}{value}")
        elif options[known] != "0":
            found.append(f"{known}{sign}{value}")
        else:
            told = value if sign else words[index] if index < len(words) else ""
            index += not sign and told.lower() in (*TRUE, *FALSE)
            found = [word for word in found if word != known]  # the last of a name counts
            found += [] if told.lower() in FALSE else [known]
    return found


def of_neox(text: LaunchText, top_level: Sequence[str]) -> LaunchText:
    """A launch whose words are a GPT-NeoX configuration as DeepSpeed's configuration and options; others as they are.

    Parameters
    ----------
    text : LaunchText
        A launch without a DeepSpeed configuration, or with one that may be GPT-NeoX's.
    top_level : sequence of str
        Keys that DeepSpeed's configuration has.
    """
    told = _settings(text)
    if not any(name.replace("-", "_") in NEOX_SIGNS for name in told):
        return text
    config: dict[str, Any] = {}
    words: list[str] = []
    for key, value in told.items():
        name = key.replace("-", "_")
        if name in top_level:
            config[name] = value
        elif name == "precision" and value in _NEOX_HALF:
            config["fp16" if value == "fp16" else "bf16"] = {"enabled": True}
        elif isinstance(value, bool):
            words += [f"--{name}"] if value else []
        elif isinstance(value, int | float | str):
            told_value = 1 if name == "pipe_parallel_size" and value == 0 else value  # 0: no pipeline
            words += [f"--{name}", str(told_value)]
    own = [word for word in text.arguments if word.startswith("-")] if not text.config else text.arguments
    return replace(text, config=json.dumps(config), arguments=(*words, *own))


def _settings(text: LaunchText) -> dict[str, Any]:
    """Settings of a configuration, nested as in its file: JSON, or ``a.b=value`` words, as YAML is written out."""
    if text.config:
        try:
            return read_config(text.config)
        except InputError:
            return {}
    nested: dict[str, Any] = {}
    for word in text.arguments:
        path, sign, value = word.partition("=")
        if not sign or word.startswith("-"):
            continue
        *sections, name = path.split(".")
        inner = nested
        for section in sections:
            deeper = inner.setdefault(section, {})
            inner = deeper if isinstance(deeper, dict) else {}
        inner[name] = _plain(value)
    return nested


def _plain(text: str) -> Any:
    """A value as JSON reads it; other words are texts."""
    try:
        return json.loads(text)
    except ValueError:
        return text

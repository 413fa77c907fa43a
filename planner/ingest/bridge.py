"""Overrides of Megatron-Bridge and of NeMo 2 read into the layout that they launch.

Both build Megatron-core models, so an override is read as the flag of Megatron-LM that it stands for, and the flags are
judged by that reader (:mod:`planner.ingest.megatron`).
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from costmodels.layout import Layout
from hardware.errors import InputError
from planner.ingest.megatron import layout_of, parse_megatron
from planner.request import Framework

CORE: Final = MappingProxyType({Framework.BRIDGE: "0.19", Framework.NEMO: "0.15"})
"""Version of Megatron-core that Megatron-Bridge 0.6 and NeMo 2.7 build on."""
_MODEL_WORDS: Final = ("--seq-length",)  # a recipe's model states it too, the override decides
_NOTHING: Final = ("null", "none", "")


@dataclass(frozen=True, kw_only=True)
class OverrideKey:
    """One flag of Megatron-LM and the keys that stand for it; ``kind`` is value, values, on or off."""

    flag: str
    kind: str
    keys: tuple[str, ...]
    absent: str | None


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    text = files("planner.ingest").joinpath("override_keys.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


@lru_cache(maxsize=2)
def override_keys(framework: Framework) -> tuple[OverrideKey, ...]:
    """Keys of a framework, in the order of the table."""
    return tuple(
        OverrideKey(
            flag=entry["flag"], kind=entry["kind"], keys=tuple(entry[str(framework)]), absent=entry.get("absent")
        )
        for entry in _table()["key"]
    )


def precision_words(framework: Framework) -> Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Overrides and flags of every training recipe that a framework has, by its name."""
    return MappingProxyType(
        {
            name: (tuple(entry[str(framework)]), tuple(entry["flags"]))
            for name, entry in _table()["precision"].items()
            if str(framework) in entry
        }
    )


def layout_of_overrides(
    overrides: Sequence[str], model_words: Sequence[str], *, world: int, framework: Framework
) -> Layout:
    """Read overrides into a layout.

    Parameters
    ----------
    overrides : sequence of str
        ``key=value``, as Hydra or nemo_run take them; a leading ``+`` or ``++`` is allowed.
    model_words : sequence of str
        Megatron-LM arguments that build the recipe's model.
    world : int
        Number of ranks.
    framework : Framework
        Megatron-Bridge or NeMo.

    Returns
    -------
    Layout
        Of the launch; keys that are left out have Megatron-LM's defaults, not those of a recipe.

    Raises
    ------
    InputError
        An override is unknown or not ``key=value``, keys that stand for one flag differ, or the launch is refused.
    """
    found = _values(overrides, framework)
    words = [word for words in _kept(model_words) for word in words]
    for key in override_keys(framework):
        words += _flag_words(key, found)
    words += _precision_flags(overrides, framework)
    return layout_of(parse_megatron(words, world=world, version=CORE[framework]))


def _values(overrides: Sequence[str], framework: Framework) -> dict[str, str]:
    """Values by key, without the quotes of Hydra's grammar."""
    known = {name for key in override_keys(framework) for name in key.keys}
    precise = {word.partition("=")[0] for words, _ in precision_words(framework).values() for word in words}
    found = {}
    for override in overrides:
        name, sign, value = override.lstrip("+").partition("=")
        if not sign:
            raise InputError(f"override {override!r}", allowed="key=value")
        if name in precise:
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"override {name} is not known{hint}", allowed="keys that decide on a layout")
        found[name] = value.strip().strip("'\"")
    return found


def _kept(model_words: Sequence[str]) -> list[list[str]]:
    """Model arguments, one option with its values each, without those that overrides decide."""
    options: list[list[str]] = []
    for word in model_words:
        if word.startswith("--") or not options:
            options.append([])
        options[-1].append(word)
    return [option for option in options if option[0] not in _MODEL_WORDS]


def _flag_words(key: OverrideKey, found: Mapping[str, str]) -> list[str]:
    told = {found[name] for name in key.keys if name in found}
    if not told:
        return []
    if len(told) > 1:
        raise InputError(f"{' and '.join(key.keys)} differ: {', '.join(sorted(told))}", allowed="one value")
    value = told.pop()
    if key.kind in ("on", "off"):
        if value.lower() not in ("true", "false"):
            raise InputError(f"{key.keys[0]}={value}", allowed="true or false")
        return [key.flag] if (value.lower() == "true") == (key.kind == "on") else []
    if value.lower() in _NOTHING:
        return []
    if key.kind == "values":
        return [key.flag, *(word.strip().strip("'\"") for word in value.strip("[]").split(",") if word.strip())]
    return [key.flag, value]


def _precision_flags(overrides: Sequence[str], framework: Framework) -> list[str]:
    """Flags of the recipe whose every override is given; the one with most of them, none when nothing says."""
    plain = {override.lstrip("+").replace("'", '"') for override in overrides}
    fitting = [entry for entry in precision_words(framework).values() if set(entry[0]) <= plain]
    return list(max(fitting, key=lambda entry: len(entry[0]))[1]) if fitting else []

"""The files of presets, and which spellings of a name mean which entry.

``models/index.toml`` says by a name's beginning which file holds it, so that one name reads one file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload.resnet import SIZES
from hardware.package_table import package_table

_RESNETS: Final = "wide_resnet"  # described by code, not by a file
_UNITS: Final[Mapping[str, float]] = MappingProxyType({"m": 1e6, "b": 1e9, "t": 1e12})
_SIZE: Final = re.compile(r"([a-z]*)([0-9]+(?:\.[0-9]+)?)([mbt])")
_NO_TOTAL: Final = ("a", "e")  # a22b: active parameters; e4b: effective ones
_DATE: Final = re.compile(r"[0-9]{4}")  # 2507, 0324: month of a release
_POINT_IN_WORDS: Final = re.compile(r"(?<=[0-9])p(?=[0-9]+[mbt](?![a-z0-9]))")  # 1p5b


@dataclass(frozen=True)
class PresetEntry:
    """One preset as its file states it; without facts where code describes the model."""

    name: str
    facts: Mapping[str, object]
    source: str
    notes: tuple[str, ...]
    aliases: tuple[str, ...]
    vision: Mapping[str, object]  # of a tower: a configuration's type and ``vision_config``


@dataclass(frozen=True)
class _Table:
    """Entries of one file by separated spelling, and separated spellings by normalised name."""

    entries: Mapping[str, PresetEntry]
    spellings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Index:
    """Files by the beginning of a name, longest beginnings first; files in order; words that name no model."""

    beginnings: tuple[tuple[str, str], ...]
    files: tuple[str, ...]
    makers: frozenset[str]
    versions: frozenset[str]


def normalise(name: str) -> str:
    """Return a model's name without case and without the characters ``- _ .`` and space.

    Parameters
    ----------
    name : str
        As a user writes it.

    Returns
    -------
    str
        Equal for all spellings that mean the same model.
    """
    return name.lower().translate(str.maketrans("", "", "-_. "))


def _separated(name: str) -> str:
    """Return the name with one mark for every separator, so that 1.3b and 13b stay apart."""
    return name.lower().translate(str.maketrans("-. ", "___"))


def _read(file: str) -> Mapping[str, Any]:
    return package_table("costmodels.workload", f"models/{file}.toml")


@cache
def _index() -> _Index:
    content = _read("index")
    files: Mapping[str, list[str]] = {**content["files"], _RESNETS: [normalise(_RESNETS)]}
    beginnings = [(beginning, file) for file, found in files.items() for beginning in found]
    words = content["words"]
    return _Index(
        tuple(sorted(beginnings, key=lambda pair: -len(pair[0]))),
        tuple(files),
        frozenset(words["makers"]),
        frozenset(words["versions"]),
    )


@cache
def _table(file: str) -> _Table:
    entries: dict[str, PresetEntry] = {}
    for entry in _entries_of(file):
        for spelling in (entry.name, *entry.aliases):
            entries[_separated(spelling)] = entry
    spellings: dict[str, tuple[str, ...]] = {}
    for spelling in entries:
        key = normalise(spelling)
        spellings[key] = (*spellings.get(key, ()), spelling)
    return _Table(MappingProxyType(entries), MappingProxyType(spellings))


def _entries_of(file: str) -> Iterator[PresetEntry]:
    if file == _RESNETS:
        nothing: Mapping[str, object] = MappingProxyType({})
        yield from (PresetEntry(name, nothing, "", (), (), nothing) for name in SIZES)
        return
    for family in _read(file).values():
        for name, own in family["models"].items():
            facts = {**family.get("facts", {}), **own}
            source = facts.pop("source", family.get("source", ""))
            notes = (*family.get("notes", ()), *facts.pop("notes", ()))
            aliases = tuple(facts.pop("aliases", ()))
            vision = MappingProxyType(facts.pop("vision", {}))
            yield PresetEntry(name, MappingProxyType(facts), source, notes, aliases, vision)


def entries() -> tuple[PresetEntry, ...]:
    """Return all presets, in the order of their families; reads every file."""
    found = (entry for file in _index().files for entry in _table(file).entries.values())
    return tuple({entry.name: entry for entry in found}.values())


def file_of(name: str) -> str | None:
    """Return the file in which a name stands, without its suffix; None when it begins as no preset does."""
    key = normalise(name)
    return next((file for beginning, file in _index().beginnings if key.startswith(beginning)), None)


def exact(name: str) -> PresetEntry | None:
    """Return the preset of a name with the same separators, of whatever kind they are."""
    file = file_of(name)
    return _table(file).entries.get(_separated(name)) if file else None


def alike(name: str) -> tuple[PresetEntry, ...]:
    """Return the presets whose names differ from this one in separators only, the likest first."""
    file = file_of(name)
    if not file:
        return ()
    table, wanted = _table(file), _separated(name)
    found = table.spellings.get(normalise(name), ())
    likest = sorted(found, key=lambda spelling: (SequenceMatcher(None, wanted, spelling).ratio(), spelling))
    found_entries = (table.entries[spelling] for spelling in reversed(likest))
    return tuple({entry.name: entry for entry in found_entries}.values())


def spellings(name: str) -> Iterator[str]:
    """Yield the name, then what is left without owner, maker, tuning, number format and month of release.

    Parameters
    ----------
    name : str
        Such as ``meta-llama/Meta-Llama-3-70B-Instruct``.

    Yields
    ------
    str
        Here ``Meta-Llama-3-70B-Instruct``, ``Llama-3-70B-Instruct`` and ``Llama-3-70B`` among others, with points in
        place of the letter in ``1p5b``.
    """
    bare = _POINT_IN_WORDS.sub(".", name.rstrip("/").rpartition("/")[2].strip().lower())
    yield bare
    index, parts = _index(), re.split(r"([-_ ]+)", bare)
    while len(parts) > 2 and parts[0] in index.makers:
        parts = parts[2:]
        yield "".join(parts)
    while len(parts) > 2 and (parts[-1] in index.versions or _DATE.fullmatch(parts[-1])):
        parts = parts[:-2]
        yield "".join(parts)


def stated_sizes(name: str) -> tuple[tuple[float, ...], ...]:
    """Return the sizes that a name states, each with all its readings.

    Parameters
    ----------
    name : str
        As a user writes it.

    Returns
    -------
    tuple of tuple of float
        Parameters; ``1_3b`` reads as 3 and as 1.3 billion. Widths of experts (``8x7b``), active (``a22b``) and
        effective (``e4b``) parameters are no size of the model.
    """
    words = re.split(r"[-_ /]+", name.lower())
    found = []
    for before, word in zip(["", *words], words, strict=False):
        match = _SIZE.fullmatch(word)
        if match is None or match[1] in _NO_TOTAL or match[1].endswith("x"):
            continue
        numbers = [match[2], f"{before}.{match[2]}"] if before.isdigit() and "." not in match[2] else [match[2]]
        found.append(tuple(float(number) * _UNITS[match[3]] for number in numbers))
    return tuple(found)

"""The packaged catalogue: finds an accelerator, node preset or fixed machine by any of its names.

Files are parsed when a name is first looked for in them, and each entry is built once. Every value must have a source:
``sources`` of an entry maps a key, or the beginning of keys, to a text; ``rest`` stands for all others.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hardware.catalog_build import NodePreset, build_accelerator, build_node
from hardware.catalog_schema import canonical, describe_names
from hardware.cluster import Accelerator
from hardware.errors import InputError
from hardware.part_names import name_words, without_remarks

_FOLDER: Final = Path(__file__).parent / "catalog"
ACCELERATOR_FILES: Final = (
    "accelerators-nvidia.toml",
    "accelerators-nvidia-blackwell.toml",
    "accelerators-nvidia-cards.toml",
    "accelerators-amd.toml",
    "accelerators-other.toml",
)
NODE_FILES: Final = (
    "nodes-nvidia.toml",
    "nodes-nvidia-cards.toml",
    "nodes-other.toml",
    "nodes-sites.toml",
    "nodes-cloud-aws.toml",
    "nodes-cloud.toml",
)
CLUSTER_FILES: Final = ("clusters.toml",)
_NOT_OF_A_NODE: Final = ("like", "aliases", "default_for", "bridge_for", "sources")
"""Keys of the catalogue that a node type of a user's file has not, or has in another form."""
_NOT_VALUES: Final = (*_NOT_OF_A_NODE, "accelerator", "name", "vendor")


@dataclass(frozen=True)
class _Sourced:
    """A built entry with the rules that say where its values come from and the source of each value so far."""

    item: Any
    rules: Mapping[str, str]
    sources: Mapping[str, str]


@lru_cache(maxsize=16)
def _entries(file: str) -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType(tomllib.loads((_FOLDER / file).read_text(encoding="utf-8"), parse_float=Decimal))


def _names_of(file: str) -> Iterator[tuple[str, str]]:
    """Yield every name and alias with the name of its entry."""
    for entry, table in _entries(file).items():
        if entry != "sources":
            yield from ((name, entry) for name in (entry, *table.get("aliases", ())))


@lru_cache(maxsize=16)
def _index(file: str) -> Mapping[str, str]:
    """Return canonical name or alias to entry name."""
    return MappingProxyType({canonical(name): entry for name, entry in _names_of(file)})


def names(files: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entry names of some catalogue files, in file order."""
    return tuple(entry for file in files for entry in _entries(file) if entry != "sources")


def aliases(files: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return entry name to its other names."""
    return MappingProxyType(
        {
            entry: tuple(table.get("aliases", ()))
            for file in files
            for entry, table in _entries(file).items()
            if entry != "sources"
        }
    )


@lru_cache(maxsize=16)
def _index_by_words(file: str) -> Mapping[frozenset[str], str]:
    """Return the words of each name or alias to entry name."""
    return MappingProxyType({frozenset(name_words(name)): entry for name, entry in _names_of(file)})


def locate(name: str, files: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the file and the entry of a name, or None.

    A name as it stands wins over one without maker and count, and that over one whose words are in another order.
    """
    words = name_words(name)
    for wanted in (canonical(name), "".join(words)):
        for file in files:
            if wanted in _index(file):
                return file, _index(file)[wanted]
    for group in (frozenset(words), frozenset(without_remarks(words))):
        for file in files:
            if group in _index_by_words(file):
                return file, _index_by_words(file)[group]
    return None


def find_accelerator(name: str, where: str = "") -> Accelerator:
    """Return a catalogued accelerator by any of its names; InputError names the nearest one otherwise."""
    accelerator = _sourced_accelerator(*_located(name, ACCELERATOR_FILES, "accelerator", where)).item
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"{name} is filed among accelerators but is a {type(accelerator).__name__}")
    return accelerator


def find_node(name: str, where: str = "") -> NodePreset:
    """Return a catalogued node preset by any of its names; InputError names the nearest one otherwise."""
    if locate(name, NODE_FILES) is None and locate(name, ACCELERATOR_FILES) is not None:
        part = find_accelerator(name).name
        raise InputError(f"'{name}' is an accelerator, {part}, and no node type", allowed=_nodes_for(part), where=where)
    preset = _sourced_node(*_located(name, NODE_FILES, "node type", where)).item
    if not isinstance(preset, NodePreset):
        raise TypeError(f"{name} is filed among node types but is a {type(preset).__name__}")
    return preset


def fixed_cluster_table(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the entry name and the table of a machine of fixed size, its sources spelled out, or None."""
    found = locate(name, CLUSTER_FILES)
    if found is None:
        return None
    file, entry = found
    texts = _entries(file)["sources"]
    table = {key: value for key, value in _entries(file)[entry].items() if key != "aliases"}
    return entry, {**table, "name": entry, "sources": [texts[key] for key in table.get("sources", ())]}


def nodes_with(part: str) -> tuple[str, ...]:
    """Return the node types that hold an accelerator, the usual one first; empty where none does."""
    usual = default_nodes().get(part)
    found = [name for name in names(NODE_FILES) if find_node(name).node.accelerator.name == part]
    return tuple(sorted(found, key=lambda name: name != usual))


def _nodes_for(part: str) -> str:
    """Say which node types hold an accelerator, or which one takes it."""
    found = nodes_with(part)
    if not found:
        return f'node = "{default_nodes()[part]}" with accelerator = "{part}" beside it'
    return ", ".join(f"'{name}'" for name in found)


def default_nodes() -> Mapping[str, str]:
    """Return accelerator name to the preset that stands for it when a run names no machine."""
    return _presets_for("default_for")


def bridged_nodes() -> Mapping[str, str]:
    """Return accelerator name to the preset whose cards are joined by bridges."""
    return _presets_for("bridge_for")


@lru_cache(maxsize=2)
def _presets_for(key: str) -> Mapping[str, str]:
    """Return accelerator name to the node type that lists it under a key."""
    listed = (
        (name, entry) for file in NODE_FILES for entry, table in _entries(file).items() for name in table.get(key, ())
    )
    return MappingProxyType(dict(listed))


def near_names(name: str, files: tuple[str, ...]) -> str:
    """Return what to say is allowed instead of a name that no entry of some files has."""
    known = [every for file in files for every, _ in _names_of(file)]
    return describe_names(" ".join(name_words(name)) or name, known)


def _located(name: str, files: tuple[str, ...], noun: str, where: str) -> tuple[str, str]:
    found = locate(name, files)
    if found is None:
        raise InputError(f"unknown {noun} '{name}'", allowed=near_names(name, files), where=where)
    return found


@lru_cache(maxsize=256)
def _sourced_accelerator(file: str, entry: str) -> _Sourced:
    table = _entries(file)[entry]
    like = table.get("like")
    base = _sourced_accelerator(*_located(like, ACCELERATOR_FILES, "accelerator", entry)) if like else None
    where = f"{file}: {entry}"
    values = {key: value for key, value in table.items() if key not in ("aliases", "sources")}
    own = build_accelerator({**values, "name": entry}, where, find_accelerator)
    item = replace(own, constants_of="")  # the tables of constants know every entry by its own name
    rules, sources = _with_sources(file, entry, base)
    return _Sourced(replace(item, sources=_listed(sources)), rules, sources)


@lru_cache(maxsize=256)
def _sourced_node(file: str, entry: str) -> _Sourced:
    table = _entries(file)[entry]
    like = table.get("like")
    base = _sourced_node(*_located(like, NODE_FILES, "node type", entry)) if like else None
    where = f"{file}: {entry}"
    values = {key: value for key, value in table.items() if key not in _NOT_OF_A_NODE}
    preset = build_node({**values, "name": entry}, where, find_accelerator, base.item if base else None)
    rules, sources = _with_sources(file, entry, base)
    return _Sourced(replace(preset, node=replace(preset.node, sources=_listed(sources))), rules, sources)


def _with_sources(file: str, entry: str, base: _Sourced | None) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the rules of an entry and the source of each of its values.

    The entry's own rule wins, then that of the entry it is like, then ``rest`` of the one and of the other.
    """
    texts = _entries(file).get("sources", {})
    table = _entries(file)[entry]
    own = {key: texts[source] for key, source in table.get("sources", {}).items()}
    inherited = base.rules if base else {}
    sources = dict(base.sources) if base else {}
    for key in _value_keys(table):
        source = _rule(own, key) or _rule(inherited, key) or own.get("rest") or inherited.get("rest")
        if source is None:
            raise InputError(f"'{key}' has no source", allowed="a key in 'sources' or 'rest'", where=f"{file}: {entry}")
        sources[key] = source
    return MappingProxyType({**inherited, **own}), MappingProxyType(sources)


def _rule(rules: Mapping[str, str], key: str) -> str | None:
    fitting = [start for start in rules if start != "rest" and key.startswith(start)]
    return rules[max(fitting, key=len)] if fitting else None


def _value_keys(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if key in _NOT_VALUES:
            continue
        if isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner in value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from (f"{key}.{inner}" for inner in dict.fromkeys(inner for tier in value for inner in tier))
        else:
            yield key


def _listed(sources: Mapping[str, str]) -> tuple[str, ...]:
    """Return one line a source: the keys that rest on it, and the text."""
    by_text: dict[str, list[str]] = {}
    for key, text in sources.items():
        by_text.setdefault(text, []).append(key)
    return tuple(f"{', '.join(keys)}: {text}" for text, keys in by_text.items())

"""Builds accelerators, node types and their networks from tables, on top of a known one or from nothing.

The packaged catalogue and users' cluster files go through the same functions: a user's table may say
``like = NAME`` and then only what differs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from hardware.catalog_schema import (
    ACCELERATOR,
    COOLING,
    FABRIC_TIER,
    HOST,
    NICS,
    NODE,
    SCALE_UP,
    Field,
    read_table,
    require_table,
    require_tables,
    require_text,
)
from hardware.cluster import Accelerator, Cooling, FabricTier, Host, Nics, NodeType, PeakRates, ScaleUp
from hardware.errors import InputError
from hardware.node_parts import with_gpus

NODE_TABLES: Final = ("scale_up", "node_fabric", "nics", "host", "cooling", "fabric")
NODE_KEYS: Final = ("like", "accelerator", *NODE_TABLES)


@dataclass(frozen=True, kw_only=True)
class NodePreset:
    """A node type with the network that it usually comes with."""

    node: NodeType
    fabric: tuple[FabricTier, ...] = ()


FindAccelerator = Callable[[str, str], Accelerator]


def build_accelerator(table: Mapping[str, object], where: str, find: FindAccelerator) -> Accelerator:
    """Return the accelerator of a table.

    Parameters
    ----------
    table : mapping
        Keys of ``catalog_schema.ACCELERATOR`` and ``like``.
    where : str
        File and table, for messages.
    find : callable
        Looks up the accelerator that ``like`` names.

    Raises
    ------
    InputError
        The table is wrong, or lacks what makes an accelerator.
    """
    values: dict[str, Any] = read_table(table, ACCELERATOR, where, also=("like",))
    peak = {attr.removeprefix("peak."): values.pop(attr) for attr in tuple(values) if attr.startswith("peak.")}
    if "like" in table:
        base = find(require_text(table["like"], f"{where}.like"), f"{where}.like")
        stated = _with_followers(values, base)
        return replace(base, **stated, peak=replace(base.peak, **peak), constants_of=base.known_as)
    if not peak:
        raise InputError("no peak rate is given", allowed="peak_bf16_tflops and the like, or like = NAME", where=where)
    _require(values, ("name", "memory_bytes", "memory_bytes_per_s"), ACCELERATOR, where)
    return Accelerator(**{"vendor": "unknown", **values}, peak=PeakRates(**peak))


def build_node(
    table: Mapping[str, object], where: str, find_accelerator: FindAccelerator, base: NodePreset | None
) -> NodePreset:
    """Return the node type of a table, with its network.

    Parameters
    ----------
    table : mapping
        Keys of ``catalog_schema.NODE``, ``accelerator`` (a name or a table) and the tables of a node.
    where : str
        File and table, for messages.
    find_accelerator : callable
        Looks up accelerators by name.
    base : NodePreset or None
        What the table changes; with fewer or more accelerators it is resized first.

    Raises
    ------
    InputError
        The table is wrong, or lacks what makes a node.
    """
    own_keys = {key: value for key, value in table.items() if key not in NODE_KEYS}
    values: dict[str, Any] = read_table(own_keys, NODE, where)
    if "accelerator" in table:
        values["accelerator"] = _accelerator(table["accelerator"], f"{where}.accelerator", find_accelerator)
    if base is not None and "gpus" in values:
        base = replace(base, node=with_gpus(base.node, values["gpus"], f"{where}.gpus"))
    node = base.node if base else None
    for key, kind, fields in _PARTS:
        if key in table:
            part = require_table(table[key], f"{where}.{key}")
            values[key] = _part(part, kind, fields, getattr(node, key, None), f"{where}.{key}")
    fabric = base.fabric if base else ()
    if "fabric" in table:
        fabric = build_fabric(table["fabric"], f"{where}.fabric")
    if node is not None:
        return NodePreset(node=replace(node, **values), fabric=fabric)
    _require(values, ("name", "accelerator", "gpus", "scale_up", "nics"), NODE, where)
    return NodePreset(node=NodeType(**values), fabric=fabric)


def build_fabric(value: object, where: str) -> tuple[FabricTier, ...]:
    """Return the tiers of a scale-out network, from the leaf outwards."""
    tiers = []
    for number, table in enumerate(require_tables(value, where), start=1):
        place = f"{where} {number}"
        values: dict[str, Any] = read_table(table, FABRIC_TIER, place)
        if values.get("groups"):
            values.setdefault("nodes", max(values["groups"]))
        _require(values, ("nodes",), FABRIC_TIER, place)
        tiers.append(FabricTier(**{"name": f"tier {number}", **values}))
    return tuple(tiers)


def _accelerator(value: object, where: str, find: FindAccelerator) -> Accelerator:
    if isinstance(value, Mapping):
        return build_accelerator(value, where, find)
    return find(require_text(value, where), where)


def _part(table: Mapping[str, object], kind: type[Any], fields: tuple[Field, ...], base: Any, where: str) -> Any:
    """Return a scale-up fabric, set of adapters, host or cooling, changed from ``base`` or new."""
    values = read_table(table, fields, where)
    if base is not None:
        return replace(base, **_with_followers(values, base))
    _require(values, _REQUIRED.get(kind, ()), fields, where)
    if kind is ScaleUp:
        values.setdefault("pair_bytes_per_s", values["bytes_per_s"])
    return kind(**values)


def _with_followers(values: Mapping[str, Any], base: Any) -> dict[str, Any]:
    """Return what a table states over ``base``, with what follows from it in the proportion that it has there.

    A part with half the memory offers half to a process, and a switch of twice the rate gives twice to one peer: left
    as they were, they would contradict what is stated, or hide it.
    """
    followed = dict(values)
    for stated, follower in _FOLLOWERS.get(type(base), {}).items():
        if stated in values and getattr(base, stated):
            followed.setdefault(follower, getattr(base, follower) * values[stated] / getattr(base, stated))
    return followed


def _require(values: Mapping[str, object], attributes: tuple[str, ...], fields: tuple[Field, ...], where: str) -> None:
    for attribute in attributes:
        if attribute not in values:
            keys = [entry.key for entry in fields if entry.attr == attribute] or [attribute]
            raise InputError(f"'{keys[0]}' is missing", allowed=" or ".join(keys), where=where)


_PARTS: Final[tuple[tuple[str, type[Any], tuple[Field, ...]], ...]] = (
    ("scale_up", ScaleUp, SCALE_UP),
    ("node_fabric", ScaleUp, SCALE_UP),
    ("nics", Nics, NICS),
    ("host", Host, HOST),
    ("cooling", Cooling, COOLING),
)
_FOLLOWERS: Final[Mapping[type[Any], Mapping[str, str]]] = MappingProxyType(
    {
        Accelerator: {"memory_bytes": "allocatable_bytes", "tdp_w": "max_power_limit_w"},
        ScaleUp: {"bytes_per_s": "pair_bytes_per_s"},
    }
)
_REQUIRED: Final[Mapping[type[Any], tuple[str, ...]]] = MappingProxyType(
    {
        ScaleUp: ("kind", "shape", "domain_gpus", "bytes_per_s", "latency_s"),
        Nics: ("kind", "count", "bytes_per_s", "latency_s"),
    }
)

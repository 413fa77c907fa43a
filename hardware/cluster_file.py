"""Cluster files: TOML to a cluster and back. The form is described in ``docs/hardware.md``."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from hardware.catalog_build import NODE_KEYS, NodePreset, build_accelerator, build_node
from hardware.catalog_checks import check_cluster
from hardware.catalog_schema import (
    ACCELERATOR,
    CLUSTER,
    COOLING,
    DEVICE,
    FABRIC_TIER,
    HOST,
    ISLAND,
    NICS,
    NODE,
    SCALE_UP,
    Field,
    canonical,
    describe_names,
    quoted,
    read_table,
    require_tables,
    require_text,
)
from hardware.catalog_store import ACCELERATOR_FILES, NODE_FILES, find_accelerator, find_node, locate, names
from hardware.cluster import Accelerator, Cluster, DeviceState, Island
from hardware.errors import InputError
from hardware.text_file import read_text_file

_ISLAND_NODE_KEYS: Final = (*(entry.key for entry in NODE), *NODE_KEYS)


def read_cluster_file(path: str | Path) -> Cluster:
    """Read a cluster from a TOML file.

    Parameters
    ----------
    path : str or Path
        The file; at most 4 MiB.

    Raises
    ------
    InputError
        The file cannot be read, is not TOML, or states a machine that cannot be: the message names file, table, key,
        value and what is allowed.
    """
    file = Path(path)
    return parse_cluster(read_text_file(file, allowed="a cluster file in TOML"), str(file), file.stem)


def parse_cluster(text: str, where: str, name: str) -> Cluster:
    """Return the cluster that a TOML text states; ``where`` is the file in messages, ``name`` the default name."""
    try:
        table = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:  # also numbers of thousands of digits, deep nesting
        raise InputError(f"not TOML: {error}", allowed="TOML 1.0, see docs/hardware.md", where=where) from None
    return build_cluster(table, where, name)


def build_cluster(table: Mapping[str, Any], where: str, name: str) -> Cluster:
    """Return the cluster of a parsed table.

    Parameters
    ----------
    table : mapping
        Keys of ``catalog_schema.CLUSTER`` and the arrays ``accelerator``, ``node_type`` and ``island``.
    where : str
        File, for messages.
    name : str
        Name of the cluster if the table states none.

    Raises
    ------
    InputError
        As :func:`read_cluster_file`.
    """
    arrays = ("accelerator", "node_type", "island")
    values: dict[str, Any] = read_table(table, CLUSTER, where, also=arrays)
    local = _Definitions()
    local = _define_accelerators(table.get("accelerator", []), where, local)
    local = _define_node_types(table.get("node_type", []), where, local)
    if "island" not in table:
        raise InputError("no [[island]]", allowed='one or more: [[island]] node = "dgx-h100", nodes = 8', where=where)
    islands = tuple(
        _island(entry, f"{where}: island {number}", local)
        for number, entry in enumerate(require_tables(table["island"], f"{where}: island"), start=1)
    )
    cluster = Cluster(**{"name": name, **values}, islands=islands)
    check_cluster(cluster, where)
    return cluster


def to_toml(cluster: Cluster) -> str:
    """Write a cluster as a file that reads back as the same value.

    Parameters
    ----------
    cluster : Cluster
        Any cluster that passes the checks.

    Returns
    -------
    str
        TOML with every value spelled out, so that it keeps its meaning when the catalogue changes.
    """
    lines = _lines(cluster, CLUSTER)
    for island in cluster.islands:
        node = island.node
        lines += ["", "[[island]]", *_lines(island, ISLAND), *_lines(node, NODE)]
        if not node.sources:
            lines.append("sources = []")  # else reading would name the file as the source
        lines += _accelerator(node.accelerator)
        lines += _section("island.scale_up", node.scale_up, SCALE_UP)
        if node.node_fabric is not None:
            lines += _section("island.node_fabric", node.node_fabric, SCALE_UP)
        lines += _section("island.nics", node.nics, NICS)
        lines += _section("island.host", node.host, HOST)
        lines += _section("island.cooling", node.cooling, COOLING)
        for tier in island.fabric:
            lines += ["", "[[island.fabric]]", *_lines(tier, FABRIC_TIER)]
        for device in island.devices:
            lines += ["", "[[island.device]]", *_lines(device, DEVICE)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Definitions:
    """What a file defines for itself, by canonical name; it hides the catalogue's entries of the same name."""

    accelerators: tuple[tuple[str, Accelerator], ...] = ()
    nodes: tuple[tuple[str, NodePreset], ...] = ()

    def accelerator(self, name: str, where: str) -> Accelerator:
        own = dict(self.accelerators)
        if canonical(name) in own:
            return own[canonical(name)]
        try:
            return find_accelerator(name, where)
        except InputError as error:
            known = [*(entry.name for entry in own.values()), *names(ACCELERATOR_FILES)]
            raise InputError(error.what, allowed=describe_names(name, known), where=where) from None

    def node(self, name: str, where: str) -> NodePreset:
        own = dict(self.nodes)
        if canonical(name) in own:
            return own[canonical(name)]
        try:
            return find_node(name, where)
        except InputError as error:
            if locate(name, ACCELERATOR_FILES) is not None:
                raise  # it names the nodes that hold that accelerator
            known = [*(preset.node.name for preset in own.values()), *names(NODE_FILES)]
            raise InputError(error.what, allowed=describe_names(name, known), where=where) from None


def _define_accelerators(entries: object, where: str, local: _Definitions) -> _Definitions:
    for number, table in enumerate(require_tables(entries, f"{where}: accelerator"), start=1):
        place = f"{where}: accelerator {number}"
        name = _defined_name(table, place, dict(local.accelerators))
        built = build_accelerator(table, place, local.accelerator)
        if "sources" not in table:
            built = replace(built, sources=(*built.sources, _stated(table)))
        local = replace(local, accelerators=(*local.accelerators, (canonical(name), built)))
    return local


def _define_node_types(entries: object, where: str, local: _Definitions) -> _Definitions:
    for number, table in enumerate(require_tables(entries, f"{where}: node_type"), start=1):
        place = f"{where}: node_type {number}"
        name = _defined_name(table, place, dict(local.nodes))
        base = local.node(require_text(table["like"], f"{place}.like"), f"{place}.like") if "like" in table else None
        built = _with_statement(build_node(table, place, local.accelerator, base), table)
        local = replace(local, nodes=(*local.nodes, (canonical(name), built)))
    return local


def _defined_name(table: Mapping[str, object], where: str, taken: Mapping[str, object]) -> str:
    if "name" not in table:
        raise InputError("'name' is missing", allowed="a name to refer to", where=where)
    name = require_text(table["name"], f"{where}.name")
    if canonical(name) in taken:
        raise InputError(f"'{name}' is defined twice", allowed="names of their own", where=where)
    return name


def _island(table: Mapping[str, Any], where: str, local: _Definitions) -> Island:
    """Return an island: nodes of a known type (``node``), changed by the node's own keys, or described in full."""
    values: dict[str, Any] = read_table(table, ISLAND, where, also=("node", "device", *_ISLAND_NODE_KEYS))
    if "nodes" not in values:
        raise InputError("'nodes' is missing", allowed="how many nodes", where=where)
    if "like" in table:
        raise InputError("unknown key 'like'", allowed="'node' names the type of the nodes", where=where)
    base = local.node(require_text(table["node"], f"{where}.node"), f"{where}.node") if "node" in table else None
    own = {key: value for key, value in table.items() if key in _ISLAND_NODE_KEYS}
    if base is None and "name" not in own:
        raise InputError("'node' is missing", allowed="a node type, or 'name' and a full description", where=where)
    preset = _with_statement(build_node(own, where, local.accelerator, base), own)
    devices = tuple(
        device
        for number, entry in enumerate(require_tables(table.get("device", []), f"{where}: device"), start=1)
        for device in _devices(entry, preset.node.gpus, f"{where}: device {number}")
    )
    return Island(**values, node=preset.node, fabric=preset.fabric, devices=devices)


def _devices(table: Mapping[str, Any], gpus: int, where: str) -> list[DeviceState]:
    """One accelerator, or all of a node where the table names none."""
    values: dict[str, Any] = read_table(table, DEVICE, where)
    if "node" not in values:
        raise InputError("'node' is missing", allowed="node, and gpu for one of it, counted from 0", where=where)
    named = [values.pop("gpu")] if "gpu" in values else range(gpus)
    return [DeviceState(gpu=gpu, **values) for gpu in named]


def _with_statement(preset: NodePreset, table: Mapping[str, Any]) -> NodePreset:
    """Return the preset with the file named as the source of what the table states."""
    if not table or "sources" in table:
        return preset
    return replace(preset, node=replace(preset.node, sources=(*preset.node.sources, _stated(table))))


def _stated(table: Mapping[str, Any]) -> str:
    keys = []
    for key, value in table.items():
        if key not in ("name", "like"):
            keys += [f"{key}.{inner}" for inner in value] if isinstance(value, Mapping) else [key]
    return f"{', '.join(keys)}: stated in the cluster file"


def _accelerator(part: Accelerator) -> list[str]:
    """The table of an accelerator; one that is like a catalogued part says so, and all values, to inherit none."""
    if locate(part.constants_of, ACCELERATOR_FILES) is None:
        return _section("island.accelerator", part, ACCELERATOR)
    like = f"like = {quoted(part.constants_of)}"
    return ["", "[island.accelerator]", like, *_lines(part, ACCELERATOR, defaults=True)]


def _section(title: str, value: object, schema: tuple[Field, ...]) -> list[str]:
    lines = _lines(value, schema)
    return ["", f"[{title}]", *lines] if lines else []


def _lines(value: object, schema: tuple[Field, ...], *, defaults: bool = False) -> list[str]:
    """Return ``key = value`` for each attribute under its first key; those at their default only when asked for."""
    lines = {}
    for entry in schema:
        owner, name = _owner(value, entry.attr)
        current = getattr(owner, name)
        if entry.attr not in lines and (defaults or current != _default(owner, name)):
            lines[entry.attr] = f"{entry.key} = {entry.write(current)}"
    return list(lines.values())


def _owner(value: Any, path: str) -> tuple[Any, str]:
    *outer, name = path.split(".")
    for part in outer:
        value = getattr(value, part)
    return value, name


def _default(owner: Any, name: str) -> object:
    """Return the default of a dataclass field, or a value that equals none."""
    return next(entry.default for entry in fields(owner) if entry.name == name)

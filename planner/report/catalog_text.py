"""The catalogue in words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.text import Text

from hardware import catalog
from hardware.nouns import count
from planner.report.catalog_json import catalog_names
from planner.report.console import section, show
from planner.report.layout_text import labelled
from planner.report.tables import ruled_table
from planner.report.words import large

_HINTS = MappingProxyType(
    {
        "models": "plan catalog models NAME shows one; a Hugging Face config.json or a TOML file is a model too.",
        "accelerators": "plan catalog accelerators NAME shows one with its sources.",
        "clusters": "NAME:NODES names a cluster of so many nodes; machines of fixed size take no :NODES.",
    }
)


def print_list(console: Console, kind: str) -> None:
    """Print all names of a kind of entry."""
    names = [Text(name) for name in catalog_names(kind)]
    body = _clusters() if kind == "clusters" else Columns(names, padding=(0, 2), column_first=True)
    show(console, body, Text(_HINTS[kind]))


def _clusters() -> RenderableType:
    table = ruled_table()
    for title in ("name", "GPUs", "accelerator", "scale-up GB/s", "network Gb/s"):
        table.add_column(title, justify="left" if title in ("name", "accelerator") else "right")
    for name in catalog.node_type_names():
        node = catalog.node_type(name)
        network = f"{node.nics.count} x {8e-9 * node.nics.bytes_per_s:.0f}" if node.nics.count else "none"
        table.add_row(
            f"{name}:NODES",
            str(node.gpus),
            node.accelerator.name,
            f"{1e-9 * node.scale_up.bytes_per_s:.0f}",
            network,
        )
    for name in catalog.fixed_cluster_names():
        machine = catalog.cluster(name)
        kinds = ", ".join(sorted({island.node.accelerator.name for island in machine.islands}))
        table.add_row(name, str(machine.gpus), kinds, "", "")
    return table


def print_entry(console: Console, entry: Mapping[str, object]) -> None:
    """Print one entry as labelled lines.

    Parameters
    ----------
    console : Console
        Where to.
    entry : mapping
        As :func:`planner.report.catalog_json.catalog_entry` returns it.
    """
    rows: list[tuple[str, str]] = []
    for name, value in entry.items():
        if name == "islands" and isinstance(value, list):
            rows += [row for number, island in enumerate(value) for row in _island_rows(number, island)]
        elif name == "layer_kinds" and isinstance(value, list):
            rows.append(("layer kinds", "\n".join(_layer_words(kind) for kind in value)))
        elif name != "name" and value:
            rows.append((name.replace("_", " "), _words(value)))
    show(console, section(f"{entry['name']}", labelled(_ordered(rows))))


def _island_rows(number: int, island: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say what one island of a cluster is made of."""
    fast, nics = island["scale_up"], island["nics"]
    part = f"{island['gpus_per_node']} x {island['accelerator']} of {island['memory_gib_per_gpu']:.4g} GiB"
    domain = f"{fast['kind']} {fast['shape']}, {count(fast['domain_gpus'], 'GPU')} a domain"
    adapters = f"{count(nics['per_node'], nics['kind'] + ' adapter')} a node, {nics['gbit_per_s']:g} Gb/s each"
    tiers = ", ".join(
        f"{tier['name']} " + (f"of {count(tier['nodes'], 'node')}" if tier["nodes"] else "over all nodes")
        for tier in island["fabric"]
    )
    network = f"{adapters}, {nics['latency_us']:.3g} us" + (f"; {tiers}" if tiers else "")
    return [
        (f"island {number}", f"{count(island['nodes'], 'node')} {island['node']} with {part}"),
        ("  scale-up", f"{domain}, {fast['gb_per_s_per_gpu']:g} GB/s a GPU and direction, {fast['latency_us']:.3g} us"),
        ("  network", network if nics["per_node"] else "none"),
        ("  cooling", str(island["cooling"])),
    ]


def _layer_words(kind: Mapping[str, Any]) -> str:
    return f"{kind['count']} x {kind['name']} of {large(kind['parameters'])} parameters"


def _ordered(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Put sources and notes last."""
    last = ("sources", "notes", "flops convention")
    return [row for row in rows if row[0] not in last] + [row for row in rows if row[0] in last]


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" + (f" ({large(value)})" if value >= 1_000_000 else "")
    if isinstance(value, float):
        return large(value) if value >= 1e6 else f"{value:,.10g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{str(name).replace('_', ' ')} {_words(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "\n".join(_words(item) for item in value)
    return str(value)

"""Networks from topograph models, of all versions of the model."""

from collections.abc import Mapping
from typing import Any, Final

from hardware.importers.device_names import accelerator_in
from hardware.importers.document import as_list, as_mapping, as_name, by_name, load_yaml
from hardware.importers.facts import NetworkFacts
from hardware.importers.hostlist import MOST_HOSTS, expand_hosts
from hardware.importers.source_text import SourceText
from hardware.importers.switch_tree import check_once, tree_tiers

TOPOGRAPH_FORM: Final = "topograph model"
_Names = dict[str, tuple[str, ...]]


def read_topograph(source: SourceText) -> NetworkFacts:
    """Read a topograph model.

    Parameters
    ----------
    source : SourceText
        YAML without aliases and tags: ``switches`` (a table, or a list with ``name``) with ``switches``, ``nodes`` or
        ``capacity_blocks`` below each; ``blocks`` or ``capacity_blocks`` with nodes, and the switch or the accelerator
        domain (``nvlink``, a label or annotation) of each; or ``nodes`` with block, type and attributes.

    Returns
    -------
    NetworkFacts
        A capacity block is a domain only where an accelerator domain is stated.

    Raises
    ------
    InputError
        Not YAML, aliases or deep nesting, or not such a model.
    """
    model = as_mapping(load_yaml(source, "a topograph model"), source, "the model")
    switches = _named(source, model.get("switches"), "switch")
    blocks = _blocks(source, model)
    nodes = _named(source, model.get("nodes"), "node")
    members = _block_members(source, blocks, nodes)
    children, hosts = _below(source, switches, members)
    for name, entry in blocks.items():
        if entry.get("switch"):
            switch = as_name(entry["switch"], source, f"block {name}")
            hosts[switch] = tuple(dict.fromkeys((*hosts.get(switch, ()), *members[name])))
    placed = {host for group in hosts.values() for host in group}
    left = {f"block {name}": tuple(host for host in group if host not in placed) for name, group in members.items()}
    hosts |= {name: group for name, group in left.items() if group}
    loose = sum(map(len, left.values()))
    if sum(map(len, hosts.values())) > MOST_HOSTS:
        raise source.wrong(f"more than {MOST_HOSTS} nodes", allowed="a model of one cluster")
    if not any(hosts.values()):
        raise source.wrong("no nodes", allowed="blocks or switches with nodes")
    check_once(source, hosts)
    children = {
        name: tuple(child for child in below if child in hosts or child in children) for name, below in children.items()
    }  # a model may name switches without describing them
    return NetworkFacts(
        where=source.where,
        form=TOPOGRAPH_FORM,
        hosts=tuple(host for group in hosts.values() for host in group),
        tiers=tree_tiers(source, children, hosts),
        domains=_domains(source, blocks, members, nodes),
        accelerator=_accelerator(blocks, nodes),
        notes=(f"{loose} of {loose + len(placed)} nodes are below no switch",) if loose and switches else (),
    )


def _named(source: SourceText, value: object, what: str) -> dict[str, dict[Any, Any]]:
    """Return entries by name, of a table or of a list whose entries have one."""
    if isinstance(value, list):
        return by_name(value, source, what)
    table = as_mapping(value or {}, source, f"{what} table")
    return {str(name): as_mapping(entry or {}, source, f"{what} {name}") for name, entry in table.items()}


def _blocks(source: SourceText, model: Mapping[Any, Any]) -> dict[str, dict[Any, Any]]:
    """Return blocks by name: of a table, of a list with names, of names alone, or numbered where they have none."""
    value = model.get("blocks") or model.get("capacity_blocks")
    if not value and not model.get("nodes"):
        raise source.wrong("no list 'blocks'", allowed="blocks with switch and nodes")
    if not isinstance(value, list):
        return _named(source, value, "block")
    entries: list[dict[Any, Any]] = []
    for number, item in enumerate(value, start=1):
        if isinstance(item, str | int):
            entries.append({"name": item})
            continue
        entry = as_mapping(item, source, f"block {number}")
        if not entry.get("nodes"):
            raise source.wrong(f"block {number}: no nodes", allowed="a list such as [node[01-08]]")
        entries.append({**entry, "name": entry.get("name") or number})
    return by_name(entries, source, "block")


def _block_members(
    source: SourceText, blocks: Mapping[str, Mapping[Any, Any]], nodes: Mapping[str, Mapping[Any, Any]]
) -> _Names:
    """Return the nodes of every block: those that it lists, and those that name it."""
    found = {name: dict.fromkeys(_members(source, entry, name)) for name, entry in blocks.items()}
    for name, entry in nodes.items():
        block = entry.get("capacity_block") or entry.get("capacity_block_id")
        if block:
            found.setdefault(str(block), {})[name] = None
    return {name: tuple(members) for name, members in found.items()}


def _members(source: SourceText, entry: Mapping[Any, Any], name: str) -> tuple[str, ...]:
    """Return the nodes that a switch or block lists."""
    hosts: list[str] = []
    for text in as_list(entry.get("nodes"), source, f"nodes of {name}"):
        hosts += expand_hosts(as_name(text, source, f"nodes of {name}"), source)
        if len(hosts) > MOST_HOSTS:
            raise source.wrong(f"{name}: more than {MOST_HOSTS} nodes", allowed="a model of one cluster")
    return tuple(hosts)


def _below(
    source: SourceText, switches: Mapping[str, Mapping[Any, Any]], blocks: Mapping[str, tuple[str, ...]]
) -> tuple[_Names, _Names]:
    """Return the switches and the nodes directly below each switch."""
    children: _Names = {}
    hosts: _Names = {}
    for name, entry in switches.items():
        below = as_list(entry.get("switches"), source, f"switches of {name}")
        if below:
            children[name] = tuple(as_name(child, source, f"switches of {name}") for child in below)
        own = _members(source, entry, name)
        for block in as_list(entry.get("capacity_blocks"), source, f"capacity_blocks of {name}"):
            own += blocks.get(as_name(block, source, f"capacity_blocks of {name}"), ())
        if own or not below:
            hosts[name] = tuple(dict.fromkeys(own))
    return children, hosts


def _domains(
    source: SourceText,
    blocks: Mapping[str, Mapping[Any, Any]],
    members: Mapping[str, tuple[str, ...]],
    nodes: Mapping[str, Mapping[Any, Any]],
) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of every accelerator domain, as blocks or nodes state it."""
    found: dict[str, dict[str, None]] = {}
    for name, entry in blocks.items():
        if domain := _domain(source, entry, f"block {name}"):
            found.setdefault(domain, {}).update(dict.fromkeys(members[name]))
    for name, entry in nodes.items():
        attributes = as_mapping(entry.get("attributes") or {}, source, f"attributes of {name}")
        if domain := _domain(source, attributes, f"attributes of {name}"):
            found.setdefault(domain, {})[name] = None
    return tuple(map(tuple, found.values()))


def _domain(source: SourceText, entry: Mapping[Any, Any], what: str) -> str:
    """Return the name of the accelerator domain of an entry; the domain, not the part of one."""
    tables = (as_mapping(entry.get(key) or {}, source, f"{key} of {what}") for key in ("labels", "annotations"))
    notes = {key: value for table in tables for key, value in table.items()}
    named = sorted((str(key) for key in notes if "accelerat" in str(key)), key=lambda key: "sub-domain" in key)
    return str(notes[named[0]]) if named else str(entry.get("nvlink") or "")


def _accelerator(blocks: Mapping[str, Mapping[Any, Any]], nodes: Mapping[str, Mapping[Any, Any]]) -> str:
    """Return the catalogue's name of the accelerator that all blocks and nodes state; empty where none is known."""
    stated = {str(entry["type"]) for entry in (*blocks.values(), *nodes.values()) if entry.get("type")}
    for entry in nodes.values():
        attributes = entry.get("attributes")
        listed = attributes.get("gpus") if isinstance(attributes, dict) else None
        stated |= {str(gpu.get("model")) for gpu in listed or () if isinstance(gpu, dict)}
    found = {accelerator_in(name) for name in stated}
    return found.pop() if len(found) == 1 else ""

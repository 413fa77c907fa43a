"""Networks from SLURM's ``topology.conf``, topograph models and NetQ's topology graph."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import yaml

from hardware.cluster import LinkKind
from hardware.importers.facts import NetworkFacts
from hardware.importers.hostlist import expand_hosts
from hardware.importers.source_text import SourceText
from hardware.importers.switch_tree import tree_tiers

SLURM_FORM: Final = "SLURM topology.conf"
TOPOGRAPH_FORM: Final = "topograph model"
NETQ_FORM: Final = "NetQ topology graph"
MOST_YAML: Final = 2**20
MOST_SLURM: Final = 4 * 2**20
"""Characters: far more than 50,000 names need."""
MOST_YAML_EVENTS: Final = 50_000
MOST_NESTING: Final = 32
MOST_NAMES: Final = 50_000
"""Nodes and switches that a file may list, repetitions included."""
MOST_JSON_OBJECTS: Final = 150_000
"""Devices and cables of a graph: 2,048 nodes with eight adapters in a three-tier network have about 60,000."""
_PAIR: Final = re.compile(r"(?<!\w)(\w{1,40}+)\s*+=\s*+([^\s#]+)")
"""Nothing is tried twice (possessive): runs of blanks behind words would take their square."""
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_slurm(source: SourceText) -> NetworkFacts:
    """Read ``topology.conf`` of SLURM, tree or block.

    Parameters
    ----------
    source : SourceText
        Lines with ``SwitchName=``, ``Switches=``, ``Nodes=``, ``BlockName=``, ``BlockSizes=``; case does not matter.

    Raises
    ------
    InputError
        Names that are defined twice, lists that are none, trees that are none, no nodes.
    """
    source.check_size(MOST_SLURM, "a topology.conf of one cluster")
    children: dict[str, tuple[str, ...]] = {}
    hosts: dict[str, tuple[str, ...]] = {}
    blocks: dict[str, tuple[str, ...]] = {}
    named = 0
    for number, line in _continued(source.lines()):
        pairs = {key.casefold(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        name = pairs.get("switchname") or pairs.get("blockname")
        if name is None:
            if line.partition("#")[0].strip() and "blocksizes" not in pairs:
                raise source.wrong(f"'{line.strip()[:60]}'", number, "SwitchName=, BlockName= or BlockSizes=")
            continue
        if name in children or name in hosts or name in blocks:
            raise source.wrong(f"'{name}' is defined twice", number, "each switch or block once")
        nodes = expand_hosts(pairs.get("nodes", ""), source, number)
        named += len(nodes)
        if "blockname" in pairs:
            blocks[name] = nodes
        elif "switches" in pairs:
            children[name] = expand_hosts(pairs["switches"], source, number)
            named += len(children[name])
        if named > MOST_NAMES:
            raise source.wrong(f"more than {MOST_NAMES} nodes and switches", number, "a topology of one cluster")
        if "blockname" not in pairs and (nodes or "switches" not in pairs):
            hosts[name] = nodes
    every = tuple(dict.fromkeys(host for group in (*hosts.values(), *blocks.values()) for host in group))
    if not every:
        raise source.wrong("no nodes", allowed="lines with Nodes=")
    _check_once(source, hosts)
    _check_once(source, blocks)
    return NetworkFacts(
        where=source.where,
        form=SLURM_FORM,
        hosts=every,
        tiers=tree_tiers(source, children, hosts),
        domains=tuple(group for group in blocks.values() if group),
    )


def _continued(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return numbered lines; a backslash at the end joins the next one."""
    found: list[tuple[int, str]] = []
    held: list[str] = []
    for number, line in enumerate(lines, start=1):
        bare = line.rstrip()
        continued = bare.endswith("\\")
        held.append(bare[:-1] if continued else line)
        if not continued or number == len(lines):
            found.append((number - len(held) + 1, " ".join(held)))
            held = []
    return found


def _check_once(source: SourceText, groups: Mapping[str, tuple[str, ...]]) -> None:
    owner: dict[str, str] = {}
    for name, group in groups.items():
        for host in group:
            if host in owner:
                raise source.wrong(f"node '{host}' is in '{owner[host]}' and in '{name}'", allowed="one place a node")
            owner[host] = name


def read_topograph(source: SourceText) -> NetworkFacts:
    """Read a topograph model: ``switches`` with what is below them, ``blocks`` with nodes and accelerator domain.

    Parameters
    ----------
    source : SourceText
        YAML of at most ``MOST_YAML`` characters, without aliases and tags.

    Raises
    ------
    InputError
        Not YAML, aliases or deep nesting, or not such a model.
    """
    model = _mapping(_load_yaml(source), source, "the model")
    switches = _mapping(model.get("switches") or {}, source, "switches")
    blocks = model.get("blocks")
    if not isinstance(blocks, list) or not blocks:
        raise source.wrong("no list 'blocks'", allowed="blocks with switch and nodes")
    children: dict[str, tuple[str, ...]] = {}
    hosts: dict[str, tuple[str, ...]] = {}
    domains: dict[str, tuple[str, ...]] = {}
    named = 0
    for name, entry in switches.items():
        below = _mapping(entry or {}, source, f"switch {name}").get("switches") or []
        if below:
            children[str(name)] = tuple(_text(child, source, f"switches of {name}") for child in below)
    for number, entry in enumerate(blocks, start=1):
        block = _mapping(entry, source, f"block {number}")
        nodes = _node_list(block.get("nodes"), source, number)
        switch = _text(block.get("switch") or f"block {number}", source, f"block {number}")
        hosts[switch] = (*hosts.get(switch, ()), *nodes)
        named += len(nodes)
        if named > MOST_NAMES:
            raise source.wrong(f"more than {MOST_NAMES} nodes", allowed="a model of one cluster")
        notes = _mapping(
            block.get("annotations") or block.get("labels") or {}, source, f"annotations of block {number}"
        )
        domain = next((str(value) for key, value in notes.items() if "accelerator" in str(key)), "")
        domain = domain or str(block.get("nvlink") or "")
        if domain:
            domains[domain] = (*domains.get(domain, ()), *nodes)
    _check_once(source, hosts)
    hosts |= {name: () for name in map(str, switches) if name not in children and name not in hosts}
    children = {
        name: tuple(child for child in below if child in hosts or child in children) for name, below in children.items()
    }  # a model may name switches without describing them
    return NetworkFacts(
        where=source.where,
        form=TOPOGRAPH_FORM,
        hosts=tuple(host for group in hosts.values() for host in group),
        tiers=tree_tiers(source, children, hosts),
        domains=tuple(domains.values()),
    )


def _load_yaml(source: SourceText) -> object:
    source.check_size(MOST_YAML, "a model of one cluster")
    depth = 0
    try:
        for number, event in enumerate(yaml.parse(source.text, Loader=_LOADER)):
            line = event.start_mark.line + 1 if event.start_mark else 0
            if isinstance(event, yaml.AliasEvent):
                raise source.wrong("an alias", line, "YAML without aliases: they can expand without end")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTING or number > MOST_YAML_EVENTS:
                raise source.wrong("too deep or too long", line, f"{MOST_NESTING} levels, {MOST_YAML_EVENTS} entries")
        return yaml.load(source.text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "cannot be parsed"
        raise source.wrong(f"not YAML: {what}", mark.line + 1 if mark else 0, "a topograph model") from None
    except (RecursionError, ValueError, OverflowError) as error:
        if hasattr(error, "allowed"):
            raise
        raise source.wrong(f"not YAML: {str(error)[:80]}", allowed="a topograph model") from None


def _mapping(value: object, source: SourceText, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise source.wrong(f"{what}: not a table", allowed="keys and values")
    return value


def _text(value: object, source: SourceText, what: str) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise source.wrong(f"{what}: not a name", allowed="a name")
    return str(value)


def _node_list(value: object, source: SourceText, number: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise source.wrong(f"block {number}: no nodes", allowed="a list such as [node[01-08]]")
    texts = (_text(entry, source, f"nodes of block {number}") for entry in value)
    hosts: list[str] = []
    for text in texts:
        hosts += expand_hosts(text, source)
        if len(hosts) > MOST_NAMES:
            raise source.wrong(f"block {number}: more than {MOST_NAMES} nodes", allowed="a model of one cluster")
    return tuple(hosts)


def read_netq(source: SourceText) -> NetworkFacts:
    """Read the topology graph of NetQ: ``nodes`` by tier, and ``links`` with the cables of each.

    Parameters
    ----------
    source : SourceText
        JSON, as ``/topology/graph`` answers.

    Raises
    ------
    InputError
        Not JSON, not such a graph, or no hosts.
    """
    if source.text.count("{") > MOST_JSON_OBJECTS:
        raise source.wrong("too many objects", allowed=f"up to {MOST_JSON_OBJECTS}")
    try:
        data = json.loads(source.text)
    except RecursionError:
        raise source.wrong("nested too deeply", allowed=NETQ_FORM) from None
    except ValueError as error:
        what, line = getattr(error, "msg", "a number without end"), getattr(error, "lineno", 0)
        raise source.wrong(f"not JSON: {what}", line, NETQ_FORM) from None
    graph = _mapping(data[0] if isinstance(data, list) and data else data, source, "the graph")
    devices = _netq_devices(source, graph)
    names = {key: name for key, (name, _) in devices.items()}
    switches = {names[key] for key, (_, switch) in devices.items() if switch}
    cables: dict[tuple[str, str], int] = {}
    for entry in graph.get("links") or ():
        link = _mapping(entry, source, "a link")
        one, other = names.get(str(link.get("src"))), names.get(str(link.get("target")))
        if one is None or other is None:
            raise source.wrong(f"link '{str(link.get('id'))[:60]}' leads to an unknown device", allowed=NETQ_FORM)
        count = link.get("size")
        compounded = link.get("compounded_links")
        count = len(compounded) if isinstance(compounded, list) else count
        if not isinstance(count, int) or not 0 < count < 10_000:
            raise source.wrong(f"link '{str(link.get('id'))[:60]}' has no number of cables", allowed="size")
        key = (min(one, other), max(one, other))
        cables[key] = cables.get(key, 0) + count
    return fabric_facts(source, NETQ_FORM, cables, switches)


def _netq_devices(source: SourceText, graph: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return id to (name, whether it is a switch)."""
    found = {}
    for entry in graph.get("nodes") or ():
        tier = _mapping(entry, source, "a node")
        for inner in tier.get("compounded_nodes") or [tier]:
            device = _mapping(inner, source, "a device")
            name = _text(device.get("name"), source, "name of a device")
            found[str(device.get("id"))] = (name, device.get("device_type") == "switch")
        if len(found) > MOST_NAMES:
            raise source.wrong(f"more than {MOST_NAMES} devices", allowed="a graph of one cluster")
    if not found:
        raise source.wrong("no nodes", allowed=NETQ_FORM)
    return found


def fabric_facts(
    source: SourceText, form: str, cables: Mapping[tuple[str, str], int], switches: set[str]
) -> NetworkFacts:
    """Return the tiers of a network from its cables.

    Parameters
    ----------
    source : SourceText
        For messages.
    form : str
        What the file is.
    cables : mapping
        Pair of devices to number of cables.
    switches : set of str
        The devices that are switches; the others are hosts.

    Returns
    -------
    NetworkFacts
        Leaves are switches with hosts, each next tier the switches that the tier before leads to. Oversubscription is
        cables down over cables up, of all switches of a tier together.

    Raises
    ------
    InputError
        No host has a cable to a switch.
    """
    peers: dict[str, dict[str, int]] = {}
    for (one, other), count in cables.items():
        peers.setdefault(one, {})[other] = count
        peers.setdefault(other, {})[one] = count
    hosts = tuple(host for host in sorted(peers) if host not in switches and set(peers[host]) & switches)
    if not hosts:
        raise source.wrong("no cable joins a host and a switch", allowed=form)
    level = dict.fromkeys(hosts, -1)
    here = set(hosts)
    while here:
        here = {peer for name in here for peer in peers[name] if peer in switches and peer not in level}
        level |= dict.fromkeys(sorted(here), max(level.values()) + 1)
    children = {
        s: tuple(p for p in sorted(peers[s]) if 0 <= level.get(p, -1) < level[s]) for s in level if s in switches
    }
    served = {s: tuple(p for p in sorted(peers[s]) if p in level and level[p] < 0) for s in level if s in switches}
    tiers = []
    for tier, found in enumerate(tree_tiers(source, children, served)):
        down = sum(
            n for s in switches for p, n in peers.get(s, {}).items() if level.get(s) == tier > level.get(p, tier)
        )
        up = sum(n for s in switches for p, n in peers.get(s, {}).items() if level.get(s) == tier < level.get(p, -1))
        ratio = max(1.0, down / up) if up else 0.0
        groups = tuple(sorted(tuple(sorted(group)) for group in found.groups))
        tiers.append(replace(found, groups=groups, oversubscription=round(ratio, 4)))
    counts = [sum(n for p, n in peers[host].items() if p in switches) for host in hosts]
    usual = max(sorted(set(counts), reverse=True), key=counts.count)
    odd = sum(count != usual for count in counts)
    notes = (f"{odd} of {len(hosts)} hosts show another number of adapters than {usual}",) if odd else ()
    return NetworkFacts(where=source.where, form=form, hosts=hosts, tiers=tuple(tiers), adapters=usual, notes=notes,
                        kind=LinkKind.ROCE if form == NETQ_FORM else LinkKind.INFINIBAND)  # fmt: skip

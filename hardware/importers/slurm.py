"""Networks from SLURM's ``topology.conf`` and ``topology.yaml``, tree and block."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hardware.importers.document import as_mapping, as_name, by_name, load_yaml
from hardware.importers.facts import NetworkFacts
from hardware.importers.hostlist import MOST_HOSTS, expand_hosts
from hardware.importers.source_text import SourceText
from hardware.importers.switch_tree import check_once, tree_tiers

SLURM_FORM: Final = "SLURM topology.conf"
SLURM_YAML_FORM: Final = "SLURM topology.yaml"
MOST_SLURM: Final = 4 * 2**20
"""Characters: far more than the names of a cluster need."""
_PAIR: Final = re.compile(r"(?<!\w)(\w{1,40}+)\s*+=\s*+([^\s#]+)")
"""Nothing is tried twice (possessive): runs of blanks behind words would take their square."""


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
        stated = line.partition("#")[0]
        pairs = {key.casefold(): value.strip("\"'") for key, value in _PAIR.findall(stated)}
        if pairs and (rest := _PAIR.sub("", stated).strip()):
            raise source.wrong(f"'{rest[:60]}' belongs to no key", number, "lists without blanks: Nodes=n[1-8],m1")
        name = pairs.get("switchname") or pairs.get("blockname")
        if name is None:
            if stated.strip() and "blocksizes" not in pairs:
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
        if named > MOST_HOSTS:
            raise source.wrong(f"more than {MOST_HOSTS} nodes and switches", number, "a topology of one cluster")
        if "blockname" not in pairs and (nodes or "switches" not in pairs):
            hosts[name] = nodes
    return _network(source, SLURM_FORM, children, hosts, blocks)


def _network(
    source: SourceText,
    form: str,
    children: Mapping[str, tuple[str, ...]],
    hosts: Mapping[str, tuple[str, ...]],
    blocks: Mapping[str, tuple[str, ...]],
) -> NetworkFacts:
    """Return the network of switches with what is below each, and of blocks."""
    every = tuple(dict.fromkeys(host for group in (*hosts.values(), *blocks.values()) for host in group))
    if not every:
        raise source.wrong("no nodes", allowed="switches or blocks with nodes")
    check_once(source, hosts)
    check_once(source, blocks)
    return NetworkFacts(
        where=source.where,
        form=form,
        hosts=every,
        tiers=tree_tiers(source, children, hosts),
        domains=tuple(group for group in blocks.values() if group),
    )


def read_slurm_yaml(source: SourceText) -> NetworkFacts:
    """Read ``topology.yaml`` of SLURM: a list of topologies, each a tree of switches, blocks, or flat.

    Parameters
    ----------
    source : SourceText
        YAML without aliases and tags. The tree and the blocks of the default topology count, else the first ones.

    Raises
    ------
    InputError
        Not YAML, no list of topologies, names that are defined twice, trees that are none, no nodes.
    """
    entries = load_yaml(source, SLURM_YAML_FORM)
    if not isinstance(entries, list):
        raise source.wrong("no list of topologies", allowed="- topology: NAME with tree: or block:")
    topologies = [as_mapping(entry, source, "a topology") for entry in entries]
    topologies.sort(key=lambda entry: not entry.get("cluster_default"))
    switches = by_name(_first(source, topologies, "tree").get("switches"), source, "switch", "switch")
    blocks = by_name(_first(source, topologies, "block").get("blocks"), source, "block", "block")
    children = {name: _listed(source, entry, "children") for name, entry in switches.items() if entry.get("children")}
    hosts = {name: _listed(source, entry, "nodes") for name, entry in switches.items() if name not in children}
    return _network(
        source, SLURM_YAML_FORM, children, hosts, {name: _listed(source, e, "nodes") for name, e in blocks.items()}
    )


def _first(source: SourceText, topologies: Sequence[Mapping[Any, Any]], kind: str) -> dict[Any, Any]:
    """Return the first topology of a kind; empty if there is none."""
    return next((as_mapping(entry[kind], source, kind) for entry in topologies if entry.get(kind)), {})


def _listed(source: SourceText, entry: Mapping[Any, Any], key: str) -> tuple[str, ...]:
    return expand_hosts(as_name(entry.get(key) or "", source, key), source)


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

"""Networks from NetQ's topology graph, and the tiers that the cables of any network amount to."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hardware.cluster import LinkKind
from hardware.importers.document import as_mapping, as_name
from hardware.importers.facts import NetworkFacts
from hardware.importers.hostlist import MOST_HOSTS
from hardware.importers.source_text import SourceText
from hardware.importers.switch_tree import tree_tiers

NETQ_FORM: Final = "NetQ topology graph"
MOST_JSON_OBJECTS: Final = 150_000
"""Devices and cables of a graph: 2,048 nodes with eight adapters in a three-tier network have about 60,000."""


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
    graph = as_mapping(data[0] if isinstance(data, list) and data else data, source, "the graph")
    devices = _netq_devices(source, graph)
    names = {key: name for key, (name, _) in devices.items()}
    switches = {names[key] for key, (_, switch) in devices.items() if switch}
    cables: dict[tuple[str, str], int] = {}
    for entry in graph.get("links") or ():
        link = as_mapping(entry, source, "a link")
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
        tier = as_mapping(entry, source, "a node")
        for inner in tier.get("compounded_nodes") or [tier]:
            device = as_mapping(inner, source, "a device")
            name = as_name(device.get("name"), source, "name of a device")
            found[str(device.get("id"))] = (name, device.get("device_type") == "switch")
        if len(found) > MOST_HOSTS:
            raise source.wrong(f"more than {MOST_HOSTS} devices", allowed="a graph of one cluster")
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

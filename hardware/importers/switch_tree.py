"""Trees of switches: who is below whom, and hence the tiers of a network."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from hardware.importers.facts import TierFacts
from hardware.importers.source_text import SourceText

MOST_LEVELS: Final = 8
MOST_SERVED: Final = 2_000_000
"""Hosts below a switch, over all switches: 256 spines above 2,048 nodes have half a million."""
_NAMES: Final = ("leaf", "spine", "core")


def tree_tiers(
    source: SourceText, children: Mapping[str, Sequence[str]], hosts: Mapping[str, Sequence[str]]
) -> tuple[TierFacts, ...]:
    """Return the tiers of a tree.

    Parameters
    ----------
    source : SourceText
        For messages.
    children : mapping
        Switch to the switches below it.
    hosts : mapping
        Switch to the hosts that it serves directly.

    Returns
    -------
    tuple of TierFacts
        From the leaf outwards; a tier whose groups are those of the tier before is left out.

    Raises
    ------
    InputError
        Switches in a circle, a switch that nobody defines, a host below two leaves, more than ``MOST_LEVELS`` tiers.
    """
    levels = _levels(source, children, hosts)
    below: dict[str, tuple[str, ...]] = {}
    tiers: list[TierFacts] = []
    served = 0
    for level in range(max(levels.values(), default=0) + 1):
        here = [switch for switch in levels if levels[switch] == level]
        alike: dict[tuple[str, ...], tuple[str, ...]] = {}
        for switch in here:
            leads_to, own = tuple(children.get(switch, ())), list(hosts.get(switch, ()))
            if not own and leads_to in alike:  # the spines of a pod lead to the same leaves
                below[switch] = alike[leads_to]
                continue
            for child in leads_to:
                own += below[child]
                if len(own) > MOST_SERVED:
                    break
            served += len(own)
            if served > MOST_SERVED:
                raise source.wrong("too many switches with too many hosts", allowed=f"{MOST_SERVED} in all")
            below[switch] = tuple(dict.fromkeys(own))
            if not hosts.get(switch):
                alike[leads_to] = below[switch]
        groups = _merged(list({id(below[switch]): below[switch] for switch in here if below[switch]}.values()))
        if groups and (not tiers or {frozenset(g) for g in groups} != {frozenset(g) for g in tiers[-1].groups}):
            rails = _rails([below[switch] for switch in here if below[switch]], groups) if level == 0 else 1
            tiers.append(TierFacts(name=_NAMES[min(len(tiers), 2)], groups=groups, rails=rails))
    return tuple(tiers)


def _rails(served: Sequence[Sequence[str]], groups: Sequence[Sequence[str]]) -> int:
    """Leaf switches of every group that each serve all of its hosts; 1 where groups have unlike numbers of them."""
    whole = [frozenset(group) for group in groups]
    counts = Counter(frozenset(hosts) for hosts in served)
    found = {counts[group] for group in whole}
    return found.pop() if len(found) == 1 and sum(counts.values()) == sum(counts[group] for group in whole) else 1


def _levels(
    source: SourceText, children: Mapping[str, Sequence[str]], hosts: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Return for each switch how far above hosts it is: 0 for a leaf."""
    levels: dict[str, int] = {}
    waiting = dict.fromkeys((*hosts, *children))
    for _ in range(MOST_LEVELS):
        ready = {}
        for switch in waiting:
            unknown = [child for child in children.get(switch, ()) if child not in hosts and child not in children]
            if unknown:
                raise source.wrong(f"switch '{switch}' leads to '{unknown[0]}', which is nowhere defined")
            inner = [levels.get(child, -1) for child in children.get(switch, ())]
            if all(level >= 0 for level in inner):
                ready[switch] = max(inner, default=-1) + 1
        levels |= ready
        waiting = {switch: None for switch in waiting if switch not in ready}
        if not waiting:
            return levels
    some = next(iter(waiting))
    raise source.wrong(f"switch '{some}' is below itself, or above {MOST_LEVELS} tiers", allowed="a tree of switches")


def _merged(groups: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return groups that share no host: switches that serve the same hosts (rails, spines) count as one."""
    owner: dict[str, int] = {}
    merged: list[list[str]] = []
    for group in groups:
        places = sorted({owner[host] for host in group if host in owner})
        home = places[0] if places else len(merged)
        if not places:
            merged.append([])
        for place in places[1:]:
            merged[home] += merged[place]
            merged[place] = []
        merged[home] += [host for host in group if host not in owner]
        owner |= dict.fromkeys(merged[home], home)
    return tuple(tuple(group) for group in merged if group)


def check_once(source: SourceText, groups: Mapping[str, tuple[str, ...]]) -> None:
    """Raise InputError where a node is in two groups."""
    owner: dict[str, str] = {}
    for name, group in groups.items():
        for host in group:
            if host in owner:
                raise source.wrong(f"node '{host}' is in '{owner[host]}' and in '{name}'", allowed="one place a node")
            owner[host] = name

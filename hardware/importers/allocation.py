"""The part of a network that a scheduler gave to a job: some hosts, under unlike parts of its switches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hardware.errors import InputError
from hardware.importers.facts import NetworkFacts, TierFacts
from hardware.importers.hostlist import expand_hosts
from hardware.importers.source_text import SourceText

MOST_NAMED: Final = 5


def allocated(network: NetworkFacts, hosts: str) -> NetworkFacts:
    """Keep the hosts of an allocation, neighbours first.

    Parameters
    ----------
    network : NetworkFacts
        With the names of its hosts.
    hosts : str
        Names as SLURM lists them, such as ``n[001-004,017]``.

    Returns
    -------
    NetworkFacts
        Hosts in the order of the outermost groups, then of the groups inside them; groups without a host are gone.

    Raises
    ------
    InputError
        A name is not understood, is given twice, or is no host of the network.
    """
    names = expand_hosts(hosts, SourceText("--hosts", hosts))
    most, often = Counter(names).most_common(1)[0] if names else ("no host", 2)
    if often > 1:
        raise InputError(f"--hosts names {most}" + (" twice" if names else ""), allowed="hosts, each once")
    known = set(network.hosts)
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(unknown[:MOST_NAMED]) + (", ..." if len(unknown) > MOST_NAMED else "")
        some = ", ".join(network.hosts[:MOST_NAMED])
        raise InputError(f"--hosts: {shown} in no list of {network.where}", allowed=f"hosts such as {some}")
    wanted = set(names)
    tiers = tuple(replace(tier, groups=_kept(tier.groups, wanted)) for tier in network.tiers)
    domains = _kept(network.domains, wanted)
    levels = [*(tier.groups for tier in reversed(tiers)), domains]
    numbered = [{name: number for number, group in enumerate(groups) for name in group} for groups in levels]
    place = {name: tuple(group.get(name, -1) for group in numbered) for name in names}
    given = {name: number for number, name in enumerate(names)}
    ordered = tuple(sorted(names, key=lambda name: (place[name], given[name])))
    return replace(network, hosts=ordered, tiers=_distinct(tiers), domains=domains)


def _kept(groups: Sequence[Sequence[str]], wanted: set[str]) -> tuple[tuple[str, ...], ...]:
    kept = (tuple(name for name in group if name in wanted) for group in groups)
    return tuple(group for group in kept if group)


def _distinct(tiers: Sequence[TierFacts]) -> tuple[TierFacts, ...]:
    """Leave out tiers whose groups are those of the tier inside, as seen from the allocation."""
    found: list[TierFacts] = []
    for tier in tiers:
        if not found or {frozenset(group) for group in tier.groups} != {frozenset(group) for group in found[-1].groups}:
            found.append(tier)
    return tuple(found)

"""Constants of the communication model, loaded from ``network.toml``, and which of them a tier uses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from costmodels.job import Dispatcher
from hardware.cluster import LinkKind
from hardware.package_table import package_table
from hardware.tiers import Tier


@dataclass(frozen=True, kw_only=True)
class LinkConstants:
    """What software makes of one class of links.

    Attributes
    ----------
    kinds : tuple of LinkKind
        Kinds of link that share these constants.
    bytes_per_s : float
        Rate of one accelerator at which the class was measured; generations of one kind are told apart by it.
    launch_s : float
        Start of a collective whose innermost tier this is [s].
    hop_s : float
        One step from neighbour to neighbour, at the tier latency ``latency_s`` [s].
    ring, alltoall, in_network : float
        Achieved share of the rate: in rings and point to point, in all-to-all, and in reductions by the switch [1].
    copy_bytes_per_s : float
        Rate at which a member of a group whose innermost tier this is moves its own part, beside what passes links.
    incast : float
        Flows into one adapter at which all-to-all falls to half; 0.0: it does not fall.
    """

    kinds: tuple[LinkKind, ...]
    bytes_per_s: float
    launch_s: float
    hop_s: float
    latency_s: float
    ring: float
    copy_bytes_per_s: float
    alltoall: float
    in_network: float
    incast: float


@dataclass(frozen=True, kw_only=True)
class DispatcherConstants:
    """What a token dispatcher adds to its transfers; see :mod:`costmodels.collectives.dispatch`.

    ``launch_s`` is its fixed cost per call [s]; ``scale_up`` and ``scale_out`` are the achieved shares of the rates
    inside and across domains [1].
    """

    launch_s: float
    scale_up: float
    scale_out: float


@dataclass(frozen=True, kw_only=True)
class NetworkConstants:
    """Every constant of the communication model; meanings, sources and ranges stand in ``network.toml``."""

    exponent: float
    interference: float
    in_network_fill: float
    in_network_s: float
    tree: float
    peer_s: float
    remote_peer_s: float
    group_bytes_per_s: float
    incast_power: float
    rail_gpus: int
    links: tuple[LinkConstants, ...]
    dispatchers: MappingProxyType[Dispatcher, DispatcherConstants]

    def link(self, tier: Tier) -> LinkConstants:
        """Return the class of a tier: of its kind, the one nearest in rate (on a logarithmic scale).

        Parameters
        ----------
        tier : Tier
            A tier of any kind.

        Returns
        -------
        LinkConstants
            Every kind has at least one class.
        """
        classes = self._classes[tier.kind]
        rate = max(tier.bytes_per_s, 1.0)
        return min(classes, key=lambda link: abs(math.log(rate / link.bytes_per_s))) if classes[1:] else classes[0]

    @cached_property
    def _classes(self) -> Mapping[LinkKind, tuple[LinkConstants, ...]]:
        """Classes of every kind of link."""
        return MappingProxyType({kind: tuple(link for link in self.links if kind in link.kinds) for kind in LinkKind})

    def hop_s(self, tier: Tier) -> float:
        """Return the time of one step over a tier: as measured, more where the tier's latency exceeds the usual one."""
        link = self.link(tier)
        return link.hop_s + max(0.0, tier.latency_s - link.latency_s)


def _number(table: Mapping[str, Any], name: str) -> float:
    return float(table[name]["value"])


@lru_cache(maxsize=1)
def default_network() -> NetworkConstants:
    """Return the constants of ``network.toml``."""
    return network_of(package_table("costmodels.collectives", "network.toml"))


def network_of(table: Mapping[str, Any]) -> NetworkConstants:
    """Build the constants from a parsed ``network.toml``."""
    names = (
        "exponent",
        "interference",
        "in_network_fill",
        "in_network_s",
        "tree",
        "peer_s",
        "remote_peer_s",
        "group_bytes_per_s",
        "incast_power",
    )
    fields = LinkConstants.__dataclass_fields__
    links = tuple(
        LinkConstants(
            kinds=tuple(LinkKind(kind) for kind in row["kinds"]),
            **{name: float(row[name]) for name in fields if name != "kinds"},
        )
        for row in table["link"]
    )
    dispatchers = {
        Dispatcher(name): DispatcherConstants(**{key: float(row[key]) for key in ("launch_s", "scale_up", "scale_out")})
        for name, row in table["dispatcher"].items()
    }
    return NetworkConstants(
        rail_gpus=int(table["rail_gpus"]["value"]),
        links=links,
        dispatchers=MappingProxyType(dispatchers),
        **{name: _number(table, name) for name in names},
    )

"""A group's way through the hierarchy: rates, capacities and steps that every algorithm needs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodels.collectives.constants import NetworkConstants
from costmodels.collectives.fabric import alltoall_bytes_per_s, ring_bytes_per_s
from costmodels.mesh import PlacedGroup
from costmodels.table import Floats, Ints
from hardware.adapters import least_of_senders, least_share
from hardware.tiers import Tier


@dataclass(frozen=True, kw_only=True, eq=False)
class Crossing:
    """Leaving the domains of one tier over the next: arrays (S,).

    ``parts`` is the number of domains that the group leaves and enters, ``inside`` the members in one of them,
    ``bytes_per_s`` what one of these domains can send for the group, ``pairs_bytes_per_s`` what each member can to all
    others, ``neighbour_bytes_per_s`` what its last member can when the others send inside, ``even`` what the group with
    the fewest adapters has of an even share, ``steps`` the neighbours along a ring that this crossing joins, ``levels``
    the depth of a binary tree over it. Where a group stays within one domain ``parts`` is 1.
    """

    tier: Tier
    parts: Floats
    inside: Floats
    bytes_per_s: Floats
    pairs_bytes_per_s: float
    even: Floats
    neighbour_bytes_per_s: Floats
    steps: Floats
    levels: Floats
    hop_s: float
    in_network_reduction: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """Everything about placed groups that does not depend on the message; arrays (S,)."""

    size: Floats
    inside: Floats
    ring_bytes_per_s: Floats
    alltoall_bytes_per_s: Floats
    pair_bytes_per_s: Floats
    copy_bytes_per_s: float
    in_network_bytes_per_s: float
    launch_s: float
    hop_s: float
    crossings: tuple[Crossing, ...]


def _share(tier: Tier, stride: int) -> float:
    """What the worst-off accelerator has of an even share, in groups of a stride; its own way may bind before that."""
    used = len({nic for own in tier.adapters for nic in own})
    least_bytes_per_s = least_share(tier.adapters, stride) * used / len(tier.adapters) * tier.nic_bytes_per_s
    return min(1.0, least_bytes_per_s / tier.adapter_bytes_per_s)


def _shares(tier: Tier, stride: Ints) -> Floats:
    """Least share of the adapters over an even one for groups of each stride, shape (S,)."""
    strides, index = np.unique(stride, return_inverse=True)
    found: Floats = np.array([_share(tier, int(step)) for step in strides])[index.reshape(-1)]
    return found


def _of_senders(tier: Tier, stride: Ints) -> Floats:
    """Rate of the slowest of a node's last ``stride`` accelerators towards the next node, shape (S,)."""
    strides, index = np.unique(np.minimum(stride, len(tier.adapters)), return_inverse=True)
    paces = np.array([least_of_senders(tier.adapters, int(step)) for step in strides])
    found: Floats = np.minimum(paces[index.reshape(-1)] * tier.nic_bytes_per_s, tier.way_bytes_per_s)
    return found


def route_of(group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants) -> Route:
    """Resolve a placed group against tiers and constants.

    Parameters
    ----------
    group : PlacedGroup
        S groups.
    tiers : tuple of Tier
        Hierarchy that the group was placed on.
    constants : NetworkConstants
        Efficiencies and step times per class of link.

    Returns
    -------
    Route
        Rates are after software efficiency. A domain's capacity towards the next tier is its members' fair share of the
        adapters (all groups of an axis run at the same time), at most what one group's channels carry.
    """
    inner = constants.link(tiers[0])
    together = group.within(0)
    return Route(
        size=group.size.astype(np.float64),
        inside=together.astype(np.float64),
        alltoall_bytes_per_s=alltoall_bytes_per_s(tiers[0], together, group.stride) * inner.alltoall,
        ring_bytes_per_s=ring_bytes_per_s(tiers[0], together, group.stride) * inner.ring,
        pair_bytes_per_s=ring_bytes_per_s(tiers[0], np.minimum(together, 2), group.stride) * inner.ring,
        copy_bytes_per_s=inner.copy_bytes_per_s,
        in_network_bytes_per_s=tiers[0].bytes_per_s * inner.in_network if tiers[0].in_network_reduction else 0.0,
        launch_s=inner.launch_s,
        hop_s=constants.hop_s(tiers[0]),
        crossings=tuple(_crossings(group, tiers, constants)),
    )


def _crossings(group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants) -> Iterator[Crossing]:
    """Crossings from the inside out, as far as any of the groups goes."""
    own, speeds = np.full(group.size.shape, np.inf), (1.0, 1.0, 1.0)
    for index in range(1, len(tiers)):
        parts = group.parts(index - 1).astype(np.float64)
        if not (parts > 1.0).any():  # nobody leaves a domain of this size, nor one of the next
            return
        tier, link = tiers[index], constants.link(tiers[index])
        inside = group.within(index - 1).astype(np.float64)
        outer = group.parts(index).astype(np.float64)
        even, alone = np.ones(group.size.shape), 1.0
        if tier.kind != tiers[index - 1].kind:  # the adapters: neighbours beside each other use the same ones
            speeds = (group.ring_pace.speed, group.pairs_pace.speed, group.neighbour_pace.speed)
            senders = np.maximum(tiers[index - 1].gpus / inside, 1.0)
            own = np.maximum(max(tier.bytes_per_s, tier.adapter_bytes_per_s), tier.pair_bytes_per_s / senders)
            if tier.adapters:
                even, alone = _shares(tier, group.stride), _share(tier, len(tier.adapters))
                own = _of_senders(tier, group.stride)
        ring = inside * tier.bytes_per_s * even * (link.ring * speeds[0])
        yield Crossing(
            tier=tier,
            parts=parts,
            inside=inside,
            bytes_per_s=np.minimum(ring, constants.group_bytes_per_s),
            pairs_bytes_per_s=tier.bytes_per_s * alone * speeds[1],
            neighbour_bytes_per_s=np.minimum(inside * tier.bytes_per_s, own) * (link.ring * speeds[2]),
            even=even,
            steps=parts - outer,
            levels=np.ceil(np.log2(parts / outer)),
            hop_s=constants.hop_s(tier),
            in_network_reduction=tier.in_network_reduction,
        )

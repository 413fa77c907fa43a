"""Bytes that a rank sends in a collective, and the part of them that has to leave its domain of every tier.

The same volumes that :mod:`costmodels.collectives.algorithms` prices, as bytes: what shared links are loaded with, and
what a traffic report counts.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.collectives.algorithms import all_reduce_algorithm
from costmodels.collectives.constants import NetworkConstants
from costmodels.mesh import PlacedGroup
from costmodels.table import Floats
from hardware.tiers import Tier

Leaving = Callable[[Floats, PlacedGroup, tuple[Tier, ...], NetworkConstants], Floats]


def sent_share(collective: str, group: PlacedGroup) -> Floats:
    """Bytes that one rank sends for each byte of the message, shape (S,).

    Parameters
    ----------
    collective : str
        A key of :data:`costmodels.collectives.COLLECTIVE_S`.
    group : PlacedGroup
        S groups.

    Returns
    -------
    array, shape (S,)
        Twice ``(n - 1) / n`` in an all-reduce, once in all others; the whole message where it is passed on.
    """
    if collective in _PASSED_ON:
        return (group.size > 1).astype(np.float64)
    share: Floats = (group.size - 1) / group.size
    return 2.0 * share if collective == "all_reduce" else share


def leaving_bytes(
    collective: str,
    message_bytes: Floats,
    group: PlacedGroup,
    tiers: tuple[Tier, ...],
    constants: NetworkConstants,
) -> Floats:
    """Bytes that one rank sends over every tier but the innermost, as its share of what its domain sends.

    Parameters
    ----------
    collective : str
        A key of :data:`costmodels.collectives.COLLECTIVE_S`.
    message_bytes : array, shape (S,)
        The message, with the meaning that it has for the collective [byte].
    group : PlacedGroup
        S groups on ``tiers``.
    tiers : tuple of Tier
        T tiers from the inside out.
    constants : NetworkConstants
        They decide which algorithm an all-reduce takes.

    Returns
    -------
    array, shape (T - 1, S)
        0.0 where a group lies within one domain of the tier below.
    """
    return LEAVING[collective](message_bytes, group, tiers, constants)


def crosses(group: PlacedGroup) -> Floats:
    """Whether a group leaves its domain over each outer tier: 1.0 or 0.0, shape (T - 1, S)."""
    return (group.domains[:, :-1] > 1).T.astype(np.float64)


def ring_leaving(message_bytes: Floats, group: PlacedGroup) -> Floats:
    """Bytes over each outer tier in one round of a ring, shape (T - 1, S).

    One member of a domain passes (n - 1) / n of the message on for all of its members there.
    """
    out: Floats = crosses(group) * (message_bytes * (group.size - 1) / group.size) / group.members[:, :-1].T
    return out


def pairs_leaving(message_bytes: Floats, group: PlacedGroup) -> Floats:
    """Bytes over each outer tier when every member outside the domain gets its part, shape (T - 1, S)."""
    out: Floats = message_bytes * (group.size - group.members[:, :-1].T) / group.size * crosses(group)
    return out


def _ring(message_bytes: Floats, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants) -> Floats:
    del tiers, constants
    return ring_leaving(message_bytes, group)


def _pairs(message_bytes: Floats, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants) -> Floats:
    del tiers, constants
    return pairs_leaving(message_bytes, group)


def _neighbour(
    message_bytes: Floats, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """All of it, at the boundary between domains: one member of each sends, hence a part for every one of them."""
    del tiers, constants
    out: Floats = message_bytes * crosses(group) / group.members[:, :-1].T
    return out


def _all_reduce(
    message_bytes: Floats, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Twice a ring; with a tree between K domains 2 (K - 1) / K, once where the network's switches reduce."""
    ring = 2.0 * ring_leaving(message_bytes, group)
    if not ring.any():
        return ring
    parts = group.domains[:, :-1].T
    passes = 2.0 * (parts - 1) / parts
    reduces = np.array([tier.in_network_reduction for tier in tiers[1:]])[:, None]
    tree = message_bytes * np.where(reduces, crosses(group), passes) / group.members[:, :-1].T
    return np.where(all_reduce_algorithm(message_bytes, group, tiers, constants) == 0, ring, tree)


_PASSED_ON: Final = ("sendrecv", "broadcast")

LEAVING: Final[MappingProxyType[str, Leaving]] = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "reduce_scatter": _ring,
        "all_gather": _ring,
        "broadcast": _ring,
        "alltoall": _pairs,
        "sendrecv": _neighbour,
    }
)

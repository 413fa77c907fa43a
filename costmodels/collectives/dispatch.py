"""Seconds to bring tokens to their experts and back, by token dispatcher.

All dispatchers move ``tokens * top_k`` routed copies in principle; they differ in what they send only once:

- all-to-all (NCCL): every copy, in one all-to-all of equal parts;
- all-gather: every token to all ranks, whatever the routing; the outputs return by reduce-scatter;
- DeepEP, Hybrid-EP: one copy per rank inside the domain and one per other domain, forwarded there over the fast
  fabric.

How many parts of the experts a token needs is said in :mod:`costmodels.collectives.routing`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from costmodels.collectives.algorithms import all_gather_s, all_to_all_s, reduce_scatter_s
from costmodels.collectives.constants import NetworkConstants
from costmodels.collectives.route import route_of
from costmodels.collectives.routing import Routing, needed_share
from costmodels.job import Dispatcher
from costmodels.mesh import PlacedGroup
from costmodels.table import Floats, Ints
from hardware.tiers import Tier


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTraffic:
    """What one rank sends to the experts.

    ``tokens`` of shape (S,) are the rank's tokens, ``token_bytes`` the size of one; ``imbalance`` is the load of the
    busiest rank over the mean (padded or dropped to a capacity: the capacity factor). ``etp`` neighbouring ranks hold
    parts of the same experts, so that all of them need a copy.
    """

    tokens: Floats
    token_bytes: float
    routing: Routing
    imbalance: float = 1.0
    etp: Ints | int = 1

    @property
    def copies_bytes(self) -> Floats:
        """Bytes of all routed copies of one rank, shape (S,)."""
        return self.tokens * (self.token_bytes * self.routing.top_k * self.imbalance)


def dispatch_s(
    traffic: TokenTraffic,
    group: PlacedGroup,
    dispatcher: Dispatcher,
    tiers: tuple[Tier, ...],
    constants: NetworkConstants,
) -> Floats:
    """Seconds to send tokens to their experts.

    Parameters
    ----------
    traffic : TokenTraffic
        Tokens of one rank, shape (S,).
    group : PlacedGroup
        Ranks that hold one copy of all experts together.
    dispatcher : Dispatcher
        The software that moves them.
    tiers : tuple of Tier
        Hierarchy from the inside out.
    constants : NetworkConstants
        Fitted constants.

    Returns
    -------
    array, shape (S,)
        Seconds; 0.0 for groups of one.

    References
    ----------
    DeepEP and Hybrid-EP (deepseek-ai/DeepEP, ``docs/legacy.md``, ``docs/README_Hybrid-EP.md``); docs/collectives.md.
    """
    return np.where(group.size > 1, DISPATCH_S[dispatcher](traffic, group, tiers, constants), 0.0)


def combine_s(
    traffic: TokenTraffic,
    group: PlacedGroup,
    dispatcher: Dispatcher,
    tiers: tuple[Tier, ...],
    constants: NetworkConstants,
) -> Floats:
    """Seconds to bring the experts' outputs back; parameters as in :func:`dispatch_s`."""
    return np.where(group.size > 1, COMBINE_S[dispatcher](traffic, group, tiers, constants), 0.0)


def copies_per_token(traffic: TokenTraffic, group: PlacedGroup, tier: int) -> Floats:
    """Copies of one token that leave the domain of a tier when each other domain that needs it gets one.

    Parameters
    ----------
    traffic : TokenTraffic
        How tokens choose their experts.
    group : PlacedGroup
        Ranks that hold the experts.
    tier : int
        Index of the tier; -1 for copies that leave the rank.

    Returns
    -------
    array, shape (S,)
        Between 0 and the number of other domains.
    """
    parts = group.parts(tier)
    held = np.maximum(group.within(tier), np.minimum(traffic.etp, group.size)) / group.size
    return (parts - 1) * needed_share(traffic.routing, traffic.routing.experts * held)


def _alltoall_s(
    traffic: TokenTraffic, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    launch = constants.dispatchers[Dispatcher.ALLTOALL].launch_s
    return launch + all_to_all_s(traffic.copies_bytes, group, tiers, constants)


def _gathered_s(
    traffic: TokenTraffic, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    return all_gather_s(traffic.tokens * traffic.token_bytes * group.size, group, tiers, constants)


def _scattered_s(
    traffic: TokenTraffic, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    return reduce_scatter_s(traffic.tokens * traffic.token_bytes * group.size, group, tiers, constants)


def _forwarded(dispatcher: Dispatcher) -> Callable[..., Floats]:
    """One copy per rank and per domain: the fast fabric carries every rank's copy, adapters one per other domain."""

    def seconds(
        traffic: TokenTraffic, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
    ) -> Floats:
        own = constants.dispatchers[dispatcher]
        route = route_of(group, tiers, constants)
        sent = traffic.tokens * (traffic.token_bytes * traffic.imbalance)
        to_ranks = copies_per_token(traffic, group, -1)
        # Of the copies for another domain one in `inside` lands on the right rank; the others are forwarded.
        outside = (route.size - route.inside) / np.maximum(route.size - 1.0, 1.0)
        over_fabric = to_ranks * (1.0 - outside / route.inside)
        longest = sent * over_fabric / (tiers[0].bytes_per_s * own.scale_up)
        total = longest
        for index, crossing in enumerate(route.crossings):
            copies = copies_per_token(traffic, group, index)
            time = sent * copies / (crossing.pairs_bytes_per_s * own.scale_out)
            longest, total = np.maximum(longest, time), total + time
        return own.launch_s + longest + constants.interference * (total - longest)

    return seconds


Exchange = Callable[[TokenTraffic, PlacedGroup, tuple[Tier, ...], NetworkConstants], Floats]

DISPATCH_S: MappingProxyType[Dispatcher, Exchange] = MappingProxyType(
    {
        Dispatcher.ALLTOALL: _alltoall_s,
        Dispatcher.ALLGATHER: _gathered_s,
        Dispatcher.DEEPEP: _forwarded(Dispatcher.DEEPEP),
        Dispatcher.HYBRIDEP: _forwarded(Dispatcher.HYBRIDEP),
    }
)
COMBINE_S: MappingProxyType[Dispatcher, Exchange] = MappingProxyType({**DISPATCH_S, Dispatcher.ALLGATHER: _scattered_s})

"""Seconds of collectives among placed groups, as the fastest of the algorithms that NCCL-like libraries choose from.

Every algorithm has a latency (its start and its dependent steps), and a bandwidth time per tier (bytes that must pass
over what the group can use of it). Tiers work at the same time, so to the longest time only a share w of the others
adds; latency and bandwidth combine smoothly:

    T_b = max_t T_t + w * (sum_t T_t - max_t T_t),    T = (alpha^p + T_b^p)^(1/p)

All functions are vectorised over S groups and take the message in bytes with NCCL's meaning: the whole vector of a
reduction, the gathered vector of an all-gather, the vector that a reduce-scatter splits, and what one member holds for
all peers together in an all-to-all. Groups of one cost nothing.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.collectives.constants import NetworkConstants
from costmodels.collectives.route import Route, route_of
from costmodels.mesh import PlacedGroup
from costmodels.table import Floats, Ints
from hardware.tiers import Tier

Bytes = Floats | float

ALL_REDUCE_ALGORITHMS: Final = ("ring", "tree", "in-network")


def _together_s(times_s: Sequence[Floats], interference: float) -> Floats:
    """Times of tiers that work at the same time: the longest, and a share of all others."""
    if len(times_s) == 1:
        return times_s[0]
    longest: Floats = np.maximum.reduce(times_s)
    combined: Floats = longest + interference * (np.add.reduce(times_s) - longest)
    return combined


def smooth_sum_s(latency_s: Floats, bandwidth_s: Floats, exponent: float) -> Floats:
    """Combine latency and bandwidth time: ``(alpha^p + T_b^p)^(1/p)`` [s].

    With p = 1 this is the alpha-beta model; p below 1 adds the slow ramp between them, where protocols switch and
    pipelines fill.

    Parameters
    ----------
    latency_s : array
        Time of an empty message [s].
    bandwidth_s : array
        Time at full rate [s].
    exponent : float
        p [1].

    Returns
    -------
    array
        Seconds, at least the larger of the two.
    """
    combined: Floats = (latency_s**exponent + bandwidth_s**exponent) ** (1.0 / exponent)
    return combined


def _time_s(latency_s: Floats, times_s: Sequence[Floats], constants: NetworkConstants) -> Floats:
    """Time of an algorithm from its latency and the bandwidth times of its tiers."""
    return smooth_sum_s(latency_s, _together_s(times_s, constants.interference), constants.exponent)


def _ring_latency_s(route: Route, rounds: float) -> Floats:
    """A ring's dependent steps: every neighbour pair once per round, the inner ones over the inner tier."""
    outer = route.crossings[0].parts if route.crossings else np.ones_like(route.size)
    latency = route.launch_s + rounds * (route.size - outer) * route.hop_s
    for crossing in route.crossings:
        latency = latency + rounds * crossing.steps * crossing.hop_s
    return latency


def _ring_s(message_bytes: Bytes, route: Route, rounds: float, constants: NetworkConstants) -> Floats:
    """Ring over all members: (n - 1) / n of the message passes every neighbour pair, once per round."""
    share = rounds * (route.size - 1.0) / route.size
    times = [message_bytes * (share / route.ring_bytes_per_s + 1.0 / (route.size * route.copy_bytes_per_s))]
    times += [
        np.where(crossing.parts > 1, message_bytes * share / crossing.bytes_per_s, 0.0) for crossing in route.crossings
    ]
    return _time_s(_ring_latency_s(route, rounds), times, constants)


def _crossing_times_s(message_bytes: Bytes, route: Route) -> list[Floats]:
    """Reduction between K domains: 2 (K - 1) / K of the message leaves each; all of it once where switches reduce."""
    times = []
    for crossing in route.crossings:
        passes = np.where(crossing.parts > 1, 1.0, 0.0)
        if not crossing.in_network_reduction:
            passes = 2.0 * (crossing.parts - 1.0) / crossing.parts
        times.append(message_bytes * passes / crossing.bytes_per_s)
    return times


def _crossing_latency_s(route: Route) -> Floats:
    """Up and down a tree over the domains."""
    latency = np.zeros_like(route.size)
    for crossing in route.crossings:
        latency = latency + 2.0 * crossing.levels * crossing.hop_s
    return latency


def _tree_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    """Chain inside the domain, tree between domains."""
    chain = 2.0 * (route.inside - 1.0)
    times = [message_bytes * (chain / route.ring_bytes_per_s + 1.0 / route.copy_bytes_per_s) / route.inside]
    times += _crossing_times_s(message_bytes, route)
    latency = route.launch_s + chain * route.hop_s + _crossing_latency_s(route)
    return _time_s(latency, [time / constants.tree for time in times], constants)


def _in_network_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    """Reduction by the switch of the domain: each member sends the message once, plus its part of the result."""
    passes = 1.0 + constants.in_network_fill / route.inside
    times = [message_bytes * passes / route.in_network_bytes_per_s, *_crossing_times_s(message_bytes, route)]
    latency = route.launch_s + constants.in_network_s * route.inside + _crossing_latency_s(route)
    return _time_s(latency, times, constants)


def _over_active(
    seconds: Callable[[Bytes, Route, NetworkConstants], Floats],
    message_bytes: Bytes,
    group: PlacedGroup,
    tiers: tuple[Tier, ...],
    constants: NetworkConstants,
) -> Floats:
    """Price the groups of more than one; the others cost nothing."""
    total = np.zeros(group.size.shape)
    active = np.flatnonzero(group.size > 1)
    if len(active) == len(total):
        return seconds(np.broadcast_to(message_bytes, total.shape), route_of(group, tiers, constants), constants)
    if len(active):
        sizes = np.broadcast_to(message_bytes, group.size.shape)[active]
        total[active] = seconds(sizes, route_of(group.take(active), tiers, constants), constants)
    return total


def _all_reduce_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    best: Floats = np.minimum.reduce(_all_reduce_times_s(message_bytes, route, constants))
    return best


def _all_reduce_times_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> list[Floats]:
    """Times of the algorithms of :data:`ALL_REDUCE_ALGORITHMS`; infinite where one is not possible."""
    never = np.full(route.size.shape, np.inf)
    reduces = route.in_network_bytes_per_s > 0.0
    return [
        _ring_s(message_bytes, route, 2.0, constants),
        _tree_s(message_bytes, route, constants) if route.crossings else never,
        _in_network_s(message_bytes, route, constants) if reduces else never,
    ]


def _choice(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    fastest: Floats = np.argmin(_all_reduce_times_s(message_bytes, route, constants), axis=0).astype(np.float64)
    return fastest


def all_reduce_algorithm(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Ints:
    """Which of :data:`ALL_REDUCE_ALGORITHMS` an all-reduce takes, shape (S,); parameters as in all_reduce_s."""
    return _over_active(_choice, message_bytes, group, tiers, constants).astype(np.int64)


def _one_round_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    return _ring_s(message_bytes, route, 1.0, constants)


def _broadcast_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    times = [message_bytes / route.ring_bytes_per_s]
    times += [np.where(c.parts > 1, message_bytes / c.bytes_per_s, 0.0) for c in route.crossings]
    return _time_s(_ring_latency_s(route, 1.0), times, constants)


def _all_to_all_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    part_bytes = message_bytes / route.size
    times = [part_bytes * ((route.inside - 1.0) / route.alltoall_bytes_per_s + 1.0 / route.copy_bytes_per_s)]
    latency = route.launch_s + (route.inside - 1.0) * constants.peer_s
    met = False  # flows meet at the receiving adapter, once, whatever the switches between
    for crossing in route.crossings:
        link = constants.link(crossing.tier)
        outside = route.size - crossing.inside
        incast = np.ones_like(outside)
        if link.incast > 0.0 and not met:
            sharers = max(1.0, crossing.tier.pair_bytes_per_s / crossing.tier.bytes_per_s)
            flows = np.where(crossing.inside > constants.rail_gpus, outside, crossing.parts - 1.0) * sharers
            incast, met = 1.0 + (flows / link.incast) ** constants.incast_power, True
        share = crossing.pairs_bytes_per_s * link.alltoall / incast
        times.append(part_bytes * outside / share)
        latency = latency + np.where(crossing.parts > 1, crossing.hop_s + outside * constants.remote_peer_s, 0.0)
    return _time_s(latency, times, constants)


def _send_receive_s(message_bytes: Bytes, route: Route, constants: NetworkConstants) -> Floats:
    times = [np.where(route.inside > 1, message_bytes / route.pair_bytes_per_s, 0.0)]
    latency = np.full(route.size.shape, route.launch_s + route.hop_s)
    for crossing in route.crossings:
        times.append(np.where(crossing.parts > 1, message_bytes / crossing.neighbour_bytes_per_s, 0.0))
        latency = np.where(crossing.parts > 1, route.launch_s + crossing.hop_s, latency)
    return _time_s(latency, [np.maximum.reduce(times)], constants)


def all_reduce_s(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Seconds of an all-reduce.

    Parameters
    ----------
    message_bytes : array or float
        The whole vector [byte]; broadcasts with S.
    group : PlacedGroup
        S groups on ``tiers``.
    tiers : tuple of Tier
        Hierarchy from the inside out.
    constants : NetworkConstants
        Fitted constants.

    Returns
    -------
    array, shape (S,)
        The fastest of a ring over all members, a tree over domains with chains inside, and, where the scale-up switch
        reduces, that reduction with a tree between domains [s].

    References
    ----------
    NCCL's algorithms Ring, Tree, NVLS and NVLSTree (NVIDIA/nccl, ``src/graph/tuning.cc``); docs/collectives.md.
    """
    return _over_active(_all_reduce_s, message_bytes, group, tiers, constants)


def all_gather_s(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Seconds of an all-gather of ``message_bytes`` in total (what every member holds afterwards); see all_reduce_s."""
    return _over_active(_one_round_s, message_bytes, group, tiers, constants)


def reduce_scatter_s(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Seconds of a reduce-scatter of ``message_bytes`` per member (of which it keeps 1 / n); see all_reduce_s."""
    return _over_active(_one_round_s, message_bytes, group, tiers, constants)


def broadcast_s(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Seconds of a pipelined broadcast: the whole message passes every neighbour pair once; see all_reduce_s."""
    return _over_active(_broadcast_s, message_bytes, group, tiers, constants)


def all_to_all_s(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Seconds of an all-to-all in which every member sends ``message_bytes / n`` to each; see all_reduce_s.

    The part for members outside a domain leaves through the member's own share of the adapters. Flows that meet at one
    adapter slow each other down (incast): per accelerator that shares the adapter, one from each other domain where
    domains are small enough that messages are first gathered on the adapter's rail, else one from each outside member.
    """
    return _over_active(_all_to_all_s, message_bytes, group, tiers, constants)


def send_receive_s(
    message_bytes: Bytes, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants
) -> Floats:
    """Seconds of a send from each member to its neighbour in rank order, all members at once; see all_reduce_s.

    The outermost tier that any neighbours are apart decides.
    """
    return _over_active(_send_receive_s, message_bytes, group, tiers, constants)


Collective = Callable[[Bytes, PlacedGroup, tuple[Tier, ...], NetworkConstants], Floats]

COLLECTIVE_S: MappingProxyType[str, Collective] = MappingProxyType(
    {
        "all_reduce": all_reduce_s,
        "reduce_scatter": reduce_scatter_s,
        "all_gather": all_gather_s,
        "broadcast": broadcast_s,
        "alltoall": all_to_all_s,
        "sendrecv": send_receive_s,
    }
)

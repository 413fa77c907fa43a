"""Transfers that run at the same time and share adapters or uplinks: max-min fair rates, finish times, slowdowns.

Two forms of one model. On a small set of links, flows get max-min fair rates that change whenever one ends
(:func:`max_min_rates`, :func:`finish_times_s`). On one shared link, the same in closed steps and vectorised over
strategies (:func:`shared_finish_s`): the case of exchanges of one phase that leave a node through the same adapters,
such as an expert all-to-all beside stage sends, or the gradient reduction beside the last backward pass.
"""

from dataclasses import dataclass

import numpy as np

from costmodels.table import Bools, Floats

_EPSILON = 1e-12


@dataclass(frozen=True, kw_only=True)
class Flow:
    """``volume_bytes`` over ``links`` (indices), at most at ``limit_bytes_per_s`` (what it reaches alone)."""

    volume_bytes: float
    links: tuple[int, ...]
    limit_bytes_per_s: float


def max_min_rates(flows: tuple[Flow, ...], capacities_bytes_per_s: Floats) -> Floats:
    """Max-min fair rates: no flow can gain without a loss to one that has no more.

    Parameters
    ----------
    flows : tuple of Flow
        F flows that run at the same time.
    capacities_bytes_per_s : array, shape (L,)
        What each link carries, one direction.

    Returns
    -------
    array, shape (F,)
        Bytes per second. All rates rise together; a flow stops at its own limit or when one of its links is full.

    References
    ----------
    Bertsekas and Gallager, *Data Networks*, section 6.5.2 (progressive filling).
    """
    uses = np.array([[link in flow.links for link in range(len(capacities_bytes_per_s))] for flow in flows])
    limits = np.array([flow.limit_bytes_per_s for flow in flows])
    rates = np.zeros(len(flows))
    rising = np.ones(len(flows), dtype=np.bool_)
    free = np.array(capacities_bytes_per_s, dtype=np.float64)
    while rising.any():
        sharers = uses[rising].sum(axis=0)
        by_link = np.where(sharers > 0, free / np.maximum(sharers, 1), np.inf)
        step = min(float(by_link.min(initial=np.inf)), float((limits - rates)[rising].min()))
        rates[rising] += step
        free -= step * sharers
        full = free <= _EPSILON * capacities_bytes_per_s
        rising &= ~((uses & full).any(axis=1) | (rates >= limits * (1.0 - _EPSILON)))
    return rates


def finish_times_s(flows: tuple[Flow, ...], capacities_bytes_per_s: Floats) -> Floats:
    """Seconds until each flow has sent its volume when all start together and rates stay max-min fair.

    Parameters
    ----------
    flows : tuple of Flow
        F flows.
    capacities_bytes_per_s : array, shape (L,)
        What each link carries.

    Returns
    -------
    array, shape (F,)
        Finish times [s].
    """
    left = np.array([flow.volume_bytes for flow in flows])
    finish = np.zeros(len(flows))
    now = 0.0
    running = np.flatnonzero(left > 0.0)
    while len(running):
        rates = max_min_rates(tuple(flows[index] for index in running), capacities_bytes_per_s)
        times = left[running] / rates
        now += float(times.min())
        left[running] -= rates * times.min()
        ended = times <= times.min() * (1.0 + _EPSILON)
        finish[running[ended]] = now
        running = running[~ended]
    return finish


def shared_finish_s(alone_s: Floats, demand: Floats) -> Floats:
    """Seconds until each of several transfers ends when they start together on one shared link.

    Parameters
    ----------
    alone_s : array, shape (F, S)
        Duration of each transfer alone [s]; 0.0 for one that does not take place.
    demand : array, shape (F, S)
        Share of the link that each takes when alone, within [0, 1] (0: it does not touch the link).

    Returns
    -------
    array, shape (F, S)
        Finish times [s]; as long as the demands sum to no more than 1, ``alone_s``. Else shares are max-min fair, until
        the next transfer ends.
    """
    left = np.array(alone_s, dtype=np.float64)
    finish = np.zeros_like(left)
    now = np.zeros(left.shape[1:])
    for _ in range(len(left)):
        running = left > 0.0
        speed = _link_speeds(np.where(running, demand, 0.0))
        times = np.where(running, left / speed, np.inf)
        step = times.min(axis=0)
        step = np.where(np.isfinite(step), step, 0.0)
        now = now + step
        ended = running & (times <= step * (1.0 + _EPSILON))
        finish = np.where(ended, now, finish)
        left = np.where(ended, 0.0, np.maximum(left - speed * step, 0.0))
    return finish


def slowdown(alone_s: Floats, demand: Floats) -> Floats:
    """Factor by which one shared link stretches each transfer, shape (F, S), at least 1; see `shared_finish_s`."""
    together = shared_finish_s(alone_s, demand)
    factor: Floats = np.where(alone_s > 0.0, together / np.where(alone_s > 0.0, alone_s, 1.0), 1.0)
    return factor


def _link_speeds(demand: Floats) -> Floats:
    """Speed of each transfer over its speed alone, under max-min fair shares of one link, shape (F, S)."""
    share = np.zeros_like(demand)
    waiting: Bools = demand > 0.0
    free = np.ones(demand.shape[1:])
    for _ in range(len(demand)):
        level = free / np.maximum(waiting.sum(axis=0), 1)
        content = waiting & (demand <= level + _EPSILON)
        stuck = waiting & ~content.any(axis=0)
        share = np.where(content, demand, np.where(stuck, level, share))
        free = free - np.where(content, demand, 0.0).sum(axis=0)
        waiting = waiting & ~content & ~stuck
    return np.where(demand > 0.0, share / np.where(demand > 0.0, demand, 1.0), 1.0)

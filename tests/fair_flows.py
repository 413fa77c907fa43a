"""Transfers that run at the same time and share adapters or uplinks: max-min fair rates and finish times.

The general model, for any flows on any links: max-min fair rates that change whenever one ends. It is what the closed
forms of prices for the two flows of a phase, :mod:`costmodels.shared_links`, are held against.
"""

from dataclasses import dataclass

import numpy as np

from costmodels.table import Floats

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

"""What transfers of one phase of the schedule cost each other on the links that they share, for many layouts at once.

Of a layout's transfers these run at the same time and may leave a node through the same adapters and uplinks:

- sends over stage boundaries beside the exchanges of other micro-batches, under schedules that compute while they send;
- the gradient reduction beside the exchanges and sends of the last backward passes, the weight gather beside those of
  the first forward passes.

All ranks of a stage do the same at the same time, so a rank has its share of every tier, and each kind of transfer is
one flow on it. Two flows get max-min fair rates (:func:`pair_speeds`); a pass alternates between compute and exchanges,
so the other transfer meets its exchanges in proportion to their time (:func:`beside`). Nothing becomes faster by it, so
bounds that leave it out stay below.
"""

from dataclasses import dataclass

import numpy as np

from costmodels.table import Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside:
    """Two transfers beside each other: when the first ends, and by how much it delays the pass of the other [s]."""

    finish_s: Floats
    delay_s: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchanging:
    """Exchanges in a span of compute and exchanges.

    ``span_s`` is its length, ``active_s`` the part of it in which exchanges that leave their domain run; ``loads``,
    with a first axis of links, are the shares of each link that they then use.
    """

    span_s: Floats
    active_s: Floats
    loads: Floats


def pair_speeds(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Speeds of two flows over their speeds alone under max-min fair rates on the links that both use.

    Parameters
    ----------
    first, second : array
        Share of each link that a flow uses when it is alone, within [0, 1]; shape (L, ...), the first link is the one
        that rates are compared on (the adapter).

    Returns
    -------
    tuple of arrays
        Within (0, 1], shape (...). Both rates rise together until a link is full or a flow is as fast as alone; since
        either alone fits every link, only links that both use can fill up.

    References
    ----------
    Bertsekas and Gallager, *Data Networks*, section 6.5.2 (progressive filling).
    """
    caps = first[:1], second[:1]
    slower = np.minimum(*caps)
    weights = [use / np.maximum(cap, 1e-30) for use, cap in zip((first, second), caps, strict=True)]
    together = 1.0 / np.maximum(weights[0] + weights[1], 1e-30)
    first_is_slower = caps[0] <= caps[1]
    left = 1.0 - np.where(first_is_slower, first, second)
    later = left / np.maximum(np.where(first_is_slower, weights[1], weights[0]), 1e-30)
    level = np.where(together <= slower, together, later)
    fits = (first + second <= 1.0) | (first <= 0.0) | (second <= 0.0)
    least = np.where(fits, np.inf, level).min(axis=0)
    a, b = (np.minimum(least, cap[0]) / np.maximum(cap[0], 1e-30) for cap in caps)
    return np.where(caps[0][0] > 0.0, a, 1.0), np.where(caps[1][0] > 0.0, b, 1.0)


def beside(transfer_s: Floats, loads: Floats, others: Exchanging) -> Beside:
    """When a transfer ends that runs beside a span of alternating compute and exchanges, and how it delays the span.

    Parameters
    ----------
    transfer_s : array
        The transfer alone [s], shape (...).
    loads : array
        Share of each link that it uses, shape (L, ...).
    others : Exchanging
        What runs beside it, from the same moment.

    Returns
    -------
    Beside
        ``finish_s`` is at least ``transfer_s`` and the delay at least 0.

    Notes
    -----
    With speeds x of the transfer and y of the exchanges while both run, the span takes ``S = c + e / y`` of which the
    transfer runs ``e / y`` at speed x: over the span it does ``D = c + x e / y`` of its work. If that is enough it ends
    after ``t S / D`` and has delayed the span in proportion; else the rest runs alone.
    """
    active = np.minimum(others.active_s, others.span_s)
    mine, theirs = pair_speeds(loads, others.loads)
    quiet = others.span_s - active
    span = quiet + active / theirs
    done = quiet + active * mine / theirs
    share = np.where(done > 0.0, np.minimum(transfer_s / np.maximum(done, 1e-30), 1.0), 0.0)
    finish = share * span + np.maximum(transfer_s - done, 0.0)
    return Beside(finish_s=np.maximum(finish, transfer_s), delay_s=share * active * (1.0 / theirs - 1.0))

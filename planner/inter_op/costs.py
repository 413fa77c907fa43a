"""Tables of stage costs from layers in runs and positions of a pipeline: unequal speeds, memory and ends.

A stage's time is its layers' time times the slowdown of its position, plus the embedding on the first position and the
head and loss on the last. A span of layers is not allowed where it does not fit:

    sum of weight_bytes + in_flight * sum of activation_bytes + bytes of the ends <= limit_bytes
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.inter_op.grid import Floats


@dataclass(frozen=True, kw_only=True)
class LayerRun:
    """``count`` equal layers in a row.

    Parameters
    ----------
    count : int
        Number of layers.
    time_s : float
        Forward and backward of one micro-batch through one layer [s].
    weight_bytes : float, optional
        What a layer holds whatever is in flight: weights, gradients, optimizer [B].
    activation_bytes : float, optional
        What a layer holds per micro-batch in flight [B].
    """

    count: int
    time_s: float
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place in the pipeline: how slow its devices are, what they hold.

    Parameters
    ----------
    slowdown : float, optional
        Factor on the time of layers and ends; 1.04 for a hot device that runs 4 % slower.
    limit_bytes : float, optional
        Memory for layers and ends [B].
    in_flight : float, optional
        Micro-batches whose activations the stage holds at its peak; fractions where chunks interleave.
    """

    slowdown: float = 1.0
    limit_bytes: float = math.inf
    in_flight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Ends:
    """What the first and the last stage hold besides layers: embedding, head and loss [s per micro-batch, B]."""

    first_s: float = 0.0
    last_s: float = 0.0
    first_bytes: float = 0.0
    last_bytes: float = 0.0


NO_ENDS = Ends()


def _spans(runs: Sequence[LayerRun], values: Sequence[float]) -> Floats:
    """Sums over layers i..j-1, shape (L + 1, L + 1).

    Summed as counts times values, so that spans with the same layers cost exactly the same wherever they are.
    """
    layers = np.repeat(np.array(values, dtype=np.float64), [run.count for run in runs])
    sums = np.zeros((layers.size + 1, layers.size + 1))
    for value in np.unique(layers):
        upto = np.concatenate(([0], np.cumsum(layers == value)))
        sums += (upto[None, :] - upto[:, None]) * value
    return sums


def stage_costs_s(runs: Sequence[LayerRun], positions: Sequence[Position], ends: Ends = NO_ENDS) -> Floats:
    """Seconds of every span of layers on every position.

    Parameters
    ----------
    runs : sequence of LayerRun
        The model's layers in order.
    positions : sequence of Position
        The stages in order.
    ends : Ends, optional
        Embedding and head.

    Returns
    -------
    array of shape (pp, L + 1, L + 1)
        ``[p, i, j]``: layers i..j-1 on position p; infinite where they do not fit or j < i.
    """
    time, weights, activations = (
        _spans(runs, [getattr(run, name) for run in runs]) for name in ("time_s", "weight_bytes", "activation_bytes")
    )
    last = len(positions) - 1
    extra_s = np.array([(p == 0) * ends.first_s + (p == last) * ends.last_s for p in range(last + 1)])
    extra_bytes = np.array([(p == 0) * ends.first_bytes + (p == last) * ends.last_bytes for p in range(last + 1)])
    slowdown, limit, held = (
        np.array([getattr(position, name) for position in positions])[:, None, None]
        for name in ("slowdown", "limit_bytes", "in_flight")
    )
    cost = (time + extra_s[:, None, None]) * slowdown
    span_bytes = weights + held * activations
    fits = span_bytes + extra_bytes[:, None, None] <= limit
    ordered = np.tri(len(time), dtype=np.bool_).T
    return np.where(fits & ordered, cost, np.inf)

"""Lower bound on the step time when every stage must hold whole layers, in its memory and within the step.

A step of T seconds leaves stage i room for at most ``n_i(T)`` layers of a kind: their work times the micro-batches
must fit behind the first chunks of the stages before it, and their states and activations in flight must fit its
memory. The least T with ``sum_i floor(n_i(T)) >= N`` is a lower bound; it is found by bisection, for every kind of
layer alone. Derivation: ``docs/search.md``.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.table import Bools, Floats, Ints
from planner.memory_bounds import Flight

BISECTIONS: Final = 8
WIDEST: Final = 4.0  # without a limit the bound is looked for up to so many times the bound that is known
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Layers:
    """``count`` layers of one kind under R candidates; arrays of shape (R,), or (R, pp) where stages differ.

    Attributes
    ----------
    layer_s, states_bytes, kept_bytes : ndarray
        Of one layer: seconds per micro-batch, states, activations of one micro-batch in flight.
    again_s, saved_bytes : ndarray
        Seconds that a layer takes longer when it recomputes in full, and bytes of activations that this saves; zeros
        where layers cannot choose.
    """

    count: int
    layer_s: Floats
    states_bytes: Floats
    kept_bytes: Floats
    again_s: Floats
    saved_bytes: Floats

    def take(self, rows: Ints | Bools) -> "Layers":
        """Candidates ``rows``."""
        arrays = {name: getattr(self, name)[rows] for name in _LAYER_ARRAYS}
        return replace(self, **arrays)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipelines:
    """R pipelines; arrays of shape (R,).

    Attributes
    ----------
    flight : Flight
        Stages, micro-batches, and how many of them are in flight.
    first_s, last_s : ndarray
        Seconds per micro-batch of what else lies on the first and on the last stage.
    shortest_s : ndarray
        Seconds per micro-batch of the shortest layer, the least that a first chunk takes; (R, pp) where stages differ.
    room_bytes : ndarray
        What the layers and ends of a stage may take together; (R, pp) where stages differ.
    first_bytes, last_bytes : ndarray
        Least that the ends of the model take.
    """

    flight: Flight
    first_s: Floats
    last_s: Floats
    shortest_s: Floats
    room_bytes: Floats
    first_bytes: Floats
    last_bytes: Floats

    def take(self, rows: Ints | Bools) -> "Pipelines":
        """Candidates ``rows``."""
        arrays = {name: getattr(self, name)[rows] for name in _PIPELINE_ARRAYS}
        return replace(self, flight=self.flight.take(rows), **arrays)


_LAYER_ARRAYS: Final = ("layer_s", "states_bytes", "kept_bytes", "again_s", "saved_bytes")
_PIPELINE_ARRAYS: Final = (
    "first_s", "last_s", "shortest_s", "room_bytes", "first_bytes", "last_bytes",
)  # fmt: skip


def capacity_bound_s(pipelines: Pipelines, layers: Layers, known_s: Floats, limit_s: float) -> Floats:
    """Raise known lower bounds on the pipeline's time by what the stages can hold.

    Parameters
    ----------
    pipelines : Pipelines
        R candidates.
    layers : Layers
        All layers of one kind.
    known_s : ndarray
        Lower bounds that are known [s], shape (R,).
    limit_s : float
        Bounds above it need not be told from infinity [s].

    Returns
    -------
    ndarray
        Shape (R,), at least ``known_s``; infinite where no time within the limit, or none at all, suffices.
    """
    out = known_s.copy()
    for pp in np.unique(pipelines.flight.pp).tolist():
        rows = np.flatnonzero(pipelines.flight.pp == pp)
        out[rows] = _of_one_depth(pipelines.take(rows), layers.take(rows), known_s[rows], limit_s)
    return out


def _of_one_depth(pipelines: Pipelines, layers: Layers, known_s: Floats, limit_s: float) -> Floats:
    """Bounds of candidates with equally many stages."""
    out = known_s.copy()
    short = np.flatnonzero(~_holds(pipelines, layers, known_s))
    out[short] = np.inf
    if not short.size:
        return out
    within = _holds(pipelines.take(short), layers.take(short), np.full(len(short), limit_s))
    rows = short[within]
    if not rows.size:
        return out
    pipelines, layers = pipelines.take(rows), layers.take(rows)
    low, high = known_s[rows], np.minimum(WIDEST * known_s[rows], limit_s)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        holds = _holds(pipelines, layers, middle)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    out[rows] = low
    return out


def _holds(pipelines: Pipelines, layers: Layers, time_s: Floats) -> Bools:
    """Whether the stages can hold all layers within a time, shape (R,)."""
    pp, m = int(pipelines.flight.pp[0]), pipelines.flight.num_microbatches[:, None].astype(np.float64)
    stage = np.arange(pp)
    first, last = (stage == 0).astype(np.float64), (stage == pp - 1).astype(np.float64)
    spare_s = (time_s[:, None] - _before_s(pipelines, stage)) / m
    spare_s = spare_s - first * pipelines.first_s[:, None] - last * pipelines.last_s[:, None]
    ends_bytes = first * pipelines.first_bytes[:, None] + last * pipelines.last_bytes[:, None]
    spare_bytes = _wide(pipelines.room_bytes) - ends_bytes
    in_flight = pipelines.flight.least(stage)
    each_bytes = np.maximum(_wide(layers.states_bytes) + in_flight * _wide(layers.kept_bytes), 1.0)
    layer_s, again_s = np.maximum(_wide(layers.layer_s), 1e-30), _wide(layers.again_s)
    saved_bytes = in_flight * _wide(layers.saved_bytes)
    by_time = spare_s / layer_s
    # Where layers may recompute, what exceeds the memory is bought at again_s for every saved_bytes.
    price = np.divide(again_s, saved_bytes, out=np.zeros_like(each_bytes), where=saved_bytes > 0.0)
    bought = (spare_s + price * spare_bytes) / (layer_s + price * each_bytes)
    by_memory = np.where(saved_bytes > 0.0, bought, spare_bytes / each_bytes)
    least_bytes = np.maximum(each_bytes - saved_bytes, 1.0)
    most = np.minimum(np.minimum(by_time, by_memory), spare_bytes / least_bytes)
    held = np.floor(most * (1.0 + _ROUNDING) + _ROUNDING)
    impossible = ((spare_s < -1e-12) | (spare_bytes < 0.0)).any(axis=1)
    return np.asarray((np.maximum(held, 0.0).sum(axis=1) >= layers.count) & ~impossible)


def _before_s(pipelines: Pipelines, stage: Ints) -> Floats:
    """Seconds that pass before a stage can begin and after it must have ended: the embedding, then a layer a stage."""
    shortest = np.broadcast_to(_wide(pipelines.shortest_s), (len(pipelines.first_s), len(stage)))
    between = np.cumsum(shortest, axis=1) - shortest - shortest[:, :1]
    return np.asarray(np.where(stage > 0, pipelines.first_s[:, None] + between, 0.0))


def _wide(values: Floats) -> Floats:
    """Values of candidates for all of their stages: shape (R, 1), or (R, pp) as they are."""
    return values[:, None] if values.ndim == 1 else values

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
from planner.bounds.memory import Flight

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


def memory_holds(pipelines: Pipelines, layers: Layers) -> Bools:
    """Whether the memory of some pipelines can hold all layers of one kind, however long that takes; shape (R,).

    Parameters
    ----------
    pipelines : Pipelines
        R candidates with equally many stages.
    layers : Layers
        All layers of one kind.
    """
    return _Stages.of(pipelines, layers).hold(np.full(len(pipelines.first_s), np.inf))


def _of_one_depth(pipelines: Pipelines, layers: Layers, known_s: Floats, limit_s: float) -> Floats:
    """Bounds of candidates with equally many stages."""
    out = known_s.copy()
    stages = _Stages.of(pipelines, layers)
    short = np.flatnonzero(~stages.hold(known_s))
    out[short] = np.inf
    if not short.size:
        return out
    stages = stages.take(short)
    within = stages.hold(np.full(len(short), limit_s))
    rows = short[within]
    if not rows.size:
        return out
    stages = stages.take(np.flatnonzero(within))
    low, high = known_s[rows], np.minimum(WIDEST * known_s[rows], limit_s)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        holds = stages.hold(middle)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    out[rows] = low
    return out


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stages:
    """What does not depend on the time of R pipelines with equally many stages; arrays of shape (R, pp).

    Attributes
    ----------
    lost_s : ndarray
        Seconds of a step that a stage cannot give to layers: what lies before it, and its end of the model.
    step_s : ndarray
        Seconds of a step that a layer takes: of all micro-batches.
    most : ndarray
        Layers that fit the memory, those that may recompute doing so.
    price_s, bought_s : ndarray
        Of layers that recompute where the memory is short: ``n <= (T - lost + price) / bought``. 0 where none may.
    """

    count: int
    lost_s: Floats
    step_s: Floats
    most: Floats
    price_s: Floats
    bought_s: Floats

    @classmethod
    def of(cls, pipelines: Pipelines, layers: Layers) -> "_Stages":
        """Precompute the stages of some candidates."""
        pp, m = int(pipelines.flight.pp[0]), pipelines.flight.num_microbatches[:, None].astype(np.float64)
        stage = np.arange(pp)
        first, last = (stage == 0).astype(np.float64), (stage == pp - 1).astype(np.float64)
        ends_s = first * pipelines.first_s[:, None] + last * pipelines.last_s[:, None]
        ends_bytes = first * pipelines.first_bytes[:, None] + last * pipelines.last_bytes[:, None]
        spare_bytes = _wide(pipelines.room_bytes) - ends_bytes
        in_flight = pipelines.flight.least(stage)
        each_bytes = np.maximum(_wide(layers.states_bytes) + in_flight * _wide(layers.kept_bytes), 1.0)
        saved_bytes = in_flight * _wide(layers.saved_bytes)
        step_s = m * np.maximum(_wide(layers.layer_s), 1e-30)
        most = np.where(spare_bytes < 0.0, -np.inf, spare_bytes / np.maximum(each_bytes - saved_bytes, 1.0))
        price_s, bought_s = np.zeros((1, 1)), np.zeros((1, 1))
        if layers.saved_bytes.any():
            # What exceeds the memory is bought at again_s for every saved_bytes.
            price = np.divide(
                m * _wide(layers.again_s), saved_bytes, out=np.zeros_like(each_bytes), where=saved_bytes > 0.0
            )
            price_s, bought_s = price * spare_bytes, np.where(saved_bytes > 0.0, step_s + price * each_bytes, 0.0)
        return cls(
            count=layers.count,
            lost_s=_before_s(pipelines, stage) + m * ends_s,
            step_s=step_s,
            most=most,
            price_s=price_s,
            bought_s=bought_s,
        )

    def take(self, rows: Ints) -> "_Stages":
        """Candidates ``rows``."""
        arrays = {name: getattr(self, name) for name in ("lost_s", "step_s", "most", "price_s", "bought_s")}
        return replace(self, **{name: a[rows] if len(a) > 1 or not len(rows) else a for name, a in arrays.items()})

    def hold(self, time_s: Floats) -> Bools:
        """Whether the stages can hold all layers within a time, shape (R,)."""
        spare_s = time_s[:, None] - self.lost_s
        held = np.minimum(spare_s / self.step_s, self.most)
        if self.bought_s.any():
            bought = np.divide(
                spare_s + self.price_s, self.bought_s, out=np.full_like(spare_s, np.inf), where=self.bought_s > 0.0
            )
            held = np.minimum(held, bought)
        held = np.floor(held * (1.0 + _ROUNDING) + _ROUNDING)
        possible = (spare_s >= -1e-12).all(axis=1) & (self.most >= 0.0).all(axis=1)
        return np.asarray(possible & (np.maximum(held, 0.0).sum(axis=1) >= self.count))


def _before_s(pipelines: Pipelines, stage: Ints) -> Floats:
    """Seconds that pass before a stage can begin and after it must have ended: the embedding, then a layer a stage.

    None where backward passes are split: stages ahead may end with what is left of theirs at the same time.
    """
    if not pipelines.flight.drains:
        return np.zeros((len(pipelines.first_s), len(stage)))
    shortest = np.broadcast_to(_wide(pipelines.shortest_s), (len(pipelines.first_s), len(stage)))
    between = np.cumsum(shortest, axis=1) - shortest - shortest[:, :1]
    return np.asarray(np.where(stage > 0, pipelines.first_s[:, None] + between, 0.0))


def _wide(values: Floats) -> Floats:
    """Values of candidates for all of their stages: shape (R, 1), or (R, pp) as they are."""
    return values[:, None] if values.ndim == 1 else values

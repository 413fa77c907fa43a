"""Lower bound on the step time for given virtual chunks, when every position recomputes as many of its layers.

Stronger than :mod:`planner.bounds.stage_capacity`, and dearer: layers that recompute are whole, there are as many of
them on every position that has so many (Megatron-LM's block recompute), and stages begin after the layers that must lie
on the stages before them. For every stage the least time with n layers is known; ``sum_i n_i(T) >= N`` bounds T.
Derivation: ``docs/search.md``.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.table import Bools, Floats, Ints
from costmodels.workload.model import ModelSpec
from planner.bounds.stage_capacity import WIDEST, Layers, Pipelines

BISECTIONS: Final = 10
PASSES: Final = 6  # over the stages, to push the beginning of each back by what cannot lie behind it
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """How the layers of one kind may lie on the positions of a pipeline.

    Attributes
    ----------
    vpp : int
        Virtual chunks of a stage.
    lone : int
        How many of the first and last position may hold an end of the model alone.
    before, after : int
        Layers of other kinds that come before all of this kind, and after.
    others : int
        All layers of other kinds.
    alternate : bool
        Whether layers of other kinds lie between those of this kind.
    """

    vpp: int
    lone: int
    before: int
    after: int
    others: int
    alternate: bool

    @classmethod
    def of(cls, model: ModelSpec, number: int, vpp: int, lone: int) -> "Chunks":
        """How the layers of one of a model's kinds may lie."""
        kind = model.kinds()[number]
        where = np.flatnonzero([other == kind for other in model.layer_kinds()])
        first, last = int(where[0]), int(where[-1])
        return cls(
            vpp=vpp,
            lone=lone if vpp > 1 else 0,
            before=first,
            after=model.layers - 1 - last,
            others=model.layers - len(where),
            alternate=last - first + 1 > len(where),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class OncePerStep:
    """Seconds that a layer adds to a step once, at least, under R candidates; arrays of shape (R,).

    ``exchange_s`` is what shows of the exchange of its gradients and weights, beside the begin and the end of the
    pipeline; ``optimizer_s`` the update of its parameters.
    """

    exchange_s: Floats
    optimizer_s: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class _Stages:
    """R pipelines of equal depth under one number of chunks; arrays of shape (R, pp, n) or that broadcast to it."""

    pipelines: Pipelines
    layers: Layers
    once: OncePerStep
    chunks: Chunks
    most: int

    @cached_property
    def held(self) -> Ints:
        """Numbers of layers of a stage that are looked at, shape (1, 1, n)."""
        return np.arange(self.most + 1)[None, None, :]

    @cached_property
    def stage(self) -> Ints:
        """Numbers of the stages, shape (1, pp, 1)."""
        return np.arange(int(self.pipelines.flight.pp[0]))[None, :, None]

    @cached_property
    def empty(self) -> Ints:
        """Chunks of a stage that may hold no layer, shape (1, pp, 1)."""
        ends = np.array(self.stage == 0, dtype=np.int64) + (self.stage == self.stage.shape[1] - 1)
        return np.asarray(ends * min(self.chunks.lone, 1))

    @cached_property
    def mixed(self) -> Ints:
        """Layers of other kinds that may lie on a stage: none where those have all come before or come after."""
        chunks, last = self.chunks, self.stage.shape[1] - 1
        slack = int(chunks.lone > 0)
        pure = (self.stage >= chunks.before + slack) & (last - self.stage >= chunks.after + slack)
        return np.where(pure & (not chunks.alternate), 0, chunks.others)

    @cached_property
    def needed(self) -> Floats:
        """Least layers of a stage that must recompute for its memory; infinite where not all are enough."""
        layers, flight = self.layers, self.pipelines.flight
        pp, vpp = self.stage.shape[1], self.chunks.vpp
        often = np.where(vpp > 1, pp, flight.least(self.stage[0, :, 0])[:, :, None])
        seldom = flight.least(self.stage[0, :, 0])[:, :, None]
        sure = vpp - 1 - (self.empty > 0) * (self.stage == 0) - self.mixed  # layers of this kind before the last chunk
        early = np.minimum(self.held, np.maximum(sure, 0))
        kept, saved, states = (_wide(array) for array in (layers.kept_bytes, layers.saved_bytes, layers.states_bytes))
        missing = self.held * states + (early * often + (self.held - early) * seldom) * kept - self._room_bytes
        first, then = saved * often, saved * seldom
        short_of = np.maximum(missing - early * first, 0.0)
        most = np.where(missing > 0.0, np.inf, 0.0)
        some = np.divide(missing, first, out=most.copy(), where=(first > 0.0) & (missing > 0.0))
        more = early + np.divide(short_of, then, out=most.copy(), where=then > 0.0)
        return np.asarray(np.ceil(np.where(short_of > 0.0, more, some) - _ROUNDING))

    @property
    def _room_bytes(self) -> Floats:
        pipelines = self.pipelines
        ends = self._of_ends(pipelines.first_bytes, pipelines.last_bytes)
        return np.asarray(_wide(pipelines.room_bytes) - ends)

    def _of_ends(self, first: Floats, last: Floats) -> Floats:
        """What the ends of the model add to the stages, shape (R, pp, 1)."""
        at_first, at_last = self.stage == 0, self.stage == self.stage.shape[1] - 1
        return np.asarray(at_first * _wide(first) + at_last * _wide(last))

    def forced(self, prefix: int) -> Ints:
        """Least layers of a stage that recompute when every position recomputes its first ``prefix``."""
        if prefix == 0:
            return np.zeros_like(self.held)
        full = np.maximum(self.chunks.vpp - self.empty, 1)  # chunks with layers; all but one hold a single layer
        layers = np.maximum(self.held, full)
        return np.asarray(np.maximum(full - 1 + np.minimum(prefix, layers - full + 1) - self.mixed, 0))

    def own_s(self, prefix: int) -> Floats:
        """Least time of a stage with n layers, without what comes before it; grows with n, shape (R, pp, n)."""
        layers, pipelines = self.layers, self.pipelines
        m = _wide(pipelines.flight.num_microbatches.astype(np.float64))
        again = np.maximum(self.needed, np.minimum(self.forced(prefix), self.held))
        possible = np.isfinite(again) & (again <= np.minimum(self.held, prefix * self.chunks.vpp))
        ends = self._of_ends(pipelines.first_s, pipelines.last_s)
        each = _wide(layers.layer_s) * self.held + _wide(layers.again_s) * np.where(possible, again, 0.0)
        step = m * (ends + each) + _wide(self.once.optimizer_s) * self.held
        return np.maximum.accumulate(np.where(possible, step, np.inf), axis=2)

    @cached_property
    def exchange_s(self) -> Floats:
        """Seconds that show of the exchange of a stage's gradients and weights, shape (R, 1, n).

        What does not show lies in the time before a stage begins and after it has ended.
        """
        return np.asarray(_wide(self.once.exchange_s) * self.held)

    @cached_property
    def before_s(self) -> Floats:
        """Seconds before a stage can begin and after it must have ended: the embedding, then a layer a stage."""
        first = self.pipelines.first_s[:, None]
        stages = self.stage[:, :, 0]
        return np.where(stages > 0, first + np.maximum(stages - 1, 0) * self.pipelines.shortest_s[:, None], 0.0)


def whole_layers_bound_s(
    pipelines: Pipelines, layers: Layers, once: OncePerStep, chunks: Chunks, limit_s: float
) -> Floats:
    """Least time of pipelines of equal depth over the splits of the layers of one kind.

    Parameters
    ----------
    pipelines : Pipelines
        R candidates with equally many stages, arrays of shape (R,); ``flight`` fits ``chunks``.
    layers : Layers
        All layers of the kind; arrays of shape (R,).
    once : OncePerStep
        What a layer adds to the step beside its micro-batches.
    chunks : Chunks
        Where they may lie.
    limit_s : float
        Times above it need not be told from infinity [s].

    Returns
    -------
    ndarray
        Seconds, shape (R,).
    """
    longest = np.maximum(pipelines.flight.num_microbatches * layers.layer_s, 1e-30)
    most = int(min(limit_s / float(longest.min()), layers.count)) + 1
    best = np.full(len(longest), np.inf)
    if most * int(pipelines.flight.pp[0]) < layers.count:
        return best
    stages = _Stages(pipelines=pipelines, layers=layers, once=once, chunks=chunks, most=most)
    for prefix in range(most + 1 if layers.saved_bytes.any() else 1):
        best = np.minimum(best, _of_prefix(stages, stages.own_s(prefix), np.minimum(best, limit_s)))
    return best


def _of_prefix(stages: _Stages, own_s: Floats, limit_s: Floats) -> Floats:
    """Least time when every position recomputes equally many layers; infinite from the limit on, shape (R,)."""
    count, times_s = stages.layers.count, own_s + np.maximum(stages.before_s[:, :, None], stages.exchange_s)
    ended_s = times_s[:, :, 0].max(axis=1)
    each_s = times_s[:, :, 1:].reshape(len(own_s), -1)
    bound = np.maximum(ended_s, np.partition(each_s, count - 1, axis=1)[:, count - 1])
    rows = np.flatnonzero(bound < limit_s)
    if stages.chunks.vpp == 1 and rows.size:
        bound[rows] = _behind_others_s(stages, own_s[rows], rows, (bound[rows], limit_s[rows]))
    return np.where(bound < limit_s, bound, np.inf)


def _behind_others_s(stages: _Stages, own_s: Floats, rows: Ints, between_s: tuple[Floats, Floats]) -> Floats:
    """Raise bounds of stages with one chunk by the layers that must lie before each stage; shape (R,).

    A stage begins after the first passes of all stages before it, which hold at least the layers for which it and those
    behind it have no room.
    """
    low, high = between_s[0], np.minimum(between_s[1], WIDEST * between_s[0])
    layers, first_s, before_s = stages.layers, stages.pipelines.first_s[rows, None], stages.before_s[rows]
    own_s, exchange_s = own_s[:, :, 1:], stages.exchange_s[rows, :, 1:]

    def hold(time_s: Floats) -> Bools:
        start_s = before_s
        for _ in range(PASSES):
            step_s = own_s + np.maximum(start_s[:, :, None], exchange_s)
            held = (step_s <= time_s[:, None, None] * (1.0 + _ROUNDING)).sum(axis=2)
            behind = np.cumsum(held[:, ::-1], axis=1)[:, ::-1]
            ahead_s = np.maximum(layers.count - behind[:, 1:], 0) * layers.layer_s[rows, None]
            start_s = np.maximum(before_s, np.pad(first_s + ahead_s, ((0, 0), (1, 0))))
        return np.asarray(behind[:, 0] >= layers.count)

    if hold(low).all():
        return low
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        enough = hold(middle)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low


def _wide(values: Floats) -> Floats:
    """Values of pipelines for all of their stages and layers, shape (R, 1, 1)."""
    return values[:, None, None]

"""Lower bounds on the step time of whole families of layouts, vectorised: what a search prunes with.

A bound here is admissible: no split of the layers over stages, with any recompute that repeats at least what was
priced, takes less time under the model. Exchanges of the step, optimizer and sends only add to it. Proofs:
``docs/search.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.layer_costs import PartCosts
from costmodels.part_ops import EMBEDDING, HEAD, MTP
from costmodels.pipeline.schedules import Schedule
from costmodels.reliability import jitter_s
from costmodels.table import Bools, Floats, Ints

ENDS: Final = (EMBEDDING, HEAD, MTP)
_STEPS_TO_TRY: Final = 5  # whole layers around the mean, from one below: the least threshold lies among them
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Seconds per micro-batch: of the whole model, of what must lie on its first and last stage, of each kind of layer.

    Arrays of shape (S,), ``layer_s`` of shape (kinds, S); ``counts`` says how many layers of each kind there are.
    """

    total_s: Floats
    first_s: Floats
    last_s: Floats
    layer_s: Floats
    counts: tuple[int, ...]

    def take(self, index: Ints) -> "Work":
        """Rows ``index``."""
        return replace(
            self,
            total_s=self.total_s[index],
            first_s=self.first_s[index],
            last_s=self.last_s[index],
            layer_s=self.layer_s[:, index],
        )

    def plus(self, more_s: Floats) -> "Work":
        """Work that takes ``more_s`` longer, shape (S,), nobody knows where."""
        return replace(self, total_s=self.total_s + more_s)


def part_seconds(costs: PartCosts) -> Floats:
    """Forward and backward seconds of every part per micro-batch, shape (K, S)."""
    return np.asarray((costs.forward_s + costs.backward_s).sum(axis=0))


def part_work(names: Sequence[str], part_s: Floats, weights: Floats) -> Work:
    """Add up the parts of a model.

    Parameters
    ----------
    names : sequence of str
        Of the K parts.
    part_s : array
        Seconds of each part [s], shape (K, S).
    weights : array
        How often each part occurs in the model, shape (K,).

    Returns
    -------
    Work
        Rows S.
    """
    layers = [row for row, name in enumerate(names) if name not in ENDS]
    first = [row for row, name in enumerate(names) if name == EMBEDDING]
    last = [row for row, name in enumerate(names) if name in (HEAD, MTP)]
    return Work(
        total_s=weights @ part_s,
        first_s=weights[first] @ part_s[first],
        last_s=weights[last] @ part_s[last],
        layer_s=part_s[layers],
        counts=tuple(int(count) for count in weights[layers]),
    )


def on_stages(work: Work, schedule: Schedule | None) -> Work:
    """Return work with its ends on the stages where a schedule has them: in a V both are on the first."""
    if schedule is None or not schedule.is_v:
        return work
    return replace(work, first_s=work.first_s + work.last_s, last_s=np.zeros_like(work.last_s))


def pipeline_bound_s(
    work: Work, pp: Ints, num_microbatches: Ints, plain: Bools, schedule: Schedule | None = None
) -> Floats:
    """Lower bound on the pipeline's makespan over every split of the model's parts over the stages, cheap.

    Parameters
    ----------
    work : Work
        Of the model, priced with at most what the layouts meant do.
    pp, num_microbatches : array of int
        Shape (S,).
    plain : array of bool
        Whether stages hold one chunk each (1F1B, GPipe), shape (S,). Only then does the staircase bound hold.
    schedule : Schedule, optional
        That of the request; where it splits the backward pass, only the mean work of the stages bounds the time: what
        is left of a stage's backward passes runs beside those of the stages ahead.

    Returns
    -------
    array
        Seconds, shape (S,).

    Notes
    -----
    Stage i works ``m t_i`` and, with one chunk per stage, begins after ``sum_{j<i} f_j`` and ends before the last
    ``sum_{j<i} b_j``, so ``T >= m t_i + sum_{j<i} t_j`` for every i. The least T over all real t with ``sum t = W`` has
    equality everywhere: ``t_i = (T / m)(1 - 1/m)^i``, hence ``T = W / (1 - (1 - 1/m)^pp)``. With chunks only the first
    chunk of a stage comes before stage i: the embedding e on stage 0, and at least one layer on each of the others (the
    first position may hold no layer, those behind it hold some): ``T >= m t_i + e + (i - 1) l`` for i > 0, on average
    over the stages ``T >= m W / pp + (pp - 1) (e + (pp - 2) l / 2) / pp``.
    """
    m = num_microbatches.astype(np.float64)
    if schedule is not None and schedule.splits_backward:
        return np.asarray(m * work.total_s / pp)
    staircase = work.total_s / (1.0 - (1.0 - 1.0 / m) ** pp)
    shortest = work.layer_s.min(axis=0)
    fill = (pp - 1) * (work.first_s + (pp - 2) * shortest / 2.0) / pp
    even = m * work.total_s / pp + np.maximum(fill, 0.0)
    bound: Floats = np.where(plain, np.maximum(staircase, even), even)
    return bound


def step_lower_bound_s(
    work: Work, pp: Ints, num_microbatches: Ints, plain: Bools, schedule: Schedule | None = None
) -> Floats:
    """The larger of :func:`pipeline_bound_s` and ``m`` times the least bottleneck with whole layers; shape (S,).

    Parameters
    ----------
    work, pp, num_microbatches, plain, schedule
        As in :func:`pipeline_bound_s`.
    """
    filled = pipeline_bound_s(work, pp, num_microbatches, plain, schedule)
    return np.maximum(filled, num_microbatches * least_bottleneck_s(on_stages(work, schedule), pp))


def with_jitter_s(bound_s: Floats, ranks: Ints) -> Floats:
    """A bound raised by the slowest of ``ranks``, which every step waits for; shape (S,)."""
    return np.asarray(bound_s * (1.0 + jitter_s(np.ones(len(ranks)), ranks)))


def least_bottleneck_s(work: Work, pp: Ints) -> Floats:
    """Least time that the longest stage can have, over every split of whole layers; shape (S,).

    The mean over the stages, or what the layers of one kind alone need, beside the ends of the model.
    """
    best = work.total_s / pp
    for layer_s, count in zip(work.layer_s, work.counts, strict=True):
        best = np.maximum(best, _whole_layers_s(work, layer_s, count, pp))
    return best


def _whole_layers_s(work: Work, layer_s: Floats, count: int, pp: Ints) -> Floats:
    """Least threshold under which the stages hold ``count`` layers of one kind, each whole; shape (S,).

    A threshold T holds ``sum_i floor((T - e_i) / t)`` layers, e_i the ends of the model on stage i. The least T that
    holds them all is of the form ``n t + e_i`` and, when no end is longer than the mean, lies within three layers of
    it. 0 where none of those tried holds them: nothing is claimed then.
    """
    first = np.where(pp > 1, work.first_s, work.first_s + work.last_s)
    last = np.where(pp > 1, work.last_s, first)
    layer = np.maximum(layer_s, 1e-30)
    mean = (count * layer + work.first_s + work.last_s) / pp
    best = np.full(mean.shape, np.inf)
    for end in (np.zeros_like(mean), first, last):
        base = np.floor((mean - end) / layer)
        for step in range(_STEPS_TO_TRY):
            threshold = np.maximum(base + step - 1, 0.0) * layer + end
            held = _held(threshold - first, layer) + np.where(pp > 1, _held(threshold - last, layer), 0.0)
            held = held + np.maximum(pp - 2, 0) * _held(threshold, layer)
            best = np.where((held >= count) & (threshold < best), threshold, best)
    return np.where(np.isfinite(best), best, 0.0)


def _held(room_s: Floats, layer_s: Floats) -> Floats:
    """Whole layers that fit a stage; far below zero when not even its end of the model fits."""
    return np.where(room_s >= -1e-12, np.floor(room_s / layer_s * (1.0 + _ROUNDING) + _ROUNDING), -1e9)

"""Lower bounds on the step time of whole families of layouts, vectorised: what a search prunes with.

A bound here is admissible: no split of the layers over stages, with any recompute that repeats at least what was
priced,
takes less time under the model. Exchanges of the step, optimizer, sends and jitter only add to it.
"""

from dataclasses import dataclass, replace

import numpy as np

from costmodels.layer_costs import EMBEDDING, HEAD, MTP, PartCosts
from costmodels.table import Bools, Floats, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Seconds per micro-batch: the model, what must lie on its first and last stage, its shortest layer.

    Arrays of shape (S,). ``layers`` is their number when all are of one kind, else 0.
    """

    total_s: Floats
    first_s: Floats
    last_s: Floats
    layer_s: Floats
    layers: int

    def take(self, index: Ints) -> "Work":
        """Rows ``index``."""
        return Work(
            total_s=self.total_s[index],
            first_s=self.first_s[index],
            last_s=self.last_s[index],
            layer_s=self.layer_s[index],
            layers=self.layers,
        )


def part_work(costs: PartCosts, weights: Floats) -> Work:
    """Add up the parts of a model, each as often as it occurs (``weights``, shape (K,))."""
    part_s = (costs.forward_s + costs.backward_s).sum(axis=0)
    ends = (EMBEDDING, HEAD, MTP)
    layers = [row for row, name in enumerate(costs.names) if name not in ends]
    first = [row for row, name in enumerate(costs.names) if name == EMBEDDING]
    last = [row for row, name in enumerate(costs.names) if name in (HEAD, MTP)]
    return Work(
        total_s=weights @ part_s,
        first_s=weights[first] @ part_s[first],
        last_s=weights[last] @ part_s[last],
        layer_s=part_s[layers].min(axis=0),
        layers=int(weights[layers].sum()) if len(layers) == 1 else 0,
    )


def with_layers(work: Work, more_s: Floats) -> Work:
    """Work whose layers take ``more_s`` longer altogether, shape (S,); the shortest layer is left as it is."""
    each = work.layer_s + (more_s / work.layers if work.layers else 0.0)
    return replace(work, total_s=work.total_s + more_s, layer_s=each)


def least_bottleneck_s(work: Work, pp: Ints) -> Floats:
    """Least time that the longest stage can have, over every split of whole layers; shape (S,).

    With one kind of layer a threshold T holds ``sum_i floor((T - e_i) / t)`` layers, e_i the ends of the model on
    stage i.
    The least T that holds them all is of the form ``n t + e_i`` and lies within three layers of the mean. With several
    kinds the mean is returned.
    """
    mean = work.total_s / pp
    if not work.layers:
        return mean
    first = np.where(pp > 1, work.first_s, work.first_s + work.last_s)
    last = np.where(pp > 1, work.last_s, first)
    layer = np.maximum(work.layer_s, 1e-30)
    best = np.full(mean.shape, np.inf)
    for end in (np.zeros_like(mean), first, last):
        base = np.floor((mean - end) / layer)
        for step in range(-1, 4):
            threshold = np.maximum(base + step, 0.0) * layer + end
            held = _held(threshold - first, layer) + np.where(pp > 1, _held(threshold - last, layer), 0.0)
            held = held + np.maximum(pp - 2, 0) * _held(threshold, layer)
            best = np.where((held >= work.layers) & (threshold < best), threshold, best)
    return np.where(np.isfinite(best), np.maximum(best, mean), mean)


def _held(room_s: Floats, layer_s: Floats) -> Floats:
    """Whole layers that fit a stage; far below zero when not even its end of the model fits."""
    return np.where(room_s >= -1e-12, np.floor(room_s / layer_s * (1.0 + 1e-9) + 1e-9), -1e9)


def step_lower_bound_s(work: Work, pp: Ints, num_microbatches: Ints, plain: Bools) -> Floats:
    """Lower bound on the pipeline's makespan over every split of the model's parts over the stages.

    Parameters
    ----------
    work : Work
        Of the model, priced with at most what the layouts meant do.
    pp, num_microbatches : array of int
        Shape (S,).
    plain : array of bool
        Whether stages hold one chunk each (1F1B, GPipe), shape (S,). Only then does the staircase bound hold.

    Returns
    -------
    array
        Seconds, shape (S,).

    Notes
    -----
    Stage i works ``m t_i`` and, with one chunk per stage, begins after ``sum_{j<i} f_j`` and ends before the last
    ``sum_{j<i} b_j``, so ``T >= m t_i + sum_{j<i} t_j`` for every i. The least T over all real t with ``sum t = W`` has
    equality everywhere: ``t_i = (T / m)(1 - 1/m)^i``, hence ``T = W / (1 - (1 - 1/m)^pp)``. With chunks only the first
    chunk of a stage comes before stage i, of at least one layer: ``T >= m t_i + i l``, on average over the stages
    ``T >= m W / pp + (pp - 1) l / 2``. And always ``T >= m max t_i``, with whole layers.
    """
    m = num_microbatches.astype(np.float64)
    staircase = work.total_s / (1.0 - (1.0 - 1.0 / m) ** pp)
    even = m * work.total_s / pp + (pp - 1) * work.layer_s / 2.0
    return np.maximum(np.where(plain, np.maximum(staircase, even), even), m * least_bottleneck_s(work, pp))

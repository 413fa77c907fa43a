"""Lower bounds on the step time of whole families of layouts, vectorised: what a search prunes with.

A bound here is admissible: no split of the layers over stages, with any recompute that repeats at least what was
priced,
takes less time under the model. Exchanges of the step, optimizer, sends and jitter only add to it.
"""

from dataclasses import dataclass

import numpy as np

from costmodels.layer_costs import EMBEDDING, HEAD, MTP, PartCosts
from costmodels.table import Bools, Floats, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Seconds per micro-batch of the whole model, of what must lie on its last stage, and of its shortest layer.

    Arrays of shape (S,).
    """

    total_s: Floats
    last_s: Floats
    layer_s: Floats

    def take(self, index: Ints) -> "Work":
        """Rows ``index``."""
        return Work(total_s=self.total_s[index], last_s=self.last_s[index], layer_s=self.layer_s[index])


def part_work(costs: PartCosts, weights: Floats) -> Work:
    """Add up the parts of a model, each as often as it occurs (``weights``, shape (K,))."""
    part_s = (costs.forward_s + costs.backward_s).sum(axis=0)
    last = [costs.names.index(name) for name in (HEAD, MTP) if name in costs.names]
    layers = [row for row, name in enumerate(costs.names) if name not in (EMBEDDING, HEAD, MTP)]
    return Work(total_s=weights @ part_s, last_s=weights[last] @ part_s[last], layer_s=part_s[layers].min(axis=0))


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
    ``T >= m W / pp + (pp - 1) l / 2``. The last stage cannot be shorter than the head.
    """
    m = num_microbatches.astype(np.float64)
    staircase = work.total_s / (1.0 - (1.0 - 1.0 / m) ** pp)
    even = m * work.total_s / pp + (pp - 1) * work.layer_s / 2.0
    return np.maximum(np.where(plain, staircase, even), m * work.last_s)

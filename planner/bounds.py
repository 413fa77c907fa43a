"""Lower bounds on the step time of whole families of layouts, vectorised: what a search prunes with.

A bound here is admissible: no split of the layers over stages, with any recompute that repeats at least what was priced,
takes less time under the model. Exchanges of the step, optimizer, sends and jitter only add to it.
"""

import numpy as np

from costmodels.layer_costs import HEAD, MTP, PartCosts
from costmodels.table import Bools, Floats, Ints


def step_lower_bound_s(costs: PartCosts, weights: Floats, pp: Ints, num_microbatches: Ints, plain: Bools) -> Floats:
    """Lower bound on the pipeline's makespan over every split of the model's parts over the stages.

    Parameters
    ----------
    costs : PartCosts
        Times of the parts under S strategies.
    weights : array
        How often each part occurs, shape (K,).
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
    equality everywhere: ``t_i = (T / m)(1 - 1/m)^i``, hence ``T = W / (1 - (1 - 1/m)^pp)``. With chunks only
    ``T >= m max t_i >= m W / pp`` is used. The stage of the head cannot be shorter than the head.
    """
    part_s = (costs.forward_s + costs.backward_s).sum(axis=0)
    work_s = weights @ part_s
    m = num_microbatches.astype(np.float64)
    staircase = work_s / (1.0 - (1.0 - 1.0 / m) ** pp)
    even = m * work_s / pp
    ends = [costs.names.index(name) for name in (HEAD, MTP) if name in costs.names]
    last = (weights[ends] @ part_s[ends]) * m if ends else np.zeros_like(work_s)
    return np.maximum(np.where(plain, staircase, even), last)

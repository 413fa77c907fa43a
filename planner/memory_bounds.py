"""Lower bounds on the memory of the fullest stage, over every split of the layers: what a search drops before pricing.

For any weights ``lambda_i >= 0`` that sum to one, the fullest stage holds at least ``sum_i lambda_i M_i``. Stage i
holds
``M_i = sum_k n_ik (s_k + h_i a_k)``: states and the activations of ``h_i`` micro-batches in flight of each of its
layers.
The least over all placements puts every layer of kind k where ``lambda_i (s_k + h_i a_k)`` is least, hence

    max_i M_i >= sum_k N_k min_i lambda_i (s_k + h_i a_k)        with lambda_i in proportion to 1 / (mean s + h_i mean
    a).

With one kind of layer this is the exact optimum over real layer counts. ``h_i = min(m, pp - i)`` holds for 1F1B and is
below what interleaving keeps, so the bound holds for both.
"""

from dataclasses import dataclass

import numpy as np

from costmodels.memory import ModelMemory
from costmodels.table import Floats, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryBound:
    """Bound on the fullest stage, shape (S,), and by how much one recomputed layer can lower it per byte dropped.

    ``relief`` is ``max_i lambda_i h_i``: dropping ``d`` bytes of activations of one layer lowers the weighted sum by at
    most ``relief * d``.
    """

    least_bytes: Floats
    relief: Floats


def memory_bound(memory: ModelMemory, counts: Floats, pp: Ints, num_microbatches: Ints) -> MemoryBound:
    """Bound the memory of the fullest stage.

    Parameters
    ----------
    memory : ModelMemory
        Parts under S strategies.
    counts : array
        Layers of each kind in the model, shape (kinds,).
    pp, num_microbatches : array of int
        Shape (S,).

    Returns
    -------
    MemoryBound
    """
    layers = memory.parts[: memory.kinds]
    states = np.stack([part.states for part in layers])  # (kinds, S)
    kept = np.stack([part.kept for part in layers])
    share = counts / counts.sum()
    mean_states, mean_kept = share @ states, share @ kept
    total = np.zeros(len(pp))
    relief = np.zeros(len(pp))
    least = np.full(states.shape, np.inf)
    for stage in range(int(pp.max())):
        there = stage < pp
        held = np.where(there, np.minimum(num_microbatches, pp - stage), 0)
        weight = np.where(there, 1.0 / np.maximum(mean_states + held * mean_kept, 1.0), 0.0)
        total += weight
        relief = np.maximum(relief, weight * held)
        least = np.where(there, np.minimum(least, weight * (states + held * kept)), least)
    return MemoryBound(least_bytes=(counts @ least) / total, relief=relief / total)

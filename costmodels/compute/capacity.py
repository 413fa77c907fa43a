"""What it costs to give every expert as many tokens as it has places for."""

from typing import Final

import numpy as np

from costmodels.compute.gemm import GemmShape, gemm_s
from costmodels.compute.local import Grid, rank_tokens
from costmodels.compute.machine import Machine
from costmodels.job import Software, TrainingJob
from costmodels.table import Floats
from costmodels.workload.feedforward import DISPATCH
from costmodels.workload.op import Op

_NOTHING: Final = (0.0, 0.0)


def masked(software: Software) -> bool:
    """Whether products with masks take tokens to experts and back, in place of sorting them."""
    return software.masked_dispatch and software.capacity_factor > 0.0


def capacity_s(op: Op, grid: Grid, job: TrainingJob, machine: Machine) -> tuple[Floats | float, Floats | float]:
    """Time that a fixed capacity per expert costs on both sides of the experts, forward and backward [s], shape (U,).

    Parameters
    ----------
    op : Op
        Any; all but the dispatch of tokens cost nothing.
    grid : Grid
        Strategies, shape (U,).
    job : TrainingJob
        Sequence length and software.
    machine : Machine
        Accelerator, constants and clock.

    References
    ----------
    Megatron-core ``moe_utils.py``: a top-k over all tokens per expert drops those beyond the capacity, and a stable
    sort of the routing map pads the others to it: every token is ranked for every expert, twice.
    MaxText ``layers/moe.py``, ``dense_matmul`` and ``generate_masks``, after GShard (arXiv 2006.16668, algorithm 2).
    """
    if not job.software.capacity_factor or op.name != DISPATCH:
        return _NOTHING
    tokens: Floats = rank_tokens(op, grid, job) / op.top_k
    if masked(job.software):
        return _mask_products_s(op, tokens, job, machine)
    return tokens * op.experts / machine.shared.ranked_tokens_per_s, 0.0


def _mask_products_s(op: Op, tokens: Floats, job: TrainingJob, machine: Machine) -> tuple[Floats, Floats]:
    """Products of a sequence's tokens with a mask of (tokens, places of all experts), there and back.

    The mask that sends is made of ones and zeros; the one that sums holds the router's weights and has a gradient.
    """
    number_format = job.precision.attention
    sequence, width = (size * np.ones_like(tokens) for size in (float(job.seq), float(op.k)))
    places = sequence * op.top_k * job.software.capacity_factor
    sequences = tokens / sequence
    send = GemmShape(m=places, n=width, k=sequence, groups=sequences)
    back = GemmShape(m=sequence, n=width, k=places, groups=sequences)
    weights = GemmShape(m=sequence, n=places, k=width, groups=sequences)
    both_s = gemm_s(send, machine, number_format) + gemm_s(back, machine, number_format)
    return both_s, both_s + gemm_s(weights, machine, number_format)

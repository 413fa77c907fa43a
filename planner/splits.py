"""Splits of a model's layers over pipeline positions that need no search."""

import numpy as np

from costmodels.table import Ints


def even_positions(layers: int, positions: int) -> Ints:
    """Layers per pipeline position in model order, as even as frameworks make it.

    Equal where that divides. Else, where ``layers + 2`` (or ``layers + 1``) divides, the embedding and the head (or
    the head
    alone) count as a layer each, as Megatron-LM's ``--account-for-embedding-in-pipeline-split`` and ``...-loss-...``
    do. Else
    the remainder goes to the earliest positions behind the first, as a layer beside the embedding would make the first
    stage
    the slowest.

    Returns
    -------
    ndarray of int
        Shape (positions,); sums to ``layers``.
    """
    for first, last in ((0, 0), (1, 1), (0, 1)):
        whole = layers + first + last
        if whole % positions == 0 and whole // positions >= max(first + (last if positions == 1 else 0), 1):
            out = np.full(positions, whole // positions, dtype=np.int64)
            out[0] -= first
            out[-1] -= last
            return out
    out = np.full(positions, layers // positions, dtype=np.int64)
    rest = layers % positions
    out[1 : 1 + rest] += 1
    return out


def even_chunks(layers: int, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage for an even split, shape (pp, vpp): position is chunk * pp + stage."""
    flat = even_positions(layers, pp * vpp)
    return tuple(tuple(int(flat[chunk * pp + stage]) for chunk in range(vpp)) for stage in range(pp))

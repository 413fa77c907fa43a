"""Max-plus algebra on batches: ``(A x)_i = max_j (A_ij + x_j)``, with minus infinity for "does not depend on"."""

import numpy as np

from costmodels.pipeline.times import Floats


def apply(matrix: Floats, state: Floats) -> Floats:
    """Product of matrices (rows, columns, batch) with states (columns, batch)."""
    result: Floats = (matrix + state).max(axis=1)
    return result


def multiply(left: Floats, right: Floats) -> Floats:
    """Product of matrices, both of shape (rows, rows, batch)."""
    result = left[:, 0, None] + right[None, 0]
    for k in range(1, len(right)):
        np.maximum(result, left[:, k, None] + right[None, k], out=result)
    return result


def repeat(matrix: Floats, state: Floats, times: int) -> Floats:
    """Apply a matrix ``times`` times, in a number of products that grows with the logarithm of ``times``."""
    while times:
        if times % 2:
            state = apply(matrix, state)
        times //= 2
        if times:
            matrix = multiply(matrix, matrix)
    return state

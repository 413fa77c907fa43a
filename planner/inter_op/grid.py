"""Costs on a grid of whole numbers, so that sums, ties and proofs are exact.

The unit is a power of two at most ``2**-GRID_BITS`` of the dearest finite cost. Rounding moves a cost by at most half
a unit, hence the objective of any partition by at most ``(fill * stages + m) / 2`` units: a relative error
of about 1e-12.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GRID_BITS: Final = 40
FORBIDDEN: Final = 1 << 56
"""A cost that no legal partition reaches; two of them add without overflow."""


def grid_unit_s(costs_s: Floats) -> float:
    """Power of two such that the dearest finite cost is below ``2**GRID_BITS`` units."""
    finite = costs_s[np.isfinite(costs_s)]
    dearest = float(finite.max()) if finite.size else 0.0
    return 2.0 ** (math.frexp(dearest)[1] - GRID_BITS) if dearest > 0 else 1.0


def on_grid(costs_s: Floats, unit_s: float) -> Ints:
    """Whole units; infinity becomes ``FORBIDDEN``.

    Raises
    ------
    ValueError
        On negative or undefined costs.
    """
    if np.isnan(costs_s).any() or (costs_s < 0).any():
        raise ValueError("stage costs must be non-negative seconds or infinity")
    finite = np.isfinite(costs_s)
    return np.where(finite, np.rint(np.where(finite, costs_s, 0.0) / unit_s), FORBIDDEN).astype(np.int64)

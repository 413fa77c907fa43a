"""What products of 8-bit operands with a scale per row cost beside the products."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from costmodels.compute.gemm import GemmShape
from costmodels.compute.machine import Machine
from costmodels.compute.traffic import traffic_s
from costmodels.table import Floats

_ALONG_ROWS: Final = 3.0  # bytes an element: a row is read (16 bits), its largest value found, and the row written
_ALONG_COLUMNS: Final = 5.0  # read for the largest value of every column, read again, and written
_SCALED: Final = 4.0  # a result of 16 bits is read, multiplied with its scales and written


def row_scaling_s(
    products: Sequence[GemmShape], calls: Floats | float, machine: Machine, *, trained: bool
) -> tuple[Floats, Floats]:
    """Time of the casts of operands with a scale per row, and of the scales that results are multiplied with.

    A scale belongs to a row of the sums of one product, so that every operand is cast anew for each of the three
    products that read it: input and weight forward, gradient and weight for the input's gradient, gradient and input
    for the weight's. The backward products run without fast sums: as plain products, whose results a pass of its own
    multiplies with the scales.

    Parameters
    ----------
    products : sequence of GemmShape
        Products of one op that read one input.
    calls : array or float
        How often each runs.
    machine : Machine
        Accelerator and constants.
    trained : bool
        Whether the gradients of weights are computed, and so as well.

    Returns
    -------
    tuple of array
        Seconds forward and backward.

    References
    ----------
    torchao ``float8_linear.py`` (``matmul_with_hp_or_float8_args``); results scaled apart: ``float8_ops.py``,
    pytorch/ao pull request 1325 and issue 2184. Bytes are counted.
    """
    each = [one.groups * calls for one in products]
    inputs = each[0] * products[0].m * products[0].k  # of products that read one input, cast once
    weights = np.sum([count * one.k * one.n for count, one in zip(each, products, strict=True)], axis=0)
    gradients = np.sum([count * one.m * one.n for count, one in zip(each, products, strict=True)], axis=0)
    forward = _ALONG_ROWS * (inputs + weights)
    backward = _ALONG_ROWS * gradients + _ALONG_COLUMNS * weights + _SCALED * len(products) * inputs
    if trained:
        backward = backward + _ALONG_COLUMNS * (gradients + inputs) + _SCALED * weights
    return traffic_s(forward, machine, kernels=2.0), traffic_s(backward, machine, kernels=4.0 if trained else 2.0)

"""Dense and grouped matrix products priced by shape: tiles, waves, split reductions and operand traffic."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.compute.machine import ELEMENT_BYTES, Machine
from costmodels.table import Floats

# Output tiles that vendor libraries choose between on every generation since Volta, and the ways to split the
# reduction. The cheapest combination is taken, as the libraries' heuristics do.
TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
SPLITS: Final = (1, 2, 4, 8, 16)
# Axes of candidates: tiles, splits, shapes.
_TILE_ROWS: Final = np.array([rows for rows, _ in TILES], dtype=np.float64)[:, None, None]
_TILE_COLUMNS: Final = np.array([columns for _, columns in TILES], dtype=np.float64)[:, None, None]
_TILE_FLOPS: Final = 2.0 * _TILE_ROWS * _TILE_COLUMNS
_TILE_EDGES: Final = 1.0 / _TILE_ROWS + 1.0 / _TILE_COLUMNS
_SPLITS: Final = np.array(SPLITS, dtype=np.float64)[:, None]
_PARTIAL_BYTES: Final = 4.0  # a partial sum of a split reduction, written in fp32; it is read back from cache


@dataclass(frozen=True, kw_only=True)
class GemmShape:
    """``groups`` products of (m, k) by (k, n); all arrays of one shape. ``m`` may be fractional (a mean).

    ``output_bytes`` is what one element of the result moves (2: written in 16 bits; 8: added to an fp32 buffer);
    ``aligned`` the rate over that of operands whose rows start at multiples of 16 bytes.
    """

    m: Floats
    n: Floats
    k: Floats
    groups: Floats | float = 1.0
    output_bytes: float = 2.0
    aligned: Floats | float = 1.0


def gemm_s(shape: GemmShape, machine: Machine, number_format: str = "bf16") -> Floats:
    """Time of one kernel that computes a product, or a group of equal products.

    Parameters
    ----------
    shape : GemmShape
        Sizes, arrays of shape (U,) [elements].
    machine : Machine
        Accelerator, constants and clock.
    number_format : str
        Format of the operands: a field of :class:`hardware.cluster.PeakRates`.

    Returns
    -------
    array
        Seconds, shape (U,).

    Raises
    ------
    InputError
        When the accelerator lacks the format.

    References
    ----------
    ``(t_math^p + t_mem^p)^(1/p) + t_launch`` with ``t_math`` the least over tiles and split reductions of
    ``waves * tile_flops / (rate per multiprocessor)``; ``docs/compute.md``, section "Matrix products".
    """
    gemm, shared = machine.generation.gemm, machine.shared
    grouped = np.where(np.asarray(shape.groups) > 1.0, shared.grouped_math, 1.0)
    rate = machine.rate_flops_per_s(number_format) * machine.gemm_math(number_format) * grouped * shape.aligned
    math_s = _math_s(shape, machine, rate)
    bandwidth = machine.accelerator.memory_bytes_per_s * gemm.bandwidth
    memory_s = _traffic_bytes(shape, ELEMENT_BYTES[number_format]) / bandwidth
    power = shared.roofline_power
    joint: Floats = (math_s**power + memory_s**power) ** (1.0 / power) + gemm.launch_s
    return joint


def _math_s(shape: GemmShape, machine: Machine, rate: Floats | float) -> Floats:
    """Least time over tiles and splits, each monotone in m, n and k."""
    gemm, edge = machine.generation.gemm, machine.shared.tile_edge
    processors = float(machine.multiprocessors)
    tiles = shape.groups * np.ceil(shape.m / _TILE_ROWS) * np.ceil(shape.n / _TILE_COLUMNS) * _SPLITS
    mean = tiles / processors
    waves = np.maximum((1.0 - gemm.wave) * mean + gemm.wave * np.ceil(mean), 1.0)
    tile_flops = _TILE_FLOPS * (shape.k / _SPLITS + gemm.k_overhead)
    # A small tile feeds its multiprocessor from fewer operands per load; relative to the largest tile.
    tile_rate = (1.0 + edge * (1.0 / 128.0 + 1.0 / 256.0)) / (1.0 + edge * _TILE_EDGES)
    partial_bytes = _PARTIAL_BYTES * shape.groups * shape.m * shape.n * _SPLITS
    split_s = np.where(_SPLITS > 1.0, gemm.split_s + partial_bytes / machine.accelerator.memory_bytes_per_s, 0.0)
    candidates = waves * processors * tile_flops / (rate * tile_rate) + split_s
    best: Floats = candidates.min(axis=(0, 1))
    return best


def _traffic_bytes(shape: GemmShape, element_bytes: float) -> Floats:
    operands = element_bytes * (shape.m * shape.k + shape.k * shape.n)
    traffic: Floats = shape.groups * (operands + shape.output_bytes * shape.m * shape.n)
    return traffic

"""Softmax attention, fused (flash) and as separate products with a matrix of scores in memory."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.compute.machine import ELEMENT_BYTES, Machine
from costmodels.efficiency import AttentionEfficiency
from costmodels.table import Floats

_QUERY_TILE: Final = 128.0  # queries of one block of the fused kernel
_REFERENCE_WIDTH: Final = 128.0  # head width at which ``AttentionEfficiency.math`` is stated
_BACKWARD_PRODUCTS: Final = 2.5  # five products against two: scores are computed again
_ALIGNED_BYTES: Final = 16.0  # rows of operands start at multiples of this, or the matrix units stay unused
_FORWARD_KERNELS: Final = 1.0
_BACKWARD_KERNELS: Final = 3.0  # row sums, main kernel, conversion of the query gradient


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Attention of one rank; arrays of shape (U,).

    ``tokens`` queries lie in sequences whose queries see ``keys`` keys on average (half the sequence under a causal
    mask); a kernel call meets ``call_keys`` of them (less than ``keys`` when a ring of ranks passes keys around).
    ``matrix_keys`` is the row length of the whole matrix of scores, ``blocks`` the independent pieces of work.
    ``listed``: every query has a list of its keys, whose gradients are added up one by one.
    """

    tokens: Floats
    keys: Floats
    call_keys: Floats
    matrix_keys: Floats
    heads: Floats
    kv_heads: Floats
    blocks: Floats
    qk_dim: int
    v_dim: int
    listed: bool = False


def mean_keys(seq: float, window: int, *, causal: bool) -> float:
    """Average number of keys that a query attends to.

    Parameters
    ----------
    seq : float
        Sequence length [tokens].
    window : int
        Keys that a query may see at most; 0: all.
    causal : bool
        Whether a query sees earlier keys only.

    Returns
    -------
    float
        Keys: ``seq/2`` causal, ``w - w^2/(2 seq)`` in a causal window (the first queries see fewer), as FLOP counters
        of published benchmarks count.
    """
    width = min(float(window), seq) if window > 0 else seq
    return width - width * width / (2.0 * seq) if causal else width


def query_blocks(sequences: Floats, heads: Floats, seq: Floats | float) -> Floats:
    """Independent pieces of work of a fused kernel: tiles of queries, per head and sequence."""
    blocks: Floats = sequences * heads * np.ceil(seq / _QUERY_TILE)
    return blocks


def flash_attention_s(
    shape: AttentionShape, machine: Machine, number_format: str = "bf16", kernel: str = "cudnn"
) -> tuple[Floats, Floats]:
    """Forward and backward time of fused attention.

    Parameters
    ----------
    shape : AttentionShape
        Arrays of shape (U,).
    machine : Machine
        Accelerator, constants and clock.
    number_format : str
        Format of queries, keys and values.
    kernel : str
        The kernel: ``cudnn``, ``fa2``, ``fa1`` or ``triton`` (FlashAttention in Triton, 2022).

    Returns
    -------
    tuple of array
        Seconds forward and backward, each of shape (U,).

    References
    ----------
    ``docs/compute.md``, section "Attention": the rate saturates with the head width (softmax work does not shrink with
    it) and with the keys of a call; fitted to the figures of Shah et al., arXiv 2407.08608.
    """
    constants = machine.generation.attention
    share = _kernel_share(shape, constants, kernel)
    forward_s = _products_s(shape, machine, number_format) / share
    listed_share = machine.shared.listed_backward if shape.listed else 1.0
    backward_s = forward_s * _BACKWARD_PRODUCTS / (machine.generation.attention.backward_ratio * listed_share)
    bandwidth = machine.accelerator.memory_bytes_per_s * machine.generation.gemm.bandwidth
    queries, keys = _tensor_elements(shape)
    element = ELEMENT_BYTES[number_format]
    forward_bytes = element * (queries + keys)
    # Queries, output, its gradient and the query gradient in fp32 and back; keys, values and their gradients. A block
    # with all keys of its queries writes their gradient once, in their own format.
    in_fp32 = 0.0 if shape.listed else 12.0
    backward_bytes = (2.0 * element + in_fp32) * queries + 2.0 * element * keys
    launch_s = machine.shared.memory_launch_s
    return (
        _joint(forward_s, forward_bytes / bandwidth, machine) + _FORWARD_KERNELS * launch_s,
        _joint(backward_s, backward_bytes / bandwidth, machine) + _BACKWARD_KERNELS * launch_s,
    )


def _kernel_share(shape: AttentionShape, constants: AttentionEfficiency, kernel: str) -> Floats | float:
    """Rate of a kernel over that of the generation's best one, for the keys of a call; shape (U,) or one number."""
    if kernel == "triton":
        share: Floats = constants.triton / (1.0 + constants.triton_half / np.maximum(shape.call_keys, 1.0))
        return share
    return {"fa2": constants.fa2, "fa1": constants.fa1}.get(kernel, 1.0)


def matrix_attention_s(
    shape: AttentionShape, machine: Machine, *, elements_per_score: Floats | float, number_format: str = "bf16"
) -> tuple[Floats, Floats]:
    """Forward and backward time of attention that writes its matrix of scores.

    Parameters
    ----------
    shape : AttentionShape
        Arrays of shape (U,).
    machine : Machine
        Accelerator, constants and clock.
    elements_per_score : array or float
        Elements read and written per score, forward [elements]; backward moves ``backward_traffic`` times as much.
    number_format : str
        Format of queries, keys, values and scores.

    Returns
    -------
    tuple of array
        Seconds forward and backward, each of shape (U,). Masked scores are computed: nothing is saved by causality.
        Heads whose rows are no multiples of 16 bytes are multiplied without the matrix units.

    References
    ----------
    NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor Cores": operands aligned to 16
    bytes; ``docs/compute.md``, section "Attention".
    """
    shared = machine.shared
    scores = shape.tokens * shape.matrix_keys * shape.heads
    products_s = 2.0 * scores * (shape.qk_dim + shape.v_dim) / _batched_flops_per_s(shape, machine, number_format)
    bandwidth = machine.accelerator.memory_bytes_per_s * machine.generation.memory
    softmax_s = ELEMENT_BYTES[number_format] * elements_per_score * scores / bandwidth
    launch_s = machine.shared.memory_launch_s
    return (
        products_s + softmax_s + 3.0 * launch_s,
        2.0 * products_s + shared.backward_traffic * softmax_s + 6.0 * launch_s,
    )


def _batched_flops_per_s(shape: AttentionShape, machine: Machine, number_format: str) -> Floats | float:
    """Rate of the batched products of unfused attention: of the matrix units where rows of heads are aligned."""
    element, vector_flops_per_s = ELEMENT_BYTES[number_format], machine.accelerator.peak.fp32
    aligned = not any(width * element % _ALIGNED_BYTES for width in (shape.qk_dim, shape.v_dim))
    if aligned or not vector_flops_per_s:
        return machine.rate_flops_per_s(number_format) * machine.gemm_math("bf16")
    return vector_flops_per_s * machine.clock * machine.shared.unaligned_attention_math


def _products_s(shape: AttentionShape, machine: Machine, number_format: str) -> Floats:
    constants = machine.generation.attention
    width = 0.5 * (shape.qk_dim + shape.v_dim)
    flops = 4.0 * shape.tokens * shape.keys * shape.heads * width
    by_width = (1.0 + constants.width_half / _REFERENCE_WIDTH) / (1.0 + constants.width_half / width)
    by_length = 1.0 / (1.0 + constants.length_half / np.maximum(shape.call_keys, 1.0))
    busy = np.minimum(shape.blocks / float(machine.multiprocessors), 1.0)
    rate = machine.rate_flops_per_s(number_format) * constants.math * by_width * by_length * busy
    products_s: Floats = flops / rate
    return products_s


def _tensor_elements(shape: AttentionShape) -> tuple[Floats, Floats]:
    """Elements of queries with outputs, and of keys with values."""
    dims = float(shape.qk_dim + shape.v_dim)
    return shape.tokens * shape.heads * dims, shape.tokens * shape.kv_heads * dims


def _joint(math_s: Floats, memory_s: Floats, machine: Machine) -> Floats:
    power = machine.shared.roofline_power
    joint: Floats = (math_s**power + memory_s**power) ** (1.0 / power)
    return joint

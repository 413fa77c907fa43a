"""What a layer keeps from forward to backward, and what its backward pass needs on top, from the layer's ops."""

from collections.abc import Sequence

import numpy as np

from costmodels.job import TrainingJob
from costmodels.memory.states import EXPERT_SPLITS
from costmodels.memory.tokens import TokenShares
from costmodels.table import Bools, Floats
from costmodels.workload.op import Kept, Op, OpKind, Split, kept
from costmodels.workload.per_op import listed

_GEMMS = frozenset({OpKind.GEMM, OpKind.GROUPED_GEMM})
_ACTIVATION_FUNCTIONS = ("mlp_act", "moe_act")
_MASK_BYTES = 1.0
_ACCUMULATOR_BYTES = 4.0  # fused attention sums the gradient of the queries in fp32


def kept_bytes(ops: Sequence[Op], job: TrainingJob, shares: TokenShares, modules: Sequence[str] = ()) -> Floats:
    """Bytes that a layer keeps for one micro-batch in flight when ``modules`` are recomputed.

    Parameters
    ----------
    ops : sequence of Op
        The layer.
    job : TrainingJob
        Precision.
    shares : TokenShares
        Tokens per rank, shape (S,).
    modules : sequence of str
        Recompute modules that run again in the backward pass.

    Returns
    -------
    ndarray
        Bytes, shape (S,).

    References
    ----------
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv 2205.05198,
    equations 1 to 6.
    """
    per_token: dict[Split, float] = {}
    for op in ops:
        split = op.saved_split or op.split
        if job.software.gathered_inputs_kept and op.split is Split.COLUMN:
            split = Split.REPLICATED
        per_token[split] = per_token.get(split, 0.0) + _kept_per_token(op, job, shares.keys, modules)
    total = np.zeros_like(shares.tokens)
    for split, size in per_token.items():
        total += size * shares.share(split)
    return total * shares.tokens


def listed_bytes(ops: Sequence[Op], job: TrainingJob, shares: TokenShares, exchanged: Bools) -> Floats:
    """Bytes that a layer keeps beside its input when only outputs on a list are kept (``PER_OP``).

    Parameters
    ----------
    ops : sequence of Op
        The layer.
    job : TrainingJob
        Precision; whether the software compiles.
    shares : TokenShares
        Tokens per rank, shape (S,).
    exchanged : ndarray
        Whether experts' tokens are exchanged between ranks, shape (S,).

    Returns
    -------
    ndarray
        Bytes, shape (S,).
    """
    width = job.precision.activation_bytes
    total = np.zeros_like(shares.tokens)
    for op, what in zip(ops, listed(ops, compiled=job.software.compiled, unlisted=job.precision.unlisted), strict=True):
        total += (what.elements * width + what.fixed_bytes) * shares.share(what.split)
        total += np.where(shares.tp > 1, what.scattered * width * shares.share(Split.SEQUENCE), 0.0)
        received = what.received * width * op.top_k
        total += np.where(exchanged, received * shares.share(Split.EXPERT_TOKENS), 0.0)
    return total * shares.tokens


def _kept_per_token(op: Op, job: TrainingJob, keys: float, modules: Sequence[str]) -> float:
    """Bytes per token of the tensors that an op keeps, before any division over the mesh."""
    precision = job.precision
    what = kept(op, modules)
    if op.kind in _GEMMS and job.adapter_modules:
        return _adapter_input(op, what, job)
    low = op.kind in _GEMMS and op.low_precision
    low = low or (job.software.low_activation_input and op.module in _ACTIVATION_FUNCTIONS)
    width = precision.gemm_activation_bytes if low else precision.activation_bytes
    size = what.elements_per_token * width + what.bytes_per_token
    if low and precision.gemm_activation_bytes != precision.activation_bytes:
        size += what.shared_input_elements_per_token * precision.gemm_activation_bytes
    scores = op.heads * keys
    size += scores * (what.elements_per_score * precision.activation_bytes + what.bytes_per_score)
    return size * _copies(op)


def _adapter_input(op: Op, what: Kept, job: TrainingJob) -> float:
    """Bytes per token that a frozen product keeps: what its adapter reads, after dropout, with the mask of it."""
    if op.module not in job.adapter_modules:
        return 0.0
    elements = what.elements_per_token + what.shared_input_elements_per_token
    return elements * (job.precision.activation_bytes + _MASK_BYTES) * _copies(op)


def _copies(op: Op) -> int:
    """Routed copies per token of an op that works on routed copies."""
    return op.top_k if (op.saved_split or op.split) in EXPERT_SPLITS else 1


def input_bytes(hidden: float, job: TrainingJob, shares: TokenShares) -> Floats:
    """Bytes of a layer's input for one micro-batch: all that full recompute keeps; shape (S,)."""
    return hidden * job.precision.activation_bytes * shares.share(Split.SEQUENCE) * shares.tokens


def working_bytes(ops: Sequence[Op], job: TrainingJob, shares: TokenShares) -> Floats:
    """Bytes that come and go while a layer runs backward: the gradients around its widest op.

    Parameters
    ----------
    ops : sequence of Op
        The layer.
    job : TrainingJob
        Precision and software.
    shares : TokenShares
        Tokens per rank, shape (S,).

    Returns
    -------
    ndarray
        Maximum over the ops, shape (S,).
    """
    width = job.precision.activation_bytes
    peak = np.zeros_like(shares.tokens)
    for op in ops:
        peak = np.maximum(peak, _op_working_elements(op, job, shares) * width)
    return peak * shares.tokens


def scattered_bytes(ops: Sequence[Op], job: TrainingJob, shares: TokenShares) -> Floats:
    """Bytes that a layer hands to reduce-scatters over tp in one forward pass: whole outputs of row-parallel products.

    Parameters
    ----------
    ops : sequence of Op
        The layer.
    job : TrainingJob
        Precision.
    shares : TokenShares
        Tokens per rank, shape (S,).

    Returns
    -------
    ndarray
        Bytes, shape (S,); 0 without sequence parallelism, whose all-reduce works in place.
    """
    columns = sum(op.n for op in ops if op.split is Split.ROW and op.kind in _GEMMS)
    return np.where(shares.sequence > 1, columns * job.precision.activation_bytes, 0.0) * shares.tokens


def dummy_gradient_bytes(ops: Sequence[Op], job: TrainingJob, shares: TokenShares) -> Floats:
    """Bytes of one gradient per distinct weight shape of a layer, which fused accumulation hands to autograd in vain.

    Parameters
    ----------
    ops : sequence of Op
        The layer.
    job : TrainingJob
        Precision.
    shares : TokenShares
        Degrees, shape (S,).

    Returns
    -------
    ndarray
        Bytes, shape (S,). Experts of one layer share a shape.

    References
    ----------
    Transformer Engine, ``get_dummy_wgrad``: tensors are cached by shape and type.
    """
    shapes = {(op.k, op.n, op.kind): op for op in ops if op.kind in _GEMMS and op.parameters}
    total = np.zeros_like(shares.tokens)
    for op in shapes.values():
        if op.kind is OpKind.GROUPED_GEMM:
            total += op.k * op.n / shares.etp
        else:
            total += op.k * op.n / (shares.tp if op.split in (Split.COLUMN, Split.ROW) else 1.0)
    return total * job.precision.activation_bytes


def _op_working_elements(op: Op, job: TrainingJob, shares: TokenShares) -> Floats:
    """Elements per token around one op in the backward pass: gradients of its output and input, gathered tensors."""
    if op.kind in _GEMMS:
        return _gemm_working(op, shares)
    part = shares.share(op.split) * _copies(op)
    if op.kind is OpKind.ATTENTION:
        key_heads, qk_dim, v_dim = op.run_as
        grads = (op.heads + key_heads) * (qk_dim + v_dim)
        if job.software.flash_attention:
            accumulator = op.heads * qk_dim * _ACCUMULATOR_BYTES / job.precision.activation_bytes
            return part * (grads + accumulator)
        return part * (grads + 2.0 * op.heads * shares.keys)
    return part * op.traffic_elements_per_token


def _gemm_working(op: Op, shares: TokenShares) -> Floats:
    """Gradient of the output, gradient of the input, and the input or output gathered over tp or etp."""
    routed = op.split in EXPERT_SPLITS
    copies = op.top_k if routed else 1
    inner = shares.share(Split.EXPERT_TENSOR if routed else Split.TENSOR)
    outer = shares.share(Split.EXPERT_COLUMN) if routed else np.ones_like(inner)
    if op.split in (Split.COLUMN, Split.EXPERT_COLUMN):
        gathered = outer if routed else (shares.sequence > 1).astype(np.float64)
        return copies * (op.n * inner + op.k * outer + op.k * gathered)
    if op.split in (Split.ROW, Split.EXPERT_ROW):
        return copies * (op.k * inner + op.n * outer)
    return (op.k + op.n) * shares.share(op.split)

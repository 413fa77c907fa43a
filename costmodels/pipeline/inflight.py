"""How many micro-batches a stage holds activations of, read off the order of its operations.

A forward takes the activations of one micro-batch on one chunk. The backward gives them back; when the schedule splits
it, the input gradient gives back all but what the weight gradient still needs, and the weight gradient gives back the
rest. In these orders the peak always follows a forward.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.pipeline.schedules import Kind, PipelineSpec, order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEADY_DEPTH: Final = 4  # micro-batches over pp from which more of them hold nothing new


def in_flight(spec: PipelineSpec) -> Ints:
    """Peak number of micro-batches held by each chunk on its own.

    Micro-batches that only wait for their weight gradient count in full. The chunks of a stage need not peak together:
    for bytes use :func:`peak_activation_bytes`.

    Returns
    -------
    ndarray
        Shape (pp, vpp).
    """
    held = _holdings(spec)
    peak: Ints = (held[:, :, : spec.vpp] + held[:, :, spec.vpp :]).max(axis=1)
    return peak


def in_flight_total(spec: PipelineSpec) -> Ints:
    """Peak number of (micro-batch, chunk) pairs held by each stage.

    For 1F1B it is ``min(m, pp - stage)``; for GPipe ``m``; interleaved
    ``min(m vpp, 2 (pp - stage - 1) + (vpp - 1) group + 1)``; for ZB-H1 at most ``pp`` and for ZB-H2 at most
    ``2 pp - 1``; for ZB-V at most ``2 pp`` pairs, which weigh as much as ``pp`` micro-batches.

    Returns
    -------
    ndarray
        Shape (pp,).
    """
    peak: Ints = _holdings(spec).sum(axis=2).max(axis=1)
    return peak


def peak_activation_bytes(
    spec: PipelineSpec, activation_bytes: ArrayLike, weight_grad_bytes: ArrayLike | None = None
) -> Floats:
    """Most bytes of activations that each stage holds at one time.

    Parameters
    ----------
    spec : PipelineSpec
        Schedule and sizes.
    activation_bytes : array_like
        What one micro-batch keeps on one chunk [bytes]: of shape (pp,), (batch, pp) or (batch, pp, vpp).
    weight_grad_bytes : array_like, optional
        The part of it that stays until the weight gradient when the backward is split; of the same shape. None: all.

    Returns
    -------
    ndarray
        Shape (batch, pp).

    Raises
    ------
    ValueError
        When shapes do not fit or ``weight_grad_bytes`` exceeds ``activation_bytes``.
    """
    activation = _by_chunk(spec, activation_bytes)
    weight = activation if weight_grad_bytes is None else _by_chunk(spec, weight_grad_bytes)
    activation, weight = np.broadcast_arrays(activation, weight)
    if np.any(weight > activation):
        raise ValueError("weight_grad_bytes must not exceed activation_bytes")
    each = np.concatenate([activation, weight], axis=2)  # (batch, pp, 2 vpp)
    peak: Floats = (each.transpose(1, 0, 2) @ _holdings(spec).transpose(0, 2, 1)).max(axis=2).T
    return peak


def _by_chunk(spec: PipelineSpec, value: ArrayLike) -> Floats:
    """Give bytes the shape (batch, pp, vpp)."""
    array = np.asarray(value, dtype=np.float64)
    array = np.atleast_2d(array)[:, :, None] if array.ndim < 3 else array
    if array.ndim != 3 or array.shape[1] not in (1, spec.pp) or array.shape[2] not in (1, spec.vpp):
        wanted = f"({spec.pp},), (batch, {spec.pp}) or (batch, {spec.pp}, {spec.vpp})"
        raise ValueError(f"bytes of shape {np.shape(value)} do not fit; wanted {wanted}")
    return np.broadcast_to(array, (len(array), spec.pp, spec.vpp))


@lru_cache(maxsize=1024)
def _holdings(spec: PipelineSpec) -> Ints:
    """What each stage holds in its worst moments.

    Returns
    -------
    ndarray
        Shape (pp, moments, 2 vpp), read-only: micro-batches before their backward by chunk, then those that wait for
        their weight gradient by chunk. A moment that holds no more of anything than another one is left out.
    """
    group = spec.round
    extra = (spec.num_microbatches - STEADY_DEPTH * spec.pp) // group - 1
    if extra > 0 and not spec.schedule.holds_all:  # the steady state repeats the same holdings
        return _holdings(replace(spec, num_microbatches=spec.num_microbatches - extra * group))
    worst = [_worst(_moments(ops, spec)) for ops in order(spec)]
    size = max(len(moments) for moments in worst)
    table = np.stack([moments[np.minimum(np.arange(size), len(moments) - 1)] for moments in worst])
    table.flags.writeable = False
    return table


def _moments(ops: NDArray[np.int32], spec: PipelineSpec) -> Ints:
    """Holdings of one stage after each last forward of a row of forwards, shape (moments, 2 vpp)."""
    vpp, count = spec.vpp, np.arange(len(ops))
    kind, chunk = ops[:, 0], ops[:, 1]
    change = np.zeros((len(ops), 2 * vpp), dtype=np.int64)
    change[count, chunk] = np.where(kind == Kind.FORWARD, 1, np.where(kind == Kind.BACKWARD, -1, 0))
    if spec.schedule.splits_backward:
        change[count, vpp + chunk] = np.where(kind == Kind.BACKWARD, 1, np.where(kind == Kind.WEIGHT, -1, 0))
    forward = kind == Kind.FORWARD
    held: Ints = np.cumsum(change, axis=0)[forward & ~np.append(forward[1:], False)]
    return held


def _worst(moments: Ints) -> Ints:
    """Moments that no other moment dominates."""
    unique = np.array(sorted(set(map(tuple, moments.tolist()))))
    covers = np.all(unique[:, None, :] >= unique[None, :, :], axis=2)  # covers[i, j]: i holds at least what j holds
    worst: Ints = unique[covers.sum(axis=0) == 1]
    return worst

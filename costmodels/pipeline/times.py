"""Times of a batch of candidates: checked, and laid out as the table that programs and bounds read."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.pipeline.schedules import Kind, PipelineSpec

Floats = NDArray[np.float64]


def time_rows(spec: PipelineSpec) -> int:
    """Rows of the table of times: zeros, operations by (kind, stage, chunk), boundaries."""
    return 1 + len(Kind) * spec.pp * spec.vpp + spec.pp


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StageTimes:
    """Checked times: ``p2p_s`` of shape (batch, pp), the others of shape (batch, pp, vpp)."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    p2p_s: Floats


def stage_times(
    spec: PipelineSpec,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    p2p_s: ArrayLike,
    weight_grad_s: ArrayLike | None,
) -> StageTimes:
    """Broadcast and check times; a backward that is not split takes in the weight gradient."""
    if weight_grad_s is None and spec.schedule.splits_backward:
        raise ValueError(f"schedule {spec.schedule} splits the backward: weight_grad_s is needed")
    operations = [
        _by_chunk(spec, value) for value in (forward_s, backward_s, 0.0 if weight_grad_s is None else weight_grad_s)
    ]
    p2p = np.atleast_2d(np.asarray(p2p_s, dtype=np.float64))
    batch = np.broadcast_shapes(*(value.shape[:1] for value in operations), p2p.shape[:1])
    forward, backward, weight = (np.broadcast_to(value, (*batch, spec.pp, spec.vpp)) for value in operations)
    p2p = np.broadcast_to(p2p, (*batch, spec.pp))
    for value in (forward, backward, weight, p2p):
        if not np.all((value >= 0.0) & np.isfinite(value)):
            raise ValueError("times must be finite and not negative")
    if not spec.schedule.splits_backward:
        backward, weight = backward + weight, np.zeros_like(weight)
    return StageTimes(forward_s=forward, backward_s=backward, weight_s=weight, p2p_s=p2p)


def _by_chunk(spec: PipelineSpec, value: ArrayLike) -> Floats:
    """Give a time the axes (batch, pp, vpp); axes of length 1 broadcast later."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim < 3:
        array = np.atleast_2d(array)[:, :, None]
    if array.ndim != 3 or array.shape[1] not in (1, spec.pp) or array.shape[2] not in (1, spec.vpp):
        wanted = f"(), ({spec.pp},), (batch, {spec.pp}) or (batch, {spec.pp}, {spec.vpp})"
        raise ValueError(f"times of shape {np.shape(value)} do not fit; wanted {wanted}")
    return array


def time_table(spec: PipelineSpec, times: StageTimes) -> Floats:
    """Table of times, one column per candidate: zeros, operations by (kind, stage, chunk), boundaries."""
    batch = len(times.p2p_s)
    table = np.zeros((time_rows(spec), batch))
    places = spec.pp * spec.vpp
    for kind, value in zip(Kind, (times.forward_s, times.backward_s, times.weight_s), strict=True):
        table[1 + kind * places : 1 + (kind + 1) * places] = value.reshape(batch, places).T
    table[1 + len(Kind) * places :] = times.p2p_s.T
    return table

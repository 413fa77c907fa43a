"""How much of a stage's activations is held at once, from the order in which the schedule runs its operations."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, order
from costmodels.table import Floats, Ints

_WARM_GROUPS = 4  # micro-batches, in units of the largest warm-up, after which the steady state repeats itself


def held_bytes(spec: PipelineSpec, chunk_bytes: Floats) -> Floats:
    """Largest sum of kept activations on every stage.

    Parameters
    ----------
    spec : PipelineSpec
        Schedule and its sizes.
    chunk_bytes : ndarray
        Bytes that one micro-batch keeps on each (stage, chunk), shape (pp, vpp).

    Returns
    -------
    ndarray
        Peak bytes, shape (pp,). A schedule that splits the backward keeps activations until the weight gradient has
        run.
    """
    peak: Floats = np.einsum("stc,sc->st", _held_counts(_shortened(spec)), chunk_bytes).max(axis=1)
    return peak


@lru_cache(maxsize=32)
def _held_counts(spec: PipelineSpec) -> NDArray[np.int32]:
    """Micro-batches held per chunk while each operation runs, shape (pp, operations, vpp), read-only."""
    table = order(spec)
    last = Kind.WEIGHT if spec.schedule.splits_backward else Kind.BACKWARD
    kind, chunk = table[..., 0], table[..., 1]
    change = (kind == Kind.FORWARD).astype(np.int32) - (kind == last)
    per_chunk = change[..., None] * (chunk[..., None] == np.arange(spec.vpp))
    after = np.cumsum(per_chunk, axis=1, dtype=np.int32)
    during = np.maximum(after, after - per_chunk)  # a backward still holds what it frees
    held: NDArray[np.int32] = during
    held.flags.writeable = False
    return held


def _shortened(spec: PipelineSpec) -> PipelineSpec:
    """The same schedule with fewer micro-batches where more of them would only repeat the steady state."""
    if spec.schedule is Schedule.GPIPE:
        return spec
    group = spec.group if spec.schedule is Schedule.INTERLEAVED else 1
    enough = _WARM_GROUPS * max(spec.pp, group)
    if spec.num_microbatches <= enough + group:
        return spec
    rest = spec.num_microbatches % group
    return PipelineSpec(
        schedule=spec.schedule,
        pp=spec.pp,
        num_microbatches=enough // group * group + rest,
        vpp=spec.vpp,
        group_size=spec.group_size,
    )


def held_microbatches(schedule: Schedule, pp: Ints, vpp: Ints, num_microbatches: Ints, stage: Ints) -> Floats:
    """Micro-batches of a whole stage held at once when its chunks are equal; arrays broadcast.

    Parameters
    ----------
    schedule : Schedule
        One schedule for all.
    pp, vpp, num_microbatches : ndarray of int
        Pipeline degree, chunks per stage, micro-batches per step.
    stage : ndarray of int
        Index of the stage from the first.

    Returns
    -------
    ndarray
        Held chunks over ``vpp``.

    References
    ----------
    Warm-up counts as in :mod:`costmodels.pipeline.schedules`; Korthikanti et al., arXiv 2205.05198, section 4.2.3:
    interleaving holds ``1 + (p - 1) / (p m)`` times the activations of 1F1B on the first stage.
    """
    left = pp - stage
    chunks: Ints
    if schedule is Schedule.GPIPE:
        chunks = num_microbatches + 0 * left
    elif schedule is Schedule.INTERLEAVED:
        chunks = (left - 1) * 2 + (vpp - 1) * pp + 1
    elif schedule is Schedule.ZB_H1:
        chunks = pp + 0 * left
    elif schedule is Schedule.ZB_2P:
        chunks = 2 * pp - 1 + 0 * left
    elif schedule is Schedule.ZBV:
        chunks = 2 * pp + 0 * left
    else:
        chunks = left
    held: Floats = np.minimum(chunks, num_microbatches * vpp) / vpp
    return held

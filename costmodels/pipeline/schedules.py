"""Pipeline schedules as the frameworks issue them: the order of operations on every stage.

A *stage* is one pipeline rank. It holds ``vpp`` *chunks* of the model; every (stage, chunk) pair has a *position* in
the model. Each micro-batch passes all positions forward, then all positions backward. An order says in which sequence
one stage runs its forwards, backwards and (when the schedule splits the backward) weight gradients.

References
----------
1F1B and interleaved: Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py`` (warm-up counts and the
schedule table of ``get_pp_rank_microbatches`` and ``get_schedule_table``), and Narayanan et al., arXiv 2104.04473.
GPipe: Huang et al., arXiv 1811.06965. ZB-H1, ZB-H2 and ZB-V: Qi et al., arXiv 2401.10241, sections 2.2 and 6; ZB-V in
the handcrafted order of ``ScheduleZBVZeroBubble`` of ``torch.distributed.pipelining``.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardware.errors import InputError


class Schedule(StrEnum):
    """A pipeline schedule."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_2P = "zb-2p"
    ZBV = "zbv"

    @property
    def splits_backward(self) -> bool:
        """Whether the weight gradient is an operation of its own."""
        return self in (Schedule.ZB_H1, Schedule.ZB_2P, Schedule.ZBV)

    @property
    def fixed_vpp(self) -> int | None:
        """Chunks per stage that the schedule needs; None when it is free (2 or more)."""
        if self is Schedule.INTERLEAVED:
            return None
        return 2 if self is Schedule.ZBV else 1


class Kind(IntEnum):
    """What an operation computes."""

    FORWARD = 0
    BACKWARD = 1  # all of the backward, or its input gradient when the schedule splits it
    WEIGHT = 2  # weight gradient of a split backward


class Operation(NamedTuple):
    """One operation of a stage."""

    kind: Kind
    chunk: int
    microbatch: int


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A schedule with its sizes: all that an order of operations depends on.

    Parameters
    ----------
    schedule : Schedule
        Which schedule.
    pp : int
        Pipeline degree.
    num_microbatches : int
        Micro-batches of one step.
    vpp : int
        Virtual chunks per stage: 1, but 2 for ZB-V and 2 or more when interleaved.
    group_size : int
        Micro-batches that pass one chunk before the next chunk takes over (Megatron-LM's
        ``microbatch_group_size_per_vp_stage``); 0 means ``pp``. Interleaved only.

    Raises
    ------
    InputError
        When the schedule cannot run with these sizes.
    """

    schedule: Schedule
    pp: int
    num_microbatches: int
    vpp: int = 1
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.pp < 1:
            raise InputError(f"pp {self.pp}", allowed="1 or more")
        if self.num_microbatches < 1:
            raise InputError(f"num_microbatches {self.num_microbatches}", allowed="1 or more")
        fixed = self.schedule.fixed_vpp
        if fixed is not None and self.vpp != fixed:
            raise InputError(f"vpp {self.vpp} with schedule {self.schedule}", allowed=f"vpp {fixed}")
        if self.schedule is Schedule.INTERLEAVED:
            _check_interleaved(self)
        elif self.group_size:
            raise InputError(f"group_size {self.group_size} with schedule {self.schedule}", allowed="0")

    @property
    def group(self) -> int:
        """Micro-batches per group: ``group_size``, or ``pp`` when that is 0."""
        return self.group_size or self.pp

    @property
    def kinds(self) -> int:
        """Kinds of operation per micro-batch and chunk: 3 when the backward is split, else 2."""
        return 3 if self.schedule.splits_backward else 2


def _check_interleaved(spec: PipelineSpec) -> None:
    """Raise unless Megatron-LM would accept the sizes of an interleaved schedule."""
    if spec.pp < 2 or spec.vpp < 2:
        raise InputError(
            f"pp {spec.pp} and vpp {spec.vpp} with schedule interleaved",
            allowed="pp 2 or more and vpp 2 or more",
        )
    if spec.pp <= spec.group and spec.group > spec.num_microbatches:
        raise InputError(
            f"num_microbatches {spec.num_microbatches} with schedule interleaved, pp {spec.pp}, groups of {spec.group}",
            allowed=f"{spec.group} micro-batches or more",
        )
    if spec.pp > spec.group:
        raise InputError(
            f"group_size {spec.group} with pp {spec.pp}",
            allowed=f"{spec.pp} or more",
        )
    rest = spec.num_microbatches % spec.group
    if 0 < rest < spec.pp:
        raise InputError(
            f"num_microbatches {spec.num_microbatches} leaves a last group of {rest} with pp {spec.pp}",
            allowed=f"num_microbatches % {spec.group} is 0 or at least {spec.pp}",
        )


@lru_cache(maxsize=256)
def positions(schedule: Schedule, pp: int, vpp: int) -> NDArray[np.int64]:
    """Position in the model of every (stage, chunk): ``chunk * pp + stage``, or a V for ZB-V.

    Returns
    -------
    ndarray
        Shape (pp, vpp), read-only; a permutation of ``0 .. pp * vpp - 1``.
    """
    stage, chunk = np.meshgrid(np.arange(pp), np.arange(vpp), indexing="ij")
    table = chunk * pp + stage
    if schedule is Schedule.ZBV:
        table = np.where(chunk == 0, stage, 2 * pp - 1 - stage)
    table.flags.writeable = False
    return table


def _operations(kind: Kind, chunk: Ints, microbatch: Ints) -> Ints:
    """Operations of one kind, shape (operations, 3)."""
    return np.stack([np.full_like(microbatch, kind), chunk, microbatch], axis=1)


def _alternate(forwards: Ints, backwards: Ints, warmup: int) -> Ints:
    """Run ``warmup`` forwards, then one forward and one backward in turn, then the backwards that are left."""
    count = len(forwards)
    warmup = min(warmup, count)
    turns = np.stack([forwards[warmup:], backwards[: count - warmup]], axis=1).reshape(-1, 3)
    return np.concatenate([forwards[:warmup], turns, backwards[count - warmup :]])


def _plain(kind: Kind, count: int) -> Ints:
    """Return ``count`` operations of one kind on chunk 0, in micro-batch order."""
    numbers = np.arange(count)
    return _operations(kind, np.zeros_like(numbers), numbers)


def _gpipe(spec: PipelineSpec, stage: int) -> Ints:
    """All forwards, then all backwards."""
    del stage  # every stage runs the same order
    m = spec.num_microbatches
    return np.concatenate([_plain(Kind.FORWARD, m), _plain(Kind.BACKWARD, m)])


def _one_f_one_b(spec: PipelineSpec, stage: int) -> Ints:
    """1F1B with ``pp - stage - 1`` warm-up forwards."""
    m = spec.num_microbatches
    return _alternate(_plain(Kind.FORWARD, m), _plain(Kind.BACKWARD, m), spec.pp - stage - 1)


def _interleaved(spec: PipelineSpec, stage: int) -> Ints:
    """Megatron-LM's interleaved 1F1B: groups of micro-batches pass chunk after chunk."""
    vpp, group = spec.vpp, spec.group
    chunk, number = np.indices((vpp, spec.num_microbatches)).reshape(2, -1)
    by_group = np.lexsort((number, chunk, number // group))
    chunk, number = chunk[by_group], number[by_group]
    forwards = _operations(Kind.FORWARD, chunk, number)
    backwards = _operations(Kind.BACKWARD, vpp - 1 - chunk, number)
    return _alternate(forwards, backwards, (spec.pp - stage - 1) * 2 + (vpp - 1) * group)


def _delay_weights(ops: Ints, delay: int) -> Ints:
    """Put each weight gradient after the backward that comes ``delay`` micro-batches later, the rest at the end."""
    after = np.flatnonzero((ops[:, 0] == Kind.BACKWARD) & (ops[:, 2] >= delay)) + 1
    weights = _plain(Kind.WEIGHT, len(ops) // 2)
    return np.concatenate([np.insert(ops, after, weights[: len(after)], axis=0), weights[len(after) :]])


def _zb_h1(spec: PipelineSpec, stage: int) -> Ints:
    """1F1B whose weight gradients wait for ``stage`` micro-batches: as many in flight as 1F1B on stage 0."""
    return _delay_weights(_one_f_one_b(spec, stage), stage)


def _zb_2p(spec: PipelineSpec, stage: int) -> Ints:
    """ZB-H2: ``2 (pp - stage) - 1`` forwards before the first backward, weight gradients wait twice as long."""
    m = spec.num_microbatches
    warmup = 2 * (spec.pp - stage) - 2
    ops = _alternate(_plain(Kind.FORWARD, m), _plain(Kind.BACKWARD, m), warmup)
    return _delay_weights(ops, 2 * stage)


def _zbv(spec: PipelineSpec, stage: int) -> Ints:
    """ZB-V: chunk 0 goes down the stages and chunk 1 back up; made for ``2 pp - 1`` micro-batches or more."""
    pp = spec.pp
    m = max(2 * pp - 1, spec.num_microbatches)
    down, up = stage, pp - stage  # stages before this one; stages from this one on
    f0, b0, w0 = ((kind, 0) for kind in Kind)
    f1, b1, w1 = ((kind, 1) for kind in Kind)
    fed = m - (2 * pp - 1 - stage)  # steady rounds that still have a new micro-batch for chunk 0
    steps = [f0] * (2 * up - 1) + [f1, f0] * down + [f1, b1, w1] * up
    steps += [f0, b0, w0, f1, b1, w1] * fed + [b0, w0, f1, b1, w1] * (m - pp - fed)
    steps += [b0, b1] * down + [b0, w0] * up + [w1] * down + [w0] * down
    counters = {step: itertools.count() for step in (f0, b0, w0, f1, b1, w1)}
    ops = [(kind, chunk, next(counters[kind, chunk])) for kind, chunk in steps]
    return np.array([op for op in ops if op[2] < spec.num_microbatches])


_STAGE_ORDER: Final = MappingProxyType[Schedule, Callable[[PipelineSpec, int], Ints]](
    {
        Schedule.GPIPE: _gpipe,
        Schedule.ONE_F_ONE_B: _one_f_one_b,
        Schedule.INTERLEAVED: _interleaved,
        Schedule.ZB_H1: _zb_h1,
        Schedule.ZB_2P: _zb_2p,
        Schedule.ZBV: _zbv,
    }
)


@lru_cache(maxsize=64)
def order(spec: PipelineSpec) -> NDArray[np.int32]:
    """Order of the operations on every stage.

    Returns
    -------
    ndarray
        Shape (pp, operations per stage, 3), read-only; the columns are kind (:class:`Kind`), chunk and micro-batch.
    """
    stage_order = _STAGE_ORDER[spec.schedule]
    table = np.stack([stage_order(spec, stage) for stage in range(spec.pp)]).astype(np.int32)
    table.flags.writeable = False
    return table


def operations(spec: PipelineSpec) -> tuple[tuple[Operation, ...], ...]:
    """:func:`order` as named tuples, one tuple per stage: for reading, traces and exports."""
    return tuple(
        tuple(Operation(Kind(kind), chunk, microbatch) for kind, chunk, microbatch in stage.tolist())
        for stage in order(spec)
    )

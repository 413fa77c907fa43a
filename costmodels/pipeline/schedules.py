"""Pipeline schedules as the frameworks issue them: the order of operations on every stage.

A *stage* is one pipeline rank. It holds ``vpp`` *chunks* of the model; every (stage, chunk) pair has a *position* in
the model. Each micro-batch passes all positions forward, then all positions backward. An order says in which sequence
one stage runs its forwards, backwards and (when the schedule splits the backward) weight gradients.

References
----------
1F1B and interleaved: Megatron-LM, ``megatron/core/pipeline_parallel/schedules.py`` (warm-up counts and the
schedule table of ``get_pp_rank_microbatches`` and ``get_schedule_table``), and Narayanan et al., arXiv 2104.04473.
GPipe: Huang et al., arXiv 1811.06965. ZB-H1, ZB-H2 and ZB-V: Qi et al., arXiv 2401.10241, sections 2.2 and 6; ZB-V in
the handcrafted order of ``ScheduleZBVZeroBubble`` of ``torch.distributed.pipelining``. Looped BFS: Lamy-Poirier, arXiv
2211.05953. Interleaved ZB-1P and DualPipeV as ``torch.distributed.pipelining.schedules`` issues them, the latter after
DeepSeek-AI's ``dualpipev.py`` (DualPipe: arXiv 2412.19437).
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
    LOOPED_BFS = "loopedbfs"
    INTERLEAVED_ZB = "interleavedzerobubble"
    DUALPIPEV = "dualpipev"

    @property
    def splits_backward(self) -> bool:
        """Whether the weight gradient is an operation of its own."""
        return self in _SPLIT

    @property
    def loops(self) -> bool:
        """Whether a stage holds several chunks, each ``pp`` positions behind the one before."""
        return self in _LOOPS

    @property
    def is_v(self) -> bool:
        """Whether a stage holds two chunks, so that the first stage has both ends of the model."""
        return self in (Schedule.ZBV, Schedule.DUALPIPEV)

    @property
    def holds_all(self) -> bool:
        """Whether all forward passes come before the first backward pass."""
        return self in (Schedule.GPIPE, Schedule.LOOPED_BFS)

    @property
    def fixed_vpp(self) -> int | None:
        """Chunks per stage that the schedule needs; None when it is free (2 or more)."""
        if self.loops:
            return None
        return 2 if self.is_v else 1


_SPLIT: Final = frozenset({Schedule.ZB_H1, Schedule.ZB_2P, Schedule.ZBV, Schedule.INTERLEAVED_ZB, Schedule.DUALPIPEV})
_LOOPS: Final = frozenset({Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.INTERLEAVED_ZB})
_GROUPED: Final = frozenset({Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB})


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
        Virtual chunks per stage: 1, but 2 for ZB-V and DualPipeV and 2 or more for schedules that loop.
    group_size : int
        Micro-batches that pass one chunk before the next chunk takes over (Megatron-LM's
        ``microbatch_group_size_per_vp_stage``); 0 means ``pp``. Interleaved schedules only.

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
        if self.schedule.loops and (self.pp < 2 or self.vpp < 2):
            raise InputError(
                f"pp {self.pp} and vpp {self.vpp} with schedule {self.schedule}",
                allowed="pp 2 or more and vpp 2 or more",
            )
        if self.schedule in _GROUPED:
            _check_groups(self)
        elif self.group_size:
            raise InputError(f"group_size {self.group_size} with schedule {self.schedule}", allowed="0")
        if self.schedule is Schedule.DUALPIPEV and self.num_microbatches < 2 * self.pp:
            raise InputError(
                f"num_microbatches {self.num_microbatches} with schedule dualpipev, pp {self.pp}",
                allowed=f"{2 * self.pp} or more",
            )

    @property
    def group(self) -> int:
        """Micro-batches per group: ``group_size``, or ``pp`` when that is 0."""
        return self.group_size or self.pp

    @property
    def round(self) -> int:
        """Micro-batches by which the steady state repeats itself."""
        return self.group if self.schedule in _GROUPED else 1

    @property
    def kinds(self) -> int:
        """Kinds of operation per micro-batch and chunk: 3 when the backward is split, else 2."""
        return 3 if self.schedule.splits_backward else 2


def runs(schedule: Schedule, pp: int, vpp: int, num_microbatches: int) -> bool:
    """Whether a schedule can run with some sizes, in groups of ``pp`` micro-batches where it has groups.

    Parameters
    ----------
    schedule : Schedule
        Which schedule.
    pp, vpp, num_microbatches : int
        As in :class:`PipelineSpec`.
    """
    try:
        PipelineSpec(schedule=schedule, pp=pp, vpp=vpp, num_microbatches=num_microbatches)
    except InputError:
        return False
    return True


def _check_groups(spec: PipelineSpec) -> None:
    """Raise unless Megatron-LM, or PyTorch where the backward is split, would accept the groups of micro-batches."""
    if spec.pp <= spec.group and spec.group > spec.num_microbatches:
        raise InputError(
            f"num_microbatches {spec.num_microbatches} with schedule {spec.schedule}, pp {spec.pp}, "
            f"groups of {spec.group}",
            allowed=f"{spec.group} micro-batches or more",
        )
    if spec.pp > spec.group:
        raise InputError(
            f"group_size {spec.group} with pp {spec.pp}",
            allowed=f"{spec.pp} or more",
        )
    rest = spec.num_microbatches % spec.group
    if rest and spec.schedule is Schedule.INTERLEAVED_ZB:
        raise InputError(
            f"num_microbatches {spec.num_microbatches} with schedule {spec.schedule}, groups of {spec.group}",
            allowed=f"a multiple of {spec.group}",
        )
    if 0 < rest < spec.pp:
        raise InputError(
            f"num_microbatches {spec.num_microbatches} leaves a last group of {rest} with pp {spec.pp}",
            allowed=f"num_microbatches % {spec.group} is 0 or at least {spec.pp}",
        )


@lru_cache(maxsize=256)
def positions(schedule: Schedule, pp: int, vpp: int) -> NDArray[np.int64]:
    """Position in the model of every (stage, chunk): ``chunk * pp + stage``, or a V.

    Returns
    -------
    ndarray
        Shape (pp, vpp), read-only; a permutation of ``0 .. pp * vpp - 1``.
    """
    stage, chunk = np.meshgrid(np.arange(pp), np.arange(vpp), indexing="ij")
    table = chunk * pp + stage
    if schedule.is_v:
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
    return _alternate(*_in_groups(spec), (spec.pp - stage - 1) * 2 + (spec.vpp - 1) * spec.group)


def _in_groups(spec: PipelineSpec) -> tuple[Ints, Ints]:
    """Forwards and backwards of a stage, group of micro-batches by group, each chunk by chunk."""
    vpp, group = spec.vpp, spec.group
    chunk, number = np.indices((vpp, spec.num_microbatches)).reshape(2, -1)
    by_group = np.lexsort((number, chunk, number // group))
    chunk, number = chunk[by_group], number[by_group]
    return _operations(Kind.FORWARD, chunk, number), _operations(Kind.BACKWARD, vpp - 1 - chunk, number)


def _interleaved_zb(spec: PipelineSpec, stage: int) -> Ints:
    """Interleaved with half the warm-up and a split backward, whose weight gradients wait for ``stage`` others."""
    return _delay_weights(_alternate(*_in_groups(spec), spec.pp - stage - 1 + (spec.vpp - 1) * spec.group), stage)


def _looped_bfs(spec: PipelineSpec, stage: int) -> Ints:
    """All micro-batches through one chunk after the other; backwards from the last of both."""
    del stage  # every stage runs the same order
    chunk, number = np.indices((spec.vpp, spec.num_microbatches)).reshape(2, -1)
    forwards = _operations(Kind.FORWARD, chunk, number)
    return np.concatenate([forwards, _operations(Kind.BACKWARD, chunk[::-1], number[::-1])])


def _delay_weights(ops: Ints, delay: int) -> Ints:
    """Put each weight gradient after the backward that comes ``delay`` backwards later, the rest at the end."""
    backwards = np.flatnonzero(ops[:, 0] == Kind.BACKWARD)
    weights = _operations(Kind.WEIGHT, *ops[backwards, 1:].T)
    after = backwards[delay:] + 1
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


def _dualpipev(spec: PipelineSpec, stage: int) -> Ints:
    """DualPipeV: a V in which forwards of one chunk run with whole backwards of the other."""
    return np.array([op for call in _DualPipeV(spec, stage).calls for op in call])


class _DualPipeV:
    """Calls of a stage of DualPipeV, each with its operations; tensors leave when a call ends.

    The steps are those of PyTorch and DeepSeek: forwards of chunk 0, then of both in turn; input gradients of chunk 1,
    each with the oldest weight gradient that waits and a forward; forwards with whole backwards of the other chunk;
    backwards of both in turn, split from the middle on; weight gradients between the last backwards.
    """

    def __init__(self, spec: PipelineSpec, stage: int) -> None:
        self.calls: list[list[Operation]] = []
        self._numbers = {(kind, chunk): itertools.count() for kind in Kind for chunk in (0, 1)}
        self._waiting: list[Operation] = []  # weight gradients
        behind, ahead = spec.pp - stage - 1, stage + 1  # stages behind this one; those up to it
        self.calls += [self._forward(0) for _ in range(2 * behind)]
        self.calls += [self._forward(chunk) for _ in range(ahead) for chunk in (0, 1)]
        for _ in range(behind):
            self._half(1)
            self._weight()
            self.calls.append(self._forward(1))
        self._steady(spec.num_microbatches - 2 * spec.pp + ahead, together=behind > 0)
        for _ in range(behind):
            self.calls += [self._whole(1), self._forward(1) + self._whole(0)]
        for number in range(2 * ahead):
            if number < ahead:  # the middle
                self.calls.append(self._whole(1 - number % 2))
            else:
                self._half(1 - number % 2)
        for _ in range(behind):
            self._weight()
            self._half(0)
        for _ in range(ahead):
            self._weight()

    def _steady(self, rounds: int, *, together: bool) -> None:
        """Forwards with backwards of the other chunk; the first two of the last stage stay apart."""
        for number in range(rounds):
            first = (self._forward(0), self._whole(1))
            self.calls += [first[0] + first[1]] if together or number else first
            self.calls.append(self._forward(1) + self._whole(0))

    def _forward(self, chunk: int) -> list[Operation]:
        return [Operation(Kind.FORWARD, chunk, next(self._numbers[Kind.FORWARD, chunk]))]

    def _whole(self, chunk: int) -> list[Operation]:
        number = next(self._numbers[Kind.BACKWARD, chunk])
        return [Operation(Kind.BACKWARD, chunk, number), Operation(Kind.WEIGHT, chunk, number)]

    def _half(self, chunk: int) -> None:
        gradient, weight = self._whole(chunk)
        self._waiting.append(weight)
        self.calls.append([gradient])

    def _weight(self) -> None:
        if self._waiting:
            self.calls.append([self._waiting.pop(0)])


_STAGE_ORDER: Final = MappingProxyType[Schedule, Callable[[PipelineSpec, int], Ints]](
    {
        Schedule.GPIPE: _gpipe,
        Schedule.ONE_F_ONE_B: _one_f_one_b,
        Schedule.INTERLEAVED: _interleaved,
        Schedule.ZB_H1: _zb_h1,
        Schedule.ZB_2P: _zb_2p,
        Schedule.ZBV: _zbv,
        Schedule.LOOPED_BFS: _looped_bfs,
        Schedule.INTERLEAVED_ZB: _interleaved_zb,
        Schedule.DUALPIPEV: _dualpipev,
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


def leaving(spec: PipelineSpec) -> NDArray[np.int64]:
    """Operation of the same stage with which the tensor of each operation leaves: itself, or the last of its call.

    Returns
    -------
    ndarray
        Shape (pp, operations per stage), counted along the order of a stage.
    """
    table = np.tile(np.arange(order(spec).shape[1]), (spec.pp, 1))
    if spec.schedule is Schedule.DUALPIPEV:
        for stage in range(spec.pp):
            sizes = [len(call) for call in _DualPipeV(spec, stage).calls]
            table[stage] = np.repeat(np.cumsum(sizes) - 1, sizes)
    return table


def operations(spec: PipelineSpec) -> tuple[tuple[Operation, ...], ...]:
    """:func:`order` as named tuples, one tuple per stage: for reading, traces and exports."""
    return tuple(
        tuple(Operation(Kind(kind), chunk, microbatch) for kind, chunk, microbatch in stage.tolist())
        for stage in order(spec)
    )

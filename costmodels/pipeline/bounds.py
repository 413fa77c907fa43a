"""Closed forms and bounds of a pipeline's time: what a search can afford before it simulates.

:func:`lower_bound` holds for every schedule and any times. The others are exact or bounds only where their docstrings
say so; the tests hold each of these statements against the simulation.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.pipeline.graph import NONE, Ints, Transfers, hops
from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule, order, positions
from costmodels.pipeline.times import Floats, stage_times, time_rows, time_table

PRODUCT_SIZE: Final = 250_000  # multiplications per matrix product: BLAS libraries keep these on one core
AFFINE_DEPTH: Final = 4  # micro-batches over pp from which the paths of a bound grow evenly with the micro-batches


def alpa_form(stage_s: ArrayLike, num_microbatches: int) -> Floats:
    """Time that inter-operator partitioning minimises: ``sum(t) + (m - 1) max(t)``.

    With ``t = forward + backward`` and no transfer times it is, for 1F1B, exact when the last stage is the slowest, and
    an upper bound when every stage's backward is the same multiple of its forward (random stages: up to 35 % above,
    most with few micro-batches and a slow first stage). When that ratio differs between stages it is neither bound.
    For GPipe it is a lower bound, exact when one stage is slowest in both directions.

    Parameters
    ----------
    stage_s : array_like
        Forward and backward time [s] of one micro-batch per stage, shape (..., pp).
    num_microbatches : int
        Micro-batches of one step.

    Returns
    -------
    ndarray
        Time [s], shape (...).

    References
    ----------
    Zheng et al., Alpa, arXiv 2201.12023, equation 2.
    """
    stage = np.asarray(stage_s, dtype=np.float64)
    total: Floats = stage.sum(axis=-1) + (num_microbatches - 1) * stage.max(axis=-1)
    return total


def gpipe_form(forward_s: ArrayLike, backward_s: ArrayLike, num_microbatches: int, p2p_s: ArrayLike = 0.0) -> Floats:
    """GPipe's time with overlapped transfers, exact: ``sum(f) + (m-1) max(f) + sum(b) + (m-1) max(b) + 2 sum(p2p)``.

    Without transfer times it is an upper bound for 1F1B.

    Parameters
    ----------
    forward_s, backward_s : array_like
        Times [s] of one micro-batch per stage, shape (..., pp).
    num_microbatches : int
        Micro-batches of one step.
    p2p_s : array_like
        Time [s] to cross a boundary: a number, or of shape (..., pp - 1).

    Returns
    -------
    ndarray
        Time [s], shape (...).
    """
    forward, backward = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    crossings = np.broadcast_to(p2p_s, (*np.shape(p2p_s)[:-1], forward.shape[-1] - 1))
    result: Floats = (
        alpa_form(forward, num_microbatches) + alpa_form(backward, num_microbatches) + 2.0 * crossings.sum(axis=-1)
    )
    return result


Bubble = Callable[[Floats, Floats, Floats], Floats]

# Bubble per stage boundary when all stages are equal: f(forward, backward, weight gradient), backward the input
# gradient alone when split. Megatron-LM (arXiv 2104.04473, section 2.2), zero bubble (arXiv 2401.10241, table 1).
_BUBBLE: Final = MappingProxyType[Schedule, Bubble](
    {
        Schedule.GPIPE: lambda f, b, w: f + b + w,
        Schedule.ONE_F_ONE_B: lambda f, b, w: f + b + w,
        Schedule.INTERLEAVED: lambda f, b, w: f + b + w,
        Schedule.ZB_H1: lambda f, b, w: np.maximum(f, f + b - w),
        Schedule.ZB_2P: lambda f, b, w: np.maximum(f, f + b - 2.0 * w),
        Schedule.ZBV: lambda f, _b, _w: f,
        Schedule.LOOPED_BFS: lambda f, b, w: f + b + w,
        Schedule.INTERLEAVED_ZB: lambda f, b, w: np.maximum(f, f + b - w),
        Schedule.DUALPIPEV: lambda f, _b, _w: 2.0 * f,
    }
)


def equal_stages(
    spec: PipelineSpec, forward_s: ArrayLike, backward_s: ArrayLike, weight_grad_s: ArrayLike = 0.0
) -> Floats:
    """Makespan when all stages and chunks are equal and transfers cost nothing: work plus ``pp - 1`` bubbles.

    ``m vpp (f + b + w) + (pp - 1) bubble`` with times per chunk, so that interleaving divides the bubble by ``vpp``.
    Exact for GPipe and 1F1B with any sizes, for interleaved with all sizes that Megatron-LM accepts and for looped BFS
    with ``m >= pp``; for ZB-H1 with ``m >= pp``, interleaved ZB-1P, and ZB-H2 with ``m >= 2 pp - 1`` when
    ``w <= min(f, b)``; for ZB-V with ``m >= 2 pp - 1`` and DualPipeV when ``f = b = w``. The makespan of a zero-bubble
    schedule keeps the stagger of the stages' starts, ``(pp - 1) f``;
    :attr:`~costmodels.pipeline.simulate.PipelineTime.span_s` is free of it.

    Parameters
    ----------
    spec : PipelineSpec
        Schedule and sizes.
    forward_s, backward_s, weight_grad_s : array_like
        Times [s] of one micro-batch on one chunk, of one shape.

    Returns
    -------
    ndarray
        Makespan [s] in that shape.
    """
    f, b, w = (np.asarray(value, dtype=np.float64) for value in (forward_s, backward_s, weight_grad_s))
    work = spec.num_microbatches * spec.vpp * (f + b + w)
    result: Floats = work + (spec.pp - 1) * _BUBBLE[spec.schedule](f, b, w)
    return result


def lower_bound(
    spec: PipelineSpec,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    p2p_s: ArrayLike = 0.0,
    weight_grad_s: ArrayLike | None = None,
    transfers: Transfers = Transfers.OVERLAPPED,
) -> Floats:
    """Time that no order of this schedule can beat; never above the simulated makespan.

    The longest of a few paths through the dependency graph, each the way of a micro-batch to a stage, the stage's own
    operations from there on, and the way out: from the stage's first operation or first backward, to its last forward,
    last backward or last operation. Exact for equal stages under 1F1B, interleaved and ZB-H1 when transfers cost
    nothing. One matrix product prices a batch. For GPipe with overlapped transfers it is :func:`gpipe_form`, exact.

    Parameters are those of :func:`~costmodels.pipeline.simulate.makespan`. A bound for overlapped transfers holds for
    blocking ones too, but is then less tight.

    Returns
    -------
    ndarray
        Lower bound [s] of the makespan, shape (batch,).
    """
    times = stage_times(spec, forward_s, backward_s, p2p_s, weight_grad_s)
    if spec.schedule is Schedule.GPIPE and transfers is Transfers.OVERLAPPED:
        stages = times.forward_s[:, :, 0], times.backward_s[:, :, 0]
        return gpipe_form(*stages, spec.num_microbatches, times.p2p_s[:, :-1])
    table = time_table(spec, times)
    paths = paths_of(spec, transfers)
    used = np.flatnonzero(paths.any(axis=0))
    paths, table = paths[:, used], table[used]
    step = max(1, PRODUCT_SIZE // paths.size)
    parts = [(paths @ table[:, low : low + step]).max(axis=0) for low in range(0, table.shape[1], step)]
    return np.concatenate(parts)


@lru_cache(maxsize=256)
def paths_of(spec: PipelineSpec, transfers: Transfers) -> Floats:
    """How often each path of :func:`lower_bound` takes each row of the table of times.

    Parameters
    ----------
    spec : PipelineSpec
        Schedule and sizes; many micro-batches cost no more than few.
    transfers : Transfers
        Overlapped or blocking.

    Returns
    -------
    ndarray
        Counts, shape (paths, rows); those of :func:`counted_paths`.
    """
    group = spec.round
    extra = (spec.num_microbatches - AFFINE_DEPTH * spec.pp) // group - 1
    if extra <= 0:
        return counted_paths(spec, transfers)
    # far from the ends one more group of micro-batches adds the same operations to every path
    few = spec.num_microbatches - extra * group
    base = counted_paths(replace(spec, num_microbatches=few), transfers)
    more = counted_paths(replace(spec, num_microbatches=few + group), transfers)
    return base + extra * (more - base)


def counted_paths(spec: PipelineSpec, transfers: Transfers) -> Floats:
    """Count the paths of :func:`lower_bound` from the order of every operation.

    Parameters
    ----------
    spec : PipelineSpec
        Schedule and sizes; the cost grows with the micro-batches.
    transfers : Transfers
        Overlapped or blocking.

    Returns
    -------
    ndarray
        How often each path takes each row of the table of times, shape (paths, rows).
    """
    chains = _Chains(spec)
    place = positions(spec.schedule, spec.pp, spec.vpp)
    paths = []
    for stage, ops in enumerate(order(spec)):
        position = place[stage, ops[:, 1]]
        work = chains.unit(ops[:, 0], position)
        gaps = _gaps(spec, stage, ops, transfers)
        reached = np.concatenate([np.zeros((1, work.shape[1])), np.cumsum(work + gaps, axis=0)])
        forwards, backwards = np.flatnonzero(ops[:, 0] == Kind.FORWARD), np.flatnonzero(ops[:, 0] == Kind.BACKWARD)
        for enter in (0, int(backwards[0])):
            for leave in (int(forwards[-1]), int(backwards[-1]), len(ops) - 1):
                if enter <= leave:
                    inside = reached[leave + 1] - reached[enter] - gaps[enter]
                    head = chains.head(int(ops[enter, 0]), int(position[enter]))
                    tail = chains.tail(int(ops[leave, 0]), int(position[leave]))
                    paths.append(head + inside + tail)
    return np.array(paths)


def _gaps(spec: PipelineSpec, stage: int, ops: NDArray[np.int32], transfers: Transfers) -> Floats:
    """Transfers that a stage waits for right before each operation, shape (operations, rows).

    As in :mod:`costmodels.pipeline.graph`: a send and a receive over one boundary run together, others one by one.
    """
    gaps = np.zeros((len(ops), time_rows(spec)))
    if transfers is Transfers.OVERLAPPED:
        return gaps
    forward = ops[:, 0] == Kind.FORWARD
    receive = np.where(forward, stage - 1, stage)
    send = np.append(-1, np.where(forward, stage, stage - 1)[:-1])
    first_boundary = time_rows(spec) - spec.pp
    for boundary, counts in ((send, True), (receive, receive != send)):
        waits = np.flatnonzero(counts & (boundary >= 0) & (boundary < spec.pp - 1))
        gaps[waits, first_boundary + boundary[waits]] += 1.0
    return gaps


class _Chains:
    """The way of one micro-batch through the model, as counts of the rows of the table of times."""

    def __init__(self, spec: PipelineSpec) -> None:
        rows, last = time_rows(spec), spec.pp * spec.vpp - 1
        at = np.argsort(positions(spec.schedule, spec.pp, spec.vpp).ravel())  # (stage, chunk) of each position
        self._operation = np.eye(rows)[1 + np.arange(len(Kind))[:, None] * (last + 1) + at]  # (kind, position, row)
        boundary = hops(spec)
        hop = np.where((boundary == NONE)[:, None], 0.0, np.eye(rows)[rows - spec.pp + boundary])
        forward, backward, weight = self._operation
        start = np.zeros((1, rows))
        self._forward = np.concatenate([start, np.cumsum(forward[:-1] + hop, axis=0)])  # before each position
        self._backward = np.concatenate([start, np.cumsum((backward[1:] + hop)[::-1], axis=0)])[::-1]
        self._down = self._forward[-1] + forward[-1]
        self._up = self._backward[0] + backward[0]
        self._end = weight[0] if spec.schedule.splits_backward else start[0]

    def unit(self, kind: Ints, position: Ints) -> Floats:
        """Operations themselves, shape (operations, rows)."""
        unit: Floats = self._operation[kind, position]
        return unit

    def head(self, kind: int, position: int) -> Floats:
        """What comes before the first micro-batch's forward or backward at a position."""
        forward = kind == Kind.FORWARD
        way: Floats = self._forward[position] if forward else self._down + self._backward[position]
        return way

    def tail(self, kind: int, position: int) -> Floats:
        """What comes after the last micro-batch's operation at a position."""
        done = self._operation[kind, position]
        after: Floats = np.zeros_like(done)
        if kind == Kind.BACKWARD:
            after = self._up - self._backward[position] - done + self._end
        elif kind == Kind.FORWARD:
            after = self._down - self._forward[position] - done + self._up + self._end
        return after

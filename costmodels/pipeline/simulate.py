"""Exact time of a pipeline schedule, for a whole batch of candidates at once.

The time of a schedule is the longest path through its dependency graph: with ``x`` the end of a node and ``p`` its
predecessors, ``x = max_p(x_p + latency_p) + duration``. Unequal stages, unequal chunks and unequal boundaries change
nothing in that.

Many micro-batches cost no more than few. The steady block maps the ends of one group of micro-batches to those of the
next, ``x(k + 1) = A x(k)`` in max-plus algebra, and ``A (x + t) = A x + t`` for every shift ``t``. So once
``x(k) = x(k - c) + t`` holds for *all* rows that later rows read, it holds for ever, and the remaining blocks are one
addition (Baccelli et al., *Synchronization and Linearity*, 1992, chapter 3). Candidates that are not yet periodic run
on, block by block, or by powers of ``A`` when that is cheaper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.pipeline import maxplus
from costmodels.pipeline.graph import NONE, Ints, Transfers
from costmodels.pipeline.program import Level, Part, Program, node_table, one_segment, program
from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.pipeline.times import Floats, stage_times, time_table

# Ends that differ from a uniform shift by less than this share of themselves are rounding; the time of the whole step
# is then wrong by at most this share times the number of blocks that were simulated.
SHIFT_RTOL: Final = 1e-13
EXTRA_WINDOW: Final = 2  # blocks beyond the pipeline's depth before the first look for a period; later windows double
CALL_CELLS: Final = 2500  # array cells that numpy handles in the time of one call
MATRIX_CELLS: Final = 1 << 16  # cells of the matrices that are squared together
MAX_BATCH: Final = 1024  # candidates per pass: their working set stays near a core


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PipelineTime:
    """Time of one step's pipeline, per candidate.

    Attributes
    ----------
    makespan_s : ndarray
        From the first forward to the last operation of any stage, shape (batch,).
    busy_s : ndarray
        Compute time of each stage, shape (batch, pp).
    start_s, finish_s : ndarray
        Begin of the first and end of the last operation of each stage, shape (batch, pp).
    """

    makespan_s: Floats
    busy_s: Floats
    start_s: Floats
    finish_s: Floats

    @property
    def bubble_s(self) -> Floats:
        """Time in which a stage does not compute: makespan less busy time, shape (batch, pp)."""
        return self.makespan_s[:, None] - self.busy_s

    @property
    def span_s(self) -> Floats:
        """Longest first-to-last time of a stage, shape (batch,).

        It is the step time when no barrier ends the step, as in zero-bubble schedules with optimizer post-validation.
        """
        span: Floats = (self.finish_s - self.start_s).max(axis=1)
        return span


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Timeline:
    """When every operation runs: rows stage by stage in their order.

    ``stage``, ``kind``, ``chunk`` and ``microbatch`` have shape (operations,), ``start_s`` and ``end_s`` (batch,
    operations).
    """

    stage: NDArray[np.int64]
    kind: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    start_s: Floats
    end_s: Floats


def default_transfers(spec: PipelineSpec, *, buffered: bool = False) -> Transfers:
    """How the frameworks move tensors by default.

    Megatron-LM waits for every transfer of its 1F1B without virtual chunks; its interleaved schedule, the zero-bubble
    runtimes and PyTorch's GPipe send while they compute. ``buffered``: the software sends from buffers, so that no
    stage waits under any schedule.
    """
    waits = spec.schedule is Schedule.ONE_F_ONE_B and not buffered
    return Transfers.BLOCKING if waits else Transfers.OVERLAPPED


def makespan(
    spec: PipelineSpec,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    p2p_s: ArrayLike = 0.0,
    weight_grad_s: ArrayLike | None = None,
    transfers: Transfers | None = None,
) -> PipelineTime:
    """Time of a step's pipeline for a batch of candidates that share a schedule.

    Parameters
    ----------
    spec : PipelineSpec
        Schedule and sizes.
    forward_s, backward_s : array_like
        Time [s] of one micro-batch: a number, or of shape (pp,), (batch, pp) or (batch, pp, vpp). Axes of
        length 1 broadcast. With ``weight_grad_s``, ``backward_s`` is the input gradient alone.
    p2p_s : array_like
        Time [s] to move one tensor across a boundary: a number, or of shape (pp,) or (batch, pp). Boundary ``s`` joins
        stages ``s`` and ``s + 1``; boundary ``pp - 1`` joins the last stage to the first (interleaved only).
    weight_grad_s : array_like, optional
        Time [s] of the weight gradient, shaped like ``forward_s``. Schedules that do not split the backward add it to
        ``backward_s``.
    transfers : Transfers, optional
        Overlapped or blocking; None: :func:`default_transfers`.

    Returns
    -------
    PipelineTime

    Raises
    ------
    ValueError
        When shapes do not fit, a time is negative or not finite, or ``weight_grad_s`` is missing.
    InputError
        When the schedule has no blocking form.
    """
    times = stage_times(spec, forward_s, backward_s, p2p_s, weight_grad_s)
    prog, copies = program(spec, transfers or default_transfers(spec))
    table = time_table(spec, times)
    batches = range(0, table.shape[1], MAX_BATCH)
    parts = [_finish(prog, copies, np.ascontiguousarray(table[:, low : low + MAX_BATCH])) for low in batches]
    finish = np.concatenate([ends[: spec.pp] for ends in parts], axis=1).T
    busy = spec.num_microbatches * (times.forward_s + times.backward_s + times.weight_s).sum(axis=2)
    # every schedule begins with the first micro-batch's way through chunk 0
    way = np.cumsum(times.forward_s[:, :-1, 0] + times.p2p_s[:, :-1], axis=1)
    start = np.concatenate([np.zeros((len(way), 1)), way], axis=1)
    return PipelineTime(makespan_s=finish.max(axis=1), busy_s=busy, start_s=start, finish_s=finish)


def timeline(
    spec: PipelineSpec,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    p2p_s: ArrayLike = 0.0,
    weight_grad_s: ArrayLike | None = None,
    transfers: Transfers | None = None,
) -> Timeline:
    """When every operation runs; parameters as :func:`makespan`. Cost and memory grow with the micro-batches."""
    times = stage_times(spec, forward_s, backward_s, p2p_s, weight_grad_s)
    nodes = node_table(spec, transfers or default_transfers(spec))
    table = time_table(spec, times)
    ends = np.zeros((len(nodes.stage), table.shape[1]))
    _run(one_segment(nodes), ends, table)
    rows = np.flatnonzero(nodes.op[:, 0] != NONE)
    rows = rows[np.argsort(nodes.stage[rows], kind="stable")]
    end = ends[rows]
    kind, chunk, microbatch = nodes.op[rows].T
    return Timeline(
        stage=nodes.stage[rows],
        kind=kind,
        chunk=chunk,
        microbatch=microbatch,
        start_s=(end - table[nodes.duration[rows]]).T,
        end_s=end.T,
    )


def _run(levels: Sequence[Level], ends: Floats, table: Floats) -> None:
    """Fill the places of ``levels`` in ``ends``, shape (places, batch)."""
    for level in levels:
        out = ends[level.low : level.high]
        duration = table.take(level.duration, axis=0)
        first = _at(ends, level.first)
        if level.second is None:
            np.add(first, duration, out=out)
            continue
        second = _at(ends, level.second)
        if level.latency is not None:
            second = second + table.take(level.latency, axis=0)
        np.maximum(first, second, out=out)
        out += duration


def _at(ends: Floats, places: slice | Ints) -> Floats:
    """Ends at places; a slice gives a view."""
    return ends[places] if isinstance(places, slice) else ends.take(places, axis=0)


def _run_part(part: Part, ends: Floats, table: Floats) -> None:
    """Run segments; the front of ``ends`` holds what is live, before and after."""
    for segment in part:
        _run(segment.levels, ends, table)
        ends[: len(segment.carry)] = ends[segment.carry]


def _finish(prog: Program, copies: int, table: Floats) -> Floats:
    """Finish of every stage, shape (pp, batch), with the steady block run ``copies`` times."""
    ends = np.empty((prog.places, table.shape[1]))
    ends[0] = 0.0
    _run_part(prog.prologue, ends, table)
    if copies:
        ends[: prog.live] = _steady(prog, copies, ends, table)
        _run_part(prog.epilogue, ends, table)
    return ends


def _steady(prog: Program, copies: int, ends: Floats, table: Floats) -> Floats:
    """Live ends after ``copies`` blocks, shape (live, batch); the front of ``ends`` holds those before the first."""
    result = np.empty((prog.live, table.shape[1]))
    pending = np.arange(table.shape[1])
    left, window = copies, prog.depth + EXTRA_WINDOW
    while True:
        states = [ends[: prog.live].copy()]
        for _ in range(min(window, left)):
            _run_part(prog.block, ends, table)
            states.append(ends[: prog.live].copy())
        left -= len(states) - 1
        if not left:
            result[:, pending] = states[-1]
            return result
        jump = _extrapolate(states, left)
        wait = np.flatnonzero(np.isnan(jump[0, :]))
        result[:, pending] = jump
        pending, table, ends = pending[wait], table.take(wait, axis=1), ends.take(wait, axis=1)
        if not len(pending):
            return result
        if _squaring_pays(prog, left, len(pending)):
            result[:, pending] = _squared(prog, left, ends, table)
            return result
        window *= 2


def _squaring_pays(prog: Program, left: int, batch: int) -> bool:
    """Whether powers of the block's matrix take less time than running the block ``left`` times more."""
    levels = [level for segment in prog.block for level in segment.levels]
    nodes = sum(level.high - level.low for level in levels)
    run = 5 * (len(levels) * CALL_CELLS + nodes * batch)  # gathers, maximum, sums
    square = 2 * prog.live * (CALL_CELLS + prog.live**2 * batch)
    return left.bit_length() * square + prog.live * run < left * run


def _squared(prog: Program, left: int, ends: Floats, table: Floats) -> Floats:
    """Live ends ``left`` blocks after those in front of ``ends``, by powers of the block's max-plus matrix."""
    live, step = prog.live, max(1, MATRIX_CELLS // prog.live**2)
    parts = []
    for low in range(0, table.shape[1], step):
        times = table[:, low : low + step]
        count = times.shape[1]
        basis = np.full((prog.places, live, count), -np.inf)
        basis[np.arange(live), np.arange(live)] = 0.0
        columns = basis.reshape(prog.places, live * count)
        _run_part(prog.block, columns, np.tile(times, live))
        matrix = columns[:live].reshape(live, live, count)
        parts.append(maxplus.repeat(matrix, ends[:live, low : low + step], left))
    return np.concatenate(parts, axis=1)


def _extrapolate(states: Sequence[Floats], left: int) -> Floats:
    """Live ends ``left`` blocks after the last of ``states``, each (live, batch); NaN where no period shows yet."""
    last = len(states) - 1
    # two weighted means of a state: a uniform shift moves both alike, any other change tells them apart
    weights = np.stack([np.ones(len(states[0])), np.sqrt(1.0 + np.arange(len(states[0])))])
    weights /= weights.sum(axis=1, keepdims=True)
    even, ramp = np.stack([weights @ state for state in states], axis=1)
    rounding = 100.0 * SHIFT_RTOL * even[last]
    result = np.full(states[0].shape, np.nan)
    for period in range(1, last + 1):
        apart = (ramp[last] - ramp[last - period]) - (even[last] - even[last - period])
        maybe = np.flatnonzero((np.abs(apart) <= rounding) & np.isnan(result[0, :]))
        if not len(maybe):
            continue
        now = states[last][:, maybe]
        shift = now - states[last - period][:, maybe]
        low, high = shift.min(axis=0), shift.max(axis=0)
        uniform = high - low <= SHIFT_RTOL * now.max(axis=0)
        found = maybe[uniform]
        back = -left % period  # the known state that lies whole periods before the end
        periods = (left + back) // period
        result[:, found] = states[last - back][:, found] + periods * (0.5 * (low + high))[uniform]
    return result

"""Dependency graphs turned into levelled programs, so that one pass over the levels prices a whole batch of candidates.

Nodes of one level do not depend on each other; rows are numbered level by level. In the steady state one more group of
micro-batches repeats the same rows with the same *relative* predecessors, so that the program of a few micro-batches,
with its steady block repeated, serves any number of them. Ends that nobody reads any more give up their place.
"""

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.pipeline.graph import NONE, Graph, Ints, Transfers, build_graph
from costmodels.pipeline.schedules import Kind, PipelineSpec, Schedule

NO_TIME: Final = 0  # row of the table of times that holds zeros
_UNKNOWN: Final = -2  # a depth not found yet
SEGMENT_ROWS: Final = 128  # nodes per segment: with a batch of candidates they stay in a core's cache

# Micro-batches over the pipeline degree from which a steady block shows: with fewer, warm-up and cool-down overlap.
# GPipe and looped BFS have no single steady phase.
_DEPTH: Final = MappingProxyType(
    {
        Schedule.ONE_F_ONE_B: 2,
        Schedule.INTERLEAVED: 3,
        Schedule.ZB_H1: 2,
        Schedule.ZB_2P: 3,
        Schedule.ZBV: 2,
        Schedule.INTERLEAVED_ZB: 3,
        Schedule.DUALPIPEV: 3,
    }
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Nodes:
    """Columns of a program's rows; row 0 is the start of the step, at time 0.

    ``first`` and ``second`` are rows; ``latency`` (added to the end of ``second``) and ``duration`` are rows of the
    table of times. ``op`` is kind, chunk, micro-batch; -1 for transfers and row 0.
    """

    stage: Ints
    op: Ints
    first: Ints
    second: Ints
    latency: Ints
    duration: Ints
    level: Ints


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Level:
    """Nodes that do not depend on each other; they fill ``low .. high - 1`` of the buffer of ends.

    ``first`` and ``second`` are places in the buffer. ``second`` is None when it equals ``first`` and has no latency;
    ``latency`` is None when it is zero for all nodes.
    """

    low: int
    high: int
    first: slice | Ints
    second: slice | Ints | None
    latency: Ints | None
    duration: Ints


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Segment:
    """Levels that share the buffer; afterwards the ends at places ``carry`` move to its front."""

    levels: tuple[Level, ...]
    carry: Ints


Part = tuple[Segment, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Program:
    """What to run for a schedule: ``prologue``, then ``block`` as often as needed, then ``epilogue``.

    Between parts the front of the buffer holds the ``live`` ends that later nodes still read; in the end it holds the
    finish of each stage. Only the time 0 stands there at first. ``places`` is the size of the buffer. One block is a
    group of micro-batches, and ``depth`` blocks hold a micro-batch per stage; ``block`` is empty when the program is
    all prologue.
    """

    prologue: Part
    block: Part
    epilogue: Part
    live: int
    places: int
    depth: int


@lru_cache(maxsize=16)
def node_table(spec: PipelineSpec, transfers: Transfers) -> Nodes:
    """All nodes of ``spec``, in row order."""
    return _nodes(spec, build_graph(spec, transfers))


def one_segment(nodes: Nodes) -> tuple[Level, ...]:
    """Levels of all nodes over a buffer with a place for every row: for timelines."""
    return _cut(nodes, 1, len(nodes.stage), (np.array([0]), np.array([0])), len(nodes.stage))[0].levels


def _nodes(spec: PipelineSpec, graph: Graph) -> Nodes:
    """Sort a graph's nodes by level and stage, behind row 0."""
    level = _depths(graph)
    by_row = np.lexsort((graph.boundary, graph.stage, level))
    row = np.empty(len(by_row) + 1, dtype=np.int64)
    row[by_row] = np.arange(1, len(by_row) + 1)
    row[NONE] = 0
    first, second = graph.first[by_row], graph.second[by_row]
    first = np.where(first == NONE, second, first)
    second = np.where(second == NONE, first, second)
    kind, chunk, _ = graph.op.T
    places = spec.pp * spec.vpp
    boundary_row = 1 + len(Kind) * places
    operation_row = 1 + kind * places + graph.stage * spec.vpp + chunk
    duration = np.where(kind == NONE, boundary_row + graph.boundary, operation_row)
    latency = np.where(graph.latency == NONE, NO_TIME, boundary_row + graph.latency)

    def column(values: Ints, start: int) -> Ints:
        return np.concatenate([[start], values])

    return Nodes(
        stage=column(graph.stage[by_row], NONE),
        op=np.concatenate([np.full((1, 3), NONE), graph.op[by_row]]),
        first=column(row[first], 0),
        second=column(row[second], 0),
        latency=column(latency[by_row], NO_TIME),
        duration=column(duration[by_row], NO_TIME),
        level=column(level[by_row], -1),
    )


def _depths(graph: Graph) -> Ints:
    """Longest chain of predecessors of each node.

    Raises
    ------
    ValueError
        When nodes wait for each other: the order would deadlock.
    """
    first, second = graph.first.tolist(), graph.second.tolist()
    count = len(first)
    depth = [_UNKNOWN] * count + [NONE]  # the last is what a node without a predecessor finds at NONE
    for start in range(count):
        path = [start]
        while path:
            node = path[-1]
            before, beside = depth[first[node]], depth[second[node]]
            if _UNKNOWN in (before, beside):
                path.append(first[node] if before == _UNKNOWN else second[node])
                if len(path) > count:
                    raise ValueError("the order of operations deadlocks")
            else:
                depth[path.pop()] = 1 + max(before, beside)
    return np.array(depth[:-1])


def _cut(nodes: Nodes, low: int, high: int, ends: tuple[Ints, Ints], limit: int) -> Part:
    """Turn rows ``low .. high - 1`` into segments of about ``limit`` rows.

    ``ends`` are the rows that the front of the buffer holds before and after, in this order.
    """
    live_in, live_out = ends
    starts = low + np.flatnonzero(np.diff(nodes.level[low - 1 : high]))
    last_use = np.full(high, -1)
    for source in (nodes.first, nodes.second):
        np.maximum.at(last_use, source[low:high], np.arange(low, high))
    last_use[live_out] = high
    place = np.full(high, NONE)
    segments = []
    at = 0
    while at < len(starts):
        after = max(at + 1, int(np.searchsorted(starts, starts[at] + limit)))
        begin, end = int(starts[at]), int(starts[after]) if after < len(starts) else high
        place[live_in] = np.arange(len(live_in))
        place[begin:end] = len(live_in) + np.arange(end - begin)
        bounds = [*starts[at:after].tolist(), end]
        levels = tuple(_level(nodes, place, *pair) for pair in itertools.pairwise(bounds))
        held = np.concatenate([live_in, np.arange(begin, end)])
        live_in = live_out if end == high else held[last_use[held] >= end]
        segments.append(Segment(levels=levels, carry=place[live_in]))
        at = after
    return tuple(segments)


def _level(nodes: Nodes, place: Ints, low: int, high: int) -> Level:
    """Rows ``low .. high - 1`` as a level over the places of a buffer."""
    first, second, latency = nodes.first[low:high], nodes.second[low:high], nodes.latency[low:high]
    moved = bool(latency.any())
    return Level(
        low=int(place[low]),
        high=int(place[high - 1]) + 1,
        first=_selector(place[first]),
        second=_selector(place[second]) if moved or first.tolist() != second.tolist() else None,
        latency=latency if moved else None,
        duration=nodes.duration[low:high],
    )


def _selector(rows: Ints) -> slice | Ints:
    """Rows as a slice when they are consecutive: a view is cheaper than a gather."""
    low = int(rows[0])
    return slice(low, low + len(rows)) if rows.tolist() == list(range(low, low + len(rows))) else rows


@lru_cache(maxsize=1024)
def program(spec: PipelineSpec, transfers: Transfers) -> tuple[Program, int]:
    """Smallest program that serves ``spec``, and how often its block runs.

    Programs of few micro-batches are tried until one more group of micro-batches adds one more steady block and nothing
    else; the block then runs once more for each further group. When no such program is smaller than the whole one (few
    micro-batches, or GPipe and looped BFS with their steady phases), the whole one is returned.
    """
    group = spec.round
    whole, rest = divmod(spec.num_microbatches, group)
    depth = _DEPTH.get(spec.schedule, spec.num_microbatches) * spec.pp
    for groups in range(1, whole - 1):
        sample = rest + groups * group
        if sample > depth + spec.pp + 2 * group:
            break
        found = _sampled(replace(spec, num_microbatches=sample), transfers, group) if sample >= depth else None
        if found is not None:
            return found, whole - groups + 1
    nodes = node_table(spec, transfers)
    part = _cut(nodes, 1, len(nodes.stage), (np.array([0]), _finals(nodes, spec)), SEGMENT_ROWS)
    return Program(prologue=part, block=(), epilogue=(), live=1, places=_places(part), depth=1), 0


def _finals(nodes: Nodes, spec: PipelineSpec) -> Ints:
    """Row of the last operation of each stage."""
    operation = nodes.op[:, 0] != NONE
    return np.array([np.flatnonzero(operation & (nodes.stage == stage))[-1] for stage in range(spec.pp)])


def _places(*parts: Part) -> int:
    """Size of the buffer that parts need."""
    segments = [segment for part in parts for segment in part]
    return max(max(segment.levels[-1].high, len(segment.carry)) for segment in segments)


@lru_cache(maxsize=1024)
def _sampled(spec: PipelineSpec, transfers: Transfers, group: int) -> Program | None:
    """Program of ``spec`` with its steady block; None when one more group of micro-batches is not one more block."""
    small = node_table(spec, transfers)
    large = node_table(replace(spec, num_microbatches=spec.num_microbatches + group), transfers)
    total = len(small.stage)
    rows = len(large.stage) - total
    a, b = _relative(small), _relative(large)
    before, after = _common(a, b), _common(a[::-1], b[::-1])
    starts = np.flatnonzero(np.diff(small.level)) + 1
    final = _finals(small, spec)
    # the block stands in the small program already, so both programs agree up to its end and from its begin
    lows = starts[(starts >= total - after) & (starts + rows <= min(before, final.min()))]
    for low in lows[np.isin(lows + rows, starts)].tolist():
        high = low + rows
        live = _live(small, low, high)
        if live[-1] <= low:
            cuts = (
                (1, low, np.array([0]), low - live),
                (low, high, low - live, high - live),
                (high, total, high - live, final),
            )
            parts = [_cut(small, begin, end, (held, kept), SEGMENT_ROWS) for begin, end, held, kept in cuts]
            prologue, block, epilogue = parts
            return Program(
                prologue=prologue,
                block=block,
                epilogue=epilogue,
                live=len(live),
                places=_places(*parts),
                depth=-(-spec.pp // group),
            )
    return None


def _relative(nodes: Nodes) -> Ints:
    """What a row does, with its predecessors as distances: equal rows do the same thing later."""
    row = np.arange(len(nodes.stage))
    starts = np.diff(nodes.level, prepend=-2)
    columns = (nodes.stage, nodes.latency, nodes.duration, row - nodes.first, row - nodes.second, starts)
    return np.stack(columns, axis=1)


def _common(a: Ints, b: Ints) -> int:
    """Number of equal leading rows."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(np.any(a[:size] != b[:size], axis=1))
    return int(differs[0]) if len(differs) else size


def _live(nodes: Nodes, low: int, high: int) -> Ints:
    """Distances, back from the end of a block ``low .. high - 1``, of the rows that blocks and epilogue read later."""
    rows = high - low
    block = np.concatenate([nodes.first[low:high], nodes.second[low:high]])
    after = np.concatenate([nodes.first[high:], nodes.second[high:]])
    live = set((low - block[block < low]).tolist()) | set((high - after[after < high]).tolist())
    pending = list(live)
    while pending:  # a row further back than one block was live at the end of the block before too
        distance = pending.pop() - rows
        if distance > 0 and distance not in live:
            live.add(distance)
            pending.append(distance)
    return np.array(sorted(live))

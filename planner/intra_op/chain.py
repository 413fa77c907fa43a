"""From the problem to a chain of whole numbers, and back: scaling, constraints as masks, dominance, decoding.

A chain is the problem on a grid: times are whole multiples of ``unit_s`` (a power of two, so that dividing is exact
and only rounding to the grid errs, by at most half a unit per term). Exact sums make ties and proofs exact.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.intra_op.constraints import Ordered, Restrict
from planner.intra_op.problem import Assignment, Floats, IntraOpProblem, Ints

Bools = NDArray[np.bool_]

FORBIDDEN: Final = 1 << 52
"""A cost that no legal path reaches; a path may add 250 of them without overflow."""

GRID_BITS: Final = 40
"""The dearest legal path costs at most ``2**GRID_BITS`` units."""

LEAST_COMPRESSED: Final = 24
"""Links of up to so many strategies are not searched for equal rows and columns."""

MOST_COMPARED: Final = 1 << 19
"""Largest array of rises."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Link:
    """Costs between the strategies of a layer and of the next; equal rows and equal columns are kept once.

    The cost from s to t is ``core[row[s], column[t]]``. ``members[c]`` lists the strategies of column class c, padded
    with their number.
    """

    core: Ints
    row: Ints
    column: Ints
    members: Ints

    @staticmethod
    def of(matrix: Ints) -> "Link":
        """Find the classes of a full matrix; small ones are kept as they are."""
        row, column = np.arange(matrix.shape[0]), np.arange(matrix.shape[1])
        core = matrix
        if max(matrix.shape) > LEAST_COMPRESSED:
            first, row = _equal_rows(matrix)
            core = matrix[first]
            first, column = _equal_rows(core.T)
            core = core[:, first]
        return Link._made(core, row, column)

    @staticmethod
    def _made(core: Ints, row: Ints, column: Ints) -> "Link":
        order = np.argsort(column, kind="stable")
        counts = np.bincount(column, minlength=core.shape[1])
        members = np.full((core.shape[1], max(1, int(counts.max(initial=0)))), column.size, dtype=np.int64)
        place = np.arange(column.size) - np.repeat(np.cumsum(counts) - counts, counts)
        members[column[order], place] = order
        return Link(core=core, row=row, column=column, members=members)

    def select(self, before: Bools, after: Bools) -> "Link":
        """Keep only the chosen strategies of both sides."""
        return Link._made(self.core, self.row[before], self.column[after])

    def reversed(self) -> "Link":
        """Return the link read backwards."""
        return Link._made(self.core.T, self.column, self.row)

    def cost(self, s: Ints | int, t: Ints | int) -> Ints:
        """Cost from s to t, elementwise."""
        return np.asarray(self.core[self.row[s], self.column[t]])


def _equal_rows(matrix: Ints) -> tuple[Ints, Ints]:
    """First row of each class of equal rows, and the class of every row."""
    mixed = np.arange(1, matrix.shape[1] + 1, dtype=np.int64) * 0x9E3779B97F4A7C1  # a row's sum tells it from others
    _, first, inverse = np.unique((matrix * mixed).sum(axis=1), return_index=True, return_inverse=True)
    if not (matrix == matrix[first][inverse]).all():  # unless two different rows share it
        _, first, inverse = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    return first, inverse.ravel()


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainRun:
    """A run on the grid; ``keep`` maps its strategies to those of the problem."""

    count: int
    keep: Ints
    time: Ints
    memory: Ints
    transient: Ints
    switch: Link | None

    def select(self, chosen: Bools) -> "ChainRun":
        """Keep only the chosen strategies."""
        return replace(
            self,
            keep=self.keep[chosen],
            time=self.time[chosen],
            memory=self.memory[chosen],
            transient=self.transient[chosen],
            switch=None if self.switch is None else self.switch.select(chosen, chosen),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """Runs on the grid and links between them.

    Fits: persistent bytes of all layers, and the largest transient bytes of a layer but at least ``paid``, in
    ``budget``.
    """

    runs: tuple[ChainRun, ...]
    edges: tuple[Link | None, ...]
    budget: int
    paid: int
    unit_s: float

    @property
    def room(self) -> int:
        """Bytes for persistent memory at most."""
        return self.budget - self.paid

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(run.count for run in self.runs)

    @property
    def empty(self) -> bool:
        """Whether some run has no strategy left."""
        return any(run.keep.size == 0 for run in self.runs)

    @property
    def separable(self) -> bool:
        """Whether layers do not depend on each other in time."""
        return all(run.switch is None for run in self.runs) and all(edge is None for edge in self.edges)

    def select(self, chosen: Sequence[Bools]) -> "Chain":
        """Keep only the chosen strategies of each run."""
        edges = tuple(
            None if edge is None else edge.select(chosen[r], chosen[r + 1]) for r, edge in enumerate(self.edges)
        )
        return replace(self, runs=tuple(run.select(c) for run, c in zip(self.runs, chosen, strict=True)), edges=edges)

    def between_transient(self, paid: int, most: int) -> "Chain":
        """Keep strategies with at most ``most`` transient bytes, and count ``paid`` bytes for them in any case."""
        below = self.select([run.transient <= most for run in self.runs])
        runs = tuple(replace(run, transient=np.maximum(run.transient, paid)) for run in below.runs)
        return replace(below, runs=runs, paid=paid)

    def fits(self, memory: int, path: Sequence[int]) -> bool:
        """Whether a path with so many persistent bytes fits with its transient bytes."""
        return memory + self.transient_of(path) <= self.budget

    def transient_of(self, path: Sequence[int]) -> int:
        """Transient bytes that a path has to pay."""
        return max(self.paid, *(int(self.runs[r].transient[s]) for r, s in zip(self.layer_runs(), path, strict=True)))

    def reversed(self) -> "Chain":
        """Return the chain read from the last layer to the first."""
        runs = tuple(
            replace(run, switch=None if run.switch is None else run.switch.reversed()) for run in reversed(self.runs)
        )
        edges = tuple(None if edge is None else edge.reversed() for edge in reversed(self.edges))
        return replace(self, runs=runs, edges=edges)

    def layer_runs(self) -> list[int]:
        """Run of every layer."""
        return [r for r, run in enumerate(self.runs) for _ in range(run.count)]

    def transitions(self) -> list[Link | None]:
        """Link between each layer and the next; None is zero."""
        found: list[Link | None] = []
        for r, run in enumerate(self.runs):
            found += [run.switch] * (run.count - 1)
            if r < len(self.edges):
                found.append(self.edges[r])
        return found

    def price(self, path: Sequence[int]) -> tuple[int, int]:
        """Units and persistent bytes of one strategy per layer (positions in the runs' own lists)."""
        owners = self.layer_runs()
        time = sum(int(self.runs[r].time[s]) for r, s in zip(owners, path, strict=True))
        memory = sum(int(self.runs[r].memory[s]) for r, s in zip(owners, path, strict=True))
        for layer, link in enumerate(self.transitions()):
            time += 0 if link is None else int(link.cost(path[layer], path[layer + 1]))
        return time, memory


def _largest(values: Floats | None) -> float:
    if values is None:
        return 0.0
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


def grid_unit_s(problem: IntraOpProblem) -> float:
    """Power of two such that the dearest finite path costs at most ``2**GRID_BITS`` units."""
    dearest = sum(run.count * _largest(run.time_s) + (run.count - 1) * _largest(run.switch_s) for run in problem.runs)
    dearest += sum(_largest(edge) for edge in problem.edges_s)
    return 2.0 ** (math.frexp(dearest)[1] - GRID_BITS) if dearest > 0 else 1.0


def _on_grid(values: Floats, unit_s: float) -> Ints:
    finite = np.isfinite(values)
    return np.where(finite, np.rint(np.where(finite, values, 0.0) / unit_s), FORBIDDEN).astype(np.int64)


def _link(matrix: Ints | None) -> Link | None:
    return None if matrix is None or not matrix.any() else Link.of(matrix)


def encode(problem: IntraOpProblem) -> Chain:
    """Put a problem on the grid; ``Restrict`` becomes masks and ``Ordered`` forbidden transitions.

    ``Uniform`` is left to the caller, who enumerates the values (:func:`planner.intra_op.solve.solve`).
    """
    unit_s = grid_unit_s(problem)
    switches = [None if run.switch_s is None else _on_grid(run.switch_s, unit_s) for run in problem.runs]
    edges = [None if edge is None else _on_grid(edge, unit_s) for edge in problem.edges_s]
    for constraint in problem.constraints:
        if isinstance(constraint, Ordered):
            _forbid_backward(problem, constraint, switches, edges)
    runs = tuple(
        ChainRun(
            count=run.count,
            keep=np.arange(run.strategies, dtype=np.int64),
            time=_on_grid(run.time_s, unit_s),
            memory=run.persistent_bytes,
            transient=run.transient_bytes,
            switch=_link(switches[r]) if run.count > 1 else None,
        )
        for r, run in enumerate(problem.runs)
    )
    budget = problem.limit_bytes - problem.fixed_bytes
    chain = Chain(runs=runs, edges=tuple(_link(edge) for edge in edges), budget=budget, paid=0, unit_s=unit_s)
    return chain.select(_allowed(problem))


def _allowed(problem: IntraOpProblem) -> list[Bools]:
    masks = [np.isfinite(run.time_s) for run in problem.runs]
    for constraint in problem.constraints:
        if isinstance(constraint, Restrict | Ordered):
            legal = constraint.values if isinstance(constraint, Restrict) else constraint.order
            for r in problem.covered(constraint):
                masks[r] = masks[r] & np.array([v in legal for v in problem.runs[r].values(constraint.attribute)])
    return masks


def _forbid_backward(
    problem: IntraOpProblem, constraint: Ordered, switches: list[Ints | None], edges: list[Ints | None]
) -> None:
    """Forbid transitions that go back in the order; pairs of consecutive layers suffice for the whole sequence."""
    covered = problem.covered(constraint)
    ranks = {}
    for r in covered:
        values = problem.runs[r].values(constraint.attribute)
        ranks[r] = np.array([constraint.order.index(v) if v in constraint.order else 0 for v in values])
    for r in covered:
        switches[r] = _without(switches[r], ranks[r][:, None] > ranks[r][None, :])
        if r + 1 in ranks:
            edges[r] = _without(edges[r], ranks[r][:, None] > ranks[r + 1][None, :])


def _without(matrix: Ints | None, forbidden: Bools) -> Ints:
    costs = np.zeros(forbidden.shape, dtype=np.int64) if matrix is None else matrix
    return np.where(forbidden, FORBIDDEN, costs)


def without_dominated(chain: Chain) -> Chain:
    """Remove strategies that another one can replace everywhere at no cost (proof: docs/formulation.md).

    Strategy t replaces s in run r of n layers if it needs no more memory of either kind and, for a block of b = 1
    and of b = n layers, ``b (time_t - time_s) + (b-1)(switch_tt - switch_ss) + enter + leave <= 0``, where ``enter``
    and ``leave`` are the largest rises of the edge into and out of the block over all possible neighbours.
    Repeated until nothing changes, because fewer neighbours make the test sharper.
    """
    while True:
        masks = [_undominated(chain, r) for r in range(len(chain.runs))]
        sharper = chain.select(masks) if not all(mask.all() for mask in masks) else chain
        if sharper is chain or chain.separable:
            return sharper
        chain = sharper


def _undominated(chain: Chain, r: int) -> Bools:
    run = chain.runs[r]
    size = run.keep.size
    rise = _rise(chain, r)
    longer = (run.time[:, None] - run.time[None, :]) * run.count
    if run.switch is not None:
        stay = run.switch.cost(np.arange(size), np.arange(size))
        longer = longer + (stay[:, None] - stay[None, :]) * (run.count - 1)
    beats = (run.time[:, None] - run.time[None, :] + rise <= 0) & (longer + rise <= 0)
    beats &= (run.memory[:, None] <= run.memory[None, :]) & (run.transient[:, None] <= run.transient[None, :])
    np.fill_diagonal(beats, val=False)
    present: Bools = np.ones(size, dtype=np.bool_)
    for s in range(size - 1, -1, -1):  # of two equal strategies the later one goes
        present[s] = not (beats[:, s] & present).any()
    return present


def _rise(chain: Chain, r: int) -> Ints:
    """Largest rise of entering plus leaving when strategy s (column) is replaced by t (row), shape (S, S)."""
    run = chain.runs[r]
    before = chain.edges[r - 1] if r > 0 else None
    after = chain.edges[r] if r < len(chain.edges) else None
    inside_free = run.switch is None and run.count > 1
    enter = _largest_rise(before, run.switch, free=before is None or inside_free)
    back = None if run.switch is None else run.switch.reversed()
    leave = _largest_rise(None if after is None else after.reversed(), back, free=after is None or inside_free)
    return enter + leave


def _largest_rise(outside: Link | None, inside: Link | None, *, free: bool) -> Ints:
    """Max over neighbours u of cost(u, t) - cost(u, s); inside the run u ranges over all but s, as blocks are maximal.

    ``free``: the block may also have a neighbour that costs nothing, or none at all.
    """
    candidates = [np.zeros((1, 1), dtype=np.int64)] if free else []
    if outside is not None:
        candidates.append(_rise_over(outside, spare_own=False))
    if inside is not None:
        candidates.append(_rise_over(inside, spare_own=True))
    worst = candidates[0]
    for candidate in candidates[1:]:
        worst = np.maximum(worst, candidate)
    return worst


def _rise_over(link: Link, *, spare_own: bool) -> Ints:
    """Rise over the neighbours of one link, shape (S, S); ``spare_own``: strategy s is no neighbour of itself.

    Classes that would take too large an array are only compared with themselves, which is safe.
    """
    alike: Bools = link.column[:, None] == link.column[None, :]
    present = np.bincount(link.row, minlength=link.core.shape[0])
    rows, classes = np.flatnonzero(present), link.core.shape[1]
    if rows.size * classes**2 > MOST_COMPARED:
        return np.where(alike, 0, FORBIDDEN)
    change = link.core[rows][:, :, None] - link.core[rows][:, None, :]  # (u, t, s) by class
    worst: Ints = change.max(axis=0)[np.ix_(link.column, link.column)]
    if not spare_own:
        return worst
    # Where the largest rise comes from s itself, alone in its class, the second largest counts.
    first = change.argmax(axis=0)
    index = np.arange(classes)
    change[first, index[:, None], index[None, :]] = -FORBIDDEN
    second = change.max(axis=0)[np.ix_(link.column, link.column)]
    source = rows[first][np.ix_(link.column, link.column)]
    own = (source == link.row[None, :]) & (present[link.row] == 1)[None, :]
    return np.where(own, second, worst)


def decode(chain: Chain, path: Sequence[int]) -> Assignment:
    """Blocks per run in the problem's numbering; layers of a run are regrouped into few blocks where that is free."""
    blocks = []
    start = 0
    for r, run in enumerate(chain.runs):
        own = [int(run.keep[s]) for s in path[start : start + run.count]]
        start += run.count
        if run.switch is None:
            pin_first = r > 0 and chain.edges[r - 1] is not None
            pin_last = r < len(chain.edges) and chain.edges[r] is not None
            own = _regroup(own, pin_first=pin_first, pin_last=pin_last)
        blocks.append(_blocks(own))
    return tuple(blocks)


def _regroup(layers: list[int], *, pin_first: bool, pin_last: bool) -> list[int]:
    """Sort the layers, keeping the first and last strategy where an edge depends on them."""
    if len(layers) == 1:
        return layers
    head = layers[:1] if pin_first else []
    tail = layers[-1:] if pin_last else []
    middle = layers[len(head) : len(layers) - len(tail)]
    return [*head, *sorted(middle, key=lambda s: (s in tail, s not in head, s)), *tail]


def _blocks(layers: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((s, len(list(group))) for s, group in itertools.groupby(layers))

"""Layers onto stages that each get a submesh of the cluster: Alpa's inter-operator problem, exactly.

A stage holds layers i..j-1 on a submesh of one of the given shapes, in one of several configurations; it costs
``cost_s[i, j, shape, config]`` per micro-batch and fits if at most ``max_successors`` stages follow it (each later
stage means one more micro-batch in flight). Stages cover the layers in order and their shapes cover the devices exactly
(or leave some idle, if allowed). Minimised is ``fill * sum t + (m - fill) * max t``.

With a threshold tau on stage times and without the successors' condition, the least sum is

    F(i, d; tau) = min over (j, shape) of c(i, j, shape) + F(j, d - size(shape); tau),   c <= tau;   F(L, 0) = 0

which bounds the true one from below. Only device counts between the least that the layers from i need and the most that
the layers before i can spare are looked at, which near the optimum are few. Where the recursion's own stages break the
successors' condition, stages are counted too (``_counted``). Thresholds go down the steps of F, as in
:mod:`planner.inter_op.stages`. Proofs and comparison with Alpa: docs/formulation.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.inter_op.grid import FORBIDDEN, Floats, Ints, grid_unit_s, on_grid
from planner.inter_op.objective import PipelineObjective

Shape = tuple[int, int]
"""Nodes and devices per node."""

MANY: Final = 1 << 30


def submesh_shapes(nodes: int, devices_per_node: int, *, every_node_count: bool = False) -> tuple[Shape, ...]:
    """List Alpa's submesh shapes: powers of two within a node, then whole nodes.

    Parameters
    ----------
    nodes, devices_per_node : int
        The cluster; ``devices_per_node`` a power of two.
    every_node_count : bool, optional
        1, 2, 3, .. nodes instead of powers of two.

    Raises
    ------
    ValueError
        If ``devices_per_node`` is not a power of two.

    References
    ----------
    Zheng et al., arXiv 2201.12023, section 5.2: such shapes can always be laid out on the cluster.
    """
    if devices_per_node < 1 or devices_per_node & (devices_per_node - 1):
        raise ValueError(f"devices_per_node must be a power of two, got {devices_per_node}")
    inside = [(1, 1 << b) for b in range(devices_per_node.bit_length())]
    whole = range(2, nodes + 1) if every_node_count else [1 << b for b in range(1, nodes.bit_length())]
    return (*inside, *((n, devices_per_node) for n in whole))


@dataclass(frozen=True, kw_only=True, eq=False)
class SubmeshProblem:
    """Layers, devices, shapes and stage costs.

    Parameters
    ----------
    cost_s : array of shape (L, L + 1, Z, C)
        Seconds per micro-batch of layers i..j-1 on shape z in configuration c at ``[i, j, z, c]``; infinite if not
        available. Entries with j <= i are ignored.
    shapes : tuple of (nodes, devices per node)
        Z shapes.
    devices : int
        Devices of the cluster.
    objective : PipelineObjective
        Weights of sum and bottleneck.
    max_successors : array like ``cost_s``, optional
        Most stages that may follow; negative: does not fit at all. No limit if absent.
    allow_idle : bool, optional
        Whether devices may be left without work.

    Raises
    ------
    ValueError
        On shapes of arrays that do not match.
    """

    cost_s: Floats
    shapes: tuple[Shape, ...]
    devices: int
    objective: PipelineObjective
    max_successors: Ints | None = None
    allow_idle: bool = False

    def __post_init__(self) -> None:
        """Check the shapes."""
        cost = np.array(self.cost_s, dtype=np.float64)
        if cost.ndim != 4 or cost.shape[1] != cost.shape[0] + 1 or cost.shape[2] != len(self.shapes) or 0 in cost.shape:
            raise ValueError(f"cost_s must have shape (L, L + 1, {len(self.shapes)}, C), got {cost.shape}")
        if self.max_successors is not None and np.shape(self.max_successors) != cost.shape:
            raise ValueError(f"max_successors must have shape {cost.shape}, got {np.shape(self.max_successors)}")
        if self.devices < 1:
            raise ValueError(f"devices must be at least 1, got {self.devices}")
        cost.setflags(write=False)
        object.__setattr__(self, "cost_s", cost)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.cost_s.shape[0])

    @property
    def sizes(self) -> Ints:
        """Devices of each shape, shape (Z,)."""
        return np.array([nodes * devices for nodes, devices in self.shapes], dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class SubmeshStage:
    """Layers ``first``..``end - 1`` on a submesh in a configuration, and their seconds per micro-batch."""

    first: int
    end: int
    shape: Shape
    config: int
    time_s: float


@dataclass(frozen=True, kw_only=True)
class SubmeshPlan:
    """The optimal stages, priced from the problem's own costs; empty with an infinite step if there are none.

    ``thresholds`` counts evaluations of the recursion, ``counted`` those that had to count stages for memory.
    """

    stages: tuple[SubmeshStage, ...]
    step_s: float
    thresholds: int
    counted: int


Arc = tuple[int, int, int, int]
"""First layer, end, shape, configuration."""


class _Tables:
    """A problem on the grid, with the recursions over (first layer, devices left)."""

    def __init__(self, problem: SubmeshProblem) -> None:
        usable = problem.sizes <= problem.devices
        self.problem = problem
        self.sizes = problem.sizes[usable]
        self.shape_index = np.flatnonzero(usable)
        self.devices, self.layers = problem.devices, problem.layers
        ordered = np.arange(self.layers + 1)[None, :] > np.arange(self.layers)[:, None]
        cost_s = np.where(ordered[:, :, None, None], problem.cost_s[:, :, usable], np.inf)
        self.unit_s = grid_unit_s(cost_s)
        self.cost = on_grid(cost_s, self.unit_s)
        self.successors = None
        if problem.max_successors is not None:
            self.successors = np.asarray(problem.max_successors, dtype=np.int64)[:, :, usable]
        follows = (np.arange(self.layers + 1) < self.layers).astype(np.int64)
        self.relaxed = self.at_least(follows[None, :, None, None])

    def at_least(self, successors: Ints | int) -> Ints:
        """Cheapest configuration that allows so many successors, shape (L, L + 1, Z)."""
        allowed = self.cost
        if self.successors is not None:
            allowed = np.where(self.successors >= successors, self.cost, FORBIDDEN)
        cheapest: Ints = allowed.min(axis=3)
        return cheapest

    def windows(self, cost: Ints, tau: int) -> tuple[Ints, Ints]:
        """Least devices that layers i.. need and most that layers ..i can spare, shape (L + 1,) each."""
        least = np.where(cost <= tau, self.sizes, MANY).min(axis=2)
        need = np.full(self.layers + 1, MANY, dtype=np.int64)
        used = need.copy()
        need[-1] = used[0] = 0
        for i in range(self.layers - 1, -1, -1):
            need[i] = min(MANY, int((least[i] + need).min()))
        for j in range(1, self.layers + 1):
            used[j] = min(MANY, int((least[:, j] + used[:-1]).min()))
        return need, self.devices - used

    def leaf(self) -> Ints:
        """Recursion with no layer left; columns are devices left, after as many forbidden ones as a shape may take."""
        table = np.full((self.layers + 1, 2 * self.devices + 1), FORBIDDEN, dtype=np.int64)
        table[-1, self.devices : None if self.problem.allow_idle else self.devices + 1] = 0
        return table

    def sweep(self, cost: Ints, tau: int, *, after: Ints | None = None) -> Ints:
        """Least sums by (first layer, devices left): one stage before ``after``, by default any number of stages."""
        need, spare = self.windows(cost, tau)
        table = self.leaf()
        source = table if after is None else after
        if after is not None:
            table[-1] = FORBIDDEN  # at least one stage
        if need[0] > self.devices:
            return table
        row = table.shape[1]
        for i in range(self.layers - 1, -1, -1):
            left = np.arange(need[i], spare[i] + 1)
            ends, shapes = np.nonzero(cost[i] <= tau)
            taken = self.sizes[shapes]
            fits = (taken + need[ends] <= spare[i]) & (taken + spare[ends] >= need[i])
            if left.size == 0 or not fits.any():
                continue
            ends, shapes, taken = ends[fits], shapes[fits], taken[fits]
            origin = ends * row + self.devices - taken
            sums = source.ravel()[origin[:, None] + left] + cost[i, ends, shapes][:, None]
            table[i, self.devices + left] = np.minimum(sums.min(axis=0), FORBIDDEN)
        return table

    def trace(self, cost: Sequence[Ints], tables: Sequence[Ints], tau: int) -> list[tuple[int, int, int]]:
        """Arcs (first layer, end, shape) of the optimum; of equal sums the smallest end, then shape.

        ``tables[n]`` and ``cost[n]`` hold after and for the n-th stage; the last entries serve all further stages.
        """
        arcs: list[tuple[int, int, int]] = []
        i, left = 0, self.devices
        while i < self.layers:
            n = len(arcs)
            here, after = cost[min(n, len(cost) - 1)], tables[min(n + 1, len(tables) - 1)]
            value = tables[min(n, len(tables) - 1)][i, self.devices + left]
            column = np.maximum(self.devices + left - self.sizes, 0)
            sums = np.where(here[i] <= tau, here[i] + after[:, column], FORBIDDEN)
            end, shape = (int(x[0]) for x in np.nonzero(sums == value))
            arcs.append((i, end, shape))
            i, left = end, left - int(self.sizes[shape])
        return arcs

    def configured(self, arcs: Sequence[tuple[int, int, int]]) -> list[Arc] | None:
        """Give each stage its cheapest configuration that allows its successors; None if there is none."""
        found = []
        for n, (i, j, z) in enumerate(arcs):
            options = self.cost[i, j, z]
            if self.successors is not None:
                options = np.where(self.successors[i, j, z] >= len(arcs) - 1 - n, options, FORBIDDEN)
            config = int(options.argmin())
            if options[config] >= FORBIDDEN:
                return None
            found.append((i, j, z, config))
        return found

    def times(self, arcs: Sequence[Arc]) -> list[int]:
        """Units of each stage."""
        return [int(self.cost[arc]) for arc in arcs]


class _Search:
    def __init__(self, tables: _Tables) -> None:
        self.tables = tables
        self.objective = tables.problem.objective
        self.best: tuple[int, int, list[Arc]] | None = None  # units, sum if it has no weight, stages
        self.thresholds = 0
        self.counted = 0

    def offer(self, arcs: Sequence[Arc] | None) -> None:
        """Keep a legal partition if it is better, or as good and lexicographically smaller."""
        if arcs is None:
            return
        times = self.tables.times(arcs)
        total, largest = sum(times), max(times)
        entry = (self.objective.units(total, largest), 0 if self.objective.sum_weight else total, list(arcs))
        if self.best is None or entry < self.best:
            self.best = entry

    def cap(self, least_sum: int) -> int:
        """Largest bottleneck with which a partition of at least this sum can still matter."""
        if self.best is None or self.objective.max_weight == 0:
            return FORBIDDEN - 1
        room = self.best[0] - self.objective.sum_weight * least_sum
        return min(FORBIDDEN - 1, room // self.objective.max_weight)

    def relaxed(self, tau: int, cost: Ints) -> tuple[int, list[tuple[int, int, int]]]:
        """Least sum without counting stages, and its arcs."""
        self.thresholds += 1
        table = self.tables.sweep(cost, tau)
        least = int(table[0, 2 * self.tables.devices])
        return least, self.tables.trace([cost], [table], tau) if least < FORBIDDEN else []

    def floor(self) -> int:
        """Least threshold under which layers and devices can be covered; FORBIDDEN if none."""
        cost = self.tables.relaxed
        values = np.unique(cost[cost < FORBIDDEN])
        low, high = 0, values.size
        while low < high:  # enough devices: necessary, and quick to ask
            middle = (low + high) // 2
            enough = self.tables.windows(cost, int(values[middle]))[0][0] <= self.tables.devices
            low, high = (low, middle) if enough else (middle + 1, high)
        reach, step = low, 1
        while reach < values.size and not self.covers(int(values[reach])):
            low, reach, step = reach + 1, reach + step, 2 * step
        high = min(reach, values.size)
        while low < high:  # an exact cover
            middle = (low + high) // 2
            low, high = (low, middle) if self.covers(int(values[middle])) else (middle + 1, high)
        return int(values[low]) if low < values.size else FORBIDDEN

    def covers(self, tau: int) -> bool:
        """Whether stages under the threshold cover layers and devices."""
        arcs = self.relaxed(tau, self.tables.relaxed)[1]
        self.offer(self.tables.configured(arcs) if arcs else None)
        return bool(arcs)

    def run(self) -> None:
        """Go down the steps of F between the cap and the floor."""
        floor = self.floor()
        if floor >= FORBIDDEN:
            return
        self.guess(floor)
        tau = self.cap(0)
        while tau >= floor:
            least, arcs = self.relaxed(tau, self.tables.relaxed)
            if least >= FORBIDDEN or self.objective.units(least, floor) > self.worst:
                return
            found = self.tables.configured(arcs)
            self.offer(found)
            if found is None or sum(self.tables.times(found)) > least:
                found = self.count_stages(tau, floor)
                self.offer(found)
                if found is None:  # no partition under this threshold matters, so none under a lower one
                    return
            times = self.tables.times(found)
            if self.objective.max_weight == 0:
                return
            tau = min(max(times) - 1, self.cap(sum(times)))

    @property
    def worst(self) -> int:
        """Units that a partition must not exceed to matter."""
        return FORBIDDEN << 12 if self.best is None else self.best[0]

    def guess(self, floor: int) -> None:
        """Find some legal partition: ask for configurations that allow as many successors as the last try needed."""
        successors = 1
        while self.best is None and successors < self.tables.layers:
            cost = self.tables.at_least(successors)
            for tau in (floor + floor // 8, FORBIDDEN - 1):
                least, arcs = self.relaxed(tau, cost)
                if least < FORBIDDEN:
                    self.offer(self.tables.configured(arcs))
                    break
            else:
                return
            successors = max(2 * successors, len(arcs) - 1)

    def count_stages(self, tau: int, floor: int) -> list[Arc] | None:
        """Least sum under the threshold with the successors' condition, among partitions that can still matter."""
        self.counted += 1
        tables = self.tables
        levels, costs = [tables.leaf()], []
        limit = (self.worst - self.objective.max_weight * floor) // max(1, self.objective.sum_weight)
        found: list[tuple[int, list[Arc]]] = []
        for stages in range(1, tables.layers + 1):
            costs.append(tables.at_least(stages - 1))
            level = tables.sweep(costs[-1], tau, after=levels[-1])
            level[level > limit] = FORBIDDEN
            levels.append(level)
            least = int(level[0, 2 * tables.devices])
            if least < FORBIDDEN:
                arcs = tables.configured(tables.trace(costs[::-1], levels[::-1], tau))
                if arcs is not None:
                    found.append((least, arcs))
            if (level >= FORBIDDEN).all():
                break
        return min(found)[1] if found else None


def partition_submeshes(problem: SubmeshProblem) -> SubmeshPlan:
    """Find the optimal stages, submeshes and configurations.

    Parameters
    ----------
    problem : SubmeshProblem
        Layers, devices and stage costs.

    Returns
    -------
    SubmeshPlan
        Exact on the grid of :mod:`planner.inter_op.grid`; ties go to the lexicographically smallest sequence of
        (first layer, end, shape, configuration).
    """
    tables = _Tables(problem)
    search = _Search(tables)
    search.run()
    if search.best is None:
        return SubmeshPlan(stages=(), step_s=math.inf, thresholds=search.thresholds, counted=search.counted)
    stages = tuple(
        SubmeshStage(
            first=i,
            end=j,
            shape=problem.shapes[int(tables.shape_index[z])],
            config=config,
            time_s=float(problem.cost_s[i, j, tables.shape_index[z], config]),
        )
        for i, j, z, config in search.best[2]
    )
    step_s = problem.objective.step_s([stage.time_s for stage in stages])
    return SubmeshPlan(stages=stages, step_s=step_s, thresholds=search.thresholds, counted=search.counted)

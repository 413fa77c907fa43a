"""The counts ILP in OR-tools CP-SAT: integers per (run, strategy) instead of a binary per (layer, strategy).

Variables of run r with n layers (indices r left out):

    x[s]    layers that use s                  first[s], last[s]   s is used by the first / last layer (0/1)
    y[s,t]  transitions from s to t, s != t    used[s]             s is used at all (0/1)
    z[s,t]  transition to the next run (0/1)

A way to order the layers exists if and only if the transitions form an Eulerian path from the first to the last
strategy over the used ones: flow conservation at each strategy, and connection to the first. Connection is enforced
lazily: ``connected`` cuts are added for sets that a solution leaves unreachable, and the model is solved again.
Constraint names are those of docs/formulation.md.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from ortools.sat.python import cp_model

from planner.intra_op.bounds import Path
from planner.intra_op.chain import FORBIDDEN, Chain, ChainRun
from planner.intra_op.labels import Goal

SEED: Final = 7
MAX_CUT_ROUNDS: Final = 50

Vars = dict[int, cp_model.IntVar]
Pairs = dict[tuple[int, int], cp_model.IntVar]


@dataclass(frozen=True, kw_only=True)
class CpSatResult:
    """``best`` is None if nothing beats the target; no path takes fewer than ``bound`` units.

    ``proven``: the search ended by itself, so ``best`` (or the absence of one) is final up to the gap.
    """

    best: Path | None
    bound: int
    proven: bool
    deterministic_s: float
    branches: int


@dataclass(frozen=True, kw_only=True)
class _RunVars:
    count: Vars
    first: Vars
    last: Vars
    used: Vars = field(default_factory=dict)
    switch: Pairs = field(default_factory=dict)


class _Model:
    def __init__(self, chain: Chain, lower: int, upper: int) -> None:
        """Build the model; each ``_add_*`` method is one family of constraints."""
        self.chain = chain
        self.model = cp_model.CpModel()
        self.cost: list[cp_model.LinearExprT] = []
        self.runs = [self._add_run(r) for r in range(len(chain.runs))]
        self.edges = [self._add_edges(r) for r in range(len(chain.edges))]
        self._add_memory_limit()
        objective = sum(self.cost)
        self.model.add(objective >= lower).with_name("dual_bound")
        self.model.add(objective <= upper - 1).with_name("incumbent")
        self.model.minimize(objective)

    def _pinned(self, r: int) -> bool:
        edges = self.chain.edges
        beside = (r > 0 and edges[r - 1] is not None) or (r < len(edges) and edges[r] is not None)
        return beside or self.chain.runs[r].switch is not None

    def _add_run(self, r: int) -> _RunVars:
        run, model = self.chain.runs[r], self.model
        names = range(run.keep.size)
        count = {s: model.new_int_var(0, run.count, f"x[{r},{s}]") for s in names}
        model.add(sum(count.values()) == run.count).with_name(f"layers[{r}]")
        self.cost += [int(run.time[s]) * count[s] for s in names]
        if not self._pinned(r):
            return _RunVars(count=count, first={}, last={})
        first = {s: model.new_bool_var(f"first[{r},{s}]") for s in names}
        last = {s: model.new_bool_var(f"last[{r},{s}]") for s in names}
        model.add_exactly_one(first.values()).with_name(f"first[{r}]")
        model.add_exactly_one(last.values()).with_name(f"last[{r}]")
        for s in names:
            if run.count == 1:
                model.add(count[s] == first[s]).with_name(f"single[{r},{s}]")
                model.add(count[s] == last[s]).with_name(f"single[{r},{s}]")
            else:
                model.add(count[s] >= first[s] + last[s]).with_name(f"ends[{r},{s}]")
        if run.switch is None:
            return _RunVars(count=count, first=first, last=last)
        return self._add_order(r, run, _RunVars(count=count, first=first, last=last))

    def _add_order(self, r: int, run: ChainRun, own: _RunVars) -> _RunVars:
        """Flow of transitions inside a run whose order costs something."""
        model, names = self.model, range(run.keep.size)
        if run.switch is None:
            return own
        matrix = run.switch.core[run.switch.row][:, run.switch.column]
        pairs = [(s, t) for s in names for t in names if s != t and matrix[s, t] < FORBIDDEN]
        switch = {(s, t): model.new_int_var(0, run.count - 1, f"y[{r},{s},{t}]") for s, t in pairs}
        used = {s: model.new_bool_var(f"used[{r},{s}]") for s in names}
        entering: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        leaving: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for (s, t), variable in switch.items():
            leaving[s].append(variable)
            entering[t].append(variable)
            self.cost.append(int(matrix[s, t]) * variable)
        for s in names:
            blocks = own.first[s] + sum(entering[s])
            model.add(blocks == own.last[s] + sum(leaving[s])).with_name(f"flow[{r},{s}]")
            model.add(blocks >= used[s]).with_name(f"reached[{r},{s}]")
            model.add(own.count[s] <= run.count * used[s]).with_name(f"used[{r},{s}]")
            if matrix[s, s] < FORBIDDEN:
                model.add(own.count[s] >= blocks).with_name(f"blocks[{r},{s}]")
                self.cost.append(int(matrix[s, s]) * (own.count[s] - blocks))
            else:
                model.add(own.count[s] == blocks).with_name(f"blocks[{r},{s}]")
        return _RunVars(count=own.count, first=own.first, last=own.last, used=used, switch=switch)

    def _add_edges(self, r: int) -> Pairs:
        """Transition from the last layer of run r to the first of run r + 1."""
        link = self.chain.edges[r]
        if link is None:
            return {}
        matrix = link.core[link.row][:, link.column]
        before, after = self.runs[r].last, self.runs[r + 1].first
        pairs = [(s, t) for s in before for t in after if matrix[s, t] < FORBIDDEN]
        edge = {(s, t): self.model.new_bool_var(f"z[{r},{s},{t}]") for s, t in pairs}
        for s, variable in before.items():
            out = sum(z for (q, _), z in edge.items() if q == s)
            self.model.add(out == variable).with_name(f"edge_out[{r},{s}]")
        for t, variable in after.items():
            into = sum(z for (_, q), z in edge.items() if q == t)
            self.model.add(into == variable).with_name(f"edge_in[{r},{t}]")
        self.cost += [int(matrix[s, t]) * z for (s, t), z in edge.items()]
        return edge

    def _add_memory_limit(self) -> None:
        sizes = [int(m) for run in self.chain.runs for m in run.memory]
        scale = math.gcd(*sizes) or 1
        held = sum(
            int(run.memory[s]) // scale * count
            for run, own in zip(self.chain.runs, self.runs, strict=True)
            for s, count in own.count.items()
        )
        self.model.add(held <= self.chain.room // scale).with_name("memory_limit")

    def add_cuts(self, solver: cp_model.CpSolver) -> bool:
        """Add ``connected`` cuts for strategies that the first one does not reach; False if there are none."""
        cut = False
        for r, own in enumerate(self.runs):
            inside = _unreached(own, solver)
            if not inside:
                continue
            cut = True
            into = sum(v for (s, t), v in own.switch.items() if t in inside and s not in inside)
            start = sum(own.first[s] for s in inside)
            for s in inside:
                self.model.add(into + start >= own.used[s]).with_name(f"connected[{r},{s}]")
        return cut

    def path(self, solver: cp_model.CpSolver) -> list[int]:
        """One strategy per layer from the counts and transitions."""
        found: list[int] = []
        for own in self.runs:
            counts = {s: solver.value(v) for s, v in own.count.items()}
            first = next((s for s, v in own.first.items() if solver.value(v)), None)
            last = next((s for s, v in own.last.items() if solver.value(v)), None)
            if own.switch:
                arcs = {pair: solver.value(v) for pair, v in own.switch.items()}
                found += _eulerian(int(first or 0), counts, arcs)
            else:
                found += _ordered(counts, first, last)
        return found


def _unreached(own: _RunVars, solver: cp_model.CpSolver) -> set[int]:
    if not own.switch:
        return set()
    reached = {s for s, v in own.first.items() if solver.value(v)}
    frontier = list(reached)
    while frontier:
        here = frontier.pop()
        ahead = {t for (s, t), v in own.switch.items() if s == here and solver.value(v)} - reached
        reached |= ahead
        frontier += ahead
    return {s for s, v in own.count.items() if solver.value(v)} - reached


def _ordered(counts: dict[int, int], first: int | None, last: int | None) -> list[int]:
    """Any order will do between the pinned ends."""
    left = dict(counts)
    for s in (first, last) if sum(counts.values()) > 1 else (first,):
        if s is not None:
            left[s] -= 1
    middle = [s for s in sorted(left) for _ in range(left[s])]
    head = [] if first is None else [first]
    tail = [] if last is None or sum(counts.values()) == 1 else [last]
    return [*head, *middle, *tail]


def _eulerian(first: int, counts: dict[int, int], arcs: dict[tuple[int, int], int]) -> list[int]:
    """Order of blocks along an Eulerian path (Hierholzer); spare layers of a strategy stay in its first block."""
    left = dict(arcs)
    stack, walk = [first], []
    while stack:
        here = stack[-1]
        ahead = next((t for (s, t), n in left.items() if s == here and n > 0), None)
        if ahead is None:
            walk.append(stack.pop())
        else:
            left[here, ahead] -= 1
            stack.append(ahead)
    walk.reverse()
    spare = {s: n - walk.count(s) for s, n in counts.items()}
    found: list[int] = []
    for s in walk:
        found += [s] * (1 + spare.pop(s, 0))
    return found


def solve_counts(chain: Chain, *, goal: Goal, max_deterministic_s: float) -> CpSatResult:
    """Solve the counts ILP for a path that beats the goal's target.

    Parameters
    ----------
    chain : Chain
        One cap of transient bytes, which are paid (``room`` is left).
    goal : Goal
        A proven lower bound, the value to beat, and the gap that is good enough.
    max_deterministic_s : float
        Limit in CP-SAT's deterministic time, over all rounds of cuts.
    """
    upper = goal.target(goal.upper)
    encoded = _Model(chain, goal.lower, upper)
    spent, branches, bound = 0.0, 0, goal.lower
    for _ in range(MAX_CUT_ROUNDS):
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = SEED
        solver.parameters.linearization_level = 2  # twice as fast where edges count
        solver.parameters.relative_gap_limit = goal.relative_gap
        solver.parameters.max_deterministic_time = max(0.0, max_deterministic_s - spent)
        solver.parameters.catch_sigint_signal = False  # it would take an interrupt for a limit, and nobody hear of it
        status = solver.solve(encoded.model)
        spent = round(spent + solver.response_proto.deterministic_time, 9)  # its last digits vary between runs
        branches += solver.num_branches
        if status == cp_model.INFEASIBLE:
            return CpSatResult(best=None, bound=upper, proven=True, deterministic_s=spent, branches=branches)
        bound = max(bound, math.ceil(solver.best_objective_bound - 0.5))
        if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            break
        if encoded.add_cuts(solver):
            continue
        layers = encoded.path(solver)
        time, memory = chain.price(layers)
        best = Path(layers=tuple(layers), time=time, memory=memory)
        proven = status == cp_model.OPTIMAL
        return CpSatResult(best=best, bound=bound, proven=proven, deterministic_s=spent, branches=branches)
    return CpSatResult(best=None, bound=bound, proven=False, deterministic_s=spent, branches=branches)

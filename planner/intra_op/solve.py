"""Solve the intra-op ILP exactly: enumerate what couples all layers, bound, search, prove, reprice.

1. ``Uniform`` values and the transient cap couple all layers: each combination is a subproblem without them.
2. Dominated strategies leave each subproblem.
3. If the fastest path fits, it is the answer (closed form). Otherwise the Lagrangian dual bounds the subproblem.
4. What the bound cannot close is searched with labels; if they grow too many, with sums of halves where layers do not
   depend on each other, and with the counts ILP in CP-SAT.

The answer is repriced from the problem; an illegal or mispriced one raises. See docs/formulation.md.
"""

import itertools
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from planner.intra_op.bounds import Dual, Path, cheapest, dual, rounding_margin
from planner.intra_op.chain import FORBIDDEN, Bools, Chain, decode, encode, without_dominated
from planner.intra_op.constraints import Uniform
from planner.intra_op.halves import search_halves
from planner.intra_op.labels import Goal, path_bounds, search_labels
from planner.intra_op.problem import Assignment, Floats, IntraOpProblem, reprice, violations
from planner.intra_op.solution import IntraOpSolution, Method, SolutionCache, SolveOptions, SolveStats, Status

MAX_UNIFORM_COMBINATIONS: Final = 4096
SUMS_PER_LABEL: Final = 4
"""Sums of halves for one label of the limit: they take less time."""
SETTLED: Final = 0.5
"""A range of transient caps is searched as it is when the caps differ by less than this share of the open gap."""
PROMISING: Final = 16
"""Strategies of a run among which a good answer is looked for first, when there are many."""
DEFAULT_OPTIONS: Final = SolveOptions()


@dataclass(kw_only=True)
class _Progress:
    """Best answer so far over all subproblems, in units of the grid, and the work done."""

    options: SolveOptions
    best: int = FORBIDDEN
    assignment: Assignment | None = None
    bounds: list[int] = field(default_factory=list)  # one per subproblem: no path of it takes fewer units
    method: Method = Method.CLOSED_FORM
    stats: SolveStats = field(default_factory=SolveStats)

    def offer(self, chain: Chain, path: Path | None, method: Method) -> None:
        """Keep a path if it is faster than the best so far; the first of equals stays."""
        if path is not None and path.time < self.best:
            self.best, self.assignment, self.method = path.time, decode(chain, path.layers), method

    def goal(self, lower: int) -> Goal:
        """What a subproblem with this lower bound has to beat."""
        return Goal(lower=lower, upper=self.best, relative_gap=self.options.relative_gap)

    @property
    def target(self) -> int:
        """Units below which an answer matters."""
        return self.goal(0).target(self.best)

    def count(self, **done: float) -> None:
        """Add to the counters of the work done."""
        self.stats = replace(self.stats, **{k: getattr(self.stats, k) + v for k, v in done.items()})


def solve(
    problem: IntraOpProblem, *, options: SolveOptions = DEFAULT_OPTIONS, cache: SolutionCache | None = None
) -> IntraOpSolution:
    """Find the fastest legal assignment that fits.

    Parameters
    ----------
    problem : IntraOpProblem
        The stage.
    options : SolveOptions, optional
        Deterministic limits.
    cache : SolutionCache, optional
        Looked up first and filled afterwards; problems with equal numbers share an answer.

    Returns
    -------
    IntraOpSolution
        Repriced, with a proven lower bound. Deterministic: of equally fast assignments the first in a fixed order
        of search wins.

    Raises
    ------
    ValueError
        If ``Uniform`` constraints allow more than 4096 combinations of values.
    """
    signature = problem.signature() if cache is not None else b""
    known = cache.get(signature, options) if cache is not None else None
    if known is not None:
        return known
    solution = _solve(problem, options)
    if cache is not None:
        cache.put(signature, options, solution)
    return solution


def _solve(problem: IntraOpProblem, options: SolveOptions) -> IntraOpSolution:
    whole = encode(problem)
    progress = _Progress(options=options)
    progress.count(strategies=sum(run.strategies for run in problem.runs))
    groups = []
    for masks in _uniform_masks(problem, whole):
        chain = whole.select(masks)
        if chain.empty:
            continue
        chain = without_dominated(chain)
        progress.count(undominated=sum(run.keep.size for run in chain.runs))
        fastest = cheapest(chain, (1.0, 0.0))
        if fastest is not None:
            groups.append((fastest, chain))
    if not groups:
        return IntraOpSolution(status=Status.NO_ASSIGNMENT, stats=progress.stats)
    for fastest, chain in sorted(groups, key=lambda group: group[0].time):
        if fastest.time < progress.target:
            _solve_group(chain, fastest, progress)
        else:
            progress.bounds.append(fastest.time)
    if progress.assignment is None:
        return _without_answer([chain for _, chain in groups], progress)
    return _answer(problem, whole, progress, progress.assignment)


def _uniform_masks(problem: IntraOpProblem, chain: Chain) -> Iterator[list[Bools]]:
    """Masks of the strategies for each combination of values of the ``Uniform`` constraints."""
    uniform = [c for c in problem.constraints if isinstance(c, Uniform)]
    choices: list[list[Hashable]] = []
    labels = []
    for constraint in uniform:
        covered = problem.covered(constraint)
        own = {r: [problem.runs[r].values(constraint.attribute)[s] for s in chain.runs[r].keep] for r in covered}
        choices.append([v for v in dict.fromkeys(own[covered[0]]) if all(v in values for values in own.values())])
        labels.append(own)
    if math.prod(len(c) for c in choices) > MAX_UNIFORM_COMBINATIONS:
        raise ValueError(f"Uniform constraints allow {math.prod(len(c) for c in choices)} combinations of values")
    for values in itertools.product(*choices):
        masks = [np.ones(run.keep.size, dtype=np.bool_) for run in chain.runs]
        for value, own in zip(values, labels, strict=True):
            for r, found in own.items():
                masks[r] &= np.array([v == value for v in found], dtype=np.bool_)
        yield masks


def _caps(chain: Chain) -> list[int]:
    """Transient caps under which every run keeps a strategy."""
    least = max(int(run.transient.min()) for run in chain.runs)
    return sorted({int(b) for run in chain.runs for b in run.transient if b >= least})


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Paths whose transient bytes are in a range of caps: strategies up to the highest, the lowest paid in any case."""

    chain: Chain
    dual: Dual
    low: int
    high: int

    @property
    def lower(self) -> int:
        """No path of the span takes fewer units."""
        return math.ceil(self.dual.bound)

    def settled(self, caps: list[int], target: int) -> bool:
        """Whether halving the range would sharpen the bound by less than half of what is open."""
        return self.dual.price * (caps[self.high] - caps[self.low]) <= SETTLED * (target - self.lower)


def _solve_group(chain: Chain, fastest: Path, progress: _Progress) -> None:
    """Solve one combination of uniform values: halve the range of transient caps, the span of best bound first."""
    if chain.fits(fastest.memory, fastest.layers):
        progress.offer(chain, fastest, Method.CLOSED_FORM)
        progress.bounds.append(fastest.time)
        return
    caps = _caps(chain)
    spans = _bounded(chain, caps, [(0, len(caps) - 1)], progress)
    while spans:
        span = min(spans, key=lambda each: (each.lower, each.low))
        spans.remove(span)
        if span.lower >= progress.target:
            progress.bounds.append(span.lower)
            return
        single = span.low == span.high
        searched = single or span.settled(caps, progress.target)
        if not searched or not _search(span.chain, span.dual, progress, last_resort=single):
            middle = (span.low + span.high) // 2
            spans += _bounded(chain, caps, [(span.low, middle), (middle + 1, span.high)], progress)


def _bounded(chain: Chain, caps: list[int], ranges: list[tuple[int, int]], progress: _Progress) -> list[_Span]:
    """Bound ranges of caps; those that nothing fits under are left out, and what is met on the way is offered."""
    found = []
    for low, high in ranges:
        below = chain.between_transient(caps[low], caps[high])
        bound = dual(below)
        progress.count(subproblems=1, dual_steps=bound.steps)
        progress.offer(below, bound.fitting, Method.DUAL)
        if bound.bound < math.inf:
            found.append(_Span(chain=below, dual=bound, low=low, high=high))
    return found


def _without_hopeless(chain: Chain, bound: Dual, progress: _Progress) -> Chain:
    """Drop strategies through which no path beats the target; with many, first find a better target among a few."""
    least = path_bounds(chain, bound.price)
    left = chain.select(_below_target(chain, bound, least, progress))
    if progress.options.max_labels > 0 and not left.empty and max(run.keep.size for run in left.runs) > 2 * PROMISING:
        few = without_dominated(chain.select([values <= np.sort(values)[:PROMISING][-1] for values in least]))
        goal = progress.goal(math.ceil(bound.bound))
        result = search_labels(few, price=bound.price, goal=goal, max_labels=progress.options.max_labels // 20)
        progress.count(labels=result.labels)
        progress.offer(few, result.best, Method.LABELS)
        left = chain.select(_below_target(chain, bound, least, progress))
    return left


def _below_target(chain: Chain, bound: Dual, least: list[Floats], progress: _Progress) -> list[Bools]:
    margin = rounding_margin(chain, progress.best, bound.price)
    return [values <= progress.target - 1 + margin for values in least]


def _search(chain: Chain, bound: Dual, progress: _Progress, *, last_resort: bool) -> bool:
    """Find the best path of a subproblem below the best answer so far, or prove that there is none.

    Returns False if strategies or labels are too many and the span can still be halved (``last_resort`` is False).
    """
    options, lower = progress.options, math.ceil(bound.bound)
    chain = _without_hopeless(chain, bound, progress)
    if chain.empty:
        progress.bounds.append(max(lower, progress.target))
        return True
    if not last_resort and max(run.keep.size for run in chain.runs) > 4 * PROMISING:
        return False
    chain = without_dominated(chain)
    for method, most in _methods(chain, options, last_resort=last_resort):
        goal = progress.goal(lower)
        if method is Method.HALVES:
            result = search_halves(chain, price=bound.price, goal=goal, max_sums=most)
        else:
            result = search_labels(chain, price=bound.price, goal=goal, max_labels=most)
        progress.count(labels=result.labels)
        progress.offer(chain, result.best, method)
        lower = max(lower, result.bound)
        if result.proven or lower >= progress.target:
            progress.method = method
            progress.bounds.append(lower)
            return True
    if not last_resort:
        return False
    from planner.intra_op.solve_cp_sat import solve_counts  # noqa: PLC0415  (loading OR-tools takes long; rarely needed)

    progress.method = Method.CP_SAT
    counted = solve_counts(chain, goal=progress.goal(lower), max_deterministic_s=options.max_deterministic_s)
    progress.count(deterministic_s=counted.deterministic_s, branches=counted.branches)
    progress.offer(chain, counted.best, Method.CP_SAT)
    progress.bounds.append(counted.bound)
    return True


def _methods(chain: Chain, options: SolveOptions, *, last_resort: bool) -> tuple[tuple[Method, int], ...]:
    """Searches before the counts ILP and their limits.

    Sums of halves need layers that do not depend on each other and one cap of transient bytes.
    """
    few, every = (Method.LABELS, options.max_labels // 20), (Method.LABELS, options.max_labels)
    if not every[1]:
        return ()
    if not last_resort:
        return (few,)
    return (few, (Method.HALVES, SUMS_PER_LABEL * options.max_labels), every) if chain.separable else (every,)


def _answer(problem: IntraOpProblem, chain: Chain, progress: _Progress, assignment: Assignment) -> IntraOpSolution:
    """Reprice and check; a fault here is a fault of the solver, never of the user."""
    broken = violations(problem, assignment)
    price = reprice(problem, assignment)
    rounding_s = (2 * problem.layers - 1) * chain.unit_s / 2
    if broken or abs(price.time_s - progress.best * chain.unit_s) > rounding_s + 1e-12 * price.time_s:
        raise RuntimeError(
            f"solver answered {assignment} at {progress.best * chain.unit_s} s, repriced {price}: {broken}"
        )
    lower = min([progress.best, *progress.bounds])
    enough = progress.best - math.floor(progress.options.relative_gap * progress.best)
    return IntraOpSolution(
        status=Status.OPTIMAL if lower >= enough else Status.FEASIBLE,
        assignment=assignment,
        time_s=price.time_s,
        memory_bytes=price.memory_bytes,
        lower_bound_s=min(price.time_s, max(0.0, lower * chain.unit_s - rounding_s)),
        method=progress.method,
        stats=progress.stats,
    )


def _without_answer(chains: list[Chain], progress: _Progress) -> IntraOpSolution:
    """Say by how many bytes the leanest legal assignment exceeds the limit."""
    shortfalls = []
    for chain in chains:
        for cap in _caps(chain):
            below = chain.between_transient(cap, cap)
            leanest = cheapest(below, (0.0, 1.0))
            if leanest is not None:
                shortfalls.append(leanest.memory - below.room)
    shortfall = min(shortfalls)
    status = Status.TOO_BIG if shortfall > 0 else Status.UNKNOWN
    return IntraOpSolution(status=status, shortfall_bytes=max(0, shortfall), stats=progress.stats)

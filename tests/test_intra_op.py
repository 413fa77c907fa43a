"""Every small problem is solved as plain enumeration solves it, with and without the counts ILP."""

import itertools
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from planner.intra_op.chain import encode, without_dominated
from planner.intra_op.constraints import Ordered, Restrict, Uniform
from planner.intra_op.problem import IntraOpProblem, Run, layer_strategies, reprice, violations
from planner.intra_op.solution import Method, SolutionCache, SolveOptions, Status
from planner.intra_op.solve import solve

EXACT = SolveOptions(relative_gap=0.0)
CP_SAT_ONLY = SolveOptions(relative_gap=0.0, max_labels=0)
INF = math.inf


def enumerate_layers(problem):
    """Plain reading of the equations: every way to pick one strategy per layer, as (time, memory, picks)."""
    owners = [r for r, run in enumerate(problem.runs) for _ in range(run.count)]
    for picks in itertools.product(*(range(problem.runs[r].strategies) for r in owners)):
        seconds, memory, transient = 0.0, problem.fixed_bytes, 0
        for layer, (r, s) in enumerate(zip(owners, picks, strict=True)):
            run = problem.runs[r]
            seconds += run.time_s[s]
            memory += int(run.persistent_bytes[s])
            transient = max(transient, int(run.transient_bytes[s]))
            if layer + 1 < len(owners):
                matrix = run.switch_s if owners[layer + 1] == r else problem.edges_s[r]
                seconds += 0.0 if matrix is None else matrix[s, picks[layer + 1]]
        yield seconds, memory + transient, list(zip(owners, picks, strict=True))


def obeys(problem, picks):
    for constraint in problem.constraints:
        covered = range(len(problem.runs)) if constraint.runs is None else constraint.runs
        values = [dict(problem.runs[r].attributes)[constraint.attribute][s] for r, s in picks if r in covered]
        if isinstance(constraint, Uniform) and len(set(values)) > 1:
            return False
        if isinstance(constraint, Restrict) and not set(values) <= set(constraint.values):
            return False
        if isinstance(constraint, Ordered):
            if not set(values) <= set(constraint.order):
                return False
            blocks = [value for value, _ in itertools.groupby(values)]
            if blocks != [value for value in constraint.order if value in blocks]:
                return False
    return True


def oracle(problem):
    """Least legal time that fits, and the least legal memory."""
    best, leanest = INF, INF
    for seconds, memory, picks in enumerate_layers(problem):
        if seconds == INF or not obeys(problem, picks):
            continue
        leanest = min(leanest, memory)
        if memory <= problem.limit_bytes:
            best = min(best, seconds)
    return best, leanest


def matrices(rows, columns, infinite):
    numbers = st.integers(0, 6).map(float)
    entry = st.one_of(numbers, numbers, numbers, st.just(INF)) if infinite else numbers
    return st.lists(st.lists(entry, min_size=columns, max_size=columns), min_size=rows, max_size=rows).map(np.array)


@st.composite
def problems(draw, constrained=False):
    layers = draw(st.integers(1, 6))
    runs = []
    left = layers
    while left:
        count = draw(st.integers(1, left))
        left -= count
        size = draw(st.integers(1, 3 if layers > 4 else 4))
        vector = st.lists(st.integers(0, 9), min_size=size, max_size=size)
        attributes = ()
        if constrained:
            tp = draw(st.lists(st.sampled_from([1, 2]), min_size=size, max_size=size))
            re = draw(st.lists(st.sampled_from(["full", "none"]), min_size=size, max_size=size))
            attributes = (("tp", tuple(tp)), ("recompute", tuple(re)))
        runs.append(
            Run(
                count=count,
                time_s=np.array(draw(vector), dtype=float),
                persistent_bytes=np.array(draw(vector)),
                transient_bytes=np.array(draw(vector)) if draw(st.booleans()) else np.zeros(size),
                switch_s=draw(st.none() | matrices(size, size, infinite=True)),
                attributes=attributes,
            )
        )
    edges = tuple(
        draw(st.none() | matrices(a.strategies, b.strategies, infinite=True)) for a, b in itertools.pairwise(runs)
    )
    constraints = ()
    if constrained:
        scope = st.none() | st.just((len(runs) - 1,))
        options = [
            Uniform(attribute="tp", runs=draw(scope)),
            Ordered(attribute="recompute", order=("full", "none"), runs=draw(scope)),
            Restrict(attribute="tp", values=(2,), runs=draw(scope)),
            Uniform(attribute="recompute", runs=draw(scope)),
        ]
        constraints = tuple(draw(st.lists(st.sampled_from(options), min_size=1, max_size=3, unique=True)))
    return IntraOpProblem(
        runs=tuple(runs),
        edges_s=edges,
        fixed_bytes=draw(st.integers(0, 3)),
        limit_bytes=draw(st.integers(0, 60)),
        constraints=constraints,
    )


def check_against_oracle(problem, solution):
    best, leanest = oracle(problem)
    if leanest == INF:
        assert solution.status is Status.NO_ASSIGNMENT
    elif best == INF:
        assert solution.status is Status.TOO_BIG
        assert solution.shortfall_bytes == leanest - problem.limit_bytes
    else:
        assert solution.status is Status.OPTIMAL
        assert solution.time_s == best  # costs are whole numbers: no rounding anywhere
        assert violations(problem, solution.assignment) == ()
        assert reprice(problem, solution.assignment) == (solution.time_s, solution.memory_bytes)
        assert solution.lower_bound_s <= best


@settings(max_examples=120, deadline=None)
@given(problems())
def test_label_search_equals_enumeration(problem):
    check_against_oracle(problem, solve(problem, options=EXACT))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_counts_ilp_equals_enumeration(problem):
    check_against_oracle(problem, solve(problem, options=CP_SAT_ONLY))


@settings(max_examples=80, deadline=None)
@given(problems(constrained=True))
def test_constraints_equal_enumeration(problem):
    check_against_oracle(problem, solve(problem, options=EXACT))


def stage(counts, size, *, edges, seed, budget=0.5):
    """A stage whose strategies trade time for memory, with a limit that binds."""
    rng = np.random.default_rng(seed)
    runs = []
    for count in counts:
        memory = np.sort(rng.uniform(0.5e9, 3e9, size))
        switch = rng.uniform(0, 2e-3, (size, size)) * (1 - np.eye(size)) if edges else None
        seconds = np.sort(rng.uniform(5e-3, 20e-3, size))[::-1]
        runs.append(Run(count=count, time_s=seconds, persistent_bytes=memory, switch_s=switch))
    pairs = tuple(rng.uniform(0, 2e-3, (size, size)) for _ in counts[1:]) if edges else ()
    least = sum(run.count * int(run.persistent_bytes[0]) for run in runs)
    most = sum(run.count * int(run.persistent_bytes[-1]) for run in runs)
    return IntraOpProblem(runs=tuple(runs), edges_s=pairs, limit_bytes=int(least + budget * (most - least)))


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("counts", [(48,), (12,) * 4, (1,) * 48])
def test_48_layers_with_8_strategies_are_proven_within_half_a_second(counts, edges):
    problem = stage(counts, 8, edges=edges, seed=5)
    solution = solve(problem)
    assert solution.proven_optimal
    assert solution.gap <= 1.01e-5
    assert violations(problem, solution.assignment) == ()
    assert 0.9 * problem.limit_bytes < solution.memory_bytes <= problem.limit_bytes


@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("counts", [(24,), (6, 7), (1,) * 8])
def test_both_exact_methods_agree(counts, edges):
    problem = stage(counts, 4, edges=edges, seed=3)
    labels, counted = solve(problem, options=EXACT), solve(problem, options=CP_SAT_ONLY)
    assert labels.method in (Method.LABELS, Method.HALVES)
    assert counted.method is Method.CP_SAT
    assert labels.time_s == pytest.approx(counted.time_s, rel=1e-9)
    assert labels.proven_optimal
    assert counted.proven_optimal


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.3, 0.05]))
def test_a_coarse_gap_is_kept(problem, gap):
    best, _ = oracle(problem)
    solution = solve(problem, options=SolveOptions(relative_gap=gap))
    if best < INF:
        assert solution.status is Status.OPTIMAL
        assert solution.lower_bound_s <= best <= solution.time_s
        assert solution.time_s - solution.lower_bound_s <= gap * solution.time_s + 1e-9


@settings(max_examples=80, deadline=None)
@given(problems())
def test_dominance_keeps_the_optimum_and_the_leanest(problem):
    chain = encode(problem)
    if chain.empty:
        return
    thin = without_dominated(chain)
    kept = IntraOpProblem(
        runs=tuple(
            Run(
                count=run.count,
                time_s=run.time_s[own.keep],
                persistent_bytes=run.persistent_bytes[own.keep],
                transient_bytes=run.transient_bytes[own.keep],
                switch_s=None if run.switch_s is None else run.switch_s[np.ix_(own.keep, own.keep)],
            )
            for run, own in zip(problem.runs, thin.runs, strict=True)
        ),
        edges_s=tuple(
            None if e is None else e[np.ix_(a.keep, b.keep)]
            for e, a, b in zip(problem.edges_s, thin.runs, thin.runs[1:], strict=False)
        ),
        fixed_bytes=problem.fixed_bytes,
        limit_bytes=problem.limit_bytes,
    )
    assert oracle(kept) == oracle(problem)


def test_dominance_removes_a_strategy_that_is_worse_in_everything():
    run = Run(count=3, time_s=[1.0, 2.0, 0.5], persistent_bytes=[4, 5, 9])
    solution = solve(IntraOpProblem(runs=(run,), limit_bytes=20))
    assert (solution.stats.strategies, solution.stats.undominated) == (3, 2)


def test_dominance_spares_a_slower_strategy_with_cheaper_edges():
    run = Run(count=1, time_s=[1.0, 1.5], persistent_bytes=[1, 1])
    after = Run(count=1, time_s=[1.0], persistent_bytes=[1])
    problem = IntraOpProblem(runs=(run, after), edges_s=(np.array([[2.0], [0.0]]),), limit_bytes=9)
    assert solve(problem).assignment == (((1, 1),), ((0, 1),))


def test_megatron_block_recompute_is_a_prefix():
    """Full recompute on the first k layers, none on the rest: the least k that fits."""
    run = Run(
        count=10,
        time_s=[4.0, 3.0],
        persistent_bytes=[1, 10],
        attributes=(("recompute", ("full", "none")),),
    )
    order = Ordered(attribute="recompute", order=("full", "none"))
    solution = solve(IntraOpProblem(runs=(run,), limit_bytes=64, constraints=(order,)))
    assert solution.assignment == (((0, 4), (1, 6)),)
    assert solution.time_s == 34.0


def test_prefix_runs_on_through_unequal_layers():
    attributes = (("recompute", ("full", "none")),)
    dense = Run(count=2, time_s=[4.0, 3.0], persistent_bytes=[1, 4], attributes=attributes)
    moe = Run(count=3, time_s=[8.0, 6.0], persistent_bytes=[1, 9], attributes=attributes)
    order = Ordered(attribute="recompute", order=("full", "none"))
    solution = solve(IntraOpProblem(runs=(dense, moe), limit_bytes=25, constraints=(order,)))
    assert solution.assignment == (((0, 2),), ((0, 1), (1, 2)))


def test_uniform_value_is_chosen_once_for_all_runs():
    attributes = (("tp", (1, 2)),)
    runs = tuple(
        Run(count=2, time_s=times, persistent_bytes=[6, 4], attributes=attributes) for times in ([1.0, 2.0], [9.0, 2.0])
    )
    solution = solve(IntraOpProblem(runs=runs, limit_bytes=100, constraints=(Uniform(attribute="tp"),)))
    assert solution.assignment == (((1, 2),), ((1, 2),))
    assert solve(IntraOpProblem(runs=runs, limit_bytes=100)).assignment == (((0, 2),), ((1, 2),))


def test_without_a_binding_limit_the_answer_is_a_closed_form():
    problem = stage((30, 30), 20, edges=False, seed=1, budget=1.0)
    solution = solve(problem)
    assert solution.method is Method.CLOSED_FORM
    assert solution.time_s == pytest.approx(sum(30 * run.time_s.min() for run in problem.runs))


def test_what_does_not_fit_says_by_how_much():
    run = Run(count=4, time_s=[1.0, 2.0], persistent_bytes=[10, 5], transient_bytes=[1, 3])
    solution = solve(IntraOpProblem(runs=(run,), fixed_bytes=7, limit_bytes=20))
    assert solution.status is Status.TOO_BIG
    assert solution.shortfall_bytes == 7 + 4 * 5 + 3 - 20
    assert not solution.proven_optimal


def test_transient_memory_counts_once():
    run = Run(count=5, time_s=[1.0, 2.0], persistent_bytes=[1, 1], transient_bytes=[10, 0])
    assert solve(IntraOpProblem(runs=(run,), limit_bytes=15)).time_s == 5.0
    assert solve(IntraOpProblem(runs=(run,), limit_bytes=14)).time_s == 10.0


def test_fractions_of_bytes_round_up():
    run = Run(count=2, time_s=[1.0], persistent_bytes=[0.5])
    assert solve(IntraOpProblem(runs=(run,), limit_bytes=2)).memory_bytes == 2
    assert solve(IntraOpProblem(runs=(run,), limit_bytes=1)).shortfall_bytes == 1


def test_equal_problems_share_an_answer_whatever_their_names():
    cache = SolutionCache()
    first = solve(stage((12,), 4, edges=False, seed=2), cache=cache)
    named = stage((12,), 4, edges=False, seed=2)
    named = replace(named, runs=tuple(replace(run, name="mlp") for run in named.runs))
    assert solve(named, cache=cache) is first
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)
    solve(stage((12,), 4, edges=False, seed=4), cache=cache)
    solve(named, cache=cache, options=EXACT)
    assert (cache.hits, cache.misses, len(cache)) == (1, 3, 3)


def test_the_same_problem_has_the_same_answer():
    problem = stage((6, 6), 5, edges=True, seed=9)
    assert solve(problem) == solve(problem)
    assert solve(problem, options=CP_SAT_ONLY) == solve(problem, options=CP_SAT_ONLY)


def test_a_stopped_search_reports_its_bound():
    problem = stage((1,) * 30, 8, edges=True, seed=2)
    stopped = solve(problem, options=SolveOptions(relative_gap=0.0, max_labels=1, max_deterministic_s=0.0))
    full = solve(problem, options=EXACT)
    assert stopped.status is Status.FEASIBLE
    assert stopped.lower_bound_s <= full.time_s <= stopped.time_s
    assert violations(problem, stopped.assignment) == ()


def test_an_interrupt_inside_the_solver_is_one(monkeypatch):
    """CP-SAT's own handler of the signal ends its search as a limit does, and the command would go on."""
    inner = cp_model.CpSolver.solve
    told = []

    def interrupted(solver, model):
        def interrupt(_):
            if not told:
                told.append(signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        solver.log_callback = interrupt
        solver.parameters.log_search_progress = True
        return inner(solver, model)

    monkeypatch.setattr(cp_model.CpSolver, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(stage((1,) * 30, 8, edges=True, seed=2), options=CP_SAT_ONLY)
    assert told


def test_more_combinations_of_uniform_values_than_can_be_enumerated_are_refused():
    attributes = tuple((f"a{i}", tuple(range(20))) for i in range(3))
    run = Run(count=1, time_s=np.ones(20), persistent_bytes=np.ones(20), attributes=attributes)
    constraints = tuple(Uniform(attribute=f"a{i}") for i in range(3))
    with pytest.raises(ValueError, match="8000 combinations"):
        solve(IntraOpProblem(runs=(run,), limit_bytes=9, constraints=constraints))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "at least one layer"),
        ({"time_s": [1.0, -1.0]}, "time_s must be non-negative"),
        ({"time_s": [1.0, math.nan]}, "time_s must be non-negative"),
        ({"persistent_bytes": [1, -1]}, "persistent_bytes must be between"),
        ({"persistent_bytes": [1]}, "vectors of one length"),
        ({"switch_s": np.zeros((1, 2))}, "switch_s must have shape"),
        ({"attributes": (("tp", (1,)),)}, "needs 2 values"),
    ],
)
def test_a_malformed_run_is_refused(change, message):
    fields = {"count": 1, "time_s": [1.0, 2.0], "persistent_bytes": [1, 2], **change}
    with pytest.raises(ValueError, match=message):
        Run(**fields)


def test_a_malformed_problem_is_refused():
    run = Run(count=1, time_s=[1.0], persistent_bytes=[1], attributes=(("tp", (1,)),))
    with pytest.raises(ValueError, match="at least one run"):
        IntraOpProblem(runs=(), limit_bytes=1)
    with pytest.raises(ValueError, match="need 1 edge matrices"):
        IntraOpProblem(runs=(run, run), edges_s=(None, None), limit_bytes=1)
    with pytest.raises(ValueError, match="must have shape"):
        IntraOpProblem(runs=(run, run), edges_s=(np.zeros((2, 1)),), limit_bytes=1)
    with pytest.raises(ValueError, match="no attribute 'cp'"):
        IntraOpProblem(runs=(run,), limit_bytes=1, constraints=(Uniform(attribute="cp"),))
    order = Ordered(attribute="tp", order=(1,), runs=(0, 2))
    with pytest.raises(ValueError, match="consecutive runs"):
        IntraOpProblem(runs=(run, run, run), limit_bytes=1, constraints=(order,))
    with pytest.raises(ValueError, match="do not cover"):
        reprice(IntraOpProblem(runs=(run,), limit_bytes=1), (((0, 2),),))


def test_arrays_of_a_problem_cannot_be_changed():
    run = Run(count=1, time_s=[1.0], persistent_bytes=[1])
    with pytest.raises(ValueError, match="read-only"):
        run.time_s[0] = 2.0


def test_layers_are_listed_in_order():
    assert layer_strategies((((1, 2),), ((0, 1), (3, 1)))) == ((0, 1), (0, 1), (1, 0), (1, 3))


def test_no_solver_is_loaded_before_it_is_needed():
    code = "import sys, planner.intra_op.problem, planner.intra_op.solve; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Stages on which bounds alone settle nothing: strategies of nearly one price, loops, links and lumps of memory."""

import itertools

import numpy as np
import pytest

from planner.intra_op.chain import Link
from planner.intra_op.problem import IntraOpProblem, Run
from planner.intra_op.solution import Method, SolveOptions
from planner.intra_op.solve import solve

EXACT = SolveOptions(relative_gap=0.0)
CP_SAT_ONLY = SolveOptions(relative_gap=0.0, max_labels=0)


def knotty(seed, layers, size, runs):
    """Strategies of nearly the same price for memory, so that bounds alone settle nothing."""
    rng = np.random.default_rng(seed)
    cuts = [0, *sorted(rng.choice(np.arange(1, layers), runs - 1, replace=False)), layers]
    made = []
    for begin, end in itertools.pairwise(cuts):
        memory = rng.integers(1, 1000, size)
        made.append(
            Run(
                count=int(end - begin),
                time_s=2000.0 - memory + rng.integers(0, 30, size),
                persistent_bytes=memory,
                transient_bytes=rng.integers(0, 300, size) if seed % 2 else np.zeros(size),
                switch_s=rng.integers(0, 60, (size, size)),
            )
        )
    edges = tuple(rng.integers(0, 60, (size, size)).astype(float) for _ in made[1:])
    least, most = (sum(run.count * f(run.persistent_bytes) for run in made) for f in (min, max))
    return IntraOpProblem(
        runs=tuple(made), edges_s=edges, limit_bytes=int(least + rng.uniform(0.2, 0.8) * (most - least))
    )


def vectorised_oracle(problem):
    """All assignments at once, as one row each."""
    owners = [r for r, run in enumerate(problem.runs) for _ in range(run.count)]
    picks = np.array(list(itertools.product(*(range(problem.runs[r].strategies) for r in owners))))
    seconds = sum(problem.runs[r].time_s[picks[:, layer]] for layer, r in enumerate(owners))
    memory = sum(problem.runs[r].persistent_bytes[picks[:, layer]] for layer, r in enumerate(owners))
    memory = memory + np.max(
        [problem.runs[r].transient_bytes[picks[:, layer]] for layer, r in enumerate(owners)], axis=0
    )
    for layer, (r, q) in enumerate(itertools.pairwise(owners)):
        matrix = problem.runs[r].switch_s if r == q else problem.edges_s[r]
        if matrix is not None:
            seconds = seconds + matrix[picks[:, layer], picks[:, layer + 1]]
    return seconds[memory <= problem.limit_bytes].min()


@pytest.mark.parametrize("options", [EXACT, CP_SAT_ONLY])
@pytest.mark.parametrize("seed", range(12))
def test_knotty_problems_equal_enumeration(seed, options):
    problem = knotty(seed, layers=8, size=3, runs=1 + seed % 3)
    solution = solve(problem, options=options)
    assert solution.proven_optimal
    assert solution.time_s == vectorised_oracle(problem)


@pytest.mark.parametrize("seed", range(6))
def test_both_exact_methods_agree_on_knotty_stages(seed):
    problem = knotty(seed, layers=16, size=4, runs=1 + seed % 4)
    labels, counted = solve(problem, options=EXACT), solve(problem, options=CP_SAT_ONLY)
    assert labels.method in (Method.LABELS, Method.HALVES)
    assert counted.method is Method.CP_SAT
    assert labels.time_s == counted.time_s


def test_strategies_that_only_reach_each_other_are_not_joined_to_the_run_for_free():
    """Flow alone would put a loop of strategies 1 and 2 beside a run that begins and ends with 0."""
    far = np.array([[0, 100, 100], [100, 0, 0], [100, 0, 0]])
    run = Run(count=6, time_s=[0, 10, 10], persistent_bytes=[1, 0, 0], switch_s=far)
    problem = IntraOpProblem(runs=(run,), limit_bytes=3)
    for options in (EXACT, CP_SAT_ONLY):
        assert solve(problem, options=options).time_s == 60.0


def test_first_and_last_layer_of_a_run_are_two_layers():
    """Both edges of the middle run want strategy 1; the lump leaves memory for one such layer only."""
    single = Run(count=1, time_s=[0], persistent_bytes=[0])
    pair = Run(count=2, time_s=[1, 1], persistent_bytes=[0, 1])
    lump = Run(count=1, time_s=[1000, 0], persistent_bytes=[0, 2])
    edges = (np.array([[50, 0]]), np.array([[70], [0]]), None)
    problem = IntraOpProblem(runs=(single, pair, single, lump), edges_s=edges, limit_bytes=3)
    for options in (EXACT, CP_SAT_ONLY):
        assert solve(problem, options=options).assignment == (((0, 1),), ((0, 1), (1, 1)), ((0, 1),), ((1, 1),))


@pytest.mark.parametrize("options", [SolveOptions(relative_gap=0.02), SolveOptions(relative_gap=0.02, max_labels=0)])
def test_the_bound_of_a_coarse_gap_holds_where_the_answer_is_not_the_best(options):
    stopped_early = 0
    for seed in range(12):
        problem = knotty(seed, layers=8, size=3, runs=1 + seed % 3)
        solution, best = solve(problem, options=options), vectorised_oracle(problem)
        assert solution.lower_bound_s <= best <= solution.time_s <= solution.lower_bound_s / (1 - 0.0201)
        stopped_early += solution.time_s > best
    assert stopped_early > 0


def crowded(seed, size):
    """Many strategies in few classes of activations, each with its own transient bytes; the head tied to a layer."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 6, size)
    switch = np.where(kind[:, None] == kind, 0.0, float(rng.integers(20, 200)))
    memory = rng.integers(200, 1000, size)
    fields = {
        "time_s": 2000.0 - memory + rng.integers(0, 200, size),
        "persistent_bytes": memory,
        "transient_bytes": rng.integers(0, 400, size),
    }
    head = Run(count=1, time_s=fields["time_s"] // 8, persistent_bytes=memory // 4, transient_bytes=memory)
    layers = Run(count=2, switch_s=switch, **fields)
    tied = np.where(np.eye(size, dtype=bool), 0.0, np.inf)
    limit = int(2.25 * np.quantile(memory, rng.uniform(0.1, 0.6)) + rng.integers(200, 700))
    return IntraOpProblem(runs=(head, layers), edges_s=(tied,), limit_bytes=limit)


@pytest.mark.parametrize("options", [EXACT, SolveOptions(relative_gap=0.0, max_labels=0, max_deterministic_s=5.0)])
@pytest.mark.parametrize("seed", range(8))
def test_many_strategies_with_their_own_transient_bytes_equal_enumeration(seed, options):
    problem = crowded(seed, 40)
    solution = solve(problem, options=options)
    assert solution.proven_optimal
    assert solution.time_s == vectorised_oracle(problem)


def test_hundreds_of_strategies_are_proven_within_two_seconds():
    rng = np.random.default_rng(1)
    size = 200
    kind, recompute = rng.integers(0, 30, size), rng.uniform(0, 1, size)
    seconds = rng.uniform(8e-3, 14e-3, 30)[kind] * (1 + 0.33 * recompute)
    memory = rng.uniform(0.6e9, 1.6e9, 30)[kind] + (1 - recompute) * 2e9
    transient = rng.uniform(0.2e9, 2e9, size)
    switch = np.where(kind[:, None] == kind, 0.0, 1.5e-3)
    tied = np.where(np.eye(size, dtype=bool), 0.0, np.inf)
    runs = (
        Run(count=1, time_s=seconds * 0.1, persistent_bytes=memory * 0.4, transient_bytes=transient),
        Run(count=20, time_s=seconds, persistent_bytes=memory, transient_bytes=transient, switch_s=switch),
    )
    limit = int(21 * np.quantile(memory, 0.3))
    problem = IntraOpProblem(runs=runs, edges_s=(tied,), limit_bytes=limit)
    solution = solve(problem)
    assert solution.proven_optimal


def test_links_with_equal_rows_and_columns_are_kept_once():
    rng = np.random.default_rng(0)
    core, row, column = rng.integers(0, 9, (3, 4)), rng.integers(0, 3, 30), rng.integers(0, 4, 30)
    matrix = core[row][:, column]
    link = Link.of(matrix)
    assert link.core.shape == (3, 4)
    s, t = np.indices(matrix.shape)
    assert (link.cost(s, t) == matrix).all()
    assert (link.reversed().cost(t, s) == matrix).all()
    before, after = rng.random(30) < 0.5, rng.random(30) < 0.5
    part = matrix[np.ix_(before, after)]
    s, t = np.indices(part.shape)
    assert (link.select(before, after).cost(s, t) == part).all()

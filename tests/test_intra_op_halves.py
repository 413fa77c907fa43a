"""Sums of halves find what enumeration finds, at any price of memory, and say when they did not get that far."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intra_op.bounds import dual
from planner.intra_op.chain import FORBIDDEN, Chain, encode, without_dominated
from planner.intra_op.halves import search_halves
from planner.intra_op.labels import Goal
from planner.intra_op.problem import IntraOpProblem, Run
from planner.intra_op.solution import Method, SolveOptions
from planner.intra_op.solve import solve

ANY = Goal(lower=0, upper=FORBIDDEN)
MANY = 1_000_000


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    runs = []
    for count in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        size = draw(st.integers(1, 4))
        vector = st.lists(st.integers(0, 30), min_size=size, max_size=size)
        runs.append(Run(count=count, time_s=np.array(draw(vector), float), persistent_bytes=np.array(draw(vector))))
    chain = encode(IntraOpProblem(runs=tuple(runs), limit_bytes=draw(st.integers(0, 150))))
    return chain.between_transient(0, 0)


def every_path(chain: Chain) -> list[tuple[int, int]]:
    choices = [range(chain.runs[run].keep.size) for run in chain.layer_runs()]
    return [chain.price(path) for path in itertools.product(*choices)]


@pytest.mark.deep
@settings(max_examples=300, deadline=None)
@given(chains(), st.sampled_from([0.0, 0.01, 0.3, 1.0, 7.5, 1e3]))
def test_the_fastest_path_that_fits_is_that_of_enumeration_at_any_price(chain: Chain, price: float) -> None:
    unit = 1 << 34  # whole seconds in units: prices then matter at every scale
    times = [time for time, memory in every_path(chain) if memory <= chain.room]
    found = search_halves(chain, price=price * unit, goal=ANY, max_sums=MANY)
    assert found.proven
    if not times:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.time == found.bound == min(times)
    assert chain.price(found.best.layers) == (found.best.time, found.best.memory)
    assert found.best.memory <= chain.room


@settings(max_examples=100, deadline=None)
@given(chains(), st.integers(0, 40))
def test_a_limit_leaves_a_bound_below_every_path(chain: Chain, limit: int) -> None:
    times = [time for time, memory in every_path(chain) if memory <= chain.room]
    bound = dual(chain)
    if not times:
        return
    found = search_halves(chain, price=bound.price, goal=ANY, max_sums=limit)
    assert found.bound <= min(times)
    assert found.labels <= limit
    assert not found.proven or found.bound == min(times)


def nearly_linear(counts: tuple[int, ...], size: int, seed: int) -> IntraOpProblem:
    """Time is linear in memory up to 1e-5 s: bounds drop no strategy, many paths are almost as good as the best."""
    rng = np.random.default_rng(seed)
    runs = []
    for count in counts:
        memory = rng.uniform(0.5e9, 3e9, size)
        seconds = 20e-3 - 5e-12 * memory + rng.uniform(0, 1e-5, size)
        runs.append(Run(count=count, time_s=seconds, persistent_bytes=memory))
    least = sum(run.count * int(run.persistent_bytes.min()) for run in runs)
    most = sum(run.count * int(run.persistent_bytes[run.time_s.argmin()]) for run in runs)
    return IntraOpProblem(runs=tuple(runs), limit_bytes=(least + most) // 2)


@pytest.mark.parametrize("counts", [(48,), (12,) * 4, (6,) * 8, (1,) * 48])
@pytest.mark.parametrize("seed", range(4))
def test_48_nearly_linear_layers_are_proven_without_the_counts_ilp(counts: tuple[int, ...], seed: int) -> None:
    solution = solve(nearly_linear(counts, 8, seed))
    assert solution.proven_optimal
    assert solution.gap <= 1.01e-5
    assert solution.method in (Method.HALVES, Method.LABELS, Method.DUAL)


@pytest.mark.parametrize("counts", [(12,), (5, 7), (4, 4, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_sums_of_halves_and_the_counts_ilp_agree(counts: tuple[int, ...], seed: int) -> None:
    problem = nearly_linear(counts, 5, seed)
    chain = without_dominated(encode(problem)).between_transient(0, 0)
    found = search_halves(chain, price=dual(chain).price, goal=ANY, max_sums=MANY)
    counted = solve(problem, options=SolveOptions(relative_gap=0.0, max_labels=0))
    assert found.proven
    assert counted.proven_optimal
    assert found.best is not None
    assert math.isclose(found.best.time * chain.unit_s, counted.time_s, rel_tol=1e-9)

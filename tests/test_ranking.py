"""Gates of the order of layouts: groups that were measured side by side must not be ordered worse than they are.

The table spans every study that measured at least five layouts of one job; ``benchmarks/sample_runs.py`` chooses its
groups evenly, whatever their order. Limits stand a little beside the figures at the time of writing; docs/accuracy.md
has those of all groups. Tighten them when the models improve; do not loosen them.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evidence.measured import read_runs
from planner.evidence.ranking import Ranking, ranking_of
from planner.evidence.validate import predict

RUNS = Path(__file__).parent / "reference" / "ranked_runs.csv"


@pytest.fixture(scope="module")
def rankings() -> tuple[Ranking, ...]:
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in read_runs(RUNS):
        found = predict(run)
        assert found.step_time_s is not None, (run.id, found.skipped)
        assert run.step_time_s is not None, run.id
        pairs[run.text("group")].append((found.step_time_s, run.step_time_s))
    return tuple(ranking_of(name, *np.array(times).T) for name, times in pairs.items())


def test_layouts_are_put_in_the_order_in_which_they_ran(rankings):
    assert len(rankings) == 24
    found = np.array([group.spearman for group in rankings])
    assert np.median(found) > 0.83
    assert found.mean() > 0.79


def test_the_layout_that_is_put_first_is_hardly_slower_than_the_best(rankings):
    found = np.array([group.regret for group in rankings])
    assert np.median(found) <= 0.0
    assert found.mean() < 0.008


def test_spearman_by_its_closed_form():
    """Without ties it is 1 - 6 sum d^2 / (n (n^2 - 1)); Spearman's own example has 10 pairs and -29/165."""
    iq = np.array([106.0, 100, 86, 101, 99, 103, 97, 113, 112, 110])
    hours = np.array([7.0, 27, 2, 50, 28, 29, 20, 12, 6, 17])
    assert ranking_of("", iq, hours).spearman == pytest.approx(-29 / 165)


@given(times=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8, unique=True))
def test_an_order_told_by_itself_has_no_regret_and_one_told_backwards_the_most(times):
    measured_s = np.array(times)
    same, other = ranking_of("", measured_s, measured_s), ranking_of("", -measured_s, measured_s)
    assert (same.spearman, same.regret) == (pytest.approx(1.0), 0.0)
    assert (other.spearman, other.regret) == (pytest.approx(-1.0), pytest.approx(max(times) / min(times) - 1.0))

"""What positions hold, added up: for layouts split alike and each by its own."""

import numpy as np
import pytest

from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.positions import Contents, added_up

SPEC = PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=3, num_microbatches=4)


def contents(counts: np.ndarray, layouts: int) -> Contents:
    rows = np.arange(2 * layouts).reshape(layouts, 2)
    return Contents(
        spec=SPEC, rows=rows, counts=np.broadcast_to(counts, (layouts, *counts.shape[1:])), islands=(0,) * 3
    )


@pytest.mark.parametrize("alike", [True, False])
def test_sums_over_positions_are_those_of_each_layout_alone(alike: bool) -> None:
    rng = np.random.default_rng(7)
    counts = rng.integers(0, 5, (1 if alike else 6, 3, 2, 2, 4)).astype(np.float64)  # stages, chunks, strategies, parts
    sizes = rng.random((6, 2, 5, 4))
    found = added_up(counts, sizes)
    assert found.shape == (5, 6, 3, 2)
    for layout in range(6):
        for number in range(5):
            single = (counts[0 if alike else layout] * sizes[layout, :, number]).sum(axis=(2, 3))
            assert found[number, layout] == pytest.approx(single, rel=1e-14)


@pytest.mark.parametrize("alike", [True, False])
def test_some_of_the_layouts_hold_what_they_held(alike: bool) -> None:
    counts = np.random.default_rng(3).random((1 if alike else 5, 3, 2, 4))
    whole = contents(counts, 5)
    some = whole.take(np.array([4, 1]))
    assert np.array_equal(some.counts, whole.counts[[4, 1]])
    assert np.array_equal(some.rows, whole.rows[[4, 1]])
    assert [len(each.distinct_counts) for each in (whole, some)] == ([1, 1] if alike else [5, 2])

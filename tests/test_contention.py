"""Shared links: the definition of max-min fairness, a fluid simulation in small steps, and closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.contention import Flow, finish_times_s, max_min_rates, shared_finish_s, slowdown

LINKS = 3


@st.composite
def flow_sets(draw: st.DrawFn) -> tuple[tuple[Flow, ...], np.ndarray]:
    count = draw(st.integers(1, 5))
    flows = tuple(
        Flow(
            volume_bytes=float(draw(st.integers(1, 40))),
            links=tuple(sorted(draw(st.sets(st.integers(0, LINKS - 1), min_size=1)))),
            limit_bytes_per_s=float(draw(st.integers(1, 20))),
        )
        for _ in range(count)
    )
    return flows, np.array([float(draw(st.integers(1, 20))) for _ in range(LINKS)])


@settings(max_examples=200, deadline=None)
@given(flow_sets())
def test_every_flow_has_a_bottleneck(case: tuple[tuple[Flow, ...], np.ndarray]) -> None:
    """Rates are max-min fair exactly when each flow is at its limit, or is among the fastest on a full link."""
    flows, capacities = case
    rates = max_min_rates(flows, capacities)
    loads = np.array([sum(r for r, f in zip(rates, flows, strict=True) if link in f.links) for link in range(LINKS)])
    assert (loads <= capacities * (1 + 1e-9)).all()
    for rate, flow in zip(rates, flows, strict=True):
        assert rate <= flow.limit_bytes_per_s * (1 + 1e-9)
        at_limit = rate >= flow.limit_bytes_per_s * (1 - 1e-9)
        bottleneck = any(
            loads[link] >= capacities[link] * (1 - 1e-9)
            and rate >= max(r for r, f in zip(rates, flows, strict=True) if link in f.links) * (1 - 1e-9)
            for link in flow.links
        )
        assert at_limit or bottleneck


def filled_by_drops(flows: list[Flow], capacities: np.ndarray) -> list[float]:
    """Max-min rates by brute force: pour small equal drops into all flows that can still take one."""
    drop = 0.004
    rates, loads = [0.0] * len(flows), np.zeros(LINKS)
    progress = True
    while progress:
        progress = False
        for index, flow in enumerate(flows):
            fits = all(loads[link] + drop <= capacities[link] + 1e-9 for link in flow.links)
            if fits and rates[index] + drop <= flow.limit_bytes_per_s + 1e-9:
                rates[index] += drop
                loads[list(flow.links)] += drop
                progress = True
    return rates


def fluid(flows: tuple[Flow, ...], capacities: np.ndarray) -> list[float]:
    """Finish times by simulation: pour rates anew whenever a flow has ended."""
    left = {index: flow.volume_bytes for index, flow in enumerate(flows)}
    finish, now = [0.0] * len(flows), 0.0
    while left:
        running = sorted(left)
        rates = filled_by_drops([flows[index] for index in running], capacities)
        step = min(left[index] / rate for index, rate in zip(running, rates, strict=True))
        now += step
        for index, rate in zip(running, rates, strict=True):
            left[index] -= rate * step
            if left[index] <= 1e-6 * flows[index].volume_bytes:
                finish[index] = now
                del left[index]
    return finish


@settings(max_examples=25, deadline=None)
@given(flow_sets())
def test_finish_times_match_a_fluid_simulation(case: tuple[tuple[Flow, ...], np.ndarray]) -> None:
    flows, capacities = case
    assert finish_times_s(flows, capacities) == pytest.approx(fluid(flows, capacities), rel=0.03)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.05, 1.0)), min_size=1, max_size=4),
)
def test_one_shared_link_equals_the_general_model(transfers: list[tuple[float, float]]) -> None:
    capacity = 7.0
    flows = tuple(
        Flow(volume_bytes=alone * share * capacity, links=(0,), limit_bytes_per_s=share * capacity)
        for alone, share in transfers
    )
    general = finish_times_s(flows, np.array([capacity]))
    alone = np.array([[alone] for alone, _ in transfers])
    demand = np.array([[share] for _, share in transfers])
    assert shared_finish_s(alone, demand)[:, 0] == pytest.approx(general, rel=1e-6)


def test_two_equal_transfers_take_twice_as_long_and_unequal_ones_end_with_the_sum() -> None:
    alone = np.array([[1.0, 1.0, 2.0], [1.0, 3.0, 0.0]])
    full = np.ones_like(alone)
    assert shared_finish_s(alone, full) == pytest.approx(np.array([[2.0, 2.0, 2.0], [2.0, 4.0, 0.0]]))
    assert slowdown(alone, full) == pytest.approx(np.array([[2.0, 2.0, 1.0], [2.0, 4 / 3, 1.0]]))


def test_transfers_that_fit_beside_each_other_do_not_slow_down() -> None:
    alone, demand = np.array([[1.0], [5.0], [2.0]]), np.array([[0.4], [0.6], [0.0]])
    assert slowdown(alone, demand) == pytest.approx(np.ones((3, 1)))


def test_many_strategies_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(5)
    alone, demand = rng.uniform(0, 3, (4, 50)) * (rng.uniform(size=(4, 50)) > 0.2), rng.uniform(0, 1, (4, 50))
    together = shared_finish_s(alone, demand)
    for column in range(50):
        single = shared_finish_s(alone[:, [column]], demand[:, [column]])
        assert together[:, column] == pytest.approx(single[:, 0])

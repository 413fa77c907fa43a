"""Transfers of one phase on shared links: closed forms against max-min rates and a fluid simulation, and in steps."""

from dataclasses import replace

import numpy as np
import pytest
from fair_flows import Flow, max_min_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.layer_costs import price_parts
from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.positions import contents_of
from costmodels.shared_links import Exchanging, beside, pair_speeds
from costmodels.step import StepTimes, price_steps
from costmodels.works import Work
from planner import Question, request_of
from planner.planning import pricings_of


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)[:, None]


@settings(max_examples=300, deadline=None)
@given(
    capacities=st.lists(st.floats(1.0, 20.0), min_size=1, max_size=4),
    limits=st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)),
    crossing=st.tuples(st.integers(0, 7), st.integers(0, 7)),
)
def test_two_flows_share_as_max_min_rates_say(
    capacities: list[float], limits: tuple[float, float], crossing: tuple[int, int]
) -> None:
    uses = [[link for link in range(len(capacities)) if link == 0 or mask >> (link - 1) & 1] for mask in crossing]
    rates = [limit * min(capacities[link] for link in links) for limit, links in zip(limits, uses, strict=True)]
    flows = tuple(
        Flow(volume_bytes=1.0, links=tuple(links), limit_bytes_per_s=rate)
        for links, rate in zip(uses, rates, strict=True)
    )
    general = max_min_rates(flows, np.array(capacities)) / np.array(rates)
    loads = [
        array(*(rate / capacity if link in links else 0.0 for link, capacity in enumerate(capacities)))
        for links, rate in zip(uses, rates, strict=True)
    ]
    first, second = pair_speeds(loads[0], loads[1])
    assert (float(first[0]), float(second[0])) == pytest.approx(tuple(general), rel=1e-6)


SLICES = 400


def fluid(transfer_s: float, share: float, quiet_s: float, active_s: float, other: float) -> tuple[float, float]:
    """End of the transfer and of the span when both run on one link, in slices of compute and exchange by turns."""
    now, left, ended = 0.0, transfer_s, 0.0
    for part in (quiet_s / SLICES, active_s / SLICES) * SLICES:
        todo, exchanging = part, part == active_s / SLICES
        while todo > 1e-15:
            both = exchanging and left > 0.0
            flows = tuple(Flow(volume_bytes=1.0, links=(0,), limit_bytes_per_s=limit) for limit in (share, other))
            mine, theirs = max_min_rates(flows, np.ones(1)) / np.array([share, other]) if both else (1.0, 1.0)
            step = min(todo / theirs, left / mine if left > 0.0 else np.inf)
            now, todo = now + step, todo - step * theirs
            if left > 0.0:
                left -= step * mine
                ended = now if left <= 1e-12 else ended
                left = max(left, 0.0) if left > 1e-12 else 0.0
    return (ended if left == 0.0 else now + left), now


@settings(max_examples=40, deadline=None)
@given(
    transfer_s=st.floats(0.1, 30.0),
    share=st.floats(0.1, 1.0),
    quiet_s=st.floats(0.5, 10.0),
    active_s=st.floats(0.5, 10.0),
    other=st.floats(0.1, 1.0),
)
def test_a_transfer_beside_passes_matches_a_fluid_simulation(
    transfer_s: float, share: float, quiet_s: float, active_s: float, other: float
) -> None:
    quiet_s += 1e-3 * (quiet_s == active_s)  # the simulation tells the parts apart by their length
    span = Exchanging(span_s=np.array([quiet_s + active_s]), active_s=np.array([active_s]), loads=array(other))
    found = beside(np.array([transfer_s]), array(share), span)
    ended, passed = fluid(transfer_s, share, quiet_s, active_s, other)
    slice_s = (quiet_s + active_s) / SLICES  # a short transfer ends within one, as far as the simulation tells
    assert found.finish_s[0] == pytest.approx(ended, rel=0.01, abs=slice_s)
    assert quiet_s + active_s + found.delay_s[0] == pytest.approx(passed, rel=0.01)


def test_two_transfers_that_fill_the_adapter_take_the_sum_of_their_times() -> None:
    busy = Exchanging(span_s=np.array([2.0]), active_s=np.array([2.0]), loads=array(1.0))
    found = beside(np.array([2.0]), array(1.0), busy)
    assert (found.finish_s[0], found.delay_s[0]) == pytest.approx((4.0, 2.0))
    longer = beside(np.array([5.0]), array(1.0), busy)
    assert (longer.finish_s[0], longer.delay_s[0]) == pytest.approx((7.0, 2.0))


def test_transfers_inside_a_domain_cost_each_other_nothing() -> None:
    inside = Exchanging(span_s=np.array([2.0]), active_s=np.array([0.0]), loads=array(0.0))
    assert beside(np.array([1.0]), array(1.0), inside).delay_s[0] == 0.0


def times_of(cluster: str, strategy: Strategy, chunks: tuple[int, ...], *, alone: bool = False) -> StepTimes:
    """Step times of Mixtral 8x7B, with or without what transfers cost each other."""
    request = request_of(Question(model="mixtral_8x7b", cluster=cluster, global_batch=256, seq=4096))
    pricings = pricings_of(request)
    pp = 32 // sum(chunks)
    stage = Stage(layers_per_chunk=chunks, strategies=(StrategyRun(strategy=strategy, count=sum(chunks)),))
    layout = Layout(
        stages=(stage,) * pp,
        micro_batch=1,
        num_microbatches=256 // strategy.dp,
        schedule=Schedule.INTERLEAVED if len(chunks) > 1 else Schedule.ONE_F_ONE_B,
    )
    contents, table = contents_of(layout, request.model)
    costs = [price_parts(pricing, table) for pricing in pricings]
    if alone:
        costs = [
            replace(c, forward_links_s=0.0 * c.forward_links_s, backward_links_s=0.0 * c.backward_links_s)
            for c in costs
        ]
    return price_steps(pricings, costs, contents)


def test_sends_beside_an_expert_exchange_over_the_same_adapters_take_longer() -> None:
    wide = Strategy(tp=4, dp=8, ep=8, etp=4, sequence_parallel=True, zero=1)  # ep over four nodes, stages over nodes
    alone, together = (times_of("dgx-h100:8", wide, (4, 4, 4, 4), alone=alone) for alone in (True, False))
    assert together.send_s[0] > 1.05 * alone.send_s[0]
    assert together.total_s[0] > alone.total_s[0]


def test_exchanges_that_fill_the_adapters_wait_for_sends() -> None:
    wide = Strategy(tp=16, ep=8, etp=2, sequence_parallel=True)  # over two nodes with 100 Gb/s each
    alone, together = (times_of("h200-thermal-study", wide, (4, 4, 4, 4), alone=alone) for alone in (True, False))
    assert together.works_s[Work.SHARED, 0] > 0.0
    assert together.total_s[0] > alone.total_s[0]


def test_experts_inside_the_node_share_nothing_with_sends() -> None:
    inside = Strategy(tp=1, dp=32, ep=8, zero=1)
    alone, together = (times_of("dgx-h100:8", inside, (8, 8), alone=alone) for alone in (True, False))
    assert together.works_s[Work.SHARED, 0] == 0.0
    assert together.total_s[0] == pytest.approx(alone.total_s[0])


def test_a_gradient_reduction_beside_a_wide_expert_exchange_shows_more() -> None:
    wide = Strategy(tp=2, dp=32, ep=8, etp=2, sequence_parallel=True, zero=1)
    alone, together = (times_of("dgx-h100:8", wide, (32,), alone=alone) for alone in (True, False))
    assert together.reduce_exposed_s[0] > alone.reduce_exposed_s[0]


@pytest.mark.parametrize("degrees", [(1, 16, 8), (2, 16, 4), (8, 4, 4), (4, 8, 2)])
def test_shared_links_never_make_a_step_faster(degrees: tuple[int, int, int]) -> None:
    tp, dp, ep = degrees
    strategy = Strategy(tp=tp, dp=dp, ep=ep, etp=tp, sequence_parallel=tp > 1, zero=1)
    chunks = (16 // (64 // (tp * dp)),) * 2
    alone, together = (times_of("dgx-a100:8", strategy, chunks, alone=alone) for alone in (True, False))
    assert together.total_s[0] >= alone.total_s[0]

"""Placement over small models, machines and degrees: heat-aware never worse than heat-blind, search as brute force."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from every_layout import least_with_heat
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_requests import asked, cut, small

from costmodels.layout import FULL_RECOMPUTE, Layout, RankOrder, Strategy
from costmodels.placement import Placement, ranks_of_stages, stage_map
from costmodels.power.heat import heat_problem, placed_maps, settle
from costmodels.price import price_layout_with_heat
from hardware.cluster import Cluster, DeviceState, FabricTier
from hardware.errors import InputError
from planner.advice.remedies import repriced
from planner.devices.rebalance import rebalance
from planner.layouts.build import schedule_of, uniform_stages
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import place_and_split, place_layout
from planner.placement.joint import placed_on_network
from planner.placement.order import placement_of
from planner.plan_report import PlanReport, RankedLayout, SearchProof
from planner.planning import estimate, plan, pricings_of
from planner.request import Objective, PlanRequest
from planner.search.objective import objective_value

pytestmark = pytest.mark.deep

MODELS = ("gpt3_6_7b", "llama32_1b", "mixtral_8x7b")
SPEEDS = (1.0, 1.0, 0.9, 0.6)


@st.composite
def hot_requests(draw: st.DrawFn) -> PlanRequest:
    """One or two nodes of two or four accelerators in two rows, warm enough that heat slows some, some of them slow."""
    request = asked(draw(st.sampled_from(MODELS)), cluster="dgx-h100:2", global_batch=8, seq=2048, thermal=True, top=1)
    request = replace(request, model=cut(request.model, draw(st.sampled_from([4, 6, 9]))))
    nodes, gpus = draw(st.sampled_from([1, 2])), draw(st.sampled_from([2, 4]))
    (island,) = request.cluster.islands
    cooling = replace(
        island.node.cooling,
        rows=(tuple(range(gpus // 2)), tuple(range(gpus // 2, gpus))),
        resistance_c_per_w=draw(st.sampled_from([0.06, 0.075])),
        coupling_c_per_w=draw(st.sampled_from([0.0, 0.03])),
    )
    node = replace(
        island.node,
        gpus=gpus,
        cooling=cooling,
        scale_up=replace(island.node.scale_up, domain_gpus=gpus),
        nics=replace(island.node.nics, count=draw(st.sampled_from([1, gpus]))),
        host=replace(island.node.host, numa=(), pcie_switches=()),
    )
    devices = tuple(
        DeviceState(node=number, gpu=gpu, speed=speed)
        for number, gpu in product(range(nodes), range(gpus))
        if (speed := draw(st.sampled_from(SPEEDS))) < 1.0
    )
    inlets = tuple(draw(st.sampled_from([30.0, 38.0, 46.0])) for _ in range(nodes))
    fabric = (FabricTier(name="leaf", nodes=1, oversubscription=1.0), FabricTier(name="spine", nodes=0))
    machine = replace(island, node=node, nodes=nodes, devices=devices, inlets_c=inlets, fabric=fabric)
    return replace(request, cluster=Cluster(name="small", islands=(machine,), electricity_per_kwh=0.1))


@given(request=hot_requests(), objective=st.sampled_from([Objective.TIME, Objective.ENERGY]))
@settings(max_examples=5, deadline=None)
def test_a_heat_aware_plan_is_never_worse_than_a_heat_blind_one(request: PlanRequest, objective: Objective) -> None:
    """The winner of a search that knows nothing of heat and devices, run as it says and priced as the machine is."""
    few = (("cp", 1), ("etp", 1), ("micro_batch", 1), ("vpp", 1))
    request = replace(request, objective=objective, fixed=few, recompute="none")
    (island,) = request.cluster.islands
    innocent = replace(request.cluster, islands=(replace(island, devices=(), inlets_c=()),))
    blind = plan(replace(request, thermal=False, cluster=innocent))
    aware = plan(request)
    assume(blind.layouts and aware.layouts)
    worst = as_it_runs(request, blind.layouts[0])
    best = aware.layouts[0]
    assert objective_value(request, best.layout, best.cost) <= worst * (1.0 + 1e-4)
    assert aware.search.lower_bound_s <= best.cost.step.total_s * (1.0 + 1e-9)


def hot_small(seed: int) -> PlanRequest:
    """A cut model on two to four accelerators in one node or two unlike ones, so small that every layout is placed."""
    rng = random.Random(seed)
    nodes, gpus = rng.choice(((1, 2), (1, 4), (2, 2)))
    request = small(
        rng.choice(("llama32_1b", "llama3_8b")),
        cluster="dgx-h100:1",
        layers=(rng.choice((3, 4, 5)),),
        gpus=gpus,
        nodes=nodes,
        global_batch=rng.choice((4, 8)),
        seq=rng.choice((2048, 8192)),
        recompute="none",
        framework=rng.choice(("megatron", "torchtitan")),
        thermal=True,
        fixed=("cp=1", "micro_batch=1"),
        top=1,
    )
    (island,) = request.cluster.islands
    cooling = replace(
        island.node.cooling,
        rows=(tuple(range(gpus // 2)), tuple(range(gpus // 2, gpus))),
        resistance_c_per_w=rng.choice((0.06, 0.075)),
        coupling_c_per_w=rng.choice((0.0, 0.03)),
    )
    node = replace(island.node, cooling=cooling, host=replace(island.node.host, numa=(), pcie_switches=()))
    devices = tuple(
        DeviceState(node=number, gpu=gpu, speed=speed)
        for number, gpu in product(range(nodes), range(gpus))
        if (speed := rng.choice((1.0, 1.0, 0.9, 0.7))) < 1.0
    )
    inlets = tuple(rng.choice((30.0, 38.0, 46.0)) for _ in range(nodes))
    machine = replace(island, node=node, devices=devices, inlets_c=inlets)
    return replace(request, cluster=replace(request.cluster, islands=(machine,)))


@pytest.mark.parametrize("seed", range(8))
def test_the_best_with_heat_is_no_worse_than_every_layout_placed(seed: int) -> None:
    """Slow devices, unlike nodes and warm air: the search keeps some layouts of those that it prices without them."""
    request = hot_small(seed)
    report = plan(request)
    best_s = least_with_heat(request)
    assert report.layouts[0].cost.step.total_s <= best_s * (1.0 + 3e-4)
    assert report.search.lower_bound_s <= best_s * (1.0 + 1e-9)


def as_it_runs(request: PlanRequest, blind: RankedLayout) -> float:
    """Value of a plan on the machine as it is, its nodes and ranks where it puts them."""
    pricings = pricings_of(request)
    if not blind.placement:
        return objective_value(request, blind.layout, price_layout_with_heat(pricings, blind.layout))
    placement = placement_of(blind.placement, request.cluster, blind.layout, "the plan")
    return objective_value(request, blind.layout, placed_on_network(pricings, blind.layout, placement))


def every_launch(nodes: int, gpus: int) -> Iterator[Placement]:
    """All placements that torchrun can start: permutations of nodes and of the accelerators of each."""
    for order in permutations(range(nodes)):
        for inside in product(permutations(range(gpus)), repeat=nodes):
            yield Placement(nodes=order, gpus=inside)


@given(
    request=hot_requests(),
    degrees=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)]),
    objective=st.sampled_from([Objective.TIME, Objective.ENERGY, Objective.COST]),
    order=st.sampled_from(list(RankOrder)),
    uneven=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_the_best_placement_is_that_of_brute_force(
    request: PlanRequest, degrees: tuple[int, int], objective: Objective, order: RankOrder, uneven: bool
) -> None:
    """Every launch of a layout priced in balance, against the placement that is found; the network plays no part."""
    request = replace(request, objective=objective)
    (island,) = request.cluster.islands
    island = replace(island, fabric=(FabricTier(name="leaf", nodes=0),))
    request = replace(request, cluster=replace(request.cluster, islands=(island,)))
    assume(island.nodes * island.node.gpus <= 4 or island.node.gpus == 2)
    layout = small_layout(request, degrees, order, uneven=uneven)
    assume(layout is not None)
    assert layout is not None
    pricings = pricings_of(request)
    problem = heat_problem(pricings, layout)
    launches = list(every_launch(island.nodes, island.node.gpus))
    settled = settle(problem, placed_maps(problem, launches))
    found = place_layout(request, pricings, layout)
    assert found.complete
    value = found.cost.step.total_s
    brute = settled.step_s
    if objective is not Objective.TIME:
        value, brute = value * found.cost.power.gpu_w, brute * settled.mean_w()
    if objective is not Objective.COST:
        assert value == pytest.approx(float(brute.min()), rel=2e-4)
    assert found.in_order is not None
    best = objective_value(request, layout, found.cost)
    assert best <= objective_value(request, layout, found.in_order) * (1.0 + 1e-9)


def small_layout(request: PlanRequest, degrees: tuple[int, int], order: RankOrder, *, uneven: bool) -> Layout | None:
    """All accelerators of the request under tp and dp, the rest stages; None where they do not divide."""
    tp, dp = degrees
    pp, rest = divmod(request.cluster.gpus, tp * dp)
    if rest or not 1 <= pp <= request.model.layers:
        return None
    counts = [request.model.layers // pp + (stage < request.model.layers % pp) for stage in range(pp)]
    if uneven and pp > 1 and counts[0] > 1:
        counts[0], counts[-1] = counts[0] - 1, counts[-1] + 1
    try:
        layout = layout_of(
            request, ExplicitLayout(tp=tp, dp=dp, layers_per_stage=",".join(map(str, counts)), recompute="full")
        )
    except InputError:
        return None
    return replace(layout, rank_order=order) if pp > 1 and dp > 1 else layout


def over_islands(speeds: list[float], split: list[int]) -> tuple[PlanRequest, Layout]:
    """A pipeline over an island of H100 and one of A100, two accelerators on each of two nodes, some of them slow."""
    request = asked("llama3_8b", cluster="dgx-h100:2", global_batch=16, seq=2048, thermal=True, top=1)
    islands = []
    for number, name in enumerate(("dgx-h100:2", "dgx-a100:2")):
        (island,) = asked("llama3_8b", cluster=name, global_batch=16, seq=2048).cluster.islands
        node = replace(
            island.node,
            gpus=2,
            scale_up=replace(island.node.scale_up, domain_gpus=2),
            host=replace(island.node.host, numa=(), pcie_switches=()),
        )
        devices = tuple(
            DeviceState(node=place // 2, gpu=place % 2, speed=speed)
            for place, speed in enumerate(speeds[4 * number : 4 * number + 4])
            if speed < 1.0
        )
        islands.append(replace(island, node=node, devices=devices))
    cluster = Cluster(name="two", islands=tuple(islands), inter_island_bytes_per_s=5e10, inter_island_latency_s=5e-6)
    request = replace(request, model=cut(request.model, sum(split)), cluster=cluster)
    stages = uniform_stages(
        Strategy(recompute=FULL_RECOMPUTE), [(count,) for count in split], islands=(0,) * 4 + (1,) * 4
    )
    return request, Layout(stages=stages, micro_batch=1, num_microbatches=16, schedule=schedule_of(8, 1))


@given(
    speeds=st.lists(st.sampled_from([1.0, 1.0, 0.8, 0.5]), min_size=8, max_size=8),
    split=st.lists(st.sampled_from([1, 2, 3]), min_size=8, max_size=8),
)
@settings(max_examples=10, deadline=None)
def test_islands_are_placed_as_brute_force_places_them(speeds: list[float], split: list[int]) -> None:
    request, layout = over_islands(speeds, split)
    pricings = pricings_of(request)
    problem = heat_problem(pricings, layout)
    each = []
    for number, pricing in enumerate(pricings):
        stages = ranks_of_stages(layout, number)
        each.append([stage_map(launch, stages, pricing.island) for launch in every_launch(2, 2)])
    pairs = list(product(*each))
    settled = settle(problem, [np.stack([pair[number] for pair in pairs]) for number in range(2)])
    found = place_layout(request, pricings, layout)
    assert found.in_order is not None
    assert found.cost.step.total_s <= found.in_order.step.total_s * (1.0 + 1e-9)
    assert found.cost.step.total_s == pytest.approx(float(settled.step_s.min()), rel=1e-3)
    ranked = estimate(request, layout)
    assert ranked.cost.step.total_s == found.cost.step.total_s
    if found.by_island:
        assert [place.rank for place in ranked.placement] == list(range(8))
        hosts = [int(place.host.removeprefix("node")) // 2 for place in ranked.placement]
        assert hosts == [stage.island for stage in layout.stages]
        assert len({(place.host, place.gpu) for place in ranked.placement}) == 8


@given(speeds=st.lists(st.sampled_from([1.0, 0.8, 0.5]), min_size=8, max_size=8), layers=st.sampled_from([5, 9]))
@settings(max_examples=6, deadline=None)
def test_layers_over_islands_are_split_as_brute_force_splits_them(speeds: list[float], layers: int) -> None:
    """Two stages of four accelerators, one on each island: every split placed, against the one that is found."""
    request, _ = over_islands(speeds, [layers // 2, *[0] * 6, layers - layers // 2])
    pricings = pricings_of(request)

    def split(first: int) -> Layout:
        stages = uniform_stages(
            Strategy(tp=2, dp=2, recompute=FULL_RECOMPUTE), [(first,), (layers - first,)], islands=(0, 1)
        )
        return Layout(stages=stages, micro_batch=1, num_microbatches=8, schedule=schedule_of(2, 1))

    values = [place_layout(request, pricings, split(first)).cost.step.total_s for first in range(1, layers)]
    found = place_and_split(request, pricings, split(layers // 2))
    assert found.cost.step.total_s == pytest.approx(min(values), rel=3e-4)
    change = rebalance(request, estimate(request, split(layers // 2)))
    assert change.best.cost.step.total_s <= change.now_s


def test_a_saved_plan_over_islands_is_priced_where_it_runs() -> None:
    request, layout = over_islands([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 1.0], [3, 2, 1, 1, 2, 1, 3, 1])
    ranked = estimate(request, layout)
    assert ranked.placement
    assert ranked.in_order is not None
    assert ranked.cost.step.total_s < 0.99 * ranked.in_order.step_time_s
    proof = SearchProof(enumerated=1, pruned=(), solved=1, lower_bound_s=0.0, gap=0.0, proven_optimal=False, wall_s=0.0)
    again = repriced(PlanReport(request=request, layouts=(ranked,), search=proof), [1])
    assert again.layouts[0].placement == ranked.placement
    assert again.layouts[0].cost == ranked.cost


def test_a_running_layout_over_islands_is_rebalanced_from_where_it_runs() -> None:
    request, layout = over_islands([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 1.0], [3, 2, 1, 1, 2, 1, 3, 1])
    placed = estimate(request, layout)
    change = rebalance(request, placed)
    assert change.now_s == pytest.approx(placed.cost.step.total_s)
    assert change.payback_steps > 0
    assert change.best.layout.layers_per_stage != layout.layers_per_stage  # slow accelerators give layers up
    assert rebalance(request, change.best).payback_steps == 0
    in_order = rebalance(request, replace(placed, placement=()))
    assert placed.in_order is not None
    assert in_order.now_s == pytest.approx(placed.in_order.step_time_s)
    assert in_order.best.layout == change.best.layout
    assert in_order.best.placement == change.best.placement
    first, *rest = placed.placement
    with pytest.raises(InputError, match="a GPU of its own on island 0"):
        rebalance(request, replace(placed, placement=(replace(first, host="node3"), *rest)))


def test_a_layout_on_the_second_island_runs_where_its_report_placed_it() -> None:
    request, layout = over_islands([1.0] * 7 + [0.5], [2, 2, 2, 2, 2, 2, 2, 2])
    stages = tuple(replace(stage, island=1) for stage in layout.stages[:4])
    request = replace(request, model=cut(request.model, 8))
    here = replace(layout, stages=stages, schedule=schedule_of(4, 1))
    placed = estimate(request, here)
    change = rebalance(request, placed)
    assert change.now_s == pytest.approx(placed.cost.step.total_s)
    assert {place.host for place in placed.placement} == {"node2", "node3"}

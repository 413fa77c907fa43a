"""Placement: patterns against permutations, the search against brute force, identity beside, heat-aware never worse."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.layout import Layout
from costmodels.placement import Placement, identity, ranks_of_stages, stage_map
from costmodels.power.heat import (
    ROUNDS,
    HeatProblem,
    device_arrays,
    heat_problem,
    identity_maps,
    inlets_c,
    placed_maps,
    settle,
)
from costmodels.price import price_layout, price_layout_with_heat
from hardware.cluster import Cluster, DeviceState, FabricTier
from hardware.errors import InputError
from planner.advice.heat import heat_advice
from planner.advice.remedies import remedies
from planner.advice.what_if import what_ifs
from planner.layouts.build import on_island
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import place_layout, place_with_splits, placement_of, rank_places, stated_placement
from planner.placement.candidates import board_of, every_placement, near
from planner.placement.joint import network_minds
from planner.placement.patterns import NodeSlots, patterns
from planner.plan_report import RankPlace
from planner.planning import estimate, plan, pricings_of
from planner.question import Question, request_of
from planner.request import Objective, PlanRequest
from planner.search.uniform import UniformSearch
from planner.traffic.sensitivity import sensitivities

pytestmark = pytest.mark.deep

TWO_ROWS = NodeSlots(columns=((0, 2), (1, 3)), kinds=(0, 0), coolness=(0, 1, 2, 3))


def hot(
    nodes: int = 2,
    gpus: int = 4,
    inlets: tuple[float, ...] = (),
    devices: tuple[DeviceState, ...] = (),
    model: str = "gpt3_6_7b",
) -> PlanRequest:
    """A small model on small nodes of two rows that heat slows."""
    asked = request_of(
        Question(model=model, cluster=f"dgx-h100:{nodes}", global_batch=16, seq=2048, thermal=True, top=3)
    )
    (island,) = asked.cluster.islands
    half = gpus // 2
    cooling = replace(
        island.node.cooling,
        rows=(tuple(range(half)), tuple(range(half, gpus))),
        inlet_c=38.0,
        resistance_c_per_w=0.07,
        coupling_c_per_w=0.03,
    )
    scale_up = replace(island.node.scale_up, domain_gpus=gpus)
    node = replace(
        island.node,
        gpus=gpus,
        cooling=cooling,
        scale_up=scale_up,
        host=replace(island.node.host, numa=(), pcie_switches=()),
    )
    machine: Cluster = replace(asked.cluster, islands=(replace(island, node=node, inlets_c=inlets, devices=devices),))
    return replace(asked, cluster=machine)


def layout(request: PlanRequest, split: str, tp: int = 1) -> Layout:
    return layout_of(request, ExplicitLayout(tp=tp, layers_per_stage=split, micro_batch=2))


def problem_of(request: PlanRequest, split: str, tp: int = 1) -> HeatProblem:
    return heat_problem(pricings_of(request), layout(request, split, tp))


def every_launch(nodes: int, gpus: int) -> list[Placement]:
    """All placements that torchrun can start: permutations of nodes and of the accelerators of each."""
    inside = list(permutations(range(gpus)))
    found = []
    for order in permutations(range(nodes)):
        chosen: list[tuple[tuple[int, ...], ...]] = [()]
        for _ in range(nodes):
            chosen = [(*before, now) for before in chosen for now in inside]
        found += [Placement(nodes=order, gpus=gpus_of) for gpus_of in chosen]
    return found


def test_identity_and_slots() -> None:
    placed = identity(6, 4)
    assert placed.nodes == (0, 1)
    assert placed.gpus == ((0, 1, 2, 3), (0, 1))
    assert placed.is_identity
    assert placed.slots[5] == (1, 1)
    other = Placement(nodes=(1, 0), gpus=((3, 2, 1, 0), (0, 1, 2, 3)))
    assert not other.is_identity
    assert other.slots[0] == (1, 3)


@given(stages=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_patterns_are_the_distinct_stage_maps(stages: list[int]) -> None:
    """Against all permutations: one pattern for each way that differs once columns may be swapped."""

    def labels(gpus: tuple[int, ...]) -> tuple[int, ...]:
        found = [-1] * 4
        for rank, gpu in enumerate(gpus):
            found[gpu] = stages[rank]
        return tuple(found)

    def canonical(found: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(sorted((found[first], found[second]) for first, second in ((0, 2), (1, 3))))

    wanted = {canonical(labels(gpus)) for gpus in permutations(range(4), len(stages))}
    found = patterns(tuple(stages), TWO_ROWS)
    assert found[0] == tuple(range(len(stages)))
    assert sorted(canonical(labels(gpus)) for gpus in found) == sorted(wanted)


@given(
    inlets=st.lists(st.sampled_from([30.0, 38.0, 46.0]), min_size=2, max_size=2),
    split=st.sampled_from(["8x4", "7,9,8,8", "10,6,6,10", "5,9,9,9"]),
    slow=st.sampled_from([1.0, 0.8]),
    objective=st.sampled_from([Objective.TIME, Objective.ENERGY]),
)
@settings(max_examples=8, deadline=None)
def test_the_search_equals_brute_force(inlets: list[float], split: str, slow: float, objective: Objective) -> None:
    """Two nodes of two accelerators, four stages: every launch that torchrun can start, priced in balance."""
    device = (DeviceState(node=0, gpu=1, speed=slow),) if slow < 1.0 else ()
    request = replace(hot(2, 2, tuple(inlets), device), objective=objective)
    problem = problem_of(request, split)
    settled = settle(problem, placed_maps(problem, every_launch(2, 2)))
    values = settled.step_s if objective is Objective.TIME else settled.step_s * settled.mean_w()
    placed = place_layout(request, pricings_of(request), problem.layout)
    assert placed.complete
    got = placed.cost.step.total_s
    if objective is Objective.ENERGY:
        got *= placed.cost.power.gpu_w
    assert got == pytest.approx(float(values.min()), rel=2e-4)


def test_brute_force_inside_a_node_of_two_rows() -> None:
    request = hot(1, 4)
    problem = problem_of(request, "9,7,9,7")
    every = every_placement(board_of(problem))
    assert every is not None
    assert len(every) == 12  # 24 permutations, two columns that may be swapped
    best = settle(problem, placed_maps(problem, every)).step_s.min()
    brute = settle(problem, placed_maps(problem, every_launch(1, 4))).step_s.min()
    assert float(best) == pytest.approx(float(brute), rel=1e-9)


def test_cool_accelerators_take_the_heavier_stages() -> None:
    request = hot(1, 4)
    placed = place_layout(request, pricings_of(request), layout(request, "14,18", tp=2))
    assert placed.placement is not None
    assert placed.in_order is not None
    assert set(placed.placement.gpus[0][2:]) == {0, 1}  # the second stage at the inlet
    assert placed.cost.step.total_s < placed.in_order.step.total_s


def test_the_balance_is_a_fixed_point_that_few_rounds_find() -> None:
    problem = problem_of(hot(2, 4), "16,16", tp=2)
    settled = settle(problem, identity_maps(problem))
    assert settled.rounds <= 8
    cost = price_layout_with_heat(pricings_of(hot(2, 4)), problem.layout)
    assert cost.step.total_s == pytest.approx(float(settled.step_s[0]))
    assert cost.step.total_s >= price_layout(pricings_of(hot(2, 4)), problem.layout).step.total_s
    assert cost.power.limited_by == "heat"
    assert {slot.limited_by for slot in cost.power.slots} <= {"heat", "power"}


@given(
    inlets=st.lists(st.sampled_from([20.0, 35.0, 45.0, 60.0]), min_size=2, max_size=2),
    speeds=st.lists(st.sampled_from([1.0, 0.7, 0.1]), min_size=8, max_size=8),
    split=st.sampled_from(["16,16", "20,12", "5,27"]),
)
@settings(max_examples=20, deadline=None)
def test_the_balance_ends_however_hot_and_slow_the_machine(
    inlets: list[float], speeds: list[float], split: str
) -> None:
    """Within half of its rounds, and where it ends one more evaluation gives the same step."""
    request = hot(2, 4)
    (island,) = request.cluster.islands
    devices = tuple(DeviceState(node=place // 4, gpu=place % 4, speed=speed) for place, speed in enumerate(speeds))
    island = replace(island, inlets_c=tuple(inlets), devices=devices)
    problem = problem_of(replace(request, cluster=replace(request.cluster, islands=(island,))), split, tp=2)
    settled = settle(problem, identity_maps(problem))
    assert settled.rounds <= ROUNDS // 2
    again = settle(problem, identity_maps(problem), tolerance=1e-9)
    assert float(settled.step_s[0]) == pytest.approx(float(again.step_s[0]), rel=2e-5)


def test_a_slow_device_sets_the_pace_of_its_stage_and_gets_fewer_layers() -> None:
    """A supply fault: four times slower. As it is, the step is nearly four times as long; a split regains some."""
    fault = (DeviceState(node=0, gpu=2, speed=0.25),)
    cool, faulty = (hot(1, 4, (10.0,), devices) for devices in ((), fault))
    even = layout(faulty, "16,16", tp=2)
    whole, slowed = (estimate(request, even).cost.step.total_s for request in (cool, faulty))
    assert 2.5 < slowed / whole < 4.0
    again = place_with_splits(faulty, pricings_of(faulty), even)
    assert again.cost.step.total_s < 0.7 * slowed
    assert min(stage.layers for stage in again.layout.stages) < 10


def test_measured_clocks_and_temperatures_override_the_model() -> None:
    devices = (
        DeviceState(node=0, gpu=1, clock_hz=1.2e9),
        DeviceState(node=0, gpu=3, temperature_c=125.0, power_w=650.0),
    )
    request = hot(1, 4, (), devices)
    (pricing,) = pricings_of(request)
    inlet, clock, speed = device_arrays(pricing)
    assert clock[0, 1] == pytest.approx(1.2e9 / 1.98e9)
    assert inlet[0, 3] > inlet[0, 2]
    assert (speed == 1.0).all()
    cost = price_layout_with_heat([pricing], layout(request, "16,16", tp=2))
    states = {slot.gpu: slot for slot in cost.power.slots}
    assert states[1].clock_hz == pytest.approx(1.2e9)
    assert states[1].limited_by == "measured"
    assert states[3].clock_hz < states[2].clock_hz
    assert cost.power.limited_by == "heat"  # of GPU 3
    warm = replace(pricing, island=replace(pricing.island, inlets_c=(75.0,)))
    states = {slot.gpu: slot for slot in price_layout_with_heat([warm], layout(request, "16,16", tp=2)).power.slots}
    assert states[1].clock_hz == pytest.approx(1.2e9)  # however warm the model has it
    assert states[0].clock_hz < 1.1e9


def test_what_limits_the_clocks_is_measured_where_the_slowest_is() -> None:
    """A clock below the others that monitoring states is no limit of power; one above them limits nothing."""
    for clock_hz, said in ((1.2e9, "measured"), (1.98e9, "power")):
        request = hot(1, 4, (10.0,), (DeviceState(node=0, gpu=1, clock_hz=clock_hz),))
        cost = price_layout_with_heat(pricings_of(request), layout(request, "16,16", tp=2))
        assert cost.power.limited_by == said


def test_inlets_by_node_and_by_place_in_the_rack() -> None:
    (island,) = hot(4, 2).cluster.islands
    racks = replace(
        island, node=replace(island.node, cooling=replace(island.node.cooling, rack_nodes=2, rack_rise_c=5.0))
    )
    np.testing.assert_allclose(inlets_c(racks), [38.0, 43.0, 38.0, 43.0])
    np.testing.assert_allclose(inlets_c(replace(racks, inlets_c=(20.0, 21.0, 22.0, 23.0))), [20.0, 21.0, 22.0, 23.0])


def test_a_plan_with_heat_is_never_worse_than_one_without() -> None:
    """The heat-blind winner, its ranks in order and priced with heat, against the heat-aware winner."""
    request = replace(hot(2, 4, (30.0, 44.0)), fixed=(("tp", 1), ("cp", 1), ("micro_batch", 1)))
    aware = plan(request)
    blind = plan(replace(request, thermal=False)).layouts[0].layout
    repriced = price_layout_with_heat(pricings_of(request), blind)
    best = aware.layouts[0]
    assert best.cost.step.total_s <= repriced.step.total_s * (1.0 + 1e-9)
    assert best.in_order is not None
    assert best.cost.step.total_s <= best.in_order.step_time_s * (1.0 + 1e-9)


def test_places_name_hosts_and_accelerators() -> None:
    request = hot(2, 4)
    placement = Placement(nodes=(1, 0), gpus=((3, 2, 1, 0), (0, 1, 2, 3)))
    places = rank_places(placement, request.cluster)
    assert [(place.rank, place.host, place.gpu) for place in places[:5]] == [
        (0, "node1", 3), (1, "node1", 2), (2, "node1", 1), (3, "node1", 0), (4, "node0", 0),
    ]  # fmt: skip
    assert rank_places(identity(8, 4), request.cluster) == ()
    stages = ranks_of_stages(layout(request, "16,16", tp=2), 0)
    mapped = stage_map(placement, stages, request.cluster.islands[0])
    assert mapped.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]


def test_a_given_placement_is_priced_as_it_is_beside_the_one_in_order() -> None:
    request = hot(1, 4)
    even = layout(request, "14,18", tp=2)
    reverse = Placement(nodes=(0,), gpus=((3, 2, 1, 0),))
    found = estimate(request, even, placement=reverse)
    assert [place.gpu for place in found.placement] == [3, 2, 1, 0]
    assert found.in_order is not None
    assert found.cost.step.total_s < found.in_order.step_time_s
    assert placement_of(found.placement, request.cluster, even, "x") == reverse


def test_what_would_change_is_asked_of_the_ranks_where_they_are() -> None:
    """Caps, slow accelerators, fabrics and micro-batches of a layout in order, and of the same one placed well."""
    request = hot(3, 4, inlets=(25.0, 25.0, 44.0))
    split = layout_of(request, ExplicitLayout(tp=4, layers_per_stage="10,12,10", micro_batch=2))
    placed = estimate(request, split)
    usual = estimate(request, split, placement=identity(12, 4))
    capped = pricings_of(replace(request, job=replace(request.job, power_cap_w=630.0)))
    for ranked in (placed, usual):
        now, there = ranked.cost.step.total_s, stated_placement(ranked, request)
        told = {item.words: item.step_s for item in what_ifs(request, ranked)}
        assert told["GPUs capped at 630 W (90%)"] == price_layout_with_heat(capped, split, there).step.total_s
        assert now <= told["one GPU of 12 2.5 % slower"] <= 1.026 * now
        for item in sensitivities(request, split, there=there):
            assert item.step_s <= now * 1.0001 if item.factor > 1.0 else item.step_s >= now * 0.9999
        doubled = replace(split, micro_batch=4, num_microbatches=4)
        other = price_layout_with_heat(pricings_of(request), doubled, there).step.total_s
        assert heat_advice(request, ranked).micro_batches[-1].step_s == pytest.approx(other - now)
    assert placed.cost.step.total_s < 0.99 * usual.cost.step.total_s
    changes = remedies(request, split, usual.cost, there=identity(12, 4))
    gains = {remedy.change: remedy.cost.step.total_s for remedy in changes.faster}
    assert gains.pop("ranks placed anew") == placed.cost.step.total_s


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(0, "node0", 0), (1, "node0", 1)], "2 ranks"),
        ([(0, "node7", 0), (1, "node0", 1), (2, "node0", 2), (3, "node0", 3)], "rank 0 is on GPU 0 of 'node7'"),
        ([(0, "node0", 0), (1, "node0", 0), (2, "node0", 2), (3, "node0", 3)], "a GPU has two ranks"),
        ([(0, "node1", 0), (1, "node0", 1), (2, "node0", 2), (3, "node0", 3)], "not consecutive"),
    ],
)
def test_placements_that_cannot_be_started_are_refused(places: list[tuple[int, str, int]], message: str) -> None:
    request = hot(2, 4)
    wanted = layout_of(request, ExplicitLayout(tp=2, dp=1, layers_per_stage="16,16", micro_batch=2))
    with pytest.raises(InputError, match=message):
        placement_of([RankPlace(rank=r, host=h, gpu=g) for r, h, g in places], request.cluster, wanted, "file")


def test_a_search_with_heat_keeps_grids_until_none_left_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster so hot that every layout with heat is slower than the slowest of two without: more grids are kept."""
    seen: list[int] = []
    usual = UniformSearch.__init__

    def recording(self: UniformSearch, *args: object, **words: object) -> None:
        usual(self, *args, **words)
        seen.append(self.wanted)

    monkeypatch.setattr(UniformSearch, "__init__", recording)
    monkeypatch.setattr("planner.search.every_island.GRIDS_KEPT", 2)
    base = replace(hot(1, 4, (44.0,)), fixed=(("cp", 1), ("vpp", 1)), recompute="none", top=1)
    report = plan(base)
    assert seen[:2] == [2, 4]
    assert report.layouts[0].cost.power.limited_by == "heat"


@pytest.mark.parametrize("most_keys", [1 << 62, 8])
def test_nodes_that_are_alike_are_solved_once(monkeypatch: pytest.MonkeyPatch, most_keys: int) -> None:
    """States by sort of node against states of every node by itself, also where keys of sorts must be counted anew."""
    problem = problem_of(
        hot(4, 2, (30.0, 44.0, 30.0, 44.0), (DeviceState(node=3, gpu=1, speed=0.8),)), "10,6,9,7", tp=2
    )
    placements = [Placement(nodes=order, gpus=((0, 1), (1, 0), (0, 1), (0, 1))) for order in permutations(range(4))]
    maps = placed_maps(problem, placements)
    monkeypatch.setattr("costmodels.power.heat._MOST_KEYS", most_keys)
    solved = settle(problem, maps)

    def each_by_itself(heat: object, placed: np.ndarray, length_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        del heat, length_s
        every = np.arange(placed.shape[0] * placed.shape[1])
        return every, every.reshape(placed.shape[:2])

    monkeypatch.setattr("costmodels.power.heat._alike_nodes", each_by_itself)
    slow = settle(problem, maps)
    np.testing.assert_array_equal(solved.step_s, slow.step_s)
    for name in ("clock", "mean_w", "temperature_c", "busy_c"):
        np.testing.assert_array_equal(getattr(solved.states[0], name), getattr(slow.states[0], name))
    assert len({round(float(step_s), 6) for step_s in solved.step_s}) > 1


def test_neighbours_leave_out_only_what_differs_in_nothing() -> None:
    """Two stages on two nodes each: all swaps of two nodes come to the same step times as those that are priced."""
    request = hot(4, 2, (30.0, 44.0, 30.0, 44.0))
    given = layout_of(request, ExplicitLayout(tp=2, dp=2, layers_per_stage="14,18"))
    problem = heat_problem(pricings_of(request), given)
    start = identity(8, 2)
    swaps = []
    for first, second in combinations(range(4), 2):
        nodes = list(start.nodes)
        nodes[first], nodes[second] = nodes[second], nodes[first]
        swaps.append(Placement(nodes=tuple(nodes), gpus=start.gpus))
    found = near(board_of(problem), start)
    assert len(found) < len(swaps)
    all_s, found_s = (settle(problem, placed_maps(problem, (start, *some))).step_s for some in (swaps, found))
    assert {round(float(each), 9) for each in all_s} == {round(float(each), 9) for each in found_s}


@pytest.mark.parametrize("leaf", [0, 2])
def test_nodes_move_only_as_far_as_the_network_allows(leaf: int) -> None:
    """Four nodes, hot and cool in turn: below one switch heat orders them; below two, the price counts the network."""
    base = hot(4, 2, (30.0, 50.0, 30.0, 50.0))
    (island,) = base.cluster.islands
    tiers = (
        FabricTier(name="leaf", nodes=leaf, oversubscription=1.0),
        FabricTier(name="spine", nodes=0, oversubscription=8.0),
    )
    request = replace(
        base, cluster=replace(base.cluster, islands=(replace(island, fabric=tiers if leaf else tiers[1:]),))
    )
    placed = place_layout(request, pricings_of(request), layout(request, "10,6,10,6", tp=2))
    assert network_minds(request.cluster.islands[0]) == (leaf == 2)
    assert placed.in_order is not None
    assert placed.cost.step.total_s <= placed.in_order.step.total_s * (1.0 + 1e-9)


def test_new_splits_of_a_layout_stay_on_its_island() -> None:
    request = request_of(Question(model="llama3_8b", cluster="dgx-h100:2", global_batch=32, seq=4096, thermal=True))
    (island,) = request.cluster.islands
    small = replace(island, node=replace(island.node, gpus=1), nodes=1)
    two = replace(request.cluster, islands=(small, island), inter_island_bytes_per_s=1e10, inter_island_latency_s=1e-5)
    request = replace(request, cluster=two)
    slow = replace(island, devices=(DeviceState(node=1, gpu=0, speed=0.7),))
    request = replace(request, cluster=replace(two, islands=(small, slow)))
    start = on_island(layout_of(request, ExplicitLayout(tp=2, pp=4, dp=2)), 1)
    found = place_with_splits(request, pricings_of(request), start)
    assert {stage.island for stage in found.layout.stages} == {1}
    assert found.layout.layers == start.layers

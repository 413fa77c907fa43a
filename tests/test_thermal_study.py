"""The study of training under heat and power limits (arXiv 2509.10371): its facts against the machines as they ship.

One set of constants holds for all rows. What does not come out is listed in ``docs/placement.md``; ``docs/power.md``
says row by row which test holds what the study states with trust A and B.
"""

import tomllib
from collections.abc import Mapping
from cProfile import Profile
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.layout import RankOrder
from costmodels.mesh import Axis, domains, group_of
from costmodels.placement import Placement, ranks_of_stages, stages_of_blocks
from costmodels.power.heat import heat_problem, identity_maps, settle
from costmodels.price import price_layout_with_heat
from costmodels.results import LayoutCost, Verdict
from costmodels.table import table_of
from costmodels.workload import presets
from costmodels.workload.counts import parameter_count
from hardware.catalog import accelerator, cluster
from hardware.cluster import Cluster, DeviceState
from hardware.errors import InputError
from hardware.tiers import island_tiers
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import PlacedLayout, place_layout, place_with_splits, placed_as_given
from planner.planning import estimate, plan, pricings_of
from planner.question import Question, request_of
from planner.request import PlanRequest
from planner.traffic import traffic_of

FACTS = tomllib.loads((Path(__file__).parent / "reference" / "thermal_study.toml").read_text(encoding="utf-8"))
ROWS = tomllib.loads((Path(__file__).parent / "reference" / "thermal_facts.toml").read_text(encoding="utf-8"))["fact"]
PAGE = (Path(__file__).parents[1] / "docs" / "power.md").read_text(encoding="utf-8")
SEQ = {"llama3-70b": 8192, "gpt3-175b": 2048, "mixtral-8x22b": 4096}
UNEVEN = {"llama3-70b": "21,19,21,19", "gpt3-175b": "13,11,13,11,13,11,13,11"}
EVEN = {"llama3-70b": "20x4", "gpt3-175b": "12x8"}
LAYOUTS = (
    {"model": "gpt3-175b", "tp": 8, "pp": 4},
    {"model": "gpt3-175b", "tp": 4, "pp": 8},
    {"model": "gpt3-175b", "tp": 2, "pp": 16},
    {"model": "gpt3-175b", "tp": 1, "pp": 32},
    {"model": "llama3-70b", "tp": 8, "pp": 2},
    {"model": "llama3-70b", "tp": 4, "pp": 4},
    {"model": "llama3-70b", "tp": 2, "pp": 8},
    {"model": "llama3-70b", "tp": 1, "pp": 16},
    {"model": "mixtral-8x22b", "tp": 4, "pp": 1, "ep": 8, "etp": 4},
    {"model": "mixtral-8x22b", "tp": 2, "pp": 2, "ep": 8, "etp": 2},
    {"model": "mixtral-8x22b", "tp": 1, "pp": 4, "ep": 8},
)
"""On 32 H200 without FSDP."""
SHARDED = (
    {"model": "gpt3-175b", "tp": 8, "zero": 3, "gradient_bytes": 2.0},
    {"model": "llama3-70b", "tp": 8, "zero": 3, "gradient_bytes": 2.0},
)
"""FSDP; its gradients are reduced in 16 bits."""
STEPS = 11  # of a run: ten to warm up and one that is measured
HOUR_S = 3600.0
START_S = 300.0  # of a run at least: data, communicators and weights of 32 or 64 ranks
named = "{model} tp{tp}".format_map


def value(name: str) -> float:
    return next(float(row["value"]) for row in FACTS["value"] if row["name"] == name)


def asked(model: str, machine: str = "h200") -> PlanRequest:
    return request_of(
        Question(model=model, cluster=f"{machine}-thermal-study", global_batch=128, seq=SEQ[model], thermal=True)
    )


@cache
def estimated(row: tuple[tuple[str, Any], ...]) -> LayoutCost:
    """Price of a row with full recompute and its ranks in order."""
    told = dict(row)
    request = asked(told.pop("model"), told.pop("machine", "h200"))
    job = request.job
    software = replace(job.software, gradient_bytes=told.pop("gradient_bytes", job.software.gradient_bytes))
    share, seq = told.pop("trained_share", 1.0), told.pop("seq", job.seq)
    request = replace(request, job=replace(job, trained_share=share, seq=seq, software=software))
    recompute = told.pop("recompute", "full")
    layout = layout_of(request, ExplicitLayout(**{"pp": 1, **told}, recompute=recompute))
    return price_layout_with_heat(pricings_of(request), layout)


def cost_of(**row: Any) -> LayoutCost:
    return estimated(tuple(sorted(row.items())))


MEASURES = {
    "tokens_per_s": lambda cost: cost.tokens_per_s,
    "compute_s": lambda cost: -cost.step.compute_s,
    "energy_j_per_token": lambda cost: -cost.power.energy_j_per_token,
    "efficiency": lambda cost: 1.0 / (cost.step.total_s * cost.power.energy_j_per_token),
    "throttling": lambda cost: cost.power.clock_hz,
}


@pytest.mark.parametrize("row", FACTS["ordering"], ids=lambda row: f"{row['measure']} {row['better']}")
def test_stated_orderings(row: Mapping[str, Any]) -> None:
    measure = MEASURES[row["measure"]]
    assert measure(cost_of(**row["better"])) > measure(cost_of(**row["worse"]))


def network_bytes_per_s(row: Mapping[str, Any]) -> float:
    """Rate of an accelerator while it sends to the next stage in another node, or gathers weights from other nodes."""
    told = dict(row)
    request = replace(asked(told.pop("model")), thermal=False)
    layout = layout_of(request, ExplicitLayout(**{"pp": 1, **told}, recompute="full"))
    found = traffic_of(request, estimate(request, layout))
    purpose = "send" if layout.pp > 1 else "weights"
    rows = [use for use in found.axes if use.purpose == purpose and use.slow_bytes_per_token]
    return sum(use.message_bytes * use.count for use in rows) / sum(use.busy_s for use in rows)


@pytest.mark.parametrize("row", FACTS["bandwidth"], ids=lambda row: f"{row['better']}")
def test_deep_pipelines_use_the_way_to_the_network_better(row: Mapping[str, Any]) -> None:
    assert network_bytes_per_s(row["better"]) > network_bytes_per_s(row["worse"])


@pytest.mark.parametrize("row", FACTS["span"], ids=lambda row: str(row["at"]))
def test_where_groups_and_stages_lie(row: Mapping[str, Any]) -> None:
    told = dict(row["at"])
    request = asked(told.pop("model"), "h200" if told.pop("gpus") == 32 else "h100")
    layout = layout_of(request, ExplicitLayout(**told))
    blocks = stages_of_blocks(ranks_of_stages(layout, 0), 8)
    assert max(len(set(block)) for block in blocks) == row["stages_per_node"]
    assert max(sum(stage in block for block in blocks) for stage in range(layout.pp)) == row["nodes_per_stage"]
    table = table_of([layout.first], pp=[layout.pp], micro_batch=[1])
    tiers = island_tiers(request.cluster.islands[0])
    for name, nodes in row["groups"].items():
        assert int(domains(group_of(Axis(name), table), tiers)[0][0]) == nodes, name
    stage = layout.first.gpus
    hops = [(rank // 8, (rank + stage) // 8) for rank in range(layout.gpus - stage)]
    assert sum(here != there for here, there in hops) == row["hops_between_nodes"]


@cache
def placed(model: str, split: str) -> PlacedLayout:
    request = asked(model)
    tp = 4
    return place_layout(
        request, pricings_of(request), layout_of(request, ExplicitLayout(tp=tp, layers_per_stage=split))
    )


def efficiency(cost: LayoutCost) -> float:
    return 1.0 / (cost.step.total_s * cost.power.energy_j_per_token)


def in_order(found: PlacedLayout) -> LayoutCost:
    assert found.in_order is not None
    return found.in_order


def test_rear_gpus_are_hotter_and_slower_than_front_ones() -> None:
    cost = in_order(placed("llama3-70b", EVEN["llama3-70b"]))
    ratios, slower = [], []
    for node in range(4):
        here = [slot for slot in cost.power.slots if slot.node == node]
        front = [slot for slot in here if slot.gpu in (0, 2, 4, 7)]
        rear = [slot for slot in here if slot.gpu in (1, 3, 5, 6)]
        ratios.append(max(slot.temperature_c for slot in rear) / min(slot.temperature_c for slot in front) - 1.0)
        assert max(slot.clock_hz for slot in rear) <= min(slot.clock_hz for slot in front)
        slower.append(min(slot.clock_hz for slot in rear) < min(slot.clock_hz for slot in front))
    assert sum(slower) >= 2  # the warm nodes
    assert max(ratios) == pytest.approx(value("rear over front temperature"), abs=0.03)


FRONT_FIRST = (0, 2, 4, 7, 1, 3, 5, 6)
"""Accelerators of a node, those at the inlet first."""


@cache
def grouped(model: str) -> PlacedLayout:
    """Equal layers, the first stages on the cool accelerators: the symmetric variant as its reader tells it."""
    request = asked(model)
    layout = layout_of(request, ExplicitLayout(tp=4, layers_per_stage=EVEN[model]))
    return placed_as_given(pricings_of(request), layout, Placement(nodes=(0, 2, 1, 3), gpus=(FRONT_FIRST,) * 4))


def variance(cost: LayoutCost) -> float:
    return float(np.var([slot.temperature_c for slot in cost.power.slots]))


@pytest.mark.parametrize("model", EVEN)
def test_the_symmetric_variant_gains_little_and_evens_out_nothing(model: str) -> None:
    found = grouped(model)
    gain = efficiency(found.cost) / efficiency(in_order(found)) - 1.0
    assert -1e-3 <= gain <= value("symmetric, efficiency over ranks in order, at most")
    assert variance(found.cost) >= variance(in_order(found)) * (1.0 - 1e-3)  # two like nodes of Llama change places
    if model == "gpt3-175b":
        assert variance(found.cost) > 1.005 * variance(in_order(found))
    assert efficiency(placed(model, EVEN[model]).cost) >= efficiency(found.cost) * (1.0 - 1e-3)


def test_the_asymmetric_split_wins_for_llama() -> None:
    even, uneven = (placed("llama3-70b", split["llama3-70b"]) for split in (EVEN, UNEVEN))
    base = in_order(even)
    asymmetric = efficiency(uneven.cost) / efficiency(base) - 1.0
    assert asymmetric == pytest.approx(value("Llama3-70B 21/19, efficiency over ranks in order"), abs=0.015)
    assert asymmetric > efficiency(grouped("llama3-70b").cost) / efficiency(base) - 1.0
    gap = uneven.cost.power.gap_c / base.power.gap_c - 1.0
    assert gap == pytest.approx(value("Llama3-70B 21/19, temperature gap over ranks in order"), abs=0.08)


def test_the_asymmetric_split_loses_for_gpt3() -> None:
    even, uneven = (placed("gpt3-175b", split["gpt3-175b"]) for split in (EVEN, UNEVEN))
    base = in_order(even)
    change = efficiency(uneven.cost) / efficiency(base) - 1.0
    assert change == pytest.approx(value("GPT3-175B 13/11, efficiency over ranks in order"), abs=0.04)
    assert change < -0.02
    gap = uneven.cost.power.gap_c / base.power.gap_c - 1.0
    assert gap == pytest.approx(value("GPT3-175B 13/11, temperature gap over ranks in order"), abs=0.06)


def test_the_planner_takes_the_one_and_leaves_the_other() -> None:
    found = {}
    for model, layers in (("llama3-70b", 20), ("gpt3-175b", 12)):
        request = asked(model)
        layout = layout_of(request, ExplicitLayout(tp=4, layers_per_stage=EVEN[model]))
        best = place_with_splits(request, pricings_of(request), layout)
        assert efficiency(best.cost) >= efficiency(placed(model, EVEN[model]).cost) * (1.0 - 1e-3)
        found[model] = [stage.layers - layers for stage in best.layout.stages]
    assert any(found["llama3-70b"])
    assert found["gpt3-175b"] != [1, -1] * 4
    assert max(map(abs, found["gpt3-175b"])) <= 1


@pytest.mark.parametrize("adapters", [1, 8])
def test_cool_and_warm_gpus_are_grouped_where_each_has_an_adapter(adapters: int) -> None:
    """With equal inlets, stages side by side in a node take its front and its rear: worth it if gradients can cross."""
    request = replace(asked("llama3-70b"), recompute="full", top=2)
    (island,) = request.cluster.islands
    cooling = replace(island.node.cooling, inlet_c=27.0, rack_rise_c=0.0)
    node = replace(island.node, cooling=cooling, nics=replace(island.node.nics, count=adapters))
    pins = {"tp": 4, "pp": 4, "cp": 1, "vpp": 1, "micro_batch": 1, "zero": 1}
    request = replace(request, cluster=replace(request.cluster, islands=(replace(island, node=node),)))
    report = plan(replace(request, fixed=tuple(pins.items())))
    best = report.layouts[0]
    assert len({one.layout.gpus for one in report.layouts}) == len(report.layouts)  # one order of each is ranked
    assert best.layout.rank_order is (RankOrder.PP_INSIDE if adapters == 8 else RankOrder.DP_INSIDE)
    if adapters == 8:
        assert best.placement
        usual = layout_of(request, ExplicitLayout(tp=4, layers_per_stage=EVEN["llama3-70b"], recompute="full"))
        default = price_layout_with_heat(pricings_of(request), usual)
        assert 0.01 < efficiency(best.cost) / efficiency(default) - 1.0 < 0.06
        assert best.cost.power.gap_c < default.power.gap_c


@pytest.mark.parametrize("row", FACTS["split"], ids=lambda row: row["model"])
def test_uneven_splits_are_those_of_the_artifact(row: Mapping[str, Any]) -> None:
    layers = layout_of(asked(row["model"]), ExplicitLayout(tp=4, layers_per_stage=UNEVEN[row["model"]]))
    assert [stage.layers for stage in layers.stages] == row["layers"] * (row["pp"] // 2)


@pytest.mark.parametrize("layout", [*LAYOUTS, *SHARDED], ids=named)
def test_peaks_rise_with_the_micro_batch_whether_or_not_throughput_does(layout: Mapping[str, Any]) -> None:
    costs = [cost_of(**layout, micro_batch=size) for size in (1, 2, 4, 8)]
    costs = [cost for cost in costs if cost.heaviest.verdict is not Verdict.OOM]
    watts = [cost.power.peak_gpu_w for cost in costs]
    degrees = [cost.power.max_temp_c for cost in costs]
    assert watts == sorted(watts)
    assert all(after > before - 0.005 for before, after in pairwise(degrees))  # what the balance leaves open
    assert watts[-1] > watts[0]
    assert degrees[-1] > degrees[0]
    if layout.get("pp", 1) >= 16:
        assert costs[-1].tokens_per_s < costs[0].tokens_per_s
        assert costs[-1].power.clock_hz < costs[0].power.clock_hz + 2e6  # throttling becomes no better


@pytest.mark.parametrize("layout", LAYOUTS, ids=named)
def test_adapters_draw_less_than_full_training(layout: Mapping[str, Any]) -> None:
    """As the artifact runs them: adapters with sequences of 2,048 tokens and no recompute."""
    full, adapters = cost_of(**layout), cost_of(**layout, trained_share=0.002, seq=2048, recompute="none")
    assert adapters.power.peak_gpu_w < full.power.peak_gpu_w
    assert adapters.power.max_temp_c < full.power.max_temp_c
    assert adapters.power.gpu_w < full.power.gpu_w


def kernels_s(cost: LayoutCost) -> float:
    """Time of compute and exchanges in a step, without what a stage waits for others."""
    return cost.step.compute_s + cost.step.exposed_comm_s


def gather_s(row: Mapping[str, Any], **more: Any) -> float:
    """Time in which FSDP gathers all weights once for every micro-batch: it gathers twice and reduces as much once."""
    return cost_of(**row, **more).step.exposed_comm_s / 3.0


def again_s(row: Mapping[str, Any], **more: Any) -> float:
    """What recompute adds here: the artifact's checkpoints are around FSDP's units, which gather once more for it."""
    return gather_s(row, **more)


@pytest.mark.parametrize("layout", LAYOUTS, ids=named)
def test_kernels_end_within_the_axes_of_the_plots(layout: Mapping[str, Any]) -> None:
    assert all(kernels_s(cost_of(**layout, recompute=kind)) <= 60.0 for kind in ("none", "full"))
    if layout["model"] == "gpt3-175b":
        assert all(kernels_s(cost_of(**layout, micro_batch=size)) <= 40.0 for size in (1, 2, 4, 8))


@pytest.mark.parametrize("row", SHARDED, ids=named)
def test_kernels_of_fsdp_end_within_the_axis_of_their_plot(row: Mapping[str, Any]) -> None:
    assert kernels_s(cost_of(**row, recompute="none")) <= 1800.0
    assert kernels_s(cost_of(**row)) + again_s(row) <= 1800.0


def validated_s(row: Mapping[str, Any], **more: Any) -> float:
    """Time of a run of FSDP in the sweep of micro-batches: it validates with four batches after every second step."""
    cost = cost_of(**row, **more)
    forward_s = gather_s(row, **more) + cost.step.compute_s / 4.0
    return STEPS * (cost.step.total_s + again_s(row, **more)) + STEPS // 2 * 4 * forward_s


def test_the_durations_of_the_artifact() -> None:
    """Runs of 11 steps within the hours that its author tells for sets of them, rounded, start-up included."""
    steps_s = [[cost_of(**row, micro_batch=size).step.total_s for size in (1, 2, 4, 8)] for row in LAYOUTS]
    sharded_s = [[validated_s(row, micro_batch=size) for size in (1, 2, 4, 8)] for row in SHARDED]
    again = [STEPS * (cost_of(**row).step.total_s + again_s(row)) for row in SHARDED]
    plain = [STEPS * cost_of(**row, recompute="none").step.total_s for row in SHARDED]
    assert max(STEPS * row[0] for row in steps_s) < 0.5 * HOUR_S  # the limit of a run
    assert max(map(max, sharded_s)) < 10 * HOUR_S  # the limit of a run
    assert STEPS * sum(row[0] for row in steps_s) < 6 * HOUR_S
    assert STEPS * sum(map(sum, steps_s)) < 24 * HOUR_S
    # Of the hours told for FSDP more than half: with twice the adapters the network would take the less of them.
    assert 0.5 * 10 < sum(again) / HOUR_S < 10
    assert 0.5 * 24 < sum(map(sum, sharded_s)) / HOUR_S < 24
    assert 0.5 * 36 < 2 * (sum(plain) + sum(again)) / HOUR_S < 36  # each with and without overlap


@pytest.mark.parametrize("adapters", [1, 2])
def test_one_adapter_a_node_would_not_end_in_time(adapters: int) -> None:
    """Bytes over full rates, three passes a micro-batch: one adapter breaks every limit of the artifact, two keep all.

    FSDP with TP8: 128 sequences on four nodes, 11 steps and 20 validation batches; 32 on eight nodes, 3 steps.
    """
    gpt3, llama = (parameter_count(presets.model(row["model"])).total for row in SHARDED)

    def pass_s(parameters: float, nodes: int, sequences: int) -> float:
        arriving = 2.0 * parameters * (nodes - 1) / nodes  # 16-bit values of the other nodes' shards
        return arriving * sequences / nodes / (adapters * 12.5e9)

    passes = STEPS * 3 + STEPS // 2 * 4
    compute_s = STEPS * cost_of(**SHARDED[0]).step.compute_s
    sweep_s = sum(passes * pass_s(each, 4, 128) / size for each in (gpt3, llama) for size in (1, 2, 4, 8))
    limits = (
        (3 * pass_s(gpt3, 4, 128), 1800.0),  # axis of a plot
        (passes * pass_s(gpt3, 4, 128) + compute_s, 10 * HOUR_S - START_S),
        (3 * 3 * pass_s(gpt3, 8, 32), 0.25 * HOUR_S - START_S),
        (sweep_s, 24 * HOUR_S),
    )
    assert [taken <= most for taken, most in limits] == [adapters == 2] * len(limits)


def test_power_and_efficiency_are_counted_as_in_the_study() -> None:
    cost = in_order(placed("llama3-70b", EVEN["llama3-70b"]))
    power, slots = cost.power, cost.power.slots
    assert len(slots) == 32
    assert power.gpu_w == pytest.approx(np.mean([slot.mean_w for slot in slots]))
    assert power.peak_gpu_w == max(slot.peak_w for slot in slots)
    assert power.max_temp_c == max(slot.peak_c for slot in slots)
    energy_j = sum(slot.mean_w for slot in slots) * cost.step.total_s
    assert power.energy_j_per_token * 128 * SEQ["llama3-70b"] == pytest.approx(energy_j)
    assert power.node_energy_j_per_token > power.energy_j_per_token  # hosts and fans apart
    other = in_order(placed("llama3-70b", UNEVEN["llama3-70b"]))
    other_j = sum(slot.mean_w for slot in other.power.slots) * other.step.total_s
    stated = [(128 / one.step.total_s) / (joules / 1e6) for one, joules in ((cost, energy_j), (other, other_j))]
    assert efficiency(cost) / efficiency(other) == pytest.approx(stated[0] / stated[1])


def test_a_batch_that_does_not_divide_is_refused() -> None:
    request = request_of(
        Question(model="mixtral_8x7b", cluster="h200-thermal-study", global_batch=128, seq=4096, thermal=True)
    )
    with pytest.raises(InputError, match="128"):
        layout_of(request, ExplicitLayout(tp=1, pp=1, ep=8, micro_batch=8))


def test_what_other_readers_tell_of_kernels_and_recompute() -> None:
    """Trust C: shares of communication, and what recompute makes possible and costs."""
    experts = [row for row in LAYOUTS if row["model"] == "mixtral-8x22b"]
    shares = [cost_of(**row).step.exposed_comm_s / kernels_s(cost_of(**row)) for row in LAYOUTS]
    assert all(share < 0.5 for row, share in zip(LAYOUTS, shares, strict=True) if row["model"] == "llama3-70b")
    assert shares[LAYOUTS.index(experts[0])] > 0.5
    assert cost_of(**experts[2], recompute="none").heaviest.verdict is Verdict.OOM
    others = [efficiency(cost_of(**row, recompute="none")) for row in experts[:2]]
    assert efficiency(cost_of(**experts[2])) > 2.0 * max(others)
    for row in LAYOUTS[:8]:
        assert cost_of(**row, recompute="none").tokens_per_s > cost_of(**row).tokens_per_s


def test_a_node_with_a_supply_fault_slows_the_job_by_its_factor() -> None:
    request = asked("llama3-70b")
    (island,) = request.cluster.islands
    slow = 1.0 / value("slowdown of a node after a supply fault, at least")
    faulty: Cluster = replace(
        request.cluster,
        islands=(replace(island, devices=tuple(DeviceState(node=2, gpu=gpu, speed=slow) for gpu in range(8))),),
    )
    layout = layout_of(request, ExplicitLayout(tp=4, pp=4))
    whole, hurt = (
        price_layout_with_heat(pricings_of(replace(request, cluster=machine)), layout).step.total_s
        for machine in (request.cluster, faulty)
    )
    assert 3.0 < hurt / whole < 4.2


@pytest.mark.deep
def test_heat_costs_the_search_at_most_twice_the_calls() -> None:
    """Counted, not timed: calls of the planner's and the cost models' functions by whole searches with and without."""
    pins = (("cp", 1), ("micro_batch", 1), ("zero", 1))
    request = replace(asked("gpt3-175b"), fixed=pins, recompute="full", time_limit_s=1e6)
    calls = []
    for thermal in (False, True):
        watch = Profile()
        watch.enable()
        plan(replace(request, thermal=thermal))
        watch.disable()
        own = [row for row in watch.getstats() if not isinstance(row.code, str)]
        calls.append(
            sum(row.callcount for row in own if {"planner", "costmodels"} & {*Path(row.code.co_filename).parts})
        )
    assert calls[1] <= 2 * calls[0]


def test_the_balance_takes_few_rounds_on_the_study() -> None:
    request = asked("llama3-70b")
    problem = heat_problem(pricings_of(request), layout_of(request, ExplicitLayout(tp=4, pp=4)))
    assert settle(problem, identity_maps(problem)).rounds <= 6


def test_the_machines_are_those_of_the_study() -> None:
    h200, h100 = (accelerator(name).memory_bytes for name in ("h200-sxm-141gb", "h100-sxm-80gb"))
    assert h200 / h100 == pytest.approx(value("memory of an H200 over an H100"), abs=0.02)
    thousands_gib = [count * held / 2**30 / 1000 for count, held in ((32, h200), (64, h100))]
    assert thousands_gib == pytest.approx([4.5, 5.1], abs=0.05)
    for name, gpus in (("h200-thermal-study", 32), ("h100-thermal-study", 64)):
        machine = cluster(name)
        nics = machine.islands[0].node.nics
        assert (machine.gpus, nics.count, nics.bytes_per_s * 8) == (gpus, 2, pytest.approx(100e9))


def test_every_fact_is_held_by_a_test_or_says_why_not() -> None:
    """The table of the page is that of the facts; the tests that it names are there."""
    source = Path(__file__).read_text(encoding="utf-8")
    lines = []
    for row in ROWS:
        gates = row.get("gates", [])
        assert gates or row["why"]
        assert all(f"\ndef {name}(" in source for name in gates), row
        held = "; ".join(part for part in (", ".join(f"`{name}`" for name in gates), row.get("why", "")) if part)
        lines.append(f"| {row['row']} | {row['trust']} | {row['says']} | {held} |")
    assert "\n".join(lines) in PAGE, "write these lines into docs/power.md:\n" + "\n".join(lines)

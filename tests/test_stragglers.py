"""Slow devices and running layouts: who is slow, what it costs, what placing anew regains, and when that pays."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from small_requests import asked
from typer.testing import CliRunner

from costmodels.goodput import goodput
from costmodels.price import price_layout_with_heat
from hardware import catalog
from hardware.catalog_checks import check_island
from hardware.cluster import DeviceState, FabricTier
from hardware.errors import InputError
from hardware.resized import with_nodes, without_nodes
from planner.cli import app
from planner.devices.rebalance import placement_of, rebalance
from planner.devices.stragglers import stragglers
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement.slow_devices import SlowDevice, slow_devices, with_like_devices, without_slow_nodes
from planner.plan_report import RankPlace
from planner.planning import estimate, plan, pricings_of
from planner.report.device_text import straggler_section
from planner.request import Objective, PlanRequest

pytestmark = pytest.mark.deep


def with_devices(request: PlanRequest, *devices: DeviceState) -> PlanRequest:
    island = replace(request.cluster.islands[0], devices=devices)
    return replace(request, cluster=replace(request.cluster, islands=(island,)))


def piped(**fixed: int) -> PlanRequest:
    pins = tuple(f"{name}={value}" for name, value in fixed.items())
    return asked(cluster="dgx-a100:2", global_batch=32, fixed=pins, top=3)


def test_slow_by_speed_or_clock_against_the_median() -> None:
    measured = [DeviceState(node=0, gpu=gpu, clock_hz=1300e6 if gpu else 910e6) for gpu in range(8)]
    request = with_devices(asked(cluster="dgx-a100:2"), *measured, DeviceState(node=1, gpu=3, speed=0.25))
    assert slow_devices(pricings_of(request)) == (
        SlowDevice(node=1, gpu=3, pace=0.25),
        SlowDevice(node=0, gpu=0, pace=pytest.approx(0.7)),
    )
    assert slow_devices(pricings_of(with_devices(request, *measured[1:]))) == ()


def test_few_clocks_are_held_against_what_products_leave() -> None:
    """One clock alone, or those of one node of two, are no measure of themselves: products keep 1225 of 1410 MHz."""
    request = asked(cluster="dgx-a100:2")
    assert slow_devices(pricings_of(with_devices(request, DeviceState(node=1, gpu=3, clock_hz=1200e6)))) == ()
    (alone,) = slow_devices(pricings_of(with_devices(request, DeviceState(node=1, gpu=3, clock_hz=900e6))))
    assert alone == SlowDevice(node=1, gpu=3, pace=pytest.approx(900 / 1225, abs=0.01))
    starved = [DeviceState(node=1, gpu=gpu, clock_hz=900e6) for gpu in range(8)]
    assert {device.node for device in slow_devices(pricings_of(with_devices(request, *starved)))} == {1}


def test_slow_devices_are_taken_to_be_like_the_others() -> None:
    """As most of the island was measured; where little was, as the model has a device without a statement."""
    measured = [DeviceState(node=place // 8, gpu=place % 8, clock_hz=1200e6, speed=0.99) for place in range(16)]
    measured[5] = replace(measured[5], clock_hz=800e6, temperature_c=88.0)
    request = with_devices(asked(cluster="dgx-a100:2"), *measured)
    (island,) = with_like_devices(request.cluster, pricings_of(request)).islands
    found = {(device.node, device.gpu): device for device in island.devices}
    assert found.pop((0, 5)) == DeviceState(node=0, gpu=5, clock_hz=pytest.approx(1200e6))
    assert set(found.values()) == {*measured[:5], *measured[6:]}
    request = with_devices(request, measured[5])
    assert with_like_devices(request.cluster, pricings_of(request)).islands[0].devices == ()


def test_nodes_left_out_keep_the_order_of_the_others() -> None:
    island = replace(
        catalog.cluster("dgx-a100:4").islands[0],
        devices=(DeviceState(node=1, gpu=0, speed=0.5), DeviceState(node=3, gpu=2, clock_hz=1e9)),
        inlets_c=(20.0, 21.0, 22.0, 23.0),
    )
    fewer = without_nodes(island, {1})
    assert fewer.nodes == 3
    assert fewer.inlets_c == (20.0, 22.0, 23.0)
    assert fewer.devices == (DeviceState(node=2, gpu=2, clock_hz=1e9),)
    cluster = replace(catalog.cluster("dgx-a100:4"), islands=(island,))
    every = [SlowDevice(node=node, gpu=0, pace=0.5) for node in range(4)]
    assert without_slow_nodes(cluster, every) is None


@pytest.mark.parametrize("nodes", range(1, 9))
def test_an_island_of_another_size_states_what_its_nodes_have(nodes: int) -> None:
    """What a file must state for each node fits the new number of nodes; the nodes that stay keep theirs."""
    fabric = (
        FabricTier(name="leaf", nodes=3, groups=(1, 3)),
        FabricTier(name="spine", nodes=4, groups=(4,)),
    )
    island = replace(
        catalog.cluster("dgx-a100:4").islands[0],
        devices=(DeviceState(node=1, gpu=0, speed=0.5), DeviceState(node=3, gpu=2, clock_hz=1e9)),
        inlets_c=(20.0, 21.0, 22.0, 23.0),
        hosts=("a", "b", "c", "d"),
        fabric=fabric,
    )
    found = with_nodes(island, nodes)
    check_island(found, "resized")
    assert found.nodes == nodes
    assert found.devices == tuple(device for device in island.devices if device.node < nodes)
    assert found.inlets_c == (2 * island.inlets_c)[:nodes]
    assert found.hosts == (island.hosts[:nodes] if nodes <= 4 else ())
    assert [found.fabric[0].group_of(node) for node in range(nodes)] == [0, 1, 1, 1, 2, 3, 3, 3][:nodes]
    racks = replace(catalog.cluster("gb200-nvl72:20").islands[0], domains=(2, 18))
    check_island(with_nodes(racks, 5 * nodes), "resized")


def test_a_slow_device_stretches_the_step_by_what_its_stage_computes() -> None:
    request = piped()
    layout = layout_of(request, ExplicitLayout(tp=8, pp=2))
    healthy, slow = (
        price_layout_with_heat(pricings_of(with_devices(request, *devices)), layout).step
        for devices in ((), (DeviceState(node=1, gpu=5, speed=0.5),))
    )
    assert healthy.total_s < slow.total_s <= 2.0 * healthy.total_s  # exchanges and host time do not double
    before, after = dict(healthy.details), dict(slow.details)
    assert after["gemm"] > 1.9 * before["gemm"]
    assert after["launch"] < before["launch"]  # a slower device waits less for its host


def test_what_slow_devices_cost_and_what_helps() -> None:
    request = with_devices(piped(tp=4, cp=1), DeviceState(node=1, gpu=0, speed=0.25))
    report = plan(request)
    found = stragglers(report)
    assert found is not None
    assert found.left_out == (1,)
    assert found.healthy_s < found.replanned_s <= found.as_is_s
    assert found.replanned_s <= found.without_s * (1.0 + 1e-4)  # leaving nodes idle is among what is searched
    assert found.as_is_s > 2.0 * found.healthy_s
    without = plan(asked(cluster="dgx-a100:1", global_batch=32, fixed=("tp=4", "cp=1"), top=1))
    assert found.without_s == pytest.approx(without.layouts[0].cost.step.total_s, rel=1e-6)
    assert stragglers(plan(piped(tp=4, pp=2, cp=1, micro_batch=1))) is None


def test_layouts_without_a_starved_node_are_ranked_by_energy_too() -> None:
    """A node at a tenth of its pace: the thriftiest layout leaves it out, as if it were not there."""
    asked_for = replace(piped(cp=1, vpp=1, micro_batch=1), objective=Objective.ENERGY)
    starved = with_devices(asked_for, *(DeviceState(node=1, gpu=gpu, speed=0.1) for gpu in range(8)))
    alone = replace(asked_for, cluster=catalog.cluster("dgx-a100:1"))
    found, wanted = (plan(one).layouts[0].cost for one in (starved, alone))
    assert found.power.energy_j_per_token <= wanted.power.energy_j_per_token * (1.0 + 1e-6)


def test_a_slightly_slow_stage_gets_fewer_layers() -> None:
    devices = tuple(DeviceState(node=1, gpu=gpu, speed=0.75) for gpu in range(8))
    pins = ("pp=2", "tp=8", "vpp=1")
    request = asked("llama2_7b", cluster="dgx-a100:2", global_batch=32, seq=4096, fixed=pins, top=3)
    report = plan(with_devices(request, *devices))
    best = next(ranked for ranked in report.layouts if ranked.layout.gpus == 16)
    places = best.placement or tuple(RankPlace(rank=rank, host=f"node{rank // 8}", gpu=rank % 8) for rank in range(16))
    slow_stage = next(place.rank for place in places if place.host == "node1") // 8
    layers = [stage.layers for stage in best.layout.stages]
    assert layers[slow_stage] < layers[1 - slow_stage]


def test_rebalance_pays_after_restart_over_gain() -> None:
    request = piped()
    running = estimate(request, layout_of(request, ExplicitLayout(tp=8, pp=2)))
    measured = with_devices(request, *(DeviceState(node=1, gpu=gpu, clock_hz=1000e6) for gpu in range(8)))
    change = rebalance(measured, running)
    gained_s = change.now_s - change.best.cost.step.total_s
    assert gained_s > 0.0
    assert change.payback_steps == math.ceil(change.restart_s / gained_s)
    lost = goodput(measured.model, measured.job, measured.cluster, running.layout.gpus)
    assert change.restart_s == lost.write_s + lost.restart_s  # the state is written, then read by the new processes
    assert change.gain == pytest.approx(gained_s / change.now_s)
    again = rebalance(measured, change.best)
    assert (again.payback_steps, again.gain, again.best.layout) == (0, 0.0, change.best.layout)


def test_a_layout_runs_where_its_report_placed_it() -> None:
    request = piped()
    running = estimate(request, layout_of(request, ExplicitLayout(tp=8, pp=2)))
    swapped = tuple(RankPlace(rank=rank, host=f"node{1 - rank // 8}", gpu=rank % 8) for rank in range(16))
    placement = placement_of(replace(running, placement=swapped), request)
    assert placement is not None
    assert placement.nodes == (1, 0)
    split = tuple(
        replace(place, host=f"node{place.rank // 4 % 2}", gpu=place.rank // 8 * 4 + place.rank % 4) for place in swapped
    )
    with pytest.raises(InputError, match="not consecutive"):
        placement_of(replace(running, placement=split), request)


def test_from_the_outside(tmp_path: Path) -> None:
    run = CliRunner().invoke
    saved, again = tmp_path / "run.json", tmp_path / "again.json"
    words = [
        "search",
        "llama32_1b",
        "dgx-a100:2",
        "--global-batch",
        "32",
        "--seq",
        "2048",
        "--fix",
        "pp=2",
        "--fix",
        "tp=8",
    ]
    assert run(app, [*words, "--fix", "vpp=1", "--json", str(saved)]).exit_code == 0
    for node, clock in ((0, 1400), (1, 1000)):
        rows = "".join(f"{gpu}, NVIDIA A100-SXM4-80GB, {clock} MHz, 60, 99 %\n" for gpu in range(8))
        head = "index, name, clocks.current.sm [MHz], temperature.gpu, utilization.gpu [%]\n"
        (tmp_path / f"n{node}.csv").write_text(head + rows, encoding="utf-8")
    series = [word for node in (0, 1) for word in ("--telemetry", str(tmp_path / f"n{node}.csv"))]
    result = run(app, ["search", "--from", str(saved), *series, "--json", str(again)])
    assert result.exit_code == 0, result.output
    assert "pays after" in result.output
    assert "at 1,000 MHz of the slowest, as measured" in " ".join(result.output.split())
    told = json.loads(again.read_text(encoding="utf-8"))
    assert told["rebalance"]["gain"] > 0.0
    assert told["request"]["telemetry"] == series[1::2]
    result = run(app, [*words, *series, "--json", str(again)])
    assert result.exit_code == 0, result.output
    assert "Slow devices" in result.output
    assert json.loads(again.read_text(encoding="utf-8"))["stragglers"]["left_out"] == [1]
    assert run(app, ["explain", str(again)]).exit_code == 0


@pytest.mark.parametrize(
    "words", [["search"], ["search", "llama32_1b"], ["search", "--from", "r.json", "llama32_1b"]], ids=str
)
def test_words_that_are_missing_or_too_many(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "plan: " in result.output


def test_a_slow_node_is_planned_with_chunks_that_can_give_layers_away() -> None:
    """One layer a chunk has the least bubble and cannot follow a slow node; one chunk a stage, split by hand, can."""
    slow = tuple(DeviceState(node=1, gpu=gpu, speed=0.6) for gpu in range(8))
    pins = ("tp=8", "pp=4", "micro_batch=1", "zero=1")
    request = asked("llama2_7b", cluster="dgx-a100:4", global_batch=64, seq=4096, fixed=pins, top=3)
    request = with_devices(request, *slow)
    report = plan(request)
    by_hand = estimate(request, layout_of(request, ExplicitLayout(tp=8, pp=4, layers_per_stage="9,5,9,9")))
    best = report.layouts[0]
    assert best.cost.step.total_s <= by_hand.cost.step.total_s * (1.0 + 1e-4)
    assert [ranked.layout.gpus for ranked in report.layouts].count(32) == 1  # one for a grid


def test_what_the_time_limit_left_unsearched_is_not_said_to_be_infeasible() -> None:
    request = with_devices(piped(tp=8, pp=1), DeviceState(node=1, gpu=0, speed=0.25))
    report = plan(request)
    late = replace(report, search=replace(report.search, wall_s=request.time_limit_s))
    found = stragglers(late)
    assert found is not None
    assert (found.cut, found.without_s) == (True, 0.0)
    told = StringIO()
    Console(width=200, file=told).print(straggler_section(found))
    text = told.getvalue()
    assert "nothing fits" not in text
    assert "not searched without node 1" in text

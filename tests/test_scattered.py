"""Ranks on any node, for launchers that can: prices where ranks really are, the best map, the files that start it."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import asked, cut
from typer.testing import CliRunner

from costmodels.layout import Layout, RankOrder
from costmodels.network_loads import on_graph
from costmodels.placement import UNUSED, Placement, ranks_of_stages
from costmodels.power.heat import heat_problem, settle
from costmodels.price import price_layout_with_heat
from costmodels.pricing import Pricing
from hardware.cluster import DeviceState, FabricTier
from hardware.errors import InputError
from hardware.tiers import RankBlocks
from planner.choices import Launcher
from planner.cli import app
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import PlacedLayout, place_layout, place_with_splits, placement_of, rank_places, scatter
from planner.placement import scattered as scattered_module
from planner.placement.scattered import scattered_orders
from planner.planning import as_ranked, plan, pricings_of
from planner.report.launch import launch_of
from planner.report.target import Target
from planner.request import Objective, PlanRequest
from planner.search.effort import Until
from planner.search.objective import objective_value, objective_values

pytestmark = pytest.mark.deep

SLOW = 0.6


def machines(nodes: int, gpus: int, slow: tuple[tuple[int, int], ...] = (), adapters: int = 0) -> PlanRequest:
    """A request to nodes of some H100, in two rows of an air stream, an adapter for each; srun starts the ranks."""
    request = asked("llama32_1b", cluster=f"dgx-h100:{nodes}", global_batch=24, thermal=True, launcher="srun", top=1)
    (island,) = request.cluster.islands
    half = gpus // 2
    rows = (tuple(range(half)), tuple(range(half, 2 * half)))
    node = replace(
        island.node,
        gpus=gpus,
        cooling=replace(island.node.cooling, rows=rows, resistance_c_per_w=0.075, coupling_c_per_w=0.02),
        scale_up=replace(island.node.scale_up, domain_gpus=gpus),
        nics=replace(island.node.nics, count=adapters or gpus),
        host=replace(island.node.host, numa=(), pcie_switches=()),
    )
    devices = tuple(DeviceState(node=node, gpu=gpu, speed=SLOW) for node, gpu in slow)
    fabric = (FabricTier(name="leaf", nodes=0),)
    small = replace(island, node=node, devices=devices, fabric=fabric)
    return replace(request, cluster=replace(request.cluster, islands=(small,), electricity_per_kwh=0.1))


def laid(request: PlanRequest, tp: int, dp: int, layers: int) -> Layout:
    """All accelerators under tp and dp, the rest stages of ``layers`` layers on the whole."""
    pp = request.cluster.gpus // (tp * dp)
    split = ",".join(str(layers // pp + (stage < layers % pp)) for stage in range(pp))
    return layout_of(request, ExplicitLayout(tp=tp, dp=dp, layers_per_stage=split, recompute="full"))


def brute_force(request: PlanRequest, layout: Layout) -> float:
    """Least value of all maps of ranks to accelerators, each priced where its ranks are."""
    (pricing,) = pricings_of(request)
    per_node, island = pricing.island.node.gpus, pricing.island
    stages = ranks_of_stages(layout, 0)
    by_nodes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for slots in permutations(range(layout.gpus)):
        nodes = [slot // per_node for slot in slots]
        seen = list(dict.fromkeys(nodes))
        by_nodes.setdefault(tuple(seen.index(node) for node in nodes), []).append(slots)
    best = float("inf")
    for maps in by_nodes.values():  # below one leaf, which node and which of its accelerators is nothing to the network
        blocks = RankBlocks(ranks=1, places=maps[0])
        problem = heat_problem([on_graph(replace(pricing, blocks=blocks), layout)], layout)
        held = np.full((len(maps), island.gpus), UNUSED, dtype=np.int64)
        np.put_along_axis(held, np.array(maps), np.broadcast_to(stages, (len(maps), layout.gpus)), axis=1)
        distinct = np.unique(held, axis=0).reshape(-1, island.nodes, per_node)
        found = settle(problem, (distinct,))
        best = min(best, float(objective_values(request, layout, found.step_s, found.mean_w()).min()))
    return best


@given(
    shape=st.sampled_from([(2, 2, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1), (3, 2, 1, 2), (3, 2, 1, 3), (3, 2, 2, 1)]),
    slow=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=3),
    inlets=st.lists(st.sampled_from([26.0, 34.0, 42.0]), min_size=3, max_size=3),
    adapters=st.sampled_from([1, 2]),
    objective=st.sampled_from([Objective.TIME, Objective.ENERGY]),
)
@settings(max_examples=8, deadline=None)
def test_the_best_map_of_ranks_is_that_of_brute_force(
    shape: tuple[int, int, int, int],
    slow: set[tuple[int, int]],
    inlets: list[float],
    adapters: int,
    objective: Objective,
) -> None:
    nodes, gpus, tp, dp = shape
    request = machines(nodes, gpus, tuple(sorted(one for one in slow if one[0] < nodes)), adapters)
    (island,) = request.cluster.islands
    island = replace(island, inlets_c=tuple(inlets[:nodes]))
    request = replace(request, objective=objective, cluster=replace(request.cluster, islands=(island,)))
    request = replace(request, model=cut(request.model, 7))
    layout, pricings = laid(request, tp, dp, 7), pricings_of(request)
    usual = place_layout(request, pricings, layout)
    found = scatter(request, pricings, usual)
    value = objective_value(request, layout, found.cost)
    assert value <= objective_value(request, layout, usual.cost)
    assert value == pytest.approx(brute_force(request, layout), rel=3e-4)
    assert found.in_order is not None
    assert found.in_order == usual.in_order
    assert found.placement is not None
    again = price_layout_with_heat(pricings, layout, found.placement)
    assert again.step.total_s == pytest.approx(found.cost.step.total_s, rel=1e-9)


def best_of(request: PlanRequest, layout: Layout, order: RankOrder = RankOrder.DP_INSIDE) -> PlacedLayout:
    pricings, layout = pricings_of(request), replace(layout, rank_order=order)
    return scatter(request, pricings, place_layout(request, pricings, layout))


def two_slow_stages() -> tuple[PlanRequest, Layout]:
    """Four nodes of two units, one node slow and half of two others: two stages could hold all that is slow."""
    big = asked("llama3_8b", cluster="dgx-h100:4", global_batch=24, seq=8192)
    request = machines(4, 4, tuple(product([2], range(4))) + tuple(product([0, 1], range(2))))
    request = replace(request, model=cut(big.model, 16), job=big.job)
    return request, layout_of(request, ExplicitLayout(tp=2, dp=2, layers_per_stage="3,5,3,5", recompute="full"))


def test_slow_accelerators_of_several_nodes_gather_in_the_stages_that_suit_them() -> None:
    """In no order of ranks that torchrun starts are they in fewer than three stages."""
    request, layout = two_slow_stages()
    together = replace(request, launcher=Launcher.TORCHRUN)
    usual = min(best_of(together, layout, order).cost.step.total_s for order in RankOrder)
    found = best_of(request, layout)
    assert found.placement is not None
    assert found.placement.order
    assert found.cost.step.total_s < 0.95 * usual
    slow = {(device.node, device.gpu) for device in request.cluster.islands[0].devices}
    assert {slot.stage for slot in found.cost.power.slots if (slot.node, slot.gpu) in slow} == {0, 2}


def test_exchanges_find_what_all_orders_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine single ranks have 280 orders: too many to look at all, few enough to do so here."""
    big = asked("llama3_8b", cluster="dgx-h100:4", global_batch=24, seq=8192)
    request = replace(machines(3, 3, ((0, 0), (0, 1), (1, 1))), model=cut(big.model, 9), job=big.job)
    layout, (pricing,) = laid(request, 1, 3, 9), pricings_of(request)
    assert len(scattered_orders(layout, pricing)) < 128
    found = best_of(request, layout).cost.step.total_s
    monkeypatch.setattr(scattered_module, "MOST_EXCHANGES", 0)
    assert best_of(request, layout).cost.step.total_s > 1.02 * found
    monkeypatch.setattr(scattered_module, "MOST_ORDERS", 280)
    assert len(scattered_orders(layout, pricing)) == 279
    assert found == pytest.approx(best_of(request, layout).cost.step.total_s, rel=3e-4)


def test_exchanges_gain_where_turns_share_slow_accelerators_out(monkeypatch: pytest.MonkeyPatch) -> None:
    big = asked("llama3_8b", cluster="dgx-h100:4", global_batch=24, seq=8192)
    request = replace(machines(4, 4, ((0, 1), (2, 0), (2, 1), (3, 0))), model=cut(big.model, 16), job=big.job)
    found = best_of(request, laid(request, 1, 4, 16)).cost.step.total_s
    monkeypatch.setattr(scattered_module, "MOST_EXCHANGES", 0)
    assert found < 0.98 * best_of(request, laid(request, 1, 4, 16)).cost.step.total_s


def few_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at stages in turns and at exchanges of units, some of each."""
    monkeypatch.setattr(scattered_module, "MOST_ORDERS", 8)
    monkeypatch.setattr(scattered_module, "MOST_EXCHANGES", 32)


def too_late(place: Callable[..., PlacedLayout]) -> Callable[..., PlacedLayout]:
    """A way to place a layout whose time is over when it begins."""

    def late(
        request: PlanRequest, pricings: Sequence[Pricing], layout: Layout, _: Until, *rest: object
    ) -> PlacedLayout:
        return place(request, pricings, layout, Until(work_s=0.0), *rest)

    return late


def test_an_order_that_there_is_no_time_to_place_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends after the glances: what is left is the layout as it was placed, with the price of that."""
    few_orders(monkeypatch)
    request, layout = two_slow_stages()
    pricings = pricings_of(request)
    usual = place_layout(request, pricings, layout)
    for place in (place_layout, place_with_splits):
        monkeypatch.setattr(scattered_module, place.__name__, too_late(place))
    found = scatter(request, pricings, usual, split=True)
    assert (found.cost, found.placement) == (usual.cost, usual.placement)


def test_torchrun_keeps_consecutive_ranks_together() -> None:
    request, layout = two_slow_stages()
    found = best_of(replace(request, launcher=Launcher.TORCHRUN), layout)
    assert found.placement is not None
    assert not found.placement.order


def test_orders_are_the_ways_to_share_ranks_out() -> None:
    """Against all permutations: which ranks share a node, whichever node that is."""
    request = machines(3, 2)
    request = replace(request, model=cut(request.model, 6))
    layout, (pricing,) = laid(request, 1, 1, 6), pricings_of(request)
    found = [frozenset(zip(order[::2], order[1::2], strict=True)) for order in scattered_orders(layout, pricing)]
    wanted = {
        frozenset(tuple(sorted(order[place : place + 2])) for place in (0, 2, 4)) for order in permutations(range(6))
    }
    assert len(found) == len(set(found))
    assert {*found, frozenset([(0, 1), (2, 3), (4, 5)])} == wanted


def test_large_layouts_move_in_units_and_take_turns() -> None:
    request = asked("llama3_70b", cluster="dgx-h100:8", global_batch=64, seq=4096, thermal=True, launcher="mpirun")
    layout, (pricing,) = layout_of(request, ExplicitLayout(tp=4, pp=4)), pricings_of(request)
    orders = scattered_orders(layout, pricing)
    assert 0 < len(orders) <= 128
    for order in orders:
        assert sorted(order) == list(range(64))
        assert all(order[first] % 4 == 0 and order[first + 3] == order[first] + 3 for first in range(0, 64, 4))
    alone = layout_of(request, ExplicitLayout(tp=8, pp=2))
    assert all(len({rank // 8 for rank in order[:8]}) == 1 for order in scattered_orders(alone, pricing))


def test_a_search_scatters_only_where_its_launcher_can(monkeypatch: pytest.MonkeyPatch) -> None:
    few_orders(monkeypatch)
    request, _ = two_slow_stages()
    pins = {"tp": 2, "pp": 4, "cp": 1, "vpp": 1, "micro_batch": 1, "zero": 1}
    request = replace(request, fixed=tuple(pins.items()), recompute="full")
    together, apart = (
        plan(replace(request, launcher=launcher)).layouts[0] for launcher in (Launcher.TORCHRUN, Launcher.MPIRUN)
    )
    assert apart.cost.step.total_s < 0.99 * together.cost.step.total_s
    with pytest.raises(InputError, match="not consecutive"):
        placement_of(apart.placement, request.cluster, apart.layout, "plan")
    if together.placement:
        placement_of(together.placement, request.cluster, together.layout, "plan")


def scattered(launcher: str) -> tuple[PlanRequest, Layout, Placement]:
    request = replace(machines(2, 4), launcher=Launcher(launcher))
    layout = laid(request, 2, 2, 16)
    order = (0, 1, 6, 7, 2, 3, 4, 5)
    return request, layout, Placement(nodes=(1, 0), gpus=((0, 1, 2, 3), (3, 1, 2, 0)), order=order)


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_the_files_start_every_rank_on_its_accelerator(launcher: str, tmp_path: Path) -> None:
    """What each rank's script exports, and what the launcher is told, by programs that print what they get."""
    request, layout, placement = scattered(launcher)
    ranked = as_ranked(
        request, pricings_of(request), PlacedLayout(layout=layout, cost=price(request, layout), placement=placement)
    )
    places = rank_places(placement, request.cluster)
    assert ranked.placement == places
    files = launch_of(request, ranked, Target(format="megatron", hosts=("north", "south"))).files
    named = {"node0": "north", "node1": "south"}
    assert files["hosts.txt"].split() == [named[place.host] for place in places]
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")
    fake = tmp_path / "python"
    fake.write_text("#!/bin/bash\necho " + " ".join(f"${name}" for name in names) + ' "$1"\n', encoding="utf-8")
    fake.chmod(0o755)
    number = {"srun": "SLURM_PROCID", "mpirun": "OMPI_COMM_WORLD_RANK"}[launcher]
    around = {"PATH": os.environ["PATH"], "PYTHON": str(fake), "TRAIN_SCRIPT": "train.py"}
    for place in places:
        told = subprocess.run(
            [str(tmp_path / "rank.sh")],
            env={**around, number: str(place.rank)},
            text=True,
            capture_output=True,
            check=True,
        ).stdout.split()
        assert told[0] == str(place.rank)
        assert told[2:5] == ["8", "4", named[places[0].host]]
        assert told[6] == "train.py"
        assert int(told[5].split(",")[int(told[1])]) == place.gpu
    starter = tmp_path / launcher
    starter.write_text('#!/bin/bash\necho "$SLURM_HOSTFILE" "$@"\n', encoding="utf-8")
    starter.chmod(0o755)
    told = subprocess.run(
        [str(tmp_path / "launch.sh")],
        env={**around, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    wanted = {
        "srun": f"{tmp_path}/hosts.txt --nodes 2 --ntasks 8 --distribution arbitrary",
        "mpirun": f"-np 8 --hostfile {tmp_path}/hosts.txt --map-by seq",
    }[launcher]
    assert wanted in told
    assert told.split()[-1] == f"{tmp_path}/rank.sh"


def price(request: PlanRequest, layout: Layout):  # type: ignore[no-untyped-def]
    return price_layout_with_heat(pricings_of(request), layout)


def test_torchrun_refuses_what_it_cannot_start() -> None:
    request, layout, placement = scattered("srun")
    places = rank_places(placement, request.cluster)
    assert placement_of(places, request.cluster, layout, "file", Launcher.SRUN) == placement
    with pytest.raises(InputError, match=r"not consecutive.*srun, mpirun"):
        placement_of(places, request.cluster, layout, "file")
    found = PlacedLayout(layout=layout, cost=price(request, layout), placement=placement)
    ranked = as_ranked(request, pricings_of(request), found)
    with pytest.raises(InputError, match="torchrun keeps them on one"):
        launch_of(request, ranked, Target(format="megatron", launcher="torchrun"))
    moved = tuple(replace(one, host="node0", gpu=one.rank) if one.rank in {4, 5} else one for one in places)
    with pytest.raises(InputError, match=r"has no|allowed: GPUs 0 to 3"):
        placement_of(moved, request.cluster, layout, "file", Launcher.SRUN)


def test_ranks_that_do_not_fill_their_nodes_are_refused() -> None:
    request = machines(4, 2)
    request = replace(request, model=cut(request.model, 4))
    layout = layout_of(request, ExplicitLayout(tp=1, dp=1, pp=4, recompute="full"))
    places = rank_places(Placement(nodes=(0, 1), gpus=((0, 1), (0, 1)), order=(0, 2, 1, 3)), request.cluster)
    assert placement_of(places, request.cluster, layout, "file", Launcher.SRUN).order == (0, 2, 1, 3)
    apart = (*places[:3], replace(places[3], host="node2"))
    with pytest.raises(InputError, match="do not fill their nodes"):
        placement_of(apart, request.cluster, layout, "file", Launcher.SRUN)


def test_from_the_outside(tmp_path: Path) -> None:
    """A map of the user's own is priced, saved, read back, explained and exported."""
    run = CliRunner().invoke
    given_map = [
        {"rank": rank, "host": f"node{slot // 8}", "gpu": slot % 8}
        for rank, slot in enumerate([*range(4), *range(8, 12), *range(4, 8), *range(12, 16)])
    ]
    file, saved, folder = tmp_path / "map.json", tmp_path / "run.json", tmp_path / "launch"
    file.write_text(json.dumps({"placement": given_map}), encoding="utf-8")
    words = ["estimate", "llama32_1b", "dgx-h100:2", "--global-batch", "32", "--seq", "2048", "--tp", "4", "--pp", "2"]
    words += ["--thermal", "--placement", str(file), "--json", str(saved)]
    refused = run(app, words)
    assert refused.exit_code == 2
    assert "--launcher" in refused.output
    done = run(app, [*words, "--launcher", "srun"])
    assert done.exit_code == 0, done.output
    told = json.loads(saved.read_text(encoding="utf-8"))
    assert told["request"]["launcher"] == "srun"
    assert told["layout"]["placement"] == given_map
    for command in ("explain", "traffic"):
        done = run(app, [command, str(saved)])
        assert done.exit_code == 0, done.output
    done = run(app, ["export", str(saved), "--to", "megatron", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / "hosts.txt").read_text(encoding="utf-8").split() == [place["host"] for place in given_map]
    again = run(app, ["export", str(saved), "--to", "megatron", "--launcher", "torchrun"])
    assert again.exit_code == 2

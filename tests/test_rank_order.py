"""Both orders of ranks that Megatron-LM knows: groups by enumeration, rules, the planner's choice, launches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_grids import shared_coordinates
from rich.console import Console
from small_requests import with_one_adapter

from costmodels.layout import Layout, RankOrder, Strategy
from costmodels.mesh import Axis, group_of, place
from costmodels.placement import ranks_of_stages
from costmodels.price import price_layout
from costmodels.pricing import layout_tiers, rank_blocks
from costmodels.table import table_of
from hardware import catalog
from hardware.cluster import FabricTier, Island
from hardware.cluster_file import parse_cluster
from hardware.errors import InputError
from hardware.tiers import island_tiers, tiers_of_blocks
from planner import Question, plan, request_of
from planner.advice.neighbours import neighbours
from planner.export.hosts import NodeRow, rank_rows
from planner.launches.check import check_launch
from planner.launches.porting import carry, recipe_of_launch
from planner.layouts.build import uniform_layout
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import rank_orders
from planner.plan_report import PlanReport, SearchProof
from planner.planning import estimate, pricings_of
from planner.question import LaunchQuestion
from planner.report.check_text import check_to_json, grids_of_proposal
from planner.report.json_reader import read_report
from planner.report.json_report import report_to_json
from planner.report.json_text import json_text
from planner.report.layout_text import facts
from planner.request import Framework, PlanRequest
from planner.rules import check_layout

pytestmark = pytest.mark.deep

AXES = (Axis.TP, Axis.CP, Axis.DP, Axis.DP_CP, Axis.ETP, Axis.EP, Axis.ETP_EP, Axis.EDP, Axis.PP)


def asked(cluster: str = "h200-thermal-study", framework: str = "megatron", model: str = "gpt3_175b") -> PlanRequest:
    return request_of(Question(model=model, cluster=cluster, global_batch=128, seq=2048, framework=framework))


def adapters_only(request: PlanRequest) -> PlanRequest:
    """The same job with low-rank adapters: a hundredth of the gradients to reduce, all of the activations to send."""
    return replace(request, job=replace(request.job, trained_share=0.01))


def turned(request: PlanRequest, **degrees: int) -> Layout:
    return replace(layout_of(request, ExplicitLayout(**degrees)), rank_order=RankOrder.PP_INSIDE)  # type: ignore[arg-type]


def grid_layout(strategy: Strategy, pp: int) -> Layout:
    chunks = [[1]] * pp
    return replace(uniform_layout(strategy, chunks, micro_batch=1, num_microbatches=pp), rank_order=RankOrder.PP_INSIDE)


def groups_by_definition(strategy: Strategy, pp: int, axis: Axis) -> list[list[int]]:
    """Groups of the order tp-cp-ep-pp-dp (experts etp-ep-pp-edp): ranks that differ on the axis alone."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, key in enumerate(shared_coordinates(strategy, pp, axis, order=RankOrder.PP_INSIDE)):
        found.setdefault(key, []).append(rank)
    return list(found.values())


GRIDS = st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3]), st.integers(1, 6), st.booleans())


@pytest.mark.parametrize("axis", AXES)
@settings(max_examples=40, deadline=None)
@given(grid=GRIDS, pp=st.integers(1, 6), node=st.sampled_from([2, 4, 6, 8]), leaf=st.sampled_from([1, 2, 3]))
def test_groups_lie_where_their_ranks_are(
    axis: Axis, grid: tuple[int, int, int, bool], pp: int, node: int, leaf: int
) -> None:
    tp, cp, dp, whole_experts = grid
    etp, ep = (1, tp * cp) if whole_experts else (tp, cp)
    strategy = Strategy(tp=tp, cp=cp, dp=dp, etp=etp, ep=ep)
    ranks = strategy.gpus * pp
    base = catalog.cluster("dgx-h100:2").islands[0]
    small = replace(base.node, gpus=node, scale_up=replace(base.node.scale_up, domain_gpus=node))
    fabric = (FabricTier(name="leaf", nodes=leaf), FabricTier(name="core", nodes=0))
    island = Island(node=small, nodes=-(-ranks // node), fabric=fabric)
    tiers = layout_tiers(island, grid_layout(strategy, pp))
    placed = place(group_of(axis, table_of([strategy], pp=[pp], micro_batch=[1])), tiers)
    groups = groups_by_definition(strategy, pp, axis)
    for number, tier in enumerate(island_tiers(island)):
        held = [np.unique([rank // tier.gpus for rank in group], return_counts=True)[1] for group in groups]
        assert placed.members[0, number] == min(int(counts.min()) for counts in held)
        assert placed.domains[0, number] == max(len(counts) for counts in held)


def test_nodes_and_ranks_in_other_orders_at_once() -> None:
    """Blocks of ranks change places, then nodes: the domain of each rank is that of the node that holds it."""
    island = replace(catalog.cluster("dgx-h100:4").islands[0], fabric=(FabricTier(name="leaf", nodes=2),))
    layout = grid_layout(Strategy(tp=2, dp=4), 4)
    blocks = rank_blocks(layout)
    assert blocks is not None
    nodes, leaf_of_node = (2, 0, 3, 1), (0, 0, 1, 1)
    inner, leaf = tiers_of_blocks(island_tiers(island, nodes), blocks)[:2]
    for number in range(16):  # blocks of tp as groups count them: replicas fastest
        stage, replica = divmod(number, 4)
        rank = 2 * (stage + 4 * replica)
        assert inner.domain_of[number * 2 // inner.block] == rank // 8
        assert leaf.domain_of[number * 2 // leaf.block] == leaf_of_node[nodes[rank // 8]]


def test_exported_ranks_and_stages_follow_the_order() -> None:
    layout = grid_layout(Strategy(tp=2, cp=2, dp=2, etp=1, ep=4), 3)
    nodes = tuple(
        NodeRow(node_rank=n, host=f"n{n}", ranks=tuple(range(8 * n, 8 * n + 8)), gpus=tuple(range(8))) for n in range(3)
    )
    rows = rank_rows(layout, nodes)
    for row in rows:
        assert row.rank == row.tp + 2 * (row.cp + 2 * (row.pp + 3 * row.dp))
        assert row.rank == row.etp + row.ep + 4 * (row.pp + 3 * row.edp)
    assert ranks_of_stages(layout, 0).tolist() == [row.pp for row in rows]


@pytest.mark.parametrize(
    ("framework", "model", "degrees", "legal"),
    [
        ("megatron", "gpt3_175b", {"tp": 2, "pp": 4}, True),
        ("bridge", "gpt3_175b", {"tp": 2, "pp": 4}, True),
        ("nemo", "gpt3_175b", {"tp": 2, "pp": 4}, True),
        ("megatron", "gpt3_175b", {"tp": 2, "pp": 4, "cp": 2}, False),  # experts' replicas would be dp x cp
        ("megatron", "mixtral_8x22b", {"tp": 2, "pp": 4, "ep": 2, "etp": 1}, True),
        ("megatron", "mixtral_8x22b", {"tp": 2, "pp": 4, "ep": 4, "etp": 1}, False),
        ("megatron", "mixtral_8x22b", {"tp": 2, "pp": 4, "cp": 2, "ep": 4, "etp": 1}, True),
        ("torchtitan", "llama3_8b", {"tp": 2, "pp": 4}, False),
        ("deepspeed", "gpt3_175b", {"tp": 2, "pp": 4}, False),
        ("galvatron", "gpt3_175b", {"tp": 2, "pp": 4}, False),
        ("none", "gpt3_175b", {"tp": 2, "pp": 4}, True),
    ],
)
def test_where_the_order_is_legal(framework: str, model: str, degrees: dict[str, int], legal: bool) -> None:
    request = asked(framework=framework, model=model)
    usual = layout_of(request, ExplicitLayout(**degrees))  # type: ignore[arg-type]
    other = replace(usual, rank_order=RankOrder.PP_INSIDE)
    rules = [
        {found.rule for found in check_layout(one, request.model, request.job, framework=Framework(framework))}
        for one in (usual, other)
    ]
    assert (rules[1] == rules[0]) is legal
    if not legal:
        assert rules[1] - rules[0] <= {"megatron-rank-order", "rank-order-fixed"}
    offered = rank_orders(request, pricings_of(request)[0], usual)
    assert offered == ((other,) if legal and not rules[0] else ())


@pytest.mark.parametrize("degrees", [{"tp": 4, "pp": 1}, {"tp": 4, "pp": 8}, {"tp": 2, "pp": 4, "zero": 3}])
def test_the_order_is_not_offered_where_it_says_nothing(degrees: dict[str, int]) -> None:
    request = asked()
    usual = layout_of(request, ExplicitLayout(**degrees))  # type: ignore[arg-type]
    assert rank_orders(request, pricings_of(request)[0], usual) == ()


@pytest.mark.parametrize(("degrees", "offered"), [({"tp": 8, "pp": 2}, 1), ({"tp": 4, "pp": 2}, 0)])
def test_partial_meshes_are_turned_where_blocks_of_ranks_fill_them(degrees: dict[str, int], offered: int) -> None:
    """Whole nodes change places then: the same dies of a node meet, and tensor parallelism costs what it did."""
    request = asked("frontier:4", model="llama3_8b")
    usual = layout_of(request, ExplicitLayout(**degrees))  # type: ignore[arg-type]
    pricings = pricings_of(request)
    assert pricings[0].tiers[0].links
    others = rank_orders(request, pricings[0], usual)
    assert len(others) == offered
    for one in others:
        parts = [dict(price_layout(pricings, layout).step.details) for layout in (usual, one)]
        assert parts[1]["tp"] == pytest.approx(parts[0]["tp"])


def test_inside_one_fast_domain_the_order_costs_nothing() -> None:
    request = asked("dgx-h100:1", model="llama3_8b")
    usual = layout_of(request, ExplicitLayout(tp=2, pp=2))
    pricings = pricings_of(request)
    other = replace(usual, rank_order=RankOrder.PP_INSIDE)
    assert price_layout(pricings, other) == price_layout(pricings, usual)
    assert rank_orders(request, pricings[0], usual) == ()


def test_pipelines_inside_nodes_win_where_little_is_reduced() -> None:
    """Whole gradients want replicas side by side; adapters' gradients are small, and sends over one NIC cost more."""
    request = with_one_adapter(asked())
    for job, faster in ((request, RankOrder.DP_INSIDE), (adapters_only(request), RankOrder.PP_INSIDE)):
        prices = {
            order: price_layout(pricings_of(job), replace(turned(job, tp=2, pp=4), rank_order=order)).step.total_s
            for order in RankOrder
        }
        assert min(prices, key=lambda order: prices[order]) is faster
        assert max(prices.values()) > 1.1 * min(prices.values())


def test_the_planner_takes_the_faster_order_and_never_one_that_loses() -> None:
    few = replace(asked(), fixed=(("cp", 1), ("micro_batch", 1)), top=4)
    request = adapters_only(few)
    report = plan(request)
    pricings = pricings_of(request)
    orders = {ranked.layout.rank_order for ranked in report.layouts}
    assert orders == set(RankOrder)
    for ranked in report.layouts:
        usual = replace(ranked.layout, rank_order=RankOrder.DP_INSIDE)
        others = [price_layout(pricings, one).step.total_s for one in rank_orders(request, pricings[0], usual)]
        best_s = min([price_layout(pricings, usual).step.total_s, *others])
        assert ranked.cost.step.total_s == pytest.approx(best_s, rel=1.1e-3)
    whole = plan(few)
    assert {ranked.layout.rank_order for ranked in whole.layouts} == {RankOrder.DP_INSIDE}


LAUNCH = [
    *("--num-layers", "44", "--hidden-size", "8192", "--ffn-hidden-size", "32768", "--num-attention-heads", "64"),
    *("--seq-length", "2048", "--max-position-embeddings", "2048", "--vocab-size", "51200", "--bf16"),
    *("--tensor-model-parallel-size", "4", "--pipeline-model-parallel-size", "4", "--micro-batch-size", "1"),
    *("--global-batch-size", "128", "--use-distributed-optimizer", "--sequence-parallel"),
]


def test_layers_are_split_for_the_order_that_is_taken() -> None:
    """Usually gradients of the embedding are exchanged between nodes, and the first stage gets fewer layers for it."""
    pins = ("tp=1", "pp=3", "dp=2", "vpp=1", "micro_batch=1", "zero=1")
    asked = Question(model="llama32_1b", cluster="dgx-h100:2", global_batch=24, seq=4096, recompute="none", fixed=pins)
    slow = "[[island]]\nnode = 'dgx-h100'\nnodes = 2\ngpus = 3\nnics = {count = 8, gbit_per_s = 25}"
    request = replace(request_of(asked), cluster=parse_cluster(slow, "slow.toml", "slow"))
    best = plan(request).layouts[0]
    splits = [f"{first},{second},{16 - first - second}" for first in range(5, 9) for second in range(6, 9)]
    prices = [
        estimate(request, turned(request, pp=3, dp=2, layers_per_stage=split)).cost.step.total_s  # type: ignore[arg-type]
        for split in splits
        if not split.endswith("0")
    ]
    assert best.layout.rank_order is RankOrder.PP_INSIDE
    assert best.cost.step.total_s <= min(prices) * (1 + 1e-9)


def checked(*words: str, cluster: str = "h200-thermal-study") -> LaunchQuestion:
    return LaunchQuestion(framework="megatron", arguments=(*LAUNCH, *words), world=32, cluster=cluster)


def test_a_launch_is_priced_in_its_order_and_told_of_the_faster_one() -> None:
    usual, other = check_launch(checked()), check_launch(checked("--use-tp-pp-dp-mapping"))
    assert usual.ranked is not None
    assert other.ranked is not None
    assert other.judged.proposal is not None
    assert other.ranked.layout == replace(usual.ranked.layout, rank_order=RankOrder.PP_INSIDE)
    assert other.ranked.cost.step.total_s > 1.5 * usual.ranked.cost.step.total_s  # replicas over one NIC a node
    assert [*check_to_json(other)["grids"].values()][-1] == "tp-cp-ep-pp-dp"
    assert grids_of_proposal(other.judged.proposal).endswith("; ranks in the order tp-cp-ep-pp-dp")
    assert any("ranks in the order tp-cp-ep-dp-pp" in one.changes for one in other.faster)


def test_a_recipe_is_carried_in_its_order() -> None:
    recipe = recipe_of_launch(checked("--use-tp-pp-dp-mapping"))
    twice = request_of(Question(model="gpt3_175b", cluster="dgx-h200:8", global_batch=128, seq=2048))
    carried, _ = carry(recipe, replace(twice, model=recipe.model))
    assert carried is not None
    assert (carried.layout.first.dp, carried.layout.rank_order) == (4, RankOrder.PP_INSIDE)


def test_changes_of_a_layout_keep_its_order() -> None:
    request = asked()
    layout = turned(request, tp=2, pp=4)
    cost = price_layout(pricings_of(request), layout)
    found = neighbours(request, layout, cost)
    back = [one for one in found if one.layout.rank_order is RankOrder.DP_INSIDE]
    assert [one.change for one in back] == ["ranks in the order tp-cp-ep-dp-pp"]
    assert len(found) > 10


def test_reports_say_the_order_and_read_it_back(tmp_path: Path) -> None:
    request = adapters_only(asked())
    proof = SearchProof(enumerated=1, pruned=(), solved=1, lower_bound_s=0.0, gap=0.0, proven_optimal=False, wall_s=0.0)
    ranked = estimate(asked(), turned(request, tp=2, pp=4))
    report = PlanReport(request=asked(), layouts=(ranked,), search=proof)
    path = tmp_path / "plan.json"
    path.write_text(json_text(report_to_json(report)))
    read = read_report(path)
    assert isinstance(read, PlanReport)
    assert read.layouts == report.layouts
    assert report_to_json(report)["layouts"][0]["rank_order"] == "tp-cp-ep-pp-dp"
    console = Console(width=200, record=True)
    console.print(facts("Best", report.layouts[0], report.request))
    assert "ranks in the order tp-cp-ep-pp-dp" in console.export_text()


def test_an_explicit_layout_is_priced_in_the_order_that_is_asked():
    request = request_of(Question(model="llama3_8b", cluster="dgx-h100:4", global_batch=64, seq=4096))
    found = {}
    for order in (None, *RankOrder):
        layout = layout_of(request, ExplicitLayout(tp=2, pp=4, rank_order=order))
        assert layout.rank_order is (order or RankOrder.DP_INSIDE)
        found[order] = estimate(request, layout).cost.step.total_s
    assert found[None] == found[RankOrder.DP_INSIDE] != found[RankOrder.PP_INSIDE]
    with pytest.raises(InputError, match="--rank-order 'tp-dp' is not known; allowed: tp-cp-ep-dp-pp, tp-cp-ep-pp-dp"):
        layout_of(request, ExplicitLayout(tp=2, pp=4, rank_order="tp-dp"))

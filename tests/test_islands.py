"""Several islands: bounds below every layout over them, whole stages on one island each, faster islands work more."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from random import Random

import numpy as np
import pytest
from every_layout import least_over_islands
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick_and_deep import quick_and_deep
from small_requests import asked, compositions, cut, fits, legal, sized

from costmodels.layout import Layout, Strategy
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from hardware.catalog import cluster
from hardware.cluster import Cluster, Island
from planner import plan
from planner.layouts.build import schedule_of, uniform_stages
from planner.layouts.expand import expand
from planner.layouts.grids import enumerate_grids
from planner.layouts.recompute_options import recompute_options
from planner.plan_report import PlanReport
from planner.planning import pricings_of
from planner.request import PlanRequest
from planner.rules import legal_mask
from planner.search.effort import UNENDING, Until
from planner.search.island_frontier import PRICED_FIRST, IslandFrontier, Shape
from planner.search.island_rows import IslandRows
from planner.search.islands import IslandSearch

QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
EXACT = 1.0 + 1e-9


def island_of(name: str, gpus: int, memory_gib: float | None = None) -> Island:
    return sized(cluster(f"{name}:1"), gpus, memory_gib).islands[0]


def mixed(*islands: Island) -> Cluster:
    return Cluster(
        name="mixed",
        islands=islands,
        inter_island_bytes_per_s=50e9,
        inter_island_latency_s=5e-6,
        storage_bytes_per_s=0.0,
    )


@cache
def request_on(
    fast: str = "dgx-h100", slow: str = "dgx-a100", gpus: tuple[int, ...] = (4, 4), model: str = "llama3_8b"
) -> PlanRequest:
    islands = tuple(island_of(name, count, 60.0) for name, count in zip((fast, slow), gpus, strict=True))
    base = asked(model, "dgx-a100:1", global_batch=32, seq=2048, recompute="none")
    layers = (9,) if model == "llama3_8b" else (1, 7)
    return replace(base, model=cut(base.model, *layers), cluster=mixed(*islands), top=5)


@cache
def rows_on(stage_gpus: int, model: str = "llama3_8b") -> tuple[PlanRequest, tuple[Pricing, ...], IslandRows]:
    request = request_on(model=model)
    pricings = pricings_of(request)
    stages = tuple(pricing.island.gpus // stage_gpus for pricing in pricings)
    every = enumerate_grids(request, stage_gpus * sum(stages))
    ok = legal_mask(request.framework, every.table, request.model, request.job).ok & (every.table.pp == sum(stages))
    options = recompute_options("auto", request.framework, pricings[0])
    grids = every.take(np.flatnonzero(ok))
    block = expand(grids, options, np.ones((len(grids), len(options)), dtype=np.bool_)).grids
    return request, pricings, IslandRows(pricings=pricings, grids=block, stages=stages)


def layout_of(rows: IslandRows, row: int, order: tuple[int, ...], chunks: tuple[tuple[int, ...], ...]) -> Layout:
    hosts = rows.hosts(order)
    return Layout(
        stages=uniform_stages(rows.strategy(row), chunks, islands=hosts),
        micro_batch=int(rows.grids.table.micro_batch[row]),
        num_microbatches=int(rows.grids.num_microbatches[row]),
        schedule=schedule_of(len(hosts), len(chunks[0])),
    )


@pytest.mark.parametrize("model", quick_and_deep(["llama3_8b"], ["deepseek_v2_lite"]))
@pytest.mark.parametrize("stage_gpus", [1, 2, 4])
def test_no_layout_over_the_islands_is_faster_than_its_bound(stage_gpus, model):
    request, pricings, rows = rows_on(stage_gpus, model)
    bounds = {order: rows.bound_s(order) for order in permutations(range(2))}
    splits = list(compositions(request.model.layers, rows.pp))

    @QUICK
    @given(st.data())
    def check(data):
        row = data.draw(st.integers(0, len(rows.grids) - 1))
        order = data.draw(st.sampled_from(list(bounds)))
        split = data.draw(st.sampled_from(splits))
        layout = layout_of(rows, row, order, tuple((count,) for count in split))
        cost = price_layout(pricings, layout)
        if fits(cost):
            assert bounds[order][row] <= cost.step.total_s * EXACT
            assert rows.holds(order)[row]

    check()


def frontier_on(model: str, every_nth: int) -> IslandFrontier:
    """Strategies of some grids of each shape over the islands of the small request."""
    request = request_on(model=model)
    pricings = pricings_of(request)
    shapes = []
    for stage_gpus in (1, 2, 4):
        stages = tuple(pricing.island.gpus // stage_gpus for pricing in pricings)
        every = enumerate_grids(request, stage_gpus * sum(stages))
        ok = legal_mask(request.framework, every.table, request.model, request.job).ok & (every.table.pp == sum(stages))
        shapes.append(Shape(grids=every.take(np.flatnonzero(ok)[::every_nth]), stages=stages))
    options = recompute_options("auto", request.framework, pricings[0])
    return IslandFrontier(pricings, options, tuple(permutations(range(2))), shapes)


@pytest.mark.deep
@pytest.mark.parametrize(("model", "every_nth"), [("llama3_8b", 1), ("deepseek_v2_lite", 40)])
def test_the_frontier_hands_out_every_strategy_that_may_fit_and_none_before_its_cheap_bound(model, every_nth):
    """All of them with the bounds of all rows at once; what is left is never below the bound of what is left."""
    frontier = frontier_on(model, every_nth)
    handed, left_s = [], 0.0
    while (entry := frontier.take(float("inf"), UNENDING)) is not None:
        assert entry.bound_s >= left_s * (1.0 - 1e-12)
        left_s = frontier.least_s
        handed.append(entry.bound_s)
    assert frontier.left == 0
    rows = [
        IslandRows(
            pricings=frontier.pricings,
            grids=expand(one.grids, frontier.options, np.ones((len(one.grids), len(frontier.options)), bool)).grids,
            stages=one.stages,
        )
        for one in frontier.shapes
    ]
    every = np.concatenate([one.bound_s(order) for one in rows for order in frontier.orders])
    np.testing.assert_allclose(sorted(handed), np.sort(every[np.isfinite(every)]), rtol=1e-9)


def test_the_frontier_looks_no_further_than_the_limit_and_the_time():
    frontier = frontier_on("llama3_8b", 1)
    first = frontier.take(float("inf"), UNENDING)
    assert frontier.take(0.5 * frontier.least_s, UNENDING) is None
    assert frontier.take(float("inf"), Until(work_s=0.0)) is None
    assert frontier.take(float("inf"), UNENDING).bound_s >= min(first.bound_s, frontier.least_s)


def test_a_first_layout_is_there_after_few_strategies(monkeypatch):
    """Counted: the split of one is solved when the first block has been priced, not when all have."""
    priced = []
    whole = IslandRows.bound_s
    monkeypatch.setattr(IslandRows, "bound_s", lambda rows, order: priced.append(len(rows.grids)) or whole(rows, order))
    frontier = frontier_on("deepseek_v2_lite", 1)
    assert frontier.take(float("inf"), UNENDING) is not None
    assert sum(priced) <= 2 * PRICED_FIRST < 0.1 * frontier.left


def test_islands_that_alone_hold_nothing_have_a_layout_however_short_the_time():
    request = request_on()
    small = replace(request, cluster=mixed(island_of("dgx-h100", 4, 24.0), island_of("dgx-a100", 4, 24.0)))
    search = IslandSearch(small, pricings_of(small), [], Until(work_s=0.0))
    (found,) = search.run()
    assert fits(found.cost)
    assert search.unreached > 0
    whole = IslandSearch(small, pricings_of(small), [], UNENDING)
    assert 0.0 < search.open_bound_s <= whole.run()[0].cost.step.total_s <= found.cost.step.total_s * EXACT


def test_steps_of_rows_are_those_of_explicit_layouts():
    _, pricings, rows = rows_on(2)
    for row, split in ((0, (3, 2, 2, 2)), (5, (1, 4, 3, 1))):
        for order in permutations(range(2)):
            chunks = tuple((count,) for count in split)
            cost = price_layout(pricings, layout_of(rows, row, order, chunks))
            assert rows.step_s(row, rows.hosts(order), chunks) == pytest.approx(cost.step.total_s, rel=1e-9)


@cache
def planned() -> PlanReport:
    return plan(replace(request_on(), fixed=(("cp", 1),)))


def test_stages_lie_on_one_island_each_and_fit_it():
    report = planned()
    assert any(len({stage.island for stage in ranked.layout.stages}) == 2 for ranked in report.layouts)
    for ranked in report.layouts:
        layout = ranked.layout
        assert layout.layers == report.request.model.layers
        assert legal(report.request, layout)
        assert fits(ranked.cost)
        for number, island in enumerate(report.request.cluster.islands):
            used = sum(stage.gpus for stage in layout.stages if stage.island == number)
            assert used <= island.gpus
        assert ranked.cost == price_layout(pricings_of(report.request), layout)


def test_the_faster_island_gets_more_layers():
    for ranked in planned().layouts:
        layers = [sum(stage.layers for stage in ranked.layout.stages if stage.island == number) for number in range(2)]
        if all(layers):
            assert layers[0] > layers[1]


def test_two_islands_beat_the_faster_one_alone():
    together = planned()
    alone = plan(replace(together.request, cluster=mixed(together.request.cluster.islands[0])))
    assert together.layouts[0].cost.step.total_s < alone.layouts[0].cost.step.total_s


def test_the_bound_over_islands_is_below_the_best():
    search = planned().search
    assert 0.0 < search.lower_bound_s <= planned().layouts[0].cost.step.total_s * EXACT
    assert 0.0 <= search.gap < 1.0


def test_equal_islands_share_equally():
    request = replace(request_on("dgx-a100", "dgx-a100"), fixed=(("cp", 1), ("micro_batch", 1)))
    found = [ranked for ranked in plan(request).layouts if len({s.island for s in ranked.layout.stages}) == 2]
    assert found
    first = found[0].layout
    layers = [sum(stage.layers for stage in first.stages if stage.island == number) for number in range(2)]
    assert abs(layers[0] - layers[1]) <= 3


def test_islands_of_unlike_sizes_hold_unlike_numbers_of_stages():
    request = request_on(gpus=(6, 4))
    search = IslandSearch(request, pricings_of(request), [], UNENDING)
    found = search.run()
    assert found
    assert search.open_bound_s <= found[0].cost.step.total_s * EXACT
    counts = {tuple(sum(stage.island == number for stage in one.layout.stages) for number in range(2)) for one in found}
    assert all(first > second for first, second in counts)


def test_alike_islands_are_searched_once():
    request = replace(request_on(), fixed=(("pp", 1),))
    fast, slow = request.cluster.islands
    named = replace(slow, hosts=tuple(f"n{number}" for number in range(slow.nodes)))
    three = replace(request, cluster=mixed(fast, slow, named))
    found, usual = plan(three), plan(request)
    assert found.search.solved == usual.search.solved
    assert [one.cost.step.total_s for one in found.layouts] == [one.cost.step.total_s for one in usual.layouts]
    assert {stage.island for one in found.layouts for stage in one.layout.stages} <= {0, 1}


def test_groups_of_the_ranks_of_a_stage_are_tried_where_its_islands_have_slow_networks():
    islands = [replace(island_of(name, 2, 60.0), nodes=4) for name in ("dgx-h100", "dgx-a100")]
    slow = [replace(one, node=replace(one.node, nics=replace(one.node.nics, count=1))) for one in islands]
    base = replace(request_on(), cluster=mixed(*slow), fixed=(("pp", 2), ("tp", 1), ("cp", 1), ("zero", 2)), top=2)
    found = IslandSearch(base, pricings_of(base), [], UNENDING).run()
    assert found[0].layout.first.shard_group in {2, 4}
    assert fits(found[0].cost)
    whole = replace(base, fixed=(*base.fixed, ("shard_group", 8)))
    plain = IslandSearch(whole, pricings_of(whole), [], UNENDING).run()
    assert {one.layout.first.shard_group for one in plain} == {0}
    assert found[0].cost.step.total_s < plain[0].cost.step.total_s


def test_a_pinned_pipeline_holds_over_islands():
    request = replace(request_on(), fixed=(("pp", 4),))
    found = IslandSearch(request, pricings_of(request), [], UNENDING).run()
    assert found
    assert {one.layout.pp for one in found} == {4}
    assert IslandSearch(replace(request, fixed=(("pp", 3),)), pricings_of(request), [], UNENDING).run() == []


def test_known_layouts_end_the_search_over_islands():
    """When enough faster layouts are known, nothing over the islands is solved."""
    request = request_on()
    search = IslandSearch(request, pricings_of(request), [1e-6] * request.top, UNENDING)
    assert search.run() == []
    assert search.solved == 0
    assert search.pruned > 0


@pytest.mark.deep
def test_virtual_stages_help_over_islands_too():
    request = replace(request_on(), job=replace(request_on().job, global_batch=16), fixed=(("pp", 2),))
    free = IslandSearch(request, pricings_of(request), [], UNENDING).run()
    plain = IslandSearch(replace(request, fixed=(("pp", 2), ("vpp", 1))), pricings_of(request), [], UNENDING).run()
    assert {one.layout.vpp for one in plain} == {1}
    assert free[0].cost.step.total_s <= plain[0].cost.step.total_s * EXACT


def test_a_shared_embedding_is_added_up_on_the_islands_of_its_ends_alone() -> None:
    request = asked("qwen3_0.6b", "dgx-a100:1", global_batch=8, seq=2048)
    fast, slow = island_of("dgx-h100", 2), island_of("dgx-a100", 2)
    layout = Layout(
        stages=uniform_stages(Strategy(), ((14,), (14,)), islands=(0, 0)),
        micro_batch=1,
        num_microbatches=8,
        schedule=schedule_of(2, 1),
    )
    both, alone = (
        price_layout(pricings_of(replace(request, cluster=mixed(*islands))), layout)
        for islands in ((fast, slow), (fast,))
    )
    assert request.model.tied_embeddings
    assert both.step.total_s == alone.step.total_s


def test_many_islands_are_ordered_without_listing_every_order():
    islands = tuple(island_of("dgx-h100" if number % 2 else "dgx-a100", 8, 60.0) for number in range(25))
    request = replace(request_on(), cluster=mixed(*islands), fixed=(("tp", 8), ("pp", 1)), time_limit_s=1.0)
    report = plan(request)
    assert report.layouts[0].layout.gpus == 8


CUTS = {
    "llama32_1b": ((3,), (4,)),
    "llama3_8b": ((3,), (5,)),
    "mixtral_8x7b": ((3,),),
    "deepseek_v2_lite": ((1, 2), (1, 4)),
}


def random_islands(seed: int) -> PlanRequest:
    """A cut model on two or three islands of one to four GPUs, each with memory of its own."""
    rng = Random(seed)
    model = rng.choice(tuple(CUTS))
    count = rng.choice((2, 2, 3))
    islands = [
        island_of(
            rng.choice(("dgx-a100", "dgx-h100", "rtx-4090-8")),
            rng.choice((1, 2, 2, 3, 4) if count == 2 else (1, 1, 2)),
            rng.choice((12.0, 20.0, 40.0, 80.0)),
        )
        for _ in range(count)
    ]
    base = asked(
        model,
        "dgx-a100:1",
        global_batch=rng.choice((4, 6, 8)),
        seq=2048,
        recompute=rng.choice(("none", "full")),
        framework=rng.choice(("megatron", "megatron", "torchtitan")),
        fixed=rng.choice((("cp=1",), ("micro_batch=1",), ("micro_batch=2",))),
    )
    between = replace(mixed(*islands), inter_island_bytes_per_s=rng.choice((5e9, 50e9)))
    return replace(base, model=cut(base.model, *rng.choice(CUTS[model])), cluster=between, top=1)


@cache
def more_positions_than_layers() -> PlanRequest:
    """Three layers of two kinds for two chunks on each of two islands: an end of the model has to be alone."""
    islands = (island_of("dgx-h100", 2, 20.0), island_of("dgx-a100", 2, 20.0))
    base = asked("deepseek_v2_lite", recompute="full", fixed=("micro_batch=1", "cp=1", "tp=1"))
    return replace(base, model=cut(base.model, 1, 2), cluster=mixed(*islands), top=1)


@pytest.mark.parametrize(
    "request_of",
    quick_and_deep(
        [partial(random_islands, 1), more_positions_than_layers],
        [partial(random_islands, seed) for seed in (3, 4, 16, 19, 24, 26)],
    ),
)
def test_the_best_over_unlike_islands_is_the_best_there_is(request_of: Callable[[], PlanRequest]) -> None:
    """Chunks without layers at the ends of the model included."""
    request = request_of()
    best_s = least_over_islands(request)
    report = plan(request)
    safe = [ranked.cost.step.total_s for ranked in report.layouts if fits(ranked.cost)]
    assert bool(safe) == (best_s < float("inf"))
    assert not safe or safe[0] <= best_s * EXACT
    assert not safe or report.search.lower_bound_s <= best_s * EXACT

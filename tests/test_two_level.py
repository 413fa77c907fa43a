"""A strategy for every layer: as good as enumeration where that is possible, no worse than one for all, repriced."""

from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise, product

import pytest
from small_requests import fits, legal, pricing_of, small, with_one_adapter

from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.positions import same_activations
from costmodels.price import price_layout
from planner import plan
from planner.bounds.mixed_layers import mixed_bound_s
from planner.planning import shape_of
from planner.request import Framework, PlanRequest
from planner.search.effort import UNENDING, Until
from planner.search.stage_ilp import StageShape
from planner.search.two_level import MixedPlan, candidate_shape, mixed_plans, stage_strategies
from planner.search.uniform import UniformSearch

pytestmark = pytest.mark.deep

NO_WORSE = 1.03
"""The solver sees the step as a sum of parts: what a schedule hides of exchanges, and memory that parts do not explain,
show only in the price."""

CASES = {
    "dense": lambda: small(
        "llama3_8b", layers=(6,), gpus=4, memory_gib=30.0, global_batch=8, seq=4096, framework="none"
    ),
    "short of memory": lambda: small(
        "llama3_8b", layers=(6,), gpus=8, memory_gib=11.0, global_batch=16, seq=4096, framework="none"
    ),
    "galvatron": lambda: small(
        "llama3_8b", layers=(6,), gpus=4, memory_gib=27.0, global_batch=8, seq=4096, framework="galvatron"
    ),
    "experts": lambda: small(
        "deepseek_v2_lite", cluster="dgx-h100:1", layers=(1, 3), gpus=4, memory_gib=28.0, global_batch=8, seq=4096,
        framework="none", recompute="none",
    ),
}  # fmt: skip


@cache
def solved(name: str) -> tuple[PlanRequest, UniformSearch, dict[StageShape, MixedPlan]]:
    """The uniform search of a case, and the mixed plan of each of its pipeline shapes with one chunk a stage."""
    request = CASES[name]()
    search = UniformSearch(request, pricing_of(request))
    search.run()
    plain = sorted((c for c in search.tally.variants.values() if c.vpp == 1), key=lambda c: c.order)
    shapes = dict(candidate_shape(candidate) for candidate in reversed(plain))
    wanted = sorted(shapes.items(), key=lambda pair: pair[1])[:5]
    found = {}
    for shape, step_s in wanted:
        for one in mixed_plans(request, search.pricing, [(shape, step_s)], UNENDING):
            found[shape] = one
    return request, search, found


@pytest.mark.parametrize("name", CASES)
def test_a_strategy_for_every_layer_is_no_worse_than_one_for_all(name):
    _, search, found = solved(name)
    assert found
    for shape, one in found.items():
        same = [c.total_s for c in search.tally.variants.values() if c.vpp == 1 and candidate_shape(c)[0] == shape]
        assert one.cost.step.total_s <= NO_WORSE * min(same)


@pytest.mark.parametrize("name", CASES)
def test_assignments_are_whole_legal_and_repriced(name):
    request, search, found = solved(name)
    for shape, one in found.items():
        layout = one.layout
        assert layout.layers == request.model.layers
        assert legal(request, layout)
        assert fits(one.cost)
        assert one.cost == price_layout([search.pricing], layout)
        for stage in layout.stages:
            assert sum(run.count for run in stage.strategies) == stage.layers
            for run in stage.strategies:
                assert run.strategy.gpus == shape.gpus
                assert shape.samples % run.strategy.dp == 0
        assert shape_of_layout(layout) == shape


def shape_of_layout(layout: Layout) -> StageShape:
    return StageShape(
        gpus=layout.first.gpus,
        samples=layout.micro_batch * layout.first.dp,
        pp=layout.pp,
        num_microbatches=layout.num_microbatches,
    )


@pytest.mark.parametrize("name", CASES)
def test_no_mixed_layout_beats_the_bound_for_mixed_layouts(name):
    request, search, found = solved(name)
    bound_s = mixed_bound_s(request, search.pricing)
    assert 0.0 < bound_s <= min(one.cost.step.total_s for one in found.values()) * (1.0 + 1e-9)
    assert bound_s <= min(candidate.total_s for candidate in search.tally.best.values()) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("memory_gib", "recompute"), [(40.0, "none"), (24.0, "auto"), (20.0, "auto")], ids=["roomy", "tight", "tighter"]
)
def test_one_stage_equals_enumeration(memory_gib, recompute):
    """Three layers on one stage: all assignments of all strategies, priced one by one."""
    request = small(
        "llama3_8b", layers=(3,), gpus=2, memory_gib=memory_gib, global_batch=4, seq=4096, framework="galvatron",
        recompute=recompute,
    )  # fmt: skip
    pricing = pricing_of(request)
    shape = StageShape(gpus=2, samples=2, pp=1, num_microbatches=2)
    strategies = stage_strategies(request, pricing, shape)
    assert len(strategies) > 3
    best_s, count = float("inf"), 0
    for chosen in product(strategies, repeat=3):
        if recompute == "auto" and any(not same_activations(a, b) for a, b in pairwise(chosen)):
            continue  # fewer to enumerate: the solver may choose them all the same
        count += 1
        cost = price_layout([pricing], one_stage(chosen, shape))
        best_s = min(best_s, cost.step.total_s if fits(cost) else best_s)
    (found,) = mixed_plans(request, pricing, [(shape, float("inf"))], UNENDING) or (None,)
    assert count > 20
    if best_s == float("inf"):
        assert found is None
    else:
        assert found.cost.step.total_s <= NO_WORSE * best_s


def one_stage(chosen: tuple[Strategy, ...], shape: StageShape) -> Layout:
    runs = tuple(StrategyRun(strategy=strategy, count=len(list(run))) for strategy, run in groupby(chosen))
    return Layout(
        stages=(Stage(layers_per_chunk=(len(chosen),), strategies=runs),),
        micro_batch=shape.samples // chosen[0].dp,
        num_microbatches=shape.num_microbatches,
        schedule=Schedule.ONE_F_ONE_B,
    )


def test_pinned_degrees_hold_for_every_layer():
    request = replace(CASES["short of memory"](), fixed=(("tp", 2),))
    report = plan(request)
    assert report.layouts
    for ranked in report.layouts:
        assert {run.strategy.tp for stage in ranked.layout.stages for run in stage.strategies} == {2}


def test_the_price_of_a_frameworks_constraints_is_never_negative():
    report = plan(replace(CASES["short of memory"](), framework=Framework.MEGATRON, top=1))
    assert 0.0 < report.unconstrained_s <= report.layouts[0].cost.step.total_s


def test_layers_of_their_own_strategies_share_one_group_of_ranks():
    request = with_one_adapter(small(layers=(3,), gpus=2, nodes=2, memory_gib=12.0, framework="none"))
    pricing = pricing_of(request)
    shape = StageShape(gpus=4, samples=4, pp=1, num_microbatches=2)
    whole, grouped = (stage_strategies(request, pricing, replace(shape, shard_group=group)) for group in (0, 2))
    assert {strategy.shard_group for strategy in whole} == {0}
    assert {strategy.shard_group for strategy in grouped if strategy.zero and strategy.dp * strategy.cp == 4} == {2}
    assert {strategy.shard_group for strategy in grouped if strategy.dp * strategy.cp < 4} == {0}
    bound_s = mixed_bound_s(request, pricing)
    for group in (0, 2):
        wanted = [(replace(shape, shard_group=group), float("inf"))]
        (one,) = mixed_plans(request, pricing, wanted, UNENDING)
        groups = {run.strategy.shard_group for stage in one.layout.stages for run in stage.strategies}
        assert groups <= {0, group}
        assert legal(request, one.layout)
        assert bound_s <= one.cost.step.total_s


def test_a_deadline_that_has_passed_solves_nothing():
    request, search, found = solved("dense")
    shape = next(iter(found))
    assert mixed_plans(request, search.pricing, [(shape, 1.0)], Until(work_s=0.0)) == ()


def test_shapes_of_candidates_and_of_ranked_layouts_agree():
    request, search, _ = solved("dense")
    report = plan(replace(request, framework=Framework.MEGATRON))
    for ranked in report.layouts:
        shape, step_s = shape_of(ranked)
        assert step_s == ranked.cost.step.total_s
        assert shape == shape_of_layout(ranked.layout)
    assert search.tally.best

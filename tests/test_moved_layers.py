"""Splits near a given one, against every move priced one by one, and searches that only they make as fast."""

from dataclasses import dataclass, field, replace

import pytest
from quick_and_deep import quick_and_deep
from small_requests import fits, pricing_of, small

from costmodels.layout import NO_RECOMPUTE, Granularity, Layout, Recompute, Strategy
from costmodels.price import price_layout
from planner import plan
from planner.layouts.build import uniform_layout
from planner.request import Objective, PlanRequest
from planner.search.effort import UNENDING, from_now
from planner.search.moved_layers import moved_layers

EXACT = 1.0 + 1e-9
Split = tuple[tuple[int, ...], ...]


def request_for_two_stages() -> PlanRequest:
    return small("llama3_8b", layers=(7,), gpus=4, memory_gib=80.0, global_batch=4, seq=2048, recompute="none")


def two_stages(chunks: Split) -> Layout:
    return uniform_layout(Strategy(dp=2, zero=1), chunks, micro_batch=1, num_microbatches=2)


def with_one_moved(chunks: Split) -> list[Split]:
    """Every split of two stages with one layer elsewhere; the first and the last chunk may be empty."""
    flat = [chunks[stage][chunk] for chunk in range(2) for stage in range(2)]
    found = []
    for taken in range(4):
        for given in set(range(4)) - {taken}:
            moved = [count - (place == taken) + (place == given) for place, count in enumerate(flat)]
            if min(moved[1:3]) > 0 and min(moved) >= 0:
                found.append(((moved[0], moved[2]), (moved[1], moved[3])))
    return found


def test_no_single_move_is_faster_than_what_is_found():
    request = request_for_two_stages()
    pricing = pricing_of(request)

    def step_s(chunks: Split) -> float:
        return price_layout([pricing], two_stages(chunks)).step.total_s

    given: Split = ((1, 1), (1, 4))
    found = moved_layers(request, pricing, two_stages(given), step_s(given), UNENDING)
    assert found is not None
    assert sum(map(sum, found)) == 7
    assert step_s(found) < 0.9 * step_s(given)
    assert all(step_s(found) <= step_s(other) * EXACT for other in with_one_moved(found))
    assert moved_layers(request, pricing, two_stages(found), step_s(found), UNENDING) is None


def test_layers_stay_where_memory_has_no_room_for_them():
    request = request_for_two_stages()
    pricing = pricing_of(request)
    given: Split = ((1, 1), (1, 4))
    cost = price_layout([pricing], two_stages(given))
    free = moved_layers(request, pricing, two_stages(given), cost.step.total_s, UNENDING)
    assert free is not None
    first = price_layout([pricing], two_stages(free)).memory[0].total_bytes
    part = pricing.island.node.accelerator
    smaller = replace(part, memory_bytes=0.98 * first / 0.96, allocatable_bytes=0.0)
    island = replace(pricing.island, node=replace(pricing.island.node, accelerator=smaller))
    short = replace(pricing, island=island)
    kept = moved_layers(request, short, two_stages(given), cost.step.total_s, UNENDING)
    assert kept != free
    assert kept is None or fits(price_layout([short], two_stages(kept)))


def test_no_layer_is_moved_where_none_may_be():
    request = request_for_two_stages()
    pricing, late = pricing_of(request), from_now(0.0)
    layout = two_stages(((1, 1), (1, 4)))
    assert moved_layers(request, pricing, layout, 1.0, late) is None
    deepspeed = small("llama3_8b", layers=(7,), gpus=4, global_batch=4, framework="deepspeed")
    assert moved_layers(deepspeed, pricing, layout, 1.0, UNENDING) is None
    assert moved_layers(request, pricing, uniform_layout(Strategy(dp=4), ((7,),), micro_batch=1, num_microbatches=1),
                        1.0, UNENDING) is None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Known:
    """A request, and a layout that it must be at least as fast as."""

    words: dict[str, object]
    strategy: Strategy
    chunks: Split
    micro_batch: int = 1
    num_microbatches: int = 2
    fixed: tuple[str, ...] = field(default=("tp=1",))

    def request(self) -> PlanRequest:
        return small(**{"recompute": "auto", "fixed": self.fixed, "top": 1, **self.words})  # type: ignore[arg-type]

    def layout(self) -> Layout:
        return uniform_layout(
            self.strategy, self.chunks, micro_batch=self.micro_batch, num_microbatches=self.num_microbatches
        )


MLP = Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))
KNOWN = {
    "a split that fits, of a grid that has none evenly": Known(
        words={
            "model": "llama3_8b", "layers": (8,), "cluster": "dgx-a100:1", "gpus": 4, "nodes": 4, "memory_gib": 9.0,
            "global_batch": 20, "seq": 8192,
        },
        strategy=Strategy(cp=4, zero=2, recompute=MLP),
        chunks=((0, 1), (1, 2), (1, 2), (1, 0)),
        num_microbatches=20,
    ),
    "two micro-batches": Known(
        words={
            "model": "llama3_8b", "layers": (13,), "cluster": "dgx-h800:1", "gpus": 8, "nodes": 2, "memory_gib": 40.0,
            "global_batch": 24, "seq": 2048,
        },
        strategy=Strategy(cp=2, dp=4, zero=1),
        chunks=((3, 5), (5, 0)),
        micro_batch=3,
    ),
    "another micro-batch than that of the best even split": Known(
        words={
            "model": "mixtral_8x7b", "layers": (4,), "cluster": "dgx-b200:1", "gpus": 4, "nodes": 3, "memory_gib": 40.0,
            "global_batch": 64, "seq": 4096, "recompute": "none", "framework": "nemo",
        },
        strategy=Strategy(dp=4, ep=4, zero=1),
        chunks=((2,), (1,), (1,)),
        micro_batch=2,
        num_microbatches=8,
        fixed=("cp=1",),
    ),
    "19 layers on 12 positions": Known(
        words={
            "model": "llama3_8b", "layers": (19,), "cluster": "dgx-h800:1", "gpus": 8, "nodes": 4, "memory_gib": 20.0,
            "global_batch": 48, "seq": 8192, "framework": "nemo",
        },
        strategy=Strategy(cp=4, dp=2, zero=1),
        chunks=((0, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 0)),
        num_microbatches=24,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_and_deep(tuple(KNOWN)[:1], KNOWN))
def test_a_search_is_as_fast_as_a_split_that_another_way_has_found(name):
    known = KNOWN[name]
    request = known.request()
    cost = price_layout([pricing_of(request)], known.layout())
    assert fits(cost)
    best = plan(request).layouts[0].cost
    assert fits(best)
    assert best.step.total_s <= cost.step.total_s * EXACT


def test_the_bound_holds_for_the_fastest_where_the_ranking_is_by_energy():
    request = small("llama32_1b", layers=(4,), gpus=4, memory_gib=40.0, global_batch=16, seq=4096, top=1)
    request = replace(request, recompute="none")
    thrifty = plan(replace(request, objective=Objective.ENERGY))
    fastest_s = plan(request).layouts[0].cost.step.total_s
    assert thrifty.layouts[0].cost.step.total_s > 1.01 * fastest_s
    assert thrifty.search.lower_bound_s <= fastest_s * EXACT
    assert all(run.strategy.recompute == NO_RECOMPUTE for run in thrifty.layouts[0].layout.stages[0].strategies)

"""Layouts whose user named no islands: the same as a search finds, and none on islands with too few GPUs."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from quick_and_deep import quick_and_deep
from small_requests import asked, sized

from costmodels.layout import Layout
from costmodels.price import price_layout
from hardware.catalog import cluster
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner import estimate, plan
from planner.layouts.build import on_island
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import over_islands, pricings_of
from planner.request import PlanRequest


def request_on(*islands: tuple[str, int]) -> PlanRequest:
    machine = Cluster(
        name="mixed",
        islands=tuple(sized(cluster(f"{name}:1"), gpus).islands[0] for name, gpus in islands),
        inter_island_bytes_per_s=50e9,
        inter_island_latency_s=5e-6,
        storage_bytes_per_s=0.0,
    )
    return replace(asked("llama32_1b", global_batch=24), cluster=machine, top=3)


def explicit(request: PlanRequest, **degrees: int) -> Layout:
    return layout_of(request, ExplicitLayout(**degrees))


@pytest.mark.parametrize(
    "islands", quick_and_deep([(("dgx-a100", 2), ("dgx-h100", 4))], [(("dgx-h100", 4), ("dgx-a100", 4))])
)
def test_an_estimate_of_what_a_search_found_is_what_the_search_said(islands):
    request = replace(request_on(*islands), fixed=(("cp", 1), ("micro_batch", 1)), recompute="none")
    for ranked in plan(request).layouts:
        bare = on_island(ranked.layout, 0)
        found = estimate(request, over_islands(request, bare))
        assert found.cost.step.total_s == ranked.cost.step.total_s
        assert found.layout == ranked.layout


def test_no_legal_way_over_the_islands_is_faster():
    """Brute force over every island of every stage that holds its stages."""
    request = request_on(("dgx-a100", 4), ("dgx-h100", 4), ("dgx-h200", 2))
    pricings = pricings_of(request)
    layout = explicit(request, pp=3, dp=2)
    ways = [way for way in product(range(3), repeat=3) if all(way.count(i) <= (2, 2, 1)[i] for i in range(3))]
    grouped = [way for way in ways if sum(a != b for a, b in pairwise(way)) == len(set(way)) - 1]

    def time_s(way: tuple[int, ...]) -> float:
        stages = tuple(replace(stage, island=i) for stage, i in zip(layout.stages, way, strict=True))
        return price_layout(pricings, replace(layout, stages=stages)).step.total_s

    chosen = price_layout(pricings, over_islands(request, layout)).step.total_s
    assert chosen == min(map(time_s, grouped))


def test_stages_that_no_island_holds_are_refused():
    request = request_on(("dgx-h100", 4), ("dgx-a100", 2))
    with pytest.raises(InputError, match="1 stages of 6 GPUs do not fit on islands of 4, 2 GPUs"):
        over_islands(request, explicit(request, pp=1, dp=6))
    assert {stage.island for stage in over_islands(request, explicit(request, pp=3, dp=2)).stages} == {0, 1}


def test_islands_that_are_named_stay():
    request = request_on(("dgx-h100", 4), ("dgx-a100", 4))
    named = on_island(explicit(request, pp=2, dp=2), 1)
    assert over_islands(request, named) == named
    assert {stage.island for stage in over_islands(request, on_island(named, 0)).stages} == {0}

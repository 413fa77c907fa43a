"""The time limit: every phase of a search ends with it and leaves what it has; its end is counted: runs are alike."""

import io
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from quick_and_deep import quick_and_deep
from rich.console import Console
from small_requests import asked, pricing_of, small

from costmodels.price import price_layout, price_layout_with_heat
from hardware.cluster import Cluster, DeviceState, FabricTier
from planner.devices.stragglers import stragglers
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.placement import PlacedLayout, place_all, place_layout, place_nodes, place_with_splits
from planner.plan_report import PlanReport
from planner.planning import PLACED_SHARE, plan, pricings_of
from planner.report.json_reader import report_from_json
from planner.report.json_report import report_to_json
from planner.report.search_text import print_search, proof_words
from planner.request import PlanRequest
from planner.search.effort import UNENDING, Until, from_now
from planner.search.every_island import ISLANDS_CUT
from planner.search.islands import IslandSearch
from planner.search.refine import best_of_grid
from planner.search.spans import RANKS_CUT, SPLITS_CUT, cut_in_words, spans
from planner.search.uniform import Aim, UniformSearch

pytestmark = pytest.mark.deep

SLOW = (DeviceState(node=1, gpu=0, speed=0.6), DeviceState(node=0, gpu=5, speed=0.9))


def with_slow_devices(**words: object) -> PlanRequest:
    """Two nodes with two slow accelerators, small enough to be searched in a second."""
    request = asked(
        "llama2_7b",
        cluster="dgx-a100:2",
        global_batch=32,
        seq=4096,
        fixed=("cp=1", "tp=2", "micro_batch=1"),
        top=3,
        **words,
    )
    island = replace(request.cluster.islands[0], devices=SLOW)
    return replace(request, cluster=replace(request.cluster, islands=(island,)))


@cache
def planned_without_haste() -> PlanReport:
    return plan(with_slow_devices(time_limit_s=600.0))


class LateAfter(Until):
    """An end that comes after so many looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        object.__setattr__(self, "_late", (number >= looks for number in count()))

    def late(self, ahead_s: float = 0.0) -> bool:
        return super().late(ahead_s) or next(self._late)


def test_spans_follow_each_other_and_leave_time_for_placement() -> None:
    until = from_now(10.0)
    until.spend(4.0)
    for placed, share in ((False, 0.9), (True, 0.6)):
        parts = spans(until, 3, placed=placed, mixed=False)
        ends = [4.0 + 6.0 * share * number / 3.0 for number in (1, 2, 3)]
        assert [part.end.work_s for part in parts] == pytest.approx(ends)
        assert all(part.grids.work_s < part.splits.work_s == part.end.work_s for part in parts)
        assert all(begun < part.grids.work_s for begun, part in zip([4.0, *ends], parts, strict=False))
    (mixed,) = spans(until, 1, placed=False, mixed=True)
    assert mixed.grids.work_s < mixed.splits.work_s < mixed.end.work_s


def test_an_end_comes_with_the_work_and_with_the_clock_as_a_last_resort() -> None:
    assert not UNENDING.late()
    until = from_now(100.0)
    until.spend(99.0)
    assert not until.late()
    assert until.late(1.0)
    assert (until.left_s, until.part(0.5).work_s) == (1.0, 99.5)
    until.spend(1.0)
    assert until.late()
    assert not until.meter.by_clock
    hurried = from_now(100.0, clock_s=-1.0)
    assert hurried.near(0.0)
    assert not hurried.meter.by_clock  # nothing was left out for it
    assert hurried.late()
    assert hurried.meter.by_clock
    assert UNENDING.part(0.5) == UNENDING


@pytest.mark.parametrize("limit_s", quick_and_deep([0.3], [1.0]))
def test_a_search_that_its_work_ends_finds_the_same_however_slow_the_machine(
    monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    """Equal requests give equal reports, late rows of the ranking and counts of what was cut included."""
    request = replace(asked("llama3_8b", cluster="dgx-h100:2", global_batch=64, seq=8192), time_limit_s=limit_s)
    request = replace(request, top=30)
    clock = count()
    reports = []
    for speed in (1e-9, 1e-7):  # seconds that pass between two looks at the clock
        monkeypatch.setattr("planner.search.effort.time.monotonic", lambda speed=speed: speed * next(clock))
        reports.append(plan(request))
    slow, fast = (replace(report, search=replace(report.search, wall_s=0.0)) for report in reports)
    assert slow == fast
    assert not slow.search.by_clock
    assert any("time limit" in reason for reason, _ in slow.search.pruned) or slow.search.cut
    assert slow.search.work_s >= PLACED_SHARE * limit_s  # what is left then is for slow devices, of which it has none


def test_a_clock_that_ends_when_all_is_done_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes with the last block: nothing that is left is within the limit."""
    request = small("llama32_1b", layers=(4,), gpus=2, framework="deepspeed", recompute="none")
    search = UniformSearch(request, pricing_of(request), Aim(wanted=1), from_now(60.0))
    priced = UniformSearch._evaluate

    def late_then(self: UniformSearch, *block: object) -> None:
        priced(self, *block)
        search.until = replace(search.until, clock_s=-1.0)

    monkeypatch.setattr(UniformSearch, "_evaluate", late_then)
    assert search.run().best
    assert search.until.near(0.0)
    assert not search.until.meter.by_clock


def test_a_search_that_the_clock_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(asked("llama3_8b", cluster="dgx-h100:2", global_batch=64, seq=8192), time_limit_s=60.0)
    clock = count()
    monkeypatch.setattr("planner.search.effort.time.monotonic", lambda: 10.0 * next(clock))
    report = plan(request)
    assert report.search.by_clock
    console = Console(file=io.StringIO(), width=120)
    print_search(console, report)
    assert "another run may find something else" in " ".join(console.file.getvalue().split())
    again = report_from_json(report_to_json(report), "report.json", Path())
    assert (again.search.by_clock, again.search.work_s) == (True, report.search.work_s)


@pytest.mark.deep
def test_a_limit_that_does_not_bind_changes_nothing() -> None:
    reports = [planned_without_haste(), plan(with_slow_devices(time_limit_s=6000.0))]
    assert reports[0].layouts == reports[1].layouts
    assert reports[0].search.cut == ()
    assert not any("time limit" in reason for reason, _ in reports[0].search.pruned)


@pytest.mark.parametrize("model", quick_and_deep(["llama3_70b"], ["mixtral_8x22b"]))
def test_an_end_that_has_passed_costs_a_few_grids(model: str) -> None:
    """Counted, not timed: a search without time left prices grids until one fits, and proves no more than it may."""
    request = asked(model, cluster="dgx-h100:4", global_batch=256, seq=4096)
    (pricing,) = pricings_of(request)
    hurried = UniformSearch(request, pricing, until=Until(work_s=0.0)).run()
    whole = UniformSearch(request, pricing, until=UNENDING).run()
    assert hurried.best
    assert hurried.solved * 10 < whole.solved
    assert hurried.open_bound_s <= whole.best_s() <= hurried.best_s()
    left = {reason: count for reason, count in hurried.pruned.items() if "time limit" in reason}
    assert set(left) >= {"time limit", "time limit of a variant"}


def test_without_time_there_is_still_an_answer_and_what_was_cut() -> None:
    request = with_slow_devices(time_limit_s=0.0)
    report = plan(request)
    best = report.layouts[0]
    repriced = price_layout_with_heat(pricings_of(request), best.layout)
    assert best.cost.step.total_s <= repriced.step.total_s * (1.0 + 1e-9)  # in order, or on the faster node first
    cut = dict(report.search.cut)
    assert set(cut) == {SPLITS_CUT, RANKS_CUT}
    assert all(number > 0 for number in cut.values())
    assert not report.search.proven_optimal
    full = planned_without_haste()
    assert report.search.lower_bound_s <= full.layouts[0].cost.step.total_s <= best.cost.step.total_s * (1.0 + 1e-9)
    again = report_from_json(report_to_json(report), "report.json", Path())
    assert again.search.cut == report.search.cut
    console = Console(file=io.StringIO(), width=120)
    print_search(console, report)
    assert cut_in_words(RANKS_CUT, cut[RANKS_CUT]) in console.file.getvalue()


def test_one_layout_is_told_as_one():
    assert cut_in_words(RANKS_CUT, 1) == "1 layout was not placed as well as possible"
    assert cut_in_words(SPLITS_CUT, 1) == "1 grid kept the split of its layers"
    assert cut_in_words(RANKS_CUT, 1200) == f"1,200 {RANKS_CUT}"


@pytest.mark.parametrize("looks", range(0, 12, 2))
def test_a_placement_that_is_cut_is_no_worse_than_ranks_in_order(looks: int) -> None:
    request = with_slow_devices()
    pricings = pricings_of(request)
    layout = layout_of(request, ExplicitLayout(tp=2, pp=8, micro_batch=1))
    usual = price_layout_with_heat(pricings, layout).step.total_s
    found = place_with_splits(request, pricings, layout, LateAfter(looks))
    assert found.cut
    assert found.cost.step.total_s <= usual * (1.0 + 1e-9)
    assert place_layout(request, pricings, layout, LateAfter(looks)).cost.step.total_s <= usual * (1.0 + 1e-9)


@pytest.mark.parametrize("looks", [0, 1, 2, 4])
def test_of_layouts_that_are_not_placed_the_best_in_order_are_kept(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    request = with_slow_devices()
    pricings = pricings_of(request)
    layouts = [layout_of(request, ExplicitLayout(tp=2, pp=pp, micro_batch=1)) for pp in (1, 2, 4, 8)]
    cool = {layout: PlacedLayout(layout=layout, cost=price_layout(pricings, layout)) for layout in layouts}
    for name, place in (("place_layout", place_layout), ("place_and_split", place_with_splits)):
        monkeypatch.setattr(f"planner.placement.choose.{name}", lambda *given, place=place: place(*given[:3]))
    placed = place_all(request, pricings, cool, until=LateAfter(looks))
    in_order_s = sorted(price_layout_with_heat(pricings, layout).step.total_s for layout in layouts)
    best_s = min(one.cost.step.total_s for one in placed.values())
    assert best_s <= in_order_s[0] * (1.0 + 1e-9)
    assert sum(one.cut for one in placed.values()) == min(len(layouts) - looks, request.top)


@pytest.mark.parametrize("looks", range(6))
def test_splits_that_are_cut_keep_those_of_the_search(looks: int) -> None:
    request = with_slow_devices()
    (pricing,) = pricings_of(request)
    search = UniformSearch(request, pricing)
    tally = search.run()
    key = min(tally.best.values(), key=lambda candidate: candidate.order).key
    best_s = best_of_grid(request, pricing, tally, key)[1].step.total_s
    assert not tally.cut
    found_s = best_of_grid(request, pricing, tally, key, LateAfter(looks))[1].step.total_s
    assert best_s <= found_s <= tally.best[key].total_s * (1.0 + 1e-9)
    assert tally.cut in ({}, {SPLITS_CUT: 1})
    assert tally.cut if looks < 2 else tally.cut or found_s == best_s


def test_islands_that_are_not_searched_prove_nothing() -> None:
    request = asked("llama32_1b", cluster="dgx-a100:1", global_batch=16)
    (island,) = request.cluster.islands
    two = Cluster(
        name="two",
        islands=(island, island),
        inter_island_bytes_per_s=1e10,
        inter_island_latency_s=1e-5,
    )
    request = replace(request, cluster=two)
    search = IslandSearch(request, pricings_of(request), [1.0], Until(work_s=0.0))
    assert search.run() == []
    assert search.open_bound_s == 0.0
    assert not plan(replace(request, time_limit_s=0.0)).search.proven_optimal


def test_of_many_islands_the_largest_is_searched_however_short_the_time_and_the_others_are_counted() -> None:
    request = asked("llama32_1b", cluster="dgx-h100:1", global_batch=16)
    (island,) = request.cluster.islands
    sizes = tuple(replace(island, nodes=nodes) for nodes in (1, 2, 4, 3))
    machine = Cluster(name="four", islands=sizes, inter_island_bytes_per_s=1e10, inter_island_latency_s=1e-5)
    report = plan(replace(request, cluster=machine, time_limit_s=0.0))
    assert {stage.island for one in report.layouts for stage in one.layout.stages} == {2}
    assert dict(report.search.pruned)[ISLANDS_CUT] == 3
    assert report.search.lower_bound_s == 0.0
    assert "before every machine was looked at" in proof_words(report)


def test_orders_of_nodes_end_with_the_time() -> None:
    request = asked("llama3_8b", cluster="dgx-h100:4", global_batch=64, seq=8192)
    (island,) = request.cluster.islands
    leaves = (FabricTier(name="leaf", nodes=2, oversubscription=16.0), FabricTier(name="spine", nodes=0))
    request = replace(request, cluster=Cluster(name="c", islands=(replace(island, fabric=leaves),)))
    pricings = pricings_of(request)
    layout = layout_of(request, ExplicitLayout(tp=8, pp=2, dp=2, micro_batch=4))
    cost = price_layout(pricings, layout)
    found = place_nodes(pricings, layout, cost, (), Until(work_s=0.0))
    assert (found.cut, found.cost, found.placement) == (True, cost, None)


def test_what_slow_devices_cost_is_told_within_the_time_that_is_left() -> None:
    report = planned_without_haste()
    spent = replace(report, search=replace(report.search, work_s=1e9))
    found, usual = stragglers(spent), stragglers(report)
    assert found is not None
    assert usual is not None
    assert usual.healthy_s <= found.healthy_s <= found.as_is_s
    assert found.replanned_s == usual.replanned_s

"""The search against exhaustive enumeration of small spaces, and what must hold of every answer."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from every_layout import least_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick_and_deep import quick_and_deep
from small_requests import asked, fits, legal, pricing_of, small, with_one_adapter

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE
from costmodels.pipeline.schedules import Schedule
from costmodels.price import price_layout
from costmodels.results import Verdict
from planner import plan
from planner.bounds.options import OptionBounds
from planner.layouts.explicit import ExplicitLayout
from planner.layouts.explicit import layout_of as explicit_layout
from planner.plan_report import PlanReport
from planner.planning import estimate
from planner.request import DEGREES, PlanRequest
from planner.search.effort import UNENDING
from planner.search.frontier import Frontier
from planner.search.refine import layout_of
from planner.search.uniform import UniformSearch

SAME = 1e-9

SPACES = {
    "dense, all or nothing recompute": lambda: small(
        layers=(4,), memory_gib=10.0, global_batch=4, seq=4096, framework="deepspeed"
    ),
    "dense, layers that do not divide": lambda: small(
        layers=(5,), memory_gib=9.0, global_batch=4, seq=4096, recompute="none"
    ),
    "pipelines, as the links are slow": lambda: small(
        "llama3_8b", cluster="rtx-4090-8:1", layers=(4,), gpus=4, memory_gib=18.0, global_batch=8, seq=2048,
        recompute="none",
    ),
    "three GPUs": lambda: small(layers=(4,), gpus=3, memory_gib=14.0, global_batch=6, seq=4096, recompute="full"),
    "experts": lambda: small(
        "deepseek_v2_lite", cluster="dgx-h100:1", layers=(1, 2), memory_gib=18.0, global_batch=4, seq=4096,
        recompute="full",
    ),
    "some layers recompute": lambda: small(
        "llama3_8b", layers=(3,), gpus=2, memory_gib=24.5, global_batch=2, seq=8192, framework="deepspeed",
    ),
    "groups of a node, as the network is slow": lambda: with_one_adapter(small(
        layers=(2,), gpus=2, nodes=2, memory_gib=10.0, seq=8192, framework="torchtitan", recompute="none",
    )),
}  # fmt: skip


@cache
def exhaustive(name: str) -> tuple[PlanRequest, float, int]:
    """Least step time over every layout of the space that is legal and fits, and how many there are."""
    request = SPACES[name]()
    return request, *least_of(request)


QUICK = ("three GPUs", "some layers recompute", "groups of a node, as the network is slow")


@pytest.mark.parametrize("name", quick_and_deep(QUICK, SPACES))
def test_the_best_of_the_search_is_the_best_there_is(name):
    request, best_s, seen = exhaustive(name)
    report = plan(replace(request, top=1))
    assert seen > 30
    assert best_s < float("inf")
    assert report.layouts[0].cost.step.total_s == pytest.approx(best_s, rel=SAME)
    assert report.search.lower_bound_s <= best_s * (1.0 + SAME)


MACHINES = ("dgx-a100:1", "dgx-h100:1", "rtx-4090-8:1")
CUTS = {
    "llama32_1b": ((3,), (4,)),
    "llama3_8b": ((3,), (5,)),
    "mixtral_8x7b": ((2,), (3,)),
    "deepseek_v2_lite": ((1, 1), (1, 2)),
    "nemotron_h_8b": ((2, 1, 2), (1, 1, 1)),
}


def random_request(seed: int) -> PlanRequest:
    """A dense model, experts or a hybrid on two to four GPUs, short of memory or not, some with a schedule or a cap."""
    rng = random.Random(seed)
    schedule = rng.choice((None, None, None, *OF_TORCHTITAN))
    framework = "torchtitan" if schedule else rng.choice(("megatron", "megatron", "torchtitan", "deepspeed"))
    model = rng.choice(tuple(CUTS))
    nodes, gpus = rng.choice(((1, 2), (1, 3), (1, 4), (2, 1), (2, 2)))
    request = small(
        model,
        cluster=rng.choice(MACHINES),
        layers=rng.choice(CUTS[model]),
        gpus=gpus,
        nodes=nodes,
        memory_gib=rng.choice((8.0, 12.0, 18.0, 30.0, 80.0)),
        global_batch=rng.choice((2, 4, 6, 8)),
        seq=rng.choice((2048, 8192)),
        recompute=rng.choice(("none", "full")),
        framework=framework,
        power_cap_w=rng.choice((0.0, 0.0, 300.0)),
        fixed=rng.choice(((), ("tp=1",), ("cp=1",), ("micro_batch=1",), ("pp=2",))),
    )
    if schedule is None:
        return request
    software = replace(request.job.software, compiled=request.job.software.compiled and not schedule.splits_backward)
    recompute = "none" if schedule.splits_backward else request.recompute
    return replace(request, schedule=schedule, recompute=recompute, job=replace(request.job, software=software))


OF_TORCHTITAN = (Schedule.GPIPE, Schedule.LOOPED_BFS, Schedule.INTERLEAVED_ZB, Schedule.ZBV, Schedule.DUALPIPEV)


@pytest.mark.parametrize("seed", quick_and_deep((2, 10, 2149), range(2, 14)))  # 2149 fits as 1,3,1 alone
def test_the_best_of_random_requests_is_the_best_there_is(seed):
    request = random_request(seed)
    best_s, _ = least_of(request)
    report = plan(replace(request, top=1))
    safe = [ranked.cost.step.total_s for ranked in report.layouts if fits(ranked.cost)]
    assert safe == ([] if best_s == float("inf") else [pytest.approx(best_s, rel=SAME)])
    if safe:
        assert report.search.lower_bound_s <= best_s * (1.0 + SAME)


def request_on_more(seed: int) -> PlanRequest:
    """A cut model on five to eight GPUs, with a degree pinned so that every layout can be priced."""
    rng = random.Random(seed)
    model = rng.choice(tuple(CUTS))
    nodes, gpus = rng.choice(((1, 5), (1, 6), (1, 8), (2, 3), (3, 2), (2, 4)))
    return small(
        model,
        cluster=rng.choice(MACHINES),
        layers=rng.choice(CUTS[model]),
        gpus=gpus,
        nodes=nodes,
        memory_gib=rng.choice((6.0, 8.0, 12.0, 18.0, 80.0)),
        global_batch=rng.choice((4, 6, 8, 12, 16)),
        seq=rng.choice((2048, 8192)),
        recompute=rng.choice(("none", "full")),
        framework=rng.choice(("megatron", "megatron", "torchtitan", "deepspeed")),
        fixed=rng.choice((("tp=1",), ("cp=1",), ("micro_batch=1", "cp=1"), ("pp=2",))),
    )


@pytest.mark.parametrize("seed", quick_and_deep((0, 21), (1, 2, 3, 4, 5, 8, 9, 10)))
def test_the_best_of_random_requests_on_more_gpus_is_the_best_there_is(seed):
    request = request_on_more(seed)
    best_s, _ = least_of(request)
    report = plan(replace(request, top=1))
    safe = [ranked.cost.step.total_s for ranked in report.layouts if fits(ranked.cost)]
    assert safe == ([] if best_s == float("inf") else [pytest.approx(best_s, rel=SAME)])
    assert not safe or report.search.lower_bound_s <= best_s * (1.0 + SAME)


def test_groups_are_the_best_where_the_network_is_slow_and_whole_layouts_hold_all_they_shard():
    report = plan(SPACES["groups of a node, as the network is slow"]())
    best = report.layouts[0]
    assert (best.layout.first.dp, best.layout.first.shard_group) == (4, 2)
    alone = plan(replace(report.request, fixed=(("shard_group", 4),)))
    assert all(ranked.layout.first.shard_group == 0 for ranked in alone.layouts)
    assert alone.layouts[0].cost.step.total_s > best.cost.step.total_s


@cache
def answered(name: str) -> PlanReport:
    requests = {
        "dense": small("llama3_8b", layers=(8,), gpus=8, memory_gib=20.0, global_batch=16, seq=4096),
        "experts": small(
            "deepseek_v2_lite", cluster="dgx-h100:1", layers=(1, 4), gpus=4, memory_gib=24.0, global_batch=16, seq=4096
        ),
        "any strategy": small(
            "llama3_8b", layers=(4,), gpus=4, memory_gib=16.0, global_batch=16, seq=4096, framework="none"
        ),
        "kinds in turn": small("nemotronh_8b", layers=(1,) * 12, gpus=4, memory_gib=28.0, global_batch=8, seq=16384),
        "several nodes": replace(asked("llama3_8b", "dgx-a100:2", global_batch=64, seq=8192), time_limit_s=60.0),
    }
    return plan(requests[name])


@pytest.mark.parametrize("name", ["dense", "experts", "kinds in turn", "any strategy", "several nodes"])
def test_every_ranked_layout_is_legal_whole_and_priced_as_an_estimate(name):
    report = answered(name)
    request, model = report.request, report.request.model
    assert report.layouts
    times = [ranked.cost.step.total_s for ranked in report.layouts]
    assert times == sorted(times)
    assert len({ranked.layout for ranked in report.layouts}) == len(report.layouts) <= request.top
    for ranked in report.layouts:
        layout, cost = ranked.layout, ranked.cost
        assert legal(request, layout)
        assert layout.layers == model.layers
        assert layout.gpus <= request.cluster.gpus
        samples = layout.micro_batch * layout.first.dp * layout.num_microbatches
        assert samples == request.job.global_batch
        assert fits(cost)
        assert cost == price_layout([pricing_of(request)], layout)
        step = cost.step
        parts = step.compute_s + step.exposed_comm_s + step.bubble_s + step.sync_s + step.io_s
        assert step.total_s == pytest.approx(parts, rel=SAME)
        assert min(step.compute_s, step.exposed_comm_s, step.sync_s) >= 0.0
        assert step.bubble_s >= -1e-9 * step.total_s
        for use in cost.memory:
            assert use.total_bytes == pytest.approx(sum(size for _, size in use.components), rel=SAME)


@pytest.mark.parametrize("name", ["dense", "experts", "any strategy", "several nodes"])
def test_the_bound_is_below_the_best_and_proof_means_that_they_meet(name):
    report = answered(name)
    search, best_s = report.search, report.layouts[0].cost.step.total_s
    assert 0.0 < search.lower_bound_s <= best_s * (1.0 + SAME)
    assert search.gap == pytest.approx((best_s - search.lower_bound_s) / best_s, abs=1e-12)
    assert search.proven_optimal == (search.gap <= 2 * SAME)
    assert search.enumerated >= len(report.layouts)
    assert search.solved > 0
    assert all(count > 0 for reason, count in search.pruned if "lower bound of" in reason)


@cache
def candidates(name: str) -> UniformSearch:
    search = UniformSearch(answered(name).request, pricing_of(answered(name).request))
    search.run()
    return search


@pytest.mark.parametrize("name", ["dense", "experts", "kinds in turn", "several nodes"])
def test_candidates_of_the_batch_cost_what_their_layouts_cost(name):
    """The vectorised price of the search is that of an explicit layout, for time and for memory."""
    search = candidates(name)
    for candidate in search.tally.best.values():
        cost = price_layout([search.pricing], layout_of(candidate))
        assert cost.step.total_s == pytest.approx(candidate.total_s, rel=1e-6)
        assert cost.heaviest.total_bytes == pytest.approx(candidate.memory_bytes, rel=1e-6)
        assert cost.heaviest.verdict is Verdict.FITS


def test_no_candidate_beats_the_bound_of_the_search():
    for name in ("dense", "experts", "several nodes"):
        tally = candidates(name).tally
        best_s = min(candidate.total_s for candidate in tally.best.values())
        assert min(tally.open_bound_s, best_s) <= best_s


PINS = st.fixed_dictionaries(
    {},
    optional={
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "cp": st.sampled_from([1, 2]),
        "dp": st.sampled_from([1, 2, 4]),
        "vpp": st.sampled_from([1, 2]),
        "zero": st.sampled_from([1, 3]),
        "micro_batch": st.sampled_from([1, 2]),
    },
)


@cache
def free_to_choose() -> tuple[PlanRequest, float]:
    """A request without pins, and the least step time of its search."""
    base = small("llama3_8b", layers=(8,), gpus=8, memory_gib=40.0, global_batch=16, seq=2048)
    request = replace(base, top=3, recompute="none")
    found = UniformSearch(request, pricing_of(request)).run().best
    return request, min(candidate.total_s for candidate in found.values())


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(pins=PINS)
def test_pinned_degrees_hold(pins):
    base, free_s = free_to_choose()
    request = replace(base, fixed=tuple(pins.items()))
    assert set(pins) <= set(DEGREES)
    search = UniformSearch(request, pricing_of(request))
    for candidate in search.run().best.values():
        for name, value in pins.items():
            assert getattr(candidate, name) == value
    best_s = min((candidate.total_s for candidate in search.tally.best.values()), default=float("inf"))
    assert free_s <= best_s * (1.0 + SAME)


def test_pinned_recompute_holds():
    base = small("llama3_8b", layers=(8,), gpus=8, memory_gib=40.0, global_batch=16, seq=2048)
    for words, wanted in (("none", NO_RECOMPUTE), ("full", FULL_RECOMPUTE)):
        for ranked in plan(replace(base, recompute=words, top=3)).layouts:
            used = {run.strategy.recompute for stage in ranked.layout.stages for run in stage.strategies}
            assert used == {wanted}


def test_the_same_request_gives_the_same_plan():
    for name in ("dense", "experts"):
        first, again = answered(name), plan(answered(name).request)
        assert again.layouts == first.layouts
        assert again.rejected == first.rejected
        assert replace(again.search, wall_s=0.0) == replace(first.search, wall_s=0.0)


PRINT_PLAN = """
from planner import plan
from small_requests import small
words = dict(cluster="dgx-h100:1", layers=(1, 3), gpus=4, global_batch=8, seq=2048, top=5)
report = plan(small("deepseek_v2_lite", **words))
print([(r.layout, r.cost.step.total_s, r.why) for r in report.layouts], report.search.lower_bound_s, report.rejected)
"""


def test_the_plan_does_not_depend_on_the_seed_of_hashes():
    answers = set()
    for seed in ("0", "4242"):
        paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        found = subprocess.run(
            [sys.executable, "-c", PRINT_PLAN], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        answers.add(found.stdout)
    assert len(answers) == 1


@pytest.mark.parametrize("framework", ["megatron", "none"])
def test_more_nodes_behind_a_slow_network_are_left_idle_where_one_is_faster(framework: str):
    one = replace(small(layers=(4,), gpus=2, global_batch=8, framework=framework), recompute="none")
    island = one.cluster.islands[0]
    nics = replace(island.node.nics, count=1, bytes_per_s=1.25e9)
    four = replace(island, nodes=4, node=replace(island.node, nics=nics))
    many = plan(replace(one, cluster=replace(one.cluster, islands=(four,))))
    assert many.layouts[0].layout.gpus == 2
    assert many.layouts[0].cost.step.total_s == pytest.approx(plan(one).layouts[0].cost.step.total_s, rel=1e-3)
    assert many.search.lower_bound_s <= many.layouts[0].cost.step.total_s


def test_a_tiny_step_on_many_nodes_is_as_fast_as_the_best_of_one_node():
    """A sequence of one token: a hop between nodes costs more than a stage's work."""
    request = asked("llama32_3b", "dgx-h100:4", global_batch=1, seq=1)
    by_hand = [
        estimate(request, explicit_layout(request, ExplicitLayout(pp=pp, dp=1))).cost.step.total_s
        for pp in (1, 2, 4, 7, 8, 14, 28)
    ]
    assert plan(request).layouts[0].cost.step.total_s <= min(by_hand) * (1.0 + 1e-3)


def test_a_time_limit_ends_the_search_with_an_honest_gap():
    request = replace(asked("llama3_8b", "dgx-a100:4", global_batch=256, seq=8192), time_limit_s=0.0)
    hurried, whole = plan(request), plan(replace(request, time_limit_s=60.0))
    assert hurried.layouts
    assert hurried.search.lower_bound_s <= whole.layouts[0].cost.step.total_s * (1.0 + SAME)
    assert hurried.search.solved <= whole.search.solved


def bounds_of(search):
    return OptionBounds(
        request=search.request,
        pricing=search.pricing,
        options=search.options,
        accepted=Verdict.FITS,
        grids=search.grids_of(search.pricing.island.gpus),
    )


def named(grids):
    """Rows of grids as tuples of their degrees."""
    names = ("tp", "cp", "pp", "dp", "ep", "etp", "zero", "shard_group", "micro_batch")
    return list(zip(*(getattr(grids.table, name).tolist() for name in names), strict=True))


def test_a_frontier_gives_every_grid_once_the_least_of_what_is_refined_first():
    every = bounds_of(candidates("dense"))
    frontier = Frontier(every, UNENDING, grouped=False)
    seen = []
    while True:
        grids, known = frontier.take(7, float("inf"))
        if not len(grids):
            break
        seen += named(grids)
        bounds = known.min(axis=1).tolist()
        assert bounds == sorted(bounds)
    assert len(seen) == len(set(seen))
    assert len(seen) + frontier.without_memory == len(every.grids)
    assert frontier.left == 0


def test_a_frontier_gives_the_groups_of_grids_after_them():
    every = bounds_of(candidates("several nodes"))
    frontier = Frontier(every, UNENDING, grouped=True)
    whole, groups = [], []
    while True:
        grids, _ = frontier.take(200, float("inf"))
        if not len(grids):
            break
        (groups if grids.table.shard_group.any() else whole).extend(named(grids))
        assert not (groups and not grids.table.shard_group.all())
    assert len(groups) == len(set(groups)) > 0
    left = {(*row[:7], row[8]) for row in whole}
    assert all((*row[:7], row[8]) in left and row[6] > 0 for row in groups)
    assert frontier.left == 0


def test_groups_that_no_limit_lets_in_stay_and_count_with_the_bounds_of_their_grids():
    every = bounds_of(candidates("several nodes"))
    frontier = Frontier(every, UNENDING, grouped=True)
    _, known = frontier.take(20, float("inf"))
    taken_s = float(known.min())
    assert frontier.least_s <= taken_s
    waiting = frontier.left
    frontier.drop_groups()
    assert frontier.left < waiting
    assert frontier.least_s >= taken_s


def test_grids_that_their_exchanges_make_too_slow_stay_and_leave_their_groups():
    """Behind a slow network ZeRO over all ranks cannot be near, over those of a node it can."""
    request = replace(SPACES["groups of a node, as the network is slow"](), fixed=(("dp", 4),))
    every = bounds_of(UniformSearch(request, pricing_of(request)))
    rows = np.flatnonzero(every.grids.table.zero == 3)
    assert rows.size
    kernels_s = every.within_memory_s(rows).min(axis=1)
    limit_s = 1.01 * float(kernels_s.max())
    assert every.with_exchanges_s(every.grids.take(rows), every.within_memory_s(rows), limit_s).min() > limit_s
    frontier, whole, groups = Frontier(every, UNENDING, grouped=True), [], []
    while True:
        grids, known = frontier.take(50, limit_s)
        if not len(grids):
            break
        assert (known.min(axis=1) <= limit_s).all()
        (groups if grids.table.shard_group.any() else whole).extend(named(grids))
    assert all(row[6] < 3 for row in whole)
    assert any(row[6:8] == (3, 2) for row in groups)
    assert frontier.left >= len(rows)
    assert frontier.least_s > limit_s


def test_a_frontier_keeps_back_what_exceeds_the_limit():
    bounds = bounds_of(candidates("dense"))
    limit_s = sorted(bounds.time_s())[len(bounds.grids) // 2]
    frontier = Frontier(bounds, UNENDING, grouped=False)
    taken = 0
    while True:
        grids, known = frontier.take(50, float(limit_s))
        if not len(grids):
            break
        taken += len(grids)
        assert known.min() <= limit_s
    assert taken + frontier.without_memory + frontier.left == len(bounds.grids)
    assert frontier.least_s > limit_s

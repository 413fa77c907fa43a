"""Lower bounds against prices of explicit layouts: nothing of a family may be faster or smaller than its bound says."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick_and_deep import quick_and_deep
from small_requests import GIB, compositions, fits, layouts_of, legal, pricing_of, small

from costmodels.exchange import state_exchange
from costmodels.layer_costs import price_parts
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Recompute
from costmodels.memory.states import LocalParameters
from costmodels.pipeline.inflight import in_flight_total, peak_activation_bytes
from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.pipeline.simulate import makespan
from costmodels.price import price_layout
from costmodels.results import Verdict
from planner.bounds.memory import Flight, StageRoom, memory_bound
from planner.bounds.option_memory import OptionMemory
from planner.bounds.options import OptionBounds
from planner.bounds.priced import PricedBounds
from planner.bounds.stage_capacity import Layers, Pipelines, capacity_bound_s
from planner.bounds.step_time import (
    Work,
    least_bottleneck_s,
    part_seconds,
    part_work,
    pipeline_bound_s,
    step_lower_bound_s,
)
from planner.bounds.whole_layers import Chunks, OncePerStep, whole_layers_bound_s
from planner.layouts.expand import expand
from planner.layouts.grids import Grids, enumerate_grids, joined
from planner.layouts.recompute_options import recompute_options
from planner.request import PlanRequest
from planner.rules import request_mask
from planner.search.shard_groups import legal_groups

QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
EXACT = 1.0 + 1e-9
OTHERS = tuple(one for one in Schedule if one not in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED))


def piped(schedule: Schedule) -> PlanRequest:
    """A request for pipelines of one schedule, short of memory."""
    memory_gib = 20.0 if schedule.holds_all else 12.0
    request = small(layers=(6,), gpus=4, memory_gib=memory_gib, seq=4096, framework="none")
    return replace(request, schedule=schedule)


def waiting() -> PlanRequest:
    """A request for FSDP whose gradients stay whole until the last micro-batch, short of memory."""
    request = small("llama3_8b", layers=(5,), gpus=4, memory_gib=22.0, seq=4096, framework="torchtitan")
    software = replace(request.job.software, sync_each_batch=False)
    return replace(request, job=replace(request.job, software=software))


def titan() -> PlanRequest:
    """A request for torchtitan's pipelines, whose stages reduce once and hold whole gradients, short of memory."""
    return small("llama3_8b", layers=(6,), gpus=4, memory_gib=24.0, seq=4096, framework="torchtitan")


CASES = {
    "dense": lambda: small(layers=(6,), gpus=8, memory_gib=8.0, seq=8192),
    "dense, short of memory": lambda: small("llama3_8b", layers=(6,), gpus=8, memory_gib=14.0, seq=8192),
    "under a power limit": lambda: small(
        "llama3_8b", cluster="dgx-h100:1", layers=(5,), gpus=8, memory_gib=11.0, power_cap_w=400.0
    ),
    "experts": lambda: small(
        "deepseek_v2_lite", cluster="dgx-h100:1", layers=(1, 5), gpus=8, memory_gib=17.0, seq=8192
    ),
    "experts, any strategy": lambda: small(
        "deepseek_v2_lite",
        cluster="dgx-h100:1",
        layers=(1, 4),
        gpus=4,
        memory_gib=24.0,
        seq=8192,
        precision="fp8",
        framework="none",
    ),
    "a list of ops": lambda: small(
        "deepseek_v2_lite",
        cluster="dgx-h100:1",
        layers=(1, 3),
        gpus=8,
        memory_gib=14.0,
        seq=8192,
        framework="torchtitan",
    ),
    "groups of ranks": lambda: small(
        layers=(4,), gpus=2, nodes=4, memory_gib=7.0, seq=4096, framework="none", recompute="full"
    ),
    "hosts that run on beyond a node": lambda: small(
        layers=(4,), gpus=2, nodes=4, memory_gib=7.0, seq=512, framework="none", power_cap_w=200.0
    ),
    "groups of ranks that hold experts": lambda: small(
        "deepseek_v2_lite", cluster="dgx-h100:1", layers=(1, 3), gpus=2, nodes=2, memory_gib=24.0, seq=4096
    ),
    "gradients that wait": waiting,
    "stages that reduce once": titan,
    **{f"{schedule} of a model with a large head": partial(piped, schedule) for schedule in OTHERS},
    "all or nothing": lambda: small("gpt3_126m", layers=(7,), gpus=4, memory_gib=2.2, framework="deepspeed"),
}


FEW = ("dense", "dense, short of memory", "under a power limit")


class Case:
    """Bounds of all legal grids of a small request, and its layouts by grid."""

    def __init__(self, name: str) -> None:
        self.request = CASES[name]()
        self.pricing = pricing_of(self.request)
        self.options = recompute_options(self.request.recompute, self.request.framework, self.pricing)
        every = enumerate_grids(self.request, self.request.cluster.gpus)
        legal_ones = request_mask(self.request, every.table).ok
        whole: Grids = every.take(np.flatnonzero(legal_ones))
        self.of, groups = legal_groups(self.request, whole, self.pricing.tiers)
        self.whole = len(whole)
        self.grids = joined(whole, groups)
        bounds = OptionBounds(
            request=self.request,
            pricing=self.pricing,
            options=self.options,
            accepted=Verdict.FITS,
            grids=self.grids,
        )
        self.least_s = bounds.time_s()
        self.within_s = bounds.within_memory_s(np.arange(len(self.grids)))
        self.priced_s = self._priced_s()
        self.exchanged_s = bounds.with_exchanges_s(self.grids, self.within_s, np.inf)
        memory = OptionMemory(pricing=self.pricing, accepted=Verdict.FITS, schedule=self.request.schedule)
        self.mean_fits = memory.mean_fits(self.grids, self.options, np.ones(self.within_s.shape, dtype=np.bool_))

    def _priced_s(self) -> np.ndarray:
        """Bounds of every grid under every option once its parts are priced, shape (S, O)."""
        block = expand(self.grids, self.options, np.ones(self.within_s.shape, dtype=np.bool_))
        costs = price_parts(self.pricing, block.grids.table)
        bounds = PricedBounds(self.request, self.pricing, Verdict.FITS, block, costs)
        rows = np.arange(len(block.grids))
        least = np.maximum(bounds.time_s(), bounds.within_memory_s(rows, np.inf))
        piped = np.flatnonzero(block.grids.table.pp > 1)
        least[piped] = np.maximum(least[piped], bounds.whole_layers_s(piped, np.inf))
        return least.reshape(self.within_s.shape)

    def grid_of(self, row: int) -> int:
        """The grid that a group was made of; any other row is its own."""
        return row if row < self.whole else int(self.of[row - self.whole])

    def layouts(self, row: int) -> list[Layout]:
        table = self.grids.table
        shape = (int(table.pp[row]), int(table.micro_batch[row]), int(self.grids.num_microbatches[row]))
        return list(layouts_of(self.request, table.strategy(row), shape, self.options))

    def option_of(self, layout: Layout) -> int:
        used: set[Recompute] = {run.strategy.recompute for stage in layout.stages for run in stage.strategies}
        return self.options.index(NO_RECOMPUTE if len(used) > 1 else used.pop())


def one_pipeline(shape: tuple[int, int], ends_s: tuple[float, float], room_bytes: float) -> Pipelines:
    """Pipeline of (stages, micro-batches) with one chunk a stage."""
    return Pipelines(
        flight=Flight(np.array([shape[0]]), np.array([shape[1]]), chunked=False),
        first_s=np.array([ends_s[0]]),
        last_s=np.array([ends_s[1]]),
        shortest_s=np.array([0.1]),
        room_bytes=np.array([room_bytes]),
        first_bytes=np.zeros(1),
        last_bytes=np.zeros(1),
    )


def one_kind(count: int, times_s: tuple[float, float], states: float, kept: tuple[float, float]) -> Layers:
    """Layers that take (seconds, seconds more to recompute) and hold states, (activations, what recompute saves)."""
    layer_s, again_s = times_s
    return Layers(
        count=count,
        layer_s=np.array([layer_s]),
        states_bytes=np.array([states]),
        kept_bytes=np.array([kept[0]]),
        again_s=np.array([again_s if kept[1] else 0.0]),
        saved_bytes=np.array([kept[1]]),
    )


NOTHING = OncePerStep(exchange_s=np.zeros(1), optimizer_s=np.zeros(1))


@cache
def case(name: str) -> Case:
    return Case(name)


@pytest.mark.parametrize("name", quick_and_deep(FEW, CASES))
def test_no_layout_is_faster_than_the_bound_of_its_grid(name):
    found = case(name)

    @QUICK
    @given(st.data())
    def check(data):
        row = data.draw(st.integers(0, len(found.grids) - 1))
        layouts = found.layouts(row)
        if not layouts:  # a schedule that cannot run with its micro-batches
            return
        layout = data.draw(st.sampled_from(layouts))
        if not legal(found.request, layout):
            return
        cost = price_layout([found.pricing], layout)
        assert found.least_s[row] <= cost.step.total_s * EXACT
        assert found.least_s[found.grid_of(row)] <= cost.step.total_s * EXACT
        if fits(cost):
            assert found.mean_fits[row, found.option_of(layout)]
            assert found.within_s[found.grid_of(row), found.option_of(layout)] <= cost.step.total_s * EXACT
            assert found.within_s[row, found.option_of(layout)] <= cost.step.total_s * EXACT
            assert found.exchanged_s[row, found.option_of(layout)] <= cost.step.total_s * EXACT
            assert found.priced_s[row, found.option_of(layout)] <= cost.step.total_s * EXACT

    check()


def test_the_bounds_say_something():
    """All the work where nothing is split and no exchange is left out; infinite for grids that do not fit."""
    found = case("dense, short of memory")
    for row in np.flatnonzero((found.grids.table.pp == 1) & (found.grids.table.zero < 2)).tolist():
        layout = next(layout for layout in found.layouts(row) if layout.first.recompute == NO_RECOMPUTE)
        (stage_s,) = price_layout([found.pricing], layout).stage_times_s
        assert found.least_s[row] >= layout.num_microbatches * stage_s / EXACT
    assert np.isinf(found.within_s).any()
    assert np.isfinite(found.within_s).any()


def test_groups_are_among_the_layouts_that_the_bounds_are_held_against():
    for name in ("groups of ranks", "groups of ranks that hold experts"):
        found = case(name)
        grouped = found.grids.table.shard_group[found.whole :]
        assert grouped.size > 20
        assert (grouped > 1).all()
        assert (found.least_s[found.whole :] == found.least_s[found.of]).all()
        assert found.mean_fits[found.whole :].any()
    short = case("dense, short of memory")
    assert not short.mean_fits.all()
    assert np.isinf(short.within_s[~short.mean_fits]).all()


@pytest.mark.parametrize("name", quick_and_deep((*FEW, "groups of ranks", "groups of ranks that hold experts"), CASES))
def test_priced_parts_raise_the_bounds_of_grids_whose_exchanges_were_not_known(name):
    found = case(name)
    both = np.isfinite(found.within_s) & np.isfinite(found.priced_s)
    raised = found.priced_s[both] / found.within_s[both]
    assert raised.max() > 1.0
    sharded = np.broadcast_to((found.grids.table.zero >= 2)[:, None], both.shape)[both]
    if sharded.any():
        assert np.median(raised[sharded]) > 1.0
        assert np.median((found.exchanged_s[both] / found.within_s[both])[sharded]) > 1.0
    assert (found.exchanged_s[both] / found.within_s[both])[~sharded] == pytest.approx(1.0)


@pytest.mark.parametrize("broadcasts", [False, True])
def test_no_stage_exchanges_its_layers_faster_than_the_bound_says(broadcasts):
    """Owners that broadcast their tensors are faster than a gather where stages hold many layers."""
    request = small("llama3_8b", layers=(32,), cluster="dgx-h100:1", gpus=8, nodes=4, framework="none")
    software = replace(request.job.software, broadcast_weights=broadcasts, grad_overlap=False, param_overlap=False)
    pricing = pricing_of(replace(request, job=replace(request.job, software=software)))
    grids = enumerate_grids(request, 32)
    grids = grids.take(np.flatnonzero((grids.table.zero == 1) & (grids.table.micro_batch == 1)))
    block = expand(grids, (NO_RECOMPUTE,), np.ones((len(grids), 1), dtype=np.bool_))
    costs = price_parts(pricing, block.grids.table)
    bounds = PricedBounds(request, pricing, Verdict.FITS, block, costs)
    (once,) = bounds._once(np.arange(len(grids)))
    for layers in (1, 4, 16, 32):
        held = LocalParameters(dense=layers * costs.dense_parameters[0], expert=layers * costs.expert_parameters[0])
        tensors = np.full(len(grids), layers * costs.weight_tensors[0])
        priced = state_exchange(held, pricing.job, costs.placed, pricing.constants.overlap.bucket_bytes, tensors)
        assert (layers * once.exchange_s <= (priced.reduce_s + priced.gather_s) * EXACT).all()
    assert layers * once.exchange_s == pytest.approx(priced.reduce_s + priced.gather_s)


def test_every_grid_of_which_a_layout_fits_has_a_finite_bound():
    found = case("dense, short of memory")
    for row in range(0, len(found.grids), 8):
        known = np.isfinite(found.within_s[row])
        layouts = found.layouts(row)
        for layout in layouts[:: max(1, len(layouts) // 4)]:
            if fits(price_layout([found.pricing], layout)):
                assert known[found.option_of(layout)], layout


@QUICK
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    times=st.lists(st.floats(0.1, 3.0), min_size=4, max_size=4),
    pp=st.integers(1, 4),
)
def test_the_bottleneck_is_the_least_over_all_splits_of_one_kind(counts, times, pp):
    layer_s = np.array(times[: len(counts)])[:, None]
    first_s, last_s = np.array([times[2]]), np.array([times[3]])
    total = layer_s[:, 0] @ np.array(counts) + first_s + last_s
    work = Work(total_s=total, first_s=first_s, last_s=last_s, layer_s=layer_s, counts=tuple(counts))
    bound = float(least_bottleneck_s(work, np.array([pp]))[0])
    each = [time for count, time in zip(counts, layer_s[:, 0], strict=True) for _ in range(count)]
    exact = np.inf
    for split in compositions(len(each) + 2, pp) if pp <= len(each) + 2 else ():
        ends = np.cumsum(split)
        chain = [times[2], *each, times[3]]
        exact = min(exact, max(sum(chain[end - size : end]) for end, size in zip(ends, split, strict=True)))
    assert bound <= exact * EXACT
    if pp == 1:
        assert bound == pytest.approx(exact)


@QUICK
@given(pp=st.integers(2, 6), m=st.integers(1, 12), n=st.integers(1, 4))
def test_the_pipeline_bound_is_below_the_closed_form_of_equal_stages(pp, m, n):
    """1F1B over equal stages takes ``(m + pp - 1) t``."""
    work = Work(
        total_s=np.array([float(pp * n)]),
        first_s=np.zeros(1),
        last_s=np.zeros(1),
        layer_s=np.ones((1, 1)),
        counts=(pp * n,),
    )
    shape = (np.array([pp]), np.array([m]))
    plain = float(pipeline_bound_s(work, *shape, np.array([True]))[0])
    chunked = float(pipeline_bound_s(work, *shape, np.array([False]))[0])
    assert chunked <= plain <= (m + pp - 1) * n * EXACT
    assert float(step_lower_bound_s(work, *shape, np.array([True]))[0]) >= m * n / EXACT


@QUICK
@given(
    pp=st.integers(2, 6),
    vpp=st.integers(2, 4),
    groups=st.integers(1, 4),
    sizes=st.lists(st.floats(0.1, 2.0), min_size=24, max_size=24),
)
def test_every_layer_is_in_flight_as_often_as_the_memory_bound_says(pp, vpp, groups, sizes):
    usual = ((vpp, Schedule.INTERLEAVED, groups * pp), (1, Schedule.ONE_F_ONE_B, groups))
    others = ((one.fixed_vpp or vpp, one, groups * (vpp if one.fixed_vpp else pp)) for one in OTHERS)
    for chunks, schedule, number in (*usual, *others):
        m = max(number, 2 * pp) if schedule is Schedule.DUALPIPEV else number
        spec = PipelineSpec(schedule=schedule, pp=pp, vpp=chunks, num_microbatches=m)
        asked = schedule if schedule in OTHERS else None
        least = Flight(np.array([pp]), np.array([m]), chunks > 1, asked).least(np.arange(pp))[0]
        kept = np.array(sizes[: pp * chunks]).reshape(1, pp, chunks)
        peak = peak_activation_bytes(spec, kept)[0]
        assert (least * kept[0].sum(axis=1) <= peak * EXACT).all()
        assert (least <= in_flight_total(spec)).all()


@QUICK
@given(
    pp=st.integers(1, 4),
    m=st.integers(1, 6),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    sizes=st.lists(st.floats(0.1, 4.0), min_size=4, max_size=4),
)
def test_the_memory_bound_is_below_the_fullest_stage_of_every_placement(pp, m, counts, sizes):
    kinds = len(counts)
    states, kept = np.array(sizes[:kinds])[:, None], np.array(sizes[2 : 2 + kinds])[:, None]
    room = StageRoom(
        room_bytes=np.ones(1), states_bytes=states, kept_bytes=kept, first_bytes=np.zeros(1), last_bytes=np.zeros(1)
    )
    flight = Flight(np.array([pp]), np.array([m]), chunked=False)
    bound = float(memory_bound(room, np.array(counts, dtype=float), flight).least_bytes[0])
    held = flight.least(np.arange(pp))[0]
    each = [kind for kind, count in enumerate(counts) for _ in range(count)]
    exact = np.inf
    for split in compositions(len(each), pp) if pp <= len(each) else ():
        ends = np.cumsum(split)
        spans = [each[end - size : end] for end, size in zip(ends, split, strict=True)]
        stages = [sum(states[k, 0] + held[i] * kept[k, 0] for k in span) for i, span in enumerate(spans)]
        exact = min(exact, max(stages))
    assert bound <= exact * EXACT


@QUICK
@given(data=st.data())
def test_capacity_is_below_every_split_and_choice_of_recomputed_layers(data):
    """Brute force over splits and numbers of recomputed layers of every stage."""
    draw = data.draw
    pp, m, count = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(3, 7))
    layer_s, again_s, first_s, last_s = (draw(st.floats(0.1, 1.0)) for _ in range(4))
    states, kept = GIB * draw(st.floats(0.1, 1.0)), GIB * draw(st.floats(0.1, 1.0))
    saved = draw(st.sampled_from([0.0, 0.9])) * kept
    room = GIB * draw(st.floats(1.0, 12.0))
    pipelines = replace(one_pipeline((pp, m), (first_s, last_s), room), shortest_s=np.array([layer_s]))
    layers = one_kind(count, (layer_s, again_s), states, (kept, saved))
    bound = float(capacity_bound_s(pipelines, layers, np.full(1, 1e-3), np.inf)[0])
    exact = np.inf
    for split in compositions(count, pp):
        times = []
        for stage, size in enumerate(split):
            held = min(m, pp - stage)
            chosen = [k for k in range(size + 1) if size * (states + held * kept) - k * held * saved <= room]
            ends = (first_s if stage == 0 else 0.0) + (last_s if stage == pp - 1 else 0.0)
            again = again_s * min(chosen) if chosen and saved else 0.0
            times.append(size * layer_s + again + ends if chosen else np.inf)
        exact = min(exact, max(m * time + sum(times[:stage]) for stage, time in enumerate(times)))
    assert bound <= exact * EXACT
    if np.isinf(bound):
        assert np.isinf(exact)


@QUICK
@given(data=st.data())
def test_whole_layers_are_below_every_split_and_prefix_of_recomputed_layers(data):
    """Brute force over splits into chunks and prefixes that recompute, with exact schedules and numbers in flight.

    ``others`` layers without weight stand before those of the kind.
    """
    draw = data.draw
    pp, vpp, others, count = (
        draw(st.integers(2, 3)),
        draw(st.integers(1, 2)),
        draw(st.integers(0, 1)),
        draw(st.integers(4, 6)),
    )
    m = pp * draw(st.integers(1, 2)) if vpp > 1 else draw(st.integers(1, 5))
    layer_s, again_s, first_s, last_s = (draw(st.floats(0.1, 1.0)) for _ in range(4))
    kept, saved = 1.0, draw(st.sampled_from([0.0, 0.9]))
    room = draw(st.floats(0.1, 1.2)) * (kept * min(m, pp) + 0.1) * (count + 1) / pp
    pipelines = replace(one_pipeline((pp, m), (first_s, last_s), room), shortest_s=np.array([1e-3]))
    pipelines = replace(pipelines, flight=Flight(np.array([pp]), np.array([m]), chunked=vpp > 1))
    layers = one_kind(count, (layer_s, again_s), 0.1, (kept, saved))
    chunks = Chunks(vpp=vpp, lone=2 * (vpp > 1), before=others, after=0, others=others, alternate=False)
    bound = float(whole_layers_bound_s(pipelines, layers, NOTHING, chunks, np.inf)[0])
    spec = PipelineSpec(
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B, pp=pp, vpp=vpp, num_microbatches=m
    )
    exact = np.inf
    for flat in compositions(count + others, pp * vpp, ends_may_be_empty=vpp > 1):
        starts = np.cumsum(flat) - flat
        other = np.clip(others - starts, 0, flat)
        own = np.array(flat) - other
        for prefix in range(max(flat) + 1 if saved else 1):
            again = np.clip(prefix - other, 0, own)
            kept_here, held = (own * kept - again * saved).reshape(vpp, pp).T[None], own.reshape(vpp, pp).sum(axis=0)
            if (peak_activation_bytes(spec, kept_here)[0] + 0.1 * held <= room).all():
                seconds = own * layer_s + again * again_s + other * 1e-3
                seconds[0] += first_s
                seconds[-1] += last_s
                seconds = seconds.reshape(vpp, pp).T[None]
                exact = min(exact, float(makespan(spec, 0.4 * seconds, 0.6 * seconds).makespan_s[0]))
    assert bound <= exact * EXACT


def test_a_stage_waits_for_the_layers_that_have_no_room_behind_it():
    """Two stages, one micro-batch, four layers of which the second stage holds one: it ends after all four."""
    pipelines = replace(one_pipeline((2, 1), (0.0, 0.0), 3.5 * GIB), last_bytes=np.full(1, 2.0 * GIB))
    layers = one_kind(4, (1.0, 0.0), GIB, (0.0, 0.0))
    chunks = Chunks(vpp=1, lone=0, before=0, after=0, others=0, alternate=False)
    assert whole_layers_bound_s(pipelines, layers, NOTHING, chunks, np.inf)[0] == pytest.approx(4.0, rel=0.01)
    assert capacity_bound_s(pipelines, layers, np.full(1, 1e-3), np.inf)[0] < 3.1


def test_what_a_step_does_once_is_added_to_the_stages_with_its_layers():
    """Two stages of two layers, four micro-batches: an exchange runs beside the begin of the pipeline."""
    pipelines, layers = one_pipeline((2, 4), (0.0, 0.0), GIB), one_kind(4, (1.0, 0.0), 0.0, (0.0, 0.0))
    chunks = Chunks(vpp=1, lone=0, before=0, after=0, others=0, alternate=False)

    def found(exchange_s: float, optimizer_s: float) -> float:
        once = OncePerStep(exchange_s=np.array([exchange_s]), optimizer_s=np.array([optimizer_s]))
        return float(whole_layers_bound_s(pipelines, layers, once, chunks, np.inf)[0])

    alone = 4 * 2.0 + 2.0
    assert found(0.0, 0.0) == pytest.approx(alone, rel=0.01)
    assert found(0.9, 0.0) == pytest.approx(alone, rel=0.01)
    assert found(2.0, 0.5) == pytest.approx(4 * 2.0 + 2 * 2.5, rel=0.01)


@pytest.mark.parametrize("name", ["dense", "groups of ranks that hold experts", "under a power limit"])
def test_parts_depend_on_their_own_strategy_alone(name):
    """A row of a table costs what it costs alone: searches and estimates agree."""
    found = case(name)
    table = found.grids.table
    together = part_seconds(price_parts(found.pricing, table))
    for row in range(0, len(table), 17):
        alone = part_seconds(price_parts(found.pricing, table.take(np.array([row]))))
        np.testing.assert_allclose(together[:, row], alone[:, 0], rtol=1e-12)


def test_work_adds_up_the_parts():
    found = case("groups of ranks that hold experts")
    costs = price_parts(found.pricing, found.grids.table)
    weights = np.array([1.0, 3.0, 1.0, 1.0])
    work = part_work(costs.names, part_seconds(costs), weights)
    assert work.counts == (1, 3)
    np.testing.assert_allclose(work.total_s, work.first_s + work.last_s + np.array([1.0, 3.0]) @ work.layer_s)
    assert FULL_RECOMPUTE in found.options

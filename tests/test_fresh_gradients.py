"""Gradients that are no tensors before the backward pass makes them: a walk through the step, verdicts, bounds."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import pricing_of, small

from costmodels.job import Software, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.memory import allocated_bytes, components, default_memory, reserved_bytes, stage_memory
from costmodels.memory.peak import OUTSIDE, StageSums
from costmodels.precision import precision
from costmodels.results import MemoryUse, Verdict
from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import parameter_count
from hardware.cluster import Accelerator, PeakRates
from planner.bounds.option_memory import OptionMemory
from planner.layouts.build import uniform_layout
from planner.layouts.grids import enumerate_grids
from planner.request import PlanRequest
from planner.rules import request_mask

GIB = 2.0**30
MODEL = Architecture(layers=8, hidden=2048, vocab=32000, heads=16, ffn=5632).build("llama")
FRESH = Software(name="now", framework="fsdp", fresh_gradients=True)
STAYING = replace(FRESH, fresh_gradients=False)
SHARDS = 8
SHARD_BYTES = 4.0 * parameter_count(MODEL).total / SHARDS


def sized_card(request: PlanRequest, size_gib: float) -> Accelerator:
    return replace(pricing_of(request).accelerator, memory_bytes=size_gib * GIB, allocatable_bytes=0.0)


def use_of(
    software: Software,
    *,
    count: int = 1,
    zero: int = 3,
    recompute: Recompute = NO_RECOMPUTE,
    seq: int = 2048,
    size_gib: float = 4096.0,
    dp: int = SHARDS,
) -> MemoryUse:
    strategy = Strategy(dp=dp, zero=zero, recompute=recompute)
    stage = Stage(layers_per_chunk=(MODEL.layers,), strategies=(StrategyRun(strategy=strategy, count=MODEL.layers),))
    layout = Layout(stages=(stage,), micro_batch=4, num_microbatches=count)
    job = TrainingJob(global_batch=4 * dp * count, seq=seq, precision=precision("bf16"), software=software)
    card = Accelerator(name="card", vendor="", peak=PeakRates(), memory_bytes=size_gib * GIB, memory_bytes_per_s=1e12)
    return stage_memory(layout, MODEL, job, card)[0]


def test_a_step_of_one_micro_batch_has_no_gradients_while_its_activations_are_whole():
    fresh, staying = use_of(FRESH), use_of(STAYING)
    assert dict(staying.components)["gradients"] == pytest.approx(SHARD_BYTES)
    assert dict(fresh.components)["gradients"] == 0.0
    assert allocated_bytes(staying) - allocated_bytes(fresh) == pytest.approx(SHARD_BYTES)
    # the stream that reduces them keeps their blocks: what the allocator holds is the same
    assert reserved_bytes(fresh) == pytest.approx(reserved_bytes(staying))


@pytest.mark.parametrize("asked", [{"count": 2}, {"zero": 1}])
def test_gradients_of_an_earlier_micro_batch_or_in_buffers_are_there(asked):
    assert use_of(FRESH, **asked) == use_of(STAYING, **asked)


def test_a_rank_alone_may_use_their_blocks_for_activations():
    fresh, staying = (use_of(tools, dp=1, zero=0) for tools in (FRESH, STAYING))
    assert dict(fresh.components)["gradients"] == 0.0
    saved = allocated_bytes(staying) - allocated_bytes(fresh)
    assert saved == pytest.approx(SHARDS * SHARD_BYTES)
    assert reserved_bytes(staying) - reserved_bytes(fresh) == pytest.approx(saved)


def test_a_full_device_gives_their_blocks_back():
    """A card that holds the peak of live tensors is enough, though all that the allocator wants is more."""
    least = use_of(FRESH).total_bytes - dict(use_of(FRESH).components)["reserve"]
    size = least * 1.04 / GIB
    assert use_of(STAYING, size_gib=size).verdict is Verdict.OOM
    assert use_of(FRESH, size_gib=size).verdict is Verdict.RISKY


def test_with_few_tokens_the_peak_is_the_backward_pass_of_the_first_layer():
    fresh, staying = (dict(use_of(tools, recompute=FULL_RECOMPUTE, seq=64).components) for tools in (FRESH, STAYING))
    assert fresh["logits"] == 0.0
    assert fresh["gathered"] > 0.0
    assert fresh["gradients"] == pytest.approx(SHARD_BYTES)
    assert fresh["activations"] < staying["activations"]


SIZES = st.floats(0.0, 100.0)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.fixed_dictionaries({field.name: SIZES for field in fields(StageSums)}), st.integers(1, 12), st.booleans())
def test_the_peak_is_that_of_a_walk_through_the_layers(drawn, layers, waits):
    """Layer by layer activations go and gradients come: no moment of the walk exceeds the peak, and one reaches it."""
    kept, gradients = drawn["one_microbatch"], drawn["gradients"]
    apart = gradients * (drawn["fresh_apart"] > 50.0)
    sizes = drawn | {"activations": kept, "one_layer": kept / layers, "groups": 0.0}
    sizes |= {"fresh": gradients, "fresh_apart": apart}
    arrays = {name: np.array([size]) for name, size in sizes.items()}
    sums = StageSums(**{**arrays, "unreduced": arrays["unreduced"] if waits else None})
    named = components(sums, 1e9, replace(default_memory(), workspace_bytes=0.0, context_bytes=0.0))
    waiting = sizes["unreduced"] * waits
    running = sizes["working"] + waiting
    moments = [  # gradients, gathered weights, all else
        (0.0, sizes["head_whole"], kept + sizes["loss"] + waiting),
        (0.0, sizes["head_gathered"], kept + waiting),
        *(
            (gradients * done / layers, sizes["gathered"], kept - kept * done / layers + running)
            for done in range(layers)
        ),
        (gradients, sizes["gathered"], kept / layers + running),  # those of the first layer beside its activations
        (gradients, sizes["left_whole"], sizes["embedding_gradient"] + sizes["passing"] + waiting),
        (gradients, 0.0, sizes["step"]),
    ]
    states = sizes["weights"] + sizes["optimizer"] + sizes["buffers"]
    live = sum(float(size[0]) for name, size in named.items() if name not in (*OUTSIDE, "reserve"))
    assert live == pytest.approx(states + max(map(sum, moments)))
    # a pool of the allocator for each stream: at the loss it holds what the head's backward pass gathers as well
    moments.append((0.0, sizes["head_gathered"], kept + sizes["loss"] + waiting))
    held = states + apart + max(weights + others + made * (not apart) for made, weights, others in moments)
    assert live + named["reserve"][0] >= held * (1.0 - 1e-9)


def test_gathered_weights_of_the_head_meet_its_logits_and_its_gradient_later():
    """At the loss its weights alone are gathered; what its backward pass gathers more is in the reserve then."""
    use = use_of(replace(FRESH, fresh_gradients=False), recompute=FULL_RECOMPUTE)
    named, head = dict(use.components), 2.0 * 32000 * 2048
    assert named["logits"] > 0.0
    assert named["gathered"] == pytest.approx(head, rel=1e-3)
    later = 2.0 * head + 3.0 * head  # two such matrices, its gradient in 16 bits and in fp32
    share = default_memory().reserve_share * (named["activations"] + named["logits"] + later)
    table_gradient = head
    assert named["reserve"] == pytest.approx(later - head + share + table_gradient, rel=1e-3)


@pytest.mark.parametrize("gpus", [1, 4])
def test_cards_that_just_hold_a_layout_are_not_dropped_by_the_bound_on_memory(gpus: int):
    """Each layout without a pipeline, on a card of its live tensors and a little, and on one that it fits safely."""
    words = {"layers": (16,), "gpus": gpus, "seq": 16384 // gpus, "global_batch": gpus, "framework": "torchtitan"}
    request = small("llama2_7b", **words)
    every = enumerate_grids(request, gpus)
    every = every.take(np.flatnonzero((every.table.pp == 1) & request_mask(request, every.table).ok))
    fresh = 0
    for row, option in product(range(len(every)), (NO_RECOMPUTE, FULL_RECOMPUTE)):
        strategy = replace(every.table.strategy(row), recompute=option)
        micro_batch, number = int(every.table.micro_batch[row]), int(every.num_microbatches[row])
        layout = uniform_layout(strategy, ((16,),), micro_batch=micro_batch, num_microbatches=number)
        (use,) = stage_memory(layout, request.model, request.job, sized_card(request, 4096.0))
        parts = dict(use.components)
        fresh += parts["gradients"] == 0.0
        safe = use.total_bytes / default_memory().risky_share
        for verdict, enough in ((Verdict.RISKY, use.total_bytes - parts["reserve"]), (Verdict.FITS, safe)):
            just = 1.05 if verdict is Verdict.RISKY else 1.001
            pricing = pricing_of(small("llama2_7b", memory_gib=just * enough / GIB, **words))
            (here,) = stage_memory(layout, request.model, request.job, pricing.accelerator)
            assert here.verdict is verdict
            memory = OptionMemory(pricing=pricing, accepted=verdict)
            assert memory.mean_fits(every.take(np.array([row])), (option,), np.ones((1, 1), dtype=np.bool_)).all()
    assert fresh > 0

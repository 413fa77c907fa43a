"""Memory of whole layouts: order relations, uneven stages, chunks, strategies per layer, verdicts, speed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.job import Software, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Granularity, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.memory import (
    allocated_bytes,
    components,
    default_memory,
    layer_memory,
    model_memory,
    reserved_bytes,
    stage_memory,
    stage_sums,
    total_bytes,
)
from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.positions import Contents, part_counts
from costmodels.precision import precision
from costmodels.results import MemoryUse, Moment, Verdict
from costmodels.software import software
from costmodels.table import table_of
from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import parameter_count
from hardware.cluster import Accelerator, PeakRates

GIB = 2.0**30
BIG = Accelerator(name="big", vendor="", peak=PeakRates(), memory_bytes=4096 * GIB, memory_bytes_per_s=1e12)
LLAMA = Architecture(layers=16, hidden=2048, vocab=32000, heads=16, kv_heads=4, ffn=5632).build("llama")
MOE = Architecture(
    layers=16, hidden=1024, vocab=32000, heads=16, ffn=4096, experts=16, top_k=2, expert_ffn=1024, first_dense=2
).build("moe")
SELECTIVE = Recompute(granularity=Granularity.SELECTIVE, modules=("layernorm", "mlp_act", "moe_act"))
LLAMA_PARAMETERS = parameter_count(LLAMA).total
NOW = Software(name="now", framework="megatron")


def job(software: Software = NOW, seq: int = 2048) -> TrainingJob:
    return TrainingJob(global_batch=512, seq=seq, precision=precision("bf16"), software=software)


def plan(
    chunks: list[list[int]], strategy: Strategy, *, micro: int = 1, count: int = 32, schedule: Schedule | None = None
) -> Layout:
    stages = tuple(
        Stage(layers_per_chunk=tuple(c), strategies=(StrategyRun(strategy=strategy, count=sum(c)),)) for c in chunks
    )
    chosen = schedule or (Schedule.INTERLEAVED if len(chunks[0]) > 1 else Schedule.ONE_F_ONE_B)
    return Layout(stages=stages, micro_batch=micro, num_microbatches=count, schedule=chosen)


def parts(use: MemoryUse) -> dict[str, float]:
    return dict(use.components)


grids = st.builds(
    Strategy,
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    dp=st.sampled_from([2, 4, 8]),
    ep=st.sampled_from([1, 2]),
    sequence_parallel=st.booleans(),
    zero=st.integers(0, 3),
)


@given(grids, st.sampled_from([LLAMA, MOE]), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_order_relations_of_a_layer(strategy, model, micro):
    kind = model.kinds()[-1]
    variants = [
        strategy,
        replace(strategy, zero=min(3, strategy.zero + 1)),
        replace(strategy, recompute=SELECTIVE),
        replace(strategy, recompute=FULL_RECOMPUTE),
        replace(strategy, cp=2 * strategy.cp),
    ]
    sizes = [micro] * len(variants) + [micro + 1]
    memory = layer_memory(kind, model, job(), table_of([*variants, strategy], pp=[1] * 6, micro_batch=sizes))
    plain, more_zero, selective, full, more_cp, more_batch = range(6)
    assert memory.states[more_zero] <= memory.states[plain]
    assert memory.kept[full] <= memory.kept[selective] <= memory.kept[plain]
    assert memory.working[plain] <= memory.working[selective] <= memory.working[full]
    assert memory.kept[more_cp] < memory.kept[plain]
    assert memory.kept[more_batch] > memory.kept[plain]


@given(grids, st.integers(0, 3), st.sampled_from([NO_RECOMPUTE, SELECTIVE, FULL_RECOMPUTE]))
@settings(max_examples=25, deadline=None)
def test_components_sum_and_nest(strategy, uneven, recompute):
    chunks = [[4 + uneven], [4], [4 - uneven], [4]]
    uses = stage_memory(plan(chunks, replace(strategy, recompute=recompute)), MOE, job(), BIG)
    for use in uses:
        assert use.total_bytes == pytest.approx(sum(size for _, size in use.components))
        assert all(size >= 0.0 for _, size in use.components)
        assert allocated_bytes(use) < reserved_bytes(use) < use.total_bytes
        assert use.verdict is Verdict.FITS
        assert use.moment is Moment.NONE


def test_uneven_stages_hold_their_own_layers():
    strategy = Strategy(dp=2)
    even, uneven = (stage_memory(plan(c, strategy), LLAMA, job(), BIG) for c in ([[4]] * 4, [[5], [5], [3], [3]]))
    layer = layer_memory(LLAMA.kinds()[0], LLAMA, job(), table_of([strategy], pp=[4], micro_batch=[1]))
    for stage, more in enumerate([1, 1, -1, -1]):
        grown = parts(uneven[stage])["weights"] - parts(even[stage])["weights"]
        assert grown == pytest.approx(more * layer.weights[0])
    held = [use_parts["activations"] for use_parts in map(parts, even)]
    token_ids = 8.0 * 2048
    assert held[0] == pytest.approx(4 * (4 * layer.kept[0] + token_ids))
    assert held[1] == pytest.approx(3 * 4 * layer.kept[0])


def test_kinds_follow_the_model_along_the_pipeline():
    strategy = Strategy(dp=4, ep=2)
    uses = stage_memory(plan([[2], [6], [8]], strategy), MOE, job(), BIG)
    table = table_of([strategy], pp=[3], micro_batch=[1])
    dense, routed = (layer_memory(kind, MOE, job(), table).weights[0] for kind in MOE.kinds())
    assert parts(uses[1])["weights"] == pytest.approx(6 * routed)
    assert parts(uses[0])["weights"] == pytest.approx(2 * dense + 2.0 * 32000 * 1024)


def test_interleaving_holds_more_on_the_first_stage():
    strategy = Strategy(dp=2)
    plain = stage_memory(plan([[4]] * 4, strategy), LLAMA, job(), BIG)
    halves = stage_memory(plan([[2, 2]] * 4, strategy), LLAMA, job(), BIG)
    ratio = parts(halves[0])["activations"] / parts(plain[0])["activations"]
    assert ratio == pytest.approx(1 + 3 / (4 * 2), rel=0.01)  # arXiv 2205.05198, section 4.2.3


def test_gpipe_holds_every_microbatch_and_its_loss():
    strategy = Strategy(dp=2)
    uses = stage_memory(plan([[8], [8]], strategy, count=8, schedule=Schedule.GPIPE), LLAMA, job(), BIG)
    one = stage_memory(plan([[8], [8]], strategy, count=1), LLAMA, job(), BIG)
    for all_held, single in zip(uses, one, strict=True):
        assert parts(all_held)["activations"] == pytest.approx(8 * parts(single)["activations"])


def test_first_layers_may_be_recomputed():
    base, full = Strategy(dp=2), Strategy(dp=2, recompute=FULL_RECOMPUTE)
    table = table_of([base, full], pp=[1, 1], micro_batch=[1, 1])
    layer = layer_memory(LLAMA.kinds()[0], LLAMA, job(), table)
    held = []
    for count in range(17):
        runs = [StrategyRun(strategy=s, count=n) for s, n in ((full, count), (base, 16 - count)) if n]
        stage = Stage(layers_per_chunk=(16,), strategies=tuple(runs))
        (use,) = stage_memory(Layout(stages=(stage,), micro_batch=1, num_microbatches=4), LLAMA, job(), BIG)
        held.append(parts(use)["activations"])
    assert np.diff(held) == pytest.approx([layer.kept[1] - layer.kept[0]] * 16)


def test_tied_embeddings_are_copied_to_the_last_stage():
    tied = replace(LLAMA, tied_embeddings=True)
    strategy = Strategy(dp=2)
    apart = stage_memory(plan([[8], [8]], strategy), tied, job(), BIG)
    alone = stage_memory(plan([[16]], strategy), tied, job(), BIG)
    weights = sum(parts(use)["weights"] for use in apart)
    assert weights - parts(alone[0])["weights"] == pytest.approx(2.0 * 32000 * 2048)


def test_activation_offload_frees_layers():
    strategy = Strategy(dp=2)
    layer = layer_memory(LLAMA.kinds()[0], LLAMA, job(), table_of([strategy], pp=[1], micro_batch=[1]))
    away = replace(NOW, activation_offload_layers=10)
    (here,), (there,) = (stage_memory(plan([[16]], strategy), LLAMA, job(s), BIG) for s in (NOW, away))
    assert parts(here)["activations"] - parts(there)["activations"] == pytest.approx(10 * layer.kept[0])


def test_stage_outputs_and_buckets():
    strategy = Strategy(dp=2, zero=1)
    software = replace(NOW, stage_outputs_kept=True, bucket_bytes=1e9)
    plain, more = (stage_memory(plan([[8], [8]], strategy), LLAMA, job(s), BIG) for s in (NOW, software))
    boundary = 2.0 * 2048 * 2048
    assert parts(more[0])["activations"] - parts(plain[0])["activations"] == pytest.approx(2 * boundary)
    assert parts(more[1])["activations"] == pytest.approx(parts(plain[1])["activations"])
    assert parts(more[0])["buffers"] - parts(plain[0])["buffers"] == pytest.approx(1e9)
    unsharded = stage_memory(plan([[8], [8]], Strategy(dp=2)), LLAMA, job(software), BIG)
    assert parts(unsharded[0])["buffers"] == pytest.approx(parts(plain[0])["buffers"])


def test_copies_beside_the_states():
    weights = parts(stage_memory(plan([[16]], Strategy(dp=2, zero=1)), LLAMA, job(), BIG)[0])["weights"]
    plain, more = (NOW, replace(NOW, gradient_copy_bytes=2.0, gather_copy_bytes=2.0))

    def added(strategy: Strategy, name: str) -> float:
        here, there = (stage_memory(plan([[16]], strategy), LLAMA, job(s), BIG)[0] for s in (plain, more))
        return parts(there)[name] - parts(here)[name]

    sharded, replicas, alone = Strategy(dp=2, zero=1), Strategy(dp=2), Strategy(zero=1)
    assert [added(s, "gradients") for s in (sharded, replicas, alone)] == pytest.approx([0.0, weights, 0.0])
    assert [added(s, "buffers") for s in (sharded, replicas, alone)] == pytest.approx([weights, 0.0, 0.0])


def test_gradients_of_a_micro_batch_pass_by():
    """They stand whole at the end of its backward pass, when its activations are gone, the token table's among them."""
    software = replace(NOW, passing_gradient_bytes=2.0)
    (use,) = stage_memory(plan([[16]], Strategy()), LLAMA, job(software, seq=8), BIG)
    assert parts(use)["working"] == pytest.approx(parts(use)["weights"])
    assert parts(use)["activations"] == pytest.approx(0.0)
    long = [parts(stage_memory(plan([[16]], Strategy()), LLAMA, job(s), BIG)[0]) for s in (NOW, software)]
    assert long[0] == pytest.approx(long[1])  # fewer bytes than the activations that they follow


@pytest.mark.parametrize(("zero", "count", "waits"), [(3, 4, True), (2, 4, True), (3, 1, False), (1, 4, False)])
def test_gradients_that_wait_for_the_last_micro_batch_are_whole_until_then(zero, count, waits):
    """FSDP under no_sync: every rank holds all gradients, as wide as they are reduced, in place of its shard."""
    tools = replace(NOW, sync_each_batch=False)
    asked = replace(job(tools), global_batch=8 * count)
    layout = plan([[16]], Strategy(dp=8, zero=zero), count=count)
    (use,), (plain,) = (stage_memory(layout, LLAMA, replace(asked, software=s), BIG) for s in (tools, NOW))
    whole = asked.precision.reduce_bytes * LLAMA_PARAMETERS
    held = parts(use)["gradients"] + parts(use)["unreduced"]
    assert parts(use)["unreduced"] == pytest.approx(whole - parts(plain)["gradients"] if waits else 0.0, rel=1e-3)
    assert held == pytest.approx(whole if waits else parts(plain)["gradients"], rel=1e-3)
    assert "unreduced" not in parts(plain)
    assert use.total_bytes == pytest.approx(plain.total_bytes + parts(use)["unreduced"])


@pytest.mark.parametrize(("chunks", "count"), [([[4, 2], [8, 2]], 8), ([[6], [10]], 1)])
def test_stages_of_pytorch_hold_whole_gradients_until_their_last_backward_pass(chunks, count):
    """Each stage those of its own parameters, one micro-batch no less than eight; without a pipeline nothing waits."""
    tools = replace(NOW, pipelines_reduce_once=True)
    asked = replace(job(tools), global_batch=4 * count)
    layout = plan(chunks, Strategy(dp=4, zero=2), count=count)
    uses, plain = (stage_memory(layout, LLAMA, replace(asked, software=s), BIG) for s in (tools, NOW))
    for use, sharded in zip(uses, plain, strict=True):
        gradients = asked.precision.reduce_bytes / asked.precision.weight_bytes * parts(use)["weights"]
        assert parts(use)["gradients"] + parts(use)["unreduced"] == pytest.approx(gradients)
        assert use.total_bytes == pytest.approx(sharded.total_bytes + parts(use)["unreduced"])
    (alone,) = stage_memory(plan([[16]], Strategy(dp=4, zero=2), count=count), LLAMA, asked, BIG)
    assert "unreduced" not in parts(alone)


def test_weights_that_zero_3_gathers_stay_whole_behind_a_backward_pass_of_pytorchs_stages():
    """What a micro-batch kept is gone then: the peak where it kept little, and no part of one where it kept much."""
    tools = replace(NOW, pipelines_reduce_once=True)
    layout = plan([[6], [10]], Strategy(dp=4, zero=3), count=4)
    for seq, stay in ((8, True), (8192, False)):
        asked = replace(job(tools, seq=seq), global_batch=16)
        pairs = zip(*(stage_memory(layout, LLAMA, replace(asked, software=s), BIG) for s in (tools, NOW)), strict=True)
        for use, sharded in pairs:
            whole = asked.precision.gather_bytes / asked.precision.weight_bytes * 4 * parts(use)["weights"]
            assert parts(use)["gathered"] == pytest.approx(whole if stay else parts(sharded)["gathered"])
            assert parts(use)["unreduced"] > 0.0


def test_gradients_that_wait_are_gone_when_the_optimizer_steps():
    """A peak in the step alone holds shards only; what waits counts where it exists."""
    tools = replace(NOW, sync_each_batch=False, step_gradient_bytes=1e3)
    asked = replace(job(tools, seq=8), global_batch=16)
    (use,) = stage_memory(plan([[16]], Strategy(dp=8, zero=3), count=2), LLAMA, asked, BIG)
    assert parts(use)["step"] > 0.0
    assert parts(use)["unreduced"] == 0.0


@pytest.mark.parametrize(("recipe", "beside"), [("bf16", 0.0), ("fp8-ds", 2.0), ("fp8-blockwise", 0.0)])
def test_weights_in_8_bits_need_shards_that_are_gathered(recipe, beside):
    plans = [plan([[16]], Strategy(dp=2, zero=zero)) for zero in (0, 1)]
    asked = replace(job(), precision=precision(recipe))
    plain, sharded = (parts(stage_memory(p, LLAMA, asked, BIG)[0])["weights"] for p in plans)
    width = asked.precision.weight_bytes + asked.precision.extra_weight_bytes
    assert plain == pytest.approx(sharded * (width + beside) / width)


def test_slots_for_all_that_a_stage_keeps():
    """Buffers of a static plan hold a number of micro-batches per stage, on stages whose passes are apart."""
    software = replace(NOW, stage_slots=2)
    layout = plan([[4], [4], [4], [4]], Strategy(dp=2))
    usual, slotted = (stage_memory(layout, LLAMA, job(s), BIG) for s in (NOW, software))
    kept = parts(usual[0])["activations"] / 4
    assert parts(slotted[0])["activations"] == pytest.approx(8 * kept)
    assert parts(slotted[2])["activations"] == pytest.approx(8 * parts(usual[2])["activations"] / 2)
    assert slotted[3] == usual[3]


def test_optimizer_states_in_host_memory_by_stage():
    shares = (0.0, 0.25, 1.0, 0.5)
    here = plan([[4], [4], [4], [4]], Strategy(dp=2))
    uses = (stage_memory(layout, LLAMA, job(), BIG) for layout in (here, replace(here, optimizer_on_host=shares)))
    for share, whole, moved in zip(shares, *uses, strict=True):
        states = parts(whole)["optimizer"]
        assert parts(moved)["optimizer"] == pytest.approx((1.0 - share) * states)
        assert moved.host_bytes == pytest.approx(share * states)


def test_late_frees_stay_reserved():
    """Whole outputs of two row-parallel products per layer, for as many layers as the host queues."""
    ahead = default_memory().layers_ahead

    def added(
        strategy: Strategy, stages: list[list[int]], frees: str = "passes", behind: bool = False, count: int = 32
    ) -> float:
        software = replace(NOW, late_frees=frees)
        layers = sum(map(sum, stages))
        model = Architecture(layers=layers, hidden=2048, vocab=32000, heads=16, ffn=8192).build("deep")
        layout, stage = plan(stages, strategy, count=count), np.full(len(stages), behind)
        here, there = (stage_memory(layout, model, job(s), BIG, behind=stage)[0] for s in (NOW, software))
        return parts(there)["reserve"] - parts(here)["reserve"]

    split = Strategy(tp=4, sequence_parallel=True)
    whole = 2.0 * 2048 * 2048  # bytes of one activation, all columns
    assert added(split, [[16]]) == pytest.approx(2 * 16 * whole)
    assert added(split, [[64]]) == pytest.approx(2 * ahead * whole)
    assert added(replace(split, sequence_parallel=False), [[16]]) == 0.0
    assert added(split, [[8], [8]]) == pytest.approx(2 * 8 * whole)  # the host waits after each pass of a stage
    assert added(split, [[4, 4], [4, 4]]) == pytest.approx(2 * 4 * whole)
    # the host waits for nothing between micro-batches: those of the backward pass before are reserved as well
    assert added(split, [[16]], frees="fill") == pytest.approx(2 * ahead * whole)
    assert added(split, [[8]], frees="fill") == pytest.approx(2 * 2 * 8 * whole)
    assert added(split, [[16]], frees="fill", count=1) == pytest.approx(2 * 16 * whole)
    assert added(split, [[8], [8]], frees="fill") == 0.0  # the next stage takes both of the fill at once
    assert added(split, [[4], [4], [4], [4]], frees="fill") == pytest.approx(2 * 2 * 4 * whole)
    assert added(split, [[8]] * 8, frees="fill") == pytest.approx(2 * ahead * whole)  # of 6 passes of 8
    assert added(split, [[8], [8]], frees="fill", behind=True) == pytest.approx(2 * 2 * 8 * whole)
    assert added(split, [[4]] * 3, frees="fill", behind=True) == pytest.approx(2 * 3 * 4 * whole)
    assert added(split, [[8], [8]], behind=True) == pytest.approx(2 * 8 * whole)
    assert added(Strategy(), [[16]]) == 0.0


def test_a_full_memory_has_nothing_late():
    """The allocator returns its cache before it fails and waits for the device; such a memory is no safe one."""
    layout = plan([[16]], Strategy(tp=4, sequence_parallel=True), micro=8)
    late = job(replace(NOW, late_frees="passes"))
    without, whole = (stage_memory(layout, LLAMA, asked, BIG)[0] for asked in (job(), late))
    middle = replace(BIG, memory_bytes=(without.total_bytes + whole.total_bytes) / 2.0)
    full, usual = (stage_memory(layout, LLAMA, asked, middle)[0] for asked in (late, job()))
    assert full.total_bytes == usual.total_bytes
    assert full.verdict is Verdict.RISKY


def test_bytes_of_a_loss_of_separate_kernels():
    strategy = Strategy()
    usual, less = (
        parts(stage_memory(plan([[16]], strategy), LLAMA, job(s, seq=8192), BIG)[0])["logits"]
        for s in (NOW, replace(NOW, loss_bytes_per_logit=8.0))
    )
    assert usual - less == pytest.approx((default_memory().loss_bytes_per_logit - 8.0) * 32000 * 8192)


@pytest.mark.parametrize(("tp", "more", "columns"), [(1, 0.0, 32000), (4, 4.0, 8064)])
def test_bytes_of_a_loss_over_split_columns(tp, more, columns):
    """DTensor's holds four fp32 tensors of its columns at once, the same loss on whole columns three."""
    strategy = Strategy(tp=tp)
    usual, split = (
        parts(stage_memory(plan([[16]], strategy), LLAMA, job(s, seq=8192), BIG)[0])["logits"]
        for s in (NOW, replace(NOW, split_loss_bytes_per_logit=16.0))
    )
    assert split - usual == pytest.approx(more * columns * 8192)
    assert software("torchtitan").split_loss_bytes_per_logit == 16.0


def test_states_in_host_memory_leave_what_is_gathered():
    strategy = Strategy(dp=8, zero=3)
    here, away = (
        stage_memory(plan([[16]], strategy), LLAMA, job(s), BIG)[0] for s in (NOW, replace(NOW, state_offload=True))
    )
    states = sum(parts(here)[name] for name in ("weights", "gradients", "optimizer"))
    assert away.host_bytes == pytest.approx(states)
    assert parts(away)["gathered"] + parts(away)["logits"] > 0.0
    assert sum(parts(away)[name] for name in ("weights", "gradients", "optimizer")) == 0.0


def test_micro_batches_beyond_the_schedule():
    held = []
    for extra in (0, 2, 50):
        layout = replace(plan([[8], [8]], Strategy()), extra_in_flight=extra)
        held.append(parts(stage_memory(layout, LLAMA, job(), BIG)[1])["activations"])
    more = layout.num_microbatches - layout.pp
    assert (held[2] - held[0]) / (held[1] - held[0]) == pytest.approx(more / 2)


def test_reserve_holds_the_gradient_of_the_token_table():
    """It is larger than what the allocator has cached, so it does not reuse the memory of activations."""
    layout = plan([[8], [8]], Strategy())
    first, last = stage_memory(layout, LLAMA, job(), BIG)
    share = default_memory().reserve_share
    moving = parts(first)["activations"] + parts(first)["working"]
    assert parts(first)["reserve"] - share * moving == pytest.approx(2.0 * 32000 * 2048)
    moving = sum(parts(last)[name] for name in ("activations", "working", "logits"))
    assert parts(last)["reserve"] == pytest.approx(share * moving)


def test_optimizer_step_may_be_the_peak():
    of = replace(job(seq=128), precision=replace(precision("bf16"), step_bytes=4.0))
    (use,) = stage_memory(plan([[16]], Strategy()), LLAMA, of, BIG)
    assert parts(use)["activations"] == 0.0
    assert parts(use)["step"] == pytest.approx(2 * parts(use)["weights"])


def test_adam_that_takes_all_parameters_at_once_holds_a_temporary_of_a_moment():
    """NVIDIA-NeMo/Automodel pull request 2546: the first step fails in ``_foreach_sqrt``, not the passes before it."""
    of = replace(job(replace(NOW, step_moment_copies=1.0), seq=128), optimizer_bytes=4.0)
    (use,) = stage_memory(plan([[16]], Strategy()), LLAMA, of, BIG)
    assert parts(use)["step"] == pytest.approx(parts(use)["weights"])  # both of two bytes
    short = replace(BIG, memory_bytes=use.total_bytes - 0.5 * parts(use)["step"], allocatable_bytes=0.0)
    assert stage_memory(plan([[16]], Strategy()), LLAMA, of, short)[0].moment is Moment.FIRST_STEP


def test_zero_3_steps_over_a_part_of_the_parameters():
    """DeepSpeed's ``sub_group_size``; stages 1 and 2 take a partition whole."""
    software = replace(NOW, step_gradient_bytes=4.0, step_flat_bytes=2.0, step_parameters=4e8)
    step = [
        parts(stage_memory(plan([[16]], Strategy(dp=2, zero=zero)), LLAMA, job(software, seq=8), BIG)[0])["step"]
        for zero in (2, 3)
    ]
    assert step[1] == pytest.approx(2.4e9)
    weights = parts(stage_memory(plan([[16]], Strategy()), LLAMA, job(), BIG)[0])["weights"]
    assert step[0] == pytest.approx(3.0 * weights / 2)


# In units of the bf16 weights: gradients bring states to 3, master weights to 5, Adam's states to 9.
MOMENTS = {Moment.LOAD: 2.9, Moment.OPTIMIZER: 4.9, Moment.FORWARD: 5.02, Moment.FIRST_STEP: 8.9}


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.value)
def test_moment_of_failure(moment):
    model = Architecture(layers=32, hidden=4096, vocab=32000, heads=32, ffn=11008).build("7b")
    (roomy,) = stage_memory(plan([[32]], Strategy()), model, job(seq=256), BIG)
    outside = parts(roomy)["context"] + parts(roomy)["communicators"]
    small = replace(BIG, memory_bytes=MOMENTS[moment] * parts(roomy)["weights"] + outside)
    (use,) = stage_memory(plan([[32]], Strategy()), model, job(seq=256), small)
    assert use.verdict is Verdict.OOM
    assert use.moment is moment


def test_reserve_shrinks_before_a_layout_fails():
    (roomy,) = stage_memory(plan([[16]], Strategy(dp=8, zero=1), micro=8), LLAMA, job(), BIG)
    constants = default_memory()
    live = roomy.total_bytes - parts(roomy)["reserve"]
    moving = parts(roomy)["reserve"] / constants.reserve_share
    tight = replace(BIG, memory_bytes=live + 0.5 * parts(roomy)["reserve"])
    (use,) = stage_memory(plan([[16]], Strategy(dp=8, zero=1), micro=8), LLAMA, job(), tight)
    assert use.verdict is Verdict.RISKY
    assert use.total_bytes == pytest.approx(tight.memory_bytes)
    short = replace(BIG, memory_bytes=live + 0.9 * constants.least_reserve_share * moving)
    (use,) = stage_memory(plan([[16]], Strategy(dp=8, zero=1), micro=8), LLAMA, job(), short)
    assert use.verdict is Verdict.OOM


def test_public_reports_of_running_out():
    # Llama-2-7B on 40 GB cards: 18 bytes per parameter never fit; two-way tp with a distributed optimizer does
    model = Architecture(layers=32, hidden=4096, vocab=32000, heads=32, ffn=11008).build("llama2-7b")
    card = replace(BIG, memory_bytes=40 * GIB, allocatable_bytes=39.4 * GIB)
    cases = [
        (Strategy(dp=8), Verdict.OOM),
        (Strategy(dp=8, zero=1), Verdict.OOM),
        (Strategy(tp=2, dp=4, zero=1, sequence_parallel=True), Verdict.FITS),
    ]
    for strategy, verdict in cases:
        (use,) = stage_memory(plan([[32]], strategy), model, job(seq=64), card)
        assert use.verdict is verdict
    states = sum(
        parts(stage_memory(plan([[32]], Strategy(dp=8)), model, job(seq=64), card)[0])[name]
        for name in ("weights", "gradients", "optimizer")
    )
    assert 105e9 < states < 130e9


def uniform(strategies: list[Strategy], pp: int) -> tuple[Contents, object]:
    table = table_of(strategies, pp=[pp] * len(strategies), micro_batch=[1] * len(strategies))
    layers = np.full((len(strategies), pp), MOE.layers // pp)
    contents = Contents(
        spec=PipelineSpec(schedule=Schedule.ONE_F_ONE_B, pp=pp, num_microbatches=32),
        rows=np.arange(len(strategies))[:, None],
        counts=part_counts(MOE, layers)[:, :, None, :],
        islands=(0,) * pp,
    )
    return contents, table


@given(st.lists(grids, min_size=1, max_size=5), st.sampled_from([1, 2, 4]))
@settings(max_examples=20, deadline=None)
def test_many_layouts_at_once_agree_with_one(strategies, pp):
    contents, table = uniform(strategies, pp)
    sums = stage_sums(MOE, job(), model_memory(MOE, job(), table), contents)
    named = components(sums, BIG.memory_bytes, default_memory())
    for row, strategy in enumerate(strategies):
        uses = stage_memory(plan([[MOE.layers // pp]] * pp, strategy), MOE, job(), BIG)
        assert total_bytes(named)[row] == pytest.approx([use.total_bytes for use in uses])


def test_gradients_under_zero_3_are_as_wide_as_they_are_reduced():
    """Two layers' weights and one's gradient in 16 bits; where that is reduced in fp32, a copy of it as well."""
    table = table_of([Strategy(dp=8, zero=3)], pp=[1], micro_batch=[1])
    layer = (LLAMA_PARAMETERS - 2 * 32000 * 2048) / 16

    def gathered(reduce_bytes: float) -> float:
        pure = replace(job(replace(NOW, reduce_bytes=reduce_bytes)), precision=precision("bf16-pure"))
        return float(layer_memory(LLAMA.runs[0].kind, LLAMA, pure, table).gathered[0])

    assert gathered(2.0) == pytest.approx((2 * 2 + 2) * layer, rel=1e-3)
    assert gathered(4.0) == pytest.approx((2 * 2 + 2 + 4) * layer, rel=1e-3)

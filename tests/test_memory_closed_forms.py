"""Memory of layers against closed forms: kept activations, ZeRO partitions, logits, offloading."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.job import Precision, Software, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Granularity, Recompute, Strategy
from costmodels.memory import LayerMemory, default_memory, embedding_memory, head_memory, layer_memory
from costmodels.memory.layer import mtp_memory, table_memory
from costmodels.memory.states import parameter_bytes
from costmodels.precision import precision
from costmodels.table import StrategyTable, table_of
from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import owned_parameters
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import LayerRun, ModelSpec, OpaqueLayer

HIDDEN, HEADS, SEQ, BATCH = 1024, 16, 512, 3
SBH = SEQ * BATCH * HIDDEN
GPT = Architecture(
    layers=4,
    hidden=HIDDEN,
    vocab=1024,
    heads=HEADS,
    ffn=4 * HIDDEN,
    gated=False,
    norm="layer",
    ffn_bias=True,
    qkv_bias=True,
    out_bias=True,
).build("gpt")
LLAMA = Architecture(layers=4, hidden=HIDDEN, vocab=1000, heads=HEADS, kv_heads=4, ffn=2816).build("llama")
MOE = Architecture(
    layers=4, hidden=HIDDEN, vocab=1024, heads=HEADS, experts=8, top_k=2, expert_ffn=512, shared_ffn=512
).build("moe")
UNFUSED = Software(name="2022", framework="megatron", flash_attention=False, dropout=True)
CORE = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",))


def job(software: Software | None = None, **changes: float) -> TrainingJob:
    chosen = software or Software(name="now", framework="megatron")
    return TrainingJob(global_batch=96, seq=SEQ, precision=precision("bf16"), software=chosen, **changes)


def table(*strategies: Strategy, pp: int = 1, micro: int = BATCH) -> StrategyTable:
    return table_of(list(strategies), pp=[pp] * len(strategies), micro_batch=[micro] * len(strategies))


def one(model: ModelSpec, strategy: Strategy, of: TrainingJob) -> LayerMemory:
    return layer_memory(model.kinds()[-1], model, of, table(strategy))


def kept(strategy: Strategy, software: Software = UNFUSED, model: ModelSpec = GPT) -> float:
    return float(one(model, strategy, job(software)).kept[0])


# Korthikanti et al., arXiv 2205.05198, table 2; softmax statistics and norms' are left out by the model as well.
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_kept_activations_of_tensor_parallelism(tp):
    scores = 5.0 * HEADS * SEQ / HIDDEN
    assert kept(Strategy(tp=tp)) == pytest.approx(SBH * (10.0 + 24.0 / tp + scores / tp))
    assert kept(Strategy(tp=tp, sequence_parallel=True)) == pytest.approx(SBH * (34.0 + scores) / tp)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_kept_activations_of_recompute(tp):
    assert kept(Strategy(tp=tp, sequence_parallel=True, recompute=CORE)) == pytest.approx(34.0 * SBH / tp)
    assert kept(Strategy(tp=tp, recompute=CORE)) == pytest.approx(SBH * (10.0 + 24.0 / tp))
    assert kept(Strategy(tp=tp, recompute=FULL_RECOMPUTE)) == pytest.approx(2.0 * SBH)
    assert kept(Strategy(tp=tp, sequence_parallel=True, recompute=FULL_RECOMPUTE)) == pytest.approx(2.0 * SBH / tp)


def test_context_parallelism_divides_tokens():
    whole, half = (one(LLAMA, Strategy(cp=cp), job()).kept[0] for cp in (1, 2))
    assert half == pytest.approx(whole / 2)


def test_full_recompute_restores_the_layer_while_it_runs():
    fused = job()
    plain, full = (one(LLAMA, Strategy(recompute=r), fused) for r in (NO_RECOMPUTE, FULL_RECOMPUTE))
    assert full.working[0] == pytest.approx(plain.working[0] + plain.kept[0] - full.kept[0])
    assert full.kept[0] + full.working[0] == pytest.approx(plain.kept[0] + plain.working[0])


def test_flash_attention_makes_core_recompute_worthless():
    plain, core = (one(LLAMA, Strategy(recompute=r), job()) for r in (NO_RECOMPUTE, CORE))
    assert core.kept[0] > 0.98 * plain.kept[0]


def test_routed_copies_divide_over_tp_but_not_over_ep():
    # every expert group holds, on average, as many copies as its own ranks' tokens make
    spread = [one(MOE, Strategy(dp=8, ep=ep), job()).kept[0] for ep in (1, 2, 4, 8)]
    assert spread == pytest.approx([spread[0]] * 4)
    folded = one(MOE, Strategy(tp=2, dp=4, ep=8, etp=1, sequence_parallel=True), job()).kept[0]
    assert folded == pytest.approx(spread[0] / 2, rel=1e-12)


def test_capacity_and_imbalance_scale_routed_tensors():
    even = one(MOE, Strategy(dp=8, ep=8), job()).kept[0]
    busy = one(MOE, Strategy(dp=8, ep=8), job(Software(name="", framework="", routing_imbalance=1.5))).kept[0]
    padded = one(MOE, Strategy(dp=8, ep=8), job(Software(name="", framework="", capacity_factor=1.5))).kept[0]
    routed = 2 * SEQ * BATCH * (2.0 * (HIDDEN + 3 * 512) + 8.0)  # inputs of both products, activation, route
    assert busy - even == pytest.approx(0.5 * routed)
    assert padded == pytest.approx(busy)


@pytest.mark.parametrize(
    ("zero", "expected"),
    [(0, 2 + 4 + 12), (1, 2 + 4 + 12 / 8), (2, 2 + 4 / 8 + 12 / 8), (3, (2 + 4 + 12) / 8)],
)
def test_zero_partitions(zero, expected):
    memory = one(GPT, Strategy(dp=4, cp=2, zero=zero), job())
    parameters = 12 * HIDDEN**2 + 13 * HIDDEN
    assert memory.states[0] == pytest.approx(expected * parameters)


def test_hybrid_sharding_uses_its_group():
    memory = one(GPT, Strategy(dp=16, zero=3, shard_group=4), job())
    assert memory.states[0] == pytest.approx(18 / 4 * (12 * HIDDEN**2 + 13 * HIDDEN))


def test_experts_shard_over_expert_data_parallelism():
    strategy = Strategy(tp=2, dp=8, ep=4, etp=1, sequence_parallel=True, zero=1)
    memory = one(MOE, strategy, job())
    expert = 8 * 3 * HIDDEN * 512 / 4
    attention = 4 * HIDDEN**2 / 2
    shared = 3 * HIDDEN * 512 / 2
    dense = attention + shared + 2 * HIDDEN + HIDDEN * 8
    assert strategy.edp == 4
    assert memory.weights[0] == pytest.approx(2.0 * (dense + expert))
    assert memory.optimizer[0] == pytest.approx(12.0 * (dense / 8 + expert / 4))


def test_offloaded_optimizer_lives_in_host_memory():
    offload = Software(name="", framework="", optimizer_offload=True)
    here, there = one(GPT, Strategy(dp=2, zero=1), job()), one(GPT, Strategy(dp=2, zero=1), job(offload))
    assert there.optimizer[0] == 0.0
    parameters = 12 * HIDDEN**2 + 13 * HIDDEN
    # master and moments, and the fp32 gradient that they step with
    assert there.host[0] == pytest.approx((12.0 + 4.0) * parameters / 2)
    assert there.weights[0] == here.weights[0]


def test_zero3_gathers_whole_layers():
    memory = one(GPT, Strategy(dp=8, zero=3), job())
    parameters = 12 * HIDDEN**2 + 13 * HIDDEN
    assert memory.gathered[0] == pytest.approx(parameters * (2.0 * 2 + 2.0 + 4.0))  # two layers, gradient, fp32 copy
    assert one(GPT, Strategy(dp=8, zero=2), job()).gathered[0] == 0.0
    assert one(GPT, Strategy(dp=1, zero=3), job()).gathered[0] == 0.0


def test_states_of_software_that_shards_fp32_weights():
    fp32 = replace(precision("bf16"), gradient_bytes=4.0)
    fsdp = Software(name="", framework="", main_params_in_optimizer=False)
    of = TrainingJob(global_batch=8, seq=SEQ, precision=fp32, software=fsdp)
    assert one(GPT, Strategy(), of).states[0] == pytest.approx(16.0 * (12 * HIDDEN**2 + 13 * HIDDEN))


def test_gradient_traits_of_software():
    traits = Software(name="", framework="", gradient_bytes=6.0, shard_gradient_bytes=4.0)
    memory = one(GPT, Strategy(dp=4, zero=1), job(traits))
    assert memory.states[0] == pytest.approx((2 + 6 + (12 + 4) / 4) * (12 * HIDDEN**2 + 13 * HIDDEN))


def test_dummy_gradients_count_each_shape_once():
    memory = one(LLAMA, Strategy(tp=2), job(Software(name="", framework="", dummy_gradients=True)))
    shapes = HIDDEN * (HIDDEN + 2 * 256) + HIDDEN**2 + 3 * HIDDEN * 2816
    assert memory.once[0] == pytest.approx(2.0 * shapes / 2)
    assert one(LLAMA, Strategy(tp=2), job()).once[0] == 0.0


def test_gathered_inputs_are_kept_whole():
    kept_whole = Software(name="", framework="", gathered_inputs_kept=True)
    sharded, whole = (one(LLAMA, Strategy(tp=4, sequence_parallel=True), job(s)) for s in (None, kept_whole))
    assert whole.kept[0] - sharded.kept[0] == pytest.approx(2 * 2.0 * SBH * (1 - 1 / 4))


def test_logits_fill_the_peak_of_the_head():
    constants = default_memory()
    padded = 1024  # 1000 padded to a multiple of 128 x tp
    for tp in (1, 2, 4):
        memory = head_memory(LLAMA, job(), table(Strategy(tp=tp)))
        inputs = 2 * 2.0 * SBH  # of the norm and of the output matrix
        logits = SEQ * BATCH * padded / tp
        assert memory.kept[0] == pytest.approx(inputs + 4.0 * logits)
        peak = constants.loss_bytes_per_logit * logits + 2.0 * SBH
        assert memory.working[0] + 4.0 * logits == pytest.approx(peak)


def test_fused_loss_keeps_one_copy():
    fused = head_memory(LLAMA, job(Software(name="", framework="", fused_loss=True)), table(Strategy()))
    assert fused.kept[0] == pytest.approx(2 * 2.0 * SBH + 2.0 * SEQ * BATCH * 1024)


def test_loss_that_is_not_parallel_holds_all_columns():
    gathered = Software(name="", framework="", parallel_loss=False)
    alone, together = (head_memory(LLAMA, job(gathered), table(Strategy(tp=tp))) for tp in (1, 4))
    assert together.kept[0] == pytest.approx(alone.kept[0])
    assert together.working[0] > alone.working[0]


def test_embedding_counts_padded_rows_once_per_rank():
    memory = embedding_memory(LLAMA, job(), table(Strategy(tp=3)))
    rows = 3 * 128 * 3 / 3  # 1000 tokens, padded to 1152, over 3 ranks
    assert memory.weights[0] == pytest.approx(2.0 * rows * HIDDEN)
    assert memory.working[0] == pytest.approx(2.0 * rows * HIDDEN)
    assert table_memory(LLAMA, job(), table(Strategy(tp=3))).weights[0] == pytest.approx(memory.weights[0])


def test_multi_token_prediction_has_a_layer_and_logits_of_its_own():
    model = replace(LLAMA, mtp_layers=1, mtp_kind=LLAMA.kinds()[0])
    memory = mtp_memory(model, job(), table(Strategy()))
    layer = one(model, Strategy(), job())
    projection = 2 * HIDDEN * HIDDEN
    assert memory.weights[0] == pytest.approx(
        layer.weights[0] + 2.0 * (projection + 2 * HIDDEN + model.final_norm_parameters)
    )
    assert memory.kept[0] > layer.kept[0] + 4.0 * SEQ * BATCH * 1024


def test_low_precision_inputs_are_kept_narrow():
    low = replace(precision("bf16"), gemm="fp8", gemm_activation_bytes=1.0)
    narrow = one(LLAMA, Strategy(), TrainingJob(global_batch=8, seq=SEQ, precision=low, software=job().software))
    wide = one(LLAMA, Strategy(), job())
    tokens = SEQ * BATCH
    saved = tokens * (HIDDEN + HIDDEN + 2816)  # inputs of qkv, fc1 and fc2, a byte less each
    extra = tokens * HIDDEN  # the output projection keeps a narrow copy of what attention keeps wide
    assert wide.kept[0] - narrow.kept[0] == pytest.approx(saved - extra)


def test_opaque_layers_count_samples():
    layer = OpaqueLayer(
        name="conv",
        forward_flops_per_sample=1e9,
        parameters=1000,
        activation_bytes_per_sample=100.0,
        output_bytes_per_sample=10.0,
        shardable=("tp",),
    )
    model = ModelSpec(name="cnn", family="cnn", hidden=0, vocab=0, runs=(LayerRun(kind=layer, count=2),))
    for tp in (1, 2):
        memory = layer_memory(layer, model, job(), table(Strategy(tp=tp)))
        assert memory.kept[0] == pytest.approx(BATCH * 100.0 / tp)
        assert memory.weights[0] == pytest.approx(2.0 * 1000 / tp)
    full = layer_memory(layer, model, job(), table(Strategy(recompute=FULL_RECOMPUTE)))
    assert full.kept[0] == pytest.approx(BATCH * 10.0)


def test_rows_of_a_table_do_not_touch_each_other():
    rng = np.random.default_rng(7)
    recomputes = [NO_RECOMPUTE, FULL_RECOMPUTE, CORE]
    strategies = [
        Strategy(
            tp=int(rng.choice([1, 2, 4])),
            dp=8,
            ep=int(rng.choice([1, 2, 4])),
            sequence_parallel=bool(rng.integers(2)),
            zero=int(rng.integers(4)),
            recompute=recomputes[int(rng.integers(3))],
        )
        for _ in range(20)
    ]
    together = layer_memory(MOE.kinds()[0], MOE, job(), table(*strategies))
    for row, strategy in enumerate(strategies):
        alone = one(MOE, strategy, job())
        for name in ("weights", "gradients", "optimizer", "kept", "working", "gathered"):
            assert getattr(together, name)[row] == pytest.approx(getattr(alone, name)[0])


def test_precision_states_what_the_step_needs():
    stepping: Precision = replace(precision("bf16"), step_bytes=4.0)
    of = TrainingJob(global_batch=8, seq=SEQ, precision=stepping, software=job().software)
    assert one(GPT, Strategy(dp=2, zero=1), of).step[0] == pytest.approx(4.0 / 2 * (12 * HIDDEN**2 + 13 * HIDDEN))


@pytest.mark.parametrize(
    ("recipe", "family", "whole", "frozen"),
    [("bf16", "megatron", 2.0, 2.0), ("nvfp4", "megatron", 3.125, 1.125), ("bf16", "fsdp", 4.0, 2.0)],
)
def test_weights_that_are_not_trained_need_no_copy_for_an_optimizer(recipe, family, whole, frozen):
    chosen = precision(recipe, framework=family)
    held = []
    for share in (1.0, 0.0):
        of = job(Software(name="", framework=family, main_params_in_optimizer=family != "fsdp"))
        held.append(parameter_bytes(replace(of, precision=chosen, trained_share=share)).weights)
    assert held == [whole, frozen]


def test_frozen_products_keep_what_adapters_read():
    """Products of the feed-forward part keep no input; those of attention theirs after dropout, with its mask."""
    frozen = replace(job(Software(name="", framework="nemo")), trained_share=0.001)
    usual, adapted = (one(LLAMA, Strategy(), of).kept[0] for of in (frozen, replace(frozen, adapter_modules=("attn",))))
    feed_forward = 2.0 * (HIDDEN + 2816)
    attention = (2.0 + 1.0) * 2 * HIDDEN - 2.0 * HIDDEN  # inputs of both projections, of which one was kept before
    assert usual - adapted == pytest.approx((feed_forward - attention) * SEQ * BATCH)


@pytest.mark.parametrize(("transposed", "held"), [(True, 2.0), (False, 1.0)])
def test_frozen_weights_in_8_bits_may_lack_their_transposes(transposed, held):
    software = Software(name="", framework="nemo", transposed_weights=transposed)
    of = replace(job(software), precision=precision("fp8-ds"), trained_share=0.0)
    assert parameter_bytes(of).weights == held


def test_activation_functions_may_keep_their_input_in_8_bits():
    eight = replace(job(Software(name="", framework="nemo")), precision=precision("fp8-ds"))
    low = replace(eight, software=replace(eight.software, low_activation_input=True))
    usual, less = (one(LLAMA, Strategy(), of).kept[0] for of in (eight, low))
    assert usual - less == pytest.approx(2 * 2816 * SEQ * BATCH)


def test_zero_3_by_parameters_holds_few_of_a_layer():
    """Up to a number of parameters, but the largest product whole, and its gradient."""
    strategy = Strategy(dp=4, zero=3)
    layer, largest = float(owned_parameters(layer_ops(LLAMA.kinds()[0], LLAMA))), 2.0 * 2816 * HIDDEN

    def gathered(live: float) -> float:
        return float(
            one(LLAMA, strategy, job(Software(name="", framework="deepspeed", live_parameters=live))).gathered[0]
        )

    bf16 = precision("bf16")
    copy = bf16.reduce_bytes if bf16.reduce_bytes != 2.0 else 0.0
    assert gathered(0.0) == pytest.approx((2 * 2.0 + 2.0 + copy) * layer)
    assert gathered(1.0) == pytest.approx((2.0 + 2.0 + copy) * largest)
    assert gathered(1e12) == pytest.approx(2 * 2.0 * layer + (2.0 + copy) * largest)


def test_recomputed_activation_drops_the_gate_that_it_makes():
    """Separate kernels keep the activated gate; it goes with the activation's own recompute, its input stays."""
    separate = Software(name="", framework="torchtitan", fused_kernels=False)
    act = Recompute(granularity=Granularity.SELECTIVE, modules=("mlp_act",))
    everything, dropped = (kept(replace(Strategy(), recompute=what), separate, LLAMA) for what in (NO_RECOMPUTE, act))
    assert everything - dropped == pytest.approx(2.0 * 2 * 2816 * SEQ * BATCH)

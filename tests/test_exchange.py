"""Exchanges of layers, states and boundaries: volumes against published counts, times against single collectives."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    default_network,
    reduce_scatter_s,
    send_receive_s,
)
from costmodels.collectives.dispatch import TokenTraffic, dispatch_s
from costmodels.collectives.routing import Routing
from costmodels.exchange import (
    LayerExchange,
    PlacedTable,
    boundary_bytes,
    boundary_exchange,
    layer_exchange,
    state_exchange,
    tensor_calls,
    tied_embedding_s,
)
from costmodels.exchange.volumes import context_widths, tensor_widths
from costmodels.job import Dispatcher, Precision, Software, TrainingJob
from costmodels.layout import Strategy
from costmodels.memory.states import LocalParameters
from costmodels.mesh import Axis, PlacedGroup, group_of, place
from costmodels.precision import precision
from costmodels.table import StrategyTable, table_of
from costmodels.workload.model import (
    Attention,
    AttentionKind,
    DeltaNet,
    DenseFfn,
    LayerKind,
    LayerRun,
    ModelSpec,
    MoeFfn,
    OpaqueLayer,
    StateSpace,
)
from hardware.catalog import cluster
from hardware.errors import InputError
from hardware.tiers import island_tiers

NETWORK = default_network()
TIERS = island_tiers(cluster("dgx-h100:64").islands[0])
SEQ, HIDDEN = 4096, 4096
BF16 = Precision(
    name="bf16",
    gemm="bf16",
    attention="bf16",
    weight_bytes=2.0,
    extra_weight_bytes=0.0,
    gradient_bytes=4.0,
    master_bytes=4.0,
    activation_bytes=2.0,
    gemm_activation_bytes=2.0,
    gather_bytes=2.0,
    reduce_bytes=4.0,
)
DENSE = LayerKind(
    name="dense",
    mixer=Attention(heads=32, kv_heads=8, qk_dim=128, v_dim=128),
    ffn=DenseFfn(hidden=14336, gated=True),
    norm_parameters=2 * HIDDEN,
)
LATENT = Attention(
    kind=AttentionKind.LATENT, heads=64, kv_heads=64, qk_dim=192, v_dim=128, q_rank=1536, kv_rank=512, rope_dim=64
)
MOE = LayerKind(
    name="moe",
    mixer=LATENT,
    ffn=MoeFfn(experts=64, top_k=6, hidden=1408, gated=True, shared_hidden=2816),
    norm_parameters=2 * HIDDEN,
)
MAMBA = LayerKind(
    name="mamba",
    mixer=StateSpace(heads=128, head_dim=64, state=128, groups=8),
    ffn=None,
    norm_parameters=HIDDEN,
    norm_count=1,
)


def model_of(*kinds: LayerKind | OpaqueLayer, **changes: object) -> ModelSpec:
    spec = ModelSpec(
        name="m", family="f", hidden=HIDDEN, vocab=32000, runs=tuple(LayerRun(kind=kind, count=2) for kind in kinds)
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def job_of(**software: object) -> TrainingJob:
    flags = Software(name="s", framework="f", **software)  # type: ignore[arg-type]
    return TrainingJob(global_batch=64, seq=SEQ, precision=BF16, software=flags)


def one(pp: int = 1, **degrees: object) -> StrategyTable:
    return table_of([Strategy(**degrees)], pp=[pp], micro_batch=[1])  # type: ignore[arg-type]


def priced(kind: LayerKind | OpaqueLayer, table: StrategyTable, **software: object) -> LayerExchange:
    return layer_exchange(kind.name, model_of(kind), job_of(**software), placed(table))


def placed(table: StrategyTable) -> PlacedTable:
    return PlacedTable(table, TIERS, NETWORK)


def group(axis: Axis, table: StrategyTable) -> PlacedGroup:
    return place(group_of(axis, table), TIERS)


ACTIVATION_BYTES = SEQ * HIDDEN * 2.0


def test_a_dense_layer_without_sequence_parallelism_all_reduces_twice_each_way() -> None:
    # Shoeybi et al., arXiv 1909.08053: two all-reduces forward, two backward
    table = one(tp=8, dp=2)
    found = priced(DENSE, table)
    reduce = all_reduce_s(ACTIVATION_BYTES, group(Axis.TP, table), TIERS, NETWORK)
    assert found.tp_forward_s == pytest.approx(2 * reduce)
    assert found.tp_backward_s == pytest.approx(2 * reduce)
    assert found.tp_backward_hidden_s == pytest.approx(2 * reduce)
    assert found.tp_bytes == pytest.approx(4 * 2 * 7 / 8 * ACTIVATION_BYTES)


def test_sequence_parallelism_gathers_and_scatters_four_times_and_gathers_inputs_again() -> None:
    # Korthikanti et al., arXiv 2205.05198, section 4.2.2: four all-gathers and four reduce-scatters in place of four
    # all-reduces, and one more all-gather per kept input (two)
    table = one(tp=8, dp=2, sequence_parallel=True)
    found = priced(DENSE, table)
    gather = all_gather_s(ACTIVATION_BYTES, group(Axis.TP, table), TIERS, NETWORK)
    scatter = reduce_scatter_s(ACTIVATION_BYTES, group(Axis.TP, table), TIERS, NETWORK)
    assert found.tp_forward_s == pytest.approx(2 * (gather + scatter))
    assert found.tp_backward_s == pytest.approx(4 * gather + 2 * scatter)
    assert found.tp_backward_hidden_s == pytest.approx(2 * (gather + scatter))
    assert found.tp_bytes == pytest.approx((8 + 2) * 7 / 8 * ACTIVATION_BYTES)
    kept = priced(DENSE, table, gathered_inputs_kept=True)
    assert kept.tp_backward_s == pytest.approx(2 * gather + 2 * scatter)


def test_widths_by_kind_of_block() -> None:
    both = (HIDDEN, HIDDEN)
    assert tensor_widths(DENSE, HIDDEN).gathers == both
    assert tensor_widths(replace(DENSE, parallel=True), HIDDEN).gathers == (HIDDEN,)
    assert tensor_widths(replace(DENSE, parallel=True), HIDDEN).reductions == (HIDDEN,)
    assert tensor_widths(MAMBA, HIDDEN).reductions == (HIDDEN,)
    # latent attention gathers its latents; routed experts exchange over ep, shared experts over tp
    assert tensor_widths(MOE, HIDDEN).gathers == (1536, 512 + 64, HIDDEN)
    routed = replace(MOE, ffn=MoeFfn(experts=64, top_k=6, hidden=1408, gated=True))
    assert tensor_widths(routed, HIDDEN).gathers == (1536, 512 + 64)
    no_query_latent = replace(MOE, mixer=replace(LATENT, q_rank=0), ffn=None)
    assert tensor_widths(no_query_latent, HIDDEN).gathers == (HIDDEN, 576)


def test_opaque_layers_all_reduce_what_they_state() -> None:
    layer = OpaqueLayer(
        name="block",
        forward_flops_per_sample=1e9,
        parameters=1000,
        activation_bytes_per_sample=1e6,
        output_bytes_per_sample=2e6,
        shardable=("tp",),
        tp_exchange_bytes_per_sample=3e6,
    )
    spec = model_of(layer, hidden=0, vocab=0)
    table = table_of([Strategy(tp=4, dp=2)], pp=[2], micro_batch=[8])
    found = layer_exchange("block", spec, job_of(), placed(table))
    assert found.tp_forward_s == pytest.approx(all_reduce_s(24e6, group(Axis.TP, table), TIERS, NETWORK))
    assert boundary_bytes(spec, job_of(), table) == pytest.approx(16e6)
    whole = layer_exchange("block", model_of(replace(layer, shardable=()), hidden=0), job_of(), placed(table))
    assert whole.tp_forward_s[0] == whole.tp_backward_s[0] == 0.0


def test_ends_of_the_model() -> None:
    table = one(tp=4, dp=2, sequence_parallel=True)
    spec = model_of(DENSE)
    embedding = layer_exchange("embedding", spec, job_of(), placed(table))
    head = layer_exchange("head", spec, job_of(), placed(table))
    tensor = group(Axis.TP, table)
    gather = all_gather_s(ACTIVATION_BYTES, tensor, TIERS, NETWORK)
    scatter = reduce_scatter_s(ACTIVATION_BYTES, tensor, TIERS, NETWORK)
    numbers = all_reduce_s(SEQ * 4.0, tensor, TIERS, NETWORK)
    assert embedding.tp_forward_s == pytest.approx(scatter)
    assert embedding.tp_backward_s == pytest.approx(gather)
    assert head.tp_forward_s == pytest.approx(gather + 3 * numbers)
    assert head.tp_backward_s == pytest.approx(gather + scatter)
    gathered = layer_exchange("head", spec, job_of(parallel_loss=False), placed(table))
    logits = all_gather_s(SEQ * 32000 * 2.0, tensor, TIERS, NETWORK)
    assert gathered.tp_forward_s == pytest.approx(gather + logits)


def test_multi_token_prediction_has_a_layer_and_a_head() -> None:
    table = one(tp=4, dp=2, sequence_parallel=True)
    spec = model_of(DENSE, mtp_layers=1, mtp_kind=DENSE)
    extra = layer_exchange("mtp", spec, job_of(), placed(table)).tp_bytes
    layer = layer_exchange("dense", spec, job_of(), placed(table)).tp_bytes
    head = layer_exchange("head", spec, job_of(), placed(table)).tp_bytes
    projection = 3 * 3 * 3 / 4 * ACTIVATION_BYTES  # widths 2 h and h gathered, and gathered and scattered backward
    assert extra == pytest.approx(layer + head + projection)


KEYS_VALUES_BYTES = SEQ / 4 * 8 * 256 * 2.0


def test_ring_attention_passes_keys_and_values_on() -> None:
    table = one(cp=4, dp=2)
    found = priced(DENSE, table)
    ring = group(Axis.CP, table)
    assert found.cp_forward_s == pytest.approx(3 * send_receive_s(KEYS_VALUES_BYTES, ring, TIERS, NETWORK))
    assert found.cp_backward_s == pytest.approx(3 * send_receive_s(2 * KEYS_VALUES_BYTES, ring, TIERS, NETWORK))
    assert found.cp_bytes == pytest.approx(9 * KEYS_VALUES_BYTES)


def test_gathered_keys_and_values() -> None:
    table = one(cp=4, dp=2)
    found = priced(DENSE, table, cp_comm="allgather")
    gather = all_gather_s(4 * KEYS_VALUES_BYTES, group(Axis.CP, table), TIERS, NETWORK)
    scatter = reduce_scatter_s(4 * KEYS_VALUES_BYTES, group(Axis.CP, table), TIERS, NETWORK)
    assert found.cp_forward_s == pytest.approx(gather)
    assert found.cp_backward_s == pytest.approx(gather + scatter)
    assert found.cp_bytes == pytest.approx(9 * KEYS_VALUES_BYTES)


def test_all_to_all_attention_moves_queries_keys_values_and_outputs() -> None:
    # Jacobs et al., arXiv 2309.14509 (Ulysses), section 3.2: 4 N h / P per link and layer forward for equal heads
    equal = replace(DENSE, mixer=Attention(heads=32, kv_heads=32, qk_dim=128, v_dim=128))
    table = one(cp=4, dp=2)
    found = priced(equal, table, cp_comm="a2a")
    local = SEQ / 4 * HIDDEN * 2.0
    ring = group(Axis.CP, table)
    expected = all_to_all_s(3 * local, ring, TIERS, NETWORK) + all_to_all_s(local, ring, TIERS, NETWORK)
    assert found.cp_forward_s == pytest.approx(expected)
    assert found.cp_bytes == pytest.approx(2 * 4 * 3 / 4 * local)


def test_a_rank_holds_at_least_one_key_value_head() -> None:
    few = replace(DENSE, mixer=Attention(heads=32, kv_heads=2, qk_dim=128, v_dim=128))
    half, eighth = (priced(few, one(tp=tp, cp=2)).cp_bytes[0] for tp in (2, 8))
    assert half == eighth  # one head on each rank in both cases


def test_latent_attention_exchanges_expanded_heads_and_scans_use_all_to_all() -> None:
    assert context_widths([LATENT]).keys_values == 64 * (192 + 128)
    table = one(cp=4, dp=2)
    assert priced(MAMBA, table).cp_forward_s == pytest.approx(priced(MAMBA, table, cp_comm="a2a").cp_forward_s)
    delta = context_widths([DeltaNet(key_heads=16, value_heads=32, key_dim=128, value_dim=128)])
    assert (delta.before, delta.after) == (2 * 2048 + 2 * 4096 + 64, 4096)


def test_an_unknown_form_of_context_parallelism_is_the_users_error() -> None:
    with pytest.raises(InputError, match=r"cp_comm.*p2p, a2a, allgather"):
        priced(DENSE, one(cp=2), cp_comm="carrier pigeon")


def routed(table: StrategyTable, tokens: float) -> TokenTraffic:
    routing = Routing(experts=64, top_k=6)
    return TokenTraffic(tokens=np.array([tokens]), token_bytes=HIDDEN * 2.0, routing=routing, etp=table.etp)


@pytest.mark.parametrize("dispatcher", list(Dispatcher))
def test_experts_dispatch_and_combine_each_ranks_own_tokens(dispatcher: Dispatcher) -> None:
    table = one(tp=4, dp=4, ep=16, sequence_parallel=True)
    found = priced(MOE, table, dispatcher=dispatcher)
    out = dispatch_s(routed(table, SEQ / 4), group(Axis.EP, table), dispatcher, TIERS, NETWORK)
    assert found.ep_forward_s == pytest.approx(2 * out, rel=0.02)
    assert found.ep_backward_s == pytest.approx(found.ep_forward_s)


def test_only_copies_that_leave_the_rank_count() -> None:
    table = one(tp=4, dp=4, ep=16, sequence_parallel=True)
    found = priced(MOE, table)
    assert found.ep_bytes == pytest.approx(4 * SEQ / 4 * 6 * HIDDEN * 2.0 * 15 / 16)
    assert priced(MOE, one(tp=4, dp=4, sequence_parallel=True)).ep_bytes[0] == 0.0
    assert priced(DENSE, table).ep_bytes[0] == 0.0


def test_experts_tensor_parallelism_gathers_routed_copies() -> None:
    table = one(tp=4, dp=4, ep=4, etp=4, sequence_parallel=True)
    plain = one(tp=4, dp=4, ep=4, etp=1, sequence_parallel=True)
    copies = SEQ / 4 * 6 * HIDDEN * 2.0
    inner = group(Axis.ETP, table)
    extra = all_gather_s(4 * copies, inner, TIERS, NETWORK) + reduce_scatter_s(4 * copies, inner, TIERS, NETWORK)
    exchanged = all_to_all_s(copies, group(Axis.EP, table), TIERS, NETWORK)
    nearer = all_to_all_s(copies, group(Axis.EP, plain), TIERS, NETWORK)
    difference = priced(MOE, table).ep_forward_s - priced(MOE, plain).ep_forward_s
    assert difference == pytest.approx(extra + 2 * (exchanged - nearer))


def test_replicated_tokens_are_reduced_over_the_experts_shards() -> None:
    table = one(tp=4, dp=4, ep=1, etp=4, sequence_parallel=False)
    reduce = all_reduce_s(ACTIVATION_BYTES, group(Axis.ETP, table), TIERS, NETWORK)
    for dispatcher in Dispatcher:
        assert priced(MOE, table, dispatcher=dispatcher).ep_forward_s == pytest.approx(reduce)


def test_expert_groups_inside_a_node_win() -> None:
    # published: expert groups inside the fast domain win
    inside = priced(MOE, one(dp=64, ep=8)).ep_forward_s[0]
    outside = priced(MOE, one(dp=64, ep=16)).ep_forward_s[0]
    assert outside > 3 * inside


def parameters(dense: float, expert: float = 0.0) -> LocalParameters:
    return LocalParameters(dense=np.array([dense]), expert=np.array([expert]))


def test_volumes_of_zero_stages() -> None:
    # Rajbhandari et al., arXiv 1910.02054, section 7: 2 psi for stages 0 to 2, 3 psi for stage 3, with equal widths
    count, ranks = 1e9, 64
    share = (ranks - 1) / ranks
    job = TrainingJob(global_batch=64, seq=SEQ, precision=replace(BF16, reduce_bytes=2.0), software=job_of().software)
    dense = model_of(DENSE)
    for zero, psi in ((0, 2), (1, 2), (2, 2), (3, 3)):
        table = one(dp=ranks, zero=zero)
        step = state_exchange(parameters(count), job, placed(table), 160e6)
        sent = step.reduce_bytes[0] + step.gather_bytes[0]
        layer = layer_exchange("dense", dense, job, placed(table))
        owned = state_exchange(parameters(1.0), job, placed(one(dp=1)), 160e6)
        assert owned.owned_parameters[0] == 1.0
        per_parameter = layer.weights_bytes[0] / layer_parameters(dense)
        assert sent / count + per_parameter == pytest.approx(psi * 2.0 * share)


def test_gradients_that_wait_are_reduced_once_and_weights_gathered_with_every_micro_batch() -> None:
    """A step of m micro-batches sends (2 m + 1) psi under ZeRO-3 and 1 psi under 2, in place of 3 m and m; one alone
    is no other than without."""
    ranks, dense = 16, model_of(DENSE)
    count, share = layer_parameters(dense), (ranks - 1) / ranks
    for zero in (2, 3):
        for m in (4, 1):
            table = replace(one(dp=ranks, zero=zero), micro_batch=np.array([64 // (ranks * m)]))
            asked = TrainingJob(
                global_batch=64,
                seq=SEQ,
                precision=replace(BF16, reduce_bytes=2.0),
                software=job_of(sync_each_batch=False).software,
            )
            each = layer_exchange("dense", dense, asked, placed(table)).weights_bytes[0]
            once = state_exchange(parameters(count), asked, placed(table), 160e6).reduce_bytes[0]
            gathers = 2.0 * (zero == 3)
            waits = m > 1
            assert each == pytest.approx((gathers + (not waits)) * 2.0 * count * share)
            assert once == pytest.approx(waits * 2.0 * count * share)


def test_stages_of_pytorch_reduce_once_behind_all_backward_passes() -> None:
    """Of torch.distributed.pipelining: one psi a step whatever its micro-batches, and no pass to hide it beside."""
    dense, ranks = model_of(DENSE), 4
    count = layer_parameters(dense)
    job = job_of(pipelines_reduce_once=True)
    for m in (16, 1):
        for pp in (2, 1):
            table = replace(one(pp=pp, dp=ranks, zero=2), micro_batch=np.array([64 // (ranks * m)]))
            each = layer_exchange("dense", dense, job, placed(table)).weights_bytes[0]
            once = state_exchange(parameters(count), job, placed(table), 160e6).reduce_bytes[0]
            sent = BF16.reduce_bytes * count * (ranks - 1) / ranks
            assert (each, once) == pytest.approx((0.0, sent) if pp > 1 else (sent, 0.0))
    assert job.software.hides_reduction(np.array([2, 2, 0]), np.array([1, 2, 2])).tolist() == [True, False, False]


def test_products_that_gather_their_input_apart_exchange_it_five_times_a_layer() -> None:
    """Queries, keys, values, gate and up: each a ColwiseParallel of DTensor with an input layout of its own.

    Counted with PyTorch 2.13: torch.compile leaves 2 gathers and 2 reductions forward, 2 and 5 backward.
    """
    table = one(tp=8, dp=2, sequence_parallel=True)
    joined, apart, compiled = (
        priced(DENSE, table, inputs_gathered_apart=on, compiled=fused, gathered_inputs_kept=True)
        for on, fused in ((False, False), (True, False), (True, True))
    )
    message = 7 / 8 * ACTIVATION_BYTES
    assert apart.tp_bytes - joined.tp_bytes == pytest.approx((5 - 2) * 2 * message)  # forward, and gradients backward
    assert compiled.tp_bytes - joined.tp_bytes == pytest.approx((5 - 2) * message)  # gradients alone stay apart


def test_exchanges_along_the_sequence_copy_what_they_move() -> None:
    """Counted with PyTorch 2.13's DTensor over a layer: a whole-sized cat behind each gather, before each scatter."""
    table, once = one(tp=8, dp=2, sequence_parallel=True), 2.0 * ACTIVATION_BYTES
    flags = {"copied_exchanges": True, "gathered_inputs_kept": True}
    found = priced(DENSE, table, **flags)
    assert (found.tp_copied_forward_bytes[0], found.tp_copied_backward_bytes[0]) == (4 * once, 4 * once)
    apart = priced(DENSE, table, inputs_gathered_apart=True, compiled=True, **flags)
    assert (apart.tp_copied_forward_bytes[0], apart.tp_copied_backward_bytes[0]) == (4 * once, 7 * once)
    for none in (priced(DENSE, table), priced(DENSE, one(tp=8, dp=2), **flags), priced(DENSE, one(dp=16), **flags)):
        assert none.tp_copied_forward_bytes[0] == none.tp_copied_backward_bytes[0] == 0.0


def test_layers_that_keep_gathered_inputs_start_eight_collectives() -> None:
    """Counted with PyTorch 2.13's DTensor: two gathers and two reductions each way; Megatron-LM gathers again."""
    table = one(tp=8, dp=2, sequence_parallel=True)
    for kept, backward in ((True, 4.0), (False, 6.0)):
        started = tensor_calls("dense", model_of(DENSE), job_of(gathered_inputs_kept=kept), table)
        assert [float(calls[0]) for calls in started] == [4.0, backward]


def test_gathers_in_8_bits_move_half_as_much_and_reductions_do_not() -> None:
    table, fp8 = one(tp=8, dp=2, sequence_parallel=True), precision("fp8-cs-fsdp")
    sent = {}
    for low in (True, False):
        job = replace(job_of(low_precision_gathers=low, gathered_inputs_kept=True), precision=fp8)
        sent[low] = layer_exchange("dense", model_of(DENSE), job, placed(table)).tp_bytes[0]
    assert sent[True] / sent[False] == pytest.approx((4 * 0.5 + 4) / 8)


def layer_parameters(spec: ModelSpec) -> float:
    attention = HIDDEN * (32 + 8 + 8) * 128 + 32 * 128 * HIDDEN
    assert spec.hidden == HIDDEN
    return attention + 3 * HIDDEN * 14336 + 2 * HIDDEN


def test_step_times_are_those_of_bucketed_collectives() -> None:
    bucket, count = 400e6, 1e9  # ten buckets of fp32 gradients
    plain, sharded = one(tp=2, dp=16, zero=0), one(tp=2, dp=16, zero=1)
    data = group(Axis.DP_CP, plain)
    reduce = state_exchange(parameters(count), job_of(), placed(plain), bucket)
    assert reduce.reduce_s == pytest.approx(10 * all_reduce_s(400e6, data, TIERS, NETWORK))
    assert reduce.gather_s[0] == 0.0
    assert reduce.last_bucket_share[0] == pytest.approx(0.1)
    split = state_exchange(parameters(count), job_of(), placed(sharded), bucket)
    assert split.reduce_s == pytest.approx(10 * reduce_scatter_s(400e6, data, TIERS, NETWORK))
    assert split.gather_s == pytest.approx(5 * all_gather_s(400e6, data, TIERS, NETWORK))
    assert split.owned_parameters == pytest.approx(count / 16)


@pytest.mark.parametrize(("tensors", "senders"), [(300.0, 16), (6.0, 6)])
def test_owners_of_whole_tensors_broadcast_them_one_after_the_other(tensors: float, senders: int) -> None:
    count, table, job = 1e9, one(tp=2, dp=16, zero=1), job_of(broadcast_weights=True)
    data, many = group(Axis.DP_CP, table), np.array([tensors])
    found = state_exchange(parameters(count), job, placed(table), 400e6, many)
    each = broadcast_s(np.array([2.0 * count / senders]), data, TIERS, NETWORK)
    assert found.gather_s == pytest.approx(senders * each)
    others = state_exchange(parameters(count), job_of(), placed(table), 400e6, many)
    assert others.gather_s == pytest.approx(5 * all_gather_s(400e6, data, TIERS, NETWORK))
    assert others.reduce_s == found.reduce_s


def test_whole_reductions_sum_everything_on_every_rank_and_gather_the_weights_all_the_same() -> None:
    """3 psi per step in place of 2: DeepSpeed's BF16_Optimizer, and its ZeRO 1 and 2 with buckets of all ranks."""
    count, table = 1e9, one(tp=2, dp=16, zero=1)
    data, software = group(Axis.DP_CP, table), {"reduce_bytes": 2.0, "whole_reductions": True}
    found = state_exchange(parameters(count), job_of(**software), placed(table), 400e6)
    assert found.reduce_s == pytest.approx(5 * all_reduce_s(400e6, data, TIERS, NETWORK))
    assert found.gather_s == pytest.approx(5 * all_gather_s(400e6, data, TIERS, NETWORK))
    assert found.owned_parameters == pytest.approx(count / 16)  # each rank still updates its part alone
    assert (found.reduce_bytes + found.gather_bytes)[0] / count == pytest.approx(3 * 2.0 * 15 / 16)
    plain = one(tp=2, dp=16)
    whole, split = (state_exchange(parameters(count), job_of(whole_reductions=on), placed(plain), 4e8) for on in (1, 0))
    assert whole.reduce_s == split.reduce_s


def test_whole_reductions_of_stage_2_come_with_every_micro_batch_and_stage_3_scatters() -> None:
    for zero, sums in ((2, 2.0), (3, 1.0)):
        table = one(dp=16, zero=zero)
        whole, split = (priced(DENSE, table, whole_reductions=on) for on in (True, False))
        message = 4.0 * layer_parameters(model_of(DENSE))
        sent = message * 15 / 16
        assert whole.weights_bytes[0] - split.weights_bytes[0] == pytest.approx((sums - 1.0) * sent)


def test_context_parallel_ranks_share_the_gradient_reduction() -> None:
    table = one(tp=2, cp=4, dp=4, zero=1)
    assert state_exchange(parameters(1e9), job_of(), placed(table), 1e9).owned_parameters == 1e9 / 16


def test_experts_reduce_over_their_own_replicas() -> None:
    table = one(dp=32, ep=8, zero=0)
    found = state_exchange(parameters(0.0, 1e8), job_of(), placed(table), 4e8)
    assert found.reduce_s == pytest.approx(all_reduce_s(4e8, group(Axis.EDP, table), TIERS, NETWORK))
    alone = state_exchange(parameters(0.0, 1e8), job_of(), placed(one(dp=8, ep=8)), 4e8)
    assert alone.reduce_s[0] == 0.0


def test_gradients_kept_in_two_bytes_are_reduced_in_two_bytes() -> None:
    table = one(dp=32)
    halves = [
        state_exchange(parameters(1e9), job_of(gradient_bytes=width), placed(table), 160e6).reduce_bytes[0]
        for width in (0.0, 2.0, 4.0)
    ]
    assert halves[1] * 2 == halves[0] == halves[2]


def test_software_that_reduces_in_fp32_sends_four_bytes_whatever_it_accumulates_in() -> None:
    wide, recipe = (
        state_exchange(parameters(1e9), job_of(gradient_bytes=2.0, reduce_bytes=width), placed(one(dp=32)), 160e6)
        for width in (4.0, 0.0)
    )
    assert wide.reduce_bytes[0] == 2.0 * recipe.reduce_bytes[0]
    assert wide.gather_bytes[0] == recipe.gather_bytes[0]


@pytest.mark.parametrize(
    ("at_once", "messages"), [(0.0, 1.0), (1e7, 4.0), (1e8, 2.18112), (1e12, 1.0)], ids=["layer", "product", "", "all"]
)
def test_weights_gathered_module_by_module_take_as_many_starts(at_once: float, messages: float) -> None:
    """As many parameters at once as asked for, but never less than one of the four products of a layer."""
    table = one(dp=16, zero=3)
    found = priced(DENSE, table, gather_parameters=at_once)
    count = layer_parameters(model_of(DENSE))
    gather_s = all_gather_s(2.0 * count / messages, group(Axis.DP_CP, table), TIERS, NETWORK)
    assert found.weights_forward_s == pytest.approx(messages * gather_s, rel=1e-4)


def test_fully_sharded_weights_are_gathered_twice_and_gradients_scattered_with_every_micro_batch() -> None:
    table = one(dp=16, zero=3)
    found = priced(DENSE, table)
    count = layer_parameters(model_of(DENSE))
    data = group(Axis.DP_CP, table)
    gather = all_gather_s(2.0 * count, data, TIERS, NETWORK)
    scatter = reduce_scatter_s(4.0 * count, data, TIERS, NETWORK)
    assert found.weights_forward_s == pytest.approx(gather)
    assert found.weights_backward_s == pytest.approx(gather + scatter)
    step = state_exchange(parameters(1e9), job_of(), placed(table), 160e6)
    assert step.reduce_s[0] == step.gather_s[0] == 0.0


def test_hybrid_shards_gather_inside_a_node_and_reduce_across() -> None:
    whole, hybrid = one(dp=64, zero=3), one(dp=64, zero=3, shard_group=8)
    assert priced(DENSE, hybrid).weights_forward_s < priced(DENSE, whole).weights_forward_s
    slow = island_tiers(cluster("p4d:8").islands[0])  # adapters of 50 GB/s beside NVLink of 300 GB/s per accelerator
    near, far = (
        layer_exchange("dense", model_of(DENSE), job_of(), PlacedTable(table, slow, NETWORK)).weights_forward_s
        for table in (hybrid, whole)
    )
    assert near < 0.3 * far
    step = state_exchange(parameters(1e9), job_of(), placed(hybrid), 1e12)
    replicas = group(Axis.REPLICA, hybrid)
    assert replicas.members[0, 0] == 1
    assert step.reduce_s == pytest.approx(all_reduce_s(4e9 / 8, replicas, TIERS, NETWORK))


def test_stages_of_one_strategy_are_priced_together() -> None:
    table = table_of([Strategy(dp=8, zero=1), Strategy(dp=16)], pp=[2, 2], micro_batch=[1, 1])
    dense = np.array([[1e9, 2e9, 3e9], [1e9, 0.0, 5e8]])
    together = state_exchange(LocalParameters(dense=dense, expert=np.zeros_like(dense)), job_of(), placed(table), 160e6)
    assert together.reduce_s.shape == (2, 3)
    for row in range(2):
        for stage in range(3):
            single = state_exchange(parameters(dense[row, stage]), job_of(), placed(table.take(np.array([row]))), 160e6)
            assert together.reduce_s[row, stage] == pytest.approx(single.reduce_s[0])
            assert together.gather_s[row, stage] == pytest.approx(single.gather_s[0])


def test_stage_boundaries() -> None:
    spec, job = model_of(DENSE), job_of()
    inside, across = one(pp=2, tp=4), one(pp=2, tp=8)
    assert boundary_bytes(spec, job, across) == pytest.approx(ACTIVATION_BYTES)
    near, far = (boundary_exchange(spec, job, placed(table)).forward_s[0] for table in (inside, across))
    assert far > 5 * near  # the neighbour's ranks lie in another node
    split = one(pp=2, tp=8, sequence_parallel=True)
    assert boundary_bytes(spec, job, split) == pytest.approx(ACTIVATION_BYTES / 8)
    assert boundary_exchange(spec, job, placed(one(pp=1, tp=8))).forward_s[0] == 0.0


def test_scatter_gather_sends_each_byte_once() -> None:
    # Narayanan et al., arXiv 2104.04473, section 4.1: each of t ranks sends 1 / t and the receivers gather over NVLink
    spec, job, table = model_of(DENSE), job_of(), one(pp=2, tp=8)
    plain = boundary_exchange(spec, job, placed(table)).forward_s[0]
    split = boundary_exchange(spec, job_of(scatter_gather=True), placed(table)).forward_s[0]
    assert boundary_bytes(spec, job, table, scatter_gather=True) == pytest.approx(ACTIVATION_BYTES / 8)
    assert 3.0 < plain / split < 8.0


def test_tied_embeddings_are_reduced_between_the_ends() -> None:
    job, table = job_of(), one(pp=4, tp=8, dp=2)
    tied = model_of(DENSE, tied_embeddings=True)
    time_s = tied_embedding_s(tied, job, placed(table))[0]
    assert time_s > 32000 / 8 * HIDDEN * 4.0 / 50e9  # between nodes, over one accelerator's share
    assert tied_embedding_s(model_of(DENSE), job, placed(table))[0] == 0.0
    assert tied_embedding_s(tied, job, placed(one(tp=8)))[0] == 0.0

"""Exchanges of layers: volumes against published counts, times against single collectives."""

from dataclasses import replace

import numpy as np
import pytest
from exchanged import (
    ACTIVATION_BYTES,
    DENSE,
    HIDDEN,
    LATENT,
    MAMBA,
    MOE,
    NETWORK,
    SEQ,
    TIERS,
    group,
    job_of,
    model_of,
    one,
    placed,
    priced,
)

from costmodels.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_receive_s,
)
from costmodels.collectives.dispatch import TokenTraffic, dispatch_s
from costmodels.collectives.routing import Routing
from costmodels.exchange import (
    boundary_bytes,
    layer_exchange,
    tensor_calls,
)
from costmodels.exchange.volumes import context_widths, tensor_widths
from costmodels.job import Dispatcher
from costmodels.layout import Strategy
from costmodels.mesh import Axis
from costmodels.table import StrategyTable, table_of
from costmodels.workload.model import (
    Attention,
    DeltaNet,
    MoeFfn,
    OpaqueLayer,
)
from hardware.errors import InputError


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

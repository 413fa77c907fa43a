"""Exchanges of states and at boundaries of stages: volumes against published counts, times against collectives."""

from dataclasses import replace

import numpy as np
import pytest
from exchanged import (
    ACTIVATION_BYTES,
    BF16,
    DENSE,
    HIDDEN,
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
    broadcast_s,
    reduce_scatter_s,
)
from costmodels.exchange import (
    PlacedTable,
    boundary_bytes,
    boundary_exchange,
    layer_exchange,
    state_exchange,
    tied_embedding_s,
)
from costmodels.job import TrainingJob
from costmodels.layout import Strategy
from costmodels.memory.states import LocalParameters
from costmodels.mesh import Axis
from costmodels.precision import precision
from costmodels.table import table_of
from costmodels.workload.model import (
    ModelSpec,
)
from hardware.catalog import cluster
from hardware.tiers import island_tiers


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


def test_a_strategy_gathers_in_as_many_messages_whatever_else_is_priced_with_it() -> None:
    strategies = [Strategy(tp=1, dp=16, zero=3), Strategy(tp=8, dp=2, zero=3)]
    together = priced(DENSE, table_of(strategies, pp=[1, 1], micro_batch=[1, 1]), gather_parameters=2e7)
    for row, strategy in enumerate(strategies):
        alone = priced(DENSE, table_of([strategy], pp=[1], micro_batch=[1]), gather_parameters=2e7)
        assert together.weights_forward_s[row] == alone.weights_forward_s[0] > 0.0


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

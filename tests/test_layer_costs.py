"""Part times: what the host adds, what hides, and what must stay a lower bound."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from one_op import op_times

from costmodels.compute import input_gradients_s
from costmodels.host_waits import BESIDE, MEETING, host_of_wait_s
from costmodels.job import Software, TrainingJob
from costmodels.layer_costs import PartCosts, part_weights, price_parts, repeated_s
from costmodels.layout import (
    FULL_RECOMPUTE,
    NO_RECOMPUTE,
    Granularity,
    Layout,
    Recompute,
    Stage,
    Strategy,
    StrategyRun,
)
from costmodels.overlap import exposed_s
from costmodels.part_ops import part_ops
from costmodels.precision import precision
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.reliability import expected_maximum
from costmodels.table import StrategyTable, table_of
from costmodels.workload import presets
from costmodels.works import Work
from hardware.catalog import cluster_of_run

STRATEGIES = [
    Strategy(tp=tp, dp=8 // tp, sequence_parallel=tp > 1, recompute=recompute)
    for tp in (1, 2, 4, 8)
    for recompute in (NO_RECOMPUTE, FULL_RECOMPUTE)
]


def pricing(model: str = "llama3_8b", *, seq: int = 4096, **software: object) -> Pricing:
    used = Software(name="test", framework="megatron", **software)  # type: ignore[arg-type]
    job = TrainingJob(global_batch=64, seq=seq, precision=precision("bf16"), software=used)
    return Pricing(model=presets.model(model), job=job, island=cluster_of_run("H100", 8).islands[0])


CAST = {"separate_accumulation": True, "cast_gradients": True}


def rows(strategies: list[Strategy] = STRATEGIES) -> StrategyTable:
    return table_of(strategies, pp=[1] * len(strategies), micro_batch=[1] * len(strategies))


@pytest.mark.parametrize(
    "software", [{}, {"scripted": True}, {"tp_overlap": True}, {"cuda_graphs": True}, {"blocking_launches": True}, CAST]
)
@pytest.mark.parametrize("seq", [128, 4096])
def test_without_exchanges_is_a_lower_bound(software: dict[str, bool], seq: int) -> None:
    asked = pricing(seq=seq, **software)
    weights = part_weights(asked)
    bound, whole = (price_parts(asked, rows(), exchanges=on) for on in (False, True))
    for cost in ("forward_s", "backward_s"):
        assert (weights @ getattr(bound, cost).sum(axis=0) <= weights @ getattr(whole, cost).sum(axis=0) + 1e-12).all()


@pytest.mark.parametrize("seq", [64, 4096])
@pytest.mark.parametrize("scripted", [False, True])
def test_recompute_adds_at_least_what_it_repeats(seq: int, scripted: bool) -> None:
    asked = pricing(seq=seq, scripted=scripted)
    weights = part_weights(asked)
    total = weights @ (price_parts(asked, rows()).forward_s + price_parts(asked, rows()).backward_s).sum(axis=0)
    again = np.einsum("k,ks->s", weights, repeated_s(asked, rows(), (FULL_RECOMPUTE,))[0])
    assert (total[1::2] >= total[::2] + again[::2] - 1e-12).all()


def test_what_others_wait_for_the_busiest_expert_rank_is_a_work_of_its_own() -> None:
    """The busiest rank as if all had its load, which a capacity of as much gives them, less an even one."""
    table = rows([Strategy(dp=8, ep=8), Strategy(tp=2, dp=4, ep=8, sequence_parallel=True)])
    even, uneven = (price_parts(pricing("qwen3_30b_a3b", routing_imbalance=load), table) for load in (1.0, 1.5))
    for cost in ("forward_s", "backward_s"):
        mean_s, busiest_s = getattr(even, cost), getattr(uneven, cost)
        others = [work for work in Work if work is not Work.ROUTING]
        assert (busiest_s[others] == mean_s[others]).all()
        assert (mean_s[Work.ROUTING] == 0.0).all()
        assert (busiest_s[Work.ROUTING, 0] > 0.0).all()  # the layers with experts
        ends = uneven.index("head")
        assert busiest_s[Work.ROUTING, ends] == pytest.approx(0.0, abs=1e-12)


def test_uneven_routing_takes_longer_than_even_by_the_work_of_experts_alone() -> None:
    table = rows([Strategy(dp=8, ep=8)])
    costs = price_parts(pricing("qwen3_30b_a3b", routing_imbalance=1.5), table)
    products, waits = costs.forward_s[Work.GEMM, 0], costs.forward_s[Work.ROUTING, 0]
    exchanged = costs.forward_s[Work.EP, 0]
    assert (waits < 0.5 * (products + costs.forward_s[Work.MEMORY, 0] + exchanged) * 1.02).all()
    assert (waits > 0.4 * exchanged).all()


def test_small_layers_take_the_hosts_time() -> None:
    costs = price_parts(pricing(seq=32, scripted=True), rows())
    spent = costs.forward_s[:, 0].sum(axis=0)
    device_s, host_s = device_and_host_s(costs)
    assert (host_s > 2.0 * device_s).all()
    graphs = price_parts(pricing(seq=32, cuda_graphs=True), rows())
    assert (graphs.forward_s[Work.LAUNCH, 0] < 0.1 * costs.forward_s[Work.LAUNCH, 0]).all()
    assert (graphs.forward_s[:, 0].sum(axis=0) < 0.4 * spent).all()
    long = price_parts(pricing(seq=16384), rows()).forward_s[:, 0, 0]
    assert long[Work.LAUNCH] < 1e-6 * long.sum()


def device_and_host_s(costs: PartCosts) -> tuple[np.ndarray, np.ndarray]:
    """Device and host seconds of a forward pass over a layer that waits for its host, of each of :func:`rows`."""
    whole_s = costs.forward_s[:, 0].sum(axis=0)
    device_s = whole_s - costs.forward_s[Work.LAUNCH, 0]
    return device_s, host_of_wait_s(device_s, costs.forward_s[Work.LAUNCH, 0], np.where(rows().tp > 1, MEETING, BESIDE))


def test_hosts_and_devices_hide_behind_each_other_in_part_and_less_where_ranks_are_tensor_parallel() -> None:
    """The root of the sum of squares with tp, nearly the longer without; the host takes as long for every sequence."""
    short, long = (device_and_host_s(price_parts(pricing(seq=seq, scripted=True), rows())) for seq in (64, 1024))
    assert (long[0] > 1.5 * short[0]).all()
    assert long[1] == pytest.approx(short[1], rel=1e-9)
    assert short[1][:2] == pytest.approx(short[1][0])


def test_ranks_that_meet_in_every_layer_wait_for_the_slowest_host() -> None:
    waits = price_parts(pricing(seq=16, scripted=True), rows()).forward_s[:, 0].sum(axis=0)[::2]
    assert (np.diff(waits) > 0.0).all()


def test_a_hidden_transfer_still_costs() -> None:
    transfer, window = np.array([1.0, 2.0, 4.0]), 4.0
    free = exposed_s(transfer, window, 0.5)
    assert free.tolist() == [0.0, 0.0, 2.0]
    contended = exposed_s(transfer, window, 0.5, contention=0.25)
    assert contended.tolist() == [0.25, 0.5, 2.5]
    assert exposed_s(transfer, window, 0.5, least_share=0.5).tolist() == [0.5, 1.0, 2.0]


def test_overlap_pays() -> None:
    fast, slow = (price_parts(pricing(tp_overlap=on), rows()).forward_s[Work.TP, 0] for on in (True, False))
    assert (fast[2:] < slow[2:]).all()
    hidden, waiting = (
        price_parts(replace_software(pricing(), tp_backward_overlap=on), rows()).backward_s[Work.TP, 0]
        for on in (True, False)
    )
    assert (hidden[2:] < waiting[2:]).all()


@pytest.mark.parametrize(
    ("hardware", "gpus_per_node", "tp", "shared"),
    [("H100", 8, 8, False), ("MI300X", 8, 8, False), ("L4", 8, 8, True), ("H100", 8, 16, True), ("H100", 4, 8, True)],
)
def test_exchanges_between_calls_of_python_take_longest_where_groups_share_links(
    hardware: str, gpus_per_node: int, tp: int, shared: bool
) -> None:
    """Inside a domain of own links groups do not meet; on host bridges, and beyond the domain, they do."""
    island = cluster_of_run(hardware, 16, gpus_per_node, 1e11).islands[0]
    table = rows([Strategy(tp=tp, dp=16 // tp)])
    alone, between = (
        price_parts(replace(pricing(scripted=scripted), island=island), table).forward_s[Work.TP, 0, 0]
        for scripted in (False, True)
    )
    overlap = pricing().constants.overlap
    assert overlap.step_exchange > overlap.step_exchange_own > 1.0
    assert between / alone == pytest.approx(overlap.step_exchange if shared else overlap.step_exchange_own)


def replace_software(asked: Pricing, **changes: bool) -> Pricing:
    return replace(asked, job=replace(asked.job, software=replace(asked.job.software, **changes)))


def test_gradients_accumulated_apart_take_a_pass_over_all_parameters() -> None:
    fused, apart = (price_parts(pricing(separate_accumulation=on), rows()) for on in (False, True))
    one = fused.dense_parameters[:, 0]  # tp 1
    added_s = (apart.backward_s[Work.MEMORY] - fused.backward_s[Work.MEMORY])[:, 0]
    accelerator = pricing().accelerator
    ideal_s = (2.0 + 4.0 + 4.0) * one / accelerator.memory_bytes_per_s  # gradient read, fp32 sum read and written
    assert (added_s >= ideal_s).all()
    assert (added_s <= 2.0 * ideal_s + 1e-5).all()


def test_gradients_cast_before_they_are_added_take_three_passes_more_over_fp32_and_two_kernels_a_tensor() -> None:
    asked = pricing(separate_accumulation=True, scripted=True, blocking_launches=True)
    apart, cast = (price_parts(replace_software(asked, cast_gradients=on), rows()) for on in (False, True))
    layer, one = apart.index("attention+dense"), apart.dense_parameters[:, 0]  # tp 1
    added_s = (cast.backward_s - apart.backward_s)[:, :, 0]
    ideal_s = (4.0 + 4.0) * one / asked.accelerator.memory_bytes_per_s  # the copy written and read
    assert (added_s[Work.MEMORY] >= ideal_s).all()
    assert (added_s[Work.MEMORY] <= 2.0 * ideal_s + 1e-5).all()
    shared = asked.constants.efficiency.shared
    kernel_s = shared.script_dispatch_s * shared.blocked_host
    assert added_s[Work.LAUNCH, layer] == pytest.approx(2 * 6 * kernel_s)  # four products and two norms without biases


def layout_of(*, pp: int, dp: int, zero: int = 0, shard_group: int = 0, micro_batch: int = 1) -> Layout:
    strategy = Strategy(dp=dp, zero=zero, shard_group=shard_group)
    stage = Stage(layers_per_chunk=(32 // pp,), strategies=(StrategyRun(strategy=strategy, count=32 // pp),))
    return Layout(stages=(stage,) * pp, micro_batch=micro_batch, num_microbatches=64 // (dp * micro_batch))


@pytest.mark.parametrize("zero", [0, 1])
def test_gradients_of_shards_wait_for_the_last_backward_pass_where_nothing_starts_them_before(zero: int) -> None:
    """nanotron: DistributedDataParallel reduces beside the backward pass, without ZeRO alone."""
    layout = layout_of(pp=1, dp=8, zero=zero)
    early, late = (price_layout([pricing(sharded_grad_overlap=on)], layout).step for on in (True, False))
    never = price_layout([pricing(grad_overlap=False)], layout).step
    reduced = [dict(step.details)["gradient_reduction"] for step in (early, late, never)]
    assert reduced[0] < reduced[2]
    assert reduced[1] == reduced[2 * zero]


def test_shards_cut_one_by_one_cost_the_host_time_for_each_tensor_and_rank() -> None:
    layout = layout_of(pp=1, dp=8, zero=1)
    whole, sliced = (price_layout([pricing(sliced_states=on)], layout).step for on in (False, True))
    tensors = 32 * 6 + 3  # two norms and four products a layer; embedding, norm, head
    slice_s = pricing().constants.overlap.slice_s
    gained = dict(sliced.details)["weight_gather"] - dict(whole.details)["weight_gather"]
    assert gained == pytest.approx(8 * tensors * slice_s, rel=0.1)
    grouped = layout_of(pp=1, dp=8, zero=1, shard_group=2)
    whole, sliced = (price_layout([pricing(sliced_states=on)], grouped).step for on in (False, True))
    gained = dict(sliced.details)["weight_gather"] - dict(whole.details)["weight_gather"]
    assert gained == pytest.approx(2 * tensors * slice_s, rel=0.1)


@pytest.mark.parametrize(
    ("pp", "dp", "polls"), [(1, 8, 0), (2, 4, 2 * 16 + 2), (4, 2, 4 * 32 + 6), (8, 1, 4 * 64 + 14)]
)
def test_polls_lengthen_every_exchange_between_stages(pp: int, dp: int, polls: int) -> None:
    layout = layout_of(pp=pp, dp=dp)
    plain, polled = (price_layout([pricing(polled_exchanges=on)], layout).step for on in (False, True))
    assert polled.total_s == pytest.approx(plain.total_s + polls * pricing().constants.overlap.poll_s)
    assert ("polls" in dict(polled.details)) is (polls > 0)


def test_runs_known_only_with_polls_where_the_memory_is_full() -> None:
    roomy, full = layout_of(pp=8, dp=1), layout_of(pp=2, dp=4, micro_batch=4)
    for layout, polls in ((roomy, 0), (full, 2 * full.num_microbatches + 2)):
        plain, waiting = (price_layout([pricing(polled_when_full=on)], layout).step for on in (False, True))
        assert waiting.total_s == pytest.approx(plain.total_s + polls * pricing().constants.overlap.poll_s)


def test_a_table_may_hold_more_recompute_choices_than_numpy_chooses_among() -> None:
    asked = pricing("deepseek_v2_lite")
    modules = sorted({op.module for ops in part_ops(asked) for op in ops})
    options = [Recompute(granularity=Granularity.SELECTIVE, modules=pair) for pair in combinations(modules, 2)]
    assert len(options) > 64
    together = price_parts(asked, rows([Strategy(dp=8, recompute=option) for option in options])).backward_s
    for number in (0, 40, len(options) - 1):
        alone = price_parts(asked, rows([Strategy(dp=8, recompute=options[number])])).backward_s
        np.testing.assert_allclose(together[..., number], alone[..., 0], rtol=1e-12)


def test_blocking_launches_let_no_host_run_ahead_of_its_device() -> None:
    """CUDA_LAUNCH_BLOCKING: what starting the kernels takes does not vanish behind longer kernels."""
    waits = {}
    for blocking in (False, True):
        for seq in (4096, 16384):
            costs = price_parts(pricing(seq=seq, scripted=True, blocking_launches=blocking), rows(STRATEGIES[:1]))
            waits[blocking, seq] = float(costs.forward_s[Work.LAUNCH, 0, 0])
    assert waits[False, 16384] < waits[False, 4096] < 1e-3 * waits[True, 4096]
    assert waits[True, 4096] == pytest.approx(waits[True, 16384])
    assert waits[True, 4096] > 1e-4


def test_each_exchange_waits_for_the_blocked_host_that_took_longest() -> None:
    """Delays without memory: of n hosts the slowest takes one plus the expected maximum of n normals times the mean."""
    asked = pricing(scripted=True, blocking_launches=True)
    waits = [price_parts(asked, rows([Strategy(tp=tp, dp=8 // tp)])).forward_s[Work.LAUNCH, 0, 0] for tp in (2, 8)]
    jitter = asked.constants.efficiency.shared.blocked_jitter
    slowest = 1.0 + jitter * expected_maximum(np.array([2, 8]))
    assert waits[1] / waits[0] == pytest.approx(slowest[1] / slowest[0])
    drawn = np.random.default_rng(0).exponential(size=(20_000, 8)).max(axis=1).mean()
    assert slowest[1] == pytest.approx(drawn, rel=0.12)  # exact for exponential delays: 1 + 1/2 + ... + 1/8


def test_host_and_device_meet_where_tokens_are_routed_with_one_tensor_rank_too() -> None:
    """One rule: what a slower clock leaves of a wait is turned back with the exponent that the wait was priced with."""
    asked = pricing("deepseek_v2_lite")
    costs = price_parts(asked, rows([Strategy(dp=8)]))
    assert costs.host_exponent.shape == (len(costs.names), 1)
    exponents = dict(zip(costs.names, costs.host_exponent[:, 0], strict=True))
    routed = [name for name in costs.names if "moe" in name]
    assert routed
    assert all(exponents[name] == (MEETING if name in routed else BESIDE) for name in costs.names)


@pytest.mark.parametrize(("dropout", "stops", "products"), [(False, True, 3), (False, False, 4), (True, True, 4)])
def test_recompute_that_stops_early_leaves_out_the_last_product(dropout: bool, stops: bool, products: int) -> None:
    """Counted with PyTorch 2.13's dispatcher: checkpoints that are not reentrant, reentrant, and with dropout."""
    asked = pricing("gpt3_175b", dropout=dropout, stops_recompute=stops)
    layer, ops = part_ops(asked)[0], ("qkv", "proj", "fc1", "fc2")
    table = rows([Strategy(tp=8)])
    each_s = {
        op.name: op_times(op, asked.job, table, asked.accelerator, efficiency=asked.constants.efficiency)
        for op in layer
    }
    again_s = repeated_s(asked, table, [FULL_RECOMPUTE])[0, 0, 0]
    left_out = [*ops[products:], "ffn_residual"] if products < len(ops) else []
    whole_s = sum(times.forward_s[0] for times in each_s.values())
    assert again_s == pytest.approx(whole_s - sum(each_s[name].forward_s[0] for name in left_out))


@pytest.mark.parametrize("software", [{"stops_recompute": True}, {"compiled": True}])
def test_the_reduction_behind_a_product_that_does_not_run_again_is_left_out(software: dict[str, bool]) -> None:
    """Counted with PyTorch 2.13: of two gathers and two reductions forward, the repeated pass makes all but one."""
    table = rows([Strategy(tp=8, sequence_parallel=True, recompute=FULL_RECOMPUTE)])
    exchanged = []
    for flags in ({}, software):
        asked = pricing("gpt3_175b", dropout=False, tp_backward_overlap=False, **flags)
        costs = price_parts(asked, table)
        exchanged.append((costs.forward_s[Work.TP, 0, 0], costs.backward_s[Work.TP, 0, 0]))
    (forward_s, whole_s), (_, stopped_s) = exchanged
    assert whole_s - stopped_s == pytest.approx(forward_s / 4.0, rel=0.02)


def test_products_of_one_input_that_are_not_joined_add_up_its_gradients() -> None:
    """Queries, keys, values, gate and up: three sums a layer, of two reads and a write, or one read if compiled."""
    asked = pricing("llama3_8b", joined_products=False)
    layer, efficiency = part_ops(asked)[0], asked.constants.efficiency
    tokens, width = asked.job.seq, asked.model.hidden * asked.job.precision.activation_bytes
    bandwidth = asked.accelerator.memory_bytes_per_s * efficiency.generation(asked.accelerator).memory
    for software, passes in ((asked.job.software, 9.0), (replace(asked.job.software, compiled=True), 3.0)):
        job = replace(asked.job, software=software)
        found = input_gradients_s(layer, job, rows([Strategy(tp=8)]), asked.accelerator, efficiency=efficiency)
        assert found[0] == pytest.approx(passes * tokens * width / bandwidth)
    assert not input_gradients_s(
        layer, pricing("llama3_8b").job, rows([Strategy(tp=8)]), asked.accelerator, efficiency=efficiency
    ).any()


@pytest.mark.parametrize("stops", [False, True])
def test_recompute_of_the_dense_part_that_stops_early_leaves_out_its_last_product(stops: bool) -> None:
    """A checkpoint around the dense part alone ends where its backward pass reads nothing more: before fc2."""
    asked = pricing("gpt3_175b", dropout=False, stops_recompute=stops)
    table = rows([Strategy(tp=8)])
    again = Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))
    named = ("fc1", "activation") if stops else ("fc1", "activation", "fc2")
    inside = [op for op in part_ops(asked)[0] if op.name in named]
    efficiency = asked.constants.efficiency
    each_s = [op_times(op, asked.job, table, asked.accelerator, efficiency=efficiency).forward_s[0] for op in inside]
    assert len(each_s) == (2 if stops else 3)
    assert repeated_s(asked, table, [again])[0, 0, 0] == pytest.approx(sum(each_s))

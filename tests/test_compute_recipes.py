"""What number formats, releases and capacities do to the time of an op."""

from dataclasses import replace

import numpy as np
import pytest
from one_op import op_times

from costmodels.compute import OpTimes, default_efficiency
from costmodels.job import Dispatcher, Software, TrainingJob
from costmodels.layer_costs import price_parts
from costmodels.layout import Strategy
from costmodels.precision import precision
from costmodels.pricing import Pricing
from costmodels.table import StrategyTable, table_of
from costmodels.workload import presets
from costmodels.workload.feedforward import DISPATCH
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import ModelSpec
from costmodels.workload.op import Op, OpKind, Split
from costmodels.works import Work
from hardware.catalog import accelerator, cluster_of_run

EFFICIENCY = default_efficiency()
LARGE = Op(name="fc1", module="mlp", kind=OpKind.GEMM, split=Split.COLUMN, k=16384, n=53248)
SEQ = 8192


def job(recipe: str = "fp8-cs", **software: object) -> TrainingJob:
    used = Software(name="test", framework="bridge", **software)  # type: ignore[arg-type]
    return TrainingJob(global_batch=64, seq=SEQ, precision=precision(recipe), software=used)


def one(**degrees: int) -> StrategyTable:
    return table_of([Strategy(**degrees)], pp=[1], micro_batch=[1])


def priced(op: Op, asked: TrainingJob, part: str = "gb200", table: StrategyTable | None = None) -> OpTimes:
    return op_times(op, asked, table or one(), accelerator(part), efficiency=EFFICIENCY)


def moe() -> ModelSpec:
    return presets.model("qwen3_30b_a3b")


def moe_op(name: str) -> Op:
    return next(op for op in layer_ops(moe().kinds()[0], moe()) if op.name == name)


def test_products_with_a_scale_per_block_run_at_their_share():
    tensor, block = (priced(LARGE, job(recipe)).forward_s[0] for recipe in ("fp8-cs", "mxfp8"))
    assert tensor < block <= tensor / EFFICIENCY.shared.block_scaled_math


def test_scales_per_row_cast_every_operand_for_every_product():
    plain, rows = (priced(LARGE, job("fp8-cs", row_scales=flag)) for flag in (False, True))
    part = accelerator("gb200")
    bandwidth = part.memory_bytes_per_s * EFFICIENCY.generation(part).memory
    inputs, weights, results = SEQ * LARGE.k, LARGE.k * LARGE.n, SEQ * LARGE.n
    forward = (3.0 * (inputs + weights) - 4.0 * inputs) / bandwidth
    # the gradient along rows and columns, weight and input along columns, both results scaled; without: the gradient
    backward = (8.0 * results + 9.0 * weights + 9.0 * inputs - 4.0 * results) / bandwidth
    assert rows.forward_s[0] - plain.forward_s[0] == pytest.approx(forward, abs=1e-5)
    assert rows.backward_s[0] - plain.backward_s[0] == pytest.approx(backward, abs=1e-5)


def test_frozen_weights_need_no_casts_for_their_gradients():
    trained, frozen = (replace(job("fp8-cs", row_scales=True), trained_share=share) for share in (1.0, 0.01))
    without = [replace(asked, software=replace(asked.software, row_scales=False)) for asked in (trained, frozen)]
    added = [
        priced(LARGE, asked).backward_s[0] - priced(LARGE, plain).backward_s[0]
        for asked, plain in zip((trained, frozen), without, strict=True)
    ]
    assert added[1] < 0.5 * added[0]


def test_gradients_of_weights_in_16_bits_are_products_of_16_bits_without_casts():
    by_row, wide = (priced(LARGE, job("fp8-cs", row_scales=True, wide_weight_gradients=on)) for on in (False, True))
    assert wide.forward_s[0] == by_row.forward_s[0]
    low, half = (priced(LARGE, job(recipe)).backward_s[0] for recipe in ("fp8-cs", "bf16"))
    frozen = replace(job("fp8-cs", row_scales=True), trained_share=0.01)
    product = wide.backward_s[0] - priced(LARGE, frozen).backward_s[0]
    assert 0.4 * half < product < 0.6 * half  # one of the two products of a backward pass in bf16
    assert product > 0.6 * low


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8"])
def test_scales_per_row_are_of_recipes_without_other_scales(recipe):
    plain, rows = (priced(LARGE, job(recipe, row_scales=flag)) for flag in (False, True))
    assert rows.forward_s[0] == plain.forward_s[0]
    assert rows.backward_s[0] == plain.backward_s[0]


@pytest.mark.parametrize(("part", "recipe", "slower"), [("gb200", "fp8-cs", True), ("gb200", "bf16", False)])
@pytest.mark.parametrize("other", ["h100-sxm-80gb"])
def test_early_releases_are_slower_in_low_precision_on_new_parts(part, recipe, slower, other):
    late, early = (priced(LARGE, job(recipe, early_release=flag), part).forward_s[0] for flag in (False, True))
    assert (early > 1.05 * late) == slower
    assert early >= late
    known = [priced(LARGE, job(recipe, early_release=flag), other).forward_s[0] for flag in (False, True)]
    assert known[0] == known[1]


def test_a_capacity_ranks_every_token_for_every_expert():
    free, capped = (priced(moe_op(DISPATCH), job(capacity_factor=capacity)) for capacity in (0.0, 1.0))
    ranked = SEQ * 128 / EFFICIENCY.shared.ranked_tokens_per_s
    assert capped.forward_s - free.forward_s == pytest.approx(ranked)
    assert capped.backward_s == pytest.approx(free.backward_s)
    assert priced(moe_op("combine"), job(capacity_factor=1.0)).forward_s == priced(moe_op("combine"), job()).forward_s


@pytest.mark.parametrize("capacity", [1.0, 1.25])
def test_masks_that_route_are_two_products_forward_and_three_backward(capacity):
    """GShard, algorithm 2: every token of a sequence times every place of all experts, times the width."""
    asked = job("bf16", capacity_factor=capacity, masked_dispatch=True)
    found = [priced(moe_op(name), asked) for name in (DISPATCH, "combine")]
    mixture = moe().kinds()[0].ffn
    product_flops = 2.0 * SEQ * (SEQ * mixture.top_k * capacity) * moe().hidden
    for seconds, products in ((found[0].forward_s, 2.0), (found[0].backward_s, 3.0)):
        rate = products * product_flops / seconds[0] / accelerator("gb200").peak.bf16
        assert 0.5 < rate < 1.0
    assert found[1].forward_s[0] < 0.01 * found[0].forward_s[0]  # nothing is sorted
    dropless = job("bf16", masked_dispatch=True)
    assert priced(moe_op(DISPATCH), dropless).forward_s == priced(moe_op(DISPATCH), job("bf16")).forward_s


def test_dispatchers_that_sort_less_move_less():
    moved = {
        dispatcher: priced(moe_op(DISPATCH), job(dispatcher=dispatcher)).forward_s[0]
        for dispatcher in (Dispatcher.ALLTOALL, Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)
    }
    assert moved[Dispatcher.HYBRIDEP] < moved[Dispatcher.DEEPEP] < moved[Dispatcher.ALLTOALL]


def test_the_host_waits_for_counts_only_where_no_capacity_fixes_them():
    """With read counts a pass is the root of the sum of squares of device and host; with a capacity the longer one."""

    def launch(capacity: float) -> np.ndarray:
        asked = job("bf16", capacity_factor=capacity)
        pricing = Pricing(model=moe(), job=asked, island=cluster_of_run("H100", 8).islands[0])
        costs = price_parts(pricing, one(dp=8, ep=8))
        return costs.forward_s[Work.LAUNCH, 0] / costs.forward_s[:, 0].sum(axis=0)

    assert (launch(0.0) > launch(1.0) + 0.01).all()

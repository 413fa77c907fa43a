"""What sharded data parallelism copies around its exchanges, and what of these hides."""

from dataclasses import replace

import numpy as np
import pytest
from small_requests import asked, pricing_of

from costmodels.compute import default_efficiency, shard_copies_s
from costmodels.job import ShardCopies
from costmodels.layer_costs import price_parts
from costmodels.layout import Strategy
from costmodels.memory.states import LocalParameters
from costmodels.part_ops import EMBEDDING, HEAD
from costmodels.pricing import Pricing
from costmodels.software import RunText, software_for
from costmodels.table import StrategyTable, table_of
from costmodels.works import Work
from hardware.catalog import accelerator

H100 = accelerator("h100-sxm-80gb")
MOVED_BYTES_PER_S = H100.memory_bytes_per_s * default_efficiency().generation(H100).memory
DENSE, EXPERT = 2e9, 1e9


def grid(*, zero: int, dp: int = 8, ep: int = 1, micro_batch: int = 1) -> StrategyTable:
    return table_of([Strategy(tp=1, cp=1, dp=dp, ep=ep, etp=1, zero=zero)], pp=[1], micro_batch=[micro_batch])


def job(**software: object):
    request = asked(framework="torchtitan", global_batch=8, seq=2048)
    return replace(request.job, software=replace(request.job.software, **software))


def copied_bytes(table: StrategyTable, **software: object) -> tuple[float, float]:
    held = LocalParameters(dense=np.array([DENSE]), expert=np.array([EXPERT]))
    forward_s, backward_s = shard_copies_s(held, job(**software), table, H100, efficiency=default_efficiency())
    return float(forward_s[0]) * MOVED_BYTES_PER_S, float(backward_s[0]) * MOVED_BYTES_PER_S


@pytest.mark.parametrize(
    ("form", "reduced", "gathered", "made"),
    [
        (ShardCopies.NONE, 4.0, 0.0, 0.0),
        (ShardCopies.EACH, 4.0, 4.0, 2.0 + 4.0),  # out of the buffer; in, and cast on the way
        (ShardCopies.EACH, 2.0, 4.0, 2.0 + 2.0),
        (ShardCopies.FLAT, 2.0, 0.0, 4.0 + 4.0),  # joined, divided
        (ShardCopies.FLAT, 4.0, 0.0, 4.0 + 6.0 + 8.0),  # joined, cast, divided in the wider format
        (ShardCopies.BUCKETS, 2.0, 0.0, 4.0 + 4.0 + 4.0),
    ],
)
def test_bytes_that_each_form_copies_of_a_parameter(form, reduced, gathered, made):
    forward, backward = copied_bytes(grid(zero=3), shard_copies=form, reduce_bytes=reduced)
    assert forward == pytest.approx(gathered * (DENSE + EXPERT))
    assert backward == pytest.approx((gathered + made) * (DENSE + EXPERT))


def test_only_what_is_sharded_is_copied():
    words = {"shard_copies": ShardCopies.EACH, "reduce_bytes": 2.0}
    assert copied_bytes(grid(zero=1), **words) == (0.0, 0.0)
    assert copied_bytes(grid(zero=2), **words) == (0.0, pytest.approx(4.0 * (DENSE + EXPERT)))
    assert copied_bytes(grid(zero=3, dp=1), **words) == (0.0, 0.0)
    assert copied_bytes(grid(zero=3, ep=8), **words)[0] == pytest.approx(4.0 * DENSE)  # each rank has its own experts
    waiting = grid(zero=3, dp=4)  # two micro-batches
    assert copied_bytes(waiting, sync_each_batch=False, **words)[1] == pytest.approx(4.0 * (DENSE + EXPERT))


def shown_s(pricing: Pricing, zero: int, **software: bool) -> float:
    told = replace(pricing.job, software=replace(pricing.job.software, shard_copies=ShardCopies.NONE, **software))
    costs = price_parts(replace(pricing, job=told), grid(zero=zero, micro_batch=4))
    layer = next(number for number, name in enumerate(costs.names) if name not in (EMBEDDING, HEAD))
    return float(costs.backward_s[Work.WEIGHTS, layer, 0])


def test_reductions_hide_apart_from_gathers_but_under_zero_3():
    pricing = pricing_of(asked(cluster="dgx-h100:1", framework="torchtitan", global_batch=64, seq=4096))
    hidden, shown = ({"grad_overlap": beside, "param_overlap": False} for beside in (True, False))
    assert shown_s(pricing, 2, **hidden) < 0.5 * shown_s(pricing, 2, **shown)
    assert shown_s(pricing, 3, **hidden) == shown_s(pricing, 3, **shown)  # in turn with gathers that passes wait for
    both = {"grad_overlap": True, "param_overlap": True}
    assert shown_s(pricing, 3, **both) < 0.5 * shown_s(pricing, 3, **shown)


@pytest.mark.parametrize(
    ("run", "reduced"),
    [
        (RunText(framework="llm-foundry/composer FSDP", hardware="H100-SXM-80GB", notes="MP mode DEFAULT"), 4.0),
        (RunText(framework="llm-foundry/composer FSDP", hardware="H100-SXM-80GB", notes="MP mode PURE"), 2.0),
        (RunText(framework="llm-foundry/composer FSDP", hardware="A100-SXM-80GB", notes="MP mode DEFAULT"), 2.0),
    ],
)
def test_composer_reduces_in_fp32_by_default_since_2023_10(run, reduced):
    assert software_for(run).software.reduce_bytes == reduced

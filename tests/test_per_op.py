"""Recompute by torchtitan's list of ops: what it keeps and what runs again, from the sizes of the products."""

import pytest

from costmodels.job import TrainingJob
from costmodels.layout import TITAN_SELECTIVE, Strategy
from costmodels.memory.activations import listed_bytes
from costmodels.memory.tokens import token_shares
from costmodels.precision import precision
from costmodels.software import software
from costmodels.table import table_of
from costmodels.workload.layers import layer_ops
from costmodels.workload.per_op import listed
from costmodels.workload.presets import find
from hardware.errors import InputError
from planner.layouts.recompute_words import parse_recompute_words


def ops_of(name):
    spec = find(name)
    return layer_ops(spec.runs[-1].kind, spec)


def elements(name, *, compiled=True, unlisted=False):
    ops = ops_of(name)
    what = listed(ops, compiled=compiled, unlisted=unlisted)
    return {op.name: one.elements for op, one in zip(ops, what, strict=True) if one.elements}


def test_every_second_product_of_llama_is_kept():
    """Queries, not keys, values, not output, gate, not up; down only where code that runs as written keeps it."""
    kept = {"qkv": 4096 + 1024, "core_attention": 4096, "fc1": 14336}
    assert elements("llama3_8b") == kept
    assert elements("llama3_8b", compiled=False) == {**kept, "fc2": 4096}
    assert elements("llama3_8b", unlisted=True) == {"core_attention": 4096}


def test_shares_that_run_again_are_those_that_are_not_kept():
    ops = ops_of("llama3_8b")
    again = {op.name: one.again for op, one in zip(ops, listed(ops, compiled=True, unlisted=False), strict=True)}
    assert again["qkv"] == pytest.approx(1024 / 6144)
    assert (again["proj"], again["fc1"], again["fc2"], again["core_attention"]) == (1.0, 0.5, 0.0, 0.0)
    assert again["mixer_norm"] == again["activation"] == 1.0


def test_queries_of_latent_attention_come_before_keys():
    """DeepSeek-V3: down for queries is kept, up runs again; the same of keys and values; output is kept."""
    found = elements("deepseek_v3")
    assert (found["q_down"], found["kv_down"], found["proj"]) == (1536, 576, 7168)
    assert not {"q_up", "kv_up", "router"} & set(found)
    assert found["shared_fc1"] == 2048  # up: the gate's turn passed to the output


def test_products_of_experts_run_again():
    ops = ops_of("qwen3_30b_a3b")
    again = {op.name: one.again for op, one in zip(ops, listed(ops, compiled=True, unlisted=False), strict=True)}
    assert all(again[name] == 1.0 for name in ("router", "dispatch", "expert_fc1", "expert_activation", "expert_fc2"))
    assert elements("qwen3_30b_a3b") == {"qkv": 4096 + 512, "core_attention": 4096}


def job():
    return TrainingJob(
        global_batch=8, seq=4096, precision=precision("bf16", framework="torchtitan"), software=software("torchtitan")
    )


def held(name, strategy):
    table = table_of([strategy], pp=[1], micro_batch=[1])
    return float(listed_bytes(ops_of(name), job(), token_shares(job(), table), table.ep > 1)[0]) / 4096


def test_bytes_of_a_mixture_with_and_without_exchange():
    """Two bytes an element and four of a statistic per head; both ways of the exchange are kept, per routed copy."""
    alone = 2 * (4096 + 512 + 4096) + 4 * 32
    assert held("qwen3_30b_a3b", Strategy(dp=8, zero=3)) == pytest.approx(alone)
    more = held("qwen3_30b_a3b", Strategy(dp=8, ep=8, zero=3)) - alone
    even = 2 * 8 * 2048 * 2
    assert even <= more < 1.2 * even  # the busiest rank has more than its share


def test_tensor_parallel_ranks_keep_scattered_sums():
    alone = 2 * (4096 + 1024 + 4096 + 14336) + 4 * 32
    split = held("llama3_8b", Strategy(tp=4, dp=2, zero=3, sequence_parallel=True))
    assert split == pytest.approx((alone + 2 * 4096) / 4)


def test_words_name_it_alone():
    assert parse_recompute_words("selective:per_op") == (TITAN_SELECTIVE, 0)
    with pytest.raises(InputError, match="a list of its own"):
        parse_recompute_words("selective:per_op+mlp")


@pytest.mark.parametrize(("recipe", "unlisted"), [("bf16", False), ("mxfp8", False), ("fp8", True), ("nvfp4", True)])
def test_which_products_the_list_lacks(recipe, unlisted):
    """MXFP8's are torch.mm of a tensor class, as those of 16 bits; NVFP4's a function's of its own."""
    assert precision(recipe, framework="torchtitan").unlisted is unlisted

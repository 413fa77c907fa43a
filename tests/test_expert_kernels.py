"""Kernels around grouped products of experts: whose they are, what they move, and when they are fused."""

from dataclasses import replace

import pytest

from costmodels.job import Dispatcher, Software, TrainingJob
from costmodels.part_ops import part_ops
from costmodels.precision import precision
from costmodels.pricing import Pricing
from costmodels.software import software
from costmodels.workload.op import Op
from costmodels.workload.presets import model
from hardware.catalog import cluster_of_run

BIASED, PLAIN = "gpt_oss_20b", "qwen3_30b_a3b"


def layer_of(name: str, **changes: object) -> dict[str, Op]:
    """Ops of a model's first kind of layer under Megatron-core, by name."""
    tools: Software = replace(software("megatron-bridge"), **changes)  # type: ignore[arg-type]
    job = TrainingJob(global_batch=8, seq=4096, precision=precision("bf16"), software=tools)
    island = cluster_of_run("GB200", 4, gpus_per_node=4).islands[0]
    return {op.name: op for op in part_ops(Pricing(model=model(name), job=job, island=island))[0]}


def test_bias_and_clamp_stand_around_the_products_of_their_tokens():
    ops = layer_of(BIASED)
    names = [name for name in ops if name.startswith("expert")]
    assert names == ["expert_fc1", "expert_clamp", "expert_activation", "expert_fc2", "expert_bias"]
    width, bias, clamp = 2880, ops["expert_bias"], ops["expert_clamp"]
    assert bias.traffic_elements_per_token == 6.0 * width
    assert clamp.traffic_elements_per_token == 4.0 * 2 * width  # both halves of what the activation reads
    assert {op.top_k for op in (bias, clamp)} == {4}
    assert (bias.module, clamp.module) == ("experts", "moe_act")  # and run again where these do
    assert not any(op.parameters or op.saved_elements_per_token for op in (bias, clamp))


@pytest.mark.parametrize("dispatcher", [Dispatcher.DEEPEP, Dispatcher.HYBRIDEP])
def test_probabilities_in_fp32_make_the_sum_with_the_bias_so(dispatcher):
    narrow, wide = layer_of(BIASED)["expert_bias"], layer_of(BIASED, dispatcher=dispatcher)["expert_bias"]
    moved = [op.traffic_elements_per_token * (1.0 + op.backward_traffic) / 2880 for op in (narrow, wide)]
    assert moved == pytest.approx([12.0, 32.0])


@pytest.mark.parametrize(
    ("changes", "apart"),
    [
        ({}, True),
        ({"cuda_graphs": True, "graphed_experts": False}, True),
        ({"cuda_graphs": True}, False),  # whole iterations: no list of tokens per expert comes to the host
        ({"plain_experts": False}, False),
    ],
)
def test_graphs_of_whole_iterations_need_the_fused_form(changes, apart):
    assert ("expert_bias" in layer_of(BIASED, **changes)) == apart
    assert ("expert_clamp" in layer_of(BIASED, **changes)) == apart


def test_experts_without_biases_have_neither():
    assert not {"expert_bias", "expert_clamp"} & set(layer_of(PLAIN))

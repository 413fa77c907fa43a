"""Activations of single modules in host memory: bytes, what stays on the device, time, and words."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.job import TrainingJob
from costmodels.layer_costs import price_parts
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Stage, Strategy, StrategyRun
from costmodels.memory import layer_memory, stage_memory
from costmodels.precision import precision
from costmodels.pricing import Pricing
from costmodels.software import software
from costmodels.software_words import said_switches, stated_job
from costmodels.table import table_of
from costmodels.workload.presets import model
from costmodels.works import Work
from hardware.catalog import accelerator, cluster
from hardware.errors import InputError

GIB = 2.0**30
MEASURED_GIB = (3191 / 1024, 3396 / 1024)
"""What a micro-batch more in flight frees on the stages of a cut DeepSeek-V3 (4 layers each, ep 16, bf16, sequences of
4,096) with expert_fc1, moe_act, attn_norm and mlp_norm in host memory: differences of peaks with and without between
stages, 64 H100 (design document of the feature, NVIDIA and rednote, October 2025)."""
SPREAD = Strategy(dp=16, ep=16, etp=1, zero=1)
MODULES = ("expert_fc1", "moe_act", "attn_norm", "mlp_norm")


def job(*modules: str, batch: int = 16, share: float = 1.0) -> TrainingJob:
    tools = replace(software("megatron"), offload_modules=modules, offload_modules_share=share)
    return TrainingJob(global_batch=batch, seq=4096, precision=precision("bf16"), software=tools)


def layer_sizes(task: TrainingJob, strategy: Strategy = SPREAD) -> tuple[float, float]:
    """Bytes of one micro-batch that the last layer of DeepSeek-V3 keeps on the device, and in the host."""
    deepseek = model("deepseek_v3")
    found = layer_memory(deepseek.kinds()[-1], deepseek, task, table_of([strategy], pp=[4], micro_batch=[1]))
    return float(found.kept[0]), float(found.away[0])


def test_a_micro_batch_in_flight_frees_what_was_measured():
    _, away = layer_sizes(job(*MODULES))
    assert MEASURED_GIB[0] * 0.97 < 4 * away / GIB < MEASURED_GIB[1]


@pytest.mark.parametrize("modules", [MODULES, ("core_attn",), ("core_attn", "attn_proj"), ("fused_group_mlp",)])
def test_what_is_away_is_not_kept(modules):
    whole, nothing = layer_sizes(job())
    kept, away = layer_sizes(job(*modules))
    assert nothing == 0.0 < away < whole
    assert kept + away == pytest.approx(whole)
    half_kept, half_away = layer_sizes(job(*modules, share=0.5))
    assert (half_away, half_kept) == pytest.approx((away / 2, whole - away / 2))


def test_the_output_of_attention_is_freed_once_both_that_read_it_are():
    _, core = layer_sizes(job("core_attn"))
    _, both = layer_sizes(job("core_attn", "attn_proj"))
    attention = model("deepseek_v3").kinds()[-1].mixer
    assert both - core == pytest.approx(4096 * attention.heads * (attention.v_dim * 2 + 4))


def test_what_recompute_drops_is_not_copied():
    strategy = replace(SPREAD, recompute=FULL_RECOMPUTE)
    assert layer_sizes(job(*MODULES), strategy)[1] == 0.0


def test_one_layer_stays_and_one_is_on_its_way():
    llama = model("llama3_8b")
    run = StrategyRun(strategy=Strategy(dp=2, zero=1), count=8)
    layout = Layout(stages=(Stage(layers_per_chunk=(8,), strategies=(run,)),) * 4, micro_batch=1, num_microbatches=8)

    def held(task: TrainingJob):
        return stage_memory(layout, llama, task, accelerator("h100"))[1]

    plain, there = held(job()), held(job("core_attn", "attn_proj"))
    away = there.host_bytes - plain.host_bytes
    layer = away / 8 / 3  # stage 1 of 4 has three micro-batches in flight
    parts = dict(there.components)
    assert dict(plain.components)["activations"] - parts["activations"] == pytest.approx(away)
    assert parts["buffers"] - dict(plain.components)["buffers"] == pytest.approx(layer)


def test_copies_cost_what_the_pass_beside_them_cannot_hide():
    llama = model("llama3_8b")
    table = table_of([Strategy(dp=8, recompute=NO_RECOMPUTE)], pp=[1], micro_batch=[1])
    island = cluster("dgx-h100:1").islands[0]
    slow = replace(island, node=replace(island.node, host=replace(island.node.host, pcie_bytes_per_s_per_gpu=1e9)))

    def seconds(machine, *modules: str) -> float:
        costs = price_parts(Pricing(model=llama, job=job(*modules), island=machine), table)
        return float(np.sum(costs.forward_s[Work.OFFLOAD] + costs.backward_s[Work.OFFLOAD]))

    assert seconds(island) == seconds(island, "core_attn") == 0.0
    assert seconds(slow, "core_attn", "attn_proj") > 0.1


def test_words_say_the_modules():
    plain = job()
    told = stated_job(plain, ["offload_modules=core_attn+attn_proj"], "bf16")
    assert told.software.offload_modules == ("core_attn", "attn_proj")
    assert said_switches(told.software, plain.software) == ("offload_modules=core_attn+attn_proj",)
    assert stated_job(told, ["offload_modules=none"], "bf16").software == plain.software
    with pytest.raises(InputError, match="offload_modules= with none, or names of attn_norm"):
        stated_job(plain, ["offload_modules=router"], "bf16")

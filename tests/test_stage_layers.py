"""Stages of frameworks that do not cut evenly, against what their code does and what their runs took."""

import pytest

from planner.evidence.measured import parse_run
from planner.evidence.runs import question_of
from planner.evidence.stage_layers import deepspeed_layers, libai_layers
from planner.evidence.validate import predict

GPT = {
    # LiBai's published comparison with Megatron-LM on V100: 24 layers of width 1024, four stages, eight micro-batches.
    "id": "one",
    "model": "GPT-2 (LiBai benchmark)",
    "layers": "24",
    "hidden_size": "1024",
    "ffn_hidden_size": "4096",
    "heads": "16",
    "vocab": "50304",
    "hardware": "V100",
    "gpus_per_node": "8",
    "n_gpus": "4",
    "precision": "fp16",
    "seq_len": "1024",
    "global_batch_size": "256",
    "micro_batch_size": "32",
    "tp": "1",
    "pp": "4",
    "dp": "1",
    "recompute": "full",
    "schedule": "1F1B",
}


def placed(layers: int, pp: int) -> list[int]:
    """Stage of every layer, layer by layer as LiBai lists them; the list is longer than the model."""
    counted = layers + (min(pp - 1, layers // pp) if pp >= 4 and layers >= 8 and layers % pp == 0 else 0)
    each, offset = counted // pp, counted % pp
    stages: list[int] = []
    for layer in range(0, counted - offset, each):
        stages += [layer // each] * (each + (layer // each >= pp - offset))
    return stages[:layers]


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("layers", [8, 12, 24, 26, 48])
def test_libai_places_layers_as_its_list_does(layers: int, pp: int) -> None:
    stages = placed(layers, pp)
    assert libai_layers(layers, pp) == tuple(stages.count(stage) for stage in range(pp))


def test_libai_gains_on_even_stages_what_it_was_measured_to() -> None:
    even, libai = (parse_run(GPT | {"framework": name}) for name in ("Megatron-LM@e156d2f", "LiBai(OneFlow)"))
    assert question_of(even).layout.layers_per_stage == ((6,),) * 4
    assert question_of(libai).layout.layers_per_stage == ((6,), (7,), (7,), (4,))
    slower, faster = (predict(run).step_time_s for run in (even, libai))
    assert slower / faster == pytest.approx(7.71084 / 6.10979, rel=0.1)


def filled(counted: int, pp: int) -> list[int]:
    """Counted modules of each stage, each as full from the front as the fullest, which holds as few as it can."""
    fullest = min(most for most in range(1, counted + 1) if most * pp >= counted)
    stages: list[int] = []
    while len(stages) < pp:
        stages.append(min(fullest, counted - sum(stages)))
    return stages


@pytest.mark.parametrize("pp", [2, 3, 6, 8, 12])
@pytest.mark.parametrize("layers", [24, 70, 78, 106])
def test_deepspeed_fills_stages_from_the_front(layers: int, pp: int) -> None:
    assert deepspeed_layers(layers, pp, ends=False) == tuple(filled(layers, pp))
    first, *middle, last = filled(layers + 2, pp)
    if last:
        assert deepspeed_layers(layers, pp, ends=True) == (first - 1, *middle, last - 1)
    assert sum(deepspeed_layers(layers, pp, ends=True)) == layers


BLOOM = {
    # BLOOM's tuning (bigscience train/tr11-176B-ml/chronicles-prequel.md): 48 nodes of eight A100, tp 4.
    "id": "one",
    "source": "github:bigscience-workshop/bigscience:train/tr11-176B-ml/chronicles-prequel.md",
    "framework": "Megatron-DeepSpeed",
    "model": "GPT (BLOOM tuning)",
    "layers": "78",
    "hidden_size": "13824",
    "ffn_hidden_size": "55296",
    "heads": "96",
    "vocab": "250880",
    "hardware": "A100-SXM-80GB",
    "gpus_per_node": "8",
    "n_gpus": "384",
    "precision": "fp16",
    "seq_len": "2048",
    "global_batch_size": "2048",
    "micro_batch_size": "2",
    "tp": "4",
    "pp": "12",
    "dp": "8",
    "zero": "1",
    "recompute": "full",
    "sequence_parallel": "no",
    "interconnect": "Omni-Path",
    "scaleout_gbps_per_node": "400",
}


def test_bloom_had_seven_layers_on_every_stage_but_the_last_and_the_memory_of_seven() -> None:
    found = predict(parse_run(BLOOM))
    assert question_of(parse_run(BLOOM)).layout.layers_per_stage == ((7,),) * 11 + ((1,),)
    assert (found.peak_mem_bytes or 0.0) / 2**30 == pytest.approx(48, rel=0.03)
    rebalanced = BLOOM | {"layers": "70", "notes": "section 'Rebalancing layers'"}
    assert question_of(parse_run(rebalanced)).layout.layers_per_stage == ((5,), *((6,),) * 10, (5,))


def test_bf16_with_fp32_sums_takes_what_bloom_and_lucie_measured_over_16_bit_sums() -> None:
    """BLOOM in fp16 and bf16, and Lucie with ZeRO-1 and without, each on one layout."""
    wide = BLOOM | {"layers": "106", "hidden_size": "12288", "ffn_hidden_size": "49152", "heads": "64"}
    wide |= {"schedule": "1F1B, partition type:transformer|embed"}
    lucie = BLOOM | {"source": "Lucie-Training", "model": "Lucie-7B", "layers": "32", "hidden_size": "4096"}
    lucie |= {
        "heads": "32",
        "ffn_hidden_size": "11008",
        "vocab": "",
        "n_gpus": "8",
        "precision": "bf16",
        "recompute": "none",
    }
    lucie |= {"global_batch_size": "512", "micro_batch_size": "4", "tp": "2", "pp": "1", "dp": "4"}
    for sums, fewer, measured in (
        (wide | {"precision": "bf16"}, wide, 116.54 / 110.96),
        (lucie | {"zero": "0"}, lucie, 35.6847 / 33.9284),
    ):
        slow, fast = (predict(parse_run(row)).step_time_s or 0.0 for row in (sums, fewer))
        assert slow / fast == pytest.approx(measured, rel=0.02)

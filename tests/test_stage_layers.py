"""Stages of frameworks that do not cut evenly, against what their code does and what their runs took."""

import pytest

from planner.evidence.measured import parse_run
from planner.evidence.runs import question_of
from planner.evidence.stage_layers import libai_layers
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

"""Peaks that the loss decides, against what was measured."""

import pytest
from public_cases import GIB, cases, priced

from costmodels.layout import Layout, Stage, Strategy, StrategyRun
from costmodels.memory import stage_memory
from costmodels.software import RunText, software_for
from costmodels.workload.presets import model
from hardware.catalog import accelerator
from planner.question import Question, request_of

ALL = {case["id"]: case for case in cases()}


@pytest.mark.parametrize(
    ("name", "variant"), [(name, zero) for name in ("h001", "h006") for zero in ("zero2", "zero3")]
)
def test_peaks_of_trainers_on_deepspeed(name, variant):
    """Qwen2.5-14B and Qwen1.5-MoE on eight A800 (ms-swift, Megatron-SWIFT, Benchmark): four stated peaks."""
    case = ALL[name]
    seen = next(one["seen"]["mem_gib"] for one in case["variant"] if one["name"] == variant)
    assert priced(case)[variant].peak_mem_bytes / GIB == pytest.approx(seen, rel=0.03)


def test_the_output_matrix_of_torchtitan_stays_whole_at_the_loss():
    llama = model("llama31_8b")
    asked = request_of(
        Question(model="llama31_8b", cluster="dgx-h100:1", global_batch=8, seq=32768, framework="torchtitan")
    )
    run = StrategyRun(strategy=Strategy(dp=8, zero=3), count=32)
    layout = Layout(stages=(Stage(layers_per_chunk=(32,), strategies=(run,)),), micro_batch=1, num_microbatches=1)
    found = dict(stage_memory(layout, llama, asked.job, accelerator("h100"))[0].components)
    assert found["logits"] > 0.0  # the moment of the peak
    assert found["gathered"] == pytest.approx(2.0 * (128256 * 4096 + 4096))  # with the last norm, in bf16


@pytest.mark.parametrize("written", ["transformers (FSDP)", "accelerate FSDP2", "trl, fsdp", "ms-swift (FSDP2)"])
def test_trainers_that_say_fsdp_are_priced_as_fsdp(written):
    assert software_for(RunText(framework=written)).software.framework == "fsdp"
    assert software_for(RunText(framework="transformers")).software.framework == "deepspeed"

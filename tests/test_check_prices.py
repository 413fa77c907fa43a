"""What ``plan check`` says beside a price: what was priced, why there is none, and what the neighbours offer."""

import json

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

RUN = CliRunner()
FEW = """[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
"""
GALVATRON = {
    "pp_deg": 1,
    "tp_sizes_enc": ",".join(["8"] * 32),
    "tp_consecutive_flags": ",".join(["1"] * 32),
    "dp_types_enc": ",".join(["0"] * 32),
    "use_sp": ",".join(["0"] * 32),
    "checkpoint": ",".join(["0"] * 32),
    "global_bsz": 64,
    "chunks": 2,
    "pp_division": "32",
    "pipeline_type": "pipedream_flush",
    "default_dp_type": "ddp",
    "vtp": 8,
    "vsp": 0,
    "embed_sdp": 0,
}


def said(*words: str) -> str:
    result = RUN.invoke(app, ["check", *words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_a_schedule_that_only_the_framework_runs_is_legal_and_not_priced(tmp_path):
    # PyTorch's interleaved schedule takes fewer micro-batches than stages (one round); no simulator here does
    file, out = tmp_path / "train.toml", tmp_path / "out.json"
    file.write_text(FEW)
    words = ("--framework", "torchtitan", "--args-file", str(file), "--world-size", "256", "--cluster", "dgx-h100")
    text = said(*words, "--json", str(out))
    assert "Legal for torchtitan" in text
    assert "Not priced: num_microbatches 1 with schedule interleaved, pp 4" in text
    assert "group_size" not in text
    answer = json.loads(out.read_text())
    assert answer["prediction"] is None
    assert any(note.startswith("not priced: num_microbatches 1") for note in answer["notes"])


def test_a_price_says_its_batch_and_sequence(tmp_path):
    file = tmp_path / "galvatron.json"
    file.write_text(json.dumps(GALVATRON))
    words = ("--framework", "galvatron", "--args-file", str(file), "--model", "llama2_7b", "--cluster", "dgx-h100:1")
    # the file states no sequence: that of the model's positions is taken, which the answer must show
    text = said(*words)
    assert "Predicted on dgx-h100:1, batch 64 of 4,096 tokens:" in text
    assert "on stage 0: oom" in text
    assert "Faster near it" not in text
    assert "Fits near it" in text
    assert "batch 64 of 1,024 tokens:" in said(*words, "--", "runtime.train.seq_length=1024")


@pytest.mark.parametrize("name", ["train_batch_size", "gradient_accumulation_steps"])
def test_numbers_that_another_program_fills_in_are_named(name, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 4, "train_batch_size": 64, name: "auto"}))
    result = RUN.invoke(
        app,
        ["check", "--framework", "deepspeed", "--args-file", str(file), "--world-size", "8", "--model", "llama3_8b"],
    )
    assert result.exit_code == 3
    words = " ".join(result.output.split())
    assert f"{name}: 'auto'; allowed: a whole number from 1; auto is filled in by the Hugging Face Trainer" in words


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ((), 8.0),
        (("--optimizer", "muon"), 4.0),
        (("--optimizer", "lion", "--exp-avg-dtype", "bf16", "--use-precision-aware-optimizer"), 2.0),
        (("--main-params-dtype", "fp16", "--use-precision-aware-optimizer"), 6.0),
        (("--optimizer", "adaptive_muon"), 8.0),
    ],
)
def test_states_of_the_optimizer_are_those_of_its_kind(words, size):
    """Muon (Jordan et al. 2024), Lion (Chen et al., arXiv 2302.06675) and SGD keep one momentum, Adam two."""
    sizes = ("--num-layers", "2", "--hidden-size", "256", "--num-attention-heads", "4", "--seq-length", "512", "--bf16")
    batch = ("--max-position-embeddings", "512", "--micro-batch-size", "1", "--global-batch-size", "8")
    question = LaunchQuestion(framework="megatron", arguments=(*sizes, *batch, *words), world=8)
    assert read_launch(question).optimizer_bytes == size


def test_an_override_of_master_weights_is_read():
    words = ("train.micro_batch_size=1", "train.global_batch_size=8", "optimizer.main_params_dtype=torch.float16")
    words += ("optimizer.use_precision_aware_optimizer=true", "dataset.seq_length=2048", "model.seq_length=2048")
    judged = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=8, model="llama3_8b"))
    assert judged.optimizer_bytes == 6.0

"""Launches of GPT-NeoX: its YAML files, what its launcher merges, and what it refuses itself."""

import pytest

from hardware.errors import InputError
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

TWENTY = """# a comment
{
  "pipe_parallel_size": 4,
  "model_parallel_size": 2,
  "num_layers": 44,
  "hidden_size": 6144,
  "num_attention_heads": 64,
  "seq_length": 2048,
  "max_position_embeddings": 2048,
  "pos_emb": "rotary",
  "no_weight_tying": true,
  "zero_optimization": {"stage": 1, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 32,
  "checkpoint-activations": true,
  "fp16": {"fp16": true, "enabled": true, "loss_scale": 0},
}
"""
LLAMA = """{
  "pipe_parallel_size": 0, "model_parallel_size": 1, "num_layers": 80, "hidden_size": 8192, "intermediate_size": 86016,
  "num_attention_heads": 64, "num_kv_heads": 8, "seq_length": 4096, "max_position_embeddings": 4096,
  "pos_emb": "rotary",
  "no_weight_tying": true, "norm": "rmsnorm", "use_bias_in_attn_linear": false, "activation": "swiglu",
  "attention_config": [[["flash"], 80]],
}
"""
TRAIN = "train_micro_batch_size_per_gpu: 1\nzero_optimization: {stage: 3}\nfp16: {type: bfloat16, enabled: true}\n"


def judged(file, world):
    return read_launch(
        LaunchQuestion(framework="deepspeed", version=None, world=world, arguments=(), file=file, model="")
    )


def written(folder, text, name="20B.yml"):
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_the_configuration_of_the_20b_is_legal_as_it_is(tmp_path):
    """96 GPUs: 12 replicas of 4 stages and 2 tensor ranks, 12 x 4 x 32 samples a step."""
    found = judged(written(tmp_path, TWENTY), 96)
    assert found.legal, found.violations
    assert (found.proposal.tp, found.proposal.pp, found.proposal.dp, found.proposal.global_batch) == (2, 4, 12, 1536)
    assert found.built == ((11,), (11,), (11,), (11,))
    assert found.precision == "fp16"


def test_degrees_that_do_not_divide_the_gpus_are_refused(tmp_path):
    found = judged(written(tmp_path, TWENTY), 4)
    assert [violation.rule for violation in found.violations] == ["world-grid"]


@pytest.mark.parametrize(
    ("pipe", "model", "stage", "rules"),
    [
        (0, 1, 2, []),
        (0, 1, 3, []),
        (1, 1, 1, []),
        (1, 1, 2, ["neox-zero"]),
        (0, 2, 2, ["neox-zero"]),
        (2, 1, 2, ["deepspeed-zero-pp"]),
    ],
)
def test_sharded_gradients_allow_no_pipeline_and_no_tensor_parallelism(tmp_path, pipe, model, stage, rules):
    text = TWENTY.replace('size": 4,\n  "model', f'size": {pipe},\n  "model').replace(
        'model_parallel_size": 2', f'model_parallel_size": {model}'
    )
    found = judged(written(tmp_path, text.replace('"stage": 1', f'"stage": {stage}')), 8)
    assert [violation.rule for violation in found.violations] == rules


def test_its_launcher_merges_files(tmp_path):
    """A gated feed-forward has a third of the stated width: Llama 2 70B has 28,672."""
    written(tmp_path, LLAMA, "configs/70B.yml")
    written(tmp_path, TRAIN, "configs/train.yml")
    script = written(tmp_path, "python ./deepy.py train.py -d configs 70B train.yml\n", "run.sh")
    found = judged(script, 64)
    assert found.legal, found.violations
    assert (found.proposal.zero, found.precision, found.proposal.global_batch) == (3, "bf16", 64)
    facts = found.proposal.model
    assert (facts.layers, facts.ffn, facts.kv_heads) == (80, 28672, 8)


def test_a_file_that_is_not_there_is_named(tmp_path):
    script = written(tmp_path, "python ./deepy.py train.py -d configs 70B\n", "run.sh")
    with pytest.raises(InputError, match=r"configs/70B\.yml is not found"):
        judged(script, 64)


def test_layers_of_another_kind_are_no_transformer(tmp_path):
    text = LLAMA.replace("flash", "mamba").replace('"seq_length"', '"train_micro_batch_size_per_gpu": 1, "seq_length"')
    with pytest.raises(InputError, match="the model is not known"):
        judged(written(tmp_path, text), 8)


def test_keys_that_it_has_not_are_named(tmp_path):
    found = judged(written(tmp_path, TWENTY.replace('"seq_length"', '"seq_lenght"')), 96)
    assert not found.legal
    assert found.unknown == ("seq_lenght",)
    told = [violation.message for violation in found.violations]
    assert told == ["seq_lenght is unknown to GPT-NeoX (did you mean seq_length?)"]


def test_advice_is_in_its_own_keys(tmp_path):
    text = TWENTY.replace('"seq_length": 2048,', "")
    assert any(note.endswith("seq_length states it") for note in judged(written(tmp_path, text), 96).notes)

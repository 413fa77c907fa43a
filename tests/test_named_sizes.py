"""Launches of Megatron-LM beside ``--model``: their positions are judged, other sizes that differ are told."""

import pytest

from planner.launches.check import read_launch
from planner.question import LaunchQuestion

BATCH = "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096"


def judged(model, words):
    arguments = tuple(f"{BATCH} {words}".split())
    return read_launch(LaunchQuestion(framework="megatron", arguments=arguments, world=64, model=model))


@pytest.mark.parametrize("model", ["qwen3_235b_a22b", "gpt3_13b"])
@pytest.mark.parametrize(("positions", "legal"), [(4096, True), (8192, True), (4095, False), (0, False)])
def test_positions_are_the_launchs(model, positions, legal):
    """They were none where a model has rotary ones, and the preset's 2,048 of GPT-3."""
    assert judged(model, f"--max-position-embeddings {positions}").legal == legal


@pytest.mark.parametrize(("model", "legal"), [("qwen3_235b_a22b", True), ("gpt3_13b", False)])
def test_without_a_word_positions_are_the_models_where_it_learns_them(model, legal):
    assert judged(model, "").legal == legal


def test_sizes_that_the_named_model_has_otherwise_are_told():
    words = "--max-position-embeddings 4096 --hidden-size 5120 --num-attention-heads 32 --mtp-num-layers 1"
    told = [note for note in judged("llama3_8b", words).notes if note.startswith("the model is")]
    unlike = "--hidden-size 5120 (4096 there), --mtp-num-layers 1 (0 there)"
    assert told == [f"the model is llama3_8b as named, unlike the launch's {unlike}"]


def test_sizes_that_it_has_are_not():
    latent = "--max-position-embeddings 4096 --num-attention-heads 128 --mtp-num-layers 1 --num-experts 256"
    assert not any(note.startswith("the model is") for note in judged("deepseek_v3", latent).notes)


@pytest.mark.parametrize(
    ("framework", "words", "launchs"),
    [
        ("bridge", "--recipe qwen3_8b_pretrain_16gpu_h100_bf16_config", "qwen3_8b"),
        ("torchtitan", "--model.name llama3 --model.flavor 70B", "llama3_70b"),
    ],
)
def test_another_model_than_the_launchs_is_told(framework, words, launchs):
    for named in ("llama3_8b", launchs):
        question = LaunchQuestion(framework=framework, arguments=tuple(words.split()), world=16, model=named)
        note = f"the model is {named} as named, and the launch's is {launchs}"
        assert (note in read_launch(question).notes) == (named != launchs)


def test_another_model_than_the_path_of_a_trainer_is_told(tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text(
        "model_name_or_path: Qwen/Qwen2-7B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\nbf16: true\n"
    )
    asked = LaunchQuestion(framework="deepspeed", file=file, world=8, model="llama3_8b")
    assert "the model is llama3_8b as named, and the launch's is qwen25_7b" in read_launch(asked).notes


def test_a_size_overridden_beside_a_named_model_is_told_in_its_key():
    words = ("model.num_attention_heads=40",)
    notes = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=16, model="llama3_8b")).notes
    assert "the model is llama3_8b as named, unlike the launch's model.num_attention_heads=40 (32 there)" in notes

"""Launches of ms-swift's Megatron: files of settings, groups of Ray, the models that they name."""

import pytest

from hardware.errors import InputError
from planner.launches.check import check_launch
from planner.question import LaunchQuestion

SETTINGS = """
model: Qwen/Qwen2.5-VL-3B-Instruct
micro_batch_size: 2
global_batch_size: 16
max_length: 4096
train:
  gpus: 4
  tuner_type: lora
  lora_rank: 8
  tensor_model_parallel_size: 2
  sequence_parallel: true
rollout:
  gpus: 4
  vllm_tensor_parallel_size: 4
"""


def judged(folder, command, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    script = folder / "run.sh"
    script.write_text(f"{command}\n")
    return check_launch(LaunchQuestion(file=script, framework="megatron")).judged


def test_groups_of_ray_give_the_trainer_its_own_settings(tmp_path):
    command = 'megatron rlhf --use_ray true --config "$HERE/grpo.yaml" --micro_batch_size 1'
    found = judged(tmp_path, command, grpo=SETTINGS)
    proposal = found.proposal
    assert found.legal, found.violations
    assert (found.world, found.model.name, found.adapters.rank) == (4, "qwen25_vl_3b", 8)
    assert (proposal.tp, proposal.micro_batch, proposal.global_batch, proposal.seq) == (2, 1, 16, 4096)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-Embedding-8B", "qwen3_8b"),
        ("Qwen/Qwen3-VL-Reranker-8B", "qwen3_vl_8b"),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "qwen3_omni_30b_a3b"),
        ("Qwen/Qwen2.5-Omni-7B", "qwen25_omni_7b"),
        ("ZhipuAI/GLM-4.6V", "glm45v_106b"),
        ("ZhipuAI/GLM-4.6V-Flash", "glm41v_9b"),
        ("OpenGVLab/InternVL3_5-30B-A3B", "internvl35_30b_a3b"),
        ("OpenGVLab/InternVL3_5-GPT-OSS-20B-A4B-Preview", "internvl35_gpt_oss_20b_a4b"),
    ],
)
def test_models_of_its_examples_are_known_by_their_paths(tmp_path, path, name):
    found = judged(tmp_path, f"NPROC_PER_NODE=2 megatron sft --model {path} --tuner_type lora")
    assert (found.model.name, found.legal) == (name, True)


def test_a_task_without_a_vocabulary_at_its_end_is_told(tmp_path):
    command = "NPROC_PER_NODE=2 megatron sft --model Qwen/Qwen3-Embedding-8B --task_type"
    told = "has no matrix over the vocabulary at its end"
    assert any(told in note for note in judged(tmp_path, f"{command} embedding").notes)
    assert not any(told in note for note in judged(tmp_path, f"{command} generative_reranker").notes)


def test_a_model_that_is_not_known_is_named(tmp_path):
    with pytest.raises(InputError, match="the model some/Unheard-7B is not known"):
        judged(tmp_path, "NPROC_PER_NODE=2 megatron sft --model some/Unheard-7B")


def test_what_megatron_lm_s_parser_alone_refuses_is_taken(tmp_path):
    """ms-swift builds Megatron-core's configuration without that parser."""
    found = judged(tmp_path, "NPROC_PER_NODE=2 megatron sft --model Qwen/Qwen3-8B --optimizer_cpu_offload true")
    assert found.legal, found.violations

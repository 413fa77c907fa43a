"""Launches of verl and NeMo RL whose policy PyTorch shards."""

import pytest

from hardware.errors import InputError
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 \\
    data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=8 trainer.nnodes=2 """
NEMO = """policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 128
  train_micro_batch_size: 1
  max_total_sequence_length: 8192
  dtensor_cfg: {enabled: true, tensor_parallel_size: 2, context_parallel_size: 2, activation_checkpointing: true}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 4}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def judged(folder, text, name="run.sh", framework="deepspeed"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return read_launch(LaunchQuestion(framework=framework, version=None, world=0, arguments=(), file=file, model=""))


def test_the_actor_of_verl_is_sharded_over_all_gpus(tmp_path):
    """1,280 samples of an update over 16 GPUs are 80 each, in 40 micro-batches of 2."""
    found = judged(tmp_path, VERL)
    assert found.legal, found.violations
    assert (found.world, found.title, found.model.name) == (16, "accelerate, FSDP 2", "qwen3_8b")
    proposal = found.proposal
    assert (proposal.dp, proposal.zero, proposal.micro_batch, proposal.global_batch) == (16, 3, 2, 1280)
    assert (proposal.seq, found.layout.num_microbatches) == (4096, 40)
    assert proposal.switches.recompute_full


@pytest.mark.parametrize(
    ("words", "broken"),
    [
        ("actor_rollout_ref.actor.strategy=fsdp2", []),
        ("actor_rollout_ref.rollout.n=1 actor_rollout_ref.actor.ppo_mini_batch_size=24", ["policy-batch"]),
        ("data.train_batch_size=128", ["policy-batch"]),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", []),
    ],
)
def test_batches_divide_over_replicas(tmp_path, words, broken):
    assert [one.rule for one in judged(tmp_path, VERL + words).violations] == broken


def test_a_group_of_shards_and_replicas_of_it(tmp_path):
    found = judged(tmp_path, f"{VERL} actor_rollout_ref.actor.fsdp_config.fsdp_size=8")
    assert found.legal, found.violations
    assert found.layout.first.shard_group == 8


def test_a_policy_by_dtensor_is_read(tmp_path):
    found = judged(tmp_path, NEMO, "run.yaml")
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp, found.proposal.cp, found.proposal.dp) == (8, 2, 2, 2)
    assert (found.proposal.global_batch, found.proposal.seq) == (128, 8192)


@pytest.mark.parametrize(("text", "name"), [(VERL, "run.sh"), (NEMO, "run.yaml")])
def test_another_framework_names_the_one_that_reads_it(tmp_path, text, name):
    with pytest.raises(InputError, match="--framework deepspeed"):
        judged(tmp_path, text, name, "megatron")


def test_an_engine_that_is_neither_is_named(tmp_path):
    with pytest.raises(InputError, match="these are settings of verl"):
        judged(tmp_path, f"{VERL} model_engine=veomni")

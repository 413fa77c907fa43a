"""Launches of verl and NeMo RL: the training of their policy as a launch of Megatron-LM."""

import pytest

from hardware.errors import InputError
from planner.ingest.launch_text import LaunchText
from planner.ingest.trainers.policies import gpus_of_policy, settings_told
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

VERL = """NNODES=${NNODES:-2}
tp=${TP:-4}
ACTOR=(
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=${tp}
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=2
    actor_rollout_ref.actor.megatron.param_offload=True
    +actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=22
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1
    actor_rollout_ref.rollout.n=8
    actor_rollout_ref.rollout.tensor_model_parallel_size=8
    data.max_prompt_length=1024
    data.max_response_length=$((1024 * 3))
    trainer.nnodes=${NNODES}
    trainer.n_gpus_per_node=8
)
EXTRA=()
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer algorithm.adv_estimator=grpo "${ACTOR[@]}" "$@"
"""
BASE = """policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 2
  max_total_sequence_length: 4096
  precision: bfloat16
  megatron_cfg:
    enabled: false
    activation_checkpointing: false
    tensor_model_parallel_size: 1
    sequence_parallel: false
    optimizer: {optimizer: adam, use_distributed_optimizer: true}
grpo: {num_prompts_per_step: 32}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
RECIPE = """defaults: ../base.yaml
policy:
  train_micro_batch_size: 1
  logprob_batch_size: ${policy.train_micro_batch_size}
  megatron_cfg:
    enabled: true
    activation_checkpointing: true
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 4
    sequence_parallel: true
    num_layers_in_first_pipeline_stage: 8
    num_layers_in_last_pipeline_stage: 8
cluster: {num_nodes: 4}
"""


def judged(file, words=(), world=0):
    return read_launch(
        LaunchQuestion(framework="megatron", version=None, world=world, arguments=tuple(words), file=file, model="")
    )


def verl(folder, text=VERL, words=()):
    file = folder / "run.sh"
    file.write_text(text, encoding="utf-8")
    return judged(file, words)


def test_megatron_fsdp_of_verl_is_legal_and_shards_weights(tmp_path):
    """It was refused for the format of checkpoints that Megatron-LM's own parser asks for."""
    section = "actor_rollout_ref.actor.megatron"
    words = [f"{section}.use_megatron_fsdp=True", f"{section}.pipeline_model_parallel_size=1"]
    words.append(f"{section}.override_transformer_config.num_layers_in_last_pipeline_stage=null")
    found = verl(tmp_path, words=words)
    assert found.legal, found.violations
    assert found.proposal.zero == 3
    kept = verl(tmp_path, words=[*words, f"+{section}.override_ddp_config.data_parallel_sharding_strategy=optim"])
    assert kept.proposal.zero == 1
    assert verl(tmp_path, words=[f"{section}.use_megatron_fsdp=False"]).proposal.zero == 1


def test_the_actor_of_verl_is_judged(tmp_path):
    """Expert tensor parallelism that is not stated is that of tensors: 4 x 2 x 2 ranks divide 16."""
    found = verl(tmp_path)
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp, found.proposal.pp, found.proposal.etp) == (16, 4, 2, 4)
    assert (found.model.name, found.built) == ("qwen3_30b_a3b", ((26,), (22,)))
    assert (found.proposal.global_batch, found.proposal.micro_batch, found.proposal.seq) == (256, 1, 4096)
    assert found.proposal.sequence_parallel
    assert found.proposal.zero == 1
    assert found.proposal.switches.recompute_full
    assert not found.optimizer_offload  # params wait in the host between the phases, not within a step
    assert any("rollouts" in note for note in found.notes)


def test_words_behind_a_script_win(tmp_path):
    found = verl(tmp_path, words=("trainer.nnodes=1",))
    assert [violation.rule for violation in found.violations] == ["world-expert-grid"]
    word = "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1"
    assert verl(tmp_path, words=("trainer.nnodes=1", word)).legal


def test_packed_micro_batches_hold_samples_that_divide(tmp_path):
    """Up to 16,384 tokens are 4 samples of 4,096; a replica's share of 256 over 2 is 128."""
    words = ("actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384")
    found = verl(tmp_path, words=words)
    assert found.proposal.micro_batch == 4
    assert any("packed up to 16,384" in note for note in found.notes)
    few = ("actor_rollout_ref.actor.ppo_mini_batch_size=3", "actor_rollout_ref.rollout.n=2")
    odd = verl(tmp_path, words=(*words, *few))
    assert odd.proposal.micro_batch == 3


def test_a_degree_without_a_value_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="tensor_model_parallel_size"):
        verl(tmp_path, VERL.replace("${TP:-4}", "$1"))


def test_layers_ahead_are_built_where_they_are_switched_on(tmp_path):
    text = VERL.replace("Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3").replace("stage=22", "stage=30")
    assert verl(tmp_path, text).proposal.model.mtp == 0
    assert verl(tmp_path, text, ("actor_rollout_ref.model.mtp.enable=True",)).proposal.model.mtp == 1


def test_adapters_of_verl_are_read(tmp_path):
    found = verl(tmp_path, words=("actor_rollout_ref.model.lora.rank=32",))
    assert found.adapters.rank == 32


def test_fine_tuning_by_verl_is_read(tmp_path):
    text = """torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen2.5-7B \\
      data.train_batch_size=64 data.max_length=2048 data.use_dynamic_bsz=False data.micro_batch_size_per_gpu=2 \\
      engine=megatron optim=megatron engine.tensor_model_parallel_size=2 engine.pipeline_model_parallel_size=2
    """
    found = verl(tmp_path, text)
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp, found.proposal.micro_batch, found.built) == (8, 2, 2, ((14,), (14,)))


def nemo(folder, recipe=RECIPE, base=BASE):
    (folder / "recipes").mkdir()
    if base:
        (folder / "base.yaml").write_text(base, encoding="utf-8")
    file = folder / "recipes" / "job.yaml"
    file.write_text(recipe, encoding="utf-8")
    return file


def test_a_policy_of_nemo_rl_is_read_with_what_it_begins_with(tmp_path):
    found = judged(nemo(tmp_path))
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp, found.built) == (32, 2, ((8,), (10,), (10,), (8,)))
    assert (found.proposal.global_batch, found.proposal.micro_batch, found.proposal.seq) == (512, 1, 4096)
    assert found.proposal.switches.recompute_full
    assert found.model.name == "qwen3_8b"


def test_a_file_that_settings_begin_with_and_that_is_not_there_is_told(tmp_path):
    text = RECIPE.replace("policy:\n", "policy:\n  model_name: Qwen/Qwen3-8B\n")
    text = text.replace("{num", "{gpus_per_node: 8, num")
    found = judged(nemo(tmp_path, text, base=""))
    assert any("base.yaml is not found" in note for note in found.notes)


def test_a_chain_of_files_without_an_end_is_cut(tmp_path):
    found = judged(nemo(tmp_path, base=f"defaults: base.yaml\n{BASE}"))
    assert any("base.yaml is not found" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (("cluster.num_nodes=4",), 32),
        (("cluster.num_nodes=4", "policy.generation.colocated.enabled=false"), 32),
        (("cluster.num_nodes=4", "policy.generation.colocated.resources.num_nodes=1"), 32),
        (
            (
                "cluster.num_nodes=4",
                "policy.generation.colocated.enabled=false",
                "policy.generation.colocated.resources.num_nodes=1",
                "policy.generation.colocated.resources.gpus_per_node=8",
            ),
            24,
        ),
        (
            (
                "cluster.num_nodes=1",
                "policy.generation.colocated.enabled=false",
                "policy.generation.colocated.resources.gpus_per_node=2",
            ),
            6,
        ),
    ],
)
def test_generation_takes_gpus_of_its_own(words, gpus):
    text = LaunchText(arguments=("policy.megatron_cfg.enabled=true", "cluster.gpus_per_node=8", *words))
    assert gpus_of_policy(text, "NeMo RL") == gpus


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ((), 8),
        (("trainer.n_gpus_per_node=4",), 4),
        (("trainer.nnodes=2",), 16),
        (("trainer.nnodes=$N",), 0),
        (("trainer.n_gpus_per_node=$N",), 0),
    ],
)
def test_machines_of_verl_have_8_gpus_unless_it_says_otherwise(words, gpus):
    assert gpus_of_policy(LaunchText(arguments=("model_engine=megatron", *words)), "verl") == gpus


def test_references_of_settings_are_followed():
    told = settings_told(("a.b=${c}", "++c=${d.e}", "d.e='4'", "f=${f}", "g=${mul:${c},2}"))
    assert (told["a.b"], told["f"], told["g"]) == ("4", "${f}", "${mul:${c},2}")


def test_settings_of_the_model_that_are_not_read_are_named(tmp_path):
    section = "actor_rollout_ref.actor.megatron"
    found = verl(tmp_path, words=(f"{section}.tensor_model_parallel_sizee=4", f"{section}.param_offload=True"))
    unread = next(note for note in found.notes if note.startswith(f"of {section} not read: "))
    assert "tensor_model_parallel_sizee (did you mean tensor_model_parallel_size?)" in unread
    assert "param_offload" in unread


def test_rules_are_told_by_the_names_of_the_settings(tmp_path):
    """They named Megatron-LM's flags, which nobody had written."""
    section = "actor_rollout_ref.actor.megatron"
    inner = f"{section}.override_transformer_config"
    found = verl(
        tmp_path, words=[f"{section}.virtual_pipeline_model_parallel_size=5", f"{inner}.recompute_method=null"]
    )
    told = " ".join(violation.message for violation in found.violations)
    assert f"allowed: {inner}.recompute_method uniform or block" in told
    assert "--" not in told

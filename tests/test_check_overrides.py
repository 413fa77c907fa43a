"""Overrides of Megatron-Bridge and NeMo judged as the packages do.

Expectations are what megatron-bridge 0.6.2 (with Megatron-core 0.19.2) and nemo-toolkit 2.7.3 did with the same words.
"""

import pytest

from hardware.errors import InputError
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import read_launch
from planner.question import LaunchQuestion


def told(framework: str, *words: str, world: int = 8, model: str = "llama3_8b") -> LaunchQuestion:
    return LaunchQuestion(framework=framework, arguments=words, world=world, model=model)


def rules(judged: JudgedLaunch) -> set[str]:
    return {violation.rule for violation in judged.violations}


@pytest.mark.parametrize(
    ("framework", "words", "part"),
    [
        ("bridge", ("+model.tensor_model_parallel_size=2",), "++ before it"),
        ("bridge", ("model.context_parallel_size=null",), "a whole number from 1"),
        ("bridge", ("dist.use_tp_pp_dp_mapping=true", "dist.use_megatron_fsdp=true"), "Megatron FSDP"),
        ("nemo", ("trainer.strategy.pipeline_model_parallel_size=None",), "a whole number from 1"),
        ("bridge", (f"model.tensor_model_parallel_size={'9' * 5000}",), "an integer"),
        ("nemo", ("trainer.max_stepz=10",), "trainer.max_stepz is not known"),
        ("nemo", ("data.micro_batch_sise=2",), "data.micro_batch_sise is not known"),
        ("nemo", ("optim.lr=3",), "optim.lr is not known"),
    ],
)
def test_overrides_that_the_packages_refuse(framework, words, part):
    judged = read_launch(told(framework, *words, world=8, model="llama3_8b"))
    assert part in " ".join(violation.message for violation in judged.violations)


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("bridge", ("ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=false")),
        ("bridge", ("ddp.overlap_param_gather=true", "ddp.overlap_grad_reduce=false")),
        ("bridge", ("optimizer.optimizer_cpu_offload=true",)),
        ("bridge", ("+model.recompute_granularity=selective",)),
        ("nemo", ("trainer.strategy.ddp.overlap_param_gather=True", "trainer.max_steps=10", "data.own_setting=3")),
    ],
)
def test_overrides_that_the_packages_take(framework, words):
    judged = read_launch(told(framework, *words, world=8, model="llama3_8b"))
    assert judged.legal, judged.violations
    assert judged.layout.first.zero == 1


def test_what_only_the_forward_pass_of_nemo_notices_has_a_layout():
    words = ("trainer.strategy.context_parallel_size=2", "data.seq_length=2050", "model.config.seq_length=2050")
    judged = read_launch(told("nemo", *words, world=8, model="llama3_8b"))
    assert rules(judged) == {"nemo-seq-cp"}
    assert (judged.accepted, judged.layout.first.cp) == (True, 2)


def test_experts_of_megatron_bridge_have_no_tensor_parallelism_unless_it_is_stated():
    words = ("tensor_model_parallel_size=2", "pipeline_model_parallel_size=2", "expert_model_parallel_size=4")
    bridge = told("bridge", *(f"model.{word}" for word in words), world=8, model="mixtral_8x22b")
    nemo = told("nemo", *(f"trainer.strategy.{word}" for word in words), world=8, model="mixtral_8x22b")
    judged = read_launch(bridge)
    assert (judged.accepted, judged.layout.first.etp) == (True, 1)
    assert "world-expert-grid" in rules(read_launch(nemo))


def test_a_virtual_degree_of_one_interleaves_where_no_arguments_drop_it():
    words = ("model.pipeline_model_parallel_size=4", "model.virtual_pipeline_model_parallel_size=1")
    words = (*words, "train.global_batch_size=4", "train.micro_batch_size=1")
    assert not read_launch(told("bridge", *words, world=8, model="llama3_8b")).accepted
    assert read_launch(told("bridge", words[0], *words[2:], world=8, model="llama3_8b")).accepted


GAPS = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
for CONFIG in "2,1" "4,2"; do
  IFS=',' read -r TP PP <<< "$CONFIG"
  {command}
done
"""


@pytest.mark.parametrize(
    ("framework", "command", "key", "given"),
    [
        (
            "bridge",
            "srun python run.py --recipe llama3_8b model.tensor_model_parallel_size=$TP train.global_batch_size=32",
            "model.tensor_model_parallel_size",
            ("model.tensor_model_parallel_size=2",),
        ),
        (
            "torchtitan",
            "srun torchrun -m torchtitan.train --config llama3_8b --parallelism.tensor_parallel_degree $TP",
            "--parallelism.tensor_parallel_degree",
            ("--parallelism.tensor_parallel_degree=2",),
        ),
    ],
)
def test_degrees_that_a_script_does_not_hold_are_asked_for(tmp_path, framework, command, key, given):
    """Recipes' scripts read tp and pp in a loop; such a launch was judged and priced with tp 1 and pp 1."""
    file = tmp_path / "slurm.sh"
    file.write_text(GAPS.replace("{command}", command))
    with pytest.raises(InputError, match=f"values are not in the file: {key} [$]TP"):
        read_launch(LaunchQuestion(framework=framework, file=file))
    judged = read_launch(LaunchQuestion(framework=framework, file=file, arguments=given))
    assert (judged.world, judged.proposal.tp, judged.proposal.pp) == (16, 2, 1)


def test_what_a_model_with_vision_freezes_is_a_field_of_it():
    words = ("model.freeze_language_model=true", "model.freeze_sound_encoder=false", "train.global_batch_size=32")
    judged = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=8, model="llama3_8b"))
    assert judged.legal, judged.violations
    assert not judged.unknown


def test_a_recipe_of_fsdp_shards_weights_unless_an_override_says_otherwise():
    """``qwen35_vl_35b_a3b_sft_2gpu_h100_bf16_fsdp_config`` of Megatron-Bridge sets Megatron FSDP and its format."""
    words = ("--recipe", "llama3_8b_pretrain_fsdp_config", "train.global_batch_size=32")
    judged = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=8))
    assert judged.legal, judged.violations
    assert judged.layout.first.zero == 3
    plain = read_launch(LaunchQuestion(framework="bridge", arguments=(*words, "ddp.use_megatron_fsdp=false"), world=8))
    assert plain.layout.first.zero == 1
    assert read_launch(told("bridge", *words[2:])).layout.first.zero == 1


@pytest.mark.parametrize(
    ("word", "zero", "precision"),
    [
        ("ddp.use_megatron_fsdp=false", 1, "bf16"),
        ("model.fp16=false", 1, "bf16"),
    ],
)
def test_what_is_switched_off_leaves_the_recipes_other_choice(word, zero, precision):
    """A switch off of FSDP or of fp16 says nothing against the distributed optimizer and bf16 of every recipe."""
    judged = read_launch(told("bridge", word, "train.global_batch_size=32"))
    assert (judged.layout.first.zero, judged.precision) == (zero, precision)

"""Overrides of Megatron-Bridge and NeMo judged as the packages do.

Expectations are what megatron-bridge 0.6.2 (with Megatron-core 0.19.2) and nemo-toolkit 2.7.3 did with such words.
"""

import json
import re

import pytest

from costmodels.layout import Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.choices import Framework, Loss
from planner.ingest.bridge.override_words import in_overrides
from planner.ingest.bridge.overrides import override_keys
from planner.ingest.judge import judge_launch
from planner.ingest.judged import JudgedLaunch, LaunchInput
from planner.ingest.launch_text import LaunchText
from planner.ingest.plain_layout import uniform_stages
from planner.launches.check import read_launch
from planner.planning import plan
from planner.question import LaunchQuestion, Question, job_of, request_of
from planner.rules import check_layout
from planner.rules.table import all_rules


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
        ("nemo", ("optim.config.lrr=1e-4",), "optim.config.lrr is not known"),
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


GRAPHS = "model.cuda_graph_impl=transformer_engine"


@pytest.mark.parametrize(
    ("model", "words", "rule"),
    [
        ("qwen3_30b_a3b", (GRAPHS, "model.cuda_graph_scope=[attn,moe_router,moe_preprocess]"), ""),
        ("qwen3_30b_a3b", (GRAPHS, "model.cuda_graph_scope=[attn,moe]"), "megatron-graph-drop"),
        ("qwen3_30b_a3b", (GRAPHS, "model.cuda_graph_modules=[moe,moe_router]"), "megatron-graph-moe-router"),
        ("qwen3_30b_a3b", (GRAPHS, "model.cuda_graph_modules=[moe_preprocess]"), "megatron-graph-preprocess"),
        ("llama3_8b", (GRAPHS, "model.cuda_graph_modules=[moe_router]"), "megatron-graph-experts"),
        ("llama3_8b", ("model.cuda_graph_impl=local", "model.cuda_graph_modules=[attn]"), "bridge-graph-local"),
        ("llama3_8b", ("model.cuda_graph_impl=local", "model.cuda_graph_scope=[full_iteration]"), ""),
        ("llama3_8b", ("model.cuda_graph_impl=full_iteration",), ""),
        ("llama3_8b", ("model.cuda_graph_impl=none", "model.cuda_graph_scope=[]"), ""),
        ("llama3_8b", (GRAPHS, "model.recompute_granularity=full"), "megatron-graph-full-recompute"),
        ("llama3_8b", ("model.cuda_graph_impl=bogus",), "megatron-option-value"),
    ],
)
def test_graphs_of_bridge_are_judged(model, words, rule):
    judged = read_launch(told("bridge", *words, "model.expert_model_parallel_size=1", world=8, model=model))
    assert (rule in rules(judged)) if rule else judged.legal, judged.violations


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


def test_bridge_yaml_with_a_layout_of_lists(tmp_path):
    stages = [["embedding", *["decoder"] * 9], ["decoder"] * 11, ["decoder"] * 10, [*["decoder"] * 2, "loss"]]
    text = f"model:\n  pipeline_model_parallel_size: 4\n  pipeline_model_parallel_layout: {json.dumps(stages)}\n"
    file = tmp_path / "over.yaml"
    file.write_text(text + "train:\n  micro_batch_size: 1\n  global_batch_size: 64\n")
    judged = read_launch(LaunchQuestion(framework="bridge", file=file, world=16, model="llama3_8b"))
    assert judged.legal, judged.violations
    assert judged.built == ((9,), (11,), (10,), (2,))


def test_bridge_names_unknown_keys_and_what_it_does_not_judge():
    judged = read_launch(
        told(
            "bridge",
            "--recipe",
            "llama3_8b_pretrain_config",
            "model.tensor_model_paralel_size=2",
            "optimizer.lr=1e-4",
            "checkpoint.save_interval=100",
            world=8,
            model="",
        )
    )
    assert judged.unknown == ("model.tensor_model_paralel_size",)
    assert "did you mean model.tensor_model_parallel_size" in judged.violations[0].message
    assert judged.unjudged == ("optimizer.lr", "checkpoint.save_interval")


def test_degrees_are_judged_beside_keys_that_are_not_known():
    words = ("--recipe", "llama3_8b_pretrain_config", "model.tensor_model_parallel_size=3", "model.foo=3")
    judged = read_launch(told("bridge", *words, world=6, model=""))
    assert judged.violations[0].values == {"argument": "model.foo"}
    assert {"heads-tp", "ffn-tp", "kv-heads-tp"} <= rules(judged)
    assert judged.proposal.tp == 3


@pytest.mark.parametrize(
    ("framework", "name", "meant"),
    [
        ("nemo", "train.global_batch_size", "data.global_batch_size"),
        ("nemo", "train.micro_batch_size", "data.micro_batch_size"),
        ("bridge", "data.global_batch_size", "train.global_batch_size"),
    ],
)
def test_a_key_of_another_framework_is_told_the_key_of_this_one(framework: str, name: str, meant: str):
    judged = read_launch(told(framework, f"{name}=8", world=8, model=""))
    said = next(fault.message for fault in judged.violations if fault.rule == f"{framework}-override-unknown")
    assert said == f"override {name} is not known; did you mean {meant}?"


def test_bridge_counts_both_grids():
    words = ("model.pipeline_model_parallel_size=8", "model.expert_model_parallel_size=32")
    words += ("model.expert_tensor_parallel_size=1", "model.tensor_model_parallel_size=1")
    bad = read_launch(told("bridge", *words, world=64, model="qwen3_235b_a22b"))
    assert not bad.legal
    assert any("256" in violation.message for violation in bad.violations)


@pytest.mark.parametrize(
    ("framework", "section", "data"),
    [("bridge", "model", "train"), ("nemo", "trainer.strategy", "data")],
)
def test_groups_of_micro_batches_are_read(framework, section, data):
    words = [f"{section}.pipeline_model_parallel_size=4", f"{section}.virtual_pipeline_model_parallel_size=2"]
    words += [f"{data}.micro_batch_size=1", f"{data}.global_batch_size=18"]
    bad = read_launch(told(framework, *words, world=4, model="llama3_8b"))
    assert ["micro-batches leave" in violation.message for violation in bad.violations] == [True]
    words.append(f"{section}.microbatch_group_size_per_vp_stage=6")
    assert read_launch(told(framework, *words, world=4, model="llama3_8b")).legal


def test_nemo_names_keys_that_it_would_drop_silently():
    judged = read_launch(
        told("nemo", "trainer.strategy.context_paralel_size=2", "trainer.num_nodes=1", "trainer.devices=8",
             model="llama3_8b")
    )  # fmt: skip
    assert judged.unknown == ("trainer.strategy.context_paralel_size",)
    assert "without a word" in judged.violations[0].message
    assert judged.accepted
    assert judged.world == 8


def test_nemo_degrees_in_the_models_configuration_are_overwritten_by_the_strategy():
    judged = read_launch(
        told(
            "nemo",
            "--recipe",
            "llama3_8b",
            "model.config.pipeline_model_parallel_size=2",
            world=8,
            model="",
        )
    )
    assert [violation.rule for violation in judged.violations] == ["nemo-override-overwritten"]
    assert "trainer.strategy.pipeline_model_parallel_size=2" in judged.violations[0].message


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        (["mixed_precision=bf16_mixed", "ddp.grad_reduce_in_fp32=false"], "mixed_precision.grad_reduce_in_fp32"),
        (["mixed_precision=bf16_mixed", "model.fp8=hybrid"], "mixed_precision.fp8"),
        (["mixed_precision=bf16-with-mxfp8-mixed", "model.fp8_recipe=tensorwise"], "mixed_precision.fp8_recipe"),
        (["mixed_precision=fp16_mixed", "ddp.grad_reduce_in_fp32=true"], "mixed_precision.grad_reduce_in_fp32"),
    ],
)
def test_bridge_lays_mixed_precision_over_other_sections(words, decides):
    base = ("train.global_batch_size=8", "train.micro_batch_size=1")
    judged = read_launch(told("bridge", *base, *words, world=8, model="llama3_8b"))
    assert not judged.legal
    assert judged.accepted
    assert f"is overwritten by {decides} without a word" in judged.violations[0].message
    assert read_launch(told("bridge", *base, words[0], world=8, model="llama3_8b")).legal
    assert read_launch(told("bridge", *base, words[1], world=8, model="llama3_8b")).legal  # the recipe's own decides


def test_gradients_of_nemo_are_those_of_its_plugin():
    base = ("data.global_batch_size=8", "data.micro_batch_size=1")
    words = (*base, "trainer.strategy.ddp.grad_reduce_in_fp32=false")
    judged = read_launch(told("nemo", *words, world=8, model="llama3_8b"))
    assert "is overwritten by trainer.plugins.grad_reduce_in_fp32" in judged.violations[0].message


def test_an_optimizer_that_shards_whole_tensors_is_sharded():
    off = ("ddp.use_distributed_optimizer=false", "optimizer.use_distributed_optimizer=false")
    base = ("train.global_batch_size=8", "train.micro_batch_size=1", *off)
    assert read_launch(told("bridge", *base, world=8, model="llama3_8b")).layout.first.zero == 0
    muon = read_launch(told("bridge", *base, "optimizer.optimizer=dist_muon", world=8, model="llama3_8b"))
    assert muon.layout.first.zero == 1


def test_an_unknown_mixed_precision_is_refused():
    judged = read_launch(told("bridge", "mixed_precision=bf16_mxed", world=8, model="llama3_8b"))
    assert "mixed_precision=bf16_mxed; allowed: bf16_mixed" in judged.violations[0].message


@pytest.mark.parametrize(
    ("framework", "words", "model", "message"),
    [
        (
            "bridge",
            ("model.recompute_granularity=full",),
            "llama3_8b",
            "full recompute without a method; allowed: model.recompute_method=uniform or block",
        ),
        (
            "nemo",
            ("trainer.strategy.tensor_model_parallel_size=4",),
            "mixtral_8x7b",
            "without sequence parallelism; allowed: trainer.strategy.sequence_parallel=true, or tp 1",
        ),
        (
            "nemo",
            ("model.config.recompute_granularity=selective", "model.config.recompute_method=uniform"),
            "llama3_8b",
            "selective recompute with a method; allowed: no model.config.recompute_method",
        ),
        (
            "bridge",
            ("model.moe_token_dispatcher_type=quick",),
            "qwen3_30b_a3b",
            "override model.moe_token_dispatcher_type got 'quick'; allowed: allgather, alltoall, flex",
        ),
        (
            "bridge",
            ("model.account_for_loss_in_pipeline_split=true", "model.pipeline_model_parallel_size=2"),
            "llama3_8b",
            "a pp that divides 33, or model.pipeline_model_parallel_layout with uneven stages",
        ),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_overrides(framework, words, model, message):
    judged = read_launch(told(framework, *words, model=model))
    assert [violation for violation in judged.violations if violation.message.endswith(message)]


def test_a_key_with_two_names_is_told_by_the_one_that_was_written():
    text = "--overlap-param-gather without --overlap-grad-reduce; allowed: no --overlap-param-gather"
    told_twice = in_overrides(text, ("comm_overlap.overlap_param_gather=true",), Framework.BRIDGE)
    assert told_twice == (
        "comm_overlap.overlap_param_gather=true without ddp.overlap_grad_reduce=true; "
        "allowed: comm_overlap.overlap_param_gather=false"
    )
    assert in_overrides(text, (), Framework.NEMO).startswith("trainer.strategy.ddp.overlap_param_gather=true without")
    assert in_overrides("no --no-bias-dropout-fusion", (), Framework.BRIDGE) == "model.bias_dropout_fusion=true"


def test_no_rule_that_an_override_can_break_names_a_flag():
    without_key = {"--num-layers-per-virtual-pipeline-stage", "--use-torch-fsdp2"}  # so that none breaks a rule by them
    for framework in (Framework.BRIDGE, Framework.NEMO):
        said = {key.flag for key in override_keys(framework) if key.keys} | {"--fp8-format", "--bf16", "--fp8-recipe"}
        for rule in all_rules():
            asked = {name.removeprefix("!").partition("=")[0].partition(":")[0] for name in rule.conditions}
            if framework in rule.frameworks and asked <= said:
                text = in_overrides(f"{rule.message}; {rule.allowed}", (), framework)
                assert set(re.findall(r"(?<!\{)--[a-z0-9-]+", text)) <= without_key, (rule.id, text)


@pytest.mark.parametrize(
    ("words", "loss"),
    [
        (("model.cross_entropy_fusion_impl=te",), Loss.FUSED),
        (("model.cross_entropy_fusion_impl=native", "model.cross_entropy_loss_fusion=true"), Loss.WHOLE),
        (("model.cross_entropy_loss_fusion=false", "model.cross_entropy_fusion_impl=te"), Loss.WHOLE),
        (("model.cross_entropy_loss_fusion=true",), Loss.DEFAULT),
    ],
)
def test_the_loss_that_overrides_state_is_read(words, loss):
    assert read_launch(told("bridge", *words)).loss is loss


def test_kernels_of_attention_are_chosen_by_variables_where_no_override_can():
    # process_config_with_overrides of Megatron-Bridge 0.6.2 keeps the text, nemo_run 0.11.1 refuses any
    plain = told("bridge", "model.attention_backend=flash")
    judged = read_launch(plain)
    assert not {"flash_attention", "attention_kernel"} & judged.stated.fields.keys()
    assert [note for note in judged.notes if "NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0 NVTE_UNFUSED_ATTN=0 do" in note]
    for on, field, value in (("FLASH", "attention_kernel", "fa2"), ("UNFUSED", "flash_attention", False)):
        variables = {f"NVTE_{one}_ATTN": str(int(one == on)) for one in ("FLASH", "FUSED", "UNFUSED")}
        text = LaunchText(arguments=("model.attention_backend=null",), environment=variables)
        given = LaunchInput(text=text, framework=Framework.BRIDGE, version="0.6", world=8, model=model("llama3_8b"))
        assert judge_launch(given).stated.fields[field] == value
    (fault,) = read_launch(told("nemo", "model.config.attention_backend=flash")).violations
    assert fault.message.endswith("nemo_run reads no enumeration; allowed: the value in the recipe's code")


def test_a_layout_of_a_hybrid_model_is_said_to_be_ignored_by_nemo():
    words = ("trainer.strategy.pipeline_model_parallel_size=2", "data.global_batch_size=64")
    layout = "trainer.strategy.pipeline_model_parallel_layout='Et*20|t*32L'"
    judged = read_launch(told("nemo", *words, layout, model="nemotron_h_8b"))
    assert judged.built == ((26,), (26,))
    assert [note for note in judged.notes if "is ignored: stages of a hybrid model" in note]


def test_stages_of_a_hybrid_model_are_equal_in_nemo_whoever_asks():
    spec = model("nemotron_h_8b")
    job = job_of(Framework.NEMO, "bf16", global_batch=8, seq=4096)
    grid = Strategy(dp=2)

    def found(*split):
        stages = uniform_stages(split, grid)
        schedule = Schedule.INTERLEAVED if len(split[0]) > 1 else Schedule.ONE_F_ONE_B
        layout = Layout(stages=stages, micro_batch=1, num_microbatches=4, schedule=schedule)
        return {one.rule for one in check_layout(layout, spec, job, framework=Framework.NEMO)}

    assert found((26,), (26,)) == set()
    assert found((25,), (27,)) == {"nemo-hybrid-even"}
    assert found((13, 13), (13, 13)) == {"recipes-hybrid-virtual"}
    assert found((18,), (17,), (17,)) == {"nemo-hybrid-even", "nemo-hybrid-equal"}


def test_a_search_for_nemo_ranks_equal_stages_of_hybrid_models_alone():
    fixed = ("pp=4", "tp=2", "micro_batch=1", "zero=1")
    words = {"model": "nemotron_h_8b", "cluster": "dgx-h100:1", "framework": "nemo", "recompute": "none"}
    report = plan(request_of(Question(**words, global_batch=16, seq=4096, fixed=fixed, top=3)))
    assert report.layouts
    assert all(one.layout.layers_per_stage == ((13,),) * 4 for one in report.layouts)

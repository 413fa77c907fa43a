"""Launches of trainers on DeepSpeed and Megatron-core, in their own words, and what their software costs."""

import json
from dataclasses import replace

import pytest

from costmodels.price import price_layout
from costmodels.pricing import Pricing
from costmodels.software import RunText, software_for
from hardware.errors import InputError
from planner.evidence.measured import parse_run
from planner.evidence.runs import question_of as run_question
from planner.evidence.validate import predict
from planner.export.deepspeed import CONFIG, export_deepspeed
from planner.export.launch import Planned, Site
from planner.ingest.deepspeed.configuration import in_host, inputs_in_host, parse_deepspeed
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.deepspeed.text import read_config
from planner.ingest.deepspeed.words import spelled
from planner.launches.check import check_launch, job_of_launch, read_launch, request_of_launch
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.offloads import said_offload
from planner.planning import estimate
from planner.question import LaunchQuestion, Question, question_of, request_of
from planner.rules.table import Found

HOST = {"device": "cpu", "pin_memory": True}
AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
TRAINER = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps=3", "--gradient_checkpointing", "True",
           "--cutoff_len", "1024", "--bf16", "--learning_rate", "1e-5")  # fmt: skip
ROW = {
    "id": "row", "source": "a run", "hardware": "H100-SXM-80GB", "n_gpus": "8", "gpus_per_node": "8", "seq_len": "2048",
    "global_batch_size": "8", "micro_batch_size": "1", "tp": "1", "pp": "1", "precision": "bf16", "recompute": "full",
}  # fmt: skip


def launch(tmp_path, config, *arguments, name="ds.json", world=4, model="llama3_8b", **more):
    file = tmp_path / name
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    framework = more.pop("framework", "deepspeed")
    question = LaunchQuestion(framework=framework, file=file, world=world, arguments=arguments, model=model, **more)
    return read_launch(question)


def priced(**changes):
    return predict(parse_run({**ROW, **changes}))


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--ep_size", "8"], ["--moe-expert-parallel-size", "8"]),
        (["--pipe-parallel-size=2"], ["--pipeline-model-parallel-size=2"]),
        (["--gradient_checkpointing", "false", "--bf16"], ["--bf16"]),
        (["--gradient_checkpointing=True", "--bf16"], ["--checkpoint-activations", "--bf16"]),
        (["--own_option", "--max_length", "8"], ["--own_option", "--seq-length", "8"]),
    ],
)
def test_words_of_other_programs_are_megatron_deepspeeds(words, same):
    assert spelled(words, key_table()["spellings"], key_table()["options"]) == same


def test_spellings_lead_to_options_that_are_known():
    assert set(key_table()["spellings"].values()) <= set(key_table()["options"])


def test_auto_is_what_the_trainer_is_told(tmp_path):
    judged = launch(tmp_path, {**AUTO, "zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}, *TRAINER)
    assert judged.legal, judged.violations
    assert (judged.layout.micro_batch, judged.layout.num_microbatches, judged.proposal.global_batch) == (2, 3, 24)
    assert (judged.proposal.seq, judged.precision, str(judged.layout.first.recompute)) == (1024, "bf16", "full")
    assert judged.unjudged == ("--learning_rate",)


@pytest.mark.parametrize(
    "sections", [{"bfloat16": {"enabled": "auto"}}, {"bf16": None, "bfloat16": {"enabled": "auto"}}]
)
def test_auto_stands_in_a_section_by_its_older_name_too(tmp_path, sections):
    """``get_bfloat16_config`` of DeepSpeed's ``precision_config.py``: the older name where the new one has no value."""
    assert launch(tmp_path, {**AUTO, **sections}, *TRAINER).precision == "bf16"
    without = tuple(word for word in TRAINER if word != "--bf16")
    assert launch(tmp_path, {**AUTO, **sections}, *without).precision == "fp32"


def test_a_configuration_may_have_comments(tmp_path):
    """DeepSpeed reads Hjson; the Trainer reads JSON alone, and no reader takes a key twice."""
    plain = '{"train_batch_size": 8, "zero_optimization": {"stage": 3}, "comms": "// no, }"}'
    told = """{ # of a run, }
      "train_batch_size": 8, // sequences
      "zero_optimization": {"stage": 3,}, /* as before,
      } */ "comms": "// no, }",
    }"""
    assert read_config(told) == json.loads(plain) == read_config(plain)
    judged = launch(tmp_path, told)
    assert judged.legal
    assert [note for note in judged.notes if "comments" in note]
    assert not [note for note in launch(tmp_path, plain).notes if "comments" in note]
    with pytest.raises(InputError, match="stage stated twice"):
        launch(tmp_path, '{"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage": 2}}')


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"stage": 3, "offload_optimizer": HOST, "offload_param": HOST}, (False, True)),
        ({"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local"}}, (True, False)),
        ({"stage": 2, "offload_optimizer": HOST, "offload_param": HOST}, (True, False)),
        ({"stage": 2, "cpu_offload": True}, (True, False)),
        ({"stage": 3, "offload_optimizer": {"device": "none"}}, (False, False)),
        ({"stage": 0, "offload_optimizer": HOST}, (False, False)),
    ],
)
def test_what_a_configuration_offloads(section, told):
    read = parse_deepspeed(json.dumps({"train_batch_size": 8, "zero_optimization": section}), world=8)
    assert in_host(read) == told


@pytest.mark.parametrize(
    ("offload", "zero"),
    [("none", 3), ("optimizer", 2), ("states", 3), ("inputs", 3), ("optimizer+inputs", 2), ("states+inputs", 3)],
)
def test_an_export_reads_back_with_what_lies_in_the_host(tmp_path, offload, zero):
    asked = Question(model="llama3_8b", cluster="dgx-a100:1", global_batch=8, seq=2048, framework="deepspeed",
                     offload=offload, fixed=(f"zero={zero}", "tp=1", "pp=1", "cp=1", "micro_batch=1"))  # fmt: skip
    request = request_of(asked)
    assert request_of(question_of(request)).job == request.job
    layout = layout_of(request, ExplicitLayout(zero=zero, recompute="full"))
    site = Site(hosts=("host0",), gpus_per_node=8)
    exported = export_deepspeed(Planned(model=request.model, job=request.job, layout=layout, site=site))
    read = parse_deepspeed(dict(exported.files)[CONFIG], exported.arguments, world=8)
    assert in_host(read) == (offload.startswith("optimizer"), offload.startswith("states"))
    assert inputs_in_host(read) == offload.endswith("inputs")
    judged = launch(tmp_path, dict(exported.files)[CONFIG], *exported.arguments, world=8)
    assert judged.proposal is not None
    assert said_offload(job_of_launch(judged, judged.proposal).software).value == offload
    assert not [note for note in judged.notes if "cpu_checkpointing" in note]


def test_a_ratio_of_the_optimizer_is_read_back_and_disks_are_named(tmp_path):
    def read(stage, **more):
        offload = {"device": "cpu", **more}
        return launch(
            tmp_path, {"train_batch_size": 8, "zero_optimization": {"stage": stage, "offload_optimizer": offload}}
        )

    assert (read(3, ratio=0.3).optimizer_offload_share, read(3).optimizer_offload_share) == (0.3, 1.0)
    assert not read(2, ratio=0.3).legal
    disk = read(3, device="nvme", nvme_path="/local")
    assert disk.legal
    assert [note for note in disk.notes if "device nvme has no price" in note]
    (without,) = read(3, device="nvme").violations
    assert "nvme without nvme_path" in without.message
    assert without.found is Found.BUILD  # by the engine, not by its settings
    assert read(2, device="nvme").legal  # where any device is the host's memory
    asked = Question(model="llama3_8b", cluster="dgx-a100:1", global_batch=8, seq=2048, framework="deepspeed",
                     offload="optimizer", fixed=("zero=3",))  # fmt: skip
    request = request_of(asked)
    job = replace(request.job, software=replace(request.job.software, optimizer_offload_share=0.25))
    layout = layout_of(request, ExplicitLayout(zero=3, recompute="full"))
    site = Site(hosts=("host0",), gpus_per_node=8)
    exported = export_deepspeed(Planned(model=request.model, job=job, layout=layout, site=site))
    again = launch(tmp_path, dict(exported.files)[CONFIG], *exported.arguments, world=8)
    assert (again.optimizer_offload, again.optimizer_offload_share) == (True, 0.25)


def test_inputs_in_the_host_need_the_checkpointing_that_reads_it(tmp_path):
    """``cpu_checkpointing`` is a word of ``deepspeed.checkpointing``: torch's recompute never looks at it."""
    told = '{"train_batch_size": 8, "activation_checkpointing": {"cpu_checkpointing": true}}'
    judged = launch(tmp_path, told)
    assert not judged.inputs_offload
    assert [note for note in judged.notes if "cpu_checkpointing is priced as off" in note]


@pytest.mark.parametrize(("words", "per_parameter"), [("optimizer to host", 16.0), ("weights and optimizer", 18.0)])
def test_host_memory_is_what_deepspeed_counts(words, per_parameter):
    """``estimate_zero3_model_states_mem_needs``: 16 bytes a parameter for the optimizer, 18 with the weights."""
    found = priced(framework="DeepSpeed", model="llama3_8b", zero="3", offload=words)
    parameters = 8.030e9
    assert found.cost.heaviest.host_bytes * 8 == pytest.approx(per_parameter * parameters, rel=0.01)


def test_the_gradients_of_a_partition_are_wide_while_the_optimizer_steps():
    """``stage_1_and_2.py`` casts them: in LlamaFactory issue 1158 the 12.94 GiB that failed are a quarter of 13.9e9.

    They are laid out flat in 16 bits before.
    """
    found = priced(framework="DeepSpeed ZeRO-2", model="mixtral_8x7b", zero="2")
    assert dict(found.cost.heaviest.components)["step"] == pytest.approx(6.0 * 46.7e9 / 8, rel=0.01)


def test_experts_that_are_modules_are_gathered_one_by_one():
    """32 layers of 8 experts of 3 products, gathered forward, again and backward, whatever the sequence."""

    def step_s(model: str, zero: str) -> float:
        """With gradients that stage 2 scatters as stage 3 does."""
        stated = {"framework": "DeepSpeed", "model": model, "zero": zero, "seq_len": "256"}
        asked = run_question(parse_run(ROW | stated))
        job = replace(asked.job, software=replace(asked.job.software, whole_reductions=False))
        pricing = Pricing(model=asked.model, job=job, island=asked.cluster.islands[0])
        return price_layout((pricing,), asked.layout).step.total_s

    assert step_s("mixtral_8x7b", "3") - step_s("mixtral_8x7b", "2") > 0.8 * 32 * 8 * 3 * 3 * 0.6e-3
    assert step_s("llama3_8b", "3") < 2.0 * step_s("llama3_8b", "2")


def test_a_pipeline_degree_of_none_is_one_stage(tmp_path):
    text = '{"pipe-parallel-size": 0, "model_parallel_size": 2, "num-layers": 4, "hidden-size": 512,\n'
    text += ' "num-attention-heads": 8, "seq-length": 512, "precision": "bfloat16", "train_batch_size": 8}'
    for name in ("own.yml", "own.json"):
        judged = launch(tmp_path, text, name=name, world=8, model="")
        assert judged.legal, judged.violations
        assert (judged.layout.pp, judged.layout.first.tp, judged.layout.first.dp) == (1, 2, 4)
        assert (judged.precision, judged.model.layers) == ("bf16", 4)


def test_a_batch_that_does_not_multiply_out_is_mended_in_one_number(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
                                "gradient_accumulation_steps": 8}))  # fmt: skip
    report = check_launch(LaunchQuestion(framework="deepspeed", file=file, world=1, model="llama3_8b"))
    told = ["train_batch_size 64 -> 32", "train_micro_batch_size_per_gpu 4 -> 8", "gradient_accumulation_steps 8 -> 16"]
    assert [str(one.neighbour) for one in report.near] == told
    file.write_text(json.dumps(AUTO))
    report = check_launch(LaunchQuestion(framework="deepspeed", file=file, world=1, model="llama3_8b"))
    assert report.near == ()  # no degree mends it


SWIFT = """
NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen3-30B-A3B-Base --expert_model_parallel_size 4 --max_length 8192 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --sequence_parallel true \\
    --optimizer_cpu_offload true --use_precision_aware_optimizer true --moe_permute_fusion true --packing true
"""


def test_a_launch_of_swift_is_read_with_its_model_and_defaults(tmp_path):
    judged = launch(tmp_path, SWIFT, name="sft.sh", framework="megatron", world=0, model="")
    assert judged.legal, judged.violations
    assert (judged.world, judged.model.name, judged.precision) == (4, "qwen3_30b_a3b", "bf16")
    assert (judged.layout.first.ep, judged.layout.first.zero, judged.proposal.global_batch) == (4, 1, 16)
    assert judged.optimizer_offload
    assert not judged.notes
    priced_here = estimate(request_of_launch(judged, "hgx-a800:1"), judged.layout).cost
    assert priced_here.step.total_s == pytest.approx(28.0, rel=0.25)  # qwen3_moe_offload.sh: 28 s/it


def test_adapters_of_swift_are_read(tmp_path):
    judged = launch(tmp_path, SWIFT.replace("--packing true", "--train_type lora"), name="sft.sh",
                    framework="megatron", world=0, model="")  # fmt: skip
    assert "adapters of rank 8 beside attn, mlp are trained" in "".join(judged.notes)
    assert judged.adapters is not None
    assert not judged.adapters.separate  # Megatron-core's products


def of_swift(tmp_path, words, model="Qwen/Qwen3-30B-A3B"):
    text = f"NPROC_PER_NODE=8 megatron sft --model {model} --micro_batch_size 1 --global_batch_size 16 {words}"
    return launch(tmp_path, text, name="sft.sh", framework="megatron", world=0, model="")


def test_experts_of_swift_are_whole_beside_tensor_parallelism(tmp_path):
    """``fp8/llm.sh`` of ms-swift starts tp 2 x ep 8 on 8 GPUs: ``expert_tensor_parallel_size`` is 1, not tp."""
    judged = of_swift(
        tmp_path, "--tensor_model_parallel_size 2 --expert_model_parallel_size 8 --sequence_parallel true"
    )
    assert judged.legal, judged.violations
    assert (judged.layout.first.tp, judged.layout.first.ep, judged.layout.first.etp) == (2, 8, 1)
    words = "--tensor_model_parallel_size 2 --expert_model_parallel_size 4 --expert_tensor_parallel_size 2"
    assert of_swift(tmp_path, words).layout.first.etp == 2


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--loss_scale ignore_empty_think", lambda judged: judged.precision == "bf16"),
        ("--recompute_granularity none", lambda judged: str(judged.layout.first.recompute) == "none"),
        ("--moe_router_dtype none", lambda judged: judged.precision == "bf16"),
        ("--torch_dtype float16", lambda judged: judged.precision == "fp16"),
        ("--rlhf_type dpo", lambda judged: any(note.startswith("dpo has further") for note in judged.notes)),
        (
            "--pipeline_model_parallel_size 2 --virtual_pipeline_model_parallel_size 4",
            lambda judged: (judged.layout.pp, judged.layout.vpp) == (2, 4),
        ),
    ],
)
def test_options_of_swift_that_are_not_megatrons(tmp_path, words, read):
    judged = of_swift(tmp_path, f"--expert_model_parallel_size 4 {words}")
    assert judged.legal, judged.violations
    assert read(judged)


def test_swift_fuses_no_biases_with_dropout_beside_experts_with_biases(tmp_path):
    judged = of_swift(tmp_path, "--expert_model_parallel_size 8", model="openai-mirror/gpt-oss-20b")
    assert judged.legal, judged.violations


def test_a_model_of_swift_that_is_not_known_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="the model some/unheard-of is not known"):
        of_swift(tmp_path, "--tensor_model_parallel_size 2", model="some/unheard-of")


def test_the_batch_of_a_recipe_breaks_no_rule():
    """Megatron-Bridge pull request 6083: pp 2 with 8 virtual stages is legal on 128 GPUs, with any batch."""
    words = (
        "model.pipeline_model_parallel_size=2",
        "model.virtual_pipeline_model_parallel_size=8",
        "model.expert_model_parallel_size=64",
        "model.pipeline_model_parallel_layout=Et*4|(t*4|)*14tmL",
    )
    judged = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=128, model="deepseek_v3"))
    assert judged.legal, judged.violations
    assert "the global batch is not overridden: 128 is assumed, 2 micro-batches a replica" in judged.notes
    stated = read_launch(
        LaunchQuestion(
            framework="bridge", arguments=(*words, "train.global_batch_size=64"), world=128, model="deepseek_v3"
        )
    )
    assert [found.rule for found in stated.violations] == ["megatron-group-high"]


@pytest.mark.parametrize(
    ("framework", "degrees", "name"),
    [
        ("LLaMA-Factory", {}, "deepspeed-modules"),
        ("ms-swift", {}, "deepspeed-modules"),
        ("ms-swift", {"ep": "8"}, "megatron-trainers"),
        ("verl", {"tp": "2"}, "megatron-trainers"),
        ("verl", {}, "fsdp"),
        ("DeepSpeed", {}, "deepspeed-modules"),
        ("DeepSpeed 0.16.9", {}, "deepspeed-modules"),
        ("DeepSpeed ZeRO-3", {}, "deepspeed-modules"),
        ("Megatron-DeepSpeed", {}, "deepspeed-bf16"),
        ("DeepSpeed 0.6.2 ZeRO-3 (CPU offload where needed)", {}, "deepspeed-zero"),
        ("gpt-neox", {"pp": "4"}, "deepspeed-flash"),
        ("slime", {}, "megatron-trainers"),
        ("llama-recipes", {}, "fsdp"),
    ],
)
def test_todays_trainers_are_priced_as_what_they_stand_on(framework, degrees, name):
    assert software_for(RunText(framework=framework, precision="bf16", **degrees)).software.name == name


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("optimizer to host", {"optimizer_offload"}),
        ("CPU Adam", {"optimizer_offload"}),
        ("weights, gradients and optimizer to host", {"state_offload", "optimizer_offload"}),
        ("activation CPU offload 40 layers", set()),
    ],
)
def test_what_a_run_offloads(words, fields):
    found = software_for(RunText(framework="Megatron-LM", offload=words)).software
    assert {name for name in ("optimizer_offload", "state_offload") if getattr(found, name)} == fields


def test_states_in_the_host_need_whole_sharding():
    request = request_of(Question(model="llama3_8b", cluster="dgx-a100:1", global_batch=8, seq=2048,
                                  framework="torchtitan", offload="states"))  # fmt: skip
    assert request.fixed == (("zero", 3),)
    assert request.job.software.state_offload
    assert not request.job.software.optimizer_offload

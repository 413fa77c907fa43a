"""Launches for another framework or version than they are judged by, and names as their users write them."""

import json

import pytest
from launch_words import BATCH, SIZES
from typer.testing import CliRunner

from hardware.errors import InputError
from planner.cli import app
from planner.ingest.launch_text import read_launch_text
from planner.ingest.options import close_name
from planner.ingest.other_frameworks import framework_meant
from planner.launches.check import read_launch
from planner.question import LaunchQuestion
from planner.request import Framework
from planner.rules.table import NEWEST, newer_notes

TITAN = '[job]\ndump_folder = "x"\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\n'
AXOLOTL = (
    "base_model: Qwen/Qwen2.5-32B\nsequence_len: 16384\nmicro_batch_size: 1\ntensor_parallel_size: 2\nbf16: true\n"
)
FACTORY = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\ncutoff_len: 2048\n"
TRAINER = "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\nbf16: true\n"
NEOX = '{"pipe-parallel-size": 2, "model-parallel-size": 2, "num-layers": 44, "train_micro_batch_size_per_gpu": 4}\n'
NEMO_1 = (
    "trainer:\n  num_nodes: 4\n  devices: 8\n  precision: bf16\nmodel:\n  micro_batch_size: 2\n"
    "  tensor_model_parallel_size: 4\n  encoder_seq_length: 4096\n  num_layers: 40\n  hidden_size: ${h}\n"
)
TUNE = "model:\n  _component_: torchtune.models.llama3.llama3_8b\nbatch_size: 2\nepochs: 1\n"
LIT = "checkpoint_dir: meta-llama/Llama-2-7b-hf\ndevices: 4\ntrain:\n  global_batch_size: 64\n  max_seq_length: 512\n"
NEMO = "trainer:\n  num_nodes: 1\n  devices: 8\n  strategy:\n    tensor_model_parallel_size: 4\n"


def judged(folder, name: str, text: str, framework: str, **more):
    file = folder / name
    file.write_text(text)
    return read_launch(LaunchQuestion(framework=framework, file=file, **more))


@pytest.mark.parametrize(
    ("name", "text", "framework", "meant"),
    [
        ("a.toml", TITAN, "megatron", "torchtitan"),
        ("a.toml", TITAN, "bridge", "torchtitan"),
        ("a.yaml", NEMO, "megatron", "nemo"),
        ("a.yaml", NEMO, "bridge", "nemo"),
        ("a.yaml", NEMO, "torchtitan", "nemo"),
        ("a.yaml", "model:\n  tensor_model_parallel_size: 2\n", "megatron", "bridge"),
        ("a.txt", f"{SIZES} {BATCH}", "torchtitan", "megatron"),
        ("a.txt", f"{SIZES} {BATCH} --deepspeed --deepspeed_config ds.json", "megatron", "deepspeed"),
        ("a.txt", f"{SIZES} {BATCH} --deepspeed --deepspeed_config ds.json", "torchtitan", "deepspeed"),
    ],
)
def test_words_of_another_framework_name_it(name, text, framework, meant, tmp_path):
    with pytest.raises(InputError, match=f"looks like a launch of {meant}.*--framework {meant}"):
        judged(tmp_path, name, text, framework, world=8)


def test_a_program_with_no_option_of_megatron_is_not_judged_as_one(tmp_path):
    text = "accelerate launch --num_processes 8 train.py --model_name_or_path m --batch 1\n"
    with pytest.raises(InputError, match=r"arguments of train.py are not Megatron-LM's \(--model_name_or_path"):
        judged(tmp_path, "run.sh", text, "megatron")
    own = f"accelerate launch --num_processes 8 train.py {SIZES} {BATCH} --own-option 1\n"
    assert judged(tmp_path, "run.sh", own, "megatron", world=8).legal


@pytest.mark.parametrize("framework", [framework for framework in Framework if NEWEST[framework]])
def test_versions_that_do_not_exist_are_told(framework):
    assert newer_notes(framework, NEWEST[framework]) == ()
    assert newer_notes(framework, None) == ()
    (told,) = newer_notes(framework, "99.0")
    assert f"newer than the newest known, {NEWEST[framework]}" in told


@pytest.mark.parametrize(("version", "told"), [("99.0", True), ("0.99", True), ("0.19", False), ("0.14.1", False)])
def test_a_launch_and_an_export_for_a_newer_version_say_so(version, told, tmp_path):
    answer = judged(tmp_path, "args.txt", f"{SIZES} {BATCH}", "megatron", world=8, version=version)
    assert any("newer than the newest known" in note for note in answer.notes) == told
    run, report = CliRunner(), str(tmp_path / "report.json")
    layout = ("--global-batch", "16", "--seq", "4096", "--tp", "2", "--json", report)
    assert run.invoke(app, ["estimate", "llama32_1b", "dgx-h100:1", *layout]).exit_code == 0
    exported = run.invoke(app, ["export", report, "--to", "megatron", "--framework-version", version])
    assert exported.exit_code == 0, exported.output
    assert ("newer than the newest known" in " ".join(exported.output.split())) == told


def test_sizes_of_the_model_and_the_strategy_of_nemo_that_differ_are_named(tmp_path):
    def asked(size: int):
        text = f"{NEMO}model:\n  tensor_model_parallel_size: {size}\ndata:\n  global_batch_size: 16\n"
        return judged(tmp_path, "a.yaml", text, "nemo", model="llama3_8b")

    assert asked(4).legal
    other = asked(2)
    assert [violation.rule for violation in other.violations] == ["nemo-override-overwritten"]
    assert "tensor_model_parallel_size=2 is overwritten by trainer.strategy" in other.violations[0].message
    assert "tensor_model_parallel_size=4 without a word" in other.violations[0].message
    assert other.world == 8
    assert not {"trainer.num_nodes", "trainer.devices"} & set(other.unjudged)


def test_options_of_torchtitan_are_named_as_they_are_written(tmp_path):
    answer = judged(tmp_path, "a.toml", TITAN, "torchtitan", world=8)
    assert "--job.dump_folder" in answer.unjudged
    assert not any("override" in name for name in answer.unjudged)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("--parallelism.foo", ""),
        ("--parallelism.tensor_parallel_degre", "--parallelism.tensor_parallel_degree"),
        ("--sequence-paralel", "--sequence-parallel"),
    ],
)
def test_a_common_section_alone_is_no_likeness(name, near):
    known = ("--parallelism.spmd_backend", "--parallelism.tensor_parallel_degree", "--sequence-parallel")
    assert close_name(name, known) == near


def test_the_answer_in_json_has_the_note_on_the_version(tmp_path):
    out = tmp_path / "out.json"
    words = ("check", "--framework-version", "0.99", "--world-size", "8", "--json", str(out), "--")
    assert CliRunner().invoke(app, [*words, *SIZES.split(), *BATCH.split()]).exit_code == 0
    assert any("0.99 is newer" in note for note in json.loads(out.read_text())["notes"])


@pytest.mark.parametrize("framework", ["megatron", "bridge", "nemo", "torchtitan", "galvatron"])
@pytest.mark.parametrize(
    ("settings", "named", "instead"),
    [
        (AXOLOTL, "settings of axolotl, as there is base_model", "--framework deepspeed"),
        (FACTORY, "settings of llamafactory, as there is finetuning_type", "--framework deepspeed"),
        (TRAINER, "settings of Hugging Face's Trainer, as there is per_device_train", "--framework deepspeed"),
        (NEOX, "settings of GPT-NeoX, as there is pipe_parallel_size", "--framework deepspeed"),
        (NEMO_1, "settings of NeMo 1, as there is model.micro_batch_size", "--tensor-model-parallel-size 4"),
        (TUNE, "settings of torchtune, as there is model._component_", "plan estimate"),
        (LIT, "settings of LitGPT, as there is train.max_seq_length", "plan estimate"),
    ],
)
def test_settings_of_another_program_are_named(tmp_path, framework, settings, named, instead):
    """They were judged as wrong options of Megatron-LM, or as overrides of NeMo 2 that would start."""
    with pytest.raises(InputError) as refused:
        judged(tmp_path, "settings.yaml", settings, framework, world=32, model="llama3_8b")
    assert named in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.parametrize("framework", ["megatron", "nemo"])
def test_overrides_of_nemo_1_in_a_script_are_named(tmp_path, framework):
    text = "python megatron_gpt_pretraining.py trainer.devices=8 ++model.mcore_gpt=True model.optim.lr=1e-4"
    with pytest.raises(InputError, match=r"settings of NeMo 1, as there is model\.mcore_gpt"):
        judged(tmp_path, "launch.sh", text, framework, world=8)


@pytest.mark.parametrize(
    ("name", "text", "framework"),
    [
        ("a.yml", AXOLOTL, "deepspeed"),
        ("a.yaml", FACTORY, "deepspeed"),
        ("a.yml", NEOX, "deepspeed"),
        ("ds.json", '{"train_batch_size": 8, "bf16": {"enabled": true}}', "deepspeed"),
        ("a.toml", TITAN, "torchtitan"),
        ("a.sh", "NGPU=8 CONFIG_FILE=x.toml ./run_train.sh --training.steps 10", "torchtitan"),
        ("a.sh", "nemo llm pretrain --factory llama3_8b", "nemo"),
        ("a.txt", "--recipe qwen3_8b_pretrain_16gpu_h100_bf16_config", "bridge"),
        ("a.sh", f"torchrun pretrain_gpt.py {SIZES} {BATCH}", "megatron"),
        ("a.sh", f"deepspeed pretrain_gpt.py {SIZES} {BATCH} --deepspeed --deepspeed_config x.json", "deepspeed"),
    ],
)
def test_a_launch_shows_itself_whose_it_is(tmp_path, name, text, framework):
    file = tmp_path / name
    file.write_text(text)
    meant, reason = framework_meant(read_launch_text(file, ()))
    assert meant == framework
    assert bool(reason) is (framework != "megatron")


def test_a_launch_without_a_framework_is_judged_by_its_own(tmp_path):
    file = tmp_path / "a.yml"
    file.write_text(FACTORY)
    answer = read_launch(LaunchQuestion(file=file, world=8, model="llama3_8b"))
    assert "llamafactory" in next(note for note in answer.notes if note.startswith("taken as a launch of deepspeed"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("actor: {backend: 'fsdp:d4', path: x}\n", "settings of AReaL"),
        ("global_train_batch_size: 8\nmodel: {name: hf}\n", "settings of LLM Foundry"),
        (
            "step_scheduler: {global_batch_size: 8}\nmodel: {name: x}\noptimizer: {lr: 1}\n",
            "settings of NeMo Automodel",
        ),
        ("trainer: {policy: {model: {path: x}}}\n", "settings of SkyRL"),
        (
            "experiment: {name: x, port: 8}\n",
            "settings of a program that is not known (experiment.name, experiment.port)",
        ),
    ],
)
def test_programs_without_a_reader_are_named_without_a_framework_too(tmp_path, settings, named):
    file = tmp_path / "a.yaml"
    file.write_text(settings)
    with pytest.raises(InputError) as refused:
        read_launch(LaunchQuestion(file=file, world=8))
    assert named in str(refused.value)


@pytest.mark.parametrize("framework", ["", "deepspeed", "megatron"])
def test_options_of_deepspeed_chat_are_not_the_trainers(tmp_path, framework):
    file = tmp_path / "a.sh"
    options = "--model_name_or_path facebook/opt-1.3b --per_device_train_batch_size 8 --num_warmup_steps 0"
    file.write_text(f"deepspeed main.py {options} --zero_stage 2 --deepspeed\n")
    with pytest.raises(InputError, match="options of DeepSpeed-Chat"):
        read_launch(LaunchQuestion(file=file, framework=framework, world=8))

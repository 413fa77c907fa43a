"""Options of trainers that are misspelt: named with the one that was meant, as their parsers refuse them.

What Transformers 5.12.1 did: ``HfArgumentParser(TrainingArguments)`` raises "not used by the HfArgumentParser" on
``--gradient_acumulation_steps`` and ``--learning_rte``, takes ``--gradient_accum`` and ``--per_device_train_batch`` for
the options that they begin, and exits on ``--gradient_checkpoint``, which begins two.
"""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.ingest.launch_text import LaunchText, read_launch_text
from planner.ingest.trainers.options import trainer_options

RUN = CliRunner()
PLAIN = "--model_name_or_path Qwen/Qwen3-14B --bf16 --per_device_train_batch_size 2"
FSDP = f'torchrun --nnodes 2 --nproc_per_node 8 run_clm.py {PLAIN} --fsdp "shard_grad_op auto_wrap" --block_size 4096'
FACTORY = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nfinetuning_type: full\n"


def script(words: str, program: str = "run_clm.py") -> LaunchText:
    return LaunchText(arguments=tuple(words.split()), program=program)


def settings(folder: Path, text: str) -> LaunchText:
    file = folder / "settings.yaml"
    file.write_text(text)
    return read_launch_text(file, ())


def named(text: LaunchText) -> list[tuple[str, str]]:
    return [(fault.argument, fault.message.partition("did you mean ")[2]) for fault in trainer_options(text).faults()]


def test_a_misspelt_option_is_not_legal_and_is_named(tmp_path):
    """It left the batch at 32 sequences instead of 128, and was told as an option that is not judged."""
    file, out = tmp_path / "launch.sh", tmp_path / "answer.json"
    file.write_text(f"{FSDP} --gradient_acumulation_steps 4")
    words = ["--framework", "deepspeed", "--args-file", str(file), "--json", str(out)]
    result = RUN.invoke(app, ["check", *words])
    assert result.exit_code == 3
    told = " ".join(result.output.split())
    assert "--gradient_acumulation_steps is unknown to Hugging Face's Trainer; did you mean" in told
    assert "unknown: --gradient_acumulation_steps" in told
    answer = json.loads(out.read_text())
    assert answer["unknown"] == ["--gradient_acumulation_steps"]
    assert [found["rule"] for found in answer["violations"]] == ["trainer-unknown-option"]
    assert not answer["accepted_at_launch"]
    assert "--gradient_acumulation_steps" not in answer["unjudged"]
    carried = RUN.invoke(app, ["search", "dgx-h100:1", "--from", str(file), "--framework", "deepspeed"])
    assert carried.exit_code == 2
    assert "did you mean --gradient_accumulation_steps?" in carried.output


@pytest.mark.parametrize(("begun", "batch"), [("--gradient_accum", 128), ("--gradient_accumulation_steps", 128)])
def test_the_beginning_of_an_option_is_read_as_it(tmp_path, begun, batch):
    file, out = tmp_path / "launch.sh", tmp_path / "answer.json"
    file.write_text(f"{FSDP} {begun} 4")
    asked = ["check", "--framework", "deepspeed", "--args-file", str(file), "--cluster", "dgx-h100:2"]
    assert RUN.invoke(app, [*asked, "--json", str(out)]).exit_code == 0
    layout = json.loads(out.read_text())["prediction"]
    assert layout["micro_batch"] * layout["num_microbatches"] * layout["dp"] == batch


def test_a_beginning_of_several_options_is_left():
    text = trainer_options(script(f"{PLAIN} --gradient_checkpoint True --per_device_train_batch 4")).text
    assert "--gradient_checkpoint" in text.arguments
    assert "--per_device_train_batch" not in text.arguments


@pytest.mark.parametrize(
    ("launch", "wrong", "meant"),
    [
        ("llamafactory-cli train --cutof_len 4096", "--cutof_len", "--cutoff_len?"),
        (
            "swift sft --sequence_paralel_size 2",
            "--sequence_paralel_size",
            "--sequence_parallel_size?",
        ),
        ("trl sft --max_lenght 4096", "--max_lenght", "--max_length?"),
        ("deepspeed --module openrlhf.cli.train_sft --micro_train_batchsize 2", "--micro_train_batchsize", "--micro_"),
        ("torchrun train.py --per_device_train_batch_size 1 --learning_rte 1e-5", "--learning_rte", "--learning_rate?"),
    ],
)
def test_each_trainer_has_its_own_options(tmp_path, launch, wrong, meant):
    file = tmp_path / "launch.sh"
    file.write_text(launch)
    ((found, near),) = named(read_launch_text(file, ()))
    assert found == wrong
    assert near.startswith(meant)


def test_settings_of_a_file_are_named_without_dashes(tmp_path):
    assert named(settings(tmp_path, f"{FACTORY}gradient_acumulation_steps: 4\n")) == [
        ("gradient_acumulation_steps", "gradient_accumulation_steps?")
    ]


def test_what_axolotl_drops_would_start(tmp_path):
    """``examples/falcon-h1/falcon-h1-1b-qlora-cp.yaml`` of its 0.18 has this key, which no release knows."""
    text = settings(tmp_path, "base_model: tiiuae/Falcon-H1-1.5B-Deep-Base\ncontext_parapllel_size: 2\n")
    (fault,) = trainer_options(text).faults()
    assert fault.message == "axolotl drops context_parapllel_size without a word; did you mean context_parallel_size?"


def test_arguments_that_a_script_may_define_itself_break_no_rule():
    own = "--eval_dataset d --max_seq_len 2048 --train_steps 9 --use_wandb true --num_epochs 1 --train_batch_size 8"
    old = "--evaluation_strategy no --no_cuda false --group_by_length true --no_remove_unused_columns"
    text = script(f"{PLAIN} {own} {old} --fsdp_config.anything 1")
    options = trainer_options(text)
    assert (options.faults(), options.text) == ((), text)
    assert named(script("--num-layers 4 --gradient_acumulation_steps 2", "pretrain_gpt.py")) == []


def test_an_option_that_no_release_of_a_trainer_has_is_unknown_without_a_rule(tmp_path):
    options = trainer_options(settings(tmp_path, f"{FACTORY}quite_another_thing: 1\n"))
    assert (options.faults(), options.unlisted()) == ((), ("quite_another_thing",))


def test_any_two_slips_in_a_long_name_are_found():
    names = ("gradient_accumulation_steps", "per_device_train_batch_size", "gradient_checkpointing", "use_liger_kernel")
    draw = random.Random(7)
    for name in names:
        for _ in range(20):
            letters = list(name)
            del letters[draw.randrange(3, len(letters) - 3)]
            letters.insert(draw.randrange(3, len(letters) - 3), draw.choice("xyz"))
            assert named(script(f"{PLAIN} --{''.join(letters)} 1")) == [(f"--{''.join(letters)}", f"--{name}?")]


def test_what_is_near_a_launch_leaves_a_misspelt_option_out(tmp_path):
    """Its degree of sequence parallelism does not divide the heads either."""
    file, out = tmp_path / "launch.sh", tmp_path / "answer.json"
    words = "--model Qwen/Qwen3-32B --max_length 8192 --deepspeed zero3 --sequence_parallel_size 3 --max_lenghth 4"
    file.write_text(f"NPROC_PER_NODE=8 NNODES=2 swift sft {words}")
    asked = ["check", "--framework", "deepspeed", "--args-file", str(file), "--json", str(out)]
    assert RUN.invoke(app, asked).exit_code == 3
    answer = json.loads(out.read_text())
    assert answer["unknown"] == ["--max_lenghth"]
    assert answer["nearest"]

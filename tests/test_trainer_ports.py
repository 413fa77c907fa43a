"""Launches by trainers carried to another machine: what is searched there is what the trainer can be told."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from costmodels.layout import Granularity
from planner.cli import app
from planner.launches.porting import Port, port
from planner.planning import estimate
from planner.question import PortQuestion, Question, question_from, question_of, request_of
from planner.report.json_reader import read_report
from planner.report.porting_text import port_to_json, recipe_in
from planner.sayable import TRAINERS, trainer_named

RUN = CliRunner()
SHORT = "--bf16 True --per_device_train_batch_size 1 --gradient_accumulation_steps 4"
FSDP = f'torchrun --nproc_per_node=8 run.py --model_name_or_path Llama-3.1-8B {SHORT} --fsdp "full_shard auto_wrap"'
LAUNCHES = {
    "trainer-fsdp": FSDP,
    "trainer-deepspeed": f"NPROC_PER_NODE=8 swift sft --model Qwen3-8B --max_length 2048 {SHORT} --deepspeed zero3",
    "llamafactory-deepspeed": "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train --model_name_or_path "
    f"Llama-3.1-8B --finetuning_type full {SHORT} --deepspeed ds.json",
    "openrlhf": "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain Llama-3.1-8B --max_len 2048 "
    "--train_batch_size 64 --micro_train_batch_size 2 --zero_stage 3",
}
AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")


def carried(folder: Path, launch: str, **asked) -> Port:
    (folder / "ds.json").write_text(json.dumps({**AUTO, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}))
    file = folder / "launch.sh"
    file.write_text(launch)
    words = {"precision": "", "framework": "deepspeed", "global_batch": 0, "top": 30, "time_limit_s": 20.0} | asked
    question = PortQuestion(file=file, asked=Question(model="", cluster="dgx-h100:1", **words))
    return port(recipe_in(question), question)


@pytest.mark.parametrize("key", LAUNCHES)
def test_a_trainer_is_searched_within_what_it_can_be_told(tmp_path, key):
    """Pipelines and recompute by operation would be faster for some of them; none of them has either."""
    found = carried(tmp_path, LAUNCHES[key])
    assert found.report.request.sayable.key == key
    assert found.report.layouts
    for ranked in found.report.layouts:
        first = ranked.layout.first
        assert (ranked.layout.pp, ranked.layout.vpp, first.ep) == (1, 1, 1)
        assert first.recompute.granularity in (Granularity.NONE, Granularity.FULL)
        assert first.tp == 1 or first.zero <= 2  # tensor parallelism of DeepSpeed's, under ms-swift
        assert first.cp == 1 or key not in ("trainer-fsdp", "llamafactory-deepspeed")
    told = port_to_json(found)
    assert told["program"] == trainer_named(key).program
    assert "Searched is what" in str(told["notes"])


def test_degrees_of_fsdp_are_those_of_accelerates_settings(tmp_path):
    """The Trainer's own options have none; accelerate's ``parallelism_config`` has tp and cp with FSDP 2."""
    degrees = "--use_parallelism_config --parallelism_config_dp_shard_size 4 --parallelism_config_tp_size 2"
    launch = FSDP.replace("torchrun --nproc_per_node=8", f"accelerate launch --use_fsdp --fsdp_version 2 {degrees}")
    found = carried(tmp_path, launch.partition(" --fsdp ")[0])
    assert found.report.request.sayable.key == "trainer-fsdp-grid"
    assert {ranked.layout.first.tp for ranked in found.report.layouts} > {1}


def test_the_answer_names_the_trainer_and_no_export_to_a_framework(tmp_path):
    file, saved = tmp_path / "launch.sh", tmp_path / "plan.json"
    file.write_text(FSDP)
    words = ["search", "dgx-h100:1", "--from", str(file), "--framework", "deepspeed"]
    result = RUN.invoke(app, [*words, "--json", str(saved)])
    assert result.exit_code == 0
    answer = " ".join(result.output.split())
    assert "for Hugging Face's Trainer with FSDP" in answer
    assert "torchtitan" not in answer
    assert "gradient_accumulation_steps 4" in answer
    again = RUN.invoke(app, ["explain", str(saved)])
    assert again.exit_code == 0
    assert "pp 1 -> 2" not in again.output
    exported = RUN.invoke(app, ["export", str(saved), "--to", "torchtitan", "-o", str(tmp_path / "out")])
    assert "this launch is of another program" in " ".join(exported.output.split())
    elsewhere = RUN.invoke(app, ["search", "dgx-h100:1", "--from", str(saved), "--framework", "megatron"])
    assert "The recipe is of Hugging Face's Trainer with FSDP, which cannot" in " ".join(elsewhere.output.split())
    pinned = RUN.invoke(app, [*words, "--fix", "pp=2"])
    assert pinned.exit_code == 2
    assert "--fix pp=2: Hugging Face's Trainer with FSDP cannot be told so" in pinned.output


@pytest.mark.parametrize("more", [(), ("--precision", "fp16")])
def test_a_report_of_a_trainer_is_read_back_with_its_prices(tmp_path, more):
    """Its modules, and an optimizer in 8 bits: they were read back as torchtitan's, in fp32."""
    file, saved = tmp_path / "launch.sh", tmp_path / "plan.json"
    file.write_text(f"{FSDP} --optim adamw_8bit")
    words = ["search", "dgx-h100:1", "--from", str(file), "--framework", "deepspeed", "--json", str(saved)]
    assert RUN.invoke(app, [*words, *more]).exit_code == 0
    report = read_report(saved)
    assert report.request.job.optimizer_bytes == 2.0
    again = estimate(report.request, report.layouts[0].layout)
    assert again.cost.step.total_s == pytest.approx(report.layouts[0].cost.step.total_s)
    assert again.cost.heaviest.total_bytes == pytest.approx(report.layouts[0].cost.heaviest.total_bytes)


@pytest.mark.parametrize("key", TRAINERS)
def test_a_trainer_of_a_report_is_read_back(key):
    request = request_of(Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=2048, trainer=key))
    assert request_of(question_of(request)) == request
    assert question_from({"model": "m", "cluster": "c", "global_batch": 1, "trainer": key}, "file").trainer == key

"""Search, price, export and check say the same of what can be launched."""

import io
import json
from dataclasses import replace

import plan_samples as samples
import pytest
from rich.console import Console
from typer.testing import CliRunner

from costmodels.pipeline.schedules import Schedule
from costmodels.software import software
from hardware.catalog import cluster
from hardware.errors import InputError
from planner import Question, plan, request_of
from planner.cli import app
from planner.layouts.platform_notes import (
    dispatcher_notes,
    expert_notes,
    memory_share_notes,
    platform_notes,
    refuse_platforms,
)
from planner.report.launch import launch_or_others
from planner.report.search_text import print_search
from planner.report.target import Target
from planner.request import Framework

RUN = CliRunner()
LONG = ("llama3_8b", "dgx-h100:32", "--global-batch", "1", "--seq", "1048576")


def run(*words: str, code: int = 0) -> str:
    result = RUN.invoke(app, list(words))
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_sequences_beyond_the_stated_positions_are_one_truth(tmp_path):
    """Llama 3.1 states 131,072 positions; rotary ones have no table, so the launch sets them to the sequence."""
    report = str(tmp_path / "long.json")
    note = "llama3_8b states 131,072 positions and sequences have 1,048,576 tokens"
    assert note in run("search", *LONG, "--top", "1", "--json", report)
    priced = run("estimate", *LONG, "--tp", "8", "--cp", "32")
    assert note in priced
    assert "does not run this layout" not in priced
    exported = run("export", report, "--to", "megatron")
    assert "--max-position-embeddings 1048576" in exported
    assert note in exported
    launch = tmp_path / "launch"
    run("export", report, "--to", "megatron", "-o", str(launch))
    assert note in " ".join((launch / "README.md").read_text().split())
    run("check", "--world-size", "256", "--args-file", str(launch / "launch.sh"))


def test_learned_positions_end_where_their_table_ends():
    request = request_of(Question(model="gpt3_1_3b", cluster="dgx-h100:1", global_batch=16, seq=4096))
    assert plan(request).infeasible.constraint.endswith("--max-position-embeddings from 4096")


def test_an_export_of_what_does_not_fit_says_so(tmp_path):
    report, launch = str(tmp_path / "one.json"), tmp_path / "launch"
    run("estimate", "llama3_70b", "dgx-h100:1", "--global-batch", "8", "--seq", "4096", "--tp", "8", "--json", report)
    assert json.loads((tmp_path / "one.json").read_text())["layout"]["memory"]["verdict"] == "oom"
    assert "this layout does not fit: a GPU of stage 0 needs" in run("export", report, "--to", "megatron")
    assert "this layout does not fit" in run("export", report, "--to", "megatron", "-o", str(launch))
    assert "this layout does not fit" in (launch / "README.md").read_text()


def test_a_layout_that_cannot_be_launched_is_not_said_to_be_exported(tmp_path):
    foreign = (
        "search",
        "gemma_7b",
        "dgx-h100:1",
        "--global-batch",
        "8",
        "--seq",
        "4096",
        "--top",
        "1",
        "--fix",
        "pp=1",
    )
    report = str(tmp_path / "hybrid.json")
    text = run(*foreign, "--json", report)
    assert "no launch can be written: model gemma_7b: Megatron-LM has no flag for the gated activation gelu" in text
    assert "gelu; allowed:" in text
    assert "--to megatron" not in text
    assert "--rank 1 --to json" in text
    run("export", report, "--to", "json")


def test_where_the_best_layout_has_no_launch_the_next_ones_are_named_with_their_cost():
    report = samples.report()
    first = replace(report.layouts[0], layout=replace(report.layouts[0].layout, schedule=Schedule.GPIPE))
    odd = replace(report, layouts=(first, *report.layouts[1:]))
    printed = io.StringIO()
    print_search(Console(width=400, file=printed), odd)
    text = " ".join(printed.getvalue().split())
    assert "no launch can be written of the first: schedule gpipe with 2 virtual stages" in text
    assert "; rank 2, 9.000 s (+2.9 %) and rank 3, 11.50 s (+31.4 %) can" in text
    assert "--rank 2 --to megatron" in text
    with pytest.raises(InputError) as error:
        launch_or_others(odd, 1, Target(format="megatron"))
    assert (
        "; or --rank 2: rank 2, 9.000 s (+2.9 %) and rank 3, 11.50 s (+31.4 %) can; or --to json" in error.value.allowed
    )
    assert "--micro-batch-size" in launch_or_others(odd, 2, Target(format="megatron")).text


@pytest.mark.parametrize(
    ("framework", "machine", "foreign"),
    [
        (Framework.MEGATRON, "tpu-v5p-pod:1", True),
        (Framework.MEGATRON, "dgx-h100:1", False),
        (Framework.NEMO, "mi300x-8:1", True),
        (Framework.MEGATRON, "mi300x-8:1", False),
        (Framework.DEEPSPEED, "gaudi2-8:1", False),
        (Framework.TORCHTITAN, "gaudi2-8:1", True),
        (Framework.NONE, "gaudi2-8:1", False),
        (Framework.TORCHTITAN, "aurora:1", False),
        (Framework.MEGATRON, "aurora:1", True),
        (Framework.MEGATRON, "trn2:1", True),
        (Framework.DEEPSPEED, "ascend-910b-8:1", False),
        (Framework.MEGATRON, "ascend-910b-8:1", True),
    ],
)
def test_frameworks_are_remarked_on_machines_that_they_do_not_run_on_as_they_are(framework, machine, foreign):
    assert bool(platform_notes(framework, cluster(machine))) is foreign


@pytest.mark.parametrize(
    ("framework", "machine", "experts", "least"),
    [
        (Framework.MEGATRON, "ascend-910b-8:1", 512, 4),
        (Framework.MEGATRON, "ascend-910b-8:1", 160, 2),
        (Framework.MEGATRON, "ascend-910b-8:1", 128, 0),
        (Framework.MEGATRON, "ascend-910b-8:1", 0, 0),
        (Framework.MEGATRON, "dgx-h100:1", 512, 0),
        (Framework.NONE, "ascend-910b-8:1", 512, 0),
    ],
)
def test_experts_of_a_rank_on_ascend_are_bounded(framework, machine, experts, least):
    notes = expert_notes(framework, cluster(machine), experts)
    assert [f"need ep {least} or more" in note for note in notes] == [True] * (least > 0)


@pytest.mark.parametrize(
    ("machine", "experts", "told"),
    [
        ("p5:2", 128, True),
        ("p6-b300:4", 256, True),
        ("p5:1", 128, False),
        ("p5:2", 0, False),
        ("dgx-h100:2", 128, False),
    ],
)
def test_dispatchers_are_remarked_where_gpus_cannot_drive_the_adapters(machine, experts, told):
    """AWS measured DeepEP from a third faster to nearly three times slower than NCCL's all-to-all over EFA."""
    assert any("deepep" in note for note in dispatcher_notes(cluster(machine), experts)) is told


def test_nemo_runs_on_amd_with_amds_patch():
    """MLPerf Training 5.1: AMD's Llama 3.1 8B is NeMo 2.5 on ROCm's Megatron-LM."""
    machine = cluster("mi300x-8:1")
    assert "with AMD's patch of NeMo" in platform_notes(Framework.NEMO, machine)[0]
    refuse_platforms(Framework.NEMO, machine)
    with pytest.raises(InputError, match="nemo does not run on gaudi2"):
        refuse_platforms(Framework.NEMO, cluster("gaudi2-8:1"))


def test_a_plan_for_a_tpu_is_remarked_and_not_exported(tmp_path):
    report = str(tmp_path / "tpu.json")
    text = run(
        "search", "llama3_8b", "tpu-v5p-pod:4", "--global-batch", "64", "--seq", "4096", "--top", "1", "--json", report
    )
    assert "megatron does not run on tpu-v5p (google): figures are those of an equivalent program" in text
    assert "megatron does not run on tpu-v5p (google); allowed: --to json" in run(
        "export", report, "--to", "megatron", code=2
    )


@pytest.mark.parametrize(
    ("preset", "machine", "told"),
    [("maxtext", "dgx-h100:1", True), ("maxtext-tpu", "tpu-v5p-pod:2", False), ("fsdp", "dgx-h100:1", False)],
)
def test_what_jax_leaves_of_a_gpu_is_remarked(preset, machine, told):
    found = memory_share_notes(software(preset), cluster(machine))
    assert [note.startswith("JAX takes 59.3 of 79.1 GiB") for note in found] == ([True] if told else [])


@pytest.mark.parametrize(("framework", "name"), [("bridge", "Megatron-Bridge"), ("nemo", "NeMo")])
def test_a_refused_export_speaks_of_who_was_asked_and_names_what_says_any_layout(framework, name):
    report = samples.report()
    first = replace(report.layouts[0], layout=replace(report.layouts[0].layout, schedule=Schedule.GPIPE))
    target = Target(format=framework, version=None, hosts=())
    with pytest.raises(InputError) as refused:
        launch_or_others(replace(report, layouts=(first,)), 1, target)
    assert "Megatron-LM" not in str(refused.value)
    assert name in str(refused.value)
    assert "--to json" in str(refused.value)

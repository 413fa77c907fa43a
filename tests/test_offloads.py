"""Inputs of layers in host memory: what they weigh there, what is left, who can be told, and what a report measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from launch_words import priced_launch
from typer.testing import CliRunner

from costmodels.software import software
from hardware.errors import InputError
from planner.choices import Framework, Offload
from planner.cli import app
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import read_launch
from planner.offloads import recompute_under, said_offload, with_offload
from planner.plan_report import RankedLayout
from planner.question import LaunchQuestion, Question, request_of

MILLION = ["--framework", "none", "--cp", "8", "--zero", "3", "--global-batch", "1", "--seq", "1048576"]
MILLION += ["--recompute", "full", "--loss", "chunked", "--precision", "bf16-pure"]


def memory_of(model: str, *words: str) -> dict[str, float]:
    asked = ["estimate", model, "dgx-h100:1", *MILLION, *words, "--json", "-"]
    answer = CliRunner().invoke(app, asked)
    assert answer.exit_code == 0, answer.output
    found: dict[str, float] = json.loads(answer.stdout)["layout"]["memory"]
    return found


def test_inputs_weigh_in_the_host_what_they_did_on_the_device():
    kept, away = memory_of("qwen3_8b"), memory_of("qwen3_8b", "--offload", "inputs")
    inputs_gib = 36 * (1048576 / 8) * 4096 * 2 / 2**30  # layers, tokens of a rank, width, bytes
    assert away["host_gib"] == pytest.approx(inputs_gib, rel=1e-3)
    assert kept["host_gib"] == 0.0
    assert kept["total_gib"] - away["total_gib"] == pytest.approx(inputs_gib, rel=0.1)  # less one layer on its way


def test_a_million_tokens_of_a_mixture_on_eight_cards():
    """huggingface/trl pull request 6846: 46 GB with inputs, and from 30 billion parameters on states, in the host."""
    found = memory_of("qwen3_30b_a3b", "--offload", "states+inputs")
    assert found["total_gib"] * 2**30 == pytest.approx(46e9, rel=0.1)


@pytest.mark.parametrize("offload", list(Offload))
def test_what_is_asked_is_said_again(offload: Offload):
    assert said_offload(with_offload(software("deepspeed-modules"), offload, Framework.DEEPSPEED)) is offload


STATED = [{"software": ("offload_modules=core_attn",)}, {"tries": ("offload_modules=none,core_attn",)}]


@pytest.mark.parametrize("framework", ["deepspeed", "torchtitan", "galvatron", "nemo"])
@pytest.mark.parametrize("stated", STATED)
def test_modules_wait_in_the_host_where_the_framework_can_be_told(framework: str, stated: dict[str, tuple[str, ...]]):
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=2048, framework=framework, **stated)
    told = f"offload_modules with framework {framework}; allowed: megatron, bridge, none"
    with pytest.raises(InputError, match=told):
        request_of(asked)
    assert request_of(replace(asked, framework="bridge")).framework is Framework.BRIDGE


def test_the_projection_waits_there_only_with_the_attention_whose_output_it_reads():
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=2048)
    told = r"offload_modules=attn_proj: attn_proj without core_attn.*allowed: offload_modules=core_attn\+attn_proj"
    with pytest.raises(InputError, match=told):
        request_of(replace(asked, software=("offload_modules=attn_proj",)))
    both = request_of(replace(asked, software=("offload_modules=core_attn+attn_proj",)))
    assert both.job.software.offload_modules == ("core_attn", "attn_proj")


def test_only_full_recompute_keeps_inputs_alone():
    tools = with_offload(software("generic"), Offload.INPUTS, Framework.NONE)
    assert recompute_under(tools, "auto") == "full"
    with pytest.raises(InputError, match="--offload inputs with --recompute none; allowed: --recompute full"):
        recompute_under(tools, "none")
    with pytest.raises(InputError, match="allowed: deepspeed, none for inputs"):
        with_offload(software("megatron"), Offload.OPTIMIZER_INPUTS, Framework.MEGATRON)


def test_deepspeed_is_told_so(tmp_path: Path):
    report, folder = tmp_path / "report.json", tmp_path / "out"
    asked = ["llama3_8b", "dgx-h100:1", "--framework", "deepspeed", "--zero", "3", "--global-batch", "8"]
    runner = CliRunner()
    words = ["--seq", "8192", "--recompute", "full", "--offload", "states+inputs", "--json", str(report)]
    assert runner.invoke(app, ["estimate", *asked, *words]).exit_code == 0
    assert runner.invoke(app, ["export", str(report), "--to", "deepspeed", "-o", str(folder)]).exit_code == 0
    config = json.loads((folder / "ds_config.json").read_text())
    assert config["activation_checkpointing"]["cpu_checkpointing"] is True
    assert config["zero_optimization"]["offload_param"]["device"] == "cpu"


SHARED = ("--tensor-model-parallel-size=2", "--num-layers=32", "--hidden-size=4096", "--num-attention-heads=32",
          "--seq-length=4096", "--max-position-embeddings=4096", "--micro-batch-size=1", "--global-batch-size=32",
          "--bf16", "--vocab-size=128256", "--use-distributed-optimizer",
          "--use-precision-aware-optimizer")  # fmt: skip


def _offloaded(*words: str) -> RankedLayout:
    given = (*SHARED, *words)
    found = priced_launch(LaunchQuestion(framework="megatron", arguments=given, world=16, cluster="dgx-b200:2")).ranked
    assert found is not None
    return found


def test_a_share_of_the_optimizer_is_priced_in_proportion():
    """``HybridDeviceOptimizer`` gives a share of the parameters to the processors, and steps with the rest itself."""
    plain, whole = _offloaded(), _offloaded("--optimizer-cpu-offload")
    for share in (0.25, 0.5):
        found = _offloaded("--optimizer-cpu-offload", "--optimizer-offload-fraction", str(share))
        for part in ("host_bytes", "optimizer_bytes"):
            ends = [_part(at, part) for at in (plain, whole)]
            assert _part(found, part) == pytest.approx(ends[0] + share * (ends[1] - ends[0]), rel=1e-3)
        ends = [at.cost.step.total_s for at in (plain, whole)]
        assert found.cost.step.total_s == pytest.approx(ends[0] + share * (ends[1] - ends[0]), rel=0.02)


def _part(found: RankedLayout, name: str) -> float:
    use = found.cost.heaviest
    return use.host_bytes if name == "host_bytes" else dict(use.components)["optimizer"]


@pytest.mark.parametrize("framework", ["bridge", "nemo"])
def test_an_offload_without_a_fraction_moves_nothing_where_its_default_is_none(framework: str):
    """``OptimizerConfig.optimizer_offload_fraction`` is 0.0; Megatron-LM's option of that name 1.0."""
    group = {"bridge": "optimizer", "nemo": "optim.config"}[framework]
    words = (f"{group}.optimizer_cpu_offload=true", f"{group}.use_precision_aware_optimizer=true")

    def read(*more: str) -> JudgedLaunch:
        return read_launch(LaunchQuestion(framework=framework, model="llama3_8b", arguments=(*words, *more), world=8))

    assert not read().optimizer_offload
    assert [note for note in read().notes if "moves nothing" in note]
    found = read(f"{group}.optimizer_offload_fraction=0.5")
    assert (found.optimizer_offload, found.optimizer_offload_share) == (True, 0.5)

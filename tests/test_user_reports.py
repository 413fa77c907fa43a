"""What users reported about legality and uneven pipelines: the verdicts that a right planner gives."""

import tomllib
from pathlib import Path

import pytest

from costmodels.workload.presets import model
from planner.launches.check import read_launch
from planner.planning import plan
from planner.question import LaunchQuestion, Question, request_of
from planner.rules.layout_string import layout_string, parse_positions
from planner.rules.nearest import nearest_legal
from planner.rules.split import layers_unchecked

TABLE = Path(__file__).parent / "reference" / "legality_reports.toml"
REPORTS = tomllib.loads(TABLE.read_text(encoding="utf-8"))["report"]
CASES = [(report, case) for report in REPORTS for case in report["cases"]]


def judged(report, case, **more):
    question = LaunchQuestion(
        framework=report["framework"],
        model=report.get("model", ""),
        world=report["world"],
        arguments=(*report["words"], *case["words"]),
        **more,
    )
    return read_launch(question)


@pytest.mark.parametrize(("report", "case"), CASES, ids=lambda value: " ".join(value["words"][-4:]) or "as it is")
def test_a_report_gets_its_verdict(report, case):
    found = judged(report, case)
    broken, named = [violation.rule for violation in found.violations], case.get("broken", [])
    assert broken[:1] == named  # further rules may name the same number
    if "told" in case:
        assert case["told"] in found.violations[0].message
    if "built" in case:
        assert layers_unchecked(found.proposal) == case["built"]
        assert found.built is None
    if found.violations:
        near = nearest_legal(found.proposal, found.framework, version=found.version)
        assert near or "megatron-head-dim" in broken  # which no degree mends
    else:
        assert sum(map(sum, found.built)) == found.proposal.model.layers


def test_query_groups_below_tp_depend_on_the_version():
    sizes = ("--num-layers", "8", "--hidden-size", "2048", "--num-attention-heads", "16", "--num-query-groups", "2")
    batch = ("--max-position-embeddings", "64", "--seq-length", "64", "--micro-batch-size", "1", "--bf16")
    words = [*sizes, *batch, "--group-query-attention", "--tensor-model-parallel-size", "4"]
    report = {"framework": "megatron", "world": 4, "words": words}
    assert judged(report, {"words": []}, version="0.19").legal
    assert not judged(report, {"words": []}, version="0.13").legal


def test_prediction_and_loss_go_to_the_last_chunk():
    text = layout_string(((4,),) * 15 + ((1,),), mtp=1)
    positions = parse_positions(text)
    assert positions[-1] == "tmL"
    assert sum(entry.count("t") for entry in positions) == model("deepseek_v3").layers


def test_the_stage_of_the_head_gets_fewer_layers():
    question = Question(
        model="moonlight_16b",
        cluster="dgx-h800:1",
        global_batch=64,
        seq=4096,
        fixed=("tp=1", "pp=4", "ep=2", "cp=1", "vpp=1", "micro_batch=1", "zero=1"),
        top=1,
    )
    layers = [stage.layers for stage in plan(request_of(question)).layouts[0].layout.stages]
    assert sum(layers) == 27
    assert layers[-1] < min(layers[:-1])

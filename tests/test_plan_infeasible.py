"""Nothing feasible: the numbers are those of a real layout, and the changed request has a layout when it is planned."""

import re
from dataclasses import replace

import pytest
from small_requests import asked, pricing_of, small

from costmodels.memory import usable_memory
from planner import plan
from planner.infeasible.changes import batches, choices, more_nodes, shorter, without_choices
from planner.plan_report import PlanReport
from planner.report.words import layout_text
from planner.search.smallest import smallest_layout


def infeasible(**words) -> PlanReport:
    report = plan(replace(asked(**words), top=1))
    assert report.infeasible is not None
    assert not report.layouts
    return report


H100 = {"model": "llama3_8b", "cluster": "dgx-h100:1"}
CASES = {
    "more nodes": ({"model": "llama3_70b", "cluster": "dgx-a100:1"}, r"^2 nodes \(16 GPUs\)"),
    "a pin that is not legal": ({**H100, "seq": 8192, "fixed": ("tp=5",)}, r"^free tp \(pinned to 5\)"),
    "a pin that does not divide": ({**H100, "global_batch": 7, "fixed": ("dp=8",)}, r"^free dp"),
    "pins too large": ({"model": "llama2_7b", "cluster": "l4-8:1", "fixed": ("tp=1", "pp=1", "zero=1")}, r"^free tp"),
    "recompute": ({**H100, "seq": 131072, "fixed": ("cp=1",), "recompute": "none"}, r"^recompute auto"),
    "all of them": (
        {**H100, "seq": 131072, "fixed": ("tp=2", "pp=1", "cp=1"), "recompute": "none"},
        r"^free all pins, recompute auto",
    ),
    "sequences beyond the positions": ({**H100, "model": "gpt3_6_7b", "seq": 4096}, r"^sequences of 2,048 tokens"),
}


@pytest.mark.deep
@pytest.mark.parametrize(("words", "change"), CASES.values(), ids=CASES)
def test_the_change_makes_it_feasible(words, change):
    why = infeasible(**words).infeasible
    assert re.search(change, why.nearest_change)
    assert why.nearest_change.endswith(" fits")
    assert why.remedy is not None
    assert plan(replace(why.remedy, top=1)).layouts


@pytest.mark.deep
def test_shorter_sequences_are_named_beside_more_nodes():
    request = small("llama3_8b", layers=(6,), gpus=2, memory_gib=24.0, seq=8192)
    why = plan(request).infeasible
    named = re.fullmatch(r"2 nodes \(4 GPUs\): (.+) fits; or sequences of (.+) tokens: (.+) fits", why.nearest_change)
    length = int(named[2].replace(",", ""))
    assert length < 8192
    assert not plan(replace(request, job=replace(request.job, seq=2 * length), top=1)).layouts
    shortened = replace(request, job=replace(request.job, seq=length))
    for changed, layout in ((why.remedy, named[1]), (shortened, named[3])):
        best = layout_text(plan(replace(changed, top=1)).layouts[0].layout)
        assert layout.split() == [degree for degree in best.split() if not degree.endswith("1")]


def test_fewer_nodes_than_named_do_not_do():
    report = infeasible(model="llama3_70b", cluster="p4d:1", global_batch=64)
    nodes = report.infeasible.remedy.cluster.nodes
    assert not plan(replace(more_nodes(report.request, nodes - 1).request, top=1)).layouts


def test_memory_is_that_of_the_smallest_layout():
    request = small("llama3_8b", layers=(6,), gpus=2, memory_gib=21.0)
    report = plan(request)
    need, usable = (float(number) for number in re.findall(r"([\d.]+) GiB", report.infeasible.constraint)[:2])
    near = smallest_layout(request, pricing_of(request))
    assert near.use.total_bytes / 2**30 == pytest.approx(need, abs=0.06)
    assert usable == pytest.approx(usable_memory(pricing_of(request).accelerator) / 2**30, abs=0.06)
    assert need > usable


def test_states_that_exceed_all_memory_are_said():
    constraint = infeasible(model="llama3_70b", cluster="dgx-a100:1").infeasible.constraint
    states, usable = (float(number) for number in re.findall(r"(\d+) GiB", constraint))
    assert states > usable > 0.0


def test_when_nothing_helps_it_is_said():
    request = small("llama3_8b", layers=(6,), gpus=1, memory_gib=1.5)
    report = plan(request)
    assert report.infeasible.nearest_change.startswith("none found: up to 128 times as many nodes")
    assert report.infeasible.remedy is None


def test_changes_come_in_the_order_of_what_they_cost():
    request = asked("llama3_8b", "dgx-h100:1", fixed=("tp=2", "pp=2"), recompute="none", global_batch=12)
    words = [change.words for change in choices(request)]
    assert words == [
        "free tp (pinned to 2)",
        "free pp (pinned to 2)",
        "recompute auto",
        "free all pins, recompute auto",
    ]
    assert without_choices(request).request.fixed == ()
    assert without_choices(asked("llama3_8b", "dgx-h100:1")) is None
    assert [change.request.job.global_batch for change in batches(request)] == [8, 16]
    assert [change.request.job.seq for change in shorter(request)] == [1024, 512]
    assert more_nodes(request, 4).words == "4 nodes (32 GPUs)"

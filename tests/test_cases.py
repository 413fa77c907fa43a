"""Public reports of users: checks that a right planner agrees with, launches, uneven pipelines."""

from dataclasses import replace

import pytest
from public_cases import Outcome, cases, launched, outcomes, priced

from planner.layouts.shape_notes import shape_notes
from planner.planning import plan
from planner.question import Question, request_of

ALL = {case["id"]: case for case in cases()}
LAUNCHES = [(case["id"], launch) for case in ALL.values() for launch in case.get("launch", ())]
JUDGED = [name for name, case in ALL.items() if case.get("check")]
DIFFERS = {
    "b002": ("m4 faster than m8 by 1.05",),
    "a007": ("176_tp4_h64 faster than 176_tp8 by 1.1",),
    "b019": ("D faster than H by 1.3", "D faster than F by 1.3", "D faster than I"),
    "b027": ("fsdp8 faster than f4t8_32 by 1.5",),
    "h021": ("near limit: vpp5",),
    "h072": ("fits: 16x20k",),
    "h084": ("oom or near limit: all",),
    "h114": ("step pcie / bridge = 1.3",),
    "h205": ("oom: host",),
    "h401": ("memory within 15%: 3: tensor", "row faster than bf16"),
    "h402": ("memory within 20%: 3: ep8", "ep4 holds more than ep2"),
    "h403": ("near limit: 1024",),
    "h408": ("oom: none",),
    "h409": ("memory within 10%: 2: liger", "step within 25%: 2: liger"),
    "h411": ("memory within 15%: 2: liger",),
    "h417": ("step within 25%: 1: fsdp",),
    "h418": ("step within 15%: 2: b300",),
    "h419": ("ddp faster than fsdp by 1.1", "zero2 faster than zero3 by 1.2"),
    "h421": ("step within 25%: 8: ",),
    "h504": ("memory within 15%: 2: host4x8",),
    "h507": ("memory within 10%: 4: eight2",),
    "h521": ("step within 25%: 2",),
    "h522": ("ep16_4 faster than ep32_4 by 1.15", "step within 25%: 2"),
    "h523": ("ep32_4 faster than ep32_1 by 2.0", "step within 30%: 4"),
    "h524": ("step within 30%: 4",),
    "h525": ("step within 30%: 4",),
    "h526": ("memory within 15%: 2",),
    "h531": ("oom or near limit: none",),
    "h532": ("step ethernet / one = 8.0",),
    "h534": ("step within 30%: 1",),
}
"""Checks that may differ, as docs/cases.md tells; a case that comes to agree is taken out."""


def differing(found: list[Outcome]) -> list[str]:
    return [f"{one.asks}: {one.told}" for one in found if not one.agrees]


@pytest.mark.parametrize("name", JUDGED)
def test_what_reports_found(name):
    case = ALL[name]
    found = outcomes(case, priced(case))
    wrong = [text for text in differing(found) if not text.startswith(DIFFERS.get(name, ("nothing",)))]
    assert not wrong


@pytest.mark.parametrize(("name", "launch"), LAUNCHES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(LAUNCHES)])
def test_launches_of_reports(name, launch):
    assert launched(launch).agrees, (name, launched(launch).told)


def test_odd_head_sizes_are_remarked():
    odd = request_of(Question(model="bloom_176b", cluster="dgx-a100:1", global_batch=8, seq=2048)).model
    assert shape_notes(odd) == ()
    run = odd.runs[0]
    mixer = replace(run.kind.mixer, qk_dim=108)
    changed = replace(odd, runs=(replace(run, kind=replace(run.kind, mixer=mixer)),))
    assert "head size 108" in shape_notes(changed)[0]


def test_every_kind_of_illegal_combination_and_uneven_pipeline_is_answered():
    for case in ALL.values():
        if case["kind"] in "cd":
            assert case.get("check") or case.get("launch") or case.get("answer"), case["id"]


def best(model: str, cluster: str, batch: int, seq: int, *fixed: str, recompute: str = "auto"):
    question = Question(
        model=model, cluster=cluster, global_batch=batch, seq=seq, fixed=fixed, recompute=recompute, top=1
    )
    return plan(request_of(question)).layouts[0]


def test_a_large_vocabulary_takes_layers_from_the_last_stage():
    pins = ("tp=4", "pp=12", "vpp=1", "micro_batch=2")
    found = best("bloom_176b", "dgx-a100:48", 2048, 2048, *pins, recompute="full")
    layers = [stage.layers for stage in found.layout.stages]
    assert sum(layers) == 70
    assert layers[-1] < max(layers) == 6


def test_twenty_seven_layers_on_four_stages_count_the_head():
    pins = ("tp=1", "pp=4", "vpp=1", "ep=2", "micro_batch=1")
    found = best("moonlight_16b", "dgx-h800:1", 64, 8192, *pins, recompute="none")
    layers = [stage.layers for stage in found.layout.stages]
    assert sum(layers) == 27
    assert layers[-1] < 7

"""Several ways to run a job, searched one by one and ranked together: words, rules, proof, files."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from quick_and_deep import quick_and_deep
from small_requests import asked, fits, grids, layouts_of, legal, pricing_of, small
from typer.testing import CliRunner

from costmodels.layout import Layout
from costmodels.pipeline.schedules import PipelineSpec, Schedule
from costmodels.price import price_layout
from costmodels.results import LayoutCost, Verdict
from hardware.errors import InputError
from planner import plan, planning
from planner.advice.neighbours import neighbours
from planner.cli import app
from planner.layouts.explicit import ExplicitLayout
from planner.layouts.explicit import layout_of as explicit_layout
from planner.layouts.recompute_options import recompute_options
from planner.plan_report import PlanReport
from planner.question import question_of, request_of
from planner.report.json_reader import report_from_json
from planner.report.json_report import report_to_json
from planner.request import Framework, PlanRequest
from planner.sweeps.sweep import row_of
from planner.sweeps.sweep_file import read_sweep
from planner.variants import combinations, offers

RUN = CliRunner()
SAME = 1.0 + 1e-9
ALL_SCHEDULES = (
    *("1f1b+interleaved", "gpipe", "loopedbfs", "zb-h1", "zb-2p"),
    *("interleavedzerobubble", "zbv", "dualpipev"),
)


def made(*tries: str, framework: str = "none", vpp: int | None = None) -> list[dict[str, str]]:
    return [dict(choices) for choices in combinations(tries, Framework(framework), vpp)]


def test_all_stands_for_what_a_framework_offers_and_interleaving_is_one_search_with_1f1b():
    assert [choices["schedule"] for choices in made("schedule=all")] == list(ALL_SCHEDULES)
    assert made("schedule=all", framework="megatron") == [{"schedule": "1f1b+interleaved"}]
    assert made("schedule=all", framework="torchtitan") == [
        {"schedule": "1f1b+interleaved"},
        {"schedule": "gpipe"},
        {"schedule": "loopedbfs"},
        {"schedule": "interleavedzerobubble", "compiled": "off"},
        {"schedule": "zbv", "compiled": "off"},
        {"schedule": "dualpipev", "compiled": "off"},
    ]
    assert [choices["cp_comm"] for choices in made("cp-comm=ALL", framework="nemo")] == ["p2p", "a2a", "allgather"]


def test_every_combination_is_tried_but_those_that_a_value_rules_out():
    tried = made("schedule=1f1b,zbv", "compiled=on,off", framework="torchtitan")
    assert tried == [
        {"schedule": "1f1b", "compiled": "on"},
        {"schedule": "1f1b", "compiled": "off"},
        {"schedule": "zbv", "compiled": "off"},
    ]
    several = ("interleaved", "loopedbfs", "interleavedzerobubble", "zbv", "dualpipev")
    assert made("schedule=all", vpp=2) == [{"schedule": schedule} for schedule in several]
    assert made("schedule=1f1b,zb-h1", vpp=1) == [{"schedule": "1f1b"}, {"schedule": "zb-h1"}]


@pytest.mark.parametrize(
    ("tries", "framework", "vpp", "words"),
    [
        (("speed=9",), "none", None, r"NAME=V1,V2 with NAME of schedule, .*cp_comm"),
        (("schedule=",), "none", None, "not understood"),
        (("schedule=zbv",), "megatron", None, "schedule zbv is not of megatron; allowed: 1f1b, interleaved or all"),
        (("schedule=zb-h1",), "torchtitan", None, "allowed: 1f1b, interleaved, gpipe, loopedbfs, interleavedzero"),
        (("cp_comm=a2a+p2p",), "megatron", None, r"no price here; allowed: p2p, a2a, allgather"),
        (("cp_comm=a2a",), "torchtitan", None, "torchtitan has no option for cp_comm"),
        (("schedule=zbv", "compiled=on"), "torchtitan", None, "schedule zbv with compiled=off"),
        (("schedule=zbv,1f1b",), "none", 1, "zbv has another number of virtual chunks"),
        (("tp_overlap=all",), "megatron", None, "by name"),
        (("cp_comm=p2p", "cp_comm=a2a"), "megatron", None, "twice"),
        (("reduce_bytes=1,2,3,4", "gradient_bytes=1,2,3,4", "capacity_factor=1,2,3"), "none", None, "up to 32"),
    ],
)
def test_what_cannot_be_tried_is_refused_with_what_can(tries, framework, vpp, words):
    with pytest.raises(InputError, match=words):
        made(*tries, framework=framework, vpp=vpp)


def test_a_switch_is_checked_and_stated_once():
    with pytest.raises(InputError, match=r"--try 'tp_overlap=maybe'.*on, off"):
        asked(tries=("tp_overlap=maybe",))
    with pytest.raises(InputError, match="--software states cp_comm and --try varies it"):
        asked(tries=("cp_comm=p2p,a2a",), software=("cp_comm=a2a",))
    with pytest.raises(InputError, match="--recompute full with zbv in torchtitan"):
        asked(tries=("schedule=zbv",), framework="torchtitan", recompute="full")


def test_offers_name_schedules_that_are_simulated_and_exchanges_that_are_priced():
    for (name, _), offer in offers().items():
        if name == "schedule":
            for value in offer.values:
                vpp = Schedule(value).fixed_vpp or 2
                PipelineSpec(schedule=Schedule(value), pp=2, vpp=vpp, num_microbatches=4)
        assert not set(offer.values) & set(offer.unpriced)
        assert set(offer.needs) | set(offer.notes) | set(offer.recompute) <= set(offer.values)


SPACES = {
    "schedules": lambda: small(
        layers=(4,), gpus=4, memory_gib=12.0, global_batch=4, seq=4096, framework="none", recompute="none", top=6,
        cluster="rtx-4090-8:1", tries=("schedule=all",),
    ),
    "schedules and a switch": lambda: small(
        "llama3_8b", layers=(4,), gpus=4, memory_gib=20.0, global_batch=8, seq=2048, framework="torchtitan",
        recompute="none", cluster="rtx-4090-8:1", tries=("schedule=all", "grad_overlap=on,off"),
    ),
    "exchanges of context parallelism": lambda: small(
        layers=(3,), gpus=4, memory_gib=12.0, global_batch=2, seq=16384, recompute="none", tries=("cp_comm=all",)
    ),
}  # fmt: skip


def every_layout(request: PlanRequest) -> Iterator[tuple[Layout, LayoutCost]]:
    """Every layout of a request without variants that is legal and fits, with its price."""
    options = recompute_options(request.recompute, request.framework, pricing_of(request))
    whole = request.cluster.gpus
    for gpus in range(whole, (whole + 1) // 2 - 1, -1):
        for strategy, pp, size, number in grids(request, gpus):
            if pp == 1 and request.always_piped:
                continue
            for layout in layouts_of(request, strategy, (pp, size, number), options):
                cost = price_layout([pricing_of(request)], layout) if legal(request, layout) else None
                if cost is not None and fits(cost):
                    yield layout, cost


def is_uniform(layout: Layout) -> bool:
    """Whether all layers use one strategy, as those that are enumerated; without a framework 1F1B may mix them."""
    return len({run.strategy for stage in layout.stages for run in stage.strategies}) == 1


@cache
def answered(name: str) -> PlanReport:
    return plan(SPACES[name]())


@cache
def exhaustive(name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Least step time over every layout of each variant of a space."""
    request = SPACES[name]()
    return {
        variant.choices: min((cost.step.total_s for _, cost in every_layout(request.of(variant))), default=float("inf"))
        for variant in request.variants
    }


@pytest.mark.parametrize("name", quick_and_deep(["exchanges of context parallelism"], SPACES))
def test_the_best_of_all_variants_is_the_best_there_is_and_the_bound_is_below_all_of_them(name):
    report, best_s = answered(name), exhaustive(name)
    assert sum(value < float("inf") for value in best_s.values()) > 2
    uniform = [ranked for ranked in report.layouts if is_uniform(ranked.layout)]
    assert uniform[0].cost.step.total_s == pytest.approx(min(best_s.values()), rel=1e-9)
    assert report.search.lower_bound_s <= min(best_s.values()) * SAME


@pytest.mark.deep
@pytest.mark.parametrize("name", SPACES)
def test_the_ranking_is_that_of_searches_one_by_one(name):
    """What one variant has found must not hide what another has: each is searched alone, without a limit."""
    request, report = SPACES[name](), answered(name)
    alone = [plan(request.of(variant)) for variant in request.variants]
    found = {(ranked.layout, ranked.cost): ranked.cost.step.total_s for one in alone for ranked in one.layouts}
    expected = sorted(found.values())[: request.top]
    assert [ranked.cost.step.total_s for ranked in report.layouts] == pytest.approx(expected, rel=1e-9)
    assert report.search.lower_bound_s <= min(one.search.lower_bound_s for one in alone if one.layouts) * SAME
    assert report.search.enumerated <= sum(one.search.enumerated for one in alone)


@pytest.mark.parametrize("name", quick_and_deep(["schedules", "exchanges of context parallelism"], SPACES))
def test_every_layout_is_priced_with_its_own_choice_and_says_it(name):
    report = answered(name)
    assert len({(ranked.layout, ranked.cost) for ranked in report.layouts}) == len(report.layouts)
    for ranked in report.layouts:
        own = report.request_of(ranked)
        assert not own.variants
        assert ranked.cost == price_layout([pricing_of(own)], ranked.layout)
        told = dict(ranked.choices)
        assert told.get("schedule", ranked.layout.schedule) == ranked.layout.schedule
        assert told.get("cp_comm", own.job.software.cp_comm) == own.job.software.cp_comm


def test_the_same_request_gives_the_same_plan():
    name = "exchanges of context parallelism"
    again = plan(SPACES[name]())
    assert replace(again.search, wall_s=0.0) == replace(answered(name).search, wall_s=0.0)
    assert again.layouts == answered(name).layouts


def test_a_layout_that_a_choice_changes_nothing_of_is_named_once_with_the_first():
    report = answered("exchanges of context parallelism")
    whole = [ranked for ranked in report.layouts if ranked.layout.first.cp == 1]
    split = [ranked for ranked in report.layouts if ranked.layout.first.cp > 1]
    assert whole
    assert {dict(ranked.choices)["cp_comm"] for ranked in whole} == {"p2p"}
    assert len({dict(ranked.choices)["cp_comm"] for ranked in split}) > 1


@pytest.mark.deep
def test_a_limit_that_others_set_leaves_grids_out_by_their_bound_alone():
    """With few layouts wanted later variants price less than alone, and the ranking is the same."""
    request = SPACES["schedules and a switch"]()
    few = plan(replace(request, top=1))
    assert few.layouts[0].layout == answered("schedules and a switch").layouts[0].layout
    assert few.search.solved < sum(plan(replace(request, top=1).of(one)).search.solved for one in request.variants)


@pytest.mark.parametrize("values", ["2,8", "8,2"])
def test_a_layout_that_fits_with_risk_is_left_out_where_any_fits_safely(values):
    request = small(
        layers=(4,), gpus=4, memory_gib=5.4, seq=8192, recompute="full", top=5, tries=(f"gradient_bytes={values}",)
    )
    verdicts = [{r.cost.heaviest.verdict for r in plan(request.of(one)).layouts} for one in request.variants]
    assert {Verdict.RISKY} in verdicts
    report = plan(request)
    assert {ranked.cost.heaviest.verdict for ranked in report.layouts} == {Verdict.FITS}
    assert {dict(ranked.choices)["gradient_bytes"] for ranked in report.layouts} == {"2"}


@pytest.mark.deep
def test_where_nothing_is_feasible_the_first_variant_says_why_and_none_is_searched_twice(monkeypatch):
    request = small("llama3_8b", layers=(8,), gpus=1, memory_gib=4.0, tries=("schedule=all",), framework="none")
    each = [plan(request.of(variant)) for variant in request.variants]
    searched, inner = [], planning._searched
    monkeypatch.setattr(planning, "_searched", lambda *words: searched.append(words[0].schedule) or inner(*words))
    report = plan(request)
    assert searched == [variant.schedule for variant in request.variants]
    assert report.layouts == ()
    assert report.request == request
    assert report.infeasible is not None
    assert report.infeasible == each[0].infeasible
    assert report.search.enumerated == sum(one.search.enumerated for one in each)  # as what is refused is
    assert report.search.solved == sum(one.search.solved for one in each)
    assert sum(dict(report.rejected).values()) == sum(sum(dict(one.rejected).values()) for one in each)


@pytest.mark.deep
@pytest.mark.parametrize(("words", "framework"), [("schedule=all", "none"), ("cp_comm=all", "megatron")])
def test_a_saved_report_comes_back_with_its_choices(words, framework):
    request = asked(tries=(words,), framework=framework, global_batch=8, seq=8192)
    report = plan(request)
    data = report_to_json(report)
    assert data["request"]["tries"] == [words]
    assert data["layouts"][0]["choices"] == dict(report.layouts[0].choices)
    back = report_from_json(data, "plan.json", Path())
    assert [ranked.choices for ranked in back.layouts] == [ranked.choices for ranked in report.layouts]
    assert back.request == request
    for ranked in report.layouts:
        own = report.request_of(ranked)
        assert asked_again(own) == own
    data["layouts"][0]["choices"] = dict.fromkeys(dict(report.layouts[0].choices), "carrier pigeon")
    with pytest.raises(InputError, match="choices"):
        report_from_json(data, "plan.json", Path())


def asked_again(request: PlanRequest) -> PlanRequest:
    """The request of a variant from its own words."""
    found = request_of(question_of(request))
    (variant,) = found.variants
    return found.of(variant)


def test_the_command_line_ranks_exports_and_explains_each_with_its_own_choice(tmp_path):
    file = str(tmp_path / "plan.json")
    pins = ("--fix", "cp=2", "--fix", "tp=2", "--fix", "pp=1", "--micro-batch", "1", "--recompute", "none")
    asked_for = ("search", "llama32_1b", "dgx-h100:1", "--global-batch", "8", "--seq", "16384", *pins)
    text = RUN.invoke(app, [*asked_for, "--try", "cp_comm=p2p,allgather", "--json", file], env={"COLUMNS": "140"})
    assert text.exit_code == 0, text.output
    layouts = json.loads(Path(file).read_text())["layouts"]
    told = [layout["choices"]["cp_comm"] for layout in layouts]
    assert set(told) == {"p2p", "allgather"}
    table = text.stdout.split("Best:")[0]
    assert "tried" in table
    for rank, choice in enumerate(told, start=1):
        written = RUN.invoke(app, ["export", file, "--rank", str(rank), "--to", "megatron"])
        word = choice.replace("allgather", "all_gather")  # Transformer Engine's name
        assert f"--cp-comm-type {word}" in " ".join(written.stdout.split())
        assert choice in next(line for line in table.splitlines() if line.split()[:1] == [str(rank)])
    rank = told.index("allgather") + 1
    shown = RUN.invoke(app, ["explain", file, "--rank", str(rank)])
    assert "allgather" in shown.stdout
    assert "have changed since" not in shown.stdout
    alone = RUN.invoke(app, [*asked_for, "--json", "-"])
    assert "choices" not in alone.stdout
    assert "tries" not in json.loads(alone.stdout)["request"]
    refused = RUN.invoke(app, ["search", "dgx-h100:1", "--from", file, "--try", "cp_comm=all"])
    assert refused.exit_code == 2


@pytest.mark.parametrize("framework", ["megatron", "none"])
def test_heads_divide_by_the_ranks_that_trade_tokens_for_them(framework):
    """24 heads on 16 GPUs: a ring of 16 is a layout, a trade of heads among 16 is none."""
    words = {"framework": framework, "global_batch": 1, "seq": 16384, "fixed": ("tp=1", "cp=16")}
    reports = [plan(asked("llama32_3b", "dgx-h100:2", tries=(f"cp_comm={form}",), **words)) for form in ("p2p", "a2a")]
    assert reports[0].layouts
    assert reports[1].layouts == ()
    assert "24 heads over tp 1 leave 24, which do not divide by cp 16" in " ".join(dict(reports[1].rejected))


def test_neighbours_of_a_v_are_vs():
    request = asked("llama3_8b", "dgx-h100:1", global_batch=16, framework="none")
    layout = explicit_layout(request, ExplicitLayout(tp=2, pp=2, dp=2, schedule="zbv"))
    cost = price_layout([pricing_of(request)], layout)
    shapes = [near.layout for near in neighbours(request, layout, cost) if near.layout.pp > 1]
    assert {near.schedule for near in shapes if near.vpp == 2} == {Schedule.ZBV}
    assert {near.pp for near in shapes} > {2}


def test_a_sweep_says_what_was_tried_and_which_was_fastest(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        "[[grid]]\nmodels = ['llama32_1b']\nclusters = ['dgx-h100:1']\nglobal_batches = [8]\nsequences = [16384]\n"
        "fixed = ['cp=2', 'tp=2', 'pp=1', 'micro_batch=1']\ntries = ['cp_comm=all', 'tp_overlap=on,off']\n"
    )
    (question,) = read_sweep(file).questions
    data = report_to_json(plan(request_of(question)))
    row = row_of(question, data, "point.json")
    assert row["tries"] == "cp_comm=all; tp_overlap=on,off"
    assert row["choices"] == "; ".join(f"{name}={value}" for name, value in data["layouts"][0]["choices"].items())
    assert "tp_overlap=on" in row["choices"]

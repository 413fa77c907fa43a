"""Whole plans: golden ones as orders and structure, odd machines, rankings, several islands of equal machines."""

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from quick_and_deep import quick_and_deep
from small_requests import asked, fits, legal, sized, small

from costmodels.pricing import Pricing
from hardware.errors import InputError
from planner import Question, plan, request_of
from planner.plan_report import PlanReport, RankedLayout
from planner.planning import estimate, why_slower
from planner.request import Framework, Objective, PlanRequest
from planner.search.uniform import UniformSearch

GOLDEN = sorted((Path(__file__).parent / "fixtures" / "plans").glob("*.toml"))
LARGE = ("experts-inside-the-domain", "large-model-many-nodes", "slow-links")
"""Golden plans whose searches take seconds."""
QUICK = [path for path in GOLDEN if path.stem not in LARGE]
TRAITS = {
    "tp": lambda layout: layout.first.tp,
    "cp": lambda layout: layout.first.cp,
    "dp": lambda layout: layout.first.dp,
    "ep": lambda layout: layout.first.ep,
    "etp": lambda layout: layout.first.etp,
    "pp": lambda layout: layout.pp,
    "vpp": lambda layout: layout.vpp,
    "gpus": lambda layout: layout.gpus,
    "sequence_split": lambda layout: layout.first.tp * layout.first.cp,
}


@cache
def golden(path: Path) -> dict[str, object]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def asked_of(path: Path, more: tuple[str, ...] = ()) -> PlanRequest:
    """A golden request with further items pinned; ``recompute=...`` is an option of its own."""
    words = dict(golden(path)["request"])
    recompute = [item.partition("=")[2] for item in more if item.startswith("recompute=")]
    pinned = tuple(item for item in more if not item.startswith("recompute="))
    fixed = (*words.pop("fixed", ()), *pinned)
    asked_for = {**words, "recompute": recompute[0]} if recompute else words
    return request_of(Question(**asked_for, fixed=fixed, top=1))


def fastest_s(request: PlanRequest) -> float:
    """Step time of the fastest grid before its split is refined."""
    (island,) = request.cluster.islands
    tally = UniformSearch(request, Pricing(model=request.model, job=request.job, island=island)).run()
    return min(candidate.total_s for candidate in tally.best.values())


def best(report: PlanReport) -> RankedLayout:
    assert report.layouts, report.infeasible
    return report.layouts[0]


@pytest.mark.parametrize("path", quick_and_deep(QUICK, GOLDEN), ids=lambda path: path.stem)
def test_golden_plans(path):
    expected = golden(path)
    assert expected["title"]
    assert expected["why"]
    assert "best" in expected or "order" in expected
    if "best" in expected:
        found = best(plan(asked_of(path)))
        for name, allowed in expected["best"].items():
            assert TRAITS[name](found.layout) in allowed, found.layout
        assert fits(found.cost)
    for order in expected.get("order", ()):
        faster_s, slower_s = (fastest_s(asked_of(path, tuple(order[side]))) for side in ("faster", "slower"))
        assert slower_s >= order["by"] * faster_s, order


def test_more_memory_needs_less_tensor_parallelism():
    """Wider memory lets tp shrink, and never makes the best slower."""
    pins = ("micro_batch=1", "cp=1")
    narrow, wide = (
        best(
            plan(replace(asked("codellama_34b", name, global_batch=32, seq=8192, recompute="none", fixed=pins), top=1))
        )
        for name in ("dgx-h100:2", "dgx-h200:2")
    )
    assert wide.layout.first.tp * wide.layout.first.cp * wide.layout.pp <= (
        narrow.layout.first.tp * narrow.layout.first.cp * narrow.layout.pp
    )
    assert wide.cost.step.total_s <= narrow.cost.step.total_s * 1.001


@pytest.mark.parametrize("gpus", quick_and_deep([3, 7], [5, 6, 12]))
def test_nodes_of_odd_numbers_of_gpus_are_planned(gpus):
    request = asked("llama32_1b", "dgx-a100:1", global_batch=2 * gpus, seq=4096)
    report = plan(replace(request, cluster=sized(request.cluster, gpus), top=3))
    assert report.layouts
    for ranked in report.layouts:
        assert gpus / 2 <= ranked.layout.gpus <= gpus
        assert legal(report.request, ranked.layout)
        assert fits(ranked.cost)


@pytest.mark.deep
@pytest.mark.parametrize(("nodes", "batch"), [(3, 48), (7, 112), (20, 320), (20, 333)])
def test_odd_numbers_of_nodes_are_planned(nodes, batch):
    report = plan(replace(asked("llama3_8b", f"dgx-a100:{nodes}", global_batch=batch, seq=4096), top=2))
    assert report.layouts
    for ranked in report.layouts:
        assert 4 * nodes <= ranked.layout.gpus <= 8 * nodes
        assert batch % (ranked.layout.first.dp * ranked.layout.micro_batch) == 0


def test_idle_gpus_are_priced_against_used_ones():
    """A batch that seven GPUs do not divide is no reason to use fewer when another grid divides it."""
    request = asked("llama32_1b", "dgx-a100:1", global_batch=8, seq=4096)
    seven = plan(replace(request, cluster=sized(request.cluster, 7), top=1)).layouts[0]
    four = plan(replace(request, cluster=sized(request.cluster, 4), top=1)).layouts[0]
    assert seven.cost.step.total_s <= four.cost.step.total_s * (1.0 + 1e-9)


@pytest.mark.parametrize("framework", list(Framework))
def test_every_framework_gets_what_it_can_launch(framework):
    report = plan(
        replace(small("llama3_8b", layers=(4,), gpus=4, memory_gib=30.0, global_batch=16), framework=framework)
    )
    assert report.layouts
    for ranked in report.layouts:
        assert legal(report.request, ranked.layout)
    if framework in (Framework.NONE, Framework.GALVATRON):
        assert report.unconstrained_s == 0.0
    else:
        assert 0.0 < report.unconstrained_s <= best(report).cost.step.total_s


@pytest.mark.deep
@pytest.mark.parametrize("framework", ["megatron", "bridge", "nemo"])
def test_sharded_gradients_beside_whole_weights_are_searched(framework):
    """One micro-batch a step: ZeRO-2 scatters gradients once as ZeRO-1 does, and gathers no weights as ZeRO-3 does."""
    words = {"model": "llama3_8b", "cluster": "dgx-h100:8", "global_batch": 64, "seq": 8192, "framework": framework}
    pins = ("tp=1", "pp=1", "cp=1", "micro_batch=1")
    free = best(plan(request_of(Question(**words, fixed=pins, top=1))))
    each = [best(plan(request_of(Question(**words, fixed=(*pins, f"zero={zero}"), top=1)))) for zero in (1, 2, 3)]
    assert {one.layout.first.zero for one in each} == {1, 2, 3}
    assert free.cost.step.total_s == min(one.cost.step.total_s for one in each)
    assert free.layout.first.zero == 2 or each[1].cost.step.total_s > free.cost.step.total_s


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.ENERGY])
def test_layouts_are_ranked_by_what_was_asked(objective):
    request = replace(small("llama3_8b", layers=(8,), gpus=4, global_batch=16), objective=objective)
    report = plan(request)
    energy = [ranked.cost.power.energy_j_per_token for ranked in report.layouts]
    times = [ranked.cost.step.total_s for ranked in report.layouts]
    assert (energy if objective is Objective.ENERGY else times) == sorted(
        energy if objective is Objective.ENERGY else times
    )
    assert objective is Objective.TIME or not report.search.proven_optimal or times[0] == min(times)


def test_cost_needs_a_price():
    with pytest.raises(InputError, match="states no price"):
        plan(replace(small(), objective=Objective.COST))


@cache
def few_layers() -> PlanReport:
    return plan(small("llama3_8b", layers=(8,), gpus=8, global_batch=16))


def test_top_is_how_many_are_shown():
    many = few_layers()
    few = plan(replace(many.request, top=3))
    assert len(few.layouts) == 3
    assert len(many.layouts) > 3
    assert few.layouts == many.layouts[:3]


def test_what_a_layout_loses_is_said_in_one_line():
    report = few_layers()
    first, second, *_ = report.layouts
    assert first.why == ""
    assert second.why == why_slower(first.cost, second.cost)
    assert second.why.startswith("+")
    assert "\n" not in second.why


def test_an_estimate_of_a_ranked_layout_is_its_price():
    report = few_layers()
    again = estimate(report.request, report.layouts[0].layout)
    assert again.cost == report.layouts[0].cost
    assert again.evidence == report.layouts[0].evidence

"""The page and the trace of a report."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import plan_samples as samples
import pytest

from costmodels.layout import Strategy
from costmodels.pipeline.schedules import Schedule
from planner.planning import estimate
from planner.report import trace
from planner.report.html import html_text
from planner.request import Objective

VOID = {"meta", "br"}


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.words: list[str] = []

    def handle_starttag(self, tag, _):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page(text: str) -> Page:
    parsed = Page()
    parsed.feed(text)
    parsed.close()
    assert parsed.open == []
    return parsed


def test_the_table_shows_what_layouts_are_ranked_by():
    report = samples.report()
    words = page(html_text(replace(report, request=replace(report.request, objective=Objective.ENERGY)))).words
    assert "J/tok" in words
    assert f"{report.layouts[0].cost.power.energy_j_per_token:#.4g}" in words
    assert "J/tok" not in page(html_text(report)).words


def test_a_page_is_well_formed_and_holds_the_answer():
    parsed = page(html_text(samples.report()))
    words = " ".join(parsed.words)
    for expected in ("TP4 PP8 DP2", "8.750 s", "61.2 fits", "21,21,19,19", "+2.9 %: bubble", "12,345 grids"):
        assert expected in words
    assert parsed.seen["tr"] > 3 + 8


def test_a_page_needs_nothing_from_elsewhere():
    text = html_text(samples.report())
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|https?:", text)


def test_what_users_name_is_escaped():
    report = samples.report()
    evil = "<script>alert('x')</script>&\""
    model = replace(report.request.model, name=evil)
    layouts = (replace(report.layouts[0], why=evil), *report.layouts[1:])
    text = html_text(
        replace(
            report, request=replace(report.request, model=model), layouts=layouts, rejected=((evil, 1),), notes=(evil,)
        )
    )
    assert "<script" not in text
    assert page(text).seen.get("script") is None


def test_a_page_of_an_infeasible_report_says_why():
    words = " ".join(page(html_text(samples.infeasible_report())).words)
    assert "91.3 GiB on the heaviest GPU" in words
    assert "16 GPUs instead of 8" in words


def events(text: str) -> list[dict]:
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("split", [((20,),) * 4, ((10, 10),) * 4])
def test_a_trace_runs_every_operation_once_and_none_beside_another(split):
    request = samples.request()
    ranked = estimate(request, samples.layout(Strategy(tp=8, dp=2, zero=1, sequence_parallel=True), split))
    found = events(trace.trace_text(ranked, request))
    assert len(found) == 4 * len(split[0]) * 64 * 2
    for stage in range(4):
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in found if event["tid"] == stage)
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(spans))
    end_s = max(event["ts"] + event["dur"] for event in found) / 1e6
    step = ranked.cost.step
    pipeline_s = step.total_s - step.sync_s - dict(step.details)["optimizer"]
    assert 0.9 * pipeline_s < end_s <= 1.001 * pipeline_s


def test_a_long_trace_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(trace, "MOST_OPERATIONS", 100)
    request = samples.request()
    ranked = estimate(request, samples.layout(Strategy(tp=8, dp=2, zero=1, sequence_parallel=True), ((10, 10),) * 4))
    text = trace.trace_text(ranked, request)
    assert json.loads(text)["otherData"]["micro-batches shown"] == 4
    assert len(events(text)) == 4 * 2 * 4 * 2


def test_a_trace_of_a_split_backward_has_three_kinds():
    request = samples.request()
    strategy = Strategy(tp=8, dp=2, zero=1, sequence_parallel=True)
    layout = replace(samples.layout(strategy, ((20,),) * 4), schedule=Schedule.ZB_H1)
    found = events(trace.trace_text(samples.ranked(layout, 9.0, 60.0), request))
    assert {event["cat"] for event in found} == {"forward", "backward", "weight gradient"}

"""A report as one page that needs nothing but a browser: no scripts, no fonts, no links to elsewhere."""

from collections.abc import Sequence
from html import escape
from typing import Final

from costmodels.results import StepTime
from hardware.nouns import count
from planner.advice.explain import clock_share, waterfall
from planner.plan_report import PlanReport, RankedLayout
from planner.report.layout_text import evidence_rows, memory_words, power_rows
from planner.report.ranking import objective_column
from planner.report.search_text import counts_words, proof_words
from planner.report.version import version
from planner.report.words import (
    digits,
    gib,
    layers_text,
    layout_text,
    memory_text,
    percent,
    ranked_text,
    recompute_text,
    seconds,
    stage_layers_text,
)
from planner.request import PlanRequest

PARTS: Final = (
    ("compute_s", "compute"),
    ("exposed_comm_s", "exchange that nothing hides"),
    ("bubble_s", "pipeline bubble"),
    ("sync_s", "slowest rank"),
    ("io_s", "checkpoints"),
)
COLOURS: Final = 11
MOST_STAGES: Final = 128  # stages that get a bar of their own

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c2024;--paper:#fff;--line:#d5d9de;--soft:#f3f5f7;
--ok:#2f7d4f;--risky:#a66a00;--oom:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--paper:#14171a;--line:#363c43;--soft:#1d2226}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
body{max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
td.n,th.n{text-align:right}tr.best td{font-weight:600;background:var(--soft)}
.why{white-space:normal;min-width:18rem}.fits{color:var(--ok)}.risky{color:var(--risky)}.oom{color:var(--oom)}
.bar{display:flex;height:1.1rem;min-width:14rem;background:var(--soft)}.bar span{display:block;height:100%}
.p0{background:#3b6fb6}.p1{background:#d9822b}.p2{background:#9aa4b1}.p3{background:#8e5bb5}.p4{background:#5b8c5a}
.p5{background:#c0504d}.p6{background:#4aa3a2}.p7{background:#b9a23c}.p8{background:#6d5f4b}.p9{background:#d48fb0}
.p10{background:#c9ced6}
.key span{display:inline-block;width:.8rem;height:.8rem;margin:0 .3rem 0 1rem;vertical-align:baseline}
footer{margin:2rem 0;color:#7a828a;font-size:.9rem}
"""


def html_text(report: PlanReport) -> str:
    """Return a report as a page.

    Parameters
    ----------
    report : PlanReport
        With layouts, or with the reason why there are none.

    Returns
    -------
    str
        HTML; everything that a user or a file named is escaped.
    """
    request = report.request
    title = f"{request.model.name} on {request.cluster.name}"
    asked = (
        f"{count(request.job.global_batch, 'sequence')} of {count(request.job.seq, 'token')}, "
        f"{request.job.precision.name}, for {request.program}, ranked by {request.objective}"
    )
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(asked)}</p>"]
    if report.layouts:
        best = report.layouts[0]
        body += [_ranking(report), _best(best, report.request_of(best)), _stages(best)]
    elif report.infeasible is not None:
        body += [
            "<h2>Nothing feasible</h2>",
            f"<p>{escape(report.infeasible.constraint)}</p>",
            f"<p>Nearest change: {escape(report.infeasible.nearest_change)}</p>",
        ]
    body += [_proof(report), f"<footer>planner {escape(version())}</footer>"]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
    )
    return f"{head}<body>\n" + "\n".join(body) + "\n</body></html>\n"


def _ranking(report: PlanReport) -> str:
    slowest = max(ranked.cost.step.total_s for ranked in report.layouts)
    ranked_by = objective_column(report.request)
    titles = (
        "#",
        "layout",
        "mb",
        "vpp",
        "recompute",
        *([ranked_by[0]] if ranked_by else []),
        "step",
        "tokens/s/GPU",
        "MFU",
        "GiB",
        "layers",
        "time",
        "loses by",
    )
    numbers = {"#", "mb", "vpp", "step", "tokens/s/GPU", "MFU", *(ranked_by or ())[:1]}
    head = "".join(f'<th class="n">{name}</th>' if name in numbers else f"<th>{name}</th>" for name in titles)
    rows = "".join(
        _row(rank, ranked, slowest, report.request_of(ranked)) for rank, ranked in enumerate(report.layouts, start=1)
    )
    return (
        f'<h2>Ranking</h2><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        + _key([name for _, name in PARTS])
    )


def _key(names: Sequence[str]) -> str:
    return '<p class="key">' + "".join(
        f'<span class="p{number % COLOURS}"></span>{escape(name)}' for number, name in enumerate(names)
    ) + "</p>"  # fmt: skip


def _row(rank: int, ranked: RankedLayout, slowest_s: float, request: PlanRequest) -> str:
    layout, cost = ranked.layout, ranked.cost
    ranked_by = objective_column(request)
    use = cost.heaviest
    cells = (
        _number(str(rank)),
        _plain(ranked_text(ranked)),
        _number(str(layout.micro_batch)),
        _number(str(layout.vpp)),
        _plain(recompute_text(layout)),
        *([_number(ranked_by[1](ranked))] if ranked_by else []),
        _number(seconds(cost.step.total_s)),
        _number(digits(cost.tokens_per_s / layout.gpus)),
        _number(percent(cost.mfu)),
        f'<td class="{use.verdict}">{escape(memory_text(use))}</td>',
        _plain(stage_layers_text(layout)),
        f"<td>{_bar(cost.step, slowest_s)}</td>",
        f'<td class="why">{escape(ranked.why)}</td>',
    )
    mark = ' class="best"' if rank == 1 else ""
    return f"<tr{mark}>{''.join(cells)}</tr>"


def _bar(step: StepTime, whole_s: float) -> str:
    """Return a bar of the parts of a step; its full width stands for ``whole_s``."""
    spans = []
    for number, (field, name) in enumerate(PARTS):
        share = max(0.0, getattr(step, field) / whole_s)
        if share > 0.0:
            label = f"{name} {seconds(getattr(step, field))}"
            spans.append(f'<span class="p{number}" style="width:{100.0 * share:.2f}%" title="{escape(label)}"></span>')
    return f'<div class="bar">{"".join(spans)}</div>'


def _best(best: RankedLayout, request: PlanRequest) -> str:
    cost = best.cost
    rows = [
        ("layers per stage", layers_text(best.layout)),
        ("memory", memory_words(best)),
        *power_rows(best, request),
        *evidence_rows(best.evidence, request),
        ("between", f"{seconds(best.evidence.low_s)} and {seconds(best.evidence.high_s)}"),
    ]
    facts = "".join(f'<tr><td>{escape(name)}</td><td class="why">{escape(text)}</td></tr>' for name, text in rows)
    losses = "".join(
        f"<tr><td>{escape(loss.name)}</td>{_number(seconds(loss.value_s))}"
        f"{_number(percent(loss.value_s / cost.step.total_s))}</tr>"
        for loss in waterfall(cost, clock_share(best, request.cluster))
    )
    return (
        f"<h2>Best: {escape(layout_text(best.layout))}</h2><table>{facts}</table>"
        f"<h2>From peak to the step of {escape(seconds(cost.step.total_s))}</h2><table>{losses}</table>"
    )


def _stages(best: RankedLayout) -> str:
    """Return memory and time of each stage of the best layout."""
    cost, layout = best.cost, best.layout
    slowest = max(cost.stage_times_s)
    rows = []
    for use, stage, time_s in list(zip(cost.memory, layout.stages, cost.stage_times_s, strict=True))[:MOST_STAGES]:
        parts = _memory_bar(use.components, max(use.usable_bytes, use.total_bytes))
        rows.append(
            f"<tr>{_number(str(use.stage))}{_number('/'.join(map(str, stage.layers_per_chunk)))}"
            f"{_number(seconds(time_s))}{_number(percent(time_s / slowest, 0))}"
            f'<td class="{use.verdict}">{escape(memory_text(use))}</td><td>{parts}</td></tr>'
        )
    head = (
        '<th class="n">stage</th><th class="n">layers</th><th class="n">a micro-batch</th><th class="n">of slowest</th>'
        f"<th>GiB</th><th>of {gib(cost.heaviest.usable_bytes):.1f} GiB usable</th>"
    )
    return (
        '<h2>Stages of the best layout</h2><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        + _key([name for name, _ in cost.memory[0].components])
    )


def _memory_bar(components: Sequence[tuple[str, float]], whole: float) -> str:
    spans = [
        f'<span class="p{number % COLOURS}" style="width:{100.0 * size / whole:.2f}%" '
        f'title="{escape(f"{name} {gib(size):.1f} GiB")}"></span>'
        for number, (name, size) in enumerate(components)
        if size > 0.0
    ]
    return f'<div class="bar">{"".join(spans)}</div>'


def _proof(report: PlanReport) -> str:
    lines = [counts_words(report.search)]
    lines += [proof_words(report)] if report.layouts else []
    lines += [f"{number:,} refused: {reason}" for reason, number in report.rejected]
    lines += list(report.notes)
    return "<h2>How sure</h2><ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _number(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'


def _plain(text: str) -> str:
    return f"<td>{escape(text)}</td>"

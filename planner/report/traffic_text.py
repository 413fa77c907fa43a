"""What plan traffic prints: exchanges by axis, shared links, other networks, curves over the number of GPUs."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from costmodels.network_loads import Pattern
from planner.plan_report import PlanReport
from planner.report.console import section, show
from planner.report.layout_text import facts, job_line, labelled, refusals
from planner.report.tables import WholeTable, ruled_table
from planner.report.words import digits, layout_text, percent, seconds
from planner.rules import broken_rules
from planner.traffic import NetworkRanking, ScalePoint, Scaling, Traffic

_LEFT: Final = ("for", "collective", "way", "tier", "layout")
_DISPENSABLE: Final = frozenset({"way", "slow B/tok"})
"""Columns that a narrow console goes without."""
_COLLECTIVES: Final = MappingProxyType(
    {
        "all_reduce": "all-reduce",
        "all_gather": "all-gather",
        "reduce_scatter": "red.-scatter",
        "alltoall": "all-to-all",
        "sendrecv": "send",
    }
)
_PURPOSES: Final = MappingProxyType(
    {
        "send": "pp",
        "gradient_reduction": "gradients",
        "weight_gather": "weights",
        "weights": "zero",
    }
)

_PATTERNS: Final = MappingProxyType(
    {Pattern.RING: "rings", Pattern.PAIRS: "all-to-all", Pattern.NEIGHBOUR: "sends to neighbours"}
)


def print_traffic(
    console: Console,
    report: PlanReport,
    rank: int,
    traffic: Traffic,
    networks: Sequence[NetworkRanking],
    scaling: Scaling | None,
) -> None:
    """Print the traffic of one layout of a report.

    Parameters
    ----------
    console : Console
        Where to.
    report : PlanReport
        With at least ``rank`` layouts.
    rank : int
        From 1.
    traffic : Traffic
        Of that layout.
    networks : sequence of NetworkRanking
        All layouts on slower and faster networks.
    scaling : Scaling or None
        Curves over the number of accelerators, if they were asked for.
    """
    ranked = report.layouts[rank - 1]
    broken = broken_rules(ranked.layout, report.request)
    show(
        console,
        job_line(report.request),
        facts(f"Rank {rank}", ranked, report.request, broken),
        *refusals(broken, report.request),
        *traffic_sections(traffic, console.width),
        *_networks(report, networks),
        *(_scaling(scaling) if scaling is not None else ()),
    )


def traffic_sections(traffic: Traffic, width: int) -> Sequence[RenderableType]:
    """Return the traffic of a layout: per axis, per link, and what transfers cost each other, for so many columns."""
    if not traffic.axes:
        return ()
    return (
        section(f"What a GPU of stage {traffic.stage} exchanges in a step", _axes(traffic, width)),
        section("How busy its share of each link is", _links(traffic)),
    )


def _axes(traffic: Traffic, width: int) -> RenderableType:
    table = _axes_table(traffic, frozenset())
    return table if table.least_width() <= width else _axes_table(traffic, _DISPENSABLE)


def _axes_table(traffic: Traffic, without: frozenset[str]) -> WholeTable:
    table = ruled_table()
    titles = ("for", "collective", "way", "ranks", "tier", "largest", "calls", "time", "slow B/tok", "shown")
    kept = [title for title in titles if title not in without]
    for title in kept:
        table.add_column(title, justify="left" if title in _LEFT else "right", no_wrap=title in ("for", "collective"))
    for row in traffic.axes:
        shown = "bubble" if row.exposed_share is None else percent(row.exposed_share, 0)
        cells = (
            _purpose(row.purpose),
            _COLLECTIVES.get(row.collective, row.collective),
            row.algorithm,
            f"{row.ranks:,}" + (f" in {row.domains:,}" if row.domains > 1 else ""),
            row.tier,
            f"{digits(row.message_bytes / 1e6, 3)} MB",
            f"{row.count:,.0f}",
            seconds(row.busy_s),
            digits(row.slow_bytes_per_token) if row.slow_bytes_per_token else "0",
            shown,
        )
        table.add_row(*(cell for title, cell in zip(titles, cells, strict=True) if title in kept))
    return table


def _purpose(name: str) -> str:
    return _PURPOSES.get(name, name)


def _links(traffic: Traffic) -> RenderableType:
    table = WholeTable.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    for number, link in enumerate(traffic.resources):
        users = ", ".join(f"{_purpose(name)} {percent(share, 0)}" for name, share in link.users)
        mark = "the bottleneck: " if number == 0 and link.busy_s > 0.0 else ""
        table.add_row(f"  {link.name}", seconds(link.busy_s), percent(link.share), f"{mark}{users}")
    cost = traffic.sharing
    rows = [("shared links", f"cost {seconds(cost.step_s)} of the step: {_lost(traffic)}")]
    if cost.checkpoint > 1.0:
        rows.append(
            ("checkpoints", f"exchanges between nodes take {digits(cost.checkpoint, 3)} times as long beside writes")
        )
    for flow in traffic.uneven:
        pace = f"{digits(flow.speed, 3)} times the pace of even shares"
        rows.append(("on the graph", f"{flow.axis} {_PATTERNS[flow.pattern]} at {pace}: {flow.link}"))
    if traffic.adapters:
        shown = "; ".join(traffic.adapters[:8])
        rows.append(("adapters", shown))
    grid = WholeTable.grid()
    grid.add_row(table)
    grid.add_row(labelled(rows))
    return grid


def _lost(traffic: Traffic) -> str:
    cost = traffic.sharing
    parts = [
        f"sends x {digits(cost.sends, 3)}" if cost.sends > 1.0005 else "",
        f"exchanges wait {seconds(cost.waits_s)}" if cost.waits_s > 0.0 else "",
        f"gradients {seconds(cost.reduction_s)} more" if cost.reduction_s > 1e-6 else "",
        f"weights {seconds(cost.gather_s)} more" if cost.gather_s > 1e-6 else "",
    ]
    return ", ".join(part for part in parts if part) or "no transfers meet"


def _networks(report: PlanReport, networks: Sequence[NetworkRanking]) -> Sequence[RenderableType]:
    if not networks:
        return ()
    rows = []
    for item in networks:
        first = report.layouts[item.order[0] - 1]
        same = (
            "the order stays" if list(item.order) == sorted(item.order) else "order " + ", ".join(map(str, item.order))
        )
        rows.append((f"x {item.factor:g}", f"{layout_text(first.layout)} first with {seconds(item.step_s[0])}; {same}"))
    return (section("The ranking on a slower or faster network", labelled(rows)),)


def _scaling(scaling: Scaling) -> Sequence[RenderableType]:
    words = (
        f"More GPUs stop helping beyond {scaling.helps_until:,}: the next doubling brings less than half of its best."
        if scaling.helps_until and scaling.helps_until < scaling.fixed[-1].gpus
        else "Every doubling in the table brings at least half of its best."
    )
    return (
        section("More GPUs for the same batch", _curve(scaling.fixed)),
        Text(f"  {words}"),
        section("More GPUs with a batch that grows with them", _curve(scaling.scaled)),
    )


def _curve(points: Sequence[ScalePoint]) -> RenderableType:
    table = ruled_table()
    for title in ("GPUs", "batch", "layout", "step s", "tokens/s", "per GPU", "eta %"):
        table.add_column(title, justify="left" if title in _LEFT else "right")
    for point in points:
        found = point.tokens_per_s > 0.0
        table.add_row(
            f"{point.gpus:,}",
            f"{point.global_batch:,}",
            point.layout or "nothing fits",
            digits(point.step_s) if found else "",
            f"{point.tokens_per_s:,.0f}" if found else "",
            digits(point.tokens_per_s / point.gpus) if found else "",
            f"{100.0 * point.efficiency:.1f}" if found else "",
        )
    return table

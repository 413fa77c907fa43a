"""The answer on a user's launch, as text and as the contract's JSON."""

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from costmodels.layout import RankOrder
from costmodels.results import Verdict
from hardware.nouns import count
from planner.advice.remedies import host_bytes_per_node
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import FasterLayout, LaunchReport, PricedNeighbour
from planner.launches.near import has_unknown
from planner.layouts.splits import runs_of
from planner.plan_report import RankedLayout
from planner.report.console import section, show
from planner.report.json_report import Json, heading, layout_to_json, violations_to_json
from planner.report.layout_text import bullets
from planner.report.words import gib, layout_text, seconds
from planner.request import PlanRequest
from planner.rules.proposal import Proposal, rank_order_of
from planner.rules.split import layers_unchecked


def check_to_json(report: LaunchReport) -> Json:
    """Return the answer as plain data."""
    judged, request = report.judged, report.request
    built = judged.built
    return {
        **heading(),
        "framework": judged.framework.value,
        "framework_version": judged.version,
        "trainer": judged.sayable.key,
        "world_size": judged.world,
        "legal": judged.legal,
        "accepted_at_launch": judged.accepted,
        "violations": violations_to_json(judged.violations),
        "layers_per_stage": None if built is None else [list(chunks) for chunks in built],
        "layers_counted_unchecked": _unchecked(judged),
        "grids": grids_to_json(judged.proposal) if judged.proposal is not None else None,
        "unknown": list(judged.unknown),
        "unjudged": list(judged.unjudged),
        "notes": [*judged.notes, *([f"not priced: {report.unpriced}"] if report.unpriced else [])],
        "nearest": [_near_json(one, request) for one in report.near],
        "prediction": _layout_json(report.ranked, request),
        "fastest": [
            {"changes": list(one.changes), "layout": _layout_json(one.ranked, request)} for one in report.faster
        ],
    }


def _unchecked(judged: JudgedLaunch) -> int | None:
    """Layers that stages would hold together were the split not refused; None where it is right."""
    if judged.proposal is None or judged.built is not None:
        return None
    return layers_unchecked(judged.proposal)


def grids_to_json(proposal: Proposal) -> Json:
    """Both grids of a proposal, of attention and dense layers and of experts (None without any), and their order."""
    dense = _attention_grid(proposal)
    return {
        "attention": dense,
        "experts": _expert_grid(proposal) if proposal.model.experts else None,
        "rank_order": rank_order_of(proposal, dense["dp"]).value,
    }


def _attention_grid(proposal: Proposal) -> dict[str, int]:
    shards = proposal.tp * proposal.cp * proposal.pp
    dp = proposal.dp or (proposal.world // shards if shards > 0 else 0)
    return {"tp": proposal.tp, "cp": proposal.cp, "dp": dp, "pp": proposal.pp}


def _expert_grid(proposal: Proposal) -> dict[str, int]:
    """Grid of the experts; ``edp`` is 0 where etp x ep x pp does not divide the GPUs."""
    shards = proposal.etp * proposal.ep * proposal.pp
    whole = shards > 0 and proposal.world % shards == 0
    edp = proposal.world // shards if whole else 0
    return {"etp": proposal.etp, "ep": proposal.ep, "edp": edp, "pp": proposal.pp}


def _near_json(one: PricedNeighbour, request: PlanRequest | None) -> Json:
    near = one.neighbour
    return {
        "changes": [{"name": name, "from": old, "to": new} for name, old, new in near.changes],
        "layers_per_stage": [list(chunks) for chunks in near.layers_per_stage],
        "words": str(near),
        "layout": _layout_json(one.ranked, request),
    }


def _layout_json(ranked: RankedLayout | None, request: PlanRequest | None) -> Json | None:
    return layout_to_json(ranked, request) if ranked is not None and request is not None else None


def print_check(console: Console, report: LaunchReport) -> None:
    """Print the verdict, what is built, both grids, the price, and what is legal or faster near it."""
    judged = report.judged
    show(
        console,
        _verdict(judged),
        *_built(judged),
        *_price(report),
        *_near(report.near, "Nearest legal, without what is not known" if has_unknown(judged) else "Nearest legal"),
        *_faster(report.faster, report.ranked),
        *_notes(judged),
    )


def _verdict(judged: JudgedLaunch) -> RenderableType:
    title = f"{judged.title}, {count(judged.world, 'GPU')}"
    if judged.legal:
        return Text(f"Legal for {title}.", style="bold green")
    lines = [f"{found.message} ({found.rule})" for found in judged.violations]
    when = " though it would start" if judged.accepted else ""
    return section(f"Not legal for {title}{when}", bullets(lines))


def _built(judged: JudgedLaunch) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if judged.built is not None:
        built = runs_of("/".join(map(str, chunks)) for chunks in judged.built)
        parts.append(Text(f"Layers per stage: {built}, {sum(map(sum, judged.built))} in all"))
    counted = _unchecked(judged)
    if counted is not None and judged.proposal is not None and counted != judged.proposal.model.layers:
        layers = judged.proposal.model.layers
        parts.append(Text(f"Without that check {counted} of {layers} layers would be built"))
    if judged.proposal is not None:
        parts.append(Text(grids_of_proposal(judged.proposal)))
    return parts


def grids_of_proposal(proposal: Proposal) -> str:
    """Both grids in words."""
    dense = _attention_grid(proposal)
    text = f"Attention grid: tp {dense['tp']} x cp {dense['cp']} x dp {dense['dp']}, pp {dense['pp']}"
    if proposal.model.experts:
        grid = _expert_grid(proposal)
        share = grid["edp"] or "none: they do not divide"
        text += f"; expert grid: etp {grid['etp']} x ep {grid['ep']} x edp {share}, pp {grid['pp']}"
    order = rank_order_of(proposal, dense["dp"])
    return text if order is RankOrder.DP_INSIDE else f"{text}; ranks in the order {order}"


def _price(report: LaunchReport) -> list[RenderableType]:
    if report.request is None:
        return []
    job, machine = report.request.job, report.request.cluster.name
    if report.ranked is None:
        return [Text(f"Not priced: {report.unpriced}")] if report.unpriced else []
    asked = f"batch {job.global_batch:,}"
    asked += f" of {count(job.seq, 'token')}" if report.request.model.hidden else ""
    there = host_bytes_per_node(report.request, report.ranked.layout, report.ranked.cost)
    host = f"; {gib(there):,.0f} GiB of host memory per node for what is offloaded" if there else ""
    return [Text(f"Predicted on {machine}, {asked}: {_priced(report.ranked)}{host}")]


def _priced(ranked: RankedLayout) -> str:
    cost = ranked.cost
    use = cost.heaviest
    return (
        f"{seconds(cost.step.total_s)} a step, {gib(use.total_bytes):.1f} of {gib(use.usable_bytes):.1f} GiB on stage "
        f"{use.stage}: {use.verdict.value}"
    )


def _near(near: Sequence[PricedNeighbour], title: str) -> list[RenderableType]:
    lines = [f"{one.neighbour}{': ' + _priced(one.ranked) if one.ranked is not None else ''}" for one in near]
    return [section(title, bullets(lines))] if lines else []


def _faster(faster: Sequence[FasterLayout], ranked: RankedLayout | None) -> list[RenderableType]:
    lines = []
    for one in faster:
        gain = ""
        if ranked is not None:
            now, then = ranked.cost.step.total_s, one.ranked.cost.step.total_s
            gain = f" ({100 * (then - now) / now:+.1f} %)"
        lines.append(f"{layout_text(one.ranked.layout)}: {'; then '.join(one.changes)}: {_priced(one.ranked)}{gain}")
    lacks = ranked is not None and ranked.cost.heaviest.verdict is Verdict.OOM
    return [section("Fits near it" if lacks else "Faster near it", bullets(lines))] if lines else []


def _notes(judged: JudgedLaunch) -> list[RenderableType]:
    lines = [f"unknown: {', '.join(judged.unknown)}"] if judged.unknown else []
    lines += [f"not about the layout, so not judged: {', '.join(judged.unjudged)}"] if judged.unjudged else []
    lines += judged.notes
    return [section("To know", bullets(lines))] if lines else []

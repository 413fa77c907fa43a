"""What plan fewest and plan compare print: the smallest machines that hold a job, and one degree over its values."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from costmodels.layout import Layout
from costmodels.results import MemoryUse
from hardware.nouns import count
from planner.advice.compare import Compared, zero_remark
from planner.advice.fewest import Fewest, TooFew, host_bytes_of_node
from planner.layouts.request_notes import stated_notes
from planner.plan_report import RankedLayout
from planner.report.console import section, show
from planner.report.json_report import Json, heading, layout_to_json, memory_use_to_json, request_to_json
from planner.report.layout_text import bullets, job_line, labelled
from planner.report.ranking import STYLES
from planner.report.tables import ruled_table
from planner.report.words import digits, gib, layout_text, memory_text, percent, recompute_text
from planner.request import Framework, PlanRequest

STATES: Final = ("weights", "gradients", "optimizer")
_SHARDING: Final = ("zero", "shard_group")  # degrees that decide which weights are gathered
_WORDS: Final = ("machine", "layout", "recompute", "GiB", "what decides")


LENGTHS: Final = (
    "a multiple of 2 x cp (each rank takes an early and a late piece) and, with sequence parallelism, of cp x tp"
)
_OF_HEADS: Final = "a multiple of cp, whose ranks exchange heads (Ulysses)"


def states_gib(use: MemoryUse) -> float:
    """Weights, gradients and optimizer of a rank [GiB]."""
    return gib(sum(size for name, size in use.components if name in STATES))


def print_fewest(console: Console, request: PlanRequest, found: Sequence[tuple[Fewest, Fewest]]) -> None:
    """Print the smallest size of every machine, and that with the optimizer's states in host memory."""
    table = ruled_table()
    for title in ("machine", "GPUs", "layout", "recompute", "step s", "GiB", "usable", "states"):
        table.add_column(title, justify="left" if title in _WORDS else "right")
    for plain, _ in found:
        sizes = dict.fromkeys(size for size in (plain.first, plain.safe) if size is not None)
        for size in sizes:
            table.add_row(_node(plain), *_cells(size.ranked))
        if not sizes:
            table.add_row(_node(plain), "", _nothing(plain))
    cut = [plain for plain, _ in found if plain.first and plain.cut_at_gpus]
    show(
        console,
        job_line(request, machine=False),
        *stated_section(request),
        section("The fewest GPUs that hold it", table),
        Text("  states: weights, gradients and optimizer of the fullest GPU", style="dim"),
        *(Text(f"  {_node(plain)}: {_cut(plain)} for a size that holds it safely", style="dim") for plain in cut),
        section("What decides it", labelled([(_node(plain), _decides(plain.below)) for plain, _ in found])),
        section(
            "With the optimizer's states in host memory",
            labelled([(_node(offloaded), _in_host(offloaded)) for _, offloaded in found]),
        ),
    )


def stated_section(request: PlanRequest) -> Sequence[RenderableType]:
    """What a question states beside its model and machine; nothing where it states nothing."""
    notes = stated_notes(request)
    return (section("Asked", bullets(notes)),) if notes else ()


def _node(found: Fewest) -> str:
    return found.request.cluster.islands[0].node.name


def _nothing(found: Fewest) -> str:
    if found.cut_at_gpus:
        return _cut(found)
    return f"nothing fits on up to {count(found.below.gpus, 'GPU')}" if found.below else "nothing fits"


def _cut(found: Fewest) -> str:
    return f"the time limit ended the search at {count(found.cut_at_gpus, 'GPU')}"


def _cells(ranked: RankedLayout) -> tuple[str | Text, ...]:
    use = ranked.cost.heaviest
    return (
        f"{ranked.layout.gpus:,}",
        layout_text(ranked.layout),
        recompute_text(ranked.layout),
        digits(ranked.cost.step.total_s),
        Text(memory_text(use), style=STYLES[use.verdict]),
        f"{gib(use.usable_bytes):.1f}",
        f"{states_gib(use):.1f}",
    )


def _decides(below: TooFew | None) -> str:
    if below is None:
        return "one GPU does"
    if below.decides == "states":
        parts = ", ".join(f"{name} {gib(size):,.0f}" for name, size in below.states)
        return (
            f"states: on {count(below.gpus, 'GPU')} they alone are {gib(below.states_bytes):,.0f} of "
            f"{gib(below.usable_bytes):,.0f} GiB ({parts})"
        )
    if below.use is None:
        return f"rules: no layout is legal on {count(below.gpus, 'GPU')}"
    use = below.use
    return (
        f"{below.decides}: the layout that needs least on {count(below.gpus, 'GPU')} takes "
        f"{gib(use.total_bytes):.1f} of {gib(use.usable_bytes):.1f} GiB, {states_gib(use):.1f} of them states, "
        f"{gib(dict(use.components)[below.decides]):.1f} {below.decides}"
    )


def _in_host(found: Fewest) -> str:
    if found.first is None:
        return _nothing(found)
    ranked = found.first.ranked
    use, node = ranked.cost.heaviest, found.first.request.cluster.islands[0].node
    host = gib(host_bytes_of_node(found.first.request, ranked))
    there = f" of {gib(node.host.memory_bytes):,.0f}" if node.host.memory_bytes else ""
    return (
        f"{count(ranked.layout.gpus, 'GPU')}: {layout_text(ranked.layout)}, {memory_text(use)} of "
        f"{gib(use.usable_bytes):.1f} GiB; {host:,.0f}{there} GiB of host memory per node"
    )


def fewest_to_json(request: PlanRequest, found: Sequence[tuple[Fewest, Fewest]]) -> Json:
    """Return the answer of plan fewest as plain data."""
    return {
        **heading(),
        "request": request_to_json(request),
        "machines": [
            {"machine": _node(plain), **_fewest_json(plain), "offloaded": _fewest_json(offloaded)}
            for plain, offloaded in found
        ],
    }


def _fewest_json(found: Fewest) -> Json:
    below = found.below
    return {
        name: None if size is None else layout_to_json(size.ranked, size.request)
        for name, size in (("first", found.first), ("safe", found.safe))
    } | {
        "gpus": 0 if found.first is None else found.first.ranked.layout.gpus,
        "cut_at_gpus": found.cut_at_gpus,
        "below": None
        if below is None
        else {
            "gpus": below.gpus,
            "decides": below.decides,
            "states_gib": gib(below.states_bytes),
            "usable_gib": gib(below.usable_bytes),
            "memory": None if below.use is None else memory_use_to_json(below.use),
        },
    }


def print_compared(console: Console, request: PlanRequest, degree: str, rows: Sequence[Compared]) -> None:
    """Print the best layout with each value of a degree, fastest first, and what the degree brings with it."""
    ordered = sorted(rows, key=lambda row: (row.ranked is None, row.ranked.cost.step.total_s if row.ranked else 0.0))
    fits = [row for row in ordered if row.ranked is not None]
    table = ruled_table()
    extra = ("tokens", "logits GiB") if degree == "cp" else ("gathers",) if degree in _SHARDING else ()
    for title in (degree, "layout", "mb", "recompute", "step s", "loss", "tok/s/GPU", "GiB", *extra):
        table.add_column(title, justify="left" if title in _WORDS else "right")
    for row in fits:
        table.add_row(str(row.value), *_compared(row, fits[0].ranked), *_extra(row, degree))
    parts: list[RenderableType] = [job_line(request), *stated_section(request)]
    if fits:
        parts.append(section(f"The best layout with each {degree}", table))
    remarks = _remarks(request, degree, ordered)
    if remarks:
        parts.append(section("To know", labelled(remarks)))
    show(console, *parts)


def _compared(row: Compared, best: RankedLayout | None) -> tuple[str | Text, ...]:
    ranked = row.ranked
    if ranked is None or best is None:
        return ()
    layout: Layout = ranked.layout
    slower = ranked.cost.step.total_s / best.cost.step.total_s - 1.0
    use = ranked.cost.heaviest
    return (
        layout_text(layout),
        str(layout.micro_batch),
        recompute_text(layout).replace("selective:", ""),
        digits(ranked.cost.step.total_s),
        f"+{percent(slower)}" if slower else "",
        digits(ranked.cost.tokens_per_s / layout.gpus),
        Text(memory_text(use), style=STYLES[use.verdict]),
    )


def _extra(row: Compared, degree: str) -> tuple[str, ...]:
    if degree == "cp":
        return (f"{row.seq:,}", f"{gib(row.logits_bytes):.2f}")
    return (f"{gib(row.gathered_bytes):.1f} GiB" if row.gathered_bytes else "0",) if degree in _SHARDING else ()


def _remarks(request: PlanRequest, degree: str, rows: Sequence[Compared]) -> list[tuple[str, str]]:
    """What the rows do not show: values that cannot be, rules of lengths, what a ZeRO stage gives."""
    refused = [(f"{degree} {row.value}", row.why_not) for row in rows if row.ranked is None]
    if degree in _SHARDING:
        kept = [(f"{degree} {row.value}", zero_remark(row.ranked)) for row in rows if row.ranked is not None]
        return [*refused, *kept, ("gathers", "weights that a GPU receives for each micro-batch")]
    if degree != "cp":
        return refused
    smallest = min((row.value for row in rows if row.ranked is not None), default=0)
    lengths = _OF_HEADS if request.framework is Framework.DEEPSPEED else LENGTHS
    return [
        ("smallest", f"cp {smallest} is the smallest that fits" if smallest else "no cp fits"),
        *refused,
        ("lengths", f"{lengths}; {request.job.seq:,} tokens are padded to the column tokens"),
        ("logits", "what the loss of a GPU of the last stage holds for the logits of a micro-batch"),
    ]


def compared_to_json(request: PlanRequest, degree: str, rows: Sequence[Compared]) -> Json:
    """Return the answer of plan compare as plain data."""
    return {
        **heading(),
        "request": request_to_json(request),
        "by": degree,
        "values": [
            {
                "value": row.value,
                "seq": row.seq,
                "why_not": row.why_not,
                "logits_gib": gib(row.logits_bytes),
                "gathered_gib": gib(row.gathered_bytes),
                "layout": None if row.ranked is None else layout_to_json(row.ranked, request),
            }
            for row in rows
        ],
    }

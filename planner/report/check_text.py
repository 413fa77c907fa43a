"""The verdict on launch arguments, as text and as the contract's JSON."""

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from planner.ingest.megatron import LaunchVerdict
from planner.report.console import section, show
from planner.report.json_report import Json
from planner.report.layout_text import bullets
from planner.rules.nearest import Neighbour
from planner.splits import runs_of


def verdict_to_json(verdict: LaunchVerdict, near: Sequence[Neighbour]) -> Json:
    """Return a verdict as plain data."""
    built = verdict.layers_per_stage
    return {
        "legal": verdict.legal,
        "accepted_at_launch": verdict.accepted,
        "violations": [
            {
                "rule": found.rule,
                "message": found.message,
                "values": dict(found.values),
                "found": found.found.value,
                "source": found.source,
            }
            for found in verdict.violations
        ],
        "layers_per_stage": None if built is None else [list(chunks) for chunks in built],
        "nearest": [
            {
                "changes": [{"name": name, "from": old, "to": new} for name, old, new in neighbour.changes],
                "layers_per_stage": [list(chunks) for chunks in neighbour.layers_per_stage],
                "words": str(neighbour),
            }
            for neighbour in near
        ],
    }


def print_verdict(console: Console, framework: str, verdict: LaunchVerdict, near: Sequence[Neighbour]) -> None:
    """Print whether a launch is legal, what it breaks, what it builds, and the nearest legal ones."""
    parts: list[RenderableType] = []
    if verdict.legal:
        parts.append(Text(f"Legal for {framework}.", style="bold green"))
    else:
        lines = [f"{found.message} ({found.rule})" for found in verdict.violations]
        when = " though it would start" if verdict.accepted else ""
        parts.append(section(f"Not legal for {framework}{when}", bullets(lines)))
    if verdict.layers_per_stage is not None:
        built = runs_of("/".join(map(str, chunks)) for chunks in verdict.layers_per_stage)
        total = sum(map(sum, verdict.layers_per_stage))
        parts.append(Text(f"Layers per stage: {built}, {total} in all"))
    if near:
        parts.append(section("Nearest legal", bullets([str(neighbour) for neighbour in near])))
    show(console, *parts)

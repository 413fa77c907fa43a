"""A recipe on another machine, as text and as JSON."""

from rich.console import RenderableType
from rich.text import Text

from planner.plan_report import RankedLayout
from planner.porting import Port
from planner.report.console import section
from planner.report.json_report import Json, layout_to_json
from planner.report.layout_text import bullets
from planner.report.words import gib, layout_text, seconds


def port_to_json(port: Port) -> Json:
    """Return what is carried, what forces its changes, and what the fastest changes further."""
    carried = port.carried
    return {
        "recipe": port.recipe.name,
        "start": layout_text(port.recipe.layout),
        "forced": [{"change": change.what, "why": change.why} for change in port.forced],
        "carried": layout_to_json(carried, port.report.request) if carried is not None else None,
        "further": list(port.further),
    }


def port_sections(port: Port) -> tuple[RenderableType, ...]:
    """Parts that stand before a search's own: the recipe, its forced changes, and its distance to the fastest."""
    name = port.report.request.cluster.name
    start = f"{port.recipe.name}: {layout_text(port.recipe.layout)} on {port.recipe.layout.gpus} GPUs, to {name}"
    forced = [f"{change.what}: {change.why}" for change in port.forced] or ["nothing"]
    parts: list[RenderableType] = [Text(start), section("What must change, and why", bullets(forced))]
    if port.carried is None:
        parts.append(Text("The recipe cannot be carried to this machine by changes of its own."))
        return tuple(parts)
    parts.append(Text(f"Carried: {layout_text(port.carried.layout)}, {_price(port.carried)}"))
    if port.further:
        best = port.report.layouts[0]
        gain = 100.0 * (port.carried.cost.step.total_s / best.cost.step.total_s - 1.0)
        title = f"What the fastest changes further ({gain:.1f} % more tokens per second)"
        parts.append(section(title, bullets(list(port.further))))
    return tuple(parts)


def _price(ranked: RankedLayout) -> str:
    use = ranked.cost.heaviest
    held = f"{gib(use.total_bytes):.1f} of {gib(use.usable_bytes):.1f} GiB: {use.verdict.value}"
    return f"{seconds(ranked.cost.step.total_s)} a step, {held}"

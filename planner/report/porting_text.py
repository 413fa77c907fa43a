"""A recipe on another machine, as text and as JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from costmodels.job import TrainingJob
from costmodels.workload import presets
from hardware.errors import InputError
from hardware.nouns import count
from hardware.text_file import read_text_file
from planner.adapters import asked_adapters, said_targets
from planner.export.layout_json import read_layout
from planner.images import asked_images, said_freeze, said_images
from planner.launches.porting import Port, Recipe, recipe_of_launch
from planner.plan_report import RankedLayout
from planner.question import LaunchQuestion, PortQuestion, job_of
from planner.report.console import section
from planner.report.json_reader import MOST_BYTES, read_report
from planner.report.json_report import Json, layout_to_json
from planner.report.layout_text import bullets
from planner.report.words import gib, layout_text, seconds
from planner.request import Framework, PlanRequest
from planner.sayable import EVERYTHING

_FRAMEWORK: Final = Framework.MEGATRON.value
"""Whose launch a file is that neither says so nor is said to be another's."""


def recipe_in(question: PortQuestion) -> Recipe:
    """Read the recipe that a port starts from.

    Parameters
    ----------
    question : PortQuestion
        Names a saved report, the layout of an export, or a launch of any framework.

    Raises
    ------
    InputError
        The file is none of these, or does not say enough.
    """
    kind = _json_kind(question.file)
    if kind and question.world:
        raise InputError(
            f"--world-size {question.world}: a saved {kind} has its own GPUs",
            allowed="--world-size with a launch",
            where=str(question.file),
        )
    if kind == "report":
        return _recipe_of_report(question)
    if kind == "layout":
        return _recipe_of_layout(question)
    asked = question.asked
    return recipe_of_launch(
        LaunchQuestion(
            framework=asked.framework,
            file=question.file,
            model=asked.model,
            cluster=asked.cluster,
            world=question.world,
        )
    )


def _json_kind(path: Path) -> str:
    """Which of the planner's own files a path names: a report, a layout, or neither."""
    if path.suffix.lower() != ".json":
        return ""
    try:
        content = json.loads(
            read_text_file(path, allowed="a launch, a saved report or a layout", most_bytes=MOST_BYTES)
        )
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    if "request" in content and ("layouts" in content or "layout" in content):
        return "report"
    return "layout" if "stages" in content and "schedule" in content else ""


def _recipe_of_report(question: PortQuestion) -> Recipe:
    report = read_report(question.file)
    if not 1 <= question.rank <= len(report.layouts):
        raise InputError(f"--rank {question.rank}", allowed=f"1 to {len(report.layouts)}", where=str(question.file))
    request = report.request_of(report.layouts[question.rank - 1])
    framework = Framework(question.asked.framework or request.framework.value)
    same = framework is request.framework
    return Recipe(
        name=f"{question.file.name}, rank {question.rank}",
        model=request.model,
        layout=report.layouts[question.rank - 1].layout,
        global_batch=request.job.global_batch,
        seq=request.job.seq,
        precision=request.job.precision.name,
        framework=framework,
        job=request.job if same else _elsewhere(request, framework),
        sayable=request.sayable if same else EVERYTHING,
        left="" if same else request.sayable.program,
    )


def _elsewhere(request: PlanRequest, framework: Framework) -> TrainingJob | None:
    """The job of a report under another framework, where it says more than a fresh one: what is trained."""
    told, model = request.job, request.model
    if not told.adapter_rank and told.images is None:
        return None
    fresh = job_of(framework, told.precision.name, global_batch=told.global_batch, seq=told.seq)
    fresh = asked_adapters(fresh, model, framework, told.adapter_rank, said_targets(told))
    return asked_images(fresh, model, framework, said_images(told, model), said_freeze(told))


def _recipe_of_layout(question: PortQuestion) -> Recipe:
    asked = question.asked
    if not asked.model or not asked.seq:
        raise InputError(
            "a layout names neither model nor sequence", allowed="plan search MODEL CLUSTER --from layout.json --seq S"
        )
    text = read_text_file(question.file, allowed="a layout that plan export wrote")
    layout = read_layout(text, str(question.file))
    return Recipe(
        name=question.file.name,
        model=presets.model(asked.model),
        layout=layout,
        global_batch=layout.micro_batch * layout.num_microbatches * layout.first.dp,
        seq=asked.seq,
        precision=asked.precision or "bf16",
        framework=Framework(asked.framework or _FRAMEWORK),
    )


def port_to_json(port: Port) -> Json:
    """Return what is carried, what forces its changes, and what the fastest changes further."""
    carried = port.carried
    return {
        "recipe": port.recipe.name,
        "start": layout_text(port.recipe.layout),
        "forced": [{"change": change.what, "why": change.why} for change in port.forced],
        "carried": layout_to_json(carried, port.report.request) if carried is not None else None,
        "further": list(port.further),
        "program": port.report.request.program,
        "notes": list(_notes(port)),
    }


def port_sections(port: Port) -> tuple[RenderableType, ...]:
    """Parts that stand before a search's own: the recipe, its forced changes, and its distance to the fastest."""
    name = port.report.request.cluster.name
    start = (
        f"{port.recipe.name}: {layout_text(port.recipe.layout)} on {count(port.recipe.layout.gpus, 'GPU')}, to {name}"
    )
    forced = [f"{change.what}: {change.why}" for change in port.forced] or ["nothing"]
    parts: list[RenderableType] = [Text(start), *(Text(note) for note in _notes(port))]
    parts.append(section("What must change, and why", bullets(forced)))
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


def _notes(port: Port) -> Iterator[str]:
    """What was assumed of the launch, and whose layouts these are where that is not the recipe's own framework."""
    request, left = port.report.request, port.recipe.left
    if port.recipe.assumed:
        yield port.recipe.assumed
    if request.sayable.lacks:
        yield (
            f"Searched is what {request.program} can be told: {request.sayable.lacks}. plan search MODEL CLUSTER "
            "--framework FRAMEWORK asks for another program."
        )
    if left:
        yield f"The recipe is of {left}, which cannot be told these layouts: they are for {request.program}, as asked."


def _price(ranked: RankedLayout) -> str:
    use = ranked.cost.heaviest
    held = f"{gib(use.total_bytes):.1f} of {gib(use.usable_bytes):.1f} GiB: {use.verdict.value}"
    return f"{seconds(ranked.cost.step.total_s)} a step, {held}"

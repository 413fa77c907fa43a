"""The stages of a layout as tables: what stands on each, how long it takes, what its fullest GPU holds."""

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from costmodels.results import MemoryUse
from costmodels.workload.model import ModelSpec
from planner.layouts.logits import logits_of
from planner.plan_report import RankedLayout
from planner.report.console import section
from planner.report.layout_text import labelled, stages
from planner.report.ranking import STYLES
from planner.report.tables import ruled_table
from planner.report.words import gib
from planner.request import Framework, PlanRequest
from planner.rules.layout_string import layout_string

_COLUMNS: Final = (
    ("weights", ("weights",)),
    ("gradients", ("gradients", "unreduced")),
    ("optimizer", ("optimizer",)),
    ("activations", ("activations", "working", "gathered", "step")),
    ("logits", ("logits",)),
    ("buffers", ("buffers", "communicators", "context")),
    ("reserve", ("reserve",)),
)
"""Columns of the table, and the components that each sums."""
_LAYOUT_STRINGS: Final = (Framework.MEGATRON, Framework.BRIDGE, Framework.NEMO, Framework.NONE)


def stage_sections(ranked: RankedLayout, request: PlanRequest) -> Sequence[RenderableType]:
    """Return what stands on each stage of a pipeline with the string that says so; nothing without a pipeline."""
    layout = ranked.layout
    if layout.pp == 1:
        return ()
    rows = [("where", _ends(request.model, ranked))] if request.model.hidden else []
    if _uneven(ranked, request):
        text = layout_string(layout.layers_per_stage, request.model.mtp_layers)
        rows.append(("string", f'--pipeline-model-parallel-layout "{text}"'))
    return (section("Stages", stages(ranked), *([labelled(rows)] if rows else [])),)


def _uneven(ranked: RankedLayout, request: PlanRequest) -> bool:
    """Whether Megatron-LM needs to be told how the layers are split."""
    if not request.model.hidden:  # a list of layers, which Megatron-LM has no words for
        return False
    chunks = {count for stage in ranked.layout.layers_per_stage for count in stage}
    return request.framework in _LAYOUT_STRINGS and (len(chunks) > 1 or request.model.mtp_layers > 0)


def uneven_sections(ranked: RankedLayout, request: PlanRequest) -> Sequence[RenderableType]:
    """Return the stages of a layout whose model no even split fits: layers that pp does not divide, or MTP layers."""
    forced = ranked.layout.layers % ranked.layout.pp > 0 or request.model.mtp_layers > 0
    return stage_sections(ranked, request) if forced else ()


def _ends(model: ModelSpec, ranked: RankedLayout) -> str:
    layout = ranked.layout
    last = (
        [f"{model.mtp_layers} multi-token-prediction layer" + "s" * (model.mtp_layers > 1)] if model.mtp_layers else []
    )
    words = [f"embedding before stage 0, {', '.join([*last, 'head and loss'])} after stage {layout.pp - 1}"]
    kinds = list(model.layer_kinds())
    front = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), 0)
    if front and len(set(kinds)) == 2 and kinds[front:].count(kinds[0]) == 0:
        words.append(f"the first {front} layers are of another kind (dense)")
    total = sum(sum(stage) for stage in layout.layers_per_stage)
    words.append(f"{total} layers on the stages, {model.layers} in the model")
    return "; ".join(words)


def memory_sections(ranked: RankedLayout, request: PlanRequest) -> Sequence[RenderableType]:
    """Return what the fullest GPU of every stage holds, by component, against what it may hold."""
    uses = ranked.cost.memory
    table = ruled_table()
    for title in ("stage", *(title for title, _ in _COLUMNS), "all", "usable"):
        table.add_column(title, justify="left" if title == "stage" else "right")
    table.add_column("verdict")
    first = 0
    for number, use in enumerate(uses):
        if number + 1 < len(uses) and _cells(uses[number + 1]) == _cells(use):
            continue
        name = str(number) if first == number else f"{first}-{number}"
        table.add_row(name, *_cells(use), Text(use.verdict.value, style=STYLES[use.verdict]))
        first = number + 1
    tensor, at_peak = logits_of(request, ranked.layout)
    words = (
        f"one tensor of {gib(tensor):.2f} GiB on the last stage, {gib(at_peak):.2f} GiB with what the loss makes of it"
    )
    rows = [("logits", f"{words}; in the table where that moment is the peak")] if at_peak else []
    return (section("Memory of the fullest GPU, GiB", table, *([labelled(rows)] if rows else [])),)


def _cells(use: MemoryUse) -> tuple[str, ...]:
    parts = dict(use.components)
    sizes = [sum(parts.get(name, 0.0) for name in names) for _, names in _COLUMNS]
    return tuple(f"{gib(size):.1f}" for size in (*sizes, use.total_bytes, use.usable_bytes))

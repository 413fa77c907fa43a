"""The pipeline of one step as a Chrome trace (chrome://tracing, Perfetto): one row per stage."""

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.pipeline.schedules import Kind, PipelineSpec
from costmodels.pipeline.simulate import Timeline, timeline
from planner.advice.pipeline_times import pipeline_times
from planner.plan_report import RankedLayout
from planner.report.words import layout_text
from planner.request import PlanRequest

MOST_OPERATIONS: Final = 200_000
MICROSECONDS: Final = 1e6
_NAMES: Final = MappingProxyType({Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.WEIGHT: "weight gradient"})
_COLOURS: Final = MappingProxyType(
    {Kind.FORWARD: "thread_state_running", Kind.BACKWARD: "thread_state_iowait", Kind.WEIGHT: "good"}
)


def trace_text(ranked: RankedLayout, request: PlanRequest) -> str:
    """Return the pipeline of one step as trace events.

    Parameters
    ----------
    ranked : RankedLayout
        Whose pipeline.
    request : PlanRequest
        What it was planned for.

    Returns
    -------
    str
        JSON of the Trace Event Format. A step of more than :data:`MOST_OPERATIONS` operations is cut to as many
        micro-batches as stay below; the metadata say so.
    """
    layout = ranked.layout
    times = pipeline_times(request, layout)
    shown = _shown(times.spec)
    spec = replace(times.spec, num_microbatches=shown)
    line = timeline(spec, times.forward_s, times.backward_s, times.send_s, times.weight_s, times.transfers)
    data = {
        "layout": layout_text(layout),
        "schedule": layout.schedule.value,
        "micro-batches shown": shown,
        "micro-batches of the step": layout.num_microbatches,
    }
    return json.dumps({"traceEvents": _events(line, layout.pp), "displayTimeUnit": "ms", "otherData": data}) + "\n"


def _shown(spec: PipelineSpec) -> int:
    """Micro-batches that are drawn: all, or whole groups of them below the limit, at least one group."""
    fitting = MOST_OPERATIONS // (spec.pp * spec.vpp * spec.kinds)
    whole_groups = max(spec.group, fitting // spec.group * spec.group)
    return min(spec.num_microbatches, whole_groups)


def _events(line: Timeline, stages: int) -> list[dict[str, object]]:
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": stage, "args": {"name": f"stage {stage}"}}
        for stage in range(stages)
    ]
    columns = (line.stage, line.kind, line.chunk, line.microbatch, line.start_s[0], line.end_s[0])
    for stage, kind, chunk, microbatch, start_s, end_s in zip(*(column.tolist() for column in columns), strict=True):
        events.append(
            {
                "ph": "X",
                "name": f"{_NAMES[Kind(kind)]} {microbatch}",
                "cat": _NAMES[Kind(kind)],
                "cname": _COLOURS[Kind(kind)],
                "pid": 0,
                "tid": stage,
                "ts": round(start_s * MICROSECONDS, 3),
                "dur": round((end_s - start_s) * MICROSECONDS, 3),
                "args": {"micro-batch": microbatch, "chunk": chunk},
            }
        )
    return events

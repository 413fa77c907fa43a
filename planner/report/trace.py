"""The pipeline of one step as a Chrome trace (chrome://tracing, Perfetto): one row per stage."""

import json
from typing import Final

from costmodels.pipeline.schedules import Kind, PipelineSpec
from costmodels.pipeline.simulate import timeline
from planner.pipeline_times import pipeline_times
from planner.plan_report import RankedLayout
from planner.report.words import layout_text
from planner.request import PlanRequest

MOST_OPERATIONS: Final = 200_000
MICROSECONDS: Final = 1e6
_NAMES: Final = {Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.WEIGHT: "weight gradient"}
_COLOURS: Final = {Kind.FORWARD: "thread_state_running", Kind.BACKWARD: "thread_state_iowait", Kind.WEIGHT: "good"}


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
    each = layout.pp * layout.vpp * times.spec.kinds
    shown = min(layout.num_microbatches, max(layout.pp, MOST_OPERATIONS // each))
    if layout.vpp > 1:
        shown = max(layout.pp, shown // layout.pp * layout.pp)
    shown = min(shown, layout.num_microbatches)
    spec = PipelineSpec(
        schedule=layout.schedule, pp=layout.pp, vpp=layout.vpp, num_microbatches=shown, group_size=times.spec.group_size
    )
    line = timeline(spec, times.forward_s, times.backward_s, times.send_s, times.weight_s)
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": stage, "args": {"name": f"stage {stage}"}}
        for stage in range(layout.pp)
    ]
    rows = zip(
        line.stage.tolist(),
        line.kind.tolist(),
        line.chunk.tolist(),
        line.microbatch.tolist(),
        line.start_s[0].tolist(),
        line.end_s[0].tolist(),
        strict=True,
    )
    for stage, kind, chunk, microbatch, start_s, end_s in rows:
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
    data = {
        "layout": layout_text(layout),
        "schedule": layout.schedule.value,
        "micro-batches shown": shown,
        "micro-batches of the step": layout.num_microbatches,
    }
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": data}) + "\n"

"""Remarks on a request by itself, whatever its layout."""

from planner.layouts.platform_notes import platform_notes
from planner.layouts.shape_notes import position_notes, shape_notes
from planner.request import PlanRequest


def request_notes(request: PlanRequest) -> tuple[str, ...]:
    """Say what a reader of any answer to a request should know: its model, its sequences, its machine.

    Parameters
    ----------
    request : PlanRequest
        What is asked.

    Returns
    -------
    tuple of str
        A remark each.
    """
    return (
        *_stated(request),
        *request.model.notes,
        *shape_notes(request.model),
        *position_notes(request.model, request.job.seq),
        *platform_notes(request.framework, request.cluster),
    )


def _stated(request: PlanRequest) -> tuple[str, ...]:
    told = [word for name, word in request.words if name == "software"]
    return (f"software as stated: {', '.join(told)}",) if told else ()

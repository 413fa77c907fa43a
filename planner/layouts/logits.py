"""How large the logits of a layout are."""

from costmodels.layout import Layout
from costmodels.memory import logits_bytes
from costmodels.positions import contents_of
from planner.request import PlanRequest


def logits_of(request: PlanRequest, layout: Layout) -> tuple[float, float]:
    """Return one tensor of logits of a rank of the last stage, and what the loss holds of them at its peak [B]."""
    _, table = contents_of(layout, request.model)
    tensor, at_peak = logits_bytes(request.model, request.job, table)
    return float(tensor[-1]), float(at_peak[-1])

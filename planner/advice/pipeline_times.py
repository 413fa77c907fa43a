"""Times of a layout's pipeline stages, as the step model sums them: what a trace draws."""

from dataclasses import dataclass

import numpy as np

from costmodels.explicit_step import priced_step
from costmodels.layout import Layout
from costmodels.pipeline.graph import Transfers
from costmodels.pipeline.schedules import PipelineSpec
from costmodels.pipeline.simulate import default_transfers
from costmodels.pricing import Constants
from costmodels.table import Floats
from planner.planning import pricings_of
from planner.request import PlanRequest

WEIGHT_SHARE = 0.5
"""Part of a backward pass that is the weight gradient where a schedule splits it: one of two equal products."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineTimes:
    """Seconds of one micro-batch: ``forward_s``, ``backward_s`` and ``weight_s`` of shape (1, pp, vpp).

    ``weight_s`` is None where the schedule does not split the backward pass; ``send_s`` is the mean over boundaries,
    and ``transfers`` says whether stages wait for them.
    """

    spec: PipelineSpec
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats | None
    send_s: float
    transfers: Transfers


def pipeline_times(request: PlanRequest, layout: Layout, constants: Constants | None = None) -> PipelineTimes:
    """Price the stages of a layout.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    layout : Layout
        Its layers must be those of the model.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    PipelineTimes
    """
    step = priced_step(pricings_of(request, constants), layout)
    forward, backward = step.work.forward_s.sum(axis=0), step.work.backward_s.sum(axis=0)
    splits = layout.schedule.splits_backward
    return PipelineTimes(
        spec=step.contents.spec,
        forward_s=forward,
        backward_s=backward * (1.0 - WEIGHT_SHARE) if splits else backward,
        weight_s=np.asarray(backward * WEIGHT_SHARE) if splits else None,
        send_s=float(step.times.send_s[0]) / max(1, layout.pp),
        transfers=default_transfers(step.contents.spec, buffered=request.job.software.buffered_sends),
    )

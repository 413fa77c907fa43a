"""Times of a layout's pipeline stages, as the step model sums them: what a trace draws."""

from dataclasses import dataclass

import numpy as np

from costmodels.layer_costs import price_parts
from costmodels.layout import Layout
from costmodels.pipeline.schedules import PipelineSpec
from costmodels.positions import contents_of
from costmodels.pricing import Constants
from costmodels.step import price_steps, stage_work
from costmodels.table import Floats
from planner.planning import pricings_of
from planner.request import PlanRequest

WEIGHT_SHARE = 0.5
"""Part of a backward pass that is the weight gradient where a schedule splits it: one of two equal products."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineTimes:
    """Seconds of one micro-batch: ``forward_s``, ``backward_s`` and ``weight_s`` of shape (1, pp, vpp).

    ``weight_s`` is None where the schedule does not split the backward pass; ``send_s`` is the mean over boundaries.
    """

    spec: PipelineSpec
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats | None
    send_s: float


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
    pricings = pricings_of(request, constants)
    contents, table = contents_of(layout, request.model)
    costs = [price_parts(pricing, table) for pricing in pricings]
    work = stage_work(costs, contents)
    forward, backward = work.forward_s.sum(axis=0), work.backward_s.sum(axis=0)
    sent = float(price_steps(pricings, costs, contents).send_s[0])
    splits = layout.schedule.splits_backward
    return PipelineTimes(
        spec=contents.spec,
        forward_s=forward,
        backward_s=backward * (1.0 - WEIGHT_SHARE) if splits else backward,
        weight_s=np.asarray(backward * WEIGHT_SHARE) if splits else None,
        send_s=sent / max(1, layout.pp),
    )

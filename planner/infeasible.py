"""Why nothing is feasible: the tightest constraint in numbers, and the nearest change that mends it."""

from collections.abc import Sequence
from typing import Final

from costmodels.memory import usable_memory
from costmodels.pricing import Pricing
from costmodels.workload.counts import parameter_count
from planner.plan_report import Infeasibility
from planner.request import PlanRequest
from planner.tally import Candidate, Tally

GIB: Final = 2.0**30


def explain_infeasible(request: PlanRequest, pricings: Sequence[Pricing], tally: Tally) -> Infeasibility:
    """Name what stood nearest to being feasible.

    Parameters
    ----------
    request : PlanRequest
        What was asked.
    pricings : sequence of Pricing
        One per island.
    tally : Tally
        The search's counts and the candidate that missed its memory by least.
    """
    if tally.nearest is not None:
        return _memory(request, pricings, tally.nearest)
    if tally.pruned["memory of the states alone"]:
        return _states(request, pricings)
    if tally.rejected:
        rule, count = tally.rejected.most_common(1)[0]
        return Infeasibility(
            constraint=(
                f"every one of {tally.enumerated} grids breaks a rule of {request.framework}; {count} break: {rule}"
            ),
            nearest_change="free a pinned degree, change the global batch or the number of GPUs",
        )
    batch, gpus = request.job.global_batch, request.cluster.gpus
    pinned = ", ".join(f"{name}={value}" for name, value in request.fixed)
    return Infeasibility(
        constraint=f"no grid over {gpus} GPUs divides a global batch of {batch}"
        + (f" with {pinned}" if pinned else ""),
        nearest_change=f"a global batch that is a multiple of {gpus}, or fewer pinned degrees",
    )


def _memory(request: PlanRequest, pricings: Sequence[Pricing], near: Candidate) -> Infeasibility:
    usable = usable_memory(pricings[0].accelerator)
    degrees = f"tp={near.tp} cp={near.cp} pp={near.pp} dp={near.dp} ep={near.ep} micro-batch {near.micro_batch}"
    need = near.memory_bytes / GIB
    more = _gpus_that_hold(request, near.memory_bytes, usable)
    return Infeasibility(
        constraint=(
            f"memory: the layout that comes nearest ({degrees}, recompute {near.recompute}) needs {need:.1f} GiB "
            f"on its heaviest GPU, {usable / GIB:.1f} GiB usable"
        ),
        nearest_change=f"about {more} GPUs instead of {request.cluster.gpus}, or free what is pinned",
    )


def _states(request: PlanRequest, pricings: Sequence[Pricing]) -> Infeasibility:
    usable = usable_memory(pricings[0].accelerator)
    precision = request.job.precision
    each = (
        precision.weight_bytes + precision.extra_weight_bytes + precision.gradient_bytes + precision.master_bytes
        + request.job.optimizer_bytes
    )  # fmt: skip
    states = parameter_count(request.model).total * each
    gpus = request.cluster.gpus
    return Infeasibility(
        constraint=(
            f"memory: weights, gradients and optimizer states take {states / GIB:.0f} GiB "
            f"({each:g} bytes a parameter); {gpus} GPUs have {gpus * usable / GIB:.0f} GiB usable"
        ),
        nearest_change=f"about {_gpus_that_hold(request, states, gpus * usable)} GPUs instead of {gpus}",
    )


def _gpus_that_hold(request: PlanRequest, need_bytes: float, have_bytes: float) -> int:
    """GPUs, in whole nodes, that scale what is there to what is needed."""
    node = request.cluster.islands[0].node.gpus
    gpus = request.cluster.gpus * need_bytes / have_bytes
    return int(-(-gpus // node) * node)

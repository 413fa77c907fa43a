"""Why nothing is feasible: the tightest constraint in numbers, and the nearest change that was found to mend it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from costmodels.memory import usable_memory
from costmodels.pricing import Pricing
from costmodels.workload.counts import parameter_count
from hardware.cluster import Cluster
from planner.plan_report import Infeasibility
from planner.request import PlanRequest
from planner.search import UniformSearch
from planner.tally import Candidate, Tally

GIB: Final = 2.0**30
DOUBLINGS: Final = 7  # of the number of nodes that are tried
TRIAL_LIMIT_S: Final = 10.0  # of one trial: it ends with the first layout that fits


def explain_infeasible(request: PlanRequest, pricings: Sequence[Pricing], tally: Tally) -> Infeasibility:
    """Name what stood nearest to being feasible, and the first change after which a search finds a layout.

    Parameters
    ----------
    request : PlanRequest
        What was asked.
    pricings : sequence of Pricing
        One per island.
    tally : Tally
        The search's counts and the candidate that missed its memory by least.
    """
    return Infeasibility(constraint=_constraint(request, pricings, tally), nearest_change=_nearest_change(request))


def _constraint(request: PlanRequest, pricings: Sequence[Pricing], tally: Tally) -> str:
    if tally.nearest is not None:
        return _memory(pricings, tally.nearest)
    if tally.enumerated and sum(tally.rejected.values()) >= tally.enumerated:
        rule, count = tally.rejected.most_common(1)[0]
        return f"every one of {tally.enumerated} grids breaks a rule of {request.framework}; {count} break: {rule}"
    if tally.enumerated:
        return _states(request, pricings)
    pinned = ", ".join(f"{name}={value}" for name, value in request.fixed)
    what = f"no grid over {request.cluster.gpus} GPUs divides a global batch of {request.job.global_batch}"
    return what + (f" with {pinned}" if pinned else "")


def _memory(pricings: Sequence[Pricing], near: Candidate) -> str:
    usable = usable_memory(pricings[0].accelerator)
    degrees = f"tp={near.tp} cp={near.cp} pp={near.pp} dp={near.dp} ep={near.ep} micro-batch {near.micro_batch}"
    return (
        f"memory: the layout that comes nearest ({degrees}, recompute {near.recompute}) needs "
        f"{near.memory_bytes / GIB:.1f} GiB on its heaviest GPU, {usable / GIB:.1f} GiB usable"
    )


def _states(request: PlanRequest, pricings: Sequence[Pricing]) -> str:
    precision = request.job.precision
    each = (
        precision.weight_bytes
        + precision.extra_weight_bytes
        + (request.job.software.gradient_bytes or precision.gradient_bytes)
        + precision.master_bytes
        + request.job.optimizer_bytes
    )
    states = parameter_count(request.model).total * each
    usable = sum(pricing.island.gpus * usable_memory(pricing.accelerator) for pricing in pricings)
    return (
        f"memory: weights, gradients and optimizer states take {states / GIB:.0f} GiB ({each:g} bytes a parameter), "
        f"and activations come on top; {request.cluster.gpus} GPUs have {usable / GIB:.0f} GiB usable"
    )


def _nearest_change(request: PlanRequest) -> str:
    """The first change, in the order of what it costs a user, after which a search finds a layout."""
    for words, changed in _changes(request):
        found = _first_layout(changed)
        if found is not None:
            return f"{words}: {found} fits"
    return "none found among single pins, recompute, the global batch and up to 128 times as many nodes"


def _changes(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    """Changed requests: one pin less, recompute left free, all pins less, another batch, more nodes."""
    for name, value in request.fixed:
        rest = tuple(item for item in request.fixed if item[0] != name)
        yield f"free {name} (pinned to {value})", replace(request, fixed=rest)
    if request.recompute != "auto":
        yield "recompute auto", replace(request, recompute="auto")
    free = replace(request, fixed=(), recompute="auto")
    if len(request.fixed) > 1:
        yield "free all pins", free
    gpus = request.cluster.gpus
    batch = -(-request.job.global_batch // gpus) * gpus
    if batch != request.job.global_batch:
        yield f"a global batch of {batch}", replace(free, job=replace(request.job, global_batch=batch))
    for doubling in range(1, DOUBLINGS + 1):
        machine = _larger(request.cluster, 2**doubling)
        job = replace(request.job, global_batch=max(request.job.global_batch, machine.gpus))
        more = f"{machine.nodes} nodes ({machine.gpus} GPUs)"
        words = more if job == request.job else f"{more} and a global batch of {job.global_batch}"
        for kept in (request, free):
            if kept is request or request.fixed:
                pins = "" if kept is request or not request.fixed else " without pins"
                yield words + pins, replace(kept, cluster=machine, job=job)


def _larger(cluster: Cluster, times: int) -> Cluster:
    first = replace(cluster.islands[0], nodes=cluster.islands[0].nodes * times)
    return replace(cluster, islands=(first, *cluster.islands[1:]))


def _first_layout(request: PlanRequest) -> str | None:
    """Return the best layout that a short search finds on the first island, in short words."""
    pricing = Pricing(model=request.model, job=request.job, island=request.cluster.islands[0])
    tally = UniformSearch(replace(request, top=1, time_limit_s=TRIAL_LIMIT_S), pricing).run()
    if not tally.best:
        return None
    best = min(tally.best.values(), key=lambda candidate: candidate.order)
    degrees = (("TP", best.tp), ("PP", best.pp), ("CP", best.cp), ("EP", best.ep), ("DP", best.dp))
    return " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1) or "one GPU"

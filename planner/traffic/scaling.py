"""Tokens per second against accelerators: the same job on smaller and larger clusters, and where more stop to help."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from costmodels.pricing import Constants
from hardware.errors import InputError
from hardware.resized import with_nodes
from planner.planning import pricings_of
from planner.request import PlanRequest
from planner.search.objective import objective_value
from planner.search.refine import best_of_grid
from planner.search.uniform import UniformSearch

WORTH: Final = 0.5
"""Least part of a doubling's ideal gain for which more accelerators are said to help."""
POINT_LIMIT_S: Final = 20.0  # seconds of one search
MOST_DOUBLINGS: Final = 2  # beyond the cluster that was asked about
REFINED: Final = 3  # grids of a point whose layers are split anew
FEWEST: Final = 6  # doublings below it


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """The best layout on so many nodes.

    ``tokens_per_s`` is 0.0 and ``layout`` empty where none fits. ``efficiency`` is eta(N): tokens per second and
    accelerator over those of the smallest cluster that fits.
    """

    nodes: int
    gpus: int
    global_batch: int
    layout: str
    step_s: float
    tokens_per_s: float
    efficiency: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Curves at fixed batch and at a batch that grows with the cluster.

    ``helps_until`` is the largest number of accelerators of the fixed-batch curve up to which every doubling brings at
    least :data:`WORTH` of its ideal gain; 0 where nothing fits.
    """

    fixed: tuple[ScalePoint, ...]
    scaled: tuple[ScalePoint, ...]
    helps_until: int


def scaling_of(
    request: PlanRequest,
    constants: Constants | None = None,
    name_of: Callable[..., str] = str,
    progress: Callable[[str], None] | None = None,
) -> Scaling:
    """Search the best layout on clusters of a quarter, a half, twice, ... the nodes.

    Parameters
    ----------
    request : PlanRequest
        Its cluster has one island; its batch belongs to that cluster.
    constants : Constants, optional
        Of the cost models; default: those that ship.
    name_of : callable
        Makes a layout's name.
    progress : callable
        Told which point is searched.

    Returns
    -------
    Scaling

    Raises
    ------
    InputError
        The cluster has several islands.
    """
    if len(request.cluster.islands) > 1:
        raise InputError(
            f"{request.cluster.name} has {len(request.cluster.islands)} islands",
            allowed="a curve over GPUs needs a cluster of one kind of node",
        )
    nodes = request.cluster.nodes
    counts = sorted(
        {*(nodes >> k for k in range(FEWEST + 1) if nodes >> k), *(nodes << k for k in range(1, MOST_DOUBLINGS + 1))}
    )
    fixed, scaled = [], []
    for count in counts:
        if progress is not None:
            progress(f"{count} nodes")
        fixed.append(_point(request, count, request.job.global_batch, (constants, name_of)))
        batch = request.job.global_batch * count // nodes
        if batch == request.job.global_batch:
            scaled.append(fixed[-1])
        elif batch:
            scaled.append(_point(request, count, batch, (constants, name_of)))
    return Scaling(fixed=_with_efficiency(fixed), scaled=_with_efficiency(scaled), helps_until=_helps_until(fixed))


def _point(
    request: PlanRequest, nodes: int, batch: int, made: tuple[Constants | None, Callable[..., str]]
) -> ScalePoint:
    island = with_nodes(request.cluster.islands[0], nodes)
    asked = replace(
        request,
        cluster=replace(request.cluster, islands=(island,)),
        job=replace(request.job, global_batch=batch),
        top=1,
        time_limit_s=min(request.time_limit_s, POINT_LIMIT_S),
    )
    pricing = pricings_of(asked, made[0])[0]
    tally = UniformSearch(asked, pricing).run()
    chosen = sorted(tally.best.values(), key=lambda candidate: candidate.order)[:REFINED]
    found = [best_of_grid(asked, pricing, tally, candidate.key) for candidate in chosen]
    if not found:
        return ScalePoint(
            nodes=nodes, gpus=island.gpus, global_batch=batch, layout="", step_s=0.0, tokens_per_s=0.0, efficiency=0.0
        )
    layout, cost = min(found, key=lambda pair: objective_value(asked, *pair))
    return ScalePoint(
        nodes=nodes,
        gpus=island.gpus,
        global_batch=batch,
        layout=made[1](layout),
        step_s=cost.step.total_s,
        tokens_per_s=cost.tokens_per_s,
        efficiency=0.0,
    )


def _with_efficiency(points: list[ScalePoint]) -> tuple[ScalePoint, ...]:
    first = next((point for point in points if point.tokens_per_s > 0.0), None)
    if first is None:
        return tuple(points)
    best = first.tokens_per_s / first.gpus
    return tuple(replace(point, efficiency=point.tokens_per_s / point.gpus / best) for point in points)


def _helps_until(points: list[ScalePoint]) -> int:
    """Largest count that is still worth its last doubling."""
    held = 0
    for before, point in zip([None, *points], points, strict=False):
        if point.tokens_per_s <= 0.0:
            continue
        if before is not None and before.tokens_per_s > 0.0:
            gain = point.tokens_per_s / before.tokens_per_s - 1.0
            if gain < WORTH * (point.gpus / before.gpus - 1.0):
                break
        held = point.gpus
    return held

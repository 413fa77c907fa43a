"""What a layout's step would take on a machine with a slower or faster network: how much each fabric matters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from costmodels.layout import Layout
from costmodels.placement import Placement
from costmodels.pricing import Constants
from hardware.cluster import Cluster, NodeType
from planner.plan_report import RankedLayout
from planner.planning import estimate
from planner.request import PlanRequest

FACTORS: Final = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Step time with one fabric ``factor`` times as fast."""

    fabric: str
    factor: float
    step_s: float


def sensitivities(
    request: PlanRequest, layout: Layout, constants: Constants | None = None, there: Placement | None = None
) -> tuple[Sensitivity, ...]:
    """Price a layout with each fabric at half and at double its rate.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    layout : Layout
        Kept as it is.
    constants : Constants, optional
        Of the cost models; default: those that ship.
    there : Placement, optional
        Where its ranks run; default: where they are best.

    Returns
    -------
    tuple of Sensitivity
        The network between nodes is left out for a cluster of one node.
    """
    fabrics: list[tuple[str, Callable[[NodeType, float], NodeType]]] = [("scale-up", _scale_up)]
    if request.cluster.nodes > 1:
        fabrics.append(("network", _network))
    return tuple(
        Sensitivity(
            fabric=name,
            factor=factor,
            step_s=estimate(
                _on(request, partial(_changed, change, factor)), layout, constants, there
            ).cost.step.total_s,
        )
        for name, change in fabrics
        for factor in FACTORS
    )


def on_scaled_fabrics(
    request: PlanRequest,
    layout: Layout,
    factor: float,
    constants: Constants | None = None,
    there: Placement | None = None,
) -> RankedLayout:
    """Price a layout on the same machine with every fabric ``factor`` times as fast, its ranks where they run."""
    return estimate(_on(request, lambda node: _scale_up(_network(node, factor), factor)), layout, constants, there)


def _changed(change: Callable[[NodeType, float], NodeType], factor: float, node: NodeType) -> NodeType:
    return change(node, factor)


def _on(request: PlanRequest, change: Callable[[NodeType], NodeType]) -> PlanRequest:
    """The request on machines whose nodes are changed."""
    machine = request.cluster
    islands = tuple(replace(island, node=change(island.node)) for island in machine.islands)
    changed: Cluster = replace(machine, islands=islands)
    return replace(request, cluster=changed)


def _scale_up(node: NodeType, factor: float) -> NodeType:
    fabric = node.scale_up
    faster = replace(fabric, bytes_per_s=fabric.bytes_per_s * factor, pair_bytes_per_s=fabric.pair_bytes_per_s * factor)
    return replace(node, scale_up=faster)


def _network(node: NodeType, factor: float) -> NodeType:
    """Scale the adapters and the links that feed them, so that neither hides the other."""
    nics = node.nics
    faster = replace(nics, bytes_per_s=nics.bytes_per_s * factor, gpu_bytes_per_s=nics.gpu_bytes_per_s * factor)
    return replace(node, nics=faster)


def with_network(request: PlanRequest, factor: float) -> PlanRequest:
    """Return the request on a machine whose network between nodes is ``factor`` times as fast."""
    machine = request.cluster
    islands = tuple(replace(island, node=_network(island.node, factor)) for island in machine.islands)
    between = machine.inter_island_bytes_per_s * factor
    return replace(request, cluster=replace(machine, islands=islands, inter_island_bytes_per_s=between))

"""What to change in a layout: its neighbours priced, in the order of what they cost for what they give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from costmodels.job import Software
from costmodels.layout import Layout
from costmodels.placement import Placement
from costmodels.pricing import Constants
from costmodels.results import LayoutCost, Verdict
from hardware.errors import InputError
from planner.advice.neighbours import neighbours
from planner.placement import SAME, stated_placement
from planner.plan_report import PlanReport
from planner.planning import estimate
from planner.request import Framework, PlanRequest

MOST_STEPS: Final = 6
"""Changes upon one another after which a launch is no longer the one that was asked about."""
LEAST_SAVING_BYTES = 64.0 * 2**20
"""Savings below it are within what allocators round."""
LEAST_GAIN: Final = 5e-4
"""Smallest share of a step that a faster layout gains: below, its gain is written 0.0 %."""
OFFLOADING: Final = (Framework.MEGATRON, Framework.BRIDGE, Framework.DEEPSPEED)
"""Frameworks whose optimizer runs in the host on a switch: ``--optimizer-cpu-offload``, ``offload_optimizer``."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change with its price, against the layout as it is.

    Attributes
    ----------
    lost_s : float
        Seconds that a step takes more; negative when it becomes faster.
    saved_bytes : float
        Memory that the heaviest GPU holds less; negative when it holds more.
    host_bytes_per_node : float
        What the host of a node holds for its GPUs; 0.0 without offload.
    """

    change: str
    layout: Layout
    cost: LayoutCost
    lost_s: float
    saved_bytes: float
    host_bytes_per_node: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Whether the changed layout fits."""
        return self.cost.heaviest.verdict

    @property
    def lost_s_per_byte(self) -> float:
        """Time lost for each byte saved; what orders remedies that save memory."""
        return self.lost_s / self.saved_bytes


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """Changes that save memory, cheapest first, and changes that fit and are faster, fastest first.

    ``together`` are changes that make a layout fit one upon the other, see :func:`mended`.
    """

    saving: tuple[Remedy, ...]
    faster: tuple[Remedy, ...]
    together: tuple[Remedy, ...] = ()


def repriced(report: PlanReport, ranks: Sequence[int], constants: Constants | None = None) -> PlanReport:
    """Price some layouts of a report anew, so that they compare with what is priced now.

    Parameters
    ----------
    report : PlanReport
        As it was read.
    ranks : sequence of int
        From 1; ranks beyond the last are passed over.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    PlanReport
        Equal to the report where the cost models have not changed since.
    """
    layouts = list(report.layouts)
    for number in (rank - 1 for rank in ranks if rank <= len(layouts)):
        request = report.request_of(layouts[number])
        there = stated_placement(layouts[number], request)
        now = estimate(request, layouts[number].layout, constants, there)
        layouts[number] = replace(layouts[number], cost=now.cost, placement=now.placement, in_order=now.in_order)
    return replace(report, layouts=tuple(layouts))


def remedies(
    request: PlanRequest,
    layout: Layout,
    cost: LayoutCost,
    constants: Constants | None = None,
    there: Placement | None = None,
) -> Remedies:
    """Price every neighbour of a layout.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    layout : Layout
        Where to start from.
    cost : LayoutCost
        Its price.
    constants : Constants, optional
        Of the cost models; default: those that ship.
    there : Placement, optional
        Where the ranks of ``layout`` run. Where others are better that is a change of its own, and the ranks of the
        neighbours stay where they are, so that each change is priced alone.

    Returns
    -------
    Remedies
        Each ordered with an explicit tie-break, so that the same layout always gives the same list.
    """
    better = [] if there is None else _placed_anew(request, layout, cost, constants)
    stays = there if better else None
    found = [
        *better,
        *_offloaded(request, layout, cost, constants, stays),
        *_reduced_each(request, layout, cost, constants, stays),
    ]
    for neighbour in neighbours(request, layout, cost):
        if not request.sayable.says(neighbour.layout):
            continue
        try:
            price = estimate(request, neighbour.layout, constants, stays).cost
        except InputError:  # a schedule that cannot run with these sizes is no remedy
            continue
        found.append(_remedy(neighbour.change, neighbour.layout, cost, price))
    saving = [remedy for remedy in found if remedy.saved_bytes > LEAST_SAVING_BYTES]
    most_s = -LEAST_GAIN * cost.step.total_s
    faster = [remedy for remedy in found if remedy.lost_s < most_s and remedy.verdict is not Verdict.OOM]
    return Remedies(
        saving=tuple(sorted(saving, key=lambda remedy: (remedy.lost_s_per_byte, remedy.change))),
        faster=tuple(sorted(faster, key=lambda remedy: (remedy.lost_s, remedy.change))),
    )


def mended(request: PlanRequest, found: Remedies, constants: Constants | None = None) -> Remedies:
    """Add the changes that make a layout fit together: each time the one that loses the least for each byte.

    Parameters
    ----------
    request : PlanRequest
        As of :func:`remedies`.
    found : Remedies
        Changes of a layout that does not fit.
    constants : Constants, optional
        As of :func:`remedies`.

    Returns
    -------
    Remedies
        With ``together``, each change priced with those before it; without, where one suffices or many do not.
    """
    steps: list[Remedy] = []
    saving = found.saving
    while len(steps) < MOST_STEPS:
        step = next((remedy for remedy in saving if not remedy.host_bytes_per_node), None)
        if step is None:
            break
        steps.append(step)
        if step.verdict is not Verdict.OOM:
            return replace(found, together=tuple(steps) if len(steps) > 1 else ())
        saving = remedies(request, step.layout, step.cost, constants).saving
    return found


def _placed_anew(request: PlanRequest, layout: Layout, cost: LayoutCost, constants: Constants | None) -> list[Remedy]:
    """The same layout with its ranks where they are best, if that is another place."""
    price = estimate(request, layout, constants).cost
    lost_s = price.step.total_s - cost.step.total_s
    if lost_s >= -SAME * cost.step.total_s:
        return []
    return [Remedy(change="ranks placed anew", layout=layout, cost=price, lost_s=lost_s, saved_bytes=0.0)]


def _offloaded(
    request: PlanRequest, layout: Layout, cost: LayoutCost, constants: Constants | None, there: Placement | None
) -> list[Remedy]:
    """The same layout with the optimizer's states in host memory, for frameworks that have that."""
    software = request.job.software
    if request.framework not in OFFLOADING or software.optimizer_offload or software.state_offload:
        return []
    price = estimate(_under(request, replace(software, optimizer_offload=True)), layout, constants, there).cost
    remedy = _remedy("optimizer states in host memory", layout, cost, price)
    return [replace(remedy, host_bytes_per_node=host_bytes_per_node(request, layout, price))]


def _reduced_each(
    request: PlanRequest, layout: Layout, cost: LayoutCost, constants: Constants | None, there: Placement | None
) -> list[Remedy]:
    """The same layout with gradients that are reduced with every micro-batch, where whole ones wait for the last."""
    software = request.job.software
    if software.sync_each_batch or not dict(cost.heaviest.components).get("unreduced", 0.0):
        return []
    price = estimate(_under(request, replace(software, sync_each_batch=True)), layout, constants, there).cost
    return [_remedy("gradients reduced with every micro-batch (sync_each_batch)", layout, cost, price)]


def _under(request: PlanRequest, software: Software) -> PlanRequest:
    """The request with other software."""
    return replace(request, job=replace(request.job, software=software))


def _remedy(change: str, layout: Layout, cost: LayoutCost, price: LayoutCost) -> Remedy:
    """A change, from the price of the layout as it is and that of the changed one."""
    return Remedy(
        change=change,
        layout=layout,
        cost=price,
        lost_s=price.step.total_s - cost.step.total_s,
        saved_bytes=cost.heaviest.total_bytes - price.heaviest.total_bytes,
    )


def host_bytes_per_node(request: PlanRequest, layout: Layout, cost: LayoutCost) -> float:
    """Return what the host of a node holds for the accelerators of a layout on it [B]."""
    stage = cost.heaviest.stage
    node = request.cluster.islands[layout.stages[stage].island].node
    return max(use.host_bytes for use in cost.memory) * min(node.gpus, layout.gpus)

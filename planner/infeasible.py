"""Why nothing is feasible: the tightest constraint in numbers, and the nearest change that was found to mend it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from costmodels.layout import Layout
from costmodels.memory import usable_memory
from costmodels.pricing import Constants, Pricing
from costmodels.workload.counts import parameter_count
from planner.build import on_island
from planner.changes import DOUBLINGS, Change, batches, choices, more_nodes, shorter, without_choices
from planner.plan_report import Infeasibility
from planner.refine import layout_of
from planner.request import PlanRequest
from planner.search import UniformSearch
from planner.smallest import Smallest, smallest_layout
from planner.tally import Tally

GIB: Final = 2.0**30
LOOK_LIMIT_S: Final = 20.0  # for looking for a change
STATES: Final = ("weights", "gradients", "optimizer")


def explain_infeasible(request: PlanRequest, pricings: Sequence[Pricing], tally: Tally) -> Infeasibility:
    """Name what stood nearest to being feasible, and the first change after which a search finds a layout.

    Parameters
    ----------
    request : PlanRequest
        What was asked.
    pricings : sequence of Pricing
        One per island.
    tally : Tally
        The search's counts.

    Returns
    -------
    Infeasibility
        ``remedy`` is the changed request, when one was found.
    """
    found = [entry for entry in (smallest_layout(request, pricing) for pricing in pricings) if entry is not None]
    near = min(found, key=lambda entry: entry.use.total_bytes / entry.use.usable_bytes, default=None)
    constraint = _memory(request, pricings, near) if near is not None else _rules(request, tally)
    mended = _Look(deadline=time.monotonic() + LOOK_LIMIT_S, constants=_constants_by_part(pricings)).nearest(
        request, near
    )
    if mended is None:
        return Infeasibility(constraint=constraint, nearest_change=f"none found: {_tried(request)} did not help")
    change, layout = mended
    return Infeasibility(
        constraint=constraint, nearest_change=f"{change.words}: {in_short(layout)} fits", remedy=change.request
    )


@dataclass(frozen=True, kw_only=True)
class _Look:
    """Looking for a change until a deadline of ``time.monotonic``; what it finds has been searched."""

    deadline: float
    constants: Mapping[str, Constants]  # by accelerator

    def nearest(self, request: PlanRequest, near: Smallest | None) -> tuple[Change, Layout] | None:
        """The first change, in the order of what it costs a user, after which a layout fits."""
        free = without_choices(request)
        return (
            self._first(choices(request))
            or (self._first(batches(request)) if near is None else None)
            or self._fewest_nodes(request, "")
            or (self._fewest_nodes(free.request, free.words) if free is not None else None)
            or self._first(shorter(request))
        )

    def _first(self, changes: Iterable[Change]) -> tuple[Change, Layout] | None:
        for change in changes:
            layout = self._layout(change.request)
            if layout is not None:
                return change, layout
        return None

    def _fewest_nodes(self, request: PlanRequest, also: str) -> tuple[Change, Layout] | None:
        """Double the nodes until a layout fits, then halve the step between what did not fit and what did."""
        nodes = request.cluster.islands[0].nodes
        found: tuple[Change, Layout] | None = None
        low = high = nodes
        for _ in range(DOUBLINGS):
            low, high = high, 2 * high
            found = self._first([more_nodes(request, high)])
            if found is not None:
                break
        while found is not None and high - low > 1:
            middle = (low + high) // 2
            fewer = self._first([more_nodes(request, middle)])
            low, high, found = (low, middle, fewer) if fewer is not None else (middle, high, found)
        if found is None or not also:
            return found
        change, layout = found
        return Change(words=f"{also}, {change.words}", request=change.request), layout

    def _layout(self, request: PlanRequest) -> Layout | None:
        """Some layout of a request on one of its islands, one that fits safely if there is one."""
        for number, island in enumerate(request.cluster.islands):
            left = self.deadline - time.monotonic()
            if left <= 0.0:
                return None
            constants = self.constants[island.node.accelerator.name]
            pricing = Pricing(model=request.model, job=request.job, island=island, constants=constants)
            asked = replace(request, top=1, time_limit_s=left)
            tally = UniformSearch(asked, pricing, any_will_do=True).run()
            if tally.best:
                best = min(tally.best.values(), key=lambda candidate: candidate.order)
                return on_island(layout_of(best), number)
        return None


def _constants_by_part(pricings: Sequence[Pricing]) -> Mapping[str, Constants]:
    return MappingProxyType({pricing.accelerator.name: pricing.constants for pricing in pricings})


def _memory(request: PlanRequest, pricings: Sequence[Pricing], near: Smallest) -> str:
    """The states alone when they exceed all memory there is, else the layout that needs least."""
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
    if states > usable:
        return (
            f"memory: weights, gradients and optimizer states take {states / GIB:.0f} GiB ({each:g} bytes a "
            f"parameter), and activations come on top; {request.cluster.gpus} GPUs have {usable / GIB:.0f} GiB usable"
        )
    use = near.use
    own = sum(size for name, size in use.components if name in STATES)
    first = near.layout.first
    return (
        f"memory: even {in_short(near.layout)} with micro-batch {near.layout.micro_batch} and recompute "
        f"{first.recompute} needs {use.total_bytes / GIB:.1f} GiB on the heaviest GPU of stage {use.stage}, "
        f"{use.usable_bytes / GIB:.1f} GiB usable; {own / GIB:.1f} GiB are weights, gradients and optimizer states"
    )


def _rules(request: PlanRequest, tally: Tally) -> str:
    """No grid is legal: the rule that most of them break, or that none multiplies out."""
    if tally.rejected:
        rule, count = tally.rejected.most_common(1)[0]
        return f"every one of {tally.enumerated} grids breaks a rule of {request.framework}; {count} break: {rule}"
    pinned = ", ".join(f"{name}={value}" for name, value in request.fixed)
    what = f"no grid over {request.cluster.gpus} GPUs divides a global batch of {request.job.global_batch}"
    return what + (f" with {pinned}" if pinned else "")


def _tried(request: PlanRequest) -> str:
    """What was looked at in vain."""
    own = ["single pins"] if request.fixed else []
    own += ["recompute"] if request.recompute != "auto" else []
    words = [*own, f"up to {2**DOUBLINGS} times as many nodes", "shorter sequences"]
    return ", ".join(words[:-1]) + f" and {words[-1]}"


def in_short(layout: Layout) -> str:
    """Degrees of a layout that are not 1, as titles have them."""
    first = layout.first
    degrees = (("TP", first.tp), ("PP", layout.pp), ("CP", first.cp), ("EP", first.ep), ("DP", first.dp))
    named = [f"{name}{degree}" for name, degree in degrees if degree > 1]
    return " ".join([*named, *([f"ZeRO{first.zero}"] if first.zero > 1 else [])]) or "one GPU"

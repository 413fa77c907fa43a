"""Why nothing is feasible: the tightest constraint in numbers, and the nearest change that was found to mend it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from costmodels.layout import Layout
from costmodels.memory import usable_memory
from costmodels.pricing import Constants, Pricing
from costmodels.workload.counts import parameter_count
from hardware.cluster import Cluster
from hardware.nouns import count
from planner.infeasible.changes import (
    DOUBLINGS,
    Change,
    and_more_sequences,
    batches,
    choices,
    fewer_nodes,
    more_nodes,
    shorter,
    without_choices,
)
from planner.layouts.build import on_island
from planner.layouts.grids import expert_count, world_sizes
from planner.plan_report import Infeasibility
from planner.request import PlanRequest
from planner.search.effort import UNENDING, Until
from planner.search.refine import layout_of
from planner.search.smallest import Smallest, smallest_layout
from planner.search.tally import Tally
from planner.search.uniform import Aim, UniformSearch

GIB: Final = 2.0**30
FIRST_STEP: Final = 4  # the first step is this part of the nodes
LOOK_LIMIT_S: Final = 20.0  # for looking for a change, within the time limit of the request
LEAST_LOOK_S: Final = 0.5  # where the search has taken all of it
STATES: Final = ("weights", "gradients", "optimizer")


def explain_infeasible(
    request: PlanRequest, pricings: Sequence[Pricing], tally: Tally, until: Until = UNENDING
) -> Infeasibility:
    """Name what stood nearest to being feasible, and the first change after which a search finds a layout.

    Parameters
    ----------
    request : PlanRequest
        What was asked.
    pricings : sequence of Pricing
        One per island.
    tally : Tally
        The search's counts.
    until : Until, optional
        The end of the request.

    Returns
    -------
    Infeasibility
        ``remedy`` is the changed request, when one was found.
    """
    found = [entry for entry in (smallest_layout(request, pricing) for pricing in pricings) if entry is not None]
    near = min(found, key=lambda entry: entry.use.total_bytes / entry.use.usable_bytes, default=None)
    constraint = _memory(request, pricings, near) if near is not None else _rules(request, tally)
    constraint = _cut(request, tally) + constraint
    length_s = min(LOOK_LIMIT_S, max(LEAST_LOOK_S, until.left_s))
    look = _Look(
        until=until.after(LEAST_LOOK_S).beyond(until.within(until.after(LOOK_LIMIT_S, math.inf))),
        constants=_constants_by_part(pricings),
        states_bytes=states_bytes(request),
    )
    mended = look.nearest(request, near)
    if not mended:
        what = f"none found: {_tried(request)} did not help"
        late = f" within {length_s:.1f} s" if look.until.late() else ""
        return Infeasibility(constraint=constraint, nearest_change=what + late)
    words = [f"{change.words}: {in_short(layout)} fits" for change, layout in mended]
    return Infeasibility(constraint=constraint, nearest_change="; or ".join(words), remedy=mended[0][0].request)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """Looking for a change until an end; what it finds has been searched."""

    until: Until
    constants: Mapping[str, Constants]  # by accelerator
    states_bytes: float

    def nearest(self, request: PlanRequest, near: Smallest | None) -> list[tuple[Change, Layout]]:
        """The first change, in the order of what it costs a user, after which a layout fits.

        More nodes and shorter sequences cost users differently, so both are given where both do.
        """
        free = without_choices(request)
        chosen = self._first(choices(request))
        if chosen is not None:
            return [chosen]
        divided = self._divided(request) if near is None else []
        if divided:
            return divided
        # Long sequences first: they are the cheaper search, and none can help where the states alone are too large.
        less = self._first(shorter(request)) if self._states_fit(request.cluster) else None
        more = self._more(request, "")
        if more is None and free is not None:
            more = self._more(free.request, free.words)
        return [found for found in (more, less) if found is not None]

    def _divided(self, request: PlanRequest) -> list[tuple[Change, Layout]]:
        """Another batch and a part of the machine, where what is asked does not divide; the smaller change first."""

        def size(found: tuple[Change, Layout]) -> float:
            other = found[0].request
            batch = other.job.global_batch / request.job.global_batch
            return abs(math.log(batch * request.cluster.gpus / other.cluster.gpus))

        other = (self._first(batches(request)), self._first(fewer_nodes(request, self.until)))
        return sorted((found for found in other if found is not None), key=size)

    def _more(self, request: PlanRequest, also: str) -> tuple[Change, Layout] | None:
        """More nodes, and only where they alone do not help a larger batch too."""
        return self._fewest_nodes(request, also, more_nodes) or self._fewest_nodes(request, also, and_more_sequences)

    def _states_fit(self, machine: Cluster) -> bool:
        usable = sum(island.gpus * usable_memory(island.node.accelerator) for island in machine.islands)
        return self.states_bytes <= usable

    def _first(self, changes: Iterable[Change]) -> tuple[Change, Layout] | None:
        for change in changes:
            layout = self._layout(change.request)
            if layout is not None:
                return change, layout
        return None

    def _fewest_nodes(
        self, request: PlanRequest, also: str, changed: Callable[[PlanRequest, int], Change]
    ) -> tuple[Change, Layout] | None:
        """Add nodes in growing steps until a layout fits, then halve the step between what did not fit and what did.

        Fewer nodes than hold the states are passed over.
        """
        most = request.cluster.islands[0].nodes * 2**DOUBLINGS
        found: tuple[Change, Layout] | None = None
        high = self._nodes_too_few(request)
        low, step = high, max(1, high // FIRST_STEP)
        while found is None and high < most:
            low, high, step = high, min(high + step, most), 2 * step
            found = self._first([changed(request, high)])
        while found is not None and high - low > 1:
            middle = (low + high) // 2
            fewer = self._first([changed(request, middle)])
            low, high, found = (low, middle, fewer) if fewer is not None else (middle, high, found)
        if found is None or not also:
            return found
        change, layout = found
        return Change(words=f"{also}, {change.words}", request=change.request), layout

    def _nodes_too_few(self, request: PlanRequest) -> int:
        """The largest number of nodes of the first island of which is known that it does not do."""
        first, *others = request.cluster.islands
        elsewhere = sum(island.gpus * usable_memory(island.node.accelerator) for island in others)
        each = first.node.gpus * usable_memory(first.node.accelerator)
        needed = math.ceil((self.states_bytes - elsewhere) / each)
        return min(max(first.nodes, needed - 1), first.nodes * 2**DOUBLINGS)

    def _layout(self, request: PlanRequest) -> Layout | None:
        """Some layout of a request on one of its islands, one that fits safely if there is one."""
        for number, island in enumerate(request.cluster.islands):
            if self.until.late():
                return None
            constants = self.constants[island.node.accelerator.name]
            pricing = Pricing(model=request.model, job=request.job, island=island, constants=constants)
            asked = replace(request, top=1)
            tally = UniformSearch(asked, pricing, Aim(any_will_do=True), self.until).run()
            if tally.best:
                best = min(tally.best.values(), key=lambda candidate: candidate.order)
                return on_island(layout_of(best), number)
        return None


def _constants_by_part(pricings: Sequence[Pricing]) -> Mapping[str, Constants]:
    return MappingProxyType({pricing.accelerator.name: pricing.constants for pricing in pricings})


def _cut(request: PlanRequest, tally: Tally) -> str:
    """That grids were left when the time ended, where some were; else nothing."""
    left = sum(number for reason, number in tally.pruned.items() if "time limit" in reason)
    return f"the time limit of {request.time_limit_s:g} s left {count(left, 'candidate')}; " if left else ""


def _memory(request: PlanRequest, pricings: Sequence[Pricing], near: Smallest) -> str:
    """The states alone when they exceed all memory there is, else the layout that needs least."""
    states = states_bytes(request)
    each = states / parameter_count(request.model).total
    usable = sum(pricing.island.gpus * usable_memory(pricing.accelerator) for pricing in pricings)
    if states > usable:
        machine = f"{count(request.cluster.gpus, 'GPU')} {'has' if request.cluster.gpus == 1 else 'have'}"
        return (
            f"memory: weights, gradients and optimizer states take {states / GIB:.0f} GiB ({each:g} bytes a "
            f"parameter), and activations come on top; {machine} {usable / GIB:.0f} GiB usable"
        )
    use = near.use
    own = sum(size for name, size in use.components if name in STATES)
    first = near.layout.first
    return (
        f"memory: even {in_short(near.layout)} with micro-batch {near.layout.micro_batch} and recompute "
        f"{first.recompute} needs {use.total_bytes / GIB:.1f} GiB on the heaviest GPU of stage {use.stage}, "
        f"{use.usable_bytes / GIB:.1f} GiB usable; {own / GIB:.1f} GiB are weights, gradients and optimizer states"
    )


def states_bytes(request: PlanRequest) -> float:
    """Bytes of weights, gradients and optimizer states of the whole model, each kept once."""
    return sum(size for _, size in states_parts(request))


def states_parts(request: PlanRequest) -> tuple[tuple[str, float], ...]:
    """Bytes of each kind of state of the whole model, each kept once, the largest first."""
    precision, trained = request.job.precision, request.job.trained_share
    parameters = parameter_count(request.model).total
    parts = (
        ("weights", precision.weight_bytes + precision.extra_weight_bytes),
        ("gradients", trained * (request.job.software.gradient_bytes or precision.gradient_bytes)),
        ("optimizer", trained * (precision.master_bytes + request.job.optimizer_bytes)),
    )
    return tuple(sorted(((name, parameters * each) for name, each in parts), key=lambda part: (-part[1], part[0])))


def _rules(request: PlanRequest, tally: Tally) -> str:
    """No grid is legal: the rule that most of them break, or that none multiplies out."""
    if tally.rejected:
        rule, broken = tally.rejected.most_common(1)[0]
        every = f"each of {count(tally.enumerated, 'grid')} breaks a rule of {request.framework}"
        return f"{every}; of these {broken:,} by: {rule}"
    return _indivisible(request) or _batch(request)


def _indivisible(request: PlanRequest) -> str:
    """Pinned degrees that no number of GPUs multiplies out to, or that the model lacks; empty where there are none."""
    pins = dict(request.fixed)
    sizes = sorted({size for island in request.cluster.islands for size in world_sizes(island)}, reverse=True)
    planned = ", ".join(map(str, sizes))
    dense = {name: pins[name] for name in ("tp", "cp", "pp", "dp") if pins.get(name, 1) > 1}
    if all(size % math.prod(dense.values()) for size in sizes):
        words = " x ".join(f"{name}={value}" for name, value in dense.items())
        return f"{words} divides none of the numbers of GPUs that are planned: {planned}"
    routed = {name: pins[name] for name in ("ep", "etp") if pins.get(name, 1) > 1}
    words = " x ".join(f"{name}={value}" for name, value in routed.items())
    experts = expert_count(request.model)
    if routed and not experts:
        return f"{words}, but {request.model.name} has no experts"
    if routed and experts % routed.get("ep", 1):
        return f"{experts} experts do not divide by ep={routed['ep']}"
    if routed and all(size % (math.prod(routed.values()) * dense.get("pp", 1)) for size in sizes):
        stages = f" with pp={dense['pp']}" if "pp" in dense else ""
        return f"{words} divides the GPUs of no stage{stages}; numbers of GPUs that are planned: {planned}"
    return ""


def _batch(request: PlanRequest) -> str:
    """What does not multiply out where the degrees do."""
    pinned = ", ".join(f"{name}={value}" for name, value in request.fixed)
    what = f"no grid over {count(request.cluster.gpus, 'GPU')} divides a global batch of {request.job.global_batch}"
    return what + (f" with {pinned}" if pinned else "")


def _tried(request: PlanRequest) -> str:
    """What was looked at in vain."""
    words = ["single pins"] if request.fixed else []
    words += ["recompute"] if request.recompute != "auto" else []
    words += [f"up to {2**DOUBLINGS} times as many nodes"]
    words += ["shorter sequences"] if any(shorter(request)) else []
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def in_short(layout: Layout) -> str:
    """Degrees of a layout that are not 1, as titles have them."""
    first = layout.first
    degrees = (("TP", first.tp), ("PP", layout.pp), ("CP", first.cp), ("EP", first.ep), ("DP", first.dp))
    named = [f"{name}{degree}" for name, degree in degrees if degree > 1]
    group = f"/{first.shard_group}" if first.shard_group else ""
    return " ".join([*named, *([f"ZeRO{first.zero}{group}"] if first.zero > 1 or group else [])]) or "one GPU"

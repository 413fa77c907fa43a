"""What heat and power say about a layout: its accelerators one by one, and what another micro-batch would change."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from costmodels.layout import Layout
from costmodels.pipeline.schedules import runs
from costmodels.power.heat import heat_problem, identity_maps, once
from costmodels.power.state import power_state
from costmodels.pricing import Constants
from costmodels.results import LayoutCost, SlotState, Verdict
from planner.placement import stated_placement
from planner.plan_report import RankedLayout
from planner.planning import estimate, pricings_of
from planner.request import PlanRequest

FACTORS: Final = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class MicroBatchChange:
    """Another micro-batch, and what it adds (or saves): bubble and step [s], peak draw [W], hottest die [degree C].

    ``before_s`` and ``before_w`` are step and peak draw of the one in use.
    """

    micro_batch: int
    before_s: float
    before_w: float
    step_s: float
    bubble_s: float
    peak_w: float
    hottest_c: float
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class HeatAdvice:
    """Accelerators by place, and micro-batches next to the one in use."""

    slots: tuple[SlotState, ...]
    micro_batches: tuple[MicroBatchChange, ...]


def heat_advice(request: PlanRequest, ranked: RankedLayout, constants: Constants | None = None) -> HeatAdvice:
    """Look at the accelerators of a layout and at half and twice its micro-batch.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    ranked : RankedLayout
        The layout with its price. Where heat was not priced, its accelerators are those at the clocks that the power
        limit leaves and heat allows, in steps as long as without heat.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    HeatAdvice
        Micro-batches that the schedule cannot run are left out; with the others ranks stay where they are.
    """
    slots = ranked.cost.power.slots
    if not slots:
        problem = heat_problem(pricings_of(request, constants), ranked.layout)
        slots = power_state(problem, once(problem, identity_maps(problem)), 0, by_slot=True).slots
    there = stated_placement(ranked, request)
    others = (_with_micro_batch(ranked.layout, factor) for factor in FACTORS)
    changes = [
        _change(ranked.cost, other, estimate(request, other, constants, there).cost)
        for other in others
        if other is not None
    ]
    return HeatAdvice(slots=slots, micro_batches=tuple(changes))


def _with_micro_batch(layout: Layout, factor: float) -> Layout | None:
    """The layout with a micro-batch ``factor`` times as large; None where batch or schedule does not allow it."""
    micro_batch, count = layout.micro_batch * factor, layout.num_microbatches / factor
    if micro_batch != int(micro_batch) or count != int(count) or not micro_batch:
        return None
    if layout.pp > 1 and not runs(layout.schedule, layout.pp, layout.vpp, int(count)):
        return None
    return replace(layout, micro_batch=int(micro_batch), num_microbatches=int(count), microbatch_group=0)


def _change(before: LayoutCost, layout: Layout, after: LayoutCost) -> MicroBatchChange:
    return MicroBatchChange(
        micro_batch=layout.micro_batch,
        before_s=before.step.total_s,
        before_w=before.power.peak_gpu_w,
        step_s=after.step.total_s - before.step.total_s,
        bubble_s=after.step.bubble_s - before.step.bubble_s,
        peak_w=after.power.peak_gpu_w - before.power.peak_gpu_w,
        hottest_c=after.power.max_temp_c - before.power.max_temp_c,
        verdict=after.heaviest.verdict,
    )


def hottest(slots: Sequence[SlotState], most: int) -> tuple[SlotState, ...]:
    """Return the slots in order of their places, the hottest ``most`` where there are more."""
    kept = sorted(slots, key=lambda slot: (-slot.peak_c, slot.island, slot.node, slot.gpu))[:most]
    return tuple(sorted(kept, key=lambda slot: (slot.island, slot.node, slot.gpu)))

"""Where a layout's time goes and what would change it: values that reports print.

The waterfall starts at the time that the model's own FLOPs would take at peak and adds every loss in turn; it ends at
the step time exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from costmodels.mesh import Axis, domains, group_of
from costmodels.pricing import layout_tiers
from costmodels.results import LayoutCost, StepTime
from costmodels.table import table_of
from hardware.cluster import Cluster
from planner.plan_report import RankedLayout

_PARTS: Final = (
    (
        "compute_s",
        "other compute",
        (
            ("memory", "memory-bound ops"),
            ("launch", "waiting for the host to start kernels"),
            ("recompute", "recompute"),
            ("optimizer", "optimizer"),
        ),
    ),
    (
        "exposed_comm_s",
        "other exchange",
        (
            ("tp", "tensor-parallel exchange"),
            ("cp", "context-parallel exchange"),
            ("ep", "expert exchange"),
            ("routing", "waiting for the busiest expert rank"),
            ("weights", "weight gathers of every micro-batch"),
            ("shared", "waits for shared links"),
            ("gradient_reduction", "gradient reduction"),
            ("weight_gather", "weight gather of the step"),
            ("reshard", "activations between unlike layers"),
            ("offload", "activations to and from host memory"),
        ),
    ),
    ("bubble_s", "pipeline bubble", ()),
    ("sync_s", "waiting for the slowest rank", ()),
    ("io_s", "checkpoints", ()),
)
"""Parts of a step in the order of the waterfall, what their rest is called, and the details that belong to each."""

_MATRIX_TITLES: Final = (("gemm", "matrix products"), ("attention", "attention"))
_MATRIX_WORK: Final = tuple(name for name, _ in _MATRIX_TITLES)
_EXPLAINED_AXES: Final = (Axis.TP, Axis.CP, Axis.EP, Axis.DP_CP, Axis.PP)


@dataclass(frozen=True, kw_only=True)
class TimeLoss:
    """One step of the waterfall: what it is and the seconds that it adds (negative when it gives back)."""

    name: str
    value_s: float


@dataclass(frozen=True, kw_only=True)
class Fall:
    """A loss with the utilization of the peak that is left after it: 1.0 at the top, the step's own at the bottom."""

    loss: TimeLoss
    end_s: float
    mfu: float


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where the groups of one axis lie.

    ``tier`` is the first tier that holds a whole group, ``domains`` how many domains of the fastest tier one touches.
    """

    axis: str
    size: int
    tier: str
    domains: int


def falls(losses: Sequence[TimeLoss]) -> tuple[Fall, ...]:
    """Return the losses of a waterfall with where each ends and the utilization that is left: first time over end.

    Parameters
    ----------
    losses : sequence of TimeLoss
        Of :func:`waterfall`: the first is the time at peak.
    """
    at_peak = losses[0].value_s
    ends = accumulate(loss.value_s for loss in losses)
    return tuple(Fall(loss=loss, end_s=end, mfu=at_peak / end) for loss, end in zip(losses, ends, strict=True))


def clock_share(ranked: RankedLayout, cluster: Cluster) -> float:
    """Return the clock of a step over the highest, which peaks are counted at; 1.0 where no clock is modelled."""
    part = cluster.islands[ranked.layout.stages[0].island].node.accelerator
    highest, clock = part.max_clock_hz or part.peak_clock_hz, ranked.cost.power.clock_hz
    return min(1.0, clock / highest) if highest and clock else 1.0


def waterfall(cost: LayoutCost, clock: float = 1.0) -> tuple[TimeLoss, ...]:
    """Return the losses from peak to the step as it is.

    Parameters
    ----------
    cost : LayoutCost
        Its step time is explained.
    clock : float
        Sustained clock over the highest, of :func:`clock_share` [1]; matrix work takes as much longer.

    Returns
    -------
    tuple of TimeLoss
        First the model's FLOPs at peak; the values sum to the step time. Losses of nothing are left out.
    """
    step = cost.step
    details = dict(step.details)
    at_peak = cost.mfu * step.total_s
    matrix_s = sum(details.get(name, 0.0) for name in _MATRIX_WORK)
    uneven = _uneven_s(cost, matrix_s) if matrix_s else 0.0
    losses = [TimeLoss(name="the model's FLOPs at peak", value_s=at_peak)]
    if matrix_s:
        slower = (1.0 - clock) * (matrix_s - uneven)
        losses.append(TimeLoss(name="uneven stages", value_s=uneven))
        losses.append(TimeLoss(name="clock below its highest", value_s=slower))
        below = matrix_s - uneven - slower - at_peak
        losses.append(TimeLoss(name="products below peak (shapes, kernels)", value_s=below))
    for field, rest_name, members in _PARTS:
        found = [TimeLoss(name=title, value_s=details[name]) for name, title in members if name in details]
        rest = getattr(step, field) - sum(loss.value_s for loss in found)
        if field == "compute_s":
            rest -= matrix_s or at_peak
        losses += [*found, TimeLoss(name=rest_name, value_s=rest)]
    smallest = 1e-9 * step.total_s
    return tuple(loss for loss in losses if abs(loss.value_s) > smallest)


def _uneven_s(cost: LayoutCost, matrix_s: float) -> float:
    """Matrix work of the busiest stage beyond that of the mean stage: what an even split would save."""
    busiest = max(cost.stage_times_s)
    mean = sum(cost.stage_times_s) / len(cost.stage_times_s)
    return matrix_s * (1.0 - mean / busiest) if busiest > 0.0 else 0.0


def differences(better: StepTime, worse: StepTime) -> tuple[TimeLoss, ...]:
    """Return what the worse step spends more than the better one, the largest difference first.

    The differences sum to the difference of the two step times.
    """
    first, second = dict(named_parts(better)), dict(named_parts(worse))
    names = list(dict.fromkeys((*first, *second)))
    found = [TimeLoss(name=name, value_s=second.get(name, 0.0) - first.get(name, 0.0)) for name in names]
    smallest = 1e-9 * max(better.total_s, worse.total_s)
    return tuple(sorted((loss for loss in found if abs(loss.value_s) > smallest), key=lambda loss: -loss.value_s))


def named_parts(step: StepTime) -> tuple[tuple[str, float], ...]:
    """Return the step in named parts that sum to it: details where there are some, else what is left of a part."""
    details = dict(step.details)
    parts: list[tuple[str, float]] = []
    for field, rest_name, members in _PARTS:
        shown = [(title, details[name]) for name, title in members if name in details]
        if field == "compute_s":
            shown = [(title, details[name]) for name, title in _MATRIX_TITLES if name in details] + shown
        parts += [*shown, (rest_name, getattr(step, field) - sum(value for _, value in shown))]
    return tuple(parts)


def crossings(ranked: RankedLayout, cluster: Cluster) -> tuple[Crossing, ...]:
    """Say which groups of the first stage's grid lie inside the fast domain and which cross it.

    Parameters
    ----------
    ranked : RankedLayout
        Its ranks lie in its order, on nodes in order.
    cluster : Cluster
        Gives the tiers.

    Returns
    -------
    tuple of Crossing
        One for every axis of more than one rank.
    """
    layout = ranked.layout
    table = table_of([layout.first], pp=[layout.pp], micro_batch=[layout.micro_batch])
    tiers = layout_tiers(cluster.islands[layout.stages[0].island], layout)
    found = []
    for axis in _EXPLAINED_AXES:
        group = group_of(axis, table)
        size = int(group.size[0])
        if size < 2:
            continue
        touched = domains(group, tiers)[0]
        holding = next((tier for tier, number in zip(tiers, touched, strict=True) if number == 1), tiers[-1])
        found.append(Crossing(axis=_axis_name(axis), size=size, tier=holding.name, domains=int(touched[0])))
    return tuple(found)


def _axis_name(axis: Axis) -> str:
    return "dp x cp" if axis is Axis.DP_CP else axis.value

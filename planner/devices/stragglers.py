"""What slow accelerators cost: as the job runs, split and placed anew, and without the nodes that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.price import price_layout_with_heat
from planner.placement.slow_devices import SlowDevice, slow_devices, with_like_devices, without_slow_nodes
from planner.plan_report import PlanReport
from planner.planning import estimate, plan, pricings_of
from planner.request import PlanRequest
from planner.search.effort import Until, from_now


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """Step times with and without slow devices; 0.0 where there is none.

    Attributes
    ----------
    devices : tuple of SlowDevice
        Slowest first.
    healthy_s : float
        The best layout if the slow devices were like the others [s]; where ``cut``, the first of the report there.
    as_is_s : float
        That layout, ranks in order, on the cluster as it is [s].
    replanned_s : float
        The best layout found for the cluster as it is, layers and ranks placed anew [s].
    left_out : tuple of int
        Nodes without which the cluster has no slow device.
    without_s : float
        The best layout without those nodes [s]; 0.0 where nothing fits, no node is left, or no time to search.
    cut : bool
        Whether no time was left to search for the layouts of ``healthy_s`` and ``without_s``.
    """

    devices: tuple[SlowDevice, ...]
    healthy_s: float
    as_is_s: float
    replanned_s: float
    left_out: tuple[int, ...]
    without_s: float
    cut: bool


def stragglers(report: PlanReport) -> Stragglers | None:
    """Say what the slow devices of a report's cluster cost, and what can be done.

    Parameters
    ----------
    report : PlanReport
        Of a search; its first layout is the answer to the cluster as it is.

    Returns
    -------
    Stragglers or None
        None where no device is slow or nothing fits.
    """
    request = report.request_of(report.layouts[0]) if report.layouts else report.request
    pricings = pricings_of(request)
    slow = slow_devices(pricings)
    if not slow or not report.layouts:
        return None
    work_s, clock_s = (  # for each of the two searches
        max(request.time_limit_s - taken_s, 0.0) / 2.0 for taken_s in (report.search.work_s, report.search.wall_s)
    )
    whole = replace(request, cluster=with_like_devices(request.cluster, pricings), top=1)
    same = estimate(whole, report.layouts[0].layout)
    cut = not min(work_s, clock_s)
    searched = () if cut else plan(whole, until=from_now(work_s, clock_s)).layouts
    healthy = min([*searched, same], key=lambda ranked: ranked.cost.step.total_s)
    as_is = price_layout_with_heat(pricings, healthy.layout)
    return Stragglers(
        devices=slow,
        healthy_s=healthy.cost.step.total_s,
        as_is_s=as_is.step.total_s,
        replanned_s=report.layouts[0].cost.step.total_s,
        left_out=tuple(sorted({device.node for device in slow})),
        without_s=0.0 if cut else _without_s(replace(request, top=1), slow, from_now(work_s, clock_s)),
        cut=cut,
    )


def _without_s(request: PlanRequest, slow: Sequence[SlowDevice], until: Until) -> float:
    """Step time of the best layout without the nodes of slow devices; 0.0 where there is none."""
    cluster = without_slow_nodes(request.cluster, slow)
    if cluster is None:
        return 0.0
    fewer = plan(replace(request, cluster=cluster), until=until)
    return fewer.layouts[0].cost.step.total_s if fewer.layouts else 0.0

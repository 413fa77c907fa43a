"""One degree over all its values: the best layout with each, side by side."""

from dataclasses import dataclass, replace
from typing import Final

from costmodels.pricing import Constants
from hardware.errors import InputError
from planner.layouts.grids import divisors
from planner.layouts.logits import logits_of
from planner.plan_report import PlanReport, RankedLayout
from planner.planning import plan, pricings_of
from planner.request import Framework, PlanRequest
from planner.traffic.ledger import Purpose, step_calls

COMPARED: Final = ("tp", "pp", "cp", "ep", "zero", "shard_group", "vpp", "micro_batch")
ZERO_STAGES: Final = (0, 1, 2, 3)
MOST_VALUES: Final = 12
_DEEP: Final = 100
"""Layouts of a ranking among which one that shards is looked for."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The best layout with one value of a degree.

    Attributes
    ----------
    value : int
        Of the degree.
    seq : int
        Tokens of a sequence as priced: padded where the degree asks for it.
    ranked : RankedLayout or None
        None where nothing is feasible.
    why_not : str
        The tightest constraint then.
    logits_bytes : float
        What the loss of one rank of the last stage holds for its logits [B].
    gathered_bytes : float
        Weights that one rank receives for a micro-batch, as ZeRO-3 gathers them [B].
    """

    value: int
    seq: int
    ranked: RankedLayout | None
    why_not: str = ""
    logits_bytes: float = 0.0
    gathered_bytes: float = 0.0


def compare(
    request: PlanRequest, degree: str, most: int = MOST_VALUES, constants: Constants | None = None
) -> tuple[Compared, ...]:
    """Search once for every value of a degree.

    Parameters
    ----------
    request : PlanRequest
        What is asked; the degree must be free in it.
    degree : str
        One of :data:`COMPARED`.
    most : int
        Values to try, from the smallest.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    tuple of Compared
        In the order of the values; those that cannot be (more than the GPUs, layers, experts or heads allow) are left
        out.

    Raises
    ------
    InputError
        The degree is none of those that can be compared, or it is pinned.
    """
    if degree not in COMPARED:
        raise InputError(f"--by {degree!r}", allowed=", ".join(COMPARED))
    if request.fixed_degree(degree) is not None:
        raise InputError(f"--by {degree} and --fix {degree}={request.fixed_degree(degree)}", allowed="one of them")
    values = _values(request, degree)[:most]
    limit_s = request.time_limit_s / max(1, len(values))
    return tuple(_with(replace(request, top=1, time_limit_s=limit_s), degree, value, constants) for value in values)


def _with(request: PlanRequest, degree: str, value: int, constants: Constants | None) -> Compared:
    seq = padded_seq(request, value) if degree == "cp" else request.job.seq
    asked = replace(request, fixed=(*request.fixed, (degree, value)), job=replace(request.job, seq=seq))
    report = plan(asked, constants)
    if degree == "zero" and value and report.layouts and report.layouts[0].layout.first.zero_group == 1:
        report = _that_shards(asked, report, constants)
    if not report.layouts:
        why = report.infeasible.constraint if report.infeasible is not None else ""
        return Compared(value=value, seq=seq, ranked=None, why_not=why)
    best = report.layouts[0]
    return Compared(
        value=value,
        seq=seq,
        ranked=best,
        logits_bytes=logits_of(asked, best.layout)[1],
        gathered_bytes=gathered_bytes(asked, best),
    )


def _that_shards(asked: PlanRequest, found: PlanReport, constants: Constants | None) -> PlanReport:
    """The layouts that a ZeRO stage does something in, where the best has no replica to shard over; all without any."""
    report = plan(replace(asked, top=_DEEP), constants)
    kept = tuple(ranked for ranked in report.layouts if ranked.layout.first.zero_group > 1)
    return replace(report, layouts=kept) if kept else found


def padded_seq(request: PlanRequest, cp: int) -> int:
    """Return the next length that context parallelism may split: a multiple of 2 x cp, and of cp x tp for a pinned tp.

    Load balance gives every rank an early and a late piece; sequence parallelism splits each rank's part over tp.
    DeepSpeed's exchange of heads (Ulysses) has one piece a rank.
    """
    pieces = 1 if request.framework is Framework.DEEPSPEED else 2
    multiple = (pieces * cp if cp > 1 else 1) * (request.fixed_degree("tp") or 1)
    return -(-request.job.seq // multiple) * multiple


def gathered_bytes(request: PlanRequest, ranked: RankedLayout) -> float:
    """Return the weights that a rank of the slowest stage gathers for a micro-batch; 0.0 without ZeRO-3 [B]."""
    layout = ranked.layout
    stage = max(range(layout.pp), key=lambda number: ranked.cost.stage_times_s[number])
    calls = step_calls(pricings_of(request)[layout.stages[stage].island], layout, stage)
    gathered = [call for call in calls if call.purpose is Purpose.WEIGHTS and call.collective == "all_gather"]
    return sum(call.message_bytes * call.count for call in gathered) / layout.num_microbatches


def zero_remark(ranked: RankedLayout) -> str:
    """Say what ZeRO gives in a layout: over how many ranks it shards, and what it exchanges when."""
    first = ranked.layout.first
    ranks = first.zero_group
    if ranks == 1:
        return "saves nothing: dp x cp is 1, there is no replica to shard over"
    held = {
        0: "nothing is sharded",
        1: f"the optimizer's states are sharded over {ranks} ranks; gradients are reduced once a step",
        2: f"optimizer and gradients are sharded over {ranks} ranks; gradients are reduced in every micro-batch",
        3: f"all states are sharded over {ranks} ranks; every micro-batch gathers weights and reduces gradients",
    }
    return held[first.zero]


def _values(request: PlanRequest, degree: str) -> list[int]:
    if degree == "zero":
        return list(ZERO_STAGES)
    layers, gpus, batch = request.model.layers, request.cluster.gpus, request.job.global_batch
    if degree == "vpp":
        return list(range(1, layers + 1))
    if degree == "shard_group":
        return [value for value in divisors(gpus) if value > 1]
    whole, highest = (batch, batch) if degree == "micro_batch" else (gpus, layers if degree == "pp" else gpus)
    return [value for value in divisors(whole) if value <= highest]

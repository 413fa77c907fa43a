"""Which part of a predicted step most likely holds the difference to a step that a user measured.

A part k of the step takes ``t_k`` and errs by ``u_k`` (the standard deviation of its log, ``term_errors.toml``). Its
usual error is what the step changes by when the part is one standard deviation slower (or faster, for a run that is
faster than predicted). Parts that exchange data are priced again on fabrics that are slower by as much, so that what
computing hides as predicted may come to light:

    s_k = t_k |exp(+-u_k) - 1|            computing, waiting
    s_k = t_k(fabrics / exp(+-u_k)) - t_k   exchanges

With independent errors the expected part of a difference is in proportion to the square: ``g s_k^2 / sum_j s_j^2``.

That holds for small differences. A part that has to be ``f_k`` times slower to hold all of a large one is
``ln f_k / u_k`` standard deviations off, and ``s_k = g u_k / ln f_k`` is what one of them stands for (the same where
``g`` is small): products eight times slower are less likely than a network fifty times slower, which one environment
variable makes of a fast one, and an exchange that hides as predicted comes to light.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final

from costmodels.layout import Layout
from costmodels.placement import Placement
from costmodels.pricing import Constants
from costmodels.results import StepTime
from hardware.errors import InputError
from hardware.package_table import package_table
from planner.planning import estimate
from planner.request import PlanRequest
from planner.traffic.sensitivity import on_scaled_fabrics

REPEATS: Final = 0.03
"""Share of the step by which repeats of one layout differ (median over repeated published runs): no gap at all."""
MOST_FACTOR: Final = 320.0
"""A part that would have to be off by more is not held to explain a difference alone: eight adapters of 400 Gb/s
against the one port of 10 Gb/s that is left when a job does not find them."""
HALVINGS: Final = 14

GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "products": ("gemm", "attention", "recompute"),
        "memory": ("memory", "optimizer", "offload"),
        "host": ("launch",),
        "tp": ("tp", "cp", "reshard"),
        "experts": ("ep", "routing"),
        "states": ("weights", "gradient_reduction", "weight_gather", "shared"),
        "pipeline": ("bubble",),
        "other": (),
    }
)
"""Groups of parts whose errors are told apart, and their details; ``other`` is all that no model has a part for."""
EXCHANGES: Final = ("tp", "experts", "states")


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One group of parts and how much of the difference it is expected to hold.

    Attributes
    ----------
    group : str
        A key of :data:`GROUPS`.
    predicted_s : float
        What it takes as predicted.
    usual_s : float
        Seconds by which it usually errs, in the direction of the difference.
    share : float
        Expected part of the difference, from 0 to 1.
    needed : float
        By how many times it (for exchanges: the time that its fabrics need) would have to be off to hold all of the
        difference; 0.0 where it cannot.
    """

    group: str
    predicted_s: float
    usual_s: float
    share: float
    needed: float


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A measured step against the predicted one; ``suspects`` by falling share, none when as near as repeats are.

    ``peak_s`` is what the model's FLOPs take at the peak rate: no run is faster, and there are no suspects for one.
    """

    measured_s: float
    predicted_s: float
    suspects: tuple[Suspect, ...]
    peak_s: float = 0.0

    @property
    def impossible(self) -> bool:
        """Whether no machine with this peak rate can have taken so short a step."""
        return self.measured_s < self.peak_s

    @property
    def value_s(self) -> float:
        """Measured less predicted."""
        return self.measured_s - self.predicted_s


@lru_cache(maxsize=1)
def term_errors() -> Mapping[str, float]:
    """Return the standard deviation of the log of each group of parts."""
    errors = package_table("planner.advice", "term_errors.toml")["error"]
    return MappingProxyType({name: float(value) for name, value in errors.items()})


def part_seconds(step: StepTime) -> dict[str, float]:
    """Return the seconds of a step by group; ``other`` is the whole step, as what has no part is not bounded by one."""
    details = {**dict(step.details), "bubble": step.bubble_s}
    found = {group: sum(details.get(name, 0.0) for name in names) for group, names in GROUPS.items()}
    if not step.details:
        found |= {"products": step.compute_s, "states": step.exposed_comm_s}
    return {**found, "other": step.total_s}


def explain_gap(
    request: PlanRequest,
    layout: Layout,
    measured_s: float,
    constants: Constants | None = None,
    there: Placement | None = None,
) -> Gap:
    """Say which parts of a step most likely hold the difference to a measured one.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster and job of the run.
    layout : Layout
        What was run.
    measured_s : float
        Measured step time [s].
    constants : Constants, optional
        Of the cost models; default: those that ship.
    there : Placement, optional
        Where its ranks ran; default: where they are best.

    Returns
    -------
    Gap

    Raises
    ------
    InputError
        The measured time is not positive.
    """
    if not 0.0 < measured_s < math.inf:
        raise InputError(f"--measured-s {measured_s:g}", allowed="seconds of a step, above 0")
    cost = estimate(request, layout, constants, there).cost
    step, peak_s = cost.step, cost.mfu * cost.step.total_s
    gap_s = measured_s - step.total_s
    if abs(gap_s) <= REPEATS * step.total_s or measured_s < peak_s:
        return Gap(measured_s=measured_s, predicted_s=step.total_s, suspects=(), peak_s=peak_s)
    parts, errors, sign = part_seconds(step), term_errors(), math.copysign(1.0, gap_s)

    def change_s(group: str, slower: float) -> float:
        """Seconds that a group takes more when it is so many times slower."""
        if group not in EXCHANGES:
            return parts[group] * (slower - 1.0)
        priced = on_scaled_fabrics(request, layout, 1.0 / slower, constants, there)
        return part_seconds(priced.cost.step)[group] - parts[group]

    usual = {group: abs(change_s(group, math.exp(sign * errors[group]))) for group in GROUPS}
    return Gap(measured_s=measured_s, predicted_s=step.total_s, suspects=_suspects(parts, usual, change_s, gap_s))


def _suspects(
    parts: Mapping[str, float], usual: Mapping[str, float], change_s: Callable[[str, float], float], gap_s: float
) -> tuple[Suspect, ...]:
    """Groups by their share of the difference, the likeliest first."""
    errors = term_errors()
    needed = {group: _needed(partial(change_s, group), gap_s) for group in GROUPS}
    likely = {
        group: abs(gap_s) * errors[group] / abs(math.log(factor)) if factor > 0.0 else usual[group]
        for group, factor in needed.items()
    }
    total = sum(value**2 for value in likely.values())
    suspects = [
        Suspect(
            group=group,
            predicted_s=parts[group],
            usual_s=usual[group],
            share=likely[group] ** 2 / total,
            needed=needed[group],
        )
        for group in GROUPS
        if likely[group] > 0.0
    ]
    return tuple(sorted(suspects, key=lambda suspect: (-suspect.share, suspect.group)))


def _needed(change_s: Callable[[float], float], gap_s: float) -> float:
    """How many times slower (below 1: faster) a part would have to be to hold a difference alone; 0.0 where none is."""
    near, far = 0.0, math.copysign(math.log(MOST_FACTOR), gap_s)
    if abs(change_s(math.exp(far))) < abs(gap_s):
        return 0.0
    for _ in range(HALVINGS):
        middle = 0.5 * (near + far)
        near, far = (near, middle) if abs(change_s(math.exp(middle))) >= abs(gap_s) else (middle, far)
    return math.exp(far)

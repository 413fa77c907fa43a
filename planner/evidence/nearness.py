"""How sure a prediction is: the measured runs most like it, and the intervals that the errors on them give.

``evidence.csv`` holds one row per published run: what it was, and predicted over measured step time and memory under
the cost models that ship with it. A request is compared with every run; the nearest ones give the intervals and the
label.

    distance = sum of penalties for what differs + per-doubling penalties for sizes
    interval = [t / q90, t / q10] of the ratios of the nearest runs, few of each study, widened by one factor (of its
               own for memory) so that four of five runs of a study that was left out fall inside; by larger ones
               for a part that no run was measured on, and for software of which few runs on such parts were

Under the profile of a machine the runs that it was fitted on decide: the half-width is the conformal 80 % bound of
their leave-one-out errors, and it grows towards that of the published runs with the distance from the nearest of them.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib import resources
from typing import Final

import numpy as np

from costmodels.layout import Layout
from costmodels.pricing import Pricing
from costmodels.results import Evidence
from costmodels.table import Floats, Ints
from costmodels.workload.counts import parameter_count
from hardware.nouns import count
from planner.layouts.grids import expert_count
from planner.profile import FittedRun, MachineProfile
from planner.traits import RunTraits, family_of

NEAREST: Final = 60  # runs that form the interval
MOST_OF_A_STUDY: Final = 5  # of them
NEAR: Final = 0.2  # distance at which a run counts half of one at no distance
ENOUGH: Final = 10  # runs of a kind, from which on it counts as measured
COVERAGE: Final = 0.8
SIMILAR: Final = 0.35
KIN: Final = 1.2

# Penalties were set by what changes the physics, not fitted: another generation of accelerator most, its variant least.
DIFFERENT: Final = (
    ("generation", 1.0),
    ("hardware", 0.25),
    ("framework", 0.4),
    ("gemm", 0.4),
    ("moe", 0.6),
    ("recompute", 0.1),
)
PER_DOUBLING: Final = (
    ("gpus", 0.06),
    ("parameters", 0.06),
    ("seq", 0.04),
    ("micro_batch", 0.04),
    ("tp", 0.05),
    ("pp", 0.05),
    ("cp", 0.08),
    ("ep", 0.05),
)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What runs measure: its column of ``evidence.csv``, and how the interval of its errors is made.

    ``kind`` names the traits that make runs one kind of stack: what its errors have in common. The three widenings are
    factors on the log of both ends [1]:

    - ``widening``: of a kind with :data:`ENOUGH` runs. Fitted by ``benchmarks/evidence.py`` so that 80 % of the runs
      of a left-out study whose kind others measured fall inside, every study counting alike (29 studies in time, 12 in
      memory).
    - ``widening_elsewhere``: the same for a part that no run was measured on (81 and 80 % of the runs of each of 12 and
      10 left-out parts).
    - ``widening_unlike``: of a kind that nobody measured. Presets and rates were found on the very studies of
      ``evidence.csv``, so leaving a study out does not show what a stack errs by that none was found on: there 1.7 and
      1.25 would do. Taken from 119 published steps of 14 stacks and 14 peaks of two of them, at their first prediction
      (``tests/reference/other_stacks.csv``, docs/cost-models.md): range 2.5 to 3.5.

    ``least_log`` [1]: neither end is nearer to the middle.
    """

    column: str
    kind: tuple[str, ...]
    widening: float
    widening_elsewhere: float
    widening_unlike: float
    least_log: float


STEP_TIME: Final = Quantity(
    column="ratio",
    kind=("framework", "generation", "moe"),
    widening=1.2,
    widening_elsewhere=1.4,
    widening_unlike=3.0,
    least_log=0.03,  # what one layout varies between repeats
)
PEAK_MEMORY: Final = Quantity(
    column="memory_ratio",
    kind=("framework", "moe"),  # what a program keeps does not depend on the part that it runs on
    widening=1.1,
    widening_elsewhere=1.4,
    widening_unlike=3.0,
    least_log=0.02,  # what allocators differ by
)


@dataclass(frozen=True, kw_only=True, eq=False)
class EvidenceTable:
    """Runs that measured one quantity, as columns of N: traits by name, predicted over measured, study, source."""

    texts: dict[str, np.typing.NDArray[np.str_]]
    sizes: dict[str, Floats]
    log_ratio: Floats
    study: np.typing.NDArray[np.str_]
    run: np.typing.NDArray[np.str_]

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.log_ratio)


def traits_of(pricing: Pricing, layout: Layout) -> RunTraits:
    """Return the traits of a request and a layout."""
    first = layout.first
    return RunTraits(
        generation=pricing.constants.efficiency.generation(pricing.accelerator).name,
        hardware=pricing.accelerator.name,
        framework=family_of(pricing.job.software.framework),
        gemm=pricing.job.precision.gemm,
        moe="moe" if expert_count(pricing.model) else "dense",
        recompute=first.recompute.granularity.value,
        gpus=float(layout.gpus),
        parameters=max(parameter_count(pricing.model).total / 1e9, 1e-3),
        seq=float(pricing.job.seq),
        micro_batch=float(layout.micro_batch),
        tp=float(first.tp),
        pp=float(layout.pp),
        cp=float(first.cp),
        ep=float(first.ep),
    )


def evidence_for(
    pricing: Pricing, layout: Layout, step_s: float, peak_bytes: float, profile: MachineProfile | None = None
) -> Evidence:
    """Label and intervals of one prediction.

    Parameters
    ----------
    pricing : Pricing
        Model, job and the island of the layout's first stage.
    layout : Layout
        What was priced.
    step_s : float
        Predicted step time [s].
    peak_bytes : float
        Predicted memory of the fullest GPU [bytes].
    profile : MachineProfile, optional
        The profile that the prediction was made with; it decides the interval of the step time.

    Returns
    -------
    Evidence
        ``measured``: runs of the same kind of machine, software and model exist; ``near``: some of these differ;
        ``extrapolated``: nothing like it was measured; ``calibrated``: the profile was fitted on runs like it. A part
        that no run was measured on is at most ``near``, named, and has wider intervals; so is software of which fewer
        than :data:`ENOUGH` runs on such parts with such models were measured.
    """
    traits = traits_of(pricing, layout)
    published = _published(traits, step_s, peak_bytes)
    if profile is None or profile.accelerator != pricing.accelerator.name:
        return published
    return _calibrated(profile, traits, step_s, published)


def _published(traits: RunTraits, step_s: float, peak_bytes: float) -> Evidence:
    """Evidence of the runs that ship with the planner."""
    table = shipped_runs(STEP_TIME)
    distance = distances(table, traits)
    nearest = int(distance.argmin())
    low, high = log_interval(table, distance, widened(STEP_TIME, table, distance, traits))
    held = shipped_runs(PEAK_MEMORY)
    apart = distances(held, traits)
    less, more = log_interval(held, apart, widened(PEAK_MEMORY, held, apart, traits))
    known = bool(_alike(table, traits, ("hardware",)).any())
    few = _few_runs(table, traits)
    measured = known and not few and distance[nearest] <= SIMILAR
    label = "measured" if measured else "near" if distance[nearest] <= KIN else "extrapolated"
    return Evidence(
        label=label,
        nearest=str(table.run[nearest]),
        low_s=step_s * float(np.exp(-high)),
        high_s=step_s * float(np.exp(-low)),
        low_peak_bytes=peak_bytes * float(np.exp(-more)),
        high_peak_bytes=peak_bytes * float(np.exp(-less)),
        unmeasured="" if known else traits.hardware,
        few_runs=few,
    )


def _few_runs(table: EvidenceTable, traits: RunTraits) -> str:
    """Say how many runs of a kind of stack were measured, where they are too few to know its error; else empty."""
    runs = int(_alike(table, traits, STEP_TIME.kind).sum())
    if runs >= ENOUGH:
        return ""
    return f"{count(runs, 'run')} of {traits.framework} with {traits.moe} models on {traits.generation}"


def _alike(table: EvidenceTable, traits: RunTraits, names: Sequence[str]) -> np.typing.NDArray[np.bool_]:
    """Which runs have the same traits of some names as a request, shape (N,)."""
    same: np.typing.NDArray[np.bool_] = np.all([table.texts[name] == getattr(traits, name) for name in names], axis=0)
    return same


def widened(quantity: Quantity, table: EvidenceTable, distance: Floats, traits: RunTraits) -> Quantity:
    """Return a quantity with the widening of a request: by its part, and by how many runs of its kind were measured.

    Parameters
    ----------
    quantity : Quantity
        What the runs measured.
    table : EvidenceTable
        N runs.
    distance : ndarray
        Of each [1], shape (N,); infinite for runs that do not count.
    traits : RunTraits
        Of the request.

    Returns
    -------
    Quantity
        Between few runs and :data:`ENOUGH` the widening goes in proportion, so that one run more changes little.
    """
    counts = np.isfinite(distance)
    on_part = bool((_alike(table, traits, ("hardware",)) & counts).any())
    share = min(float((_alike(table, traits, quantity.kind) & counts).sum()) / ENOUGH, 1.0)
    of_kind = quantity.widening if on_part else quantity.widening_elsewhere
    return replace(quantity, widening=share * of_kind + (1.0 - share) * quantity.widening_unlike)


def _calibrated(profile: MachineProfile, traits: RunTraits, step_s: float, published: Evidence) -> Evidence:
    """Evidence of the runs that a profile was fitted on, as far as they are like the request."""
    runs = profile.trusted
    half_published = 0.5 * math.log(published.high_s / published.low_s)
    half = left_out_half_width([run.left_out for run in runs])
    if not math.isfinite(half):
        half = half_published
    distance = distances(fitted_runs(runs), traits) if runs else np.array([np.inf])
    nearest = int(distance.argmin())
    far = min(max((float(distance[nearest]) - SIMILAR) / (KIN - SIMILAR), 0.0), 1.0)
    half += far * max(half_published - half, 0.0)
    near = bool(distance[nearest] <= KIN)
    return replace(
        published,
        label="calibrated" if near else published.label,
        nearest=f"{runs[nearest].id} of the profile" if near else published.nearest,
        low_s=step_s * math.exp(-half),
        high_s=step_s * math.exp(half),
        profile=profile.name,
        unmeasured="" if near else published.unmeasured,
        few_runs="" if near else published.few_runs,
    )


def left_out_half_width(errors: Sequence[float]) -> float:
    """Half-width that holds with the chance :data:`COVERAGE` for one more run like those of a calibration.

    Parameters
    ----------
    errors : sequence of float
        Leave-one-out errors, logarithms of predicted over measured [1].

    Returns
    -------
    float
        The ceil(0.8 (n + 1))-th smallest size of n errors, and no less than that of :data:`STEP_TIME`; infinite when
        n is too small to say.

    References
    ----------
    Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005: conformal prediction.
    """
    sizes = sorted(abs(error) for error in errors)
    rank = math.ceil(COVERAGE * (len(sizes) + 1))
    return max(sizes[rank - 1], STEP_TIME.least_log) if rank <= len(sizes) else math.inf


def fitted_runs(runs: Sequence[FittedRun]) -> EvidenceTable:
    """Return the runs of a profile as a table, with their leave-one-out errors."""
    traits = [run.traits for run in runs]
    texts, sizes = _columns()
    return EvidenceTable(
        texts={name: np.array([getattr(each, name) for each in traits]) for name in texts},
        sizes={name: np.array([getattr(each, name) for each in traits], dtype=np.float64) for name in sizes},
        log_ratio=np.array([run.left_out for run in runs]),
        study=np.array(["profile"] * len(runs)),
        run=np.array([run.id for run in runs]),
    )


def _columns() -> tuple[list[str], list[str]]:
    """Traits that are texts, and traits that are sizes."""
    texts = [field.name for field in fields(RunTraits) if field.type in ("str", str)]
    return texts, [field.name for field in fields(RunTraits) if field.name not in texts]


def distances(table: EvidenceTable, traits: RunTraits) -> Floats:
    """Distance of every run to a request [1], shape (N,)."""
    total = np.zeros(len(table))
    for name, penalty in DIFFERENT:
        total += penalty * (table.texts[name] != getattr(traits, name))
    for name, penalty in PER_DOUBLING:
        total += penalty * np.abs(np.log2(table.sizes[name] / getattr(traits, name)))
    return total


def log_interval(table: EvidenceTable, distance: Floats, quantity: Quantity) -> tuple[float, float]:
    """Ends of the interval of log(predicted / measured) from the nearest runs, weighted by nearness.

    Runs of one study share a machine, a framework and their error; few of each count, so that the interval holds for
    runs of a study that nobody has seen.

    Parameters
    ----------
    table : EvidenceTable
        N runs.
    distance : ndarray
        Of each [1], shape (N,); infinite for runs that do not count.
    quantity : Quantity
        What the runs measured.

    Returns
    -------
    tuple of float
        Logarithms [1].
    """
    order = _few_of_each(table.study, np.argsort(distance, kind="stable"))
    order = order[np.isfinite(distance[order])][:NEAREST]
    weight = 1.0 / (NEAR + distance[order])
    values = table.log_ratio[order]
    low, high = (_quantile(values, weight, share) for share in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    middle = _quantile(values, weight, 0.5)
    down = max((middle - low) * quantity.widening, quantity.least_log)
    up = max((high - middle) * quantity.widening, quantity.least_log)
    return middle - down, middle + up


def _few_of_each(study: np.typing.NDArray[np.str_], order: Ints) -> Ints:
    """Keep the first :data:`MOST_OF_A_STUDY` runs of every study, in order."""
    _, code = np.unique(study[order], return_inverse=True)
    together = np.argsort(code, kind="stable")
    first = np.searchsorted(code[together], code[together])
    place = np.empty_like(together)
    place[together] = np.arange(len(code)) - first
    return np.asarray(order[place < MOST_OF_A_STUDY])


def _quantile(values: Floats, weight: Floats, share: float) -> float:
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weight[order])
    return float(np.interp(share * upto[-1], upto - 0.5 * weight[order], values[order]))


@lru_cache(maxsize=2)
def shipped_runs(quantity: Quantity) -> EvidenceTable:
    """Return the runs of ``evidence.csv`` that measured a quantity."""
    return table_of_rows(_shipped_rows(), quantity)


@lru_cache(maxsize=1)
def _shipped_rows() -> tuple[dict[str, str], ...]:
    text = resources.files("planner.evidence").joinpath("evidence.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(io.StringIO(text)))


def table_of_rows(rows: Sequence[dict[str, str]], quantity: Quantity) -> EvidenceTable:
    """Build a table from rows with the columns of :class:`RunTraits`, ``study``, ``run`` and that of the quantity.

    A row whose column is blank did not measure it.
    """
    rows = [row for row in rows if row[quantity.column]]
    texts, sizes = _columns()
    return EvidenceTable(
        texts={name: np.array([row[name] for row in rows]) for name in texts},
        sizes={name: np.array([float(row[name]) for row in rows]) for name in sizes},
        log_ratio=np.log(np.array([float(row[quantity.column]) for row in rows])),
        study=np.array([row["study"] for row in rows]),
        run=np.array([row["run"] for row in rows]),
    )

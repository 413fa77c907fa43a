"""How sure a prediction is: the measured runs most like it, and the interval that the errors on them give.

``evidence.csv`` holds one row per published run: what it was, and predicted over measured step time under the cost
models that
ship with it. A request is compared with every run; the nearest ones give the interval and the label.

    distance = sum of penalties for what differs + per-doubling penalties for sizes
    interval = [t / q90, t / q10] of the ratios of the nearest runs, widened by one factor so that four of five runs of
               studies that were left out fall inside
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.layout import Layout
from costmodels.pricing import Pricing
from costmodels.results import Evidence
from costmodels.table import Floats
from costmodels.workload.counts import parameter_count
from planner.grids import expert_count

NEAREST: Final = 60  # runs that form the interval
COVERAGE: Final = 0.8
WIDENING: Final = 1.0
"""Factor on the log of both ends of the interval, fitted by ``benchmarks/evidence.py`` so that 80 % of the runs of
left-out
studies fall inside their interval; range: all runs of ``evidence.csv``."""
LEAST_LOG: Final = 0.03  # no interval is narrower than what one layout varies between repeats and releases
FAMILY: Final = MappingProxyType({"bridge": "megatron", "nemo": "megatron"})  # all of them run Megatron-core
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
class RunTraits:
    """What a run or a request has in common with others. ``parameters`` in billions; texts compare whole."""

    generation: str
    hardware: str
    framework: str
    gemm: str
    moe: str
    recompute: str
    gpus: float
    parameters: float
    seq: float
    micro_batch: float
    tp: float
    pp: float
    cp: float
    ep: float


@dataclass(frozen=True, kw_only=True, eq=False)
class EvidenceTable:
    """Published runs as columns of N: traits by name, predicted over measured, study, where it was published."""

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
        framework=FAMILY.get(pricing.job.software.framework, pricing.job.software.framework),
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


def evidence_for(pricing: Pricing, layout: Layout, step_s: float) -> Evidence:
    """Label and interval of one prediction.

    Parameters
    ----------
    pricing : Pricing
        Model, job and the island of the layout's first stage.
    layout : Layout
        What was priced.
    step_s : float
        Predicted step time [s].

    Returns
    -------
    Evidence
        ``measured``: runs of the same kind of machine, software and model exist; ``near``: some of these differ;
        ``extrapolated``: nothing like it was measured.
    """
    table = shipped_runs()
    distance = distances(table, traits_of(pricing, layout))
    nearest = int(distance.argmin())
    low, high = log_interval(table.log_ratio, distance)
    label = "measured" if distance[nearest] <= SIMILAR else "near" if distance[nearest] <= KIN else "extrapolated"
    return Evidence(
        label=label,
        nearest=str(table.run[nearest]),
        low_s=step_s * float(np.exp(-high)),
        high_s=step_s * float(np.exp(-low)),
    )


def distances(table: EvidenceTable, traits: RunTraits) -> Floats:
    """Distance of every run to a request [1], shape (N,)."""
    total = np.zeros(len(table))
    for name, penalty in DIFFERENT:
        total += penalty * (table.texts[name] != getattr(traits, name))
    for name, penalty in PER_DOUBLING:
        total += penalty * np.abs(np.log2(table.sizes[name] / getattr(traits, name)))
    return total


def log_interval(log_ratio: Floats, distance: Floats, widening: float = WIDENING) -> tuple[float, float]:
    """Ends of the interval of log(predicted / measured) from the nearest runs, weighted by nearness."""
    order = np.argsort(distance, kind="stable")[:NEAREST]
    weight = (0.2 + distance[order]) ** -2.0
    values = log_ratio[order]
    low, high = (_quantile(values, weight, share) for share in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    middle = _quantile(values, weight, 0.5)
    down = max((middle - low) * widening, LEAST_LOG)
    up = max((high - middle) * widening, LEAST_LOG)
    return middle - down, middle + up


def _quantile(values: Floats, weight: Floats, share: float) -> float:
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(weight[order])
    return float(np.interp(share * upto[-1], upto - 0.5 * weight[order], values[order]))


@lru_cache(maxsize=1)
def shipped_runs() -> EvidenceTable:
    """Return the runs of ``evidence.csv``."""
    text = resources.files("planner").joinpath("evidence.csv").read_text(encoding="utf-8")
    return table_of_rows(list(csv.DictReader(io.StringIO(text))))


def table_of_rows(rows: Sequence[dict[str, str]]) -> EvidenceTable:
    """Build a table from rows with the columns of :class:`RunTraits`, ``ratio``, ``study`` and ``run``."""
    texts = [field.name for field in fields(RunTraits) if field.type in ("str", str)]
    sizes = [field.name for field in fields(RunTraits) if field.name not in texts]
    return EvidenceTable(
        texts={name: np.array([row[name] for row in rows]) for name in texts},
        sizes={name: np.array([float(row[name]) for row in rows]) for name in sizes},
        log_ratio=np.log(np.array([float(row["ratio"]) for row in rows])),
        study=np.array([row["study"] for row in rows]),
        run=np.array([row["run"] for row in rows]),
    )

"""Predict measured runs: step time and memory of each row's own layout, or the reason why a row cannot be priced."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.memory import allocated_bytes, reserved_bytes
from costmodels.price import price_layout
from costmodels.pricing import Constants, Pricing
from costmodels.results import LayoutCost, MemoryUse
from hardware.errors import InputError
from hardware.package_table import package_table
from planner.evidence.assumed import assumptions
from planner.evidence.measured import BYTES_PER_GIB, MeasuredRun, read_runs
from planner.evidence.runs import PricedRun, question_of
from planner.profile import MachineProfile

UNSTATED = "(not stated)"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the cost models say of one run. ``skipped`` is the reason when they say nothing; then the rest is None.

    ``profiled`` is whether a machine's profile was applied.
    """

    run: MeasuredRun
    step_time_s: float | None = None
    peak_mem_bytes: float | None = None
    verdict: str | None = None
    skipped: str | None = None
    cost: LayoutCost | None = None
    profiled: bool = False

    @property
    def assumed(self) -> tuple[str, ...]:
        """What its price assumes because the row's words are not known; empty where nothing is."""
        return () if self.skipped else assumptions(self.run)

    @property
    def error(self) -> float | None:
        """Predicted over measured step time less one; None when either is missing or the run was troubled."""
        measured = self.run.step_time_s
        if self.step_time_s is None or not measured or self.run.untimed:
            return None
        return self.step_time_s / measured - 1.0

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured peak memory; None when either is missing or the run failed."""
        measured = self.run.peak_mem_gib
        if self.peak_mem_bytes is None or not measured or not self.run.weighed:
            return None
        return self.peak_mem_bytes / BYTES_PER_GIB / measured


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Absolute relative errors of a group of runs."""

    name: str
    rows: int
    median: float
    p90: float
    median_ratio: float


def predict(run: MeasuredRun, constants: Constants | None = None, profile: MachineProfile | None = None) -> Prediction:
    """Price one run, under a machine's profile where it holds."""
    if run.skipped:
        return Prediction(run=run, skipped=run.skipped)
    try:
        asked = question_of(run)
        cost = price_layout(_pricings(asked, constants or Constants(), profile), asked.layout)
    except InputError as error:
        return Prediction(run=run, skipped=str(error))
    return Prediction(
        run=run,
        step_time_s=cost.step.total_s,
        peak_mem_bytes=stated_peak_bytes(run, cost.memory),
        verdict=cost.heaviest.verdict.value,
        cost=cost,
        profiled=profile is not None and all(part == profile.accelerator for part in _parts(asked)),
    )


def stated_peak_bytes(run: MeasuredRun, uses: Sequence[MemoryUse]) -> float:
    """Return the quantity that a run reports: live tensors, what the allocator holds (most tools), or the device.

    Which one, and of which rank, follows from the tool that printed it: ``readings.toml``.
    """
    notes = f"{run.text('notes')} {run.text('derived')} {run.text('source')}"
    texts = {"notes": notes.lower(), "framework": run.text("framework").lower()}
    rules = (rule for rule in _readings() if re.search(rule["pattern"], texts[rule["column"]]))
    rule = next(rules, {"reads": "reserved"})
    sizes = [_READS[rule["reads"]](use) for use in uses]
    return sizes[0] if rule.get("rank") == "first" else max(sizes)


@cache
def _readings() -> tuple[Mapping[str, str], ...]:
    return tuple(package_table("planner.evidence", "readings.toml")["readings"])


def _device_bytes(use: MemoryUse) -> float:
    return use.total_bytes


_READS: Final = MappingProxyType({"allocated": allocated_bytes, "reserved": reserved_bytes, "device": _device_bytes})


def _parts(asked: PricedRun) -> list[str]:
    return [island.node.accelerator.name for island in asked.cluster.islands]


def _pricings(asked: PricedRun, constants: Constants, profile: MachineProfile | None) -> tuple[Pricing, ...]:
    framework = asked.job.software.framework
    return tuple(
        Pricing(
            model=asked.model,
            job=asked.job,
            island=island,
            constants=profile.over(constants, part, framework) if profile else constants,
        )
        for island, part in zip(asked.cluster.islands, _parts(asked), strict=True)
    )


def validate(
    paths: Sequence[Path],
    constants: Constants | None = None,
    profile: MachineProfile | None = None,
    *,
    progress: Callable[[Iterable[MeasuredRun], int], Iterable[MeasuredRun]] = lambda runs, _: runs,
) -> tuple[Prediction, ...]:
    """Predict every run of some tables.

    Parameters
    ----------
    paths : sequence of Path
        CSV files, see :mod:`planner.evidence.measured`.
    constants : Constants, optional
        Default: those that ship.
    profile : MachineProfile, optional
        Of the machine; runs of other accelerators are predicted without it.
    progress : callable
        Wraps the runs, given their number, to show progress.

    Raises
    ------
    InputError
        A file is no table of runs.
    """
    shared = constants or Constants()
    runs = [run for path in paths for run in read_runs(path)]
    return tuple(predict(run, shared, profile) for run in progress(runs, len(runs)))


def summaries(predictions: Iterable[Prediction], column: str) -> tuple[ErrorSummary, ...]:
    """Errors by the text of a column, largest group first; an empty column name puts all runs into one group."""
    groups: dict[str, list[float]] = defaultdict(list)
    for prediction in predictions:
        if prediction.error is not None:
            groups[prediction.run.text(column) or UNSTATED if column else "all"].append(prediction.error)
    found = [_summary(name, np.array(errors)) for name, errors in groups.items()]
    return tuple(sorted(found, key=lambda item: (-item.rows, item.name)))


def _summary(name: str, errors: np.typing.NDArray[np.float64]) -> ErrorSummary:
    sizes = np.abs(errors)
    return ErrorSummary(
        name=name,
        rows=len(errors),
        median=float(np.median(sizes)),
        p90=float(np.quantile(sizes, 0.9)),
        median_ratio=float(np.median(errors + 1.0)),
    )

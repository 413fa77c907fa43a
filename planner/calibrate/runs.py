"""Measured runs as observations: which rows can be priced on one machine, their step times and their peaks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.memory import stage_memory
from costmodels.price import step_time_s
from costmodels.pricing import Constants, Pricing
from costmodels.profile import Profile, profiled
from costmodels.table import Floats
from hardware.cluster import Accelerator
from hardware.errors import InputError
from planner.calibrate.observations import Observations
from planner.evidence.assumed import assumptions
from planner.evidence.cells import unread_columns
from planner.evidence.left_out import LeftOut, left_out
from planner.evidence.measured import BYTES_PER_GIB, MeasuredRun, read_runs
from planner.evidence.runs import PricedRun, question_of
from planner.evidence.validate import stated_peak_bytes

TIME_NOISE: Final = 0.08
"""What one layout's step differs from the model beyond what a machine's runs share, as a logarithm.

Median absolute error over the published runs: 0.07 (docs/accuracy.md); repeats of one layout differ by 0.03."""
MEMORY_NOISE: Final = 0.06
"""The same of the peak memory: median absolute error 0.067."""
MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRun:
    """A run that can be priced, and what it asks."""

    run: MeasuredRun
    asked: PricedRun
    file: Path = Path()

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator of its machine."""
        return self.asked.cluster.islands[0].node.accelerator

    @property
    def timed(self) -> bool:
        """Whether its step time says something: it ran, and nothing troubled it."""
        return not self.run.untimed

    @property
    def weighed(self) -> bool:
        """Whether it states the peak of a run that did not fail."""
        return self.run.weighed

    def pricings(self, constants: Constants) -> tuple[Pricing, ...]:
        """Return its islands under some constants."""
        asked = self.asked
        return tuple(
            Pricing(model=asked.model, job=asked.job, island=island, constants=constants)
            for island in asked.cluster.islands
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The runs of one accelerator, in the order of their files, what was left out, and columns that are not read.

    ``assumed`` is what prices of rows assume, as :func:`planner.evidence.assumed.assumptions` says it.
    """

    runs: tuple[CalibrationRun, ...]
    skipped: tuple[LeftOut, ...]
    unread: tuple[str, ...] = ()
    assumed: tuple[LeftOut, ...] = ()


def read_calibration_runs(paths: Sequence[Path], accelerator: str = "") -> Chosen:
    """Read the runs of some tables that one machine can be calibrated with.

    Parameters
    ----------
    paths : sequence of Path
        Tables as :mod:`planner.evidence.measured` reads them.
    accelerator : str
        Runs of other accelerators are left out; empty: all runs must be of one.

    Returns
    -------
    Chosen

    Raises
    ------
    InputError
        A file is no table of runs, no row can be used, or the rows are of several accelerators.
    """
    found: list[CalibrationRun] = []
    skipped: list[tuple[str, str]] = []
    unread: list[str] = []
    for path in paths:
        read = read_runs(path)
        unread += [f"{path.name}: {words}" for words in unread_columns(read[0].row if read else ())]
        for run in read:
            try:
                usable = usable_run(run)
            except InputError as error:
                skipped.append((str(error), run.place))
                continue
            if accelerator and usable.accelerator.name != accelerator:
                skipped.append((f"on {usable.accelerator.name}", run.place))
                continue
            found.append(replace(usable, file=path))
            if run.step_time_s and run.untimed and run.status == "ok":
                skipped.append((f"the step time alone: {run.untimed}", run.place))
    where = ", ".join(str(path) for path in paths)
    if paths and not found:
        raise _nothing(left_out(skipped), unread, where)
    parts = Counter(run.accelerator.name for run in found)
    if len(parts) > 1:
        listed = ", ".join(f"{count} on {name}" for name, count in parts.most_common())
        raise InputError(
            f"rows of {len(parts)} accelerators ({listed})",
            allowed="one machine in a profile: --accelerator " + parts.most_common(1)[0][0],
            where=where,
        )
    assumed = left_out((words, usable.run.place) for usable in found for words in assumptions(usable.run))
    return Chosen(runs=tuple(found), skipped=left_out(skipped), unread=tuple(unread), assumed=assumed)


def _nothing(skipped: Sequence[LeftOut], unread: Sequence[str], where: str) -> InputError:
    """Return the error of tables without a row that can be used, with the reasons."""
    reasons = [str(one) for one in skipped[:MOST_REASONS]]
    return InputError(
        f"no row can be used ({'; '.join([*reasons, *unread]) or 'no rows'})",
        allowed="rows with a full layout and step_time_s or peak_mem_gb",
        where=where,
    )


def usable_run(run: MeasuredRun) -> CalibrationRun:
    """Return a run that a calibration can use.

    Raises
    ------
    InputError
        It cannot be priced, ran on several kinds of accelerators, or states neither a step time nor a peak.
    """
    if run.skipped:
        raise InputError(run.skipped)
    asked = question_of(run)
    found = CalibrationRun(run=run, asked=asked)
    if len({island.node.accelerator.name for island in asked.cluster.islands}) > 1:
        raise InputError("several kinds of accelerators in one run")
    if not found.timed and not found.weighed:
        raise InputError(f"no step time that counts ({run.untimed}) and no peak_mem_gb of a run that went well")
    step_time_s(found.pricings(Constants()), asked.layout)
    return found


@dataclass(slots=True, kw_only=True, eq=False)
class Prices:
    """Prices of runs under profiles, remembered: a fit asks for the same ones again."""

    constants: Constants = field(default_factory=Constants)
    _times_s: dict[tuple[Path, str, Profile], float] = field(default_factory=dict)
    _peaks_bytes: dict[tuple[Path, str, Profile], float] = field(default_factory=dict)
    _profiled: dict[Profile, Constants] = field(default_factory=dict)

    def time_s(self, run: CalibrationRun, profile: Profile) -> float:
        """Return the step time of a run under a profile [s]."""
        key = (run.file, run.run.id, profile)
        if key not in self._times_s:
            self._times_s[key] = step_time_s(run.pricings(self._under(profile)), run.asked.layout)
        return self._times_s[key]

    def peak_bytes(self, run: CalibrationRun, profile: Profile) -> float:
        """Return the peak that a run would state under a profile [B]."""
        key = (run.file, run.run.id, profile)
        if key not in self._peaks_bytes:
            asked, memory = run.asked, self._under(profile).memory
            uses = stage_memory(asked.layout, asked.model, asked.job, run.accelerator, memory)
            self._peaks_bytes[key] = stated_peak_bytes(run.run, uses)
        return self._peaks_bytes[key]

    def _under(self, profile: Profile) -> Constants:
        if profile not in self._profiled:
            self._profiled[profile] = profiled(self.constants, profile)
        return self._profiled[profile]


def time_observations(runs: Sequence[CalibrationRun], prices: Prices) -> Observations:
    """Return the step times of runs; all of them must be timed."""
    measured = np.array([run.run.step_time_s or 1.0 for run in runs], dtype=np.float64)

    def log_ratios(profile: Profile) -> Floats:
        times_s = np.array([prices.time_s(run, profile) for run in runs], dtype=np.float64)
        return np.asarray(np.log(times_s / measured))

    return Observations(
        names=tuple(run.run.id for run in runs), noise=np.full(len(runs), TIME_NOISE), log_ratios=log_ratios
    )


def memory_observations(runs: Sequence[CalibrationRun], prices: Prices) -> Observations:
    """Return the peaks of runs; all of them must state one."""
    measured = np.array([(run.run.peak_mem_gib or 1.0) * BYTES_PER_GIB for run in runs], dtype=np.float64)

    def log_ratios(profile: Profile) -> Floats:
        peaks_bytes = np.array([prices.peak_bytes(run, profile) for run in runs], dtype=np.float64)
        return np.asarray(np.log(peaks_bytes / measured))

    return Observations(
        names=tuple(run.run.id for run in runs), noise=np.full(len(runs), MEMORY_NOISE), log_ratios=log_ratios
    )

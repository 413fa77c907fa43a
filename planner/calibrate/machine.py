"""The factors of one machine from its runs, logs and tables: times first, then memory, each with its own rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.pricing import Constants, Pricing
from costmodels.profile import UNCHANGED, Profile
from costmodels.table import Floats
from planner.calibrate.fit import Fit, fit, left_out_steps
from planner.calibrate.observations import Observations, joined
from planner.calibrate.priors import Prior, memory_priors, profile_at, time_priors
from planner.calibrate.profile import FittedRun, MachineProfile, MemoryErrors
from planner.calibrate.runs import CalibrationRun, Prices, memory_observations, time_observations
from planner.evidence import traits_of
from planner.traits import family_of

DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMachine:
    """A profile without its files, and the runs whose stated peak was taken for a mistake."""

    profile: MachineProfile
    distrusted_memory: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Told:
    """Factors that some observations tell: their priors, the fit, and the profile that they come to."""

    priors: tuple[Prior, ...]
    fit: Fit
    profile: Profile

    @property
    def learned(self) -> tuple[str, ...]:
        return tuple(prior.name for prior, told in zip(self.priors, self.fit.learned, strict=True) if told)


def fit_machine(
    runs: Sequence[CalibrationRun], tables: Sequence[Observations], accelerator: str, prices: Prices | None = None
) -> FittedMachine:
    """Fit the factors of a machine.

    Parameters
    ----------
    runs : sequence of CalibrationRun
        Runs on that accelerator; may be empty.
    tables : sequence of Observations
        Logs of collectives and tables of products; may be empty.
    accelerator : str
        Name in the catalogue.
    prices : Prices, optional
        Remembers prices over several fits of the same runs.

    Returns
    -------
    FittedMachine
        Its profile names no files.
    """
    prices = prices or Prices()
    timed = [run for run in runs if run.timed]
    weighed = [run for run in runs if run.weighed]
    seconds = time_observations(timed, prices)
    times = _told(time_priors(), joined([seconds, *tables]), UNCHANGED)
    peaks = memory_observations(weighed, prices)
    memory = _told(memory_priors(), peaks, times.profile)
    return FittedMachine(
        profile=MachineProfile(
            accelerator=accelerator,
            frameworks=tuple(sorted({family_of(run.asked.job.software.framework) for run in runs})),
            factors=memory.profile,
            learned=(*times.learned, *memory.learned),
            runs=_fitted_runs(timed, seconds, times),
            files=(),
            memory=_memory_errors(peaks, memory),
        ),
        distrusted_memory=tuple(name for name, bad in zip(peaks.names, memory.fit.distrusted, strict=True) if bad),
    )


def _told(priors: tuple[Prior, ...], observed: Observations, base: Profile) -> _Told:
    """Fit some factors; they are rounded, since no measurement tells more digits."""
    found = fit(lambda steps: observed.log_ratios(profile_at(priors, steps, base)), len(priors), observed.noise)
    exact = profile_at(priors, found.steps, base)
    rounded = {prior.name: float(f"{getattr(exact, prior.name):.{DIGITS}g}") for prior in priors}
    return _Told(priors=priors, fit=found, profile=replace(exact, **rounded))


def _left_out(observed: Observations, told: _Told) -> Floats:
    """Errors of the first rows, each under factors that were fitted without it, shape (len(observed),)."""
    errors = np.zeros(len(observed))
    for row in range(len(observed)):
        without = profile_at(told.priors, left_out_steps(told.fit, row), told.profile)
        errors[row] = observed.log_ratios(without)[row]
    return errors


def _fitted_runs(timed: Sequence[CalibrationRun], seconds: Observations, told: _Told) -> tuple[FittedRun, ...]:
    before = seconds.log_ratios(UNCHANGED)
    after = seconds.log_ratios(told.profile)
    left_out = _left_out(seconds, told)
    return tuple(
        FittedRun(
            id=run.run.id,
            traits=traits_of(_pricing(run), run.asked.layout),
            before=round(float(before[number]), 6),
            after=round(float(after[number]), 6),
            left_out=round(float(left_out[number]), 6),
            distrusted=bool(told.fit.distrusted[number]),
        )
        for number, run in enumerate(timed)
    )


def _pricing(run: CalibrationRun) -> Pricing:
    return run.pricings(Constants())[0]


def _memory_errors(peaks: Observations, told: _Told) -> MemoryErrors:
    if not len(peaks):
        return MemoryErrors()
    sizes = (peaks.log_ratios(UNCHANGED), peaks.log_ratios(told.profile), _left_out(peaks, told))
    before, after, left_out = (round(float(np.median(np.abs(np.expm1(errors)))), 6) for errors in sizes)
    return MemoryErrors(runs=len(peaks), before=before, after=after, left_out=left_out)

"""The factors of one machine from its runs, logs and tables: times first, then memory, each with its own rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.pricing import Constants
from costmodels.profile import UNCHANGED, Profile
from costmodels.table import Bools, Floats
from hardware.tiers import link_rates
from planner.calibrate.fit import fit, left_out_steps
from planner.calibrate.observations import Observations, joined
from planner.calibrate.priors import Prior, memory_priors, profile_at, time_priors
from planner.calibrate.runs import CalibrationRun, Prices, memory_observations, time_observations
from planner.evidence.nearness import traits_of
from planner.profile import FittedRun, MachineProfile, MemoryErrors
from planner.traits import family_of

DIGITS: Final = 6
LEAST_CHECKED: Final = 3
"""Runs from which on leaving one out says whether a fit helps."""
LEAST_MEDIAN: Final = 0.9
"""Median error of left-out runs over that of the published constants which a fit must reach."""
LEAST_GAIN: Final = 0.5
"""Standard errors by which a fit must lower the error of left-out runs.

Both chosen on the published runs: of 39 studies calibrated on a third of their runs three lose, by at most four points
of their median error, and 16 gain more than one (docs/calibration.md); asking for more loses gains and spares none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMachine:
    """A profile without its files, and the runs whose stated peak was taken for a mistake."""

    profile: MachineProfile
    distrusted_memory: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Told:
    """What N runs and some tables tell: factors, and logarithms of predicted over measured of the runs, shape (N,)."""

    profile: Profile
    learned: tuple[str, ...]
    before: Floats
    after: Floats
    left_out: Floats
    distrusted: Bools


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
    seconds = [time_observations([run], prices) for run in timed]
    peaks = [memory_observations([run], prices) for run in runs if run.weighed]
    times = _checked(time_priors(), seconds, tables, UNCHANGED)
    memory = _checked(memory_priors(), peaks, (), times.profile)
    return FittedMachine(
        profile=MachineProfile(
            accelerator=accelerator,
            frameworks=tuple(sorted({family_of(run.asked.job.software.framework) for run in runs})),
            factors=memory.profile,
            learned=(*times.learned, *memory.learned),
            runs=_fitted_runs(timed, times),
            files=(),
            memory=_memory_errors(memory),
        ),
        distrusted_memory=tuple(peak.names[0] for peak, bad in zip(peaks, memory.distrusted, strict=True) if bad),
    )


def _checked(
    priors: tuple[Prior, ...], runs: Sequence[Observations], tables: Sequence[Observations], base: Profile
) -> _Told:
    """Fit runs and tables; where leaving runs out shows that the runs mislead, fit the tables alone."""
    told = _told(priors, runs, tables, base)
    if _helps(told):
        return told
    alone = _told(priors, (), tables, base)
    after = _ratios(runs, alone.profile)
    trusted = np.zeros_like(told.distrusted)
    return replace(told, profile=alone.profile, learned=alone.learned, after=after, left_out=after, distrusted=trusted)


def _helps(told: _Told) -> bool:
    """Whether factors that were fitted without a run predict it better than the published constants do.

    The mean error of trusted runs must fall by more than chance lets it, and the median of all by a tenth; too few runs
    cannot be asked.
    """
    before, left_out = np.abs(told.before), np.abs(told.left_out)
    if len(before) < LEAST_CHECKED:
        return True
    gain = (before - left_out)[~told.distrusted]
    sure = float(gain.mean()) > LEAST_GAIN * float(gain.std(ddof=1)) / len(gain) ** 0.5
    return sure and float(np.median(left_out)) <= LEAST_MEDIAN * float(np.median(before))


def _told(
    priors: tuple[Prior, ...], runs: Sequence[Observations], tables: Sequence[Observations], base: Profile
) -> _Told:
    """Fit some factors; they are rounded, since no measurement tells more digits."""
    observed = joined([*runs, *tables])
    found = fit(lambda steps: observed.log_ratios(profile_at(priors, steps, base)), len(priors), observed.noise)
    exact = profile_at(priors, found.steps, base)
    rounded = {prior.name: float(f"{getattr(exact, prior.name):.{DIGITS}g}") for prior in priors}
    profile = replace(exact, **rounded)
    without = [profile_at(priors, left_out_steps(found, row), base) for row in range(len(runs))]
    return _Told(
        profile=profile,
        learned=tuple(prior.name for prior, told in zip(priors, found.learned, strict=True) if told),
        before=_ratios(runs, base),
        after=_ratios(runs, profile),
        left_out=np.array([run.log_ratios(other)[0] for run, other in zip(runs, without, strict=True)]),
        distrusted=found.distrusted[: len(runs)],
    )


def _ratios(runs: Sequence[Observations], profile: Profile) -> Floats:
    return np.array([run.log_ratios(profile)[0] for run in runs], dtype=np.float64)


def _fitted_runs(timed: Sequence[CalibrationRun], told: _Told) -> tuple[FittedRun, ...]:
    rates = [link_rates(run.asked.cluster.islands[0]) for run in timed]
    return tuple(
        FittedRun(
            id=run.run.id,
            scale_up_bytes_per_s=rates[number][0],
            network_bytes_per_s=rates[number][1],
            traits=traits_of(run.pricings(Constants())[0], run.asked.layout),
            before=round(float(told.before[number]), 6),
            after=round(float(told.after[number]), 6),
            left_out=round(float(told.left_out[number]), 6),
            distrusted=bool(told.distrusted[number]),
        )
        for number, run in enumerate(timed)
    )


def _memory_errors(told: _Told) -> MemoryErrors:
    if not len(told.before):
        return MemoryErrors()
    sizes = (told.before, told.after, told.left_out)
    before, after, left_out = (round(float(np.median(np.abs(np.expm1(errors)))), 6) for errors in sizes)
    return MemoryErrors(runs=len(told.before), before=before, after=after, left_out=left_out)

"""What a calibration gains: fit the profile of a study's machine on a third of its runs, predict the other two thirds.

    python benchmarks/calibration_gain.py RUNS.csv... [--most 30] [--seeds 3] [--out docs/calibration.md]

Runs are grouped by study and accelerator; groups of at least nine timed runs count, and of larger ones ``--most`` runs
at even distances in the order of the tables. Every seed draws another third. Errors of the published constants and of
the profile are those of the same runs, none of which the profile has seen; so is the share of them inside the profile's
80 % interval. An error is the larger of predicted and measured over the smaller, less one. ``--out`` rewrites the table
of the page.
"""

import argparse
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accuracy import family

from costmodels.profile import UNCHANGED
from hardware.errors import InputError
from planner.calibrate.machine import fit_machine
from planner.calibrate.runs import CalibrationRun, Prices, time_observations, usable_run
from planner.evidence.measured import MeasuredRun, read_runs
from planner.evidence.nearness import left_out_half_width

LEAST_RUNS = 9
WORSE = 0.01
MARKS = ("<!-- gain -->", "<!-- end of gain -->")


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Absolute logarithmic errors of runs that a calibration did not see, of all seeds together."""

    study: str
    part: str
    runs: int
    before: np.ndarray
    after: np.ndarray
    inside: np.ndarray

    def cells(self) -> str:
        """Return the row of a Markdown table."""
        sizes = (_quantile(errors, share) for share in (0.5, 0.9) for errors in (self.before, self.after))
        return (
            f"| {self.study} | {self.part} | {self.runs} | "
            + " | ".join(f"{100 * size:.1f} %" for size in sizes)
            + " |"
        )


def _quantile(errors: np.ndarray, share: float) -> float:
    return float(np.quantile(np.expm1(errors), share))


def groups(paths: Sequence[Path], most: int) -> dict[tuple[str, str], list[MeasuredRun]]:
    """Timed runs by study and accelerator."""
    stated: dict[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for run in (run for path in paths for run in read_runs(path)):
        if not run.skipped and run.status == "ok" and run.step_time_s:
            stated[family(run), run.text("hardware")].append(run)
    found = {}
    for key, runs in sorted(stated.items()):
        picked = np.unique(np.linspace(0, len(runs) - 1, min(most, len(runs))).round().astype(int))
        found[key] = [runs[index] for index in picked]
    return found


def usable(runs: Iterable[MeasuredRun]) -> list[CalibrationRun]:
    """Return the runs that can be priced and whose time says something."""
    found = []
    for run in runs:
        try:
            found.append(usable_run(run))
        except InputError:
            continue
    return [run for run in found if run.timed]


def gain(study: str, stated: Sequence[MeasuredRun], seeds: int) -> Gain | None:
    """Calibrate on a third, judge on the rest, once for every seed; None for a group that is too small."""
    runs = usable(stated)
    if len(runs) < LEAST_RUNS:
        return None
    prices, part = Prices(), runs[0].accelerator.name
    before, after, inside = [], [], []
    for seed in range(seeds):
        order = list(range(len(runs)))
        random.Random(seed).shuffle(order)
        third = max(3, round(len(runs) / 3))
        profile = fit_machine([runs[index] for index in order[:third]], [], part, prices).profile
        rest = time_observations([runs[index] for index in order[third:]], prices)
        before.append(np.abs(rest.log_ratios(UNCHANGED)))
        after.append(np.abs(rest.log_ratios(profile.factors)))
        half = left_out_half_width([run.left_out for run in profile.trusted])
        inside.append(after[-1] <= half if math.isfinite(half) else np.zeros(0, dtype=bool))
    return Gain(
        study=study,
        part=part,
        runs=len(runs),
        before=np.concatenate(before),
        after=np.concatenate(after),
        inside=np.concatenate(inside),
    )


def table(gains: Sequence[Gain]) -> str:
    """Return the page's table, with what holds over all groups below it."""
    lines = [
        "| study | accelerator | runs | median before | after | 90th percentile before | after |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(each.cells() for each in gains),
    ]
    medians = np.array([[_quantile(each.before, 0.5), _quantile(each.after, 0.5)] for each in gains])
    p90s = np.array([[_quantile(each.before, 0.9), _quantile(each.after, 0.9)] for each in gains])
    inside = np.concatenate([each.inside for each in gains])
    change = medians[:, 1] - medians[:, 0]
    summary = (
        f"Over the {len(gains)} groups the mean of the medians goes from {100 * medians[:, 0].mean():.1f} % to "
        f"{100 * medians[:, 1].mean():.1f} %, the mean of the 90th percentiles from {100 * p90s[:, 0].mean():.1f} % to "
        f"{100 * p90s[:, 1].mean():.1f} %. The median falls by more than {100 * WORSE:.0f} point in "
        f"{(change < -WORSE).sum()} groups, stays within {100 * WORSE:.0f} point in "
        f"{(np.abs(change) <= WORSE).sum()}, and rises by more in {(change > WORSE).sum()} (at most "
        f"{100 * change.max():.1f} points). {100 * inside.mean():.0f} % of the runs that no calibration saw lie inside "
        "the 80 % interval of the profile."
    )
    return "\n".join([*lines, "", summary])


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = {key: runs for key, runs in groups(options.runs, options.most).items() if len(runs) >= LEAST_RUNS}
    studies = [study for study, _ in chosen]
    gains: list[Gain] = []
    with ProcessPoolExecutor(options.workers) as pool:
        for found in pool.map(gain, studies, chosen.values(), [options.seeds] * len(chosen)):
            if found is not None:
                gains.append(found)
                print(found.cells(), flush=True)
    text = table(gains)
    print(text)
    if options.out:
        page = options.out.read_text(encoding="utf-8")
        inner = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.DOTALL)
        options.out.write_text(inner.sub(lambda _: f"{MARKS[0]}\n{text}\n{MARKS[1]}", page), encoding="utf-8")


if __name__ == "__main__":
    main()

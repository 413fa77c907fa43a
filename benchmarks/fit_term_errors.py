"""Write planner/advice/term_errors.toml: how much each predicted part of a step errs, from the errors of whole steps.

    python benchmarks/fit_term_errors.py [RUNS.csv...] [-o planner/advice/term_errors.toml]

A run's error is taken as the sum of independent errors of its parts, each in proportion to the part's share:

    log(measured / predicted) ~ Student-t(4), variance sum_k share_k^2 u_k^2

The ``u_k`` of greatest likelihood are found by coordinate steps; heavy tails keep single troubled runs from deciding.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

import numpy as np

from planner.advice.gap import GROUPS, part_seconds
from planner.evidence.validate import validate

RUNS: Final = Path(__file__).parent.parent / "tests" / "reference" / "measured_runs.csv"
TAILS: Final = 4.0  # degrees of freedom
LEAST: Final = 0.02  # what one layout varies between repeats
LARGEST: Final = 3.0
TIED: Final = ("products", "memory")  # their shares vary too little between runs to tell their errors apart
LEFT_OUT: Final = ("ultrascale",)  # one framework on one troubled network
HEAD: Final = """\
# How much the predicted parts of a step err: standard deviation of the log of a part, one number per group of parts.
# Written by benchmarks/fit_term_errors.py.
"""


def shares_and_errors(paths: list[Path]) -> tuple[np.ndarray, np.ndarray, int]:
    """Squared shares of the groups of parts (runs, groups), squared log errors (runs,), and kinds of accelerators."""
    rows = [found for found in validate(paths) if found.error is not None and not found.run.id.startswith(LEFT_OUT)]
    shares = []
    for row in rows:
        assert row.cost is not None
        parts = part_seconds(row.cost.step)
        shares.append([parts[name] / row.cost.step.total_s for name in GROUPS])
    errors = np.array([np.log1p(row.error) for row in rows])
    return np.array(shares) ** 2, errors**2, len({row.run.text("hardware") for row in rows})


def cost(log_u: np.ndarray, shares: np.ndarray, errors: np.ndarray) -> float:
    """Negative log likelihood."""
    variance = shares @ np.exp(2.0 * log_u)
    return float(np.sum(0.5 * np.log(variance) + (TAILS + 1.0) / 2.0 * np.log1p(errors / (TAILS * variance))))


def fit(shares: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Errors of the groups of greatest likelihood, within bounds; shape (groups,)."""
    low, high = np.log(LEAST), np.log(LARGEST)
    found = np.full(shares.shape[1], np.log(0.1))
    best, step = cost(found, shares, errors), 0.5
    while step > 1e-3:
        before = best
        for number in range(len(found)):
            for change in (step, -step):
                tried = found.copy()
                tried[number] = np.clip(tried[number] + change, low, high)
                value = cost(tried, shares, errors)
                if value < best - 1e-9:
                    found, best = tried, value
        step = step if best < before else step / 2.0
    return np.exp(found)


def main() -> None:
    """Run as a script."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="*", type=Path, default=[RUNS])
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    shares, errors, kinds = shares_and_errors(chosen.runs)
    first, *others = (list(GROUPS).index(name) for name in TIED)
    free = [number for number in range(len(GROUPS)) if number not in others]
    shares[:, first] += shares[:, others].sum(axis=1)
    found = np.empty(len(GROUPS))
    found[free] = fit(shares[:, free], errors)
    found[others] = found[first]
    lines = [f"{name} = {value:.3f}" for name, value in zip(GROUPS, found, strict=True)]
    names = ", ".join(path.name for path in chosen.runs)
    source = f'source = "fitted on {len(errors)} runs of {kinds} kinds of accelerator in {names}"'
    text = "\n".join([source, "", "[error]", *lines]) + "\n"
    print(text)
    if chosen.output:
        chosen.output.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

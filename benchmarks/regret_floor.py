"""Ask how much of the regret on one source of ranked layouts any model could take away.

    python benchmarks/regret_floor.py RUNS.csv --groups GROUPS.csv [--source ground_truth_single]

Rows of one source are told apart by *cells*: width, tensor-parallel degree and micro-batch. Printed are
how well one layer time and one time of the ends per cell explain all rows of one stage, so how many numbers the table
holds; the regret of the shipped predictions, and of the same with the mean error taken away of every cell, and of those
two alone that cost most; the regret of the measured times under independent errors of the cells; and what a regression
learns about the errors of cells that it was not shown.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.evidence.measured import MeasuredRun
from planner.evidence.validate import Prediction, validate

Vector = NDArray[np.float64]
Cell = tuple[int, int, int]
LEAST_GROUP = 5
DRAWS = 200
ERRORS = (0.04, 0.06, 0.08, 0.1, 0.12)
WORST = 2
"""Cells that are named."""
RIDGE = 3.0
"""Weight of the pull of the regression towards no error, in rows."""


def cell(run: MeasuredRun) -> Cell:
    """Width, tensor-parallel degree and micro-batch of a run with a grid."""
    assert run.grid is not None
    return int(run.number("hidden_size") or 0), run.grid.tp, run.grid.micro_batch


def regret(groups: Sequence[Sequence[int]], predicted: Vector, measured: Vector) -> float:
    """Mean loss of the layout that is predicted to be fastest against the fastest one."""
    picks = [group[int(predicted[group].argmin())] for group in map(np.array, groups)]
    best = [measured[np.array(group)].min() for group in groups]
    return float(np.mean(measured[picks] / np.array(best) - 1.0))


def carriers(cells: Sequence[Cell], means: Mapping[Cell, float], lost: Callable[[Vector], float]) -> list[Cell]:
    """Cells, those first whose mean error alone takes most of the regret away; ``lost`` is the regret under errors."""
    return sorted(means, key=lambda name: (lost(np.array([means[name] * (name == other) for other in cells])), name))


def unexplained(runs: Sequence[MeasuredRun], measured: Vector) -> tuple[int, int, float]:
    """Rows of one stage, numbers that explain them, and the spread that is left: times linear in layers and passes."""
    grids = [run.grid for run in runs]
    rows = [n for n, grid in enumerate(grids) if grid and grid.pp == 1]
    names = sorted({(cell(runs[n])[:2], "step", grids[n].dp) for n in rows if grids[n]})  # type: ignore[union-attr]
    cells = sorted({cell(runs[n]) for n in rows})
    table = np.zeros((len(rows), 2 * (len(cells) + len(names))))
    for place, n in enumerate(rows):
        grid, layers = grids[n], runs[n].number("layers") or 0.0
        assert grid is not None
        at = 2 * cells.index(cell(runs[n]))
        table[place, at : at + 2] = grid.num_microbatches * layers, grid.num_microbatches
        at = 2 * (len(cells) + names.index((cell(runs[n])[:2], "step", grid.dp)))
        table[place, at : at + 2] = layers, 1.0
    scaled = table / measured[rows, None]
    found, *_ = np.linalg.lstsq(scaled, np.ones(len(rows)), rcond=1e-10)
    return len(rows), int(np.linalg.matrix_rank(scaled)), float(np.std(scaled @ found - 1.0))


def features(done: Sequence[Prediction]) -> Vector:
    """What a regression may see of each row: degrees, sizes, and shares of the parts of the predicted step."""
    rows = []
    for one in done:
        width, tp, micro = np.log2(cell(one.run))
        assert one.cost is not None
        assert one.run.grid is not None
        details, total = dict(one.cost.step.details), one.cost.step.total_s
        shares = [details[name] / total for name in ("gemm", "attention", "memory", "launch", "tp")]
        degrees = np.log2([one.run.grid.pp, one.run.grid.dp, one.run.grid.num_microbatches])
        rows.append(
            [width, tp, micro, tp * tp, micro * micro, tp * micro, width * tp, width * micro, *degrees, *shares]
        )
    table = np.array(rows)
    return np.asarray((table - table.mean(axis=0)) / np.maximum(table.std(axis=0), 1e-9))


def learned(table: Vector, errors: Vector, parts: Sequence[object]) -> Vector:
    """Errors that a ridge regression predicts for every part of the rows from all others."""
    found = np.zeros(len(errors))
    labels = np.array([hash(part) for part in parts])
    for label in np.unique(labels):
        rest, here = labels != label, labels == label
        mean = errors[rest].mean()
        seen = table[rest]
        weights = np.linalg.solve(seen.T @ seen + RIDGE * np.eye(table.shape[1]), seen.T @ (errors[rest] - mean))
        found[here] = mean + table[here] @ weights
    return found


def main() -> None:
    """Run as a script."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", type=Path)
    arguments.add_argument("--groups", type=Path, required=True)
    arguments.add_argument("--source", default="ground_truth_single")
    chosen = arguments.parse_args()
    done = [one for one in validate(chosen.runs) if chosen.source in one.run.text("source") and one.error is not None]
    runs = [one.run for one in done]
    measured = np.array([one.run.step_time_s or 0.0 for one in done])
    predicted = np.array([one.step_time_s or 0.0 for one in done])
    place = {run.id: n for n, run in enumerate(runs)}
    members: dict[str, list[int]] = defaultdict(list)
    with chosen.groups.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["run_id"] in place:
                members[row["group"]].append(place[row["run_id"]])
    groups = [group for group in members.values() if len(group) >= LEAST_GROUP]
    rows, numbers, left = unexplained(runs, measured)
    print(f"{rows} rows of one stage are sums of {numbers} numbers; {left:.3%} of a step is left over")
    cells = [cell(run) for run in runs]
    errors = np.log(measured / predicted)
    means = {name: errors[[n for n, other in enumerate(cells) if other == name]].mean() for name in set(cells)}
    spread, within = float(np.std(errors)), float(np.std(errors - [means[name] for name in cells]))
    print(f"{len(means)} cells, {len(groups)} groups; errors spread {spread:.3f}, inside a cell {within:.3f}")
    print(f"regret as predicted {regret(groups, predicted, measured):.4f}")
    known = predicted * np.exp([means[name] for name in cells])
    print(f"regret with the mean error of each cell known {regret(groups, known, measured):.4f}")
    first = carriers(cells, means, lambda found: regret(groups, predicted * np.exp(found), measured))[:WORST]
    known = predicted * np.exp([means[name] * (name in first) for name in cells])
    named = ", ".join(f"{name} {np.exp(means[name]):.2f}" for name in first)
    print(f"with those of {WORST} cells known {regret(groups, known, measured):.4f}: measured over predicted {named}")
    generator = np.random.default_rng(0)
    for size in ERRORS:
        draws = []
        for _ in range(DRAWS):
            noise = dict(zip(means, generator.normal(0.0, size, len(means)), strict=True))
            draws.append(regret(groups, measured * np.exp([noise[name] for name in cells]), measured))
        print(
            f"regret of measured times with errors of {size:.2f} per cell {np.mean(draws):.4f}, +- {np.std(draws):.4f}"
        )
    table = features(done)
    held_out = {
        "cell": cells,
        "width": [c[0] for c in cells],
        "tp": [c[1] for c in cells],
        "micro-batch": [c[2] for c in cells],
    }
    for name, parts in held_out.items():
        guess = learned(table, errors, parts)
        found = regret(groups, predicted * np.exp(guess), measured)
        print(f"regression, {name} held out: errors spread {np.std(errors - guess):.3f}, regret {found:.4f}")


if __name__ == "__main__":
    main()

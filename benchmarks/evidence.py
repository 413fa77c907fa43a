"""Write planner/evidence/evidence.csv from measured runs, and say how honest the intervals of time and memory are.

    python benchmarks/evidence.py RUNS.csv... [-o planner/evidence/evidence.csv]

Every run's interval is made from the runs of *other* studies only; the share of runs inside is printed for several
widenings, so that those of ``STEP_TIME`` and ``PEAK_MEMORY`` in planner/evidence/nearness.py can be set to the ones
that cover 80 % as the mean over studies: one study holds almost half of all runs and would decide alone. The same with
all runs on its part, or of its generation, left out: what holds for a part that nobody measured.
"""

import argparse
import csv
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from costmodels.pricing import Pricing
from planner.evidence.nearness import (
    PEAK_MEMORY,
    STEP_TIME,
    Quantity,
    distances,
    log_interval,
    table_of_rows,
    traits_of,
)
from planner.evidence.runs import question_of
from planner.evidence.validate import Prediction, validate
from planner.traits import RunTraits

LONGEST_NAME = 90
TROUBLED = ("ultrascale",)  # one framework on one troubled network: its step times say nothing about other runs


def rows_of(predictions: list[Prediction]) -> list[dict[str, str]]:
    """One row per run that was measured and priced, in time, in memory or in both."""
    rows = []
    for prediction in predictions:
        time, memory = time_ratio(prediction), prediction.memory_ratio
        if time is None and memory is None:
            continue
        asked = question_of(prediction.run)
        pricing = Pricing(model=asked.model, job=asked.job, island=asked.cluster.islands[0])
        traits = asdict(traits_of(pricing, asked.layout))
        text = {name: value if isinstance(value, str) else f"{value:.4g}" for name, value in traits.items()}
        run = prediction.run
        name = f"{run.text('model')} on {run.text('n_gpus')} {run.text('hardware')}, {run.text('framework')}"
        study = run.text("framework") if run.id.startswith("R0") else run.id.split("-")[0].split("_")[0]
        rows.append(
            {
                **text,
                STEP_TIME.column: "" if time is None else f"{time:.4f}",
                PEAK_MEMORY.column: "" if memory is None else f"{memory:.4f}",
                "study": study,
                "run": f"{name} ({run.id})"[:LONGEST_NAME],
            }
        )
    return rows


def time_ratio(prediction: Prediction) -> float | None:
    """Predicted over measured step time of a healthy run."""
    if prediction.error is None or prediction.run.id.startswith(TROUBLED):
        return None
    return prediction.error + 1.0


def covered(rows: list[dict[str, str]], quantity: Quantity, left_out: str = "study") -> np.ndarray:
    """Whether each run is inside the interval that other studies on other parts (``left_out``: a column) give."""
    table = table_of_rows(rows, quantity)
    inside = np.zeros(len(rows), dtype=bool)
    for number, row in enumerate(rows):
        values = {
            name: row[name] if name in table.texts else float(row[name]) for name in RunTraits.__dataclass_fields__
        }
        distance = distances(table, RunTraits(**values))
        distance[table.study == row["study"]] = np.inf
        if left_out != "study":
            distance[table.texts[left_out] == row[left_out]] = np.inf
        low, high = log_interval(table, distance, quantity)
        inside[number] = low <= table.log_ratio[number] <= high
    return inside


def shares(rows: list[dict[str, str]], inside: np.ndarray, column: str) -> dict[str, tuple[int, float]]:
    """Number of runs and share of them inside, by a column."""
    names = np.array([row[column] for row in rows])
    return {name: (int((names == name).sum()), float(inside[names == name].mean())) for name in sorted(set(names))}


def print_coverage(rows: list[dict[str, str]], quantity: Quantity) -> None:
    """Print how honest the intervals are: all runs, every study alike, and by kind of machine and model."""
    rows = [row for row in rows if row[quantity.column]]
    print(f"{quantity.column}: {len(rows)} runs")
    for widening in (0.8, 1.0, 1.25, 1.5):
        inside = covered(rows, replace(quantity, widening=widening))
        studies = float(np.mean([share for _, share in shares(rows, inside, "study").values()]))
        print(f"widening {widening}: {inside.mean():.1%} of all runs inside, {studies:.1%} as the mean over studies")
    for column in ("hardware", "generation"):
        for widening in (quantity.widening, quantity.widening_elsewhere):
            inside = covered(rows, replace(quantity, widening=widening), column)
            share = float(np.mean([each for _, each in shares(rows, inside, column).values()]))
            print(f"widening {widening}: {share:.1%} as the mean over each {column} left out")
    inside = covered(rows, quantity)
    for column in ("generation", "moe", "framework"):
        each = ", ".join(
            f"{name} {share:.0%} of {count}" for name, (count, share) in shares(rows, inside, column).items()
        )
        print(f"at {quantity.widening} by {column}: {each}")


def main() -> None:
    """Run as a script."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", type=Path)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    rows = rows_of(list(validate(chosen.runs)))
    for quantity in (STEP_TIME, PEAK_MEMORY):
        print_coverage(rows, quantity)
    if chosen.output:
        with chosen.output.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())

"""Write planner/evidence/evidence.csv from measured runs, and say how honest the intervals are.

    python benchmarks/evidence.py RUNS.csv... [-o planner/evidence/evidence.csv]

Every run's interval is made from the runs of *other* studies only; the share of runs inside is printed for several
widenings, so that ``WIDENING`` in planner/evidence/nearness.py can be set to the one that covers 80 % as the mean over
studies: one study holds almost half of all runs and would decide alone.
"""

import argparse
import csv
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from costmodels.pricing import Pricing
from planner.evidence.nearness import WIDENING, distances, log_interval, table_of_rows, traits_of
from planner.evidence.runs import question_of
from planner.evidence.validate import Prediction, validate
from planner.traits import RunTraits

LONGEST_NAME = 90
LEFT_OUT = ("ultrascale",)  # one framework on one troubled network: its errors say nothing about other runs


def rows_of(predictions: list[Prediction]) -> list[dict[str, str]]:
    """One row per run that was measured and priced."""
    rows = []
    for prediction in predictions:
        if prediction.error is None or prediction.run.id.startswith(LEFT_OUT):
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
                "ratio": f"{prediction.error + 1.0:.4f}",
                "study": study,
                "run": f"{name} ({run.id})"[:LONGEST_NAME],
            }
        )
    return rows


def covered(rows: list[dict[str, str]], widening: float) -> np.ndarray:
    """Whether each run is inside the interval that other studies give."""
    table = table_of_rows(rows)
    inside = np.zeros(len(rows), dtype=bool)
    for number, row in enumerate(rows):
        values = {
            name: row[name] if name in table.texts else float(row[name]) for name in RunTraits.__dataclass_fields__
        }
        distance = distances(table, RunTraits(**values))
        distance[table.study == row["study"]] = np.inf
        low, high = log_interval(table, distance, widening)
        inside[number] = low <= table.log_ratio[number] <= high
    return inside


def shares(rows: list[dict[str, str]], inside: np.ndarray, column: str) -> dict[str, tuple[int, float]]:
    """Number of runs and share of them inside, by a column."""
    names = np.array([row[column] for row in rows])
    return {name: (int((names == name).sum()), float(inside[names == name].mean())) for name in sorted(set(names))}


def print_coverage(rows: list[dict[str, str]]) -> None:
    """Print how honest the intervals are: all runs, every study alike, and by kind of machine and model."""
    for widening in (0.8, 1.0, 1.25, 1.5):
        inside = covered(rows, widening)
        studies = float(np.mean([share for _, share in shares(rows, inside, "study").values()]))
        print(f"widening {widening}: {inside.mean():.1%} of all runs inside, {studies:.1%} as the mean over studies")
    inside = covered(rows, WIDENING)
    for column in ("generation", "moe", "framework"):
        each = ", ".join(
            f"{name} {share:.0%} of {count}" for name, (count, share) in shares(rows, inside, column).items()
        )
        print(f"at {WIDENING} by {column}: {each}")


def main() -> None:
    """Run as a script."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("runs", nargs="+", type=Path)
    arguments.add_argument("-o", "--output", type=Path)
    chosen = arguments.parse_args()
    rows = rows_of(list(validate(chosen.runs)))
    print(f"{len(rows)} runs")
    print_coverage(rows)
    if chosen.output:
        with chosen.output.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.DictWriter(handle, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())

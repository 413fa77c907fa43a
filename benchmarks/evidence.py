"""Write planner/evidence/evidence.csv from measured runs, and say how honest the intervals of time and memory are.

    python benchmarks/evidence.py RUNS.csv... [-o planner/evidence/evidence.csv]

Every run's interval is made from the runs of *other* studies only; the share of runs inside is printed for several
widenings, so that those of ``STEP_TIME`` and ``PEAK_MEMORY`` in planner/evidence/nearness.py can be set to the ones
that cover 80 % as the mean over studies: one study holds almost half of all runs and would decide alone. The same with
all runs on its part, of its generation or of its software left out. Runs whose kind of stack others measured are told
apart from those whose kind nobody else did.
"""

import argparse
import csv
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from costmodels.layout import Layout
from costmodels.pricing import Pricing
from planner.evidence.nearness import (
    ENOUGH,
    PEAK_MEMORY,
    STEP_TIME,
    Quantity,
    distances,
    log_interval,
    table_of_rows,
    traits_of,
    widened,
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
        traits = asdict(traits_of(*priced(prediction)))
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


def priced(prediction: Prediction) -> tuple[Pricing, Layout]:
    """What was priced of a run, on the island of its first stage."""
    asked = question_of(prediction.run)
    return Pricing(model=asked.model, job=asked.job, island=asked.cluster.islands[0]), asked.layout


def time_ratio(prediction: Prediction) -> float | None:
    """Predicted over measured step time of a healthy run."""
    if prediction.error is None or prediction.run.id.startswith(TROUBLED):
        return None
    return prediction.error + 1.0


def covered(rows: list[dict[str, str]], quantity: Quantity, left_out: str = "study") -> tuple[np.ndarray, np.ndarray]:
    """Whether each run is inside the interval that other studies on other parts (``left_out``: a column) give.

    Returns
    -------
    tuple of ndarray
        Whether it is inside, and whether those others hold enough runs of its kind, each of shape (N,).
    """
    table = table_of_rows(rows, quantity)
    inside, known = np.zeros((2, len(rows)), dtype=bool)
    for number, row in enumerate(rows):
        values = {
            name: row[name] if name in table.texts else float(row[name]) for name in RunTraits.__dataclass_fields__
        }
        traits = RunTraits(**values)
        distance = distances(table, traits)
        distance[table.study == row["study"]] = np.inf
        if left_out != "study":
            distance[table.texts[left_out] == row[left_out]] = np.inf
        low, high = log_interval(table, distance, widened(quantity, table, distance, traits))
        inside[number] = low <= table.log_ratio[number] <= high
        alike = np.all([table.texts[name] == row[name] for name in quantity.kind], axis=0)
        known[number] = (alike & np.isfinite(distance)).sum() >= ENOUGH
    return inside, known


def shares(rows: list[dict[str, str]], inside: np.ndarray, column: str) -> dict[str, tuple[int, float]]:
    """Number of runs and share of them inside, by a column."""
    names = np.array([row[column] for row in rows])
    return {name: (int((names == name).sum()), float(inside[names == name].mean())) for name in sorted(set(names))}


def print_coverage(rows: list[dict[str, str]], quantity: Quantity) -> None:
    """Print how honest the intervals are: all runs, every study alike, and by kind of machine and model."""
    rows = [row for row in rows if row[quantity.column]]
    print(f"{quantity.column}: {len(rows)} runs")
    for column in ("study", "hardware", "generation", "framework"):
        for factor in (0.8, 1.0, 1.25):
            wide = replace(
                quantity,
                widening=factor * quantity.widening,
                widening_elsewhere=factor * quantity.widening_elsewhere,
                widening_unlike=factor * quantity.widening_unlike,
            )
            inside, known = covered(rows, wide, column)
            words = [f"{inside.mean():.1%} of all runs inside"]
            for name, chosen in (("known kinds", known), ("kinds of its own", ~known)):
                some = [row for row, take in zip(rows, chosen, strict=True) if take]
                each = shares(some, inside[chosen], column)
                if each:
                    mean = float(np.mean([share for _, share in each.values()]))
                    words.append(f"{name} {mean:.1%} as the mean over {len(each)}")
            print(f"each {column} left out, widenings x {factor}: {', '.join(words)}")
    inside, _ = covered(rows, quantity)
    for column in ("generation", "moe", "framework"):
        each = ", ".join(
            f"{name} {share:.0%} of {count}" for name, (count, share) in shares(rows, inside, column).items()
        )
        print(f"by {column}: {each}")


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

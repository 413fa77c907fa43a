"""Compare the memory model with measured runs: errors of the peak, how often a verdict was right, and components.

    python benchmarks/check_memory.py RUNS.csv... [--family NAME]... [--rows]

Results are grouped by family: the prefix of a run's id, or its framework. The peak is compared with the quantity that
the run states (:func:`planner.evidence.validate.stated_peak_bytes`).
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from accuracy import errors, family, memory_ratios

from planner.evidence.validate import Prediction, validate

GIB = 2.0**30


def print_peaks(predictions: Iterable[Prediction], *, rows: bool) -> None:
    """Print errors of measured peaks by family, and on demand every run with its components."""
    groups: dict[str, list[float]] = defaultdict(list)
    for prediction, ratio in memory_ratios(predictions):
        groups[family(prediction.run)].append(ratio)
        if rows:
            print_row(prediction)
    every = [ratio for ratios in groups.values() for ratio in ratios]
    for name, ratios in [*sorted(groups.items()), ("all", every)]:
        if ratios:
            print(errors(name, ratios).cells())


def print_row(prediction: Prediction) -> None:
    """Print one run with the components of its heaviest stage."""
    run, cost = prediction.run, prediction.cost
    if cost is None or not prediction.peak_mem_bytes:
        return
    heaviest = max(cost.memory, key=lambda use: use.total_bytes)
    sizes = "  ".join(f"{name} {size / GIB:.1f}" for name, size in heaviest.components if size > 0.05 * GIB)
    peaks = f"{run.peak_mem_gib:7.2f} {prediction.peak_mem_bytes / GIB:7.2f}"
    print(f"  {run.id[-48:]:48s} {peaks}  stage {heaviest.stage}: {sizes}")


def print_verdicts(predictions: Iterable[Prediction]) -> None:
    """Print how runs that failed or ran were judged, by family."""
    groups: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for item in predictions:
        if item.verdict and item.run.status in ("ok", "oom"):
            groups[family(item.run)][item.run.status, item.verdict] += 1
    total: Counter[tuple[str, str]] = sum(groups.values(), Counter())
    for name, counts in [*sorted(groups.items()), ("all", total)]:
        if name == "all" or any(status == "oom" or verdict == "oom" for status, verdict in counts):
            print(f"{name:28s}" + "  ".join(f"{s}->{v} {n}" for (s, v), n in sorted(counts.items())))


def main() -> None:
    """Run the checks that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--family", action="append")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    found = validate(options.runs)
    if options.family:
        found = tuple(item for item in found if family(item.run) in options.family)
    print("| family | runs | median error | 90th percentile | median of predicted / measured |")
    print_peaks(found, rows=options.rows)
    print_verdicts(found)
    skipped = Counter((item.skipped or "")[:72] for item in found if item.skipped)
    for reason, count in skipped.most_common(12):
        print(f"skipped {count:5d}  {reason}")


if __name__ == "__main__":
    main()

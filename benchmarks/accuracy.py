"""Compare predictions with measured runs and write the page of errors.

    python benchmarks/accuracy.py RUNS.csv... [--groups GROUPS.csv] [--orderings ORDERINGS.csv]
        [--reasons REASONS.toml] [--out docs/accuracy.md]

Every row is predicted from what its source states. Rows whose model FLOP utilisation is under 5 % are troubled runs and
are left out; ``ultrascale`` (one framework on one network) stands in its own line and not in the total. A ranking group
holds layouts measured on the same model, accelerators and batch: Spearman's coefficient compares the two orders, the
regret is what the layout that the model puts first loses against the best one. A comparison says which of two runs
trains more tokens per second and accelerator; it counts when both runs are priced.
"""

import argparse
import csv
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from evidence import priced

from planner.evidence.measured import MeasuredRun
from planner.evidence.nearness import evidence_for
from planner.evidence.ranking import Ranking, ranking_of
from planner.evidence.validate import Prediction, validate
from planner.report.validation import kind

APART = "ultrascale"
LEAST_ROWS = 3
LEAST_GROUP = 5
WORST = 10
MOST_OF_A_STUDY = 2
OTHERS = Path(__file__).parents[1] / "tests" / "reference" / "other_stacks.csv"


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Relative errors of a group of predictions."""

    name: str
    rows: int
    median: float
    p90: float
    ratio: float

    def cells(self) -> str:
        """Return the row of a Markdown table."""
        return f"| {self.name} | {self.rows} | {_percent(self.median)} | {_percent(self.p90)} | {self.ratio:.2f} |"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two measured runs of which a table says that the first is faster; gains in tokens per second and accelerator."""

    id: str
    source: str
    kind: str
    faster: str
    slower: str
    measured: float
    predicted: float

    @property
    def right(self) -> bool:
        """Whether the model says the same."""
        return self.predicted > 1.0


def family(run: MeasuredRun) -> str:
    """Name the study of a run: the prefix of its id, or the framework where ids are numbers."""
    if re.match(r"R\d", run.id):
        return run.text("framework")
    return run.id.split("-")[0].split("_")[0].rstrip("0123456789")


def errors(name: str, ratios: Iterable[float]) -> Errors:
    """Summarise predicted over measured."""
    ratio = np.array(list(ratios))
    size = np.abs(ratio - 1.0)
    return Errors(
        name=name,
        rows=len(ratio),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        ratio=float(np.median(ratio)),
    )


def timed(predictions: Iterable[Prediction]) -> list[tuple[Prediction, float]]:
    """Pair every scored prediction of a step time with its ratio to the measured one."""
    return [
        (prediction, prediction.error + 1.0)
        for prediction in predictions
        if prediction.error is not None and prediction.run.status == "ok"
    ]


def grouped(pairs: Iterable[tuple[Prediction, float]], key: Callable[[MeasuredRun], str]) -> list[Errors]:
    """Errors by a property of the run, largest group first; groups of fewer than three rows are left out."""
    groups: dict[str, list[float]] = defaultdict(list)
    for prediction, ratio in pairs:
        groups[key(prediction.run)].append(ratio)
    found = [errors(name, ratios) for name, ratios in groups.items() if len(ratios) >= LEAST_ROWS]
    return sorted(found, key=lambda item: (-item.rows, item.name))


def memory_ratios(predictions: Iterable[Prediction]) -> list[tuple[Prediction, float]]:
    """Pair predictions with the ratio of predicted to measured peak memory."""
    return [(prediction, prediction.memory_ratio) for prediction in predictions if prediction.memory_ratio is not None]


def rankings(predictions: Iterable[Prediction], path: Path) -> list[Ranking]:
    """Judge the order of every group with at least five predicted layouts."""
    by_id = {prediction.run.id: prediction for prediction in predictions}
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            found = by_id.get(row["run_id"])
            if found is not None and found.step_time_s and found.run.step_time_s:
                groups[row["group"]].append((found.step_time_s, found.run.step_time_s))
    return [ranking_of(name, *np.array(pairs).T) for name, pairs in groups.items() if len(pairs) >= LEAST_GROUP]


def comparisons(predictions: Iterable[Prediction], path: Path) -> list[Comparison]:
    """Judge the comparisons of a table (``runs_ids``: faster;slower) of which both runs are predicted."""
    by_id = {prediction.run.id: prediction for prediction in predictions}
    found = []
    with path.open(newline="", encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            pair = [by_id.get(name) for name in (row["runs_ids"] or "").split(";")]
            sure = [p for p in pair if p is not None and p.step_time_s and p.run.step_time_s and p.run.grid]
            if len(sure) != 2:
                continue
            measured, predicted = (
                _speed(sure[0], measured=which) / _speed(sure[1], measured=which) for which in (True, False)
            )
            names = {name: row[name] for name in ("id", "source", "kind", "faster", "slower")}
            found.append(Comparison(**names, measured=measured, predicted=predicted))
    return found


def _speed(prediction: Prediction, *, measured: bool) -> float:
    """Tokens per second and accelerator."""
    grid, seconds = prediction.run.grid, prediction.run.step_time_s if measured else prediction.step_time_s
    tokens = float(grid.global_batch * grid.seq) if grid else 0.0
    return tokens / ((seconds or 1.0) * (prediction.run.number("n_gpus") or 1.0))


def comparison_lines(found: Sequence[Comparison]) -> list[str]:
    """Count what comes out right by how far the runs lie apart, and list what fails although they lie far apart."""
    lines = ["| faster by | comparisons | right |", "|---|---|---|"]
    clear = [item for item in found if item.measured > 1.0]
    bounds = (1.0, 1.02, 1.05, 1.1, 1.25, float("inf"))
    for low, high in pairwise(bounds):
        mine = [item for item in clear if low < item.measured <= high]
        title = (
            f"{_percent(low - 1.0)} to {_percent(high - 1.0)}" if high < float("inf") else f"over {_percent(low - 1.0)}"
        )
        lines.append(f"| {title} | {len(mine)} | {sum(item.right for item in mine)} |")
    lines += [f"| all | {len(clear)} | {sum(item.right for item in clear)} |", ""]
    if len(clear) < len(found):
        lines += [f"{len(found) - len(clear)} more compare runs whose tables say the opposite, or differ in more.", ""]
    wrong = sorted((item for item in clear if not item.right), key=lambda item: -item.measured)
    lines += ["| comparison that fails | measured | predicted |", "|---|---|---|"]
    lines += [f"| {w.faster} over {w.slower} ({w.id}) | {w.measured:.2f} | {w.predicted:.2f} |" for w in wrong[:WORST]]
    return [*lines, ""]


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def table(title: str, rows: Sequence[Errors]) -> list[str]:
    """Render a Markdown table of errors."""
    head = [
        f"| {title} | runs | median error | 90th percentile | median of predicted / measured |",
        "|---|---|---|---|---|",
    ]
    return [*head, *(row.cells() for row in rows), ""]


def ranking_lines(found: Sequence[Ranking]) -> list[str]:
    """Summarise the ranking groups."""
    if not found:
        return []
    spearman = np.array([item.spearman for item in found])
    regret = np.array([item.regret for item in found])
    worst = float(np.quantile(regret, 0.9))
    regrets = (float(np.median(regret)), float(regret.mean()), worst)
    return [
        f"{len(found)} groups of at least {LEAST_GROUP} layouts, {sum(item.size for item in found)} layouts.",
        "",
        "| | median | mean | worst decile |",
        "|---|---|---|---|",
        f"| Spearman | {np.median(spearman):.2f} | {spearman.mean():.2f} | {np.quantile(spearman, 0.1):.2f} |",
        "| regret | " + " | ".join(_percent(value) for value in regrets) + " |",
        "",
    ]


def verdict_lines(predictions: Iterable[Prediction]) -> list[str]:
    """Count how runs that failed or ran were judged."""
    counts = Counter((p.run.status, p.verdict) for p in predictions if p.verdict and p.run.status in ("ok", "oom"))
    failed = sum(number for (status, _), number in counts.items() if status == "oom")
    ran = sum(number for (status, _), number in counts.items() if status == "ok")
    seen = counts["oom", "oom"] + counts["oom", "risky"]
    lines = ["| runs | fits | risky | oom |", "|---|---|---|---|"]
    for status, title in (("oom", "ran out of memory"), ("ok", "ran")):
        lines.append(f"| {title} | " + " | ".join(str(counts[status, v]) for v in ("fits", "risky", "oom")) + " |")
    if failed and ran:
        wrong = counts["ok", "oom"] / ran
        lines += [
            "",
            f"Recall (risky counts) {_percent(seen / failed)}; runs wrongly called oom {_percent(wrong)}.",
            "",
        ]
    return lines


def coverage_lines(predictions: Sequence[Prediction]) -> list[str]:
    """State how many timed runs were priced, how many of those that state a full layout, and why others were not."""
    healthy = [
        p for p in predictions if p.run.step_time_s and p.run.status == "ok" and (p.run.number("mfu") or 5.0) >= 5.0
    ]
    full = [p for p in healthy if "not stated" not in (p.run.skipped or "")]
    lines = [
        f"{_priced(healthy)} timed runs are priced, {_priced(full)} of those that state GPUs, batch, sequence,",
        "tensor and pipeline parallelism and micro-batch. Others:",
        "",
    ]
    reasons = Counter(re.sub(r"[\d'].*", "..", p.skipped or "") for p in healthy if p.skipped)
    return [*lines, *(f"- {number}: {reason}" for reason, number in reasons.most_common(12)), ""]


def _priced(predictions: Sequence[Prediction]) -> str:
    count = sum(p.step_time_s is not None for p in predictions)
    return f"{count} of {len(predictions)} ({_percent(count / max(1, len(predictions)))})"


def worst_lines(pairs: Sequence[tuple[Prediction, float]], reasons: dict[str, str]) -> list[str]:
    """List the rows with the largest errors, each from another study where possible, with its reason."""
    ordered = sorted(pairs, key=lambda pair: -abs(np.log(pair[1])))
    studies = Counter[str]()
    shown: list[tuple[Prediction, float]] = []
    for pair in ordered:
        name = family(pair[0].run)
        studies[name] += 1
        if studies[name] <= MOST_OF_A_STUDY:
            shown.append(pair)
    lines = ["| run | measured s | predicted s | ratio | reason |", "|---|---|---|---|---|"]
    for prediction, ratio in shown[:WORST]:
        run = prediction.run
        why = next((text for pattern, text in reasons.items() if re.search(pattern, run.id)), "not explained yet")
        lines.append(f"| `{run.id}` | {run.step_time_s:.4g} | {prediction.step_time_s:.4g} | {ratio:.2f} | {why} |")
    return [*lines, ""]


def other_lines(predictions: Iterable[Prediction]) -> list[str]:
    """Errors by software on stacks that the reference runs lack, and the share inside the stated interval."""
    groups: dict[str, list[tuple[float, bool, bool]]] = defaultdict(list)
    for prediction, ratio in timed(predictions):
        told = evidence_for(*priced(prediction), prediction.step_time_s or 0.0, prediction.peak_mem_bytes or 0.0)
        found = (abs(ratio - 1.0), told.low_s <= prediction.run.step_time_s <= told.high_s)
        for name in ("all", prediction.run.text("framework")):
            groups[name].append((*found, bool(prediction.run.text("fitted"))))
    lines = [
        "| software | runs | mean error | median | inside the interval | mean error where nothing was fitted |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        sizes, inside, fitted = (np.array(values) for values in zip(*found, strict=True))
        held_out = f"{_percent(sizes[~fitted].mean())} of {(~fitted).sum()}" if not fitted.all() else ""
        shares = " | ".join(_percent(value) for value in (sizes.mean(), np.median(sizes), inside.mean()))
        lines.append(f"| {name} | {len(found)} | {shares} | {held_out} |")
    return [*lines, ""]


def page(
    predictions: Sequence[Prediction],
    groups: Path | None,
    reasons: dict[str, str],
    orderings: Path | None = None,
    others: Path | None = None,
) -> str:
    """Return the whole page as Markdown."""
    pairs = timed(predictions)
    scored = [pair for pair in pairs if family(pair[0].run) != APART]
    numbered = [pair for pair in pairs if re.match(r"R\d", pair[0].run.id)]
    peaks = memory_ratios(predictions)
    totals = [errors("all", [r for _, r in scored])] if scored else []
    totals += [errors("vendors' tables", [r for _, r in numbered])] if numbered else []
    totals += grouped(scored, kind)
    parts = [
        "# Accuracy",
        "",
        "Written by `python benchmarks/accuracy.py`: " + (__doc__ or "").split("\n\n")[-1].strip().replace("\n", " "),
        "",
        "## Step time",
        "",
        *table("runs", totals),
        *table("hardware", grouped(pairs, lambda run: run.text("hardware"))),
        *table("study", grouped(pairs, family)),
        "## Worst rows",
        "",
        *worst_lines(scored, reasons),
    ]
    if others is not None:
        parts += ["## Software and hardware that the runs above lack", "", *other_lines(validate([others]))]
    if groups is not None:
        parts += ["## Ranking", "", *ranking_lines(rankings(predictions, groups))]
    if orderings is not None:
        parts += ["## Comparisons", "", *comparison_lines(comparisons(predictions, orderings))]
    parts += ["## Peak memory", ""]
    parts += table("study", [errors("all", [r for _, r in peaks]), *grouped(peaks, family)]) if peaks else []
    parts += ["## Out of memory", "", *verdict_lines(predictions), "## Coverage", "", *coverage_lines(predictions)]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Predict the runs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--groups", type=Path)
    parser.add_argument("--orderings", type=Path)
    parser.add_argument("--others", type=Path, default=OTHERS, help="runs of stacks that the first tables lack")
    parser.add_argument("--reasons", type=Path, default=Path(__file__).with_name("accuracy_reasons.toml"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    reasons = tomllib.loads(options.reasons.read_text(encoding="utf-8")) if options.reasons.is_file() else {}
    text = page(validate(options.runs), options.groups, reasons, options.orderings, options.others)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()

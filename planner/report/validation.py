"""Predictions of measured runs: as the contract's JSON and as tables of errors."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from costmodels.inventory import fitted_constants
from hardware.nouns import count
from planner.evidence.cells import unread_columns
from planner.evidence.left_out import LeftOut, left_out
from planner.evidence.measured import MeasuredRun
from planner.evidence.validate import ErrorSummary, Prediction, summaries
from planner.profile import MachineProfile
from planner.report.console import section, show
from planner.report.json_report import Json, heading
from planner.report.layout_text import bullets, labelled
from planner.report.left_out_text import left_out_rows, other_units
from planner.report.tables import ruled_table
from planner.report.words import gib, percent

MOST_GROUPS: Final = 20
LEAST_ROWS: Final = 3  # a median of fewer says nothing


def predictions_to_json(predictions: Sequence[Prediction], profile: MachineProfile | None = None) -> Json:
    """Return predictions as plain data: a row for every run, the errors by group, and the profile if one was used."""
    return {
        **heading(),
        "rows": [_row(prediction) for prediction in predictions],
        "summary": {
            "runs": len(predictions),
            "predicted": sum(prediction.skipped is None for prediction in predictions),
            **{title: [_summary(group) for group in groups] for title, groups in _groups(predictions)},
            "memory": [_summary(group) for group in _memory_errors(predictions)],
            "verdicts": _verdicts(predictions),
            "skipped": {one.reason: len(one.rows) for one in _skipped(predictions)},
            "assumed": {one.reason: len(one.rows) for one in _assumed(predictions)},
            **({} if profile is None else {"profile": _profile(profile, predictions)}),
            "fitted_constants": {
                "total": sum(one.total for one in fitted_constants()),
                **{one.model: {"total": one.total, "of_machines": one.of_machines} for one in fitted_constants()},
            },
        },
    }


def _profile(profile: MachineProfile, predictions: Iterable[Prediction]) -> Json:
    return {
        "file": profile.name,
        "accelerator": profile.accelerator,
        "frameworks": list(profile.frameworks),
        "applied": sum(prediction.profiled for prediction in predictions),
    }


def _row(prediction: Prediction) -> Json:
    memory = prediction.peak_mem_bytes
    return {
        "id": prediction.run.id,
        "step_time_s": prediction.step_time_s,
        "peak_mem_gb": None if memory is None else gib(memory),
        "verdict": prediction.verdict,
        "skipped": prediction.skipped,
    }


def _summary(group: ErrorSummary) -> Json:
    return {
        "name": group.name,
        "rows": group.rows,
        "median_error": group.median,
        "p90_error": group.p90,
        "median_ratio": group.median_ratio,
    }


def print_predictions(
    console: Console, predictions: Sequence[Prediction], profile: MachineProfile | None = None
) -> None:
    """Print errors of step times by hardware, family and kind of model, of memory, and why rows were skipped."""
    predicted = sum(prediction.skipped is None for prediction in predictions)
    judged = sum(prediction.error is not None for prediction in predictions)
    head = f"{count(len(predictions), 'run')}, {predicted:,} predicted, {judged:,} with a step time to compare with"
    parts: list[RenderableType] = [Text(head), *_profile_line(profile, predictions)]
    if judged:
        groups = [(title, found) for title, found in _groups(predictions) if found]
        parts.append(section("Step time: error of the prediction against the measured step", _table(groups)))
    parts += _memory_parts(predictions)
    errors = ((found.run.place, found.error) for found in predictions)
    parts += other_units((place, 1.0 / (1.0 + error)) for place, error in errors if error is not None)
    parts += _left_out(predictions)
    parts.append(section("Fitted constants", labelled(_constants())))
    show(console, *parts)


def _left_out(predictions: Sequence[Prediction]) -> list[RenderableType]:
    """Name rows that were not predicted or not compared, and columns that look like one that is read."""
    skipped = _skipped(predictions)
    untimed = left_out(
        (found.run.untimed, found.run.place) for found in predictions if not found.skipped and found.run.untimed
    )
    headers = {found.run.file: found.run.row for found in predictions}
    unread = [f"{file}: {words}" for file, row in headers.items() for words in unread_columns(row)]
    parts = [section("Columns", bullets(unread))] if unread else []
    assumed = _assumed(predictions)
    parts += [section("Assumed", left_out_rows(assumed))] if assumed else []
    parts += [section("Step time not compared", left_out_rows(untimed))] if untimed else []
    return [*parts, section("Not predicted", left_out_rows(skipped))] if skipped else parts


def _skipped(predictions: Iterable[Prediction]) -> tuple[LeftOut, ...]:
    """Name why rows are not priced, and which."""
    return left_out((found.skipped, found.run.place) for found in predictions if found.skipped)


def _assumed(predictions: Iterable[Prediction]) -> tuple[LeftOut, ...]:
    """Name what prices assume, and of which rows."""
    return left_out((words, found.run.place) for found in predictions for words in found.assumed)


def _profile_line(profile: MachineProfile | None, predictions: Sequence[Prediction]) -> list[RenderableType]:
    """Say where a profile was applied, and where not."""
    if profile is None:
        return []
    applied = sum(prediction.profiled for prediction in predictions)
    rest = sum(prediction.skipped is None for prediction in predictions) - applied
    others = f"; {count(rest, 'run')} of other accelerators without it" if rest else ""
    return [Text(f"with {profile.name}, the profile of {profile.accelerator}, on {count(applied, 'run')}{others}")]


def _constants() -> list[tuple[str, str]]:
    """Say how many constants the models have, and how many of them belong to a kind of machine."""
    found = fitted_constants()
    rows = [("all", f"{sum(one.total for one in found):,}, each with what it was fitted on in its file")]
    for one in found:
        machines = (
            f", {one.of_machines:,} of them for one kind of accelerator, format or link" if one.of_machines else ""
        )
        rows.append((one.model, f"{one.total:,}{machines}"))
    return rows


def _memory_parts(predictions: Sequence[Prediction]) -> list[RenderableType]:
    """Say how well the peak memory and the verdicts agree with what was measured."""
    rows = [("peak memory", _memory_words(group)) for group in _memory_errors(predictions)]
    found = _verdicts(predictions)
    if found["out_of_memory"]:
        called = f"{found['called_oom']:,} called oom, {found['called_risky']:,} risky"
        rows.append(("ran out", f"{count(found['out_of_memory'], 'run')}: {called}"))
    if found["ran"]:
        rows.append(("ran", f"{count(found['ran'], 'run')}: {found['wrongly_oom']:,} wrongly called oom"))
    return [section("Memory", labelled(rows))] if rows else []


def _memory_words(group: ErrorSummary) -> str:
    errors = f"error {percent(group.median)} median, {percent(group.p90)} 90th percentile"
    return f"{count(group.rows, 'run')}, {errors}, median ratio {group.median_ratio:.3f}"


def _memory_errors(predictions: Iterable[Prediction]) -> Sequence[ErrorSummary]:
    """Errors of the peak memory, in one group; none without measured memory."""
    found = (prediction.memory_ratio for prediction in predictions)
    ratios = np.array([ratio for ratio in found if ratio is not None])
    if not len(ratios):
        return ()
    errors = np.abs(ratios - 1.0)
    return (
        ErrorSummary(
            name="peak memory",
            rows=len(ratios),
            median=float(np.median(errors)),
            p90=float(np.quantile(errors, 0.9)),
            median_ratio=float(np.median(ratios)),
        ),
    )


def _verdicts(predictions: Iterable[Prediction]) -> dict[str, int]:
    """Count verdicts on runs that are known to have run or to have run out of memory."""
    seen = Counter((prediction.run.status, prediction.verdict) for prediction in predictions if prediction.verdict)
    return {
        "out_of_memory": sum(number for (status, _), number in seen.items() if status == "oom"),
        "called_oom": seen["oom", "oom"],
        "called_risky": seen["oom", "risky"],
        "ran": sum(number for (status, _), number in seen.items() if status == "ok"),
        "wrongly_oom": seen["ok", "oom"],
    }


def _table(groups: Iterable[tuple[str, Sequence[ErrorSummary]]]) -> RenderableType:
    table = ruled_table()
    for title in ("", "group", "runs", "median", "90th percentile", "median ratio"):
        table.add_column(title, justify="left" if title in ("", "group") else "right")
    for title, found in groups:
        for number, group in enumerate(found[:MOST_GROUPS]):
            table.add_row(
                title.replace("_", " ") if number == 0 else "",
                group.name,
                f"{group.rows:,}",
                percent(group.median),
                percent(group.p90),
                f"{group.median_ratio:.3f}",
            )
    return table


def _groups(predictions: Sequence[Prediction]) -> list[tuple[str, Sequence[ErrorSummary]]]:
    return [
        ("all", summaries(predictions, "")),
        ("by_hardware", _large(summaries(predictions, "hardware"))),
        ("by_family", _large(_by(predictions, {family(p.run) for p in predictions}, family))),
        ("by_kind", _by(predictions, {"dense", "moe"}, kind)),
    ]


def _large(groups: Sequence[ErrorSummary]) -> Sequence[ErrorSummary]:
    return [group for group in groups if group.rows >= LEAST_ROWS]


def _by(
    predictions: Sequence[Prediction], names: Iterable[str], name_of: Callable[[MeasuredRun], str]
) -> Sequence[ErrorSummary]:
    found = [
        replace(group, name=name)
        for name in sorted(names)
        for group in summaries([prediction for prediction in predictions if name_of(prediction.run) == name], "")
    ]
    return sorted(found, key=lambda group: (-group.rows, group.name))


def family(run: MeasuredRun) -> str:
    """Return where a run comes from: the head of its id; vendors' runs are told apart by framework."""
    head = run.id.split("-")[0].split("_")[0].rstrip("0123456789")
    return run.text("framework") or "vendor" if head in ("R", "") else head


def kind(run: MeasuredRun) -> str:
    """Return ``moe`` for a run with experts, else ``dense``."""
    return "moe" if (run.number("ep") or 0) > 1 or (run.number("experts") or 0) > 0 else "dense"

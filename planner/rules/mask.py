"""Judging many candidates at once: which are legal, and how many each rule removed, with its numbers."""

from dataclasses import dataclass

import numpy as np

from costmodels.job import TrainingJob
from costmodels.table import Bools, Ints, StrategyTable
from costmodels.workload.model import ModelSpec
from planner.request import Framework, PlanRequest
from planner.rules.columns import Columns, table_columns
from planner.rules.proposal import facts_of
from planner.rules.table import SPLIT_CHECK, Rule, resolve_version, rules_for
from planner.rules.verdict import rows_that_hold, violation_of


@dataclass(frozen=True, kw_only=True, eq=False)
class LegalMask:
    """Verdict on many candidates.

    Attributes
    ----------
    ok : array of shape (S,)
        True where every rule holds.
    counts : tuple of (str, int)
        Rule and number of candidates for which it is the first broken rule, in rule order; they sum to the rejected.
    reasons : tuple of (str, int)
        Messages with numbers and how many candidates each removed, most frequent first.
    """

    ok: Bools
    counts: tuple[tuple[str, int], ...]
    reasons: tuple[tuple[str, int], ...]


def legal_mask(
    framework: Framework,
    table: StrategyTable,
    model: ModelSpec,
    job: TrainingJob,
    *,
    vpp: Ints | int = 1,
    version: str | None = None,
) -> LegalMask:
    """Judge a table of candidates of one model and job.

    Rules on how layers are split are left out: a search makes its splits after its grids, see
    :func:`planner.rules.verdict.check_layout`.

    Parameters
    ----------
    framework : Framework
        Whose rules count.
    table : StrategyTable
        Candidates, one row each, shape (S,). A row is judged as a job on the GPUs that it uses.
    model, job : ModelSpec, TrainingJob
        What is trained.
    vpp : array of shape (S,) or int
        Virtual chunks per stage.
    version : str, optional
        Of the framework.

    Returns
    -------
    LegalMask
        Rows with a degree below 1 are illegal and count for that rule alone.

    Raises
    ------
    InputError
        The version is not understood or older than the rules.
    """
    return _judged(table_columns(table, facts_of(model), job, vpp=vpp), framework, version)


def request_mask(request: PlanRequest, table: StrategyTable) -> LegalMask:
    """Judge a table of candidates, shape (S,), of a request: with its schedule, by the newest version's rules."""
    schedule = request.schedule
    chunks = (schedule.fixed_vpp or 1) if schedule else 1
    columns = table_columns(table, facts_of(request.model), request.job, vpp=chunks, schedule=schedule)
    return _judged(columns, request.framework)


def _judged(columns: Columns, framework: Framework, version: str | None = None) -> LegalMask:
    ok = np.ones(len(columns["world"]), dtype=np.bool_)
    counts: list[tuple[str, int]] = []
    reasons: list[tuple[str, int]] = []
    for rule in rules_for(framework, resolve_version(framework, version)):
        if rule.check == SPLIT_CHECK or rule.needs_options:
            continue
        broken = ok & ~rows_that_hold(rule, columns)
        if broken.any():
            counts.append((rule.id, int(broken.sum())))
            reasons += _messages(rule, columns, broken)
            ok &= ~broken
    reasons.sort(key=lambda item: (-item[1], item[0]))
    return LegalMask(ok=ok, counts=tuple(counts), reasons=tuple(reasons))


def _messages(rule: Rule, columns: Columns, broken: Bools) -> list[tuple[str, int]]:
    """Messages of one rule, one for each different set of its numbers, with how many rows have them."""
    names = rule.fields
    if not names:
        return [(violation_of(rule, {}).message, int(broken.sum()))]
    rows = np.stack([columns[name][broken] for name in names], axis=1)
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    return [
        (violation_of(rule, dict(zip(names, (int(n) for n in row), strict=True))).message, int(count))
        for row, count in zip(distinct, counts, strict=True)
    ]

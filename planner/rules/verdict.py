"""Judging one proposal, or a layout: which rules it breaks, in the user's numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.table import Bools
from costmodels.workload.model import ModelSpec
from planner.request import Framework, PlanRequest
from planner.rules.checks import CHECKS
from planner.rules.columns import Columns, proposal_columns
from planner.rules.conditions import is_condition, value_of
from planner.rules.proposal import Proposal, facts_of, job_switches, proposals_of
from planner.rules.split import Problems, split_problems
from planner.rules.table import SPLIT_CHECK, Found, Rule, option_defaults, resolve_version, rules_for

Values = Mapping[str, int | str]
_FIRST_RULE = "degrees-positive"
_TRAINERS: Final = "planner/sayable.py"
_LATE = (Found.FORWARD, Found.NEVER)
_ANY_DEGREE: Final = (1, 2, 6, 8)
_OPTION_OF: Final = MappingProxyType(
    {
        "tp": "--tensor-model-parallel-size",
        "pp": "--pipeline-model-parallel-size",
        "cp": "--context-parallel-size",
        "ep": "--expert-model-parallel-size",
        "etp": "--expert-tensor-parallel-size",
        "micro_batch": "--micro-batch-size",
        "global_batch": "--global-batch-size",
        "seq": "--seq-length",
    }
)
"""Options of Megatron-LM that state a degree or a batch."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One broken rule.

    Attributes
    ----------
    rule : str
        Identifier of the rule.
    message : str
        What is wrong, and what is allowed, with the user's numbers.
    values : mapping
        The numbers of the message.
    found : Found
        When the framework itself would notice; ``forward`` and ``never`` pass every launch check.
    source : str
        Where the rule is written.
    """

    rule: str
    message: str
    values: Values
    found: Found
    source: str

    @property
    def refused_at_launch(self) -> bool:
        """Whether the framework refuses before or at the start of the first step."""
        return self.found not in _LATE


def accepted_at_launch(violations: tuple[Violation, ...]) -> bool:
    """Whether the framework's own checks would let the job start, though it may fail in its first forward pass."""
    return not any(violation.refused_at_launch for violation in violations)


def rows_that_hold(rule: Rule, columns: Columns) -> Bools:
    """Rows on which a rule holds or does not apply, shape (S,); one that applies nowhere is not evaluated."""
    apart: Bools | None = None
    for condition in rule.when:
        on = columns[condition.removeprefix("!")] > 0
        other = on if condition.startswith("!") else ~on
        apart = other if apart is None else apart | other
        if apart.all():
            return apart
    holds = CHECKS[rule.check](columns, rule.arguments)
    return holds if apart is None else holds | apart


def violation_of(rule: Rule, values: Values) -> Violation:
    """Fill a rule's message with numbers."""
    message = rule.message.format(**values)
    if rule.allowed:
        message += "; allowed: " + rule.allowed.format(**values)
    used = {name: values[name] for name in rule.fields}
    return Violation(rule=rule.id, message=message, values=used, found=rule.found, source=rule.source)


def judging(rules: Iterable[Rule], proposal: Proposal) -> tuple[Rule, ...]:
    """Rules that a proposal can break: without a command line, those on given options cannot be."""
    return tuple(rule for rule in rules if proposal.options or not rule.needs_options)


def option_columns(rules: Iterable[Rule], proposal: Proposal) -> Columns:
    """Columns of length 1 for the conditions of rules on options."""
    options, defaults = dict(proposal.options), option_defaults()
    names = {name for rule in rules for name in rule.conditions}
    return {name: np.array([value_of(name, options, defaults)], dtype=np.int64) for name in names}


def _words(rules: Iterable[Rule], proposal: Proposal) -> dict[str, int | str]:
    """Values of the options that messages name, as the user wrote them; the default of one that was not given."""
    options, defaults = dict(proposal.options), option_defaults()
    named = {name for rule in rules for name in rule.fields if is_condition(name)}
    return {name: " ".join(options.get(name, (defaults.get(name, "none"),))) for name in named}


def check(proposal: Proposal, framework: Framework, version: str | None = None) -> tuple[Violation, ...]:
    """Judge one proposal.

    Parameters
    ----------
    proposal : Proposal
        What is to be launched.
    framework : Framework
        Whose rules count; ``none`` leaves the rules of arithmetic.
    version : str, optional
        Of the framework, such as ``0.13``; the newest known by default.

    Returns
    -------
    tuple of Violation
        In the order of the rule tables; empty when the proposal is legal. Beside degrees below 1 stands what is broken
        whatever they would be.

    Raises
    ------
    InputError
        The version is not understood or older than the rules.
    """
    rules = judging(rules_for(framework, resolve_version(framework, version)), proposal)
    columns = {**proposal_columns(proposal), **option_columns(rules, proposal)}
    first = next(rule for rule in rules if rule.id == _FIRST_RULE)
    problems: Problems = {}
    if rows_that_hold(first, columns)[0]:
        problems = split_problems(proposal)
        broken = [
            rule
            for rule in rules
            if (rule.arguments[0] in problems if rule.check == SPLIT_CHECK else not rows_that_hold(rule, columns)[0])
        ]
    else:
        return _below_one(proposal, first, framework, version)
    numbers = {**{name: int(column[0]) for name, column in columns.items()}, **_words(broken, proposal)}
    told = [{**numbers, **problems[rule.arguments[0]]} if rule.check == SPLIT_CHECK else numbers for rule in broken]
    return tuple(violation_of(rule, values) for rule, values in zip(broken, told, strict=True))


def _below_one(proposal: Proposal, rule: Rule, framework: Framework, version: str | None) -> tuple[Violation, ...]:
    """Degrees and batches below 1, as the launch has them, and what else is broken with any that are not."""
    below = {name: getattr(proposal, name) for name in rule.arguments if getattr(proposal, name) < 1}
    given = {name for name, _ in proposal.options}
    stated = {_OPTION_OF[name]: number for name, number in below.items() if _OPTION_OF.get(name) in given}
    told = " and ".join(f"{name.replace('_', '-')} {number}" for name, number in (stated or below).items())
    message = f"{told} {'is' if len(stated or below) == 1 else 'are'} below 1; allowed: {rule.allowed}"
    first = Violation(rule=rule.id, message=message, values=below, found=rule.found, source=rule.source)
    moved: list[dict[str, Any]] = [dict.fromkeys(below, degree) for degree in _ANY_DEGREE]
    each = [check(replace(proposal, **degrees), framework, version) for degrees in moved]
    return (first, *in_all(each))


def in_all(each: Sequence[Sequence[Violation]]) -> tuple[Violation, ...]:
    """Violations that several answers share, word for word; none of no answers."""
    if not each:
        return ()
    common = set.intersection(*({(one.rule, one.message) for one in answer} for answer in each))
    return tuple(one for one in each[0] if (one.rule, one.message) in common)


def check_layout(
    layout: Layout,
    model: ModelSpec,
    job: TrainingJob,
    *,
    framework: Framework,
    world: int | None = None,
    version: str | None = None,
) -> tuple[Violation, ...]:
    """Judge a layout against a framework's rules.

    Parameters
    ----------
    layout : Layout
        Any layout; one with several grids is judged grid by grid.
    model, job : ModelSpec, TrainingJob
        What is trained.
    framework : Framework
        Whose rules count.
    world : int, optional
        GPUs of the job; those of the layout by default.
    version : str, optional
        Of the framework.

    Returns
    -------
    tuple of Violation
        Each once, though several grids may break the same rule with the same numbers.
    """
    facts = facts_of(model)
    proposals = proposals_of(
        layout,
        facts,
        global_batch=job.global_batch,
        seq=job.seq,
        world=layout.gpus if world is None else world,
        base=job_switches(facts, job),
    )
    found = [violation for proposal in proposals for violation in check(proposal, framework, version)]
    return tuple({(v.rule, v.message): v for v in found}.values())


def broken_rules(layout: Layout, request: PlanRequest) -> tuple[Violation, ...]:
    """Return what the framework of a request refuses in a layout; a layout that was priced need not be legal.

    So does the trainer that runs it where it has no words for the layout.
    """
    found = check_layout(layout, request.model, request.job, framework=request.framework)
    sayable = request.sayable
    if sayable.says(layout):
        return found
    told = f"{sayable.program} cannot be told this layout; allowed: what it can: {sayable.lacks}"
    return (*found, Violation(rule="trainer-words", message=told, values={}, found=Found.PARSE, source=_TRAINERS))

"""Fit the constants of training steps to measured runs, with whole studies held out.

    python benchmarks/fit_step.py RUNS.csv... [--folds 4] [--most 12] [--only NAME...] [--all-studies]

Kernels in training run below their isolated timings: the power limit follows the whole step, transfers and other
kernels share the memory, operands do not come from a warm cache. Each constant below is one number per accelerator
generation and number format, or one for all; none belongs to a model, a study or a row. Rows are thinned to ``--most``
per study, hardware and format, so that large studies do not decide alone. The sum of absolute errors of the logarithm
of predicted over measured is minimised, with a weak pull to the shipped values. Studies are dealt to folds; each fold
is predicted with the constants that the others gave.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from costmodels.efficiency import Efficiency, Generation
from costmodels.layer_costs import price_parts
from costmodels.positions import contents_of
from costmodels.pricing import Constants, Pricing
from costmodels.step import price_steps
from costmodels.workload.model import LayerKind, MoeFfn
from hardware.errors import InputError
from planner.evidence.measured import MeasuredRun, read_runs
from planner.evidence.runs import PricedRun, question_of

Vector = NDArray[np.float64]

APART = ("ultrascale",)
LEAST_MFU = 5.0
PULL = 0.01
"""Weight of the pull towards the shipped values: mean absolute error that a change by a factor e is worth."""
STEP = 0.03
ROUNDS = 4
FARTHEST = 1.5
FLOOR = 0.02


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run with what it asks."""

    run: MeasuredRun
    asked: PricedRun
    generation: str
    study: str


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One number: where it stands, and the rows that depend on it."""

    name: str
    value: Callable[[Constants], float]
    put: Callable[[Constants, float], Constants]
    matters: Callable[[Row], bool]


def _always(_: Row) -> bool:
    return True


def _has_experts(row: Row) -> bool:
    return any(isinstance(kind, LayerKind) and isinstance(kind.ffn, MoeFfn) for kind in row.asked.model.kinds())


def _shared(name: str, matters: Callable[[Row], bool] = _always) -> Constant:
    def put(constants: Constants, value: float) -> Constants:
        efficiency = constants.efficiency
        return replace(constants, efficiency=replace(efficiency, shared=replace(efficiency.shared, **{name: value})))

    return Constant(
        name=name,
        value=lambda constants: float(getattr(constants.efficiency.shared, name)),
        put=put,
        matters=matters,
    )


def _overlap(name: str, matters: Callable[[Row], bool] = _always) -> Constant:
    return Constant(
        name=name,
        value=lambda constants: float(getattr(constants.overlap, name)),
        put=lambda constants, value: replace(constants, overlap=replace(constants.overlap, **{name: value})),
        matters=matters,
    )


def _named(efficiency: Efficiency, name: str) -> Generation:
    return next(generation for generation in efficiency.generations if generation.name == name)


def _with(constants: Constants, changed: Generation) -> Constants:
    efficiency = constants.efficiency
    generations = tuple(changed if item.name == changed.name else item for item in efficiency.generations)
    return replace(constants, efficiency=replace(efficiency, generations=generations))


def _training(generation: str, number_format: str) -> Constant:
    def put(constants: Constants, value: float) -> Constants:
        found = _named(constants.efficiency, generation)
        training: Mapping[str, float] = MappingProxyType({**found.training, number_format: value})
        return _with(constants, replace(found, training=training))

    return Constant(
        name=f"{generation}.training.{number_format}",
        value=lambda constants: _named(constants.efficiency, generation).training[number_format],
        put=put,
        matters=lambda row: row.generation == generation,
    )


def _of_generation(generation: str, name: str) -> Constant:
    return Constant(
        name=f"{generation}.{name}",
        value=lambda constants: float(getattr(_named(constants.efficiency, generation), name)),
        put=lambda constants, value: _with(
            constants, replace(_named(constants.efficiency, generation), **{name: value})
        ),
        matters=lambda row: row.generation == generation,
    )


CONSTANTS = (
    _training("ampere", "bf16"),
    _training("hopper", "bf16"),
    _training("hopper", "fp8"),
    _of_generation("hopper", "memory"),
    _of_generation("hopper", "scan"),
    _training("blackwell", "bf16"),
    _training("blackwell", "fp8"),
    _training("blackwell", "fp4"),
    _of_generation("blackwell", "memory"),
    _of_generation("blackwell", "scan"),
    _of_generation("blackwell", "early_math"),
    _training("blackwell-ultra", "bf16"),
    _training("blackwell-ultra", "fp8"),
    _training("blackwell-ultra", "fp4"),
    _of_generation("blackwell-ultra", "memory"),
    _of_generation("blackwell-ultra", "scan"),
    _training("volta", "bf16"),
    _training("turing", "bf16"),
    _training("ada", "bf16"),
    _of_generation("ampere", "host"),
    _overlap("contention"),
    _overlap("step_exchange"),
    _overlap("step_exchange_own"),
    _overlap("user_buffer_contention"),
    _overlap("window_share"),
    _overlap("slice_s", lambda row: row.asked.job.software.sliced_states),
    _shared("dispatch_s"),
    _shared("script_dispatch_s", lambda row: row.asked.job.software.scripted),
    _shared("compiled_dispatch_s", lambda row: row.asked.job.software.compiled),
    _shared("expert_kernels", _has_experts),
    _shared("collective_kernels", lambda row: row.asked.layout.first.tp > 1),
    _shared("host_jitter", lambda row: row.asked.layout.first.tp > 1),
    _shared("grouped_math", _has_experts),
    _shared("block_scaled_math", lambda row: row.asked.job.precision.scale_block > 0),
    _shared("ranked_tokens_per_s", lambda row: row.asked.job.software.capacity_factor > 0.0),
)


def study(run: MeasuredRun) -> str:
    """Name where a run was published: the prefix of its id, or framework and model where ids are numbers."""
    if re.match(r"R\d", run.id):
        return f"{run.text('framework')}/{run.text('model')}"
    return re.split(r"[-_]", run.id)[0].rstrip("0123456789")


def usable_rows(paths: Sequence[Path], most: int, apart: Sequence[str] = APART) -> list[Row]:
    """Read healthy timed runs that can be priced, thinned evenly to ``most`` per study, hardware and format."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    efficiency = Constants().efficiency
    for run in (run for path in paths for run in read_runs(path)):
        troubled = (run.number("mfu") or LEAST_MFU) < LEAST_MFU
        name = study(run)
        if run.skipped or not run.step_time_s or run.status != "ok" or troubled or name in apart:
            continue
        try:
            asked = question_of(run)
            step_s(asked, Constants())
        except InputError:
            continue
        part = asked.cluster.islands[0].node.accelerator
        row = Row(run=run, asked=asked, generation=efficiency.generation(part).name, study=name)
        groups[name, part.name, asked.job.precision.gemm].append(row)
    rows: list[Row] = []
    for found in groups.values():
        picked = np.unique(np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int))
        rows += [found[index] for index in picked]
    return rows


def step_s(asked: PricedRun, constants: Constants) -> float:
    """Step time of a run under some constants."""
    pricings = [
        Pricing(model=asked.model, job=asked.job, island=island, constants=constants)
        for island in asked.cluster.islands
    ]
    contents, table = contents_of(asked.layout, asked.model)
    costs = [price_parts(pricing, table) for pricing in pricings]
    return float(price_steps(pricings, costs, contents).total_s[0])


class Fit:
    """Residuals of rows under vectors of constants, in units of the shipped values; prices are remembered."""

    def __init__(self, rows: Sequence[Row], constants: Sequence[Constant]) -> None:
        self.rows = rows
        self.constants = constants
        self.start = Constants()
        self.shipped = np.array([constant.value(self.start) for constant in constants])
        self._known: dict[tuple[str, tuple[float, ...]], float] = {}

    def with_values(self, scale: Vector) -> Constants:
        """Return all constants with some scaled."""
        changed = self.start
        for constant, value in zip(self.constants, scale * self.shipped, strict=True):
            changed = constant.put(changed, float(value))
        return changed

    def errors(self, scale: Vector, rows: Sequence[Row]) -> Vector:
        """Logarithm of predicted over measured for every row."""
        constants = self.with_values(scale)
        return np.array([np.log(self._priced(row, scale, constants) / (row.run.step_time_s or 1.0)) for row in rows])

    def _priced(self, row: Row, scale: Vector, constants: Constants) -> float:
        mine = (round(float(s), 9) for s, constant in zip(scale, self.constants, strict=True) if constant.matters(row))
        key = (row.run.id, tuple(mine))
        if key not in self._known:
            self._known[key] = step_s(row.asked, constants)
        return self._known[key]

    def solve(self, rows: Sequence[Row]) -> Vector:
        """Fit the constants to some rows: linearise, solve for the least sum of absolute errors, repeat."""
        change = np.zeros(len(self.constants))
        for _ in range(ROUNDS):
            errors = self.errors(np.exp(change), rows)
            slopes = np.stack([self._slope(change, index, errors, rows) for index in range(len(change))], axis=1)
            move = _least_absolute(slopes, errors, change)
            for share in (1.0, 0.5, 0.25):
                trial = np.clip(change + share * move, -FARTHEST, FARTHEST)
                if self._loss(trial, rows) < self._loss(change, rows):
                    change = trial
                    break
            else:
                break
        return np.asarray(np.exp(change))

    def _slope(self, change: Vector, index: int, errors: Vector, rows: Sequence[Row]) -> Vector:
        """Derivative of every error by the logarithm of one constant."""
        step = np.zeros_like(change)
        step[index] = STEP
        constant, slope = self.constants[index], np.zeros(len(rows))
        mine = [number for number, row in enumerate(rows) if constant.matters(row)]
        moved = self.errors(np.exp(change + step), [rows[number] for number in mine])
        slope[mine] = (moved - errors[mine]) / STEP
        return slope

    def _loss(self, change: Vector, rows: Sequence[Row]) -> float:
        errors = self.errors(np.exp(change), rows)
        return float(np.abs(errors).sum() + len(rows) * PULL * (change**2).sum())


def _least_absolute(slopes: Vector, errors: Vector, change: Vector) -> Vector:
    """Move that least-absolute errors ask for under a quadratic pull to no change, by reweighted least squares."""
    move = np.zeros_like(change)
    pull = 2.0 * PULL * len(errors)
    for _ in range(30):
        weights = 1.0 / np.maximum(np.abs(errors + slopes @ move), FLOOR)
        normal = slopes.T @ (weights[:, None] * slopes) + pull * np.eye(len(change))
        move = np.linalg.solve(normal, -(slopes.T @ (weights * errors)) - pull * change)
    return move


def report(title: str, errors: Vector) -> None:
    """Print the errors of a set of rows."""
    size = np.abs(np.expm1(errors))
    print(
        f"{title:24s} {len(errors):5d} rows  median {100 * np.median(size):5.1f} %"
        f"  p90 {100 * np.quantile(size, 0.9):5.1f} %  ratio {np.exp(np.median(errors)):.3f}"
    )


def main() -> None:
    """Fit, and report the errors in fit and hold-out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--most", type=int, default=12)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--all-studies", action="store_true", help="also the study that stands apart")
    options = parser.parse_args()
    chosen = [item for item in CONSTANTS if not options.only or item.name in options.only]
    rows = usable_rows(options.runs, options.most, () if options.all_studies else APART)
    model = Fit(rows, chosen)
    report("shipped", model.errors(np.ones(len(chosen)), rows))
    best = model.solve(rows)
    report("fitted", model.errors(best, rows))
    for constant, value in zip(chosen, best * model.shipped, strict=True):
        print(f"  {constant.name:28s} {constant.value(model.start):10.4g} -> {value:10.4g}")
    studies = sorted({row.study for row in rows})
    held: list[float] = []
    for fold in range(options.folds):
        out = set(studies[fold :: options.folds])
        inside = [row for row in rows if row.study not in out]
        outside = [row for row in rows if row.study in out]
        held += list(model.errors(model.solve(inside), outside))
    if held:
        report("held out", np.array(held))


if __name__ == "__main__":
    main()

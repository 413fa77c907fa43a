"""Compare the memory model with measured runs: errors of the peak, and how often a verdict was right.

    python benchmarks/check_memory.py RUNS.csv... [--traits TRAITS.toml] [--family NAME]... [--rows]

Results are grouped by family: the prefix of a run's id, or its framework. TRAITS.toml puts facts of frameworks over the
presets (``memory_traits.toml``).
"""

import argparse
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.layout import Stage, StrategyRun
from costmodels.memory import allocated_bytes, reserved_bytes, stage_memory
from costmodels.results import MemoryUse, Verdict
from costmodels.workload.counts import owned_parameters
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.measured import MeasuredRun, read_runs
from planner.runs import PricedRun, question_of

GIB = 2.0**30
MEASURED = ("ok", "memory_only")
Traits = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class Checked:
    """A run beside what the model says of it; ``peak_gib`` is the quantity that the run states."""

    run: MeasuredRun
    peak_gib: float
    uses: tuple[MemoryUse, ...]

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of the stages."""
        found = {use.verdict for use in self.uses}
        return next(v for v in (Verdict.OOM, Verdict.RISKY, Verdict.FITS) if v in found)


def family(run: MeasuredRun) -> str:
    """Name the source of a run: the prefix of its id, or its framework for numbered ids."""
    return run.text("framework") if re.match(r"R\d", run.id) else re.split(r"[-_]", run.id)[0]


def stated_peak(run: MeasuredRun, uses: tuple[MemoryUse, ...]) -> float:
    """Return the quantity that a run reports, in GiB: live tensors, what the allocator holds, or the whole device.

    Most sources state what the allocator holds. Nanotron's benchmark table is written by rank 0, which is on stage 0.
    """
    notes = f"{run.text('notes')} {run.text('derived')}".lower()
    if re.search(r"max_allocated|max_memory_allocated|peak allocated", notes):
        sizes = [allocated_bytes(use) for use in uses]
    elif re.search(r"nvidia-smi|first/last nodes", notes):
        sizes = [use.total_bytes for use in uses]
    else:
        sizes = [reserved_bytes(use) for use in uses]
    return (sizes[0] if "nanotron" in run.text("framework").lower() else max(sizes)) / GIB


def with_traits(asked: PricedRun, traits: Traits) -> PricedRun:
    """Put the traits of the run's software and precision over its presets."""
    job = asked.job
    for name in ("software", "precision"):
        preset = getattr(job, name)
        found = dict(traits.get(name, {}).get(preset.name, {}))
        found.pop("why", None)
        job = replace(job, **{name: replace(preset, **found)})
    return replace(asked, job=job)


def nanotron_layers(model: ModelSpec, pp: int) -> list[int]:
    """Layers per stage as nanotron places them: a stage takes blocks until its share of the compute is exceeded.

    Blocks are embedding, layers, norm, head, cast and loss; layers and head cost their weights, the others nothing
    (``nanotron/models/base.py``, ``build_model``).
    """
    layer = float(owned_parameters(layer_ops(model.kinds()[0], model)))
    costs = [0.0, *[layer] * model.layers, 0.0, float(model.vocab * model.hidden), 0.0, 0.0]
    done = np.cumsum(costs)
    counts, stage = [0] * pp, 0
    for block, reached in enumerate(done):
        counts[stage] += 1 <= block <= model.layers
        stage += reached > done[-1] * (stage + 1) / pp
    return counts


def with_nanotron_split(asked: PricedRun) -> PricedRun:
    """Replace the layers per stage of a nanotron run by those that nanotron chooses."""
    layout = asked.layout
    if asked.job.software.framework != "nanotron" or layout.pp == 1:
        return asked
    stages = tuple(
        Stage(layers_per_chunk=(count,), strategies=(StrategyRun(strategy=layout.first, count=count),))
        for count in nanotron_layers(asked.model, layout.pp)
    )
    return replace(asked, layout=replace(layout, stages=stages))


def check(runs: list[MeasuredRun], traits: Traits) -> tuple[list[Checked], Counter[str]]:
    """Price every run that states enough; count the reasons of the others."""
    done, skipped = [], Counter[str]()
    for run in runs:
        try:
            asked = with_nanotron_split(with_traits(question_of(run), traits))
            uses = stage_memory(asked.layout, asked.model, asked.job, asked.cluster.islands[0].node.accelerator)
        except InputError as error:
            skipped[re.sub(r"\d+", "#", str(error))[:72]] += 1
            continue
        done.append(Checked(run, stated_peak(run, uses), uses))
    return done, skipped


def errors(pairs: list[tuple[float, float]]) -> str:
    """Format count, median and 90th percentile of the relative error, and the median ratio."""
    ratio = np.array([predicted / measured for predicted, measured in pairs])
    error = np.abs(ratio - 1.0)
    return (
        f"{len(pairs):6d}  median {statistics.median(error):6.3f}  p90 {np.quantile(error, 0.9):6.3f}"
        f"  ratio {statistics.median(ratio):6.3f}"
    )


def print_peaks(done: list[Checked], *, rows: bool) -> None:
    """Print errors of measured peaks by family."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in done:
        measured = item.run.peak_mem_gib
        if measured and item.run.status in MEASURED:
            groups[family(item.run)].append((item.peak_gib, measured))
            if rows:
                print_row(item, measured)
    for name, pairs in sorted(groups.items()):
        print(f"{name:28s}{errors(pairs)}")
    every = [pair for pairs in groups.values() for pair in pairs]
    if every:
        print(f"{'all':28s}{errors(every)}")


def print_row(item: Checked, measured: float) -> None:
    """Print one run with the components of its heaviest stage."""
    heaviest = max(item.uses, key=lambda use: use.total_bytes)
    sizes = "  ".join(f"{name} {size / GIB:.1f}" for name, size in heaviest.components if size > 0.05 * GIB)
    print(f"  {item.run.id[-48:]:48s} {measured:7.2f} {item.peak_gib:7.2f}  stage {heaviest.stage}: {sizes}")


def print_verdicts(done: list[Checked]) -> None:
    """Print how runs that failed or ran were judged, by family."""
    groups: dict[str, Counter[tuple[str, Verdict]]] = defaultdict(Counter)
    for item in done:
        if item.run.status in ("ok", "oom"):
            groups[family(item.run)][item.run.status, item.verdict] += 1
    total: Counter[tuple[str, Verdict]] = sum(groups.values(), Counter())
    for name, counts in [*sorted(groups.items()), ("all", total)]:
        if name == "all" or any(status == "oom" or verdict is Verdict.OOM for status, verdict in counts):
            print(f"{name:28s}" + "  ".join(f"{s}->{v} {n}" for (s, v), n in sorted(counts.items())))


def main() -> None:
    """Run the checks that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--traits", type=Path)
    parser.add_argument("--family", action="append")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    traits = tomllib.loads(options.traits.read_text(encoding="utf-8")) if options.traits else {}
    runs = [run for path in options.runs for run in read_runs(path)]
    if options.family:
        runs = [run for run in runs if family(run) in options.family]
    done, skipped = check(runs, traits)
    print_peaks(done, rows=options.rows)
    print_verdicts(done)
    for reason, count in skipped.most_common(12):
        print(f"skipped {count:5d}  {reason}")


if __name__ == "__main__":
    main()

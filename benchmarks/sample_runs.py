"""Choose measured runs that span everything, as the table of facts behind the accuracy gates.

    python benchmarks/sample_runs.py RUNS.csv... --out tests/reference/measured_runs.csv [--most 3]
    python benchmarks/sample_runs.py RUNS.csv... --groups GROUPS.csv --out tests/reference/ranked_runs.csv [--most 3]

Runs are grouped by study, hardware, precision, kind of model and status; ``--most`` of each group are taken at even
distances in the order of the tables, so that nothing about their errors decides. Only columns that pricing reads are
kept, and of free remarks only the phrases that it understands.

With ``--groups`` whole groups of layouts that were measured side by side are taken, for the gates of the order: of the
groups of each study that hold 5 to 32 layouts whose step time is predicted ``--most`` at even distances in the order of
the table.
"""

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from accuracy import APART, LEAST_GROUP, family, kind

from planner.evidence.measured import MeasuredRun, read_runs
from planner.evidence.validate import predict

COLUMNS = (
    *("id", "source", "source_version", "date", "framework", "model", "params_b", "layers", "hidden_size"),
    *("ffn_hidden_size", "heads", "kv_heads", "vocab", "experts", "topk", "hardware", "gpus_per_node", "n_gpus"),
    *("scaleout_gbps_per_node", "intra_node", "precision", "dtype", "seq_len", "global_batch_size", "micro_batch_size"),
    *("tp", "pp", "cp", "vpp", "ep", "etp", "dp", "zero", "fsdp", "sequence_parallel", "distributed_optimizer"),
    *("recompute", "schedule", "schedule_kind", "overlap", "cuda_graphs", "offload", "moe_dispatcher"),
    *("token_routing", "step_time_s", "peak_mem_gb", "mem_note", "status", "mfu", "interconnect", "notes"),
)
PHRASES = (
    r"kernel: [^;]*",
    r"^FSDP; ",
    r"offload (?:ratio )?alpha=[\d.]+",
    r"zero as stated: [^;]*",
    r"bnb optimizer",
    r"recompute as stated: [^;]*",
    r"GB=1e9",
    r"layer split \[[\d, ]+\]",
    r"max_allocated|max_memory_allocated|peak allocated|max allocated|nvidia-smi|first/last nodes",
)
STATUSES = ("ok", "oom", "memory_only")
MOST_OF_A_GROUP: Final = 32
T = TypeVar("T")


def key(run: MeasuredRun) -> tuple[str, ...]:
    """Group of a run."""
    return (family(run), run.text("hardware"), run.text("precision"), kind(run), run.status)


def understood(run: MeasuredRun) -> str:
    """Return the phrases of a run's remarks that pricing understands."""
    words = f"{run.text('notes')} {run.text('derived')}"
    return "; ".join(found.group(0) for phrase in PHRASES for found in [re.search(phrase, words)] if found)


def stated(run: MeasuredRun, column: str) -> str:
    """Return a cell of the table."""
    if column == "notes":
        return understood(run)
    if column == "mem_note":
        published = re.search(r"published [\d.]+ GiB", run.text(column))
        return published.group(0) if published else ""
    if column == "interconnect":
        return "Omni-Path" if "omni-path" in run.text(column).lower() else ""
    return run.text(column)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most so many of a sequence, at even distances."""
    picked = np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int))
    return [items[index] for index in picked]


def of_every_kind(runs: Iterable[MeasuredRun], most: int) -> Iterator[tuple[str, MeasuredRun]]:
    """Choose runs of every group of :func:`key`; the names of their groups of layouts are empty."""
    kinds: dict[tuple[str, ...], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.skipped is None and run.status in STATUSES and family(run) != APART:
            kinds[key(run)].append(run)
    for _, alike in sorted(kinds.items()):
        yield from (("", run) for run in spread(alike, most))


def side_by_side(runs: Iterable[MeasuredRun], groups: Path, most: int) -> Iterator[tuple[str, MeasuredRun]]:
    """Choose whole groups of layouts of every study, as (name of the group, run)."""
    with groups.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    named = {row["run_id"] for row in rows}
    ran = (run for run in runs if run.id in named and run.skipped is None and run.status == "ok")
    timed = {run.id: run for run in ran if predict(run).error is not None}
    members: dict[str, dict[str, list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["run_id"] in timed:
            members[row["family"]][row["group"]].append(timed[row["run_id"]])
    for study in sorted(members):
        sized = [(name, held) for name, held in members[study].items() if LEAST_GROUP <= len(held) <= MOST_OF_A_GROUP]
        for name, held in spread(sized, most):
            yield from ((name, run) for run in held)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--groups", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=3)
    options = parser.parse_args()
    runs = [run for path in options.runs for run in read_runs(path)]
    grouped = options.groups is not None
    found = side_by_side(runs, options.groups, options.most) if grouped else of_every_kind(runs, options.most)
    with options.out.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["group", *COLUMNS] if grouped else COLUMNS)
        for group, run in found:
            cells = [stated(run, name) for name in COLUMNS]
            writer.writerow([group, *cells] if grouped else cells)


if __name__ == "__main__":
    main()

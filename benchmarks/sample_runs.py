"""Choose measured runs that span everything, as the table of facts behind the accuracy gates.

    python benchmarks/sample_runs.py RUNS.csv... --out tests/reference/measured_runs.csv [--most 3]

Runs are grouped by study, hardware, precision, kind of model and status; ``--most`` of each group are taken at even
distances in the order of the tables, so that nothing about their errors decides. Only columns that pricing reads are
kept, and of free remarks only the phrases that it understands.
"""

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from accuracy import APART, family, kind

from planner.evidence.measured import MeasuredRun, read_runs

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
    r"zero as stated: 3 \+ CPU offload",
    r"bnb optimizer",
    r"recompute as stated: [^;]*",
    r"GB=1e9",
    r"layer split \[[\d, ]+\]",
    r"max_allocated|max_memory_allocated|peak allocated|max allocated|nvidia-smi|first/last nodes",
)
STATUSES = ("ok", "oom", "memory_only")


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


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=3)
    options = parser.parse_args()
    groups: dict[tuple[str, ...], list[MeasuredRun]] = defaultdict(list)
    for run in (run for path in options.runs for run in read_runs(path)):
        if run.skipped is None and run.status in STATUSES and family(run) != APART:
            groups[key(run)].append(run)
    with options.out.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(COLUMNS)
        for _, runs in sorted(groups.items()):
            picked = np.unique(np.linspace(0, len(runs) - 1, min(options.most, len(runs))).round().astype(int))
            for run in (runs[index] for index in picked):
                writer.writerow([stated(run, name) for name in COLUMNS])


if __name__ == "__main__":
    main()

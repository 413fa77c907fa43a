"""Runs on a made-up machine: a table whose times and peaks are those of the cost models under a known profile."""

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path

from costmodels.pricing import Constants
from costmodels.profile import UNCHANGED, Profile, profiled
from planner.evidence.measured import parse_run, read_runs
from planner.evidence.validate import predict

GIB = 2.0**30
SHAPES = (
    # nodes, tp, pp, micro-batch, global batch, sequence, zero
    (1, 1, 1, 1, 64, 4096, 1),
    (4, 1, 1, 1, 32, 2048, 3),
    (2, 8, 1, 1, 32, 4096, 1),
    (4, 2, 1, 1, 32, 1024, 1),
    (8, 1, 1, 1, 64, 1024, 3),
    (2, 4, 2, 1, 64, 4096, 1),
    (1, 8, 1, 2, 64, 8192, 1),
    (8, 8, 1, 1, 32, 2048, 1),
    (2, 2, 4, 1, 64, 2048, 1),
)
COLUMNS = (
    *("id", "framework", "model", "hardware", "gpus_per_node", "n_gpus", "scaleout_gbps_per_node", "dtype", "seq_len"),
    *("global_batch_size", "micro_batch_size", "tp", "pp", "dp", "zero", "step_time_s", "peak_mem_gb", "status"),
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the made-up machine is, and what of each run is stated."""

    profile: Profile = UNCHANGED
    hardware: str = "H100-SXM-80GB"
    framework: str = "torchtitan"
    times: bool = True
    peaks: bool = False
    wrong: dict[str, float] = field(default_factory=dict)  # id: factor on its measured time


def rows(machine: Machine, count: int) -> list[dict[str, str]]:
    """Return ``count`` runs, of different layouts first."""
    return [_row(machine, number) for number in range(count)]


def _row(machine: Machine, number: int) -> dict[str, str]:
    nodes, tp, pp, micro, batch, seq, zero = SHAPES[number % len(SHAPES)]
    gpus = 8 * nodes
    row = {
        "id": f"run-{number}",
        "framework": machine.framework,
        "model": "llama3_8b",
        "hardware": machine.hardware,
        "gpus_per_node": "8",
        "n_gpus": str(gpus),
        "scaleout_gbps_per_node": "3200",
        "dtype": "bf16",
        "seq_len": str(seq),
        "global_batch_size": str(batch * (1 + number // len(SHAPES))),
        "micro_batch_size": str(micro),
        "tp": str(tp),
        "pp": str(pp),
        "dp": str(gpus // (tp * pp)),
        "zero": str(zero),
        "status": "ok",
    }
    found = predict(parse_run(row), profiled(Constants(), machine.profile))
    assert found.skipped is None, found.skipped
    if machine.times:
        row["step_time_s"] = repr(found.step_time_s * machine.wrong.get(row["id"], 1.0))
    if machine.peaks:
        row["peak_mem_gb"] = repr(found.peak_mem_bytes / GIB)
    return row


def write(path: Path, table: list[dict[str, str]]) -> Path:
    """Write runs as a CSV."""
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(table)
    return path


def under(path: Path, profile: Profile) -> list[float]:
    """Return errors of the step times of a table under a profile."""
    constants = profiled(Constants(), profile)
    return [predict(run, constants).error for run in read_runs(path)]


def noisy(table: list[dict[str, str]], spread: float) -> list[dict[str, str]]:
    """Move times up and down in turn, by ``spread``."""
    signs = (1.0, -0.5, -1.0, 0.5)
    return [
        row | {"step_time_s": repr(float(row["step_time_s"]) * (1.0 + spread * signs[number % 4]))}
        for number, row in enumerate(table)
    ]


def slower(**factors: float) -> Machine:
    """Return a machine with some factors of its profile changed."""
    return Machine(profile=replace(UNCHANGED, **factors))

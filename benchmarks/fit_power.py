"""Fit the power constants to published power and throughput curves and print them with their errors.

    python benchmarks/fit_power.py powercap.csv power_vs_util_gemm.csv power_fits.csv

``powercap.csv`` has the columns ``gpu, workload, power_limit_w, rel_throughput, clock_mhz, source``. Rows with a clock
are locked clocks with the power that was drawn; rows without one are power limits. Every fourth point is held out.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from least_squares import Vector, fit

from costmodels.power.accelerator import PowerModel, Work, power_model, step_power
from hardware.catalog import accelerator

HIGHEST_MHZ = {"A100-SXM4-80GB": 1410.0, "A40": 1740.0}
# Shares of time in a training stage at the highest clock: products, attention, memory-bound kernels.
TRAINING_MIX = MappingProxyType({Work.GEMM: 0.7, Work.ATTENTION: 0.1, Work.MEMORY: 0.2})
PARTS = MappingProxyType(
    {
        "A100-SXM4-80GB": "a100-sxm-80gb",
        "A40": "a40-48gb",
        "V100-PCIe": "v100-pcie-32gb",
        "h200_sxm": "h200-sxm-141gb",
        "b200_sxm": "b200-sxm-180gb",
        "gb200": "gb200",
        "a100_sxm": "a100-sxm-80gb",
        "a40": "a40-48gb",
    }
)

PRODUCTS = MappingProxyType({Work.GEMM: 1.0})
# Parts of measurements that nothing was fitted to: names there, the part whose constants are used, its limit where that
# is another one [W], and what the measured jobs do.
UNFITTED = MappingProxyType(
    {
        "Zeus, Quadro RTX 6000": (("RTX6000",), "titan-rtx", 260.0, TRAINING_MIX),
        "rtx6kpro, RTX PRO 6000 workstation": (
            ("RTX-PRO-6000-WS #3", "RTX-PRO-6000-WS #14"), "rtx-pro-6000", 0.0, PRODUCTS,
        ),
        "rtx6kpro, RTX PRO 6000 server": (
            ("RTX-PRO-6000-Server #5", "RTX-PRO-6000-Server #8"), "rtx-pro-6000", 0.0, PRODUCTS,
        ),
        "ai-server, V100 SXM2": (("V100-SXM2 (adapter)",), "v100-sxm2-32gb", 0.0, TRAINING_MIX),
    }
)  # fmt: skip


def model_of(gpu: str) -> PowerModel:
    """Shipped constants of an accelerator."""
    return power_model(accelerator(PARTS[gpu]))


def read_rows(path: str) -> list[dict[str, str]]:
    """Read a CSV."""
    with Path(path).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def fit_locked(rows: Iterable[dict[str, str]], gpu: str) -> None:
    """Fit static and dynamic draw, voltage and the clock-bound share to locked clocks; one set for all workloads."""
    chosen = [row for row in rows if row["gpu"] == gpu and row["clock_mhz"] and "Perseus" in row["source"]]
    clock, drawn, rate = (
        np.array([float(row[name]) for row in chosen]) for name in ("clock_mhz", "power_limit_w", "rel_throughput")
    )
    clock = clock / HIGHEST_MHZ[gpu]
    if gpu == "A40":  # the board sat at its limit above this clock
        keep = clock < 0.85
        clock, drawn, rate = clock[keep], drawn[keep], rate[keep]
    held = np.arange(len(clock)) % 4 == 3
    base = model_of(gpu)

    def at(p: Vector) -> PowerModel:
        static, dynamic, floor, slope = _positive(p)
        return replace(
            base, static_w=100.0 * static, dynamic_w=400.0 * dynamic, voltage_floor=floor, voltage_slope=slope
        )

    def stage(model: PowerModel) -> tuple[Vector, Vector]:
        state = step_power(model, TRAINING_MIX, limit_w=1e9, highest_clock=clock)
        return state.mean_w, 1.0 / state.slowdown

    p = fit(lambda q: np.log(stage(at(q))[0] / drawn)[~held], [-0.5, 0.0, 1.5, 1.0])
    model = at(p)
    print(
        f"{gpu} locked clocks, {len(clock)} points: static {model.static_w:.0f} W dynamic {model.dynamic_w:.0f} W"
        f" floor {model.voltage_floor:.3f} slope {model.voltage_slope:.3f}"
    )
    for label, used in (("fitted", model), ("as shipped", base)):
        watts, speed = stage(used)
        power_error, speed_error = np.abs(watts / drawn - 1.0), np.abs(speed - rate)
        print(
            f"    {label}: power fit {power_error[~held].mean():.1%} hold-out {power_error[held].mean():.1%};"
            f" throughput (points, not fitted) {speed_error.mean():.1%}"
        )


def fit_limits(rows: Iterable[dict[str, str]], gpu: str) -> None:
    """Fit one set of constants to throughput under power limits; training of any kind, one activity."""
    chosen = [row for row in rows if row["gpu"] == gpu and not row["clock_mhz"] and "Zeus" in row["source"]]
    limit, rate = (np.array([float(row[name]) for row in chosen]) for name in ("power_limit_w", "rel_throughput"))
    held = np.arange(len(limit)) % 4 == 3
    base = model_of(gpu)

    def at(p: Vector) -> PowerModel:
        static, dynamic, floor, slope = _positive(p)
        return replace(
            base, static_w=100.0 * static, dynamic_w=400.0 * dynamic, voltage_floor=floor, voltage_slope=slope
        )

    def speed(model: PowerModel) -> Vector:
        return 1.0 / step_power(model, TRAINING_MIX, limit_w=limit).slowdown

    start = [-1.0, -0.5, 1.5, 1.0]
    p = fit(lambda q: np.concatenate([(speed(at(q)) - rate)[~held], 0.02 * (q - start)]), start)
    model = at(p)
    print(
        f"{gpu} power limits, {len(limit)} points: static {model.static_w:.0f} W dynamic {model.dynamic_w:.0f} W"
        f" floor {model.voltage_floor:.3f} slope {model.voltage_slope:.3f}"
    )
    for label, used in (("fitted", model), ("as shipped", base)):
        error = np.abs(speed(used) - rate)
        print(f"    throughput, {label}: fit {error[~held].mean():.1%} hold-out {error[held].mean():.1%} (points)")


def _positive(p: Vector) -> tuple[float, float, float, float]:
    """Static and dynamic scale, floor in (0, 1), slope."""
    static, dynamic, slope = (float(np.exp(value)) for value in (p[0], p[1], p[3] - 1.0))
    return static, dynamic, float(1.0 / (1.0 + np.exp(-p[2]))), slope


def activity_of_memory(rows: Iterable[dict[str, str]]) -> None:
    """Print the draw of products that stream memory, as a share of the dynamic draw of full products."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["dtype"] == "bfloat16" and float(row["util_hi"]) <= 0.05:
            found[row["gpu"]].append(float(row["power_med"]))
    for gpu, watts in found.items():
        model = model_of(gpu)
        shares = [(value - model.static_w) / model.dynamic_w for value in watts]
        print(f"{gpu} memory activity: median {np.median(shares):.2f} of {np.round(shares, 2).tolist()}")


def products_by_utilisation(rows: Iterable[dict[str, str]]) -> None:
    """Print the draw of products by the share of the peak that they reach, against a mix of products and memory."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["dtype"] == "bfloat16":
            found[row["gpu"]].append((0.5 * (float(row["util_lo"]) + float(row["util_hi"])), float(row["power_med"])))
    for gpu, points in found.items():
        model, best = model_of(gpu), max(share for share, _ in points)
        share = np.array([min(used / best, 1.0) for used, _ in points])
        seconds = {Work.GEMM: share, Work.MEMORY: 1.0 - share}
        error = np.abs(step_power(model, seconds).mean_w / np.array([watts for _, watts in points]) - 1.0)
        print(
            f"{gpu} products by utilisation, {len(points)} bins: draw {error.mean():.1%} mean, {error.max():.1%} most"
        )


def against_published_fits(rows: Iterable[dict[str, str]]) -> None:
    """Print the published fits of pipeline stages beside the constants that ship: draw over clocks 0.6 to 1."""
    clocks = np.linspace(0.6, 1.0, 9)
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        static, dynamic, floor, slope = (float(row[name]) for name in ("Ps", "c", "vmin", "slope"))
        theirs = static + dynamic * np.maximum(floor, 1.0 - slope * (1.0 - clocks)) ** 2 * clocks
        ours = step_power(model_of(row["gpu"]), TRAINING_MIX, limit_w=1e9, highest_clock=clocks).mean_w
        found[row["gpu"]].append(float(np.abs(ours / theirs - 1.0).mean()))
    for gpu, errors in found.items():
        print(
            f"{gpu} published fits of {len(errors)} stages: draw {np.mean(errors):.1%} mean, {np.max(errors):.1%} most"
        )


def without_fits(rows: Iterable[dict[str, str]]) -> None:
    """Print throughput under limits, over that at the highest one, of sources that nothing was fitted to."""
    known = [(row, (row["gpu"], row["workload"])) for row in rows if row["power_limit_w"] and row["rel_throughput"]]
    for source, (gpus, part, default_w, mix) in UNFITTED.items():
        model = power_model(replace(accelerator(part), **({"tdp_w": default_w} if default_w else {})))
        chosen = [(row, job) for row, job in known if row["gpu"] in gpus]
        limit, rate = (
            np.array([float(row[name]) for row, _ in chosen]) for name in ("power_limit_w", "rel_throughput")
        )
        highest: dict[tuple[str, str], float] = defaultdict(float)
        for watts, (_, job) in zip(limit, chosen, strict=True):
            highest[job] = max(highest[job], float(watts))
        top = np.array([highest[job] for _, job in chosen])
        found = step_power(model, mix, limit_w=top).slowdown / step_power(model, mix, limit_w=limit).slowdown
        below = limit < top
        error = (found - rate)[below]
        print(f"{source}, {below.sum()} points: {np.abs(error).mean():.1%} (points), bias {error.mean():+.1%}")


def main(caps: str, utilisation: str, fits: str) -> None:
    """Print every fit."""
    rows = read_rows(caps)
    for gpu in ("A100-SXM4-80GB", "A40"):
        fit_locked(rows, gpu)
    for gpu in ("V100-PCIe", "A40"):
        fit_limits(rows, gpu)
    without_fits(rows)
    activity_of_memory(read_rows(utilisation))
    products_by_utilisation(read_rows(utilisation))
    against_published_fits(read_rows(fits))


if __name__ == "__main__":
    main(*sys.argv[1:4])

"""Fit the compute constants to public kernel timings and print them with their errors in fit and hold-out.

    python benchmarks/fit_compute.py gemm.csv.gz

The file is a table of timings with the columns ``gpu, op, dtype, m, n, k, extra, time_us``. Every fifth (k, n) shape
is held out whole. Nothing is written: constants are carried into ``costmodels/efficiency.toml`` by hand.
"""

import csv
import gzip
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from least_squares import Vector, fit

from costmodels.compute.attention import AttentionShape, flash_attention_s, mean_keys, query_blocks
from costmodels.compute.gemm import GemmShape, gemm_s
from costmodels.compute.machine import Machine, machine_of
from costmodels.compute.traffic import quantise_s, traffic_s
from costmodels.efficiency import default_efficiency
from hardware.catalog import accelerator

FIGURES = Path(__file__).parent.parent / "tests" / "reference" / "attention_h100.csv"
LEAST_ROWS = 128  # decoding shapes (m of 1 to 32) are reported, not fitted: training has none


ACCELERATORS = MappingProxyType(
    {
        "A100-SXM4-80GB": accelerator("a100-sxm-80gb"),
        "H100-SXM5-80GB": accelerator("h100-sxm-80gb"),
        "H800-SXM": accelerator("h800-sxm-80gb"),
        "H200-SXM-141GB": accelerator("h200-sxm-141gb"),
        "B200-SXM": accelerator("b200-sxm-180gb"),
        "GB200": accelerator("gb200"),
        "B300-SXM": accelerator("b300-sxm"),
        "GB300": accelerator("gb300"),
        "L40S": accelerator("l40s-48gb"),
    }
)


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Measured rows as arrays; ``held`` marks the rows that no fit sees."""

    m: Vector
    n: Vector
    k: Vector
    time_s: Vector
    held: np.ndarray
    extra: tuple[str, ...]

    def take(self, mask: np.ndarray) -> "Timings":
        """Rows under a mask."""
        extra = tuple(value for value, keep in zip(self.extra, mask, strict=True) if keep)
        arrays = {name: getattr(self, name)[mask] for name in ("m", "n", "k", "time_s", "held")}
        return Timings(extra=extra, **arrays)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a CSV, compressed or not, without comment lines."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def timings(rows: Iterable[dict[str, str]], gpu: str, op: str, number_format: str) -> Timings:
    """Rows of one accelerator, kernel and format."""
    chosen = [row for row in rows if (row["gpu"], row["op"], row["dtype"]) == (gpu, op, number_format)]
    columns = {name: np.array([float(row[name]) for row in chosen]) for name in ("m", "n", "k")}
    shapes = columns["n"] * 131.0 + columns["k"] * 17.0
    held = (shapes // 256.0).astype(np.int64) % 5 == 0
    seconds = np.array([float(row["time_us"]) * 1e-6 for row in chosen])
    return Timings(**columns, time_s=seconds, held=held, extra=tuple(row["extra"] for row in chosen))


def report(label: str, rows: Timings, model: Callable[[Timings], Vector]) -> str:
    """Return mean absolute relative errors in fit and hold-out; bias and 90th percentile of the hold-out."""
    relative = model(rows) / rows.time_s - 1.0
    seen, held = relative[~rows.held], relative[rows.held]
    return (
        f"{label:34s} {len(seen):5d} {len(held):5d}  fit {np.abs(seen).mean():6.1%}"
        f"  hold-out {np.abs(held).mean():6.1%}  bias {np.median(held):+6.1%}"
        f"  p90 {np.quantile(np.abs(held), 0.9):6.1%}"
    )


def _with_gemm(machine: Machine, number_format: str, p: Vector) -> Machine:
    """Machine with constants from fitted parameters (logits of shares, logarithms of times and lengths)."""
    gemm = machine.generation.gemm
    math = {**gemm.math, number_format: _share(p[0])}
    fitted = replace(
        gemm,
        math=MappingProxyType(math),
        bandwidth=0.95 * _share(p[1]),
        launch_s=float(np.exp(p[2])) * 1e-6,
        k_overhead=float(np.exp(p[3])),
        wave=_share(p[4]),
        split_s=float(np.exp(p[5])) * 1e-6,
    )
    return replace(machine, generation=replace(machine.generation, gemm=fitted))


def _share(logit: float) -> float:
    return float(1.0 / (1.0 + np.exp(-logit)))


def fit_gemm(rows: list[dict[str, str]], gpu: str) -> None:
    """Fit the GEMM constants of one accelerator to its bf16 rows."""
    base = machine_of(ACCELERATORS[gpu], default_efficiency())
    every = timings(rows, gpu, "gemm", "bfloat16")
    used = every.take(every.m >= LEAST_ROWS)
    seen = used.take(~used.held)
    start = [1.8, 1.5, 1.0, 4.0, 0.0, 0.5]

    def residuals(p: Vector) -> Vector:
        log_ratio = np.log(_gemm_model(_with_gemm(base, "bf16", p), seen) / seen.time_s)
        return np.concatenate([log_ratio, 0.01 * (p - np.array(start))])

    machine = _with_gemm(base, "bf16", fit(residuals, start))
    gemm = machine.generation.gemm
    print(report(f"{gpu} fitted alone", used, lambda r: _gemm_model(machine, r)))
    print(
        f"    math {gemm.math['bf16']:.3f} bandwidth {gemm.bandwidth:.2f} launch {gemm.launch_s * 1e6:.2f} us"
        f" k_overhead {gemm.k_overhead:.0f} wave {gemm.wave:.2f} split {gemm.split_s * 1e6:.2f} us"
    )
    for label, subset in (("as shipped", used), ("as shipped, all m", every)):
        clock = _best_clock(base, subset)
        at_clock = partial(_gemm_model, replace(base, clock=clock))
        print(report(f"{gpu} {label}, clock {clock:.2f}", subset, at_clock))


def _gemm_model(machine: Machine, rows: Timings) -> Vector:
    return gemm_s(GemmShape(m=rows.m, n=rows.n, k=rows.k), machine)


def _best_clock(machine: Machine, rows: Timings) -> float:
    """Clock at which the shipped constants have no bias: below 1 where the timings ran into the power limit."""
    clocks = np.linspace(0.6, 1.1, 51)
    large = rows.take(rows.m * rows.n * rows.k > 2.0**33)
    bias = [np.median(_gemm_model(replace(machine, clock=float(c)), large) / large.time_s) - 1.0 for c in clocks]
    return float(clocks[int(np.argmin(np.abs(bias)))])


def fit_deepgemm(rows: list[dict[str, str]]) -> None:
    """Fit the fp8 share and the share of grouped products to the DeepGEMM table (kernels alone, no casts)."""
    base = machine_of(ACCELERATORS["H800-SXM"], default_efficiency())
    dense = timings(rows, "H800-SXM", "gemm_fp8_blockscaled", "fp8")
    grouped = timings(rows, "H800-SXM", "grouped_gemm_fp8", "fp8")

    def models(p: Vector) -> tuple[Vector, Vector]:
        gemm = base.generation.gemm
        generation = replace(base.generation, gemm=replace(gemm, math={**gemm.math, "fp8": _share(p[0])}))
        shared = replace(base.shared, grouped_math=_share(p[1]))
        machine = replace(base, generation=generation, shared=shared)
        groups = np.array([float(value.split(";")[0].split("=")[1]) for value in grouped.extra])
        return (
            gemm_s(GemmShape(m=dense.m, n=dense.n, k=dense.k), machine, "fp8") / dense.time_s,
            gemm_s(GemmShape(m=grouped.m / groups, n=grouped.n, k=grouped.k, groups=groups), machine, "fp8")
            / grouped.time_s,
        )

    p = fit(lambda q: np.log(np.concatenate(models(q))), [1.0, 2.0])
    one, many = models(p)
    print(
        f"DeepGEMM fp8 share {_share(p[0]):.3f}, grouped {_share(p[1]):.3f}:"
        f" dense {np.abs(one - 1).mean():.1%} ({len(one)} rows),"
        f" grouped {np.abs(many - 1).mean():.1%} ({len(many)} rows)"
    )


def check_fp8(rows: list[dict[str, str]], gpu: str) -> None:
    """Report the error of fp8 products with the cast of their input, at the clock of least bias."""
    base = machine_of(ACCELERATORS[gpu], default_efficiency())
    used = timings(rows, gpu, "gemm", "fp8")
    used = used.take(used.m >= 1024)

    def model(machine: Machine, r: Timings) -> Vector:
        return gemm_s(GemmShape(m=r.m, n=r.n, k=r.k), machine, "fp8") + quantise_s(r.m * r.k, machine, "fp8")

    print(report(f"{gpu} fp8 with cast, m >= 1024", used, lambda r: model(base, r)))


def check_experts(rows: list[dict[str, str]], gpu: str) -> None:
    """Report the error on fused expert layers of an inference engine: two grouped products, activation, permutation."""
    base = machine_of(ACCELERATORS[gpu], default_efficiency())
    used = timings(rows, gpu, "moe_grouped_gemm_fwd", "bfloat16")
    fields = [dict(item.split("=") for item in value.split(";")) for value in used.extra]
    top_k, experts, tp, ep = (np.array([float(f[name]) for f in fields]) for name in ("topk", "E", "tp", "ep"))
    copies, groups = used.m * top_k / ep, experts / ep
    # With expert parallelism these rows still walk all routed copies, not only the rank's own: left out.
    keep = (copies / groups >= 32.0) & (ep == 1.0)
    used, copies, groups, tp = used.take(keep), copies[keep], groups[keep], tp[keep]
    inner = used.k / tp

    def model(_: Timings) -> Vector:
        first = gemm_s(GemmShape(m=copies / groups, n=2.0 * inner, k=used.n, groups=groups), base)
        second = gemm_s(GemmShape(m=copies / groups, n=used.n, k=inner, groups=groups), base)
        return first + second + traffic_s(2.0 * copies * (3.0 * inner + 4.0 * used.n), base, kernels=4.0)

    ratio = model(used) / used.time_s
    middle = float(np.median(ratio))
    print(
        f"{gpu} experts (vLLM fused), {len(ratio)} rows with 32 or more tokens per expert: measured"
        f" {1.0 / middle:.2f} times the model; scatter about that {np.abs(ratio / middle - 1.0).mean():.1%}"
    )


def fit_attention_figures() -> None:
    """Fit the Hopper constants to the published figures of cuDNN and FlashAttention-3."""
    base = machine_of(ACCELERATORS["H100-SXM5-80GB"], default_efficiency())
    rows = [row for row in read_rows(FIGURES) if row["series"] != "FlashAttention-2"]
    held = np.array([int(row["seq"]) in (1024, 8192) for row in rows])

    def model(machine: Machine) -> Vector:
        return np.array([_figure_tflops(machine, row) for row in rows])

    measured = np.array([float(row["tflops"]) for row in rows])

    def machine_at(p: Vector) -> Machine:
        attention = replace(
            base.generation.attention,
            math=_share(p[0]),
            length_half=float(np.exp(p[1])),
            width_half=float(np.exp(p[2])),
            backward_ratio=_share(p[3]),
        )
        return replace(base, generation=replace(base.generation, attention=attention))

    p = fit(lambda q: np.log(model(machine_at(q)) / measured)[~held], [0.5, 5.0, 4.0, 2.0])
    for label, machine in (("fitted", machine_at(p)), ("as shipped", base)):
        error = np.abs(model(machine) / measured - 1.0)
        a = machine.generation.attention
        print(
            f"H100 attention figures, {label}: math {a.math:.3f} length_half {a.length_half:.0f} width_half"
            f" {a.width_half:.0f} backward {a.backward_ratio:.3f}; fit {error[~held].mean():.1%}"
            f" hold-out {error[held].mean():.1%}"
        )


def _figure_tflops(machine: Machine, row: dict[str, str]) -> float:
    seq, width, causal = float(row["seq"]), int(row["width"]), row["causal"] == "1"
    heads, keys = 2048.0 / width, mean_keys(seq, 0, causal=causal)
    one = np.ones(1)
    shape = AttentionShape(
        tokens=16384.0 * one,
        keys=keys * one,
        call_keys=keys * one,
        matrix_keys=seq * one,
        heads=heads * one,
        kv_heads=heads * one,
        blocks=query_blocks(16384.0 / seq * one, heads * one, seq),
        qk_dim=width,
        v_dim=width,
    )
    forward_s, backward_s = flash_attention_s(shape, machine)
    flops = 4.0 * 16384.0 * keys * heads * width
    if row["direction"] == "forward":
        return float(flops / forward_s[0] / 1e12)
    return float(2.5 * flops / backward_s[0] / 1e12)


def fit_attention(rows: list[dict[str, str]], gpu: str) -> None:
    """Fit the share of one accelerator to its causal forward timings, which include a pass over the inputs."""
    base = machine_of(ACCELERATORS[gpu], default_efficiency())
    used = timings(rows, gpu, "attention_causal_fwd", "bfloat16")
    used = used.take(used.n >= 2048.0)
    heads, kv_heads = (
        np.array([float(value.split(";")[index].split("=")[1]) for value in used.extra]) for index in (0, 1)
    )
    used = replace(used, held=(heads * 3.0 + kv_heads).astype(np.int64) % 5 == 0)
    shape = AttentionShape(
        tokens=used.m * used.n,
        keys=used.n / 2.0,
        call_keys=used.n / 2.0,
        matrix_keys=used.n,
        heads=heads,
        kv_heads=kv_heads,
        blocks=query_blocks(used.m, heads, used.n),
        qk_dim=128,
        v_dim=128,
    )

    def model(p: Vector) -> Vector:
        attention = replace(base.generation.attention, math=_share(p[0]))
        machine = replace(base, generation=replace(base.generation, attention=attention))
        copied = np.exp(p[1]) * 2.0 * used.m * used.n * (heads + 2.0 * kv_heads) * 128.0
        seconds: Vector = flash_attention_s(shape, machine)[0] + traffic_s(copied, base) + np.exp(p[2]) * 1e-6
        return seconds

    p = fit(lambda q: np.log(model(q) / used.time_s)[~used.held], [0.5, 0.0, 2.0])
    print(report(f"{gpu} attention, math {_share(p[0]):.3f}, copies {np.exp(p[1]):.1f}", used, lambda _: model(p)))


def main(path: str) -> None:
    """Print every fit."""
    rows = read_rows(Path(path))
    for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM", "GB200", "B300-SXM", "GB300", "L40S"):
        fit_gemm(rows, gpu)
    fit_deepgemm(rows)
    for gpu in ("H100-SXM5-80GB", "GB200", "B300-SXM", "GB300", "L40S"):
        check_fp8(rows, gpu)
    for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM", "GB200", "GB300"):
        check_experts(rows, gpu)
    fit_attention_figures()
    for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM", "GB200", "GB300"):
        fit_attention(rows, gpu)


if __name__ == "__main__":
    main(sys.argv[1])

"""Logs of nccl-tests and tables of matrix products as observations."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.collectives import COLLECTIVE_S
from costmodels.compute.gemm import GemmShape, gemm_s
from costmodels.compute.machine import machine_of
from costmodels.pricing import Constants
from costmodels.profile import Profile, profiled
from costmodels.table import Floats
from hardware.catalog import accelerator as accelerator_named
from hardware.cluster import Accelerator, Cluster, Island
from hardware.errors import InputError
from hardware.importers.device_names import accelerator_in
from hardware.importers.nccl_log import NcclLog, read_nccl_log
from hardware.importers.source_text import SourceText, read_source
from hardware.resized import with_nodes
from planner.calibrate.link_rates import log_ratios, ranks_in
from planner.calibrate.observations import Observations, shared_noise
from planner.evidence.left_out import LeftOut, left_out

LOG_NOISE: Final = 0.12
"""Median error of the communication model over the nccl-tests tables (docs/collectives.md), 0.07, and repeats."""
LOG_WORTH: Final = 6
"""Rows that a log counts as at most: its rows share a machine, a day and an algorithm."""
GEMM_NOISE: Final = 0.08
"""Mean error of products over the public timings (docs/compute.md)."""
GEMM_WORTH: Final = 10
LEAST_ROWS: Final = 128  # decoding shapes (m of 1 to 32) do not occur in training
MOST_PRODUCTS: Final = 100_000
LEAST_VALUE: Final = 1e-9
MOST_VALUE: Final = 1e12
"""Of a size of a product, of its time in any unit, and of its rate."""
FORMATS: Final = MappingProxyType(
    {
        "bf16": "bf16",
        "bfloat16": "bf16",
        "fp16": "fp16",
        "float16": "fp16",
        "half": "fp16",
        "fp8": "fp8",
        "e4m3": "fp8",
        "float8_e4m3fn": "fp8",
        "fp4": "fp4",
        "nvfp4": "fp4",
        "mxfp4": "fp4",
        "tf32": "tf32",
    }
)
_TIMES: Final = MappingProxyType({"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6})
_TERA: Final = 1e12


def read_logs(paths: Sequence[Path], part: str) -> tuple[NcclLog, ...]:
    """Read logs of nccl-tests; InputError where one cannot be used or names another accelerator than ``part``."""
    logs = tuple(read_nccl_log(path) for path in paths)
    for log in logs:
        if log.collective not in COLLECTIVE_S:
            raise InputError(f"no model of {log.collective}", allowed=", ".join(COLLECTIVE_S), where=log.where)
        ranks_in(log)
        named = accelerator_in(log.device)
        if part and named and named != part:
            raise InputError(f"was taken on {named}", allowed=f"logs of {part}", where=log.where)
    return logs


def log_observations(log: NcclLog, cluster: Cluster) -> Observations:
    """Return the rows of one log, taken on nodes like those of a cluster.

    Parameters
    ----------
    log : NcclLog
        One collective over message sizes.
    cluster : Cluster
        Its first island's nodes, as many as the log has ranks for.

    Returns
    -------
    Observations
        A row each.
    """
    ranks = ranks_in(log)
    island = _wide_enough(cluster.islands[0], ranks)

    def ratios(profile: Profile) -> Floats:
        return log_ratios(log.collective, log.rows, ranks, island, profiled(Constants(), profile).network)

    return Observations(
        names=tuple(f"{Path(log.where).name}: {row.bytes} bytes" for row in log.rows),
        noise=shared_noise(LOG_NOISE, len(log.rows), LOG_WORTH),
        log_ratios=ratios,
    )


def _wide_enough(island: Island, ranks: int) -> Island:
    nodes = max(island.nodes, -(-ranks // island.node.gpus))
    return with_nodes(island, nodes) if nodes > island.nodes else island


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Products:
    """Timed matrix products of one file: sizes (N,), formats, seconds (N,), and rows that were left out."""

    where: str
    m: Floats
    n: Floats
    k: Floats
    formats: tuple[str, ...]
    time_s: Floats
    skipped: tuple[LeftOut, ...]


def read_products(path: Path, part: Accelerator) -> Products:
    """Read a table of matrix products.

    Parameters
    ----------
    path : Path
        CSV with the columns ``m, n, k, dtype`` and one of ``time_s, time_ms, time_us, tflops``; rows whose column
        ``gpu`` or ``hardware`` names another accelerator, or whose ``op`` is not ``gemm``, are left out.
    part : Accelerator
        The accelerator that is calibrated.

    Returns
    -------
    Products

    Raises
    ------
    InputError
        The file is missing, too large, lacks a column, holds a value out of range, or no row can be used.
    """
    source = read_source(path)
    reader = csv.DictReader(io.StringIO(source.text))
    names = _header(reader, source)
    time = next((name for name in (*_TIMES, "tflops") if name in names), "")
    missing = [name for name in ("m", "n", "k", "dtype") if name not in names] + ([] if time else ["time_us"])
    if missing:
        allowed = "a header with m, n, k, dtype and one of time_s, time_ms, time_us, tflops"
        raise source.wrong(f"lacks the column {', '.join(missing)}", 1, allowed)
    rows: list[tuple[float, float, float, float]] = []
    formats: list[str] = []
    skipped: list[tuple[str, str]] = []
    try:
        for line, row in enumerate(reader, start=2):
            if line > MOST_PRODUCTS:
                raise source.wrong("too many rows", line, f"up to {MOST_PRODUCTS}")
            reason = _left_out(row, part)
            if reason:
                skipped.append((reason, f"{path.name}: row {line}"))
                continue
            m, n, k, stated = (_positive(row, name, f"{source.where}: row {line}") for name in ("m", "n", "k", time))
            rows.append((m, n, k, stated * _TIMES[time] if time in _TIMES else 2.0 * m * n * k / (stated * _TERA)))
            formats.append(FORMATS[_word(row, "dtype")])
    except csv.Error as error:
        raise source.wrong(f"is no CSV ({error})", 0, "comma-separated text with a header") from error
    if not rows:
        reasons = "; ".join(map(str, left_out(skipped)[:3])) or "no rows"
        what = f"no row can be used ({reasons})"
        raise source.wrong(what, 0, f"products of {part.name} with m of {LEAST_ROWS} or more")
    columns = np.array(rows, dtype=np.float64).T
    return Products(
        where=source.where,
        m=columns[0],
        n=columns[1],
        k=columns[2],
        time_s=columns[3],
        formats=tuple(formats),
        skipped=left_out(skipped),
    )


def _header(reader: "csv.DictReader[str]", source: SourceText) -> Sequence[str]:
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        return reader.fieldnames
    except csv.Error as error:
        raise source.wrong(f"is no CSV ({error})", 1, "comma-separated text with a header") from error


def _word(row: Mapping[str, str], name: str) -> str:
    return (row.get(name) or "").strip().lower()


def _left_out(row: Mapping[str, str], part: Accelerator) -> str:
    """Say why a row is no product of this accelerator in training; empty when it is one."""
    named = (row.get("gpu") or row.get("hardware") or "").strip()
    if named and _part_name(named) != part.name:
        return f"on {named[:40]}"
    if _word(row, "op") not in ("", "gemm"):
        return f"op {_word(row, 'op')[:40]}"
    form = FORMATS.get(_word(row, "dtype"), "")
    if not form or getattr(part.peak, form) <= 0.0:
        return f"dtype {_word(row, 'dtype')[:40]!r}"
    try:
        return f"m below {LEAST_ROWS}" if float(row.get("m") or "nan") < LEAST_ROWS else ""
    except ValueError:
        return ""  # read again, and refused with its place


def _part_name(named: str) -> str:
    try:
        return accelerator_named(named).name
    except InputError:
        return accelerator_in(named)


def _positive(row: Mapping[str, str], name: str, where: str) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not LEAST_VALUE <= value <= MOST_VALUE:
        allowed = f"a number from {LEAST_VALUE:g} to {MOST_VALUE:g}"
        raise InputError(f"{text[:40]!r} is not accepted", allowed=allowed, where=f"{where}: {name}")
    return value


def product_observations(products: Products, part: Accelerator) -> Observations:
    """Return timed products; every number format counts on its own.

    Parameters
    ----------
    products : Products
        N rows.
    part : Accelerator
        The accelerator.

    Returns
    -------
    Observations
        Predictions are of isolated kernels at full clock.
    """
    formats = np.array(products.formats)
    noise = np.zeros(len(formats))
    for name in sorted(set(products.formats)):
        noise[formats == name] = shared_noise(GEMM_NOISE, int((formats == name).sum()), GEMM_WORTH)[0]
    price = _product_prices(products, part)
    return Observations(
        names=tuple(f"{Path(products.where).name}: product {number + 1}" for number in range(len(formats))),
        noise=noise,
        log_ratios=lambda profile: np.asarray(np.log(price(profile) / products.time_s)),
    )


def _product_prices(products: Products, part: Accelerator) -> Callable[[Profile], Floats]:
    formats = np.array(products.formats)

    def prices(profile: Profile) -> Floats:
        machine = machine_of(part, profiled(Constants(), profile).efficiency)
        out = np.zeros(len(formats))
        for name in sorted(set(products.formats)):
            rows = formats == name
            shape = GemmShape(m=products.m[rows], n=products.n[rows], k=products.k[rows])
            out[rows] = gemm_s(shape, machine, name)
        return out

    return prices

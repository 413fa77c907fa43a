"""Measured link rates: rates of a cluster's links set so that the cost model reproduces logs of nccl-tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.collectives import COLLECTIVE_S, NetworkConstants, default_network
from costmodels.mesh import Group, place
from costmodels.table import Floats
from hardware import catalog
from hardware.cluster import Cluster, FabricShape, Island
from hardware.errors import InputError
from hardware.importers.device_names import accelerator_in
from hardware.importers.nccl_log import LogRow, NcclLog, ranks_of, read_nccl_log
from hardware.tiers import island_tiers

LARGE_BYTES: Final = 256 * 2**20
"""Messages from here on are bound by bandwidth; without any, the largest of a log count."""
SCALES: Final = tuple(2.0 ** (step / 64.0) for step in range(-320, 129))
"""Factors on a link's rate that are tried: 1/32 to 4, 1.1 % apart."""
UNBOUND: Final = 0.05
"""Logarithm of the time that a link four times as fast would save, below which the link does not bound the time."""
NEAR_SCALE_UP: Final = 0.7
"""Bus bandwidth over the scale-up rate from which the scale-up fabric may be what bounds a run over several nodes:
0.74 to 0.8 are usual for rings within a node (dgx-a100). Slower runs are bounded by the adapters."""


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """What one log says of a link: bytes per second of the catalogue or file before, and as measured."""

    where: str
    collective: str
    ranks: int
    link: str
    bus_bytes_per_s: float
    before_bytes_per_s: float
    after_bytes_per_s: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A cluster with measured rates, the rate of each log, and what was assumed."""

    cluster: Cluster
    rates: tuple[LinkRate, ...]
    assumed: tuple[str, ...]


def calibrate(paths: Sequence[Path], spec: str = "", accelerator: str = "") -> Calibration:
    """Set link rates of a cluster by measured collectives.

    Parameters
    ----------
    paths : sequence of Path
        Logs of nccl-tests or rccl-tests on that cluster. A log within one scale-up domain (or node) measures its
        fabric, a log over several measures the adapters; of several logs for a link the median counts.
    spec : str
        The cluster, as the command line names it; empty: the usual nodes of the accelerator that a log names.
    accelerator : str
        Name for logs that state none.

    Returns
    -------
    Calibration
        Rates are such that the cost model's large-message times equal the measured ones; latencies are not changed.

    Raises
    ------
    InputError
        A log that cannot be read, a collective without a model, or ranks that do not fit the cluster.
    """
    logs = [read_nccl_log(path) for path in paths]
    assumed: list[str] = []
    cluster = catalog.cluster(spec) if spec else cluster_of_logs(logs, accelerator, assumed)
    if len(cluster.islands) != 1:
        raise InputError(f"{len(cluster.islands)} islands", allowed="a cluster of equal nodes", where=cluster.name)
    island = cluster.islands[0]
    found: list[LinkRate] = []
    within = [log for log in logs if ranks_in(log) <= _domain(island)]
    for group in (within, [log for log in logs if log not in within]):
        rates = [_measured(log, island) for log in group]
        found += rates
        island = _with_rates(island, rates)
    skipped = sum(log.skipped for log in logs)
    if skipped:
        assumed.append(f"{skipped} rows without message or broken off are left out")
    assumed += [f"{log.where}: no summary at the end; its whole rows count" for log in logs if not log.complete]
    assumed.append("latencies and what no log reaches: as before")
    return Calibration(cluster=replace(cluster, islands=(island,)), rates=tuple(found), assumed=tuple(assumed))


def _domain(island: Island) -> int:
    """Return the accelerators that need no adapters to talk."""
    return min(max(island.node.scale_up.domain_gpus, island.node.gpus), island.gpus)


def ranks_in(log: NcclLog) -> int:
    """Return the number of ranks of a log; InputError where it does not tell."""
    ranks = ranks_of(log)
    if ranks < 2:
        raise InputError(
            "the log does not tell its ranks", allowed="a log with its head, '# Rank 0 ...'", where=log.where
        )
    return ranks


def cluster_of_logs(logs: Sequence[NcclLog], accelerator: str, assumed: list[str]) -> Cluster:
    """Return usual nodes of the accelerator that the logs name, as many as the largest run had."""
    largest = max(logs, key=ranks_of)
    name = accelerator or accelerator_in(largest.device)
    if not name or not largest.hosts:
        what = (
            f"device '{largest.device}' is not in the catalogue" if largest.device else "no head with ranks and devices"
        )
        raise InputError(what, allowed="--cluster NAME:NODES, or --accelerator NAME", where=largest.where)
    nodes = len(set(largest.hosts))
    per_node = len(largest.hosts) // nodes
    if per_node * nodes != len(largest.hosts):
        raise InputError(f"{len(largest.hosts)} ranks on {nodes} hosts", allowed="as many on each", where=largest.where)
    machine = catalog.cluster_of_run(name, len(largest.hosts), per_node)
    assumed.append(f"the nodes are {machine.islands[0].node.name} with {per_node} x {name}: --cluster names others")
    return machine


def _measured(log: NcclLog, island: Island) -> LinkRate:
    if log.collective not in COLLECTIVE_S:
        raise InputError(f"no model of {log.collective}", allowed=", ".join(COLLECTIVE_S), where=log.where)
    ranks = ranks_in(log)
    if ranks > island.gpus:
        raise InputError(f"{ranks} ranks on a cluster of {island.gpus} GPUs", allowed="--cluster", where=log.where)
    most = max(row.bytes for row in log.rows)
    rows = [row for row in log.rows if row.bytes >= min(LARGE_BYTES, most)]
    across = ranks > _domain(island)
    ratios = [_log_ratio(log, rows, ranks, _scaled(island, scale, across=across)) for scale in SCALES]
    errors = [abs(ratio) for ratio in ratios]
    least = min(errors)
    # Where the link does not bind (another tier does), many factors do equally well: the one nearest to no change.
    close = [scale for scale, error in zip(SCALES, errors, strict=True) if error <= least + 1e-3]
    scale = min(close, key=lambda factor: abs(math.log(factor)))
    note = "" if least < 0.05 else f"the model misses these times by {100 * least:.0f} % at any rate of this link"
    unchanged = SCALES.index(1.0)
    fast = max(row.best_bus_bytes_per_s for row in rows) >= NEAR_SCALE_UP * island.node.scale_up.bytes_per_s
    if across and fast and ratios[unchanged] - ratios[-1] < UNBOUND and ratios[unchanged] < 0.0:
        scale, note = 1.0, "the model has another link bound these times: the rate is left as it was"
    before = island.node.nics.bytes_per_s if across else island.node.scale_up.bytes_per_s
    if most < LARGE_BYTES:
        note = "; ".join(filter(None, (note, f"largest message {most / 2**20:g} MiB: rates may be higher")))
    return LinkRate(
        where=log.where,
        collective=log.collective,
        ranks=ranks,
        link="nics" if across else "scale_up",
        bus_bytes_per_s=max(row.best_bus_bytes_per_s for row in log.rows),
        before_bytes_per_s=before,
        after_bytes_per_s=before * scale,
        note=note,
    )


def _log_ratio(log: NcclLog, rows: Sequence[LogRow], ranks: int, island: Island) -> float:
    """Return the median logarithm of predicted over measured time."""
    return float(np.median(log_ratios(log.collective, rows, ranks, island, default_network())))


def log_ratios(
    collective: str, rows: Sequence[LogRow], ranks: int, island: Island, constants: NetworkConstants
) -> Floats:
    """Compare rows of a log with the cost model.

    Parameters
    ----------
    collective : str
        One of :data:`costmodels.collectives.COLLECTIVE_S`.
    rows : sequence of LogRow
        Message sizes and times.
    ranks : int
        Members of the group, side by side from the first accelerator on.
    island : Island
        Where the log was taken.
    constants : NetworkConstants
        Of the communication model.

    Returns
    -------
    array
        Logarithm of predicted over measured time [1], shape (len(rows),).
    """
    tiers = island_tiers(island)
    one = np.ones(len(rows), dtype=np.int64)
    group = place(Group(size=one * ranks, stride=one, ranks=one * ranks), tiers)
    sizes = np.array([row.bytes for row in rows], dtype=np.float64)
    times = np.array([min(row.time_s, row.in_place_time_s or row.time_s) for row in rows])
    return np.asarray(np.log(COLLECTIVE_S[collective](sizes, group, tiers, constants) / times))


def _scaled(island: Island, scale: float, *, across: bool) -> Island:
    node = island.node
    if across:
        return replace(island, node=replace(node, nics=replace(node.nics, bytes_per_s=node.nics.bytes_per_s * scale)))
    fast = node.scale_up
    fast = replace(fast, bytes_per_s=fast.bytes_per_s * scale, pair_bytes_per_s=fast.pair_bytes_per_s * scale)
    return replace(island, node=replace(node, scale_up=fast))


def _with_rates(island: Island, rates: Sequence[LinkRate]) -> Island:
    """Return the island with the median of the measured rates of a link."""
    if not rates:
        return island
    ordered = sorted(rates, key=lambda rate: rate.after_bytes_per_s)
    if all(rate.after_bytes_per_s == rate.before_bytes_per_s for rate in rates):
        return island
    middle = ordered[(len(ordered) - 1) // 2]
    across = middle.link == "nics"
    scaled = _scaled(island, middle.after_bytes_per_s / middle.before_bytes_per_s, across=across)
    shape = island.node.scale_up.shape
    unit = f"{middle.after_bytes_per_s / 1.25e8:.4g} Gb/s" if across else f"{middle.after_bytes_per_s / 1e9:.4g} GB/s"
    text = (
        f"{middle.link}: {unit}, source = measured: {middle.collective} of {middle.ranks} ranks in {middle.where}, "
        f"bus bandwidth {middle.bus_bytes_per_s / 1e9:.4g} GB/s"
    )
    if not across and shape in (FabricShape.MESH, FabricShape.CUBE_MESH):
        text += " (all links alike)"
    return replace(scaled, node=replace(scaled.node, sources=(*scaled.node.sources, text)))

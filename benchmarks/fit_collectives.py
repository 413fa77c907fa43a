"""Fit the constants of the communication model to tables of nccl-tests, and report the errors.

    python benchmarks/fit_collectives.py TABLES.csv INDEX.csv [--sweeps N]

TABLES has one row per message size (id, bytes, time_us), INDEX one row per table (id, collective, gpu, n_nodes,
gpus_per_node, nic_count, nic_gbps, nvlink_type, algo_proto). Without --sweeps the constants in the package are
evaluated; with it, N rounds of coordinate descent print better ones. Cross-validation leaves out whole tables.
"""

import argparse
import csv
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from costmodels.collectives import COLLECTIVE_S, NetworkConstants, default_network
from costmodels.mesh import Group, PlacedGroup, place
from costmodels.table import Floats
from hardware.cluster import FabricShape, LinkKind
from hardware.tiers import Tier

# What the tables do not say: how the accelerators of each machine are joined (public specifications, per direction).
DGX1_LINKS: Final = (
    (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
    (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
)  # fmt: skip
SCALE_UP: Final = {  # by the accelerator's first letters: kind, shape, rate, pair rate, domain, reduction in the switch
    "V100": (LinkKind.NVLINK, FabricShape.CUBE_MESH, 150e9, 25e9, 8, False),
    "A100": (LinkKind.NVLINK, FabricShape.SWITCH, 300e9, 300e9, 8, False),
    "H100": (LinkKind.NVLINK, FabricShape.SWITCH, 450e9, 450e9, 8, True),
    "H200": (LinkKind.NVLINK, FabricShape.SWITCH, 450e9, 450e9, 8, True),
    "GH200": (LinkKind.NVLINK, FabricShape.MESH, 450e9, 150e9, 4, False),
    "B200": (LinkKind.NVLINK, FabricShape.SWITCH, 900e9, 900e9, 8, True),
    "B300": (LinkKind.NVLINK, FabricShape.SWITCH, 900e9, 900e9, 8, True),
    "GB200": (LinkKind.NVLINK, FabricShape.SWITCH, 900e9, 900e9, 72, True),
    "GB300": (LinkKind.NVLINK, FabricShape.SWITCH, 900e9, 900e9, 72, True),
    "MI300X": (LinkKind.XGMI, FabricShape.MESH, 448e9, 64e9, 8, False),
    "MI355X": (LinkKind.XGMI, FabricShape.MESH, 537.6e9, 76.8e9, 8, False),
    "L40S": (LinkKind.PCIE, FabricShape.TREE, 11.7e9, 18.2e9, 8, False),
    "RTX-PRO-6000": (LinkKind.PCIE, FabricShape.TREE, 24.75e9, 38.5e9, 8, False),
    "RTX-6000D": (LinkKind.PCIE, FabricShape.TREE, 24.75e9, 38.5e9, 1, False),
    "A40": (LinkKind.PCIE, FabricShape.TREE, 11.7e9, 18.2e9, 8, False),
}
NICS: Final = (  # by the first letters of the table's id
    ("aws_", LinkKind.EFA),
    ("p3dn_", LinkKind.EFA),
    ("cscs_", LinkKind.SLINGSHOT),
    ("gcp_a3mega", LinkKind.ETHERNET),
    ("gcp_a3high", LinkKind.ETHERNET),
    ("dstack_a3", LinkKind.ETHERNET),
    ("gcp_", LinkKind.ROCE),
    ("dstack_a4", LinkKind.ROCE),
    ("oci_", LinkKind.ROCE),
    ("mi3", LinkKind.ROCE),
    ("rtx6000d", LinkKind.ROCE),
    ("gb300_", LinkKind.ROCE),
    ("", LinkKind.INFINIBAND),
)
NOT_FITTED: Final = {  # tables that say nothing about the machine's network, and why
    "azure_a100_2n_ipoib": "sockets in place of RDMA",
    "cscs_gh200_2n_tcp": "sockets in place of RDMA",
    "cw_a100_16n_noib": "adapters not stated",
    "stas_4n_ar": "accelerator and adapters not stated",
    "mi250x_1n_ag": "reported as untuned",
    "mi250x_4n_ag": "reported as broken",
    "aws_p4de_2n_scatter": "scatter is not modelled",
    "aws_p4de_2n_scatter2": "scatter is not modelled",
    "roce_2x1_sendrecv": "reported as broken",
    "a40_2n_sendrecv": "adapters not stated",
    "aws_p5_2n_ar_old": "older EFA software than another table of the same machine",
    "cw_a100_4n_sharp": "reduction in the network's switches, set-up not stated",
    "cw_a100_4n_sharp2": "reduction in the network's switches, set-up not stated",
    "h100_2x1_tree_4nic": "tree forced; reported as a fault",
    "gcp_a3high_1n_ar": "fewer channels than usual",
    "v100_8n_ar_100g": "a third of the adapter's rate, reported as a fault",
    "v100_8n_a2a_100g": "reported as a fault",
    "mi300x_2n_ar": "floor of 220 us reported as a fault",
    "aic_a100_sxm_all_reduce_2gpu_int8": "8-bit sums take longer; with no switch that reduces they stand for nothing",
    "aic_a100_sxm_all_reduce_8gpu_int8": "8-bit sums take longer; with no switch that reduces they stand for nothing",
}
NOT_FITTED_PREFIXES: Final = {
    "aic_l40s_": "virtual machine without peer access between more than two accelerators",
}
OLD_FLOOR: Final = "single process"  # one process launched eight kernels in turn: 34 us whatever the size
NO_NVLS: Final = ("int8", "NVLS_ENABLE=0")  # the switch adds no 8-bit integers; or it was told not to
SMALLEST_BYTES: Final = 1 << 10
LARGEST_BYTES: Final = 8 << 30
LARGE_BYTES: Final = 1 << 30
FOLDS: Final = 4
WEIGHTED_BYTES: Final = 16 << 20
WEIGHT: Final = 2.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """One measured curve with the machine it was measured on."""

    name: str
    collective: str
    message_bytes: Floats
    measured_s: Floats
    tiers: tuple[Tier, ...]
    group: PlacedGroup

    @property
    def fold(self) -> int:
        """Fold of the cross-validation, by a hash of the id."""
        return zlib.crc32(self.name.encode()) % FOLDS

    @property
    def weights(self) -> Floats:
        """Weight of every row in the fit: large messages decide training time."""
        return np.where(self.message_bytes >= WEIGHTED_BYTES, WEIGHT, 1.0)

    def predicted_s(self, constants: NetworkConstants) -> Floats:
        """Seconds of every row."""
        return COLLECTIVE_S[self.collective](self.message_bytes, self.group, self.tiers, constants)

    def log_errors(self, constants: NetworkConstants) -> Floats:
        """Natural logarithm of predicted over measured time."""
        return np.log(self.predicted_s(constants) / self.measured_s)


def read_tables(tables_path: Path, index_path: Path) -> list[Table]:
    """Join rows and index; tables that cannot be modelled are left out."""
    rows: dict[str, list[tuple[float, float]]] = {}
    with tables_path.open(newline="") as file:
        for row in csv.DictReader(file):
            size = float(row["bytes"])
            if SMALLEST_BYTES <= size <= LARGEST_BYTES:
                rows.setdefault(row["id"], []).append((size, float(row["time_us"]) * 1e-6))
    with index_path.open(newline="") as file:
        entries = [entry for entry in csv.DictReader(file) if entry["id"] in rows and _representative(entry)]
    return [_table(entry, np.array(sorted(rows[entry["id"]]))) for entry in entries]


def _representative(entry: dict[str, str]) -> bool:
    if OLD_FLOOR in entry["algo_proto"] or entry["id"] in NOT_FITTED or entry["collective"] not in COLLECTIVE_S:
        return False
    return int(entry["gpus_per_node"]) <= 2 or not entry["id"].startswith(tuple(NOT_FITTED_PREFIXES))


def _table(entry: dict[str, str], rows: Floats) -> Table:
    nodes, per_node = int(entry["n_nodes"]), int(entry["gpus_per_node"])
    ranks = nodes * per_node
    tiers = _tiers(entry, ranks)
    ones = np.ones(len(rows), dtype=np.int64)
    group = Group(size=ones * ranks, stride=ones, ranks=ones * ranks)
    return Table(
        name=entry["id"],
        collective=entry["collective"],
        message_bytes=rows[:, 0],
        measured_s=rows[:, 1],
        tiers=tiers,
        group=place(group, tiers),
    )


def _tiers(entry: dict[str, str], ranks: int) -> tuple[Tier, ...]:
    prefix = max((name for name in SCALE_UP if entry["gpu"].startswith(name)), key=len)
    kind, shape, rate, pair, domain, in_network = SCALE_UP[prefix]
    per_node = int(entry["gpus_per_node"])
    whole = domain if domain > 8 else min(domain, per_node) if int(entry["n_nodes"]) > 1 else domain
    inner = Tier(
        name="scale-up",
        kind=kind,
        shape=shape,
        gpus=whole,
        bytes_per_s=rate,
        pair_bytes_per_s=pair,
        latency_s=0.0,
        in_network_reduction=in_network and not any(word in entry["algo_proto"] for word in NO_NVLS),
        links=DGX1_LINKS if shape == FabricShape.CUBE_MESH else (),
    )
    if ranks <= whole:
        return (inner,)
    nic_kind = next(kind for start, kind in NICS if entry["id"].startswith(start))
    nic = float(entry["nic_gbps"]) * 1e9 / 8.0
    share = min(float(entry["nic_count"]) * nic / per_node, max(nic, 55e9))
    outer = Tier(
        name="network",
        kind=nic_kind,
        shape=FabricShape.SWITCH,
        gpus=ranks,
        bytes_per_s=share,
        pair_bytes_per_s=max(share, nic),
        latency_s=0.0,
    )
    return (inner, outer)


SCALARS: Final = (
    "exponent", "interference", "in_network_fill", "in_network_s", "tree", "peer_s", "remote_peer_s",
)  # fmt: skip
BOUNDS: Final = {  # what is physically sensible
    "exponent": (0.4, 1.0), "interference": (0.01, 0.5), "copy_bytes_per_s": (3e11, 3e12),
    "in_network_fill": (0.01, 1.0), "in_network_s": (1e-7, 1e-5), "tree": (0.8, 1.0),
    "peer_s": (1e-8, 1e-5), "remote_peer_s": (1e-8, 1e-5), "launch_s": (1e-6, 5e-5),
    "hop_s": (1e-7, 2e-4), "ring": (0.2, 0.99), "alltoall": (0.2, 0.99),
    "in_network": (0.4, 1.0),
}  # fmt: skip
PRIOR: Final = 0.001  # weight of the squared log distance from the starting value: holds what few tables see
PER_LINK: Final = ("launch_s", "hop_s", "ring", "copy_bytes_per_s", "alltoall", "in_network")


def _varied(constants: NetworkConstants, name: str, link: int, factor: float) -> NetworkConstants:
    if link < 0:
        return replace(constants, **{name: getattr(constants, name) * factor})
    row = constants.links[link]
    changed = replace(row, **{name: getattr(row, name) * factor})
    return replace(constants, links=(*constants.links[:link], changed, *constants.links[link + 1 :]))


def loss(tables: list[Table], constants: NetworkConstants) -> float:
    """Mean over tables of the mean absolute log error, each row counted at most as a factor of three."""
    return float(
        np.mean(
            [
                np.average(np.minimum(np.abs(table.log_errors(constants)), 1.1), weights=table.weights)
                for table in tables
            ]
        )
    )


def _value(constants: NetworkConstants, name: str, link: int) -> float:
    return float(getattr(constants if link < 0 else constants.links[link], name))


def fit(tables: list[Table], constants: NetworkConstants, sweeps: int) -> NetworkConstants:
    """Coordinate descent over every constant that the tables touch, with steps that shrink from sweep to sweep."""
    start = constants
    classes = sorted({constants.links.index(constants.link(tier)) for table in tables for tier in table.tiers})
    names = [(name, -1) for name in SCALARS] + [(name, link) for link in classes for name in PER_LINK]
    names = [(name, link) for name, link in names if _value(constants, name, link) > 0.0]

    def objective(candidate: NetworkConstants, name: str, link: int) -> float:
        touched = _touched(tables, candidate, link)
        away = np.log(_value(candidate, name, link) / _value(start, name, link))
        return loss(touched, candidate) * len(touched) / len(tables) + PRIOR * float(away) ** 2

    for sweep in range(sweeps):
        step = max(0.25 * 0.8**sweep, 0.01)
        for name, link in names:
            best = objective(constants, name, link)
            for factor in (1.0 + step, 1.0 / (1.0 + step)):
                while True:
                    candidate = _varied(constants, name, link, factor)
                    low, high = BOUNDS[name]
                    value = objective(candidate, name, link)
                    if value >= best - 1e-7 or not low <= _value(candidate, name, link) <= high:
                        break
                    constants, best = candidate, value
    return constants


def _touched(tables: list[Table], constants: NetworkConstants, link: int) -> list[Table]:
    if link < 0:
        return tables
    return [table for table in tables if any(constants.link(tier) == constants.links[link] for tier in table.tiers)]


def report_of(errors: list[tuple[Table, Floats]]) -> str:
    """Median and 90th percentile of the relative error over rows, and the error of the large-message rate."""
    if not errors:
        return "no tables"
    rows = np.abs(np.expm1(np.concatenate([error for _, error in errors])))
    large = [abs(float(np.expm1(-error[-1]))) for table, error in errors if table.message_bytes[-1] >= LARGE_BYTES]
    median, tenth = np.median(rows), np.quantile(rows, 0.9)
    text = f"{len(errors):3d} tables {len(rows):5d} rows: median {median:6.1%}, 90th percentile {tenth:6.1%}"
    return text + (f"; rate at >= 1 GiB ({len(large)} tables): median {np.median(large):.1%}" if large else "")


def family(table: Table) -> str:
    """Collective and machine of a table."""
    kinds = "+".join(tier.kind for tier in table.tiers)
    return f"{table.collective:15s} {kinds} {table.tiers[0].bytes_per_s / 1e9:.0f} GB/s"


def main() -> None:
    """Read, fit if asked, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("index", type=Path)
    parser.add_argument(
        "--sweeps", type=int, default=0, help="rounds of the fit; 0 evaluates the constants in the package"
    )
    parser.add_argument("--cross-validate", action="store_true", help="fit without each fold in turn")
    parser.add_argument("--rows", default="", help="print every row of the tables whose id contains this")
    arguments = parser.parse_args()
    tables = read_tables(arguments.tables, arguments.index)
    start = default_network()
    constants = fit(tables, start, arguments.sweeps)
    if arguments.sweeps:
        for name in SCALARS:
            print(f"{name} = {getattr(constants, name):.3g}")
        for link in constants.links:
            print(link)
    print("fit            ", report_of([(table, table.log_errors(constants)) for table in tables]))
    if arguments.cross_validate:
        held_out = []
        for fold in range(FOLDS):
            without = fit([table for table in tables if table.fold != fold], start, arguments.sweeps)
            held_out += [(table, table.log_errors(without)) for table in tables if table.fold == fold]
        print("cross-validated", report_of(held_out))
    for name in sorted({family(table) for table in tables}):
        print(f"  {name:50s}", report_of([(t, t.log_errors(constants)) for t in tables if family(t) == name]))
    for table in tables:
        if arguments.rows and arguments.rows in table.name:
            print(table.name, report_of([(table, table.log_errors(constants))]))
            for size, measured, error in zip(
                table.message_bytes, table.measured_s, table.log_errors(constants), strict=True
            ):
                print(f"  {size:14.0f} B {measured * 1e6:12.1f} us {np.expm1(error):+7.1%}")


if __name__ == "__main__":
    main()

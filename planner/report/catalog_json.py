"""Entries of the catalogue as plain data, in the units of data sheets."""

from typing import Final

from costmodels.workload import presets
from costmodels.workload.describe import to_dict
from hardware import catalog
from hardware.catalog_schema import canonical
from hardware.cluster import Accelerator, Cluster, Island, NodeType, ScaleUp
from hardware.errors import InputError
from planner.nearest import nearest
from planner.report.json_report import Json
from planner.report.words import gib

TERA: Final = 1e12
GIGA: Final = 1e9
MICRO: Final = 1e-6
MEGA: Final = 1e6
KINDS: Final = ("models", "accelerators", "clusters")
_RATES: Final = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "vector")


def catalog_names(kind: str) -> tuple[str, ...]:
    """Return the names of a kind of entry.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`. Clusters are node types, which take ``:NODES``, and machines of fixed size.

    Raises
    ------
    InputError
        No such kind.
    """
    if kind == "models":
        return presets.names()
    if kind == "accelerators":
        return catalog.accelerator_names()
    if kind == "clusters":
        return (*catalog.node_type_names(), *catalog.fixed_cluster_names())
    raise InputError(f"no catalogue of {kind!r}{nearest(kind, KINDS)}", allowed=", ".join(KINDS))


def catalog_entry(kind: str, name: str) -> Json:
    """Return one entry; parameters and errors as :func:`catalog_names`, and InputError for an unknown name or file."""
    catalog_names(kind)
    if kind == "models":
        return to_dict(presets.model(name))
    if kind == "accelerators":
        return accelerator_to_json(catalog.accelerator(name))
    return cluster_to_json(catalog.cluster(_with_nodes(name)))


def catalog_list(kind: str) -> Json:
    """Return all names of a kind of entry."""
    return {kind: list(catalog_names(kind))}


def _with_nodes(name: str) -> str:
    """Take a node type without ``:NODES`` as one node."""
    keys = {canonical(known) for known in catalog.node_type_names()}
    keys |= {canonical(other) for known in catalog.node_type_names() for other in catalog.aliases()[known]}
    return f"{name}:1" if canonical(name) in keys else name


def accelerator_to_json(part: Accelerator) -> Json:
    """Return an accelerator's data sheet."""
    return {
        "name": part.name,
        "vendor": part.vendor,
        "memory_gib": gib(part.memory_bytes),
        "allocatable_gib": gib(part.allocatable_bytes or part.memory_bytes),
        "memory_gb_per_s": part.memory_bytes_per_s / GIGA,
        "dense_tflops": {name: getattr(part.peak, name) / TERA for name in _RATES if getattr(part.peak, name) > 0.0},
        "fp8_blocks": list(part.fp8_blocks),
        "fp4_blocks": list(part.fp4_blocks),
        "multiprocessors": part.multiprocessors,
        "peak_clock_mhz": part.peak_clock_hz / MEGA,
        "max_clock_mhz": part.max_clock_hz / MEGA,
        "tdp_w": part.tdp_w,
        "idle_w": part.idle_w,
        "slowdown_c": part.slowdown_c,
        "sources": list(part.sources),
    }


def cluster_to_json(cluster: Cluster) -> Json:
    """Return a cluster: totals, then its islands."""
    return {
        "name": cluster.name,
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "nics": sum(island.nodes * island.node.nics.count for island in cluster.islands),
        "islands": [_island(island) for island in cluster.islands],
        "inter_island_gb_per_s": cluster.inter_island_bytes_per_s / GIGA,
        "electricity_per_kwh": cluster.electricity_per_kwh,
        "pue": cluster.pue,
        "currency": cluster.currency,
        "sources": list(cluster.sources),
    }


def _island(island: Island) -> Json:
    node = island.node
    return {
        "node": node.name,
        "nodes": island.nodes,
        "gpus": island.gpus,
        "gpus_per_node": node.gpus,
        "accelerator": node.accelerator.name,
        "memory_gib_per_gpu": gib(node.accelerator.memory_bytes),
        "scale_up": _scale_up(node.scale_up),
        "nics": _nics(node),
        "fabric": [
            {"name": tier.name, "nodes": tier.nodes, "oversubscription": tier.oversubscription}
            for tier in island.fabric
        ],
        "cooling": node.cooling.kind.value,
        "price_per_node_hour": node.price_per_hour,
    }


def _scale_up(fabric: ScaleUp) -> Json:
    return {
        "kind": fabric.kind.value,
        "shape": fabric.shape.value,
        "domain_gpus": fabric.domain_gpus,
        "gb_per_s_per_gpu": fabric.bytes_per_s / GIGA,
        "latency_us": fabric.latency_s / MICRO,
    }


def _nics(node: NodeType) -> Json:
    return {
        "kind": node.nics.kind.value,
        "per_node": node.nics.count,
        "gbit_per_s": 8.0 * node.nics.bytes_per_s / GIGA,
        "latency_us": node.nics.latency_s / MICRO,
    }

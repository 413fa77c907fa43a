"""Power of whole nodes: what surrounds the accelerators, and what caps of node, rack and cluster leave for each.

``P_node = (sum(P_gpu) + P_host) (1 + fans)``: processors and adapters draw beside the accelerators, and air-cooled
nodes spend a share of all of it on fans. Constants: ``power.toml``, ``docs/power.md``.
"""

import math
from dataclasses import replace

from costmodels.power.accelerator import node_constants
from hardware.cluster import Cluster, CoolingKind, Island, NodeType
from hardware.errors import InputError


def host_w(node: NodeType) -> float:
    """Draw of processors, memory and adapters of a busy node [W], without accelerators and fans."""
    adapters_w = node.nics.count * node_constants().nic_w
    return max(node.host.idle_w, node.host.cpu_w) + adapters_w


def node_w(node: NodeType, gpus_w: float) -> float:
    """Draw of a node whose accelerators draw ``gpus_w`` together [W]."""
    return (gpus_w + host_w(node)) * (1.0 + _fan_share(node))


def gpu_share_w(node: NodeType, cap_w: float) -> float:
    """What a cap on a node leaves for each of its accelerators when all draw alike [W].

    Parameters
    ----------
    node : NodeType
        The node.
    cap_w : float
        Limit of the whole node [W].

    Returns
    -------
    float
        At least 0.0.
    """
    return max(cap_w / (1.0 + _fan_share(node)) - host_w(node), 0.0) / node.gpus


def gpu_limit_w(node: NodeType, job_cap_w: float) -> float:
    """Power limit of each accelerator of a node [W]: the lower of the job's and the node's, else the part's own.

    Parameters
    ----------
    node : NodeType
        Of :func:`capped_island` where caps of node, rack and cluster count.
    job_cap_w : float
        What the job is limited to [W]; 0.0: nothing.

    Returns
    -------
    float
        0.0 where no limit is known.
    """
    return min((cap for cap in (job_cap_w, node.gpu_power_cap_w) if cap > 0.0), default=node.accelerator.tdp_w)


def capped_island(cluster: Cluster, island: Island) -> Island:
    """Return an island whose accelerators keep the caps of node, rack and cluster.

    All accelerators of a training job are busy at the same time, so a cap is shared evenly; a cluster's cap is shared
    over its nodes.

    Parameters
    ----------
    cluster : Cluster
        States the cap of all nodes.
    island : Island
        One of its islands.

    Returns
    -------
    Island
        With the least limit as ``gpu_power_cap_w``; the island itself where no cap reaches below the part's own.

    Raises
    ------
    InputError
        A cap leaves less than the accelerators can be limited to.
    """
    node = island.node
    rack_nodes = max(min(node.cooling.rack_nodes or 1, island.nodes), 1)
    caps = (
        ("power_cap_w of the node", node.power_cap_w, 1),
        ("rack_power_cap_w", island.rack_power_cap_w, rack_nodes),
        ("power_cap_w of the cluster", cluster.power_cap_w, cluster.nodes),
    )
    found = [(gpu_share_w(node, cap_w / nodes), name, cap_w, nodes) for name, cap_w, nodes in caps if cap_w > 0.0]
    if not found:
        return island
    share_w, name, cap_w, nodes = min(found)
    lowest = node.accelerator.min_power_limit_w or node.accelerator.idle_w
    if share_w < max(lowest, 1.0):
        over = f"{cap_w:.0f} W for {nodes:,} nodes, {cap_w / nodes:.0f}" if nodes > 1 else f"{cap_w:.0f}"
        least_w = math.ceil(nodes * node_w(node, lowest * node.gpus))
        all_nodes = f" for the {nodes:,} nodes" if nodes > 1 else ""
        raise InputError(
            f"{name}: {over} W a node leaves {share_w:.0f} W for each of {node.gpus} {node.accelerator.name}",
            allowed=f"at least {least_w} W{all_nodes}: each needs {lowest:.0f} W",
        )
    own_w = node.gpu_power_cap_w or node.accelerator.tdp_w
    if own_w and share_w >= own_w:
        return island
    return replace(island, node=replace(node, gpu_power_cap_w=share_w))


def _fan_share(node: NodeType) -> float:
    return node_constants().fan_share if node.cooling.kind is CoolingKind.AIR else 0.0

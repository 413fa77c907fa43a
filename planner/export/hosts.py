"""The machines of a launch and who runs where: hosts, their GPUs, and the coordinates of every rank."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from costmodels.layout import Layout, RankOrder
from hardware.cluster import Cluster
from hardware.errors import InputError
from planner.plan_report import RankPlace
from planner.request import Launcher

_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[\w.-]{0,252}[A-Za-z0-9_])?|[0-9A-Fa-f:]{2,45}(?:%[\w.-]{1,16})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Site:
    """The machines of a launch: hosts in order, with equally many GPUs in use on each."""

    hosts: tuple[str, ...]
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """GPUs of all hosts."""
        return len(self.hosts) * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One host: its node rank, its ranks, and the physical GPUs that they use, in local-rank order."""

    node_rank: int
    host: str
    ranks: tuple[int, ...]
    gpus: tuple[int, ...]

    @property
    def visible_devices(self) -> str:
        """Value of ``CUDA_VISIBLE_DEVICES``."""
        return ",".join(str(gpu) for gpu in self.gpus)


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank: where it runs and its coordinates in the dense and the expert grid."""

    rank: int
    host: str
    local_rank: int
    gpu: int
    pp: int
    dp: int
    cp: int
    tp: int
    edp: int
    ep: int
    etp: int


def site_of(cluster: Cluster, gpus: int, hosts: Sequence[str] = (), islands: Collection[int] = ()) -> Site:
    """Choose the hosts of a cluster that a job of ``gpus`` GPUs runs on.

    Parameters
    ----------
    cluster : Cluster
        The islands that run the job must have nodes of one size.
    gpus : int
        GPUs of the job: less than a node, or whole nodes.
    hosts : sequence of str, optional
        Names of the hosts; ``node0``, ``node1``, ... by default.
    islands : collection of int, optional
        Indices of the islands that the job is planned on; all where none are named, or where they have too few GPUs.

    Returns
    -------
    Site
        The first hosts that suffice.

    Raises
    ------
    InputError
        Nodes differ in size, the job does not fill whole nodes, or there are too few hosts.
    """
    used = [index for index in range(len(cluster.islands)) if index in islands]
    if sum(cluster.islands[index].gpus for index in used) < gpus:
        used = list(range(len(cluster.islands)))
    sizes = {cluster.islands[index].node.gpus for index in used}
    if len(sizes) > 1:
        raise InputError(
            f"the plan runs on nodes of {sorted(sizes)} GPUs of {cluster.name}, launchers start equally many on each",
            allowed="islands with nodes of one size, or a plan for one island",
        )
    per_node = min(gpus, sizes.pop())
    if gpus % per_node:
        raise InputError(f"{gpus} GPUs do not fill nodes of {per_node}", allowed=f"multiples of {per_node}")
    _check_hosts(hosts)
    ends = list(accumulate(island.nodes for island in cluster.islands))
    numbers = [number for index in used for number in range(ends[index] - cluster.islands[index].nodes, ends[index])]
    whole = len(hosts) == cluster.nodes  # names of every node of the cluster
    names = tuple(hosts[number] for number in numbers) if whole else tuple(hosts)
    names = names or tuple(f"node{number}" for number in numbers)
    if gpus // per_node > len(names):
        raise InputError(f"{gpus} GPUs need {gpus // per_node} hosts, {len(names)} are given", allowed="more hosts")
    return Site(hosts=names[: gpus // per_node], gpus_per_node=per_node)


def _check_hosts(hosts: Sequence[str]) -> None:
    """Refuse what is no host name or address: the names go into tables and into what a shell reads."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise InputError(
                f"--hosts: {host!r} is no host name",
                allowed="letters, digits, dots, dashes and underscores, or an IP address; names apart by commas",
            )
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise InputError(f"--hosts names {', '.join(twice)} twice", allowed="each host once")


def node_rows(
    site: Site, placement: Sequence[RankPlace] = (), launcher: Launcher = Launcher.TORCHRUN
) -> tuple[NodeRow, ...]:
    """Hosts in node-rank order with the GPUs of their local ranks.

    torchrun gives consecutive ranks to a node, so a placement may permute nodes, and GPUs inside a node; launchers that
    take a list of hosts may have any ranks on a node.

    Parameters
    ----------
    site : Site
        The machines.
    placement : sequence of RankPlace, optional
        Where each rank runs; empty: rank r on GPU ``r % g`` of host ``r // g``.
    launcher : Launcher
        What starts the processes.

    Returns
    -------
    tuple of NodeRow
        In node-rank order, which is that of their lowest ranks; local ranks are in the order of ranks.

    Raises
    ------
    InputError
        A rank is missing, a GPU is used twice, a node has more or fewer ranks than others, or its launcher keeps
        consecutive ranks together and they are not.
    """
    per_node = site.gpus_per_node
    if not placement:
        placement = [
            RankPlace(rank=rank, host=site.hosts[rank // per_node], gpu=rank % per_node) for rank in range(site.gpus)
        ]
    places = {place.rank: place for place in placement}
    if sorted(places) != list(range(site.gpus)) or len(places) != len(placement):
        raise InputError(
            f"the placement names {len(places)} ranks", allowed=f"each rank from 0 to {site.gpus - 1} once"
        )
    if len({(place.host, place.gpu) for place in placement}) != len(placement):
        raise InputError("the placement uses a GPU twice", allowed="each rank on a GPU of its own")
    by_host: dict[str, list[RankPlace]] = {}
    for rank in range(site.gpus):
        by_host.setdefault(places[rank].host, []).append(places[rank])
    if not launcher.scatters:
        _check_consecutive(places, per_node)
    uneven = next((host for host, ranks in by_host.items() if len(ranks) != per_node), None)
    if uneven:
        raise InputError(f"the placement has {len(by_host[uneven])} ranks on {uneven}", allowed=f"{per_node} on a host")
    return tuple(
        NodeRow(
            node_rank=index,
            host=host,
            ranks=tuple(place.rank for place in ranks),
            gpus=tuple(place.gpu for place in ranks),
        )
        for index, (host, ranks) in enumerate(by_host.items())
    )


def _check_consecutive(places: Mapping[int, RankPlace], per_node: int) -> None:
    """Refuse a placement that tears ranks apart which torchrun starts on one node."""
    for first in range(0, len(places), per_node):
        last = first + per_node - 1
        hosts = sorted({places[rank].host for rank in range(first, last + 1)})
        if len(hosts) > 1:
            raise InputError(
                f"ranks {first} to {last} are placed on hosts {', '.join(hosts)}, torchrun keeps them on one",
                allowed="a placement that permutes nodes, and GPUs inside nodes, or --launcher srun or mpirun",
            )


def rank_rows(layout: Layout, nodes: Sequence[NodeRow]) -> tuple[RankRow, ...]:
    """Coordinates of every rank: tp fastest, then cp, dp, pp; experts etp, ep, edp, pp; or with pp before dp.

    Parameters
    ----------
    layout : Layout
        One grid for the whole model.
    nodes : sequence of NodeRow
        See :func:`node_rows`.

    Returns
    -------
    tuple of RankRow
        In rank order.

    References
    ----------
    Megatron-LM ``megatron/core/parallel_state.py``, orders tp-cp-ep-dp-pp and tp-cp-ep-pp-dp.
    """
    grid = layout.first
    seats = {rank: (node, local) for node in nodes for local, rank in enumerate(node.ranks)}
    block = grid.tp * grid.cp if layout.rank_order is RankOrder.PP_INSIDE else grid.gpus
    rows = []
    for rank in range(layout.gpus):
        pp = rank // block % layout.pp
        inside = rank // (block * layout.pp) * block + rank % block
        node, local = seats[rank]
        rows.append(
            RankRow(
                rank=rank,
                host=node.host,
                local_rank=local,
                gpu=node.gpus[local],
                pp=pp,
                dp=inside // (grid.tp * grid.cp),
                cp=inside // grid.tp % grid.cp,
                tp=inside % grid.tp,
                edp=inside // (grid.etp * grid.ep),
                ep=inside // grid.etp % grid.ep,
                etp=inside % grid.etp,
            )
        )
    return tuple(rows)

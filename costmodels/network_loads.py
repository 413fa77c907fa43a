"""What collectives of a whole layout load the links of the topology graph with, where the tiers are only a summary.

Prices give every rank its share of each tier, and every group the fewest members and the most domains that any group of
its axis has. That is exact where all nodes are alike to each other. Where an allocation has unlike parts of the
switches, where nodes or ranks are in another order, or where nodes stay idle, groups load links unevenly: this module
puts the flows of all groups of an axis on the graph of :mod:`hardware.topology`. They run at the same time, so all move
on at one pace until a link is full (max-min fairness); the groups over the fullest link are the slowest, and the others
wait for them. The result is one number for each axis and pattern: the pace over that which the tiers say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.collectives.route import route_of
from costmodels.layout import Layout
from costmodels.mesh import Axis, PlacedGroup, group_of, place
from costmodels.pricing import Pricing, in_rank_order
from costmodels.table import Ints, StrategyTable, table_of
from hardware.adapters import adapters_of
from hardware.cluster import Cluster, Island
from hardware.sharing import binding_link
from hardware.tiers import Pace, RankBlocks
from hardware.topology import Vertex, cluster_graph

MOST_GPUS: Final = 4_096
"""Accelerators of the largest layout whose flows are followed one by one."""
Way = tuple[str, Vertex]
"""A link, by its lower end, in one direction: up or down."""
WORTH: Final = 0.02
"""Differences of pace below this are left to the tiers."""


class Pattern(StrEnum):
    """How the members of a group send to each other."""

    RING = "ring"
    PAIRS = "pairs"
    NEIGHBOUR = "neighbour"


PATTERNS: Final = MappingProxyType(
    {
        Axis.TP: (Pattern.RING,),
        Axis.CP: (Pattern.RING, Pattern.PAIRS, Pattern.NEIGHBOUR),
        Axis.DP_CP: (Pattern.RING,),
        Axis.SHARD: (Pattern.RING,),
        Axis.REPLICA: (Pattern.RING,),
        Axis.ETP: (Pattern.RING,),
        Axis.EP: (Pattern.RING, Pattern.PAIRS),
        Axis.ETP_EP: (Pattern.RING, Pattern.PAIRS),
        Axis.EDP: (Pattern.RING,),
        Axis.EXPERT_SHARD: (Pattern.RING,),
        Axis.EXPERT_REPLICA: (Pattern.RING,),
        Axis.PP: (Pattern.NEIGHBOUR,),
    }
)


@dataclass(frozen=True, kw_only=True)
class FlowSpeed:
    """Pace of the slowest groups of an axis on the graph over the pace that tiers say, and the link that binds them.

    ``loads`` is how much of each link that binds any exchange, or any two together, it uses at this pace.
    """

    axis: Axis
    pattern: Pattern
    speed: float
    link: str
    loads: tuple[float, ...] = ()


def on_graph(pricing: Pricing, layout: Layout) -> Pricing:
    """Return a pricing that knows the paces of a layout's exchanges on the topology graph.

    Parameters
    ----------
    pricing : Pricing
        Of the layout's island, with the nodes of its blocks of ranks.
    layout : Layout
        All on this island.

    Returns
    -------
    Pricing
        The same where :func:`uneven_flows` finds none.
    """
    found = _followed_flows(pricing, layout)
    if all(_agrees(one) for one in found):
        return pricing
    paces = (
        Pace(axis=one.axis, pattern=one.pattern, speed=1.0 if _agrees(one) else one.speed, loads=one.loads)
        for one in found
    )
    return replace(pricing, speeds=tuple(paces))


def _agrees(flow: FlowSpeed) -> bool:
    """Whether the tiers say as much as the graph."""
    return abs(flow.speed - 1.0) <= WORTH


def seated(pricing: Pricing, layout: Layout, order: tuple[int, ...]) -> Pricing:
    """Return a pricing in which any rank can have any place: its groups lie, and its flows run, where they really are.

    Parameters
    ----------
    pricing : Pricing
        Of the layout's island, with the nodes of its blocks of places.
    layout : Layout
        All on this island, its ranks counted as in the order ``tp-cp-ep-dp-pp``.
    order : tuple of int
        Rank of every place.
    """
    place_of_rank = np.argsort(np.array(order))
    per_node = pricing.island.node.gpus
    sizes = [size for size in range(per_node, 0, -1) if per_node % size == 0 and len(order) % size == 0]
    unit = next(size for size in sizes if _moves_whole(place_of_rank.reshape(-1, size)))
    places = tuple((place_of_rank[::unit] // unit).tolist())
    return on_graph(replace(pricing, blocks=RankBlocks(ranks=unit, places=places), speeds=()), layout)


def _moves_whole(places: Ints) -> bool:
    """Whether each row of places is one aligned run."""
    size = places.shape[1]
    return bool((places == places[:, :1] // size * size + np.arange(size)).all())


def uneven_flows(pricing: Pricing, layout: Layout) -> tuple[FlowSpeed, ...]:
    """Find the exchanges of a layout whose pace on the topology graph is not what the tiers say.

    Parameters
    ----------
    pricing, layout
        As in :func:`on_graph`.

    Returns
    -------
    tuple of FlowSpeed
        Those that differ by more than :data:`WORTH`. Empty where the tiers say all there is: alike nodes in order, none
        idle; and for layouts of unlike grids or more than :data:`MOST_GPUS` accelerators.
    """
    return tuple(one for one in _followed_flows(pricing, layout) if not _agrees(one))


def _followed_flows(pricing: Pricing, layout: Layout) -> tuple[FlowSpeed, ...]:
    """Flows of a layout on the graph, where it can say more than the tiers."""
    strategies = {
        replace(run.strategy, recompute=layout.first.recompute) for stage in layout.stages for run in stage.strategies
    }
    placed = in_rank_order((pricing,), layout)[0]
    unlike = any(tier.domain_of for tier in placed.tiers[1:]) or layout.gpus < pricing.island.gpus
    uneven = unlike or pricing.blocks is not None
    if not uneven or len(placed.tiers) < 2 or len(strategies) > 1 or layout.gpus > MOST_GPUS:
        return ()
    return flow_speeds(placed, layout)


def flow_speeds(pricing: Pricing, layout: Layout) -> tuple[FlowSpeed, ...]:
    """Put the exchanges of a layout on the topology graph.

    Parameters
    ----------
    pricing : Pricing
        Of the layout's island, with the places of nodes and blocks of ranks.
    layout : Layout
        One grid, all on this island.

    Returns
    -------
    tuple of FlowSpeed
        For every axis and pattern whose groups leave their domains over the network.
    """
    links = _links_of(pricing.island)
    table = table_of([layout.first], pp=[layout.pp], micro_batch=[layout.micro_batch])
    places = rank_places(pricing, layout)
    found: list[FlowSpeed] = []
    times: list[dict[Way, float]] = []
    for axis, patterns in PATTERNS.items():
        placed = place(group_of(axis, table), pricing.tiers)
        if int(placed.size[0]) == 1 or int(placed.domains[0, 0]) == 1:
            continue
        members = _members(axis, table, len(places))
        for pattern in patterns:
            around = axis is not Axis.PP or layout.vpp > 1
            loads = Loads(links)
            _LOADERS[pattern](loads, places[members], around)
            tiers_s = _tiers_s(pattern, placed, pricing)
            busy_s = loads.seconds()
            fullest = _fullest(busy_s)
            if fullest is not None and tiers_s > 0.0 and busy_s[fullest] > 0.0:
                speed, link = tiers_s / busy_s[fullest], links.name(fullest[1])
                found.append(FlowSpeed(axis=axis, pattern=pattern, speed=speed, link=link))
                times.append({way: time / busy_s[fullest] for way, time in busy_s.items()})
    chosen = _binding(times)
    return tuple(
        replace(one, loads=tuple(own.get(way, 0.0) for way in chosen)) for one, own in zip(found, times, strict=True)
    )


def _fullest(seconds: Mapping[Way, float]) -> Way | None:
    return max(seconds, key=lambda way: (seconds[way], way[1][0], way[1][1:], way[0]), default=None)


def _binding(loads: Sequence[Mapping[Way, float]]) -> tuple[Way, ...]:
    """Links that bind any flow alone (each uses its fullest whole) or any two together, in an order of their own."""
    chosen: dict[Way, None] = {}
    for number, first in enumerate(loads):
        for second in loads[number:]:
            both = {way: load + second.get(way, 0.0) for way, load in first.items()}
            if (way := _fullest(both if second is not first else first)) is not None:
                chosen[way] = None
    return tuple(chosen)


def rank_places(pricing: Pricing, layout: Layout) -> Ints:
    """Node and accelerator of every rank in the order in which groups count them, shape (ranks, 2)."""
    ranks, per_node = np.arange(layout.gpus), pricing.island.node.gpus
    blocks = pricing.blocks
    if blocks is not None:
        ranks = np.array(blocks.places)[ranks // blocks.ranks] * blocks.ranks + ranks % blocks.ranks
    nodes = np.array(pricing.nodes or range(pricing.island.nodes))
    return np.stack([nodes[ranks // per_node], ranks % per_node], axis=1)


def _members(axis: Axis, table: StrategyTable, ranks: int) -> Ints:
    """Ranks of every group of an axis, shape (groups, members)."""
    group = group_of(axis, table)
    size, stride = int(group.size[0]), int(group.stride[0])
    found: Ints = np.arange(ranks).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Links:
    """The scale-out network of an island as a tree: adapters below leaf switches below their spines.

    ``parent`` leads from an adapter or a switch to the one that it hangs on, ``bytes_per_s`` is what this link carries
    each way; ``adapters`` lists those of every accelerator of a node.
    """

    island: Island
    parent: Mapping[Vertex, Vertex]
    bytes_per_s: Mapping[Vertex, float]
    adapters: tuple[tuple[int, ...], ...]

    def domain(self, place: Ints) -> int:
        """Scale-up domain (at least a node) of a node's accelerator."""
        return self.island.domain_of(int(place[0]))

    def above(self, vertex: Vertex) -> Iterator[Vertex]:
        """Vertex and all that it hangs on, the root last."""
        yield vertex
        while vertex in self.parent:
            vertex = self.parent[vertex]
            yield vertex

    def name(self, vertex: Vertex) -> str:
        """Name a link by its lower end."""
        if vertex[0] == "nic":
            return binding_link(self.island.node)
        if vertex[0] == "gpu":
            return "PCIe links of the accelerators towards the NICs"
        _, _, level, group = vertex
        if vertex[0] == "rail":
            return f"rail {group} of leaf {level}"
        if level >= len(self.island.fabric):
            return "uplinks of the network"
        tier = self.island.fabric[level]
        nodes = sum(tier.group_of(node) == group for node in range(self.island.nodes))
        return f"uplinks of {tier.name} {group} ({nodes} {'node' if nodes == 1 else 'nodes'})"


@lru_cache(maxsize=8)
def _links_of(island: Island) -> Links:
    graph = cluster_graph(Cluster(name="island", islands=(island,)))
    parent: dict[Vertex, Vertex] = {}
    rates: dict[Vertex, float] = {}
    for vertex in graph:
        height = _height(vertex)
        upwards = [
            other for other in graph.successors(vertex) if height is not None and (_height(other) or -1) > height
        ]
        if upwards:
            parent[vertex] = min(upwards, key=lambda other: _height(other) or 0)
            rates[vertex] = float(graph.edges[vertex, parent[vertex]].get("bytes_per_s", np.inf))
    return Links(island=island, parent=parent, bytes_per_s=rates, adapters=adapters_of(island.node))


def _height(vertex: Vertex) -> int | None:
    """Height in the tree of the network; None for what is inside a node."""
    fixed = {"nic": 0, "rail": 1}
    return fixed.get(vertex[0], 2 + vertex[2] if vertex[0] == "tier" else None)


class Loads:
    """Bytes over every link of an island, each way, for one unit that every group of an axis exchanges."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.up: dict[Vertex, float] = {}
        self.down: dict[Vertex, float] = {}

    def send(self, source: Ints, target: Ints, size: float) -> None:
        """Add a flow between accelerators of two nodes, spread over their adapters.

        Parameters
        ----------
        source, target : array of int, shape (2,)
            Node and accelerator in it.
        size : float
            Bytes for one unit that the group exchanges.
        """
        self.pass_on([source], [target], size)

    def pass_on(self, sources: list[Ints], targets: list[Ints], size: float) -> None:
        """Add a flow between members of a group in two domains, spread over all adapters of these members.

        Parameters
        ----------
        sources, targets : list of arrays of int, shape (2,)
            Nodes and accelerators in them.
        size : float
            Bytes of all of them together for one unit that the group exchanges.
        """
        ends = [self._nics(places) for places in (sources, targets)]
        parts = max(map(len, ends))
        for part in range(parts):
            above = [list(self.links.above(nics[part * len(nics) // parts])) for nics in ends]
            shared = set(above[0]) & set(above[1])
            self._add(self.up, [vertex for vertex in above[0] if vertex not in shared], size / parts)
            self._add(self.down, [vertex for vertex in above[1] if vertex not in shared], size / parts)
        for ways, places in ((self.up, sources), (self.down, targets)):
            self._add(ways, [("gpu", 0, *map(int, place)) for place in places], size / len(places))

    def _nics(self, places: list[Ints]) -> list[Vertex]:
        """Adapters of accelerators, each once."""
        found = (("nic", 0, int(node), nic) for node, gpu in places for nic in self.links.adapters[int(gpu)])
        return list(dict.fromkeys(found))

    def spread(self, members: Ints, inside: Ints) -> None:
        """Add an all-to-all: each of n members sends 1 / n to every one outside its own domain; ``inside`` (n,)."""
        size = len(members)
        below: dict[Vertex, int] = {}
        for member, together in zip(members, inside, strict=True):
            own = self.links.adapters[int(member[1])]
            outside = (size - int(together)) / size
            for ways in (self.up, self.down):
                self._add(ways, [("nic", 0, int(member[0]), nic) for nic in own], outside / len(own))
                self._add(ways, [("gpu", 0, *map(int, member))], outside)
            for vertex in self.links.above(("nic", 0, int(member[0]), own[0])):
                if vertex[0] == "tier":
                    below[vertex] = below.get(vertex, 0) + 1
        for vertex, count in below.items():
            for ways in (self.up, self.down):
                self._add(ways, [vertex], count * (size - count) / size)

    @staticmethod
    def _add(ways: dict[Vertex, float], vertices: list[Vertex], size: float) -> None:
        for vertex in vertices:
            ways[vertex] = ways.get(vertex, 0.0) + size

    def seconds(self) -> dict[Way, float]:
        """Seconds until each link has carried its unit loads, each way."""
        own = self.links.island.node.nics.gpu_bytes_per_s or np.inf
        return {
            (name, vertex): size / (own if vertex[0] == "gpu" else self.links.bytes_per_s.get(vertex, np.inf))
            for name, ways in (("down", self.down), ("up", self.up))
            for vertex, size in ways.items()
        }


def _ring(loads: Loads, groups: Ints, around: bool) -> None:
    """Each domain passes (n - 1) / n on to the next one, over all adapters of its members."""
    del around
    for members in groups:
        size = (len(members) - 1) / len(members)
        domains: dict[int, list[Ints]] = {}
        for member in members:
            domains.setdefault(loads.links.domain(member), []).append(member)
        rounds = list(domains.values())
        for here, there in pairwise([*rounds, rounds[0]]):
            if here is not there:
                loads.pass_on(here, there, size)


def _pairs(loads: Loads, groups: Ints, around: bool) -> None:
    del around
    for members in groups:
        domains = [loads.links.domain(member) for member in members]
        loads.spread(members, np.array([domains.count(own) for own in domains]))


def _neighbour(loads: Loads, groups: Ints, around: bool) -> None:
    for members in groups:
        for source, target in pairwise([*members, members[0]] if around else members):
            if loads.links.domain(source) != loads.links.domain(target):
                loads.send(source, target, 1.0)


_LOADERS: Final = MappingProxyType({Pattern.RING: _ring, Pattern.PAIRS: _pairs, Pattern.NEIGHBOUR: _neighbour})


def _tiers_s(pattern: Pattern, placed: PlacedGroup, pricing: Pricing) -> float:
    """Seconds that the tiers of the network say for the same unit."""
    tiers, network = pricing.tiers, pricing.constants.network
    size, times = int(placed.size[0]), [0.0]
    crossings = route_of(placed, tiers, network).crossings
    for index, crossing in enumerate(crossings):
        inside = int(placed.members[0, index])
        if crossing.tier.kind is not pricing.island.node.nics.kind or int(placed.domains[0, index]) == 1:
            continue
        times.append(
            {
                Pattern.RING: (size - 1) / size / (inside * crossing.tier.bytes_per_s * float(crossing.even[0])),
                Pattern.PAIRS: (size - inside) / size / crossing.pairs_bytes_per_s,
                Pattern.NEIGHBOUR: network.link(crossing.tier).ring / float(crossing.neighbour_bytes_per_s[0]),
            }[pattern]
        )
    return max(times)

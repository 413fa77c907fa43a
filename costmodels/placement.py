"""Where ranks run: which node takes a block of consecutive ranks, and which of its accelerators each local rank."""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from costmodels.layout import Layout, RankOrder
from costmodels.table import Ints
from hardware.cluster import Island

UNUSED = -1
"""Stage of an accelerator that no rank uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Ranks on the accelerators of one island, equally many on each node.

    Attributes
    ----------
    nodes : tuple of int
        Node of every block: block b holds the places from ``b g`` on, g the accelerators of a node.
    gpus : tuple of tuple of int
        Per block, the accelerator of every place.
    order : tuple of int
        Rank of every place; empty: place r is that of rank r, as launchers have it that start consecutive ranks on a
        node.
    """

    nodes: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...]
    order: tuple[int, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether rank r runs on accelerator ``r % g`` of node ``r // g``."""
        in_order = not self.order and self.nodes == tuple(range(len(self.nodes)))
        return in_order and all(gpus == tuple(range(len(gpus))) for gpus in self.gpus)

    @property
    def slots(self) -> tuple[tuple[int, int], ...]:
        """Node and accelerator of every rank."""
        places = [(node, gpu) for node, gpus in zip(self.nodes, self.gpus, strict=True) for gpu in gpus]
        if not self.order:
            return tuple(places)
        return tuple(slot for _, slot in sorted(zip(self.order, places, strict=True)))


def identity(ranks: int, per_node: int) -> Placement:
    """Return the placement in order of ``ranks`` ranks on nodes of ``per_node`` accelerators."""
    blocks = -(-ranks // per_node)
    sizes = [min(per_node, ranks - block * per_node) for block in range(blocks)]
    return Placement(nodes=tuple(range(blocks)), gpus=tuple(tuple(range(size)) for size in sizes))


def ranks_of_stages(layout: Layout, island: int) -> Ints:
    """Stage of every rank on an island, by the layout's rank order."""
    if layout.rank_order is RankOrder.PP_INSIDE:
        return np.arange(layout.gpus, dtype=np.int64) // (layout.first.tp * layout.first.cp) % layout.pp
    stages = [number for number, stage in enumerate(layout.stages) if stage.island == island]
    return np.repeat(np.array(stages, dtype=np.int64), [layout.stages[number].gpus for number in stages])


def first_rank(layout: Layout, stage: int) -> int:
    """Lowest rank of a stage, by the layout's rank order."""
    if layout.rank_order is RankOrder.PP_INSIDE:
        return stage * layout.first.tp * layout.first.cp
    return sum(before.gpus for before in layout.stages[:stage])


def stages_of_blocks(stage_of_rank: Ints, per_node: int) -> list[tuple[int, ...]]:
    """Stages of the local ranks of every block."""
    return [tuple(stage_of_rank[first : first + per_node].tolist()) for first in range(0, len(stage_of_rank), per_node)]


def stage_map(placement: Placement, stage_of_place: Ints, island: Island) -> Ints:
    """Stage of every accelerator of the nodes of an island.

    Parameters
    ----------
    placement : Placement
        Of the ranks.
    stage_of_place : array of int
        Stage of the rank of every place, shape (ranks,).
    island : Island
        The nodes.

    Returns
    -------
    array of int, shape (nodes, accelerators)
        :data:`UNUSED` where no rank runs.
    """
    found = np.full((island.nodes, island.node.gpus), UNUSED, dtype=np.int64)
    nodes = np.repeat(placement.nodes, [len(gpus) for gpus in placement.gpus])
    gpus = np.fromiter(chain.from_iterable(placement.gpus), dtype=np.int64, count=len(stage_of_place))
    found[nodes, gpus] = stage_of_place
    return found

"""What stays fixed while candidates vary: model, job, island and the constants of every cost model."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from costmodels.collectives import NetworkConstants, default_network
from costmodels.compute import Efficiency, default_efficiency
from costmodels.job import TrainingJob
from costmodels.layout import Layout, RankOrder
from costmodels.memory import MemoryConstants, default_memory
from costmodels.overlap import Overlap, default_overlap
from costmodels.power.node import gpu_limit_w
from costmodels.workload.model import ModelSpec
from hardware.cluster import Accelerator, Island
from hardware.tiers import Pace, RankBlocks, Tier, island_tiers, tiers_of_blocks


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Every fitted or assumed number of the cost models, by room."""

    efficiency: Efficiency = field(default_factory=default_efficiency)
    network: NetworkConstants = field(default_factory=default_network)
    memory: MemoryConstants = field(default_factory=default_memory)
    overlap: Overlap = field(default_factory=default_overlap)


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """The fixed side of a price.

    ``clock`` bounds the clock over the highest one (a slow or hot device); a power limit may bound it more.
    ``nodes`` is the node of every block of as many ranks as a node has accelerators; empty: in order. ``blocks`` says
    where the ranks of a layout lie that are numbered in another order than its groups; None: in order. ``speeds`` are
    those of :class:`hardware.tiers.Tier`, of one layout.
    """

    model: ModelSpec
    job: TrainingJob
    island: Island
    constants: Constants = field(default_factory=Constants)
    clock: float = 1.0
    nodes: tuple[int, ...] = ()
    blocks: RankBlocks | None = None
    speeds: tuple[Pace, ...] = ()

    @property
    def accelerator(self) -> Accelerator:
        """The island's accelerator."""
        return self.island.node.accelerator

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The island's bandwidth hierarchy."""
        tiers = island_tiers(self.island, self.nodes)
        tiers = tiers_of_blocks(tiers, self.blocks) if self.blocks else tiers
        return (*tiers[:-1], replace(tiers[-1], speeds=self.speeds)) if self.speeds else tiers

    @property
    def power_limit_w(self) -> float:
        """Power limit per accelerator: the lower of the job's and the node's, else the part's own; 0.0: unknown."""
        return gpu_limit_w(self.island.node, self.job.power_cap_w)


def rank_blocks(layout: Layout) -> RankBlocks | None:
    """Return where blocks of ``tp x cp`` ranks lie that are counted as in the order ``tp-cp-ep-dp-pp``.

    Parameters
    ----------
    layout : Layout
        One grid, on one island, unless its ranks are in that order.

    Returns
    -------
    RankBlocks or None
        None for ranks in that order. Under another one the blocks change places, and every group is where its members
        are.
    """
    if layout.rank_order is RankOrder.DP_INSIDE:
        return None
    first = layout.first
    places = tuple(replica * layout.pp + stage for stage in range(layout.pp) for replica in range(first.dp))
    return RankBlocks(ranks=first.tp * first.cp, places=places)


def layout_tiers(island: Island, layout: Layout) -> tuple[Tier, ...]:
    """Tiers of an island as the ranks of a layout see them, on nodes in order."""
    blocks = rank_blocks(layout)
    return tiers_of_blocks(island_tiers(island), blocks) if blocks else island_tiers(island)


def in_rank_order(pricings: Sequence[Pricing], layout: Layout) -> tuple[Pricing, ...]:
    """Return pricings, one per island, that know in which order the ranks of a layout are numbered."""
    blocks = rank_blocks(layout)
    return tuple(replace(pricing, blocks=blocks) for pricing in pricings) if blocks else tuple(pricings)

"""What stays fixed while candidates vary: model, job, island and the constants of every cost model."""

from dataclasses import dataclass, field

from costmodels.collectives import NetworkConstants, default_network
from costmodels.compute import Efficiency, default_efficiency
from costmodels.job import TrainingJob
from costmodels.memory import MemoryConstants, default_memory
from costmodels.overlap import Overlap, default_overlap
from costmodels.workload.model import ModelSpec
from hardware.cluster import Accelerator, Island
from hardware.tiers import Tier, island_tiers


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
    """

    model: ModelSpec
    job: TrainingJob
    island: Island
    constants: Constants = field(default_factory=Constants)
    clock: float = 1.0
    nodes: tuple[int, ...] = ()

    @property
    def accelerator(self) -> Accelerator:
        """The island's accelerator."""
        return self.island.node.accelerator

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The island's bandwidth hierarchy."""
        return island_tiers(self.island, self.nodes)

    @property
    def power_limit_w(self) -> float:
        """Power limit per accelerator: the lower of the job's and the node's, else the part's own; 0.0: unknown."""
        caps = [cap for cap in (self.job.power_cap_w, self.island.node.gpu_power_cap_w) if cap > 0.0]
        return min(caps, default=self.accelerator.tdp_w)

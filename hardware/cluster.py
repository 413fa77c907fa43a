"""The machine as frozen values: accelerators, fabrics, nodes, islands and clusters.

All quantities are SI (bytes, bytes per second and direction, seconds, watts, degrees Celsius, hertz);
catalogue files are converted once, in :mod:`hardware.catalog`.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate


class LinkKind(StrEnum):
    """What a link is made of; decides its protocol overhead and which in-network features exist."""

    NVLINK = "nvlink"
    XGMI = "xgmi"
    PCIE = "pcie"
    ICI = "ici"
    UALINK = "ualink"
    XE_LINK = "xe-link"
    NEURONLINK = "neuronlink"
    HCCS = "hccs"  # and the unified bus of later Ascend machines
    INFINIBAND = "infiniband"
    ROCE = "roce"
    ULTRA_ETHERNET = "ultra-ethernet"
    EFA = "efa"
    SLINGSHOT = "slingshot"
    ETHERNET = "ethernet"


class FabricShape(StrEnum):
    """How the accelerators of one scale-up domain are joined."""

    SWITCH = "switch"  # any pair at full rate (NVSwitch)
    MESH = "mesh"  # every pair has a link of its own (MI300X, Gaudi)
    CUBE_MESH = "cube-mesh"  # some pairs have links, listed in ScaleUp.links (DGX-1, MI250X nodes)
    TORUS = "torus"  # TPU pods
    TREE = "tree"  # PCIe switches below host bridges


@dataclass(frozen=True, kw_only=True)
class PeakRates:
    """Dense peak arithmetic rates in FLOP/s per accelerator; 0.0 where the hardware lacks the type.

    ``vector`` is the fp32 rate outside the matrix units.
    """

    fp32: float = 0.0
    tf32: float = 0.0
    fp16: float = 0.0
    bf16: float = 0.0
    fp8: float = 0.0
    fp4: float = 0.0
    vector: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One schedulable device (a GPU, a GCD of a two-die part, a TPU chip).

    ``peak_clock_hz`` is the clock at which ``peak`` is quoted; ``max_clock_hz`` the highest the part can run.
    ``memory_bytes`` is the total that the driver reports, ``allocatable_bytes`` the total that the runtime offers to a
    process (``cudaMemGetInfo``); 0.0 where nobody published it: then it is ``memory_bytes``. ``fp8_blocks`` are the
    lengths of the blocks with a scale each that fp8 products take (32: MXFP8; 128) beside one scale for a tensor,
    ``fp4_blocks`` those of fp4 products (16: NVFP4; 32: MXFP4).
    Temperatures are those of the die; 0.0 where the vendor states none. ``constants_of`` names the part whose measured
    constants (rates of kernels, power and clock) hold for one that is described as like it; empty: its own name says.
    """

    name: str
    vendor: str
    peak: PeakRates
    memory_bytes: float
    memory_bytes_per_s: float
    fp8_blocks: tuple[int, ...] = ()
    fp4_blocks: tuple[int, ...] = ()
    allocatable_bytes: float = 0.0
    l2_bytes: float = 0.0
    multiprocessors: int = 0
    base_clock_hz: float = 0.0
    peak_clock_hz: float = 0.0
    max_clock_hz: float = 0.0
    tdp_w: float = 0.0
    idle_w: float = 0.0
    min_power_limit_w: float = 0.0
    max_power_limit_w: float = 0.0
    max_operating_c: float = 0.0
    slowdown_c: float = 0.0
    shutdown_c: float = 0.0
    constants_of: str = ""
    sources: tuple[str, ...] = ()

    @property
    def known_as(self) -> str:
        """The name under which tables of measured constants know it."""
        return self.constants_of or self.name


@dataclass(frozen=True, kw_only=True)
class ScaleUp:
    """The fast fabric that joins ``domain_gpus`` accelerators (possibly of several nodes).

    ``bytes_per_s`` is what one accelerator can send in total (in a tree: when all send), ``pair_bytes_per_s`` to one
    peer; the detour by way of other accelerators of a partial mesh or torus is not counted. ``links`` lists the
    links of a partial mesh as (GPU, GPU, count), each of ``pair_bytes_per_s`` per direction; ``axes`` the lengths of
    a torus.
    """

    kind: LinkKind
    shape: FabricShape
    domain_gpus: int
    bytes_per_s: float
    pair_bytes_per_s: float
    latency_s: float
    in_network_reduction: bool = False
    links: tuple[tuple[int, int, int], ...] = ()
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Nics:
    """The scale-out adapters of one node, all alike; ``count`` 0 means the node stands alone.

    ``gpu_bytes_per_s`` is what one accelerator can push towards the adapters (its PCIe link); 0.0: no limit of its own.
    """

    kind: LinkKind
    count: int
    bytes_per_s: float
    latency_s: float
    gpudirect: bool = True
    in_network_reduction: bool = False
    gpu_bytes_per_s: float = 0.0

    @property
    def node_bytes_per_s(self) -> float:
        """All adapters of the node together, one direction."""
        return self.count * self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Host:
    """What surrounds the accelerators of a node.

    ``numa`` and ``pcie_switches`` group the local GPU indices by socket and by the PCIe switch that they share with an
    adapter; empty where not known (then every GPU has a root port of its own). ``nearest_nics`` lists for every GPU the
    adapters, by number, that none is nearer than; empty where not known.
    """

    memory_bytes: float = 0.0
    pcie_bytes_per_s_per_gpu: float = 0.0
    numa: tuple[tuple[int, ...], ...] = ()
    pcie_switches: tuple[tuple[int, ...], ...] = ()
    nearest_nics: tuple[tuple[int, ...], ...] = ()
    idle_w: float = 0.0
    cpu_w: float = 0.0


class CoolingKind(StrEnum):
    """What carries the heat away."""

    AIR = "air"
    LIQUID = "liquid"


@dataclass(frozen=True, kw_only=True)
class Cooling:
    """Airflow of one node type: ``rows`` lists the local GPU indices from the coolest row to the hottest.

    ``resistance_c_per_w`` and ``coupling_c_per_w`` are 0.0 where the machine is not characterised; the
    thermal model then uses its default for the kind of cooling and says so. ``quadratic_c_per_w2`` adds the square of
    the draw: ``T + P R_ja + P^2 R_jc``. In racks of ``rack_nodes`` nodes, counted from the coolest place, each place
    adds ``rack_rise_c`` to the inlet.
    """

    kind: CoolingKind = CoolingKind.AIR
    rows: tuple[tuple[int, ...], ...] = ()
    inlet_c: float = 25.0
    resistance_c_per_w: float = 0.0
    coupling_c_per_w: float = 0.0
    quadratic_c_per_w2: float = 0.0
    rack_nodes: int = 0
    rack_rise_c: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """One kind of server.

    Where the scale-up domain is smaller than the node (NVLink bridges between pairs of PCIe cards),
    ``node_fabric`` is what joins the domains of a node.
    """

    name: str
    accelerator: Accelerator
    gpus: int
    scale_up: ScaleUp
    nics: Nics
    host: Host = field(default_factory=Host)
    cooling: Cooling = field(default_factory=Cooling)
    node_fabric: ScaleUp | None = None
    power_cap_w: float = 0.0  # of the whole node; 0.0 means none
    gpu_power_cap_w: float = 0.0  # of each accelerator; 0.0 means none
    price_per_hour: float = 0.0  # of the whole node, in the currency of the file
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FabricTier:
    """One switch tier of the scale-out network: ``nodes`` share a switch (group) of this tier.

    ``oversubscription`` is downlink over uplink capacity of the group (1.0: full bisection). The last tier of an
    island spans it whole and may state 0 nodes for "all". Where an allocation takes unlike parts of the groups,
    ``groups`` lists the nodes of each in the order of the nodes, and ``nodes`` is the largest. ``rails`` counts the
    switches of a group that each serve their own adapters of every node.
    """

    name: str
    nodes: int
    oversubscription: float = 1.0
    latency_s: float = 0.0  # added to the adapter's latency when a path climbs to this tier
    groups: tuple[int, ...] = ()
    rails: int = 1

    def group_of(self, node: int) -> int:
        """Return the group of a node."""
        if not self.groups:
            return node // self.nodes if self.nodes else 0
        return bisect_right(tuple(accumulate(self.groups)), node)


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """What is known of one accelerator beyond its like: measured under load, or stated by the user.

    ``node`` counts from 0 within the island, ``gpu`` within the node. ``clock_hz``, ``temperature_c`` and ``power_w``
    are 0.0 where not measured. ``speed`` is the share of the pace of a healthy device of its kind at the same clock:
    below 1.0 for a device that is slow for a reason that the clock does not show.
    """

    node: int
    gpu: int
    clock_hz: float = 0.0
    temperature_c: float = 0.0
    power_w: float = 0.0
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Island:
    """``nodes`` equal nodes behind one scale-out network; ``devices`` lists accelerators unlike the others.

    ``inlets_c`` states the inlet temperature of every node; empty: as the node's cooling has it.
    ``rack_power_cap_w`` limits the nodes of each rack (``cooling.rack_nodes`` of them) together; 0.0 means none.
    ``hosts`` names the nodes, where an allocation states them. ``domains`` lists the nodes of each scale-up domain, in
    the order of the nodes, where an allocation has unlike parts of them; empty: all are as large as the node type says.
    """

    node: NodeType
    nodes: int
    fabric: tuple[FabricTier, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    inlets_c: tuple[float, ...] = ()
    rack_power_cap_w: float = 0.0
    hosts: tuple[str, ...] = ()
    domains: tuple[int, ...] = ()

    @property
    def gpus(self) -> int:
        """Accelerators of the island."""
        return self.node.gpus * self.nodes

    def domain_of(self, node: int) -> int:
        """Return the scale-up domain of a node; a node that holds several counts as one."""
        if self.domains:
            return bisect_right(tuple(accumulate(self.domains)), node)
        return node * self.node.gpus // max(self.node.scale_up.domain_gpus, self.node.gpus)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Everything a job may run on; several islands when the machines differ.

    ``inter_island_bytes_per_s`` is what one node reaches in another island, one direction; 0.0 with one island.
    """

    name: str
    islands: tuple[Island, ...]
    inter_island_bytes_per_s: float = 0.0
    inter_island_latency_s: float = 0.0
    storage_bytes_per_s: float = 0.0
    power_cap_w: float = 0.0  # of all nodes together; 0.0 means none
    electricity_per_kwh: float = 0.0
    pue: float = 1.0
    currency: str = "USD"
    sources: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Accelerators of all islands."""
        return sum(island.gpus for island in self.islands)

    @property
    def nodes(self) -> int:
        """Nodes of all islands."""
        return sum(island.nodes for island in self.islands)

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of all nodes in order: those that are stated, else ``node0``, ``node1``, ..."""
        stated = [name for island in self.islands for name in (island.hosts or (None,) * island.nodes)]
        return tuple(name or f"node{number}" for number, name in enumerate(stated))

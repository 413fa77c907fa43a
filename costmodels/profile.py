"""The profile of one machine: factors on the published constants, as a calibration finds them.

A profile of ones changes nothing, to the last bit. Rates are multiplied by their factor, times by theirs; what bounds a
search rests on the same constants, so every bound of the planner holds under a profile as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from costmodels.collectives import NetworkConstants
from costmodels.collectives.constants import DispatcherConstants, LinkConstants
from costmodels.compute import Efficiency
from costmodels.efficiency import Generation
from costmodels.memory import MemoryConstants
from costmodels.pricing import Constants
from hardware.cluster import LinkKind

SCALE_UP_KINDS: Final = (
    LinkKind.NVLINK,
    LinkKind.XGMI,
    LinkKind.PCIE,
    LinkKind.ICI,
    LinkKind.UALINK,
    LinkKind.XE_LINK,
    LinkKind.NEURONLINK,
    LinkKind.HCCS,
)
"""Links inside a node or a scale-up domain; every other kind joins nodes."""
OF_FRAMEWORK: Final = ("host", "activations", "memory_offset_bytes")
"""What belongs to the framework as much as to the machine: it does not carry over to another framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Factors on constants; 1.0 (and an offset of 0.0) leave a constant as it ships.

    Attributes
    ----------
    matrix : float
        On the sustained rate of matrix products in every number format, attention included [1].
    fp8, fp4 : float
        Further, on matrix products in these formats [1].
    attention : float
        Further, on the rate of attention kernels [1].
    memory_rate : float
        On the rate of memory-bound kernels and of operands [1].
    scale_up, scale_out : float
        On the rates of links inside a scale-up domain or node, and between nodes [1].
    scale_up_latency, scale_out_latency : float
        On the times of starts and steps of collectives over these links [1].
    host : float
        On the time that the host needs to start kernels [1].
    activations : float
        On the memory of activations and of what comes and goes while layers run [1].
    memory_offset_bytes : float
        Memory of a rank beyond what the equations give [B].
    """

    matrix: float = 1.0
    fp8: float = 1.0
    fp4: float = 1.0
    attention: float = 1.0
    memory_rate: float = 1.0
    scale_up: float = 1.0
    scale_out: float = 1.0
    scale_up_latency: float = 1.0
    scale_out_latency: float = 1.0
    host: float = 1.0
    activations: float = 1.0
    memory_offset_bytes: float = 0.0

    def of_machine(self) -> "Profile":
        """Return the profile without what belongs to the framework."""
        neutral = Profile()
        return replace(self, **{name: getattr(neutral, name) for name in OF_FRAMEWORK})

    def factors(self) -> Mapping[str, float]:
        """Return every field by name."""
        return MappingProxyType({field.name: getattr(self, field.name) for field in fields(self)})


UNCHANGED: Final = Profile()


def profiled(constants: Constants, profile: Profile) -> Constants:
    """Put a profile over constants.

    Parameters
    ----------
    constants : Constants
        As they ship.
    profile : Profile
        Factors of one machine.

    Returns
    -------
    Constants
        The same constants, each multiplied by its factor; equal to the given ones under a profile of ones.
    """
    if profile == UNCHANGED:
        return constants
    return replace(
        constants,
        efficiency=_efficiency(constants.efficiency, profile),
        network=_network(constants.network, profile),
        memory=_memory(constants.memory, profile),
    )


def _efficiency(efficiency: Efficiency, profile: Profile) -> Efficiency:
    shared = efficiency.shared
    host = ("dispatch_s", "graph_dispatch_s", "compiled_dispatch_s", "script_dispatch_s")
    return replace(
        efficiency,
        shared=replace(
            shared,
            opaque_math=shared.opaque_math * profile.matrix,
            **{name: getattr(shared, name) * profile.host for name in host},
        ),
        generations=tuple(_generation(generation, profile) for generation in efficiency.generations),
    )


def _generation(generation: Generation, profile: Profile) -> Generation:
    gemm, attention = generation.gemm, generation.attention
    further = {"fp8": profile.fp8, "fp4": profile.fp4}
    # A format without a share of its own has that of bf16: under a factor of its own it needs one.
    formats = {**{name: gemm.math["bf16"] for name, factor in further.items() if factor != 1.0}, **gemm.math}
    math = {name: share * profile.matrix * further.get(name, 1.0) for name, share in formats.items()}
    return replace(
        generation,
        gemm=replace(gemm, math=MappingProxyType(math), bandwidth=gemm.bandwidth * profile.memory_rate),
        attention=replace(attention, math=attention.math * profile.matrix * profile.attention),
        memory=generation.memory * profile.memory_rate,
        scan=generation.scan * profile.matrix,
    )


def _network(network: NetworkConstants, profile: Profile) -> NetworkConstants:
    dispatchers = {name: _dispatcher(row, profile) for name, row in network.dispatchers.items()}
    return replace(
        network,
        in_network_s=network.in_network_s * profile.scale_up_latency,
        peer_s=network.peer_s * profile.scale_up_latency,
        remote_peer_s=network.remote_peer_s * profile.scale_out_latency,
        group_bytes_per_s=network.group_bytes_per_s * profile.scale_out,
        links=tuple(_link(link, profile) for link in network.links),
        dispatchers=MappingProxyType(dispatchers),
    )


def _link(link: LinkConstants, profile: Profile) -> LinkConstants:
    inside = link.kinds[0] in SCALE_UP_KINDS
    rate = profile.scale_up if inside else profile.scale_out
    latency = profile.scale_up_latency if inside else profile.scale_out_latency
    return replace(
        link,
        launch_s=link.launch_s * latency,
        hop_s=link.hop_s * latency,
        ring=link.ring * rate,
        alltoall=link.alltoall * rate,
        in_network=link.in_network * rate,
    )


def _dispatcher(dispatcher: DispatcherConstants, profile: Profile) -> DispatcherConstants:
    return replace(
        dispatcher,
        scale_up=dispatcher.scale_up * profile.scale_up,
        scale_out=dispatcher.scale_out * profile.scale_out,
    )


def _memory(memory: MemoryConstants, profile: Profile) -> MemoryConstants:
    return replace(
        memory,
        activation_scale=memory.activation_scale * profile.activations,
        workspace_bytes=memory.workspace_bytes + profile.memory_offset_bytes,
    )

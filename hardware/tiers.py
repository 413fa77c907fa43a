"""The bandwidth hierarchy of an island as seen by one accelerator: from its scale-up domain outwards.

Collective costs need no more of the topology than this: for each tier, how many accelerators share one domain of it,
and what one accelerator can send and at what latency when a transfer has to cross to the next domain of the tier below.
"""

from dataclasses import dataclass

from hardware.cluster import FabricShape, Island, LinkKind


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One level of the hierarchy.

    ``gpus`` is the number of accelerators in one domain of this tier; ``bytes_per_s`` the share of one accelerator
    (per direction) when all accelerators of the domain cross this tier together; ``pair_bytes_per_s`` what one
    accelerator reaches alone.
    """

    name: str
    kind: LinkKind
    shape: FabricShape
    gpus: int
    bytes_per_s: float
    pair_bytes_per_s: float
    latency_s: float
    in_network_reduction: bool = False


def island_tiers(island: Island) -> tuple[Tier, ...]:
    """Tiers of an island from the fast domain outwards; the last one spans every accelerator.

    Parameters
    ----------
    island : Island
        Nodes of one type behind one network.

    Returns
    -------
    tuple of Tier
        At least one tier; ``gpus`` rises strictly. Oversubscription multiplies from tier to tier.
    """
    node = island.node
    up = node.scale_up
    domain = min(up.domain_gpus, island.gpus)
    tiers = [
        Tier(
            name="scale-up",
            kind=up.kind,
            shape=up.shape,
            gpus=domain,
            bytes_per_s=up.bytes_per_s,
            pair_bytes_per_s=up.pair_bytes_per_s,
            latency_s=up.latency_s,
            in_network_reduction=up.in_network_reduction,
        )
    ]
    if island.gpus <= domain:
        return tuple(tiers)
    nics = node.nics
    share = nics.node_bytes_per_s / node.gpus
    oversubscription = 1.0
    for level in island.fabric:
        gpus = island.gpus if level.nodes == 0 else min(level.nodes * node.gpus, island.gpus)
        if gpus > tiers[-1].gpus:
            tiers.append(_network_tier(island, level.name, gpus, share / oversubscription, level.latency_s))
        oversubscription *= level.oversubscription
    if tiers[-1].gpus < island.gpus:
        tiers.append(_network_tier(island, "network", island.gpus, share / oversubscription, 0.0))
    return tuple(tiers)


def _network_tier(island: Island, name: str, gpus: int, bytes_per_s: float, extra_latency_s: float) -> Tier:
    nics = island.node.nics
    return Tier(
        name=name,
        kind=nics.kind,
        shape=FabricShape.SWITCH,
        gpus=gpus,
        bytes_per_s=bytes_per_s,
        pair_bytes_per_s=max(bytes_per_s, min(nics.bytes_per_s, nics.node_bytes_per_s)),
        latency_s=nics.latency_s + extra_latency_s,
        in_network_reduction=nics.in_network_reduction,
    )

"""How a job is laid over large scale-up domains."""

from dataclasses import replace

from hardware.cluster import Island


def in_segments(island: Island) -> Island:
    """Give a job on several large scale-up domains the same power of two of accelerators in each.

    Launch scripts allocate in segments (SLURM's ``--segment``: 16 of the 18 nodes of an NVL72 rack) so that no group
    straddles two domains.

    Parameters
    ----------
    island : Island
        Nodes of the job.

    Returns
    -------
    Island
        The same, with the segment as its domain, where the job needs several domains and divides into segments; where
        the parts of domains are listed, the allocation is known and stays.
    """
    domain = island.node.scale_up.domain_gpus
    segment = 1 << (domain.bit_length() - 1)
    if (
        island.domains
        or domain <= island.node.gpus
        or island.gpus <= domain
        or island.gpus % segment
        or domain == segment
    ):
        return island
    return replace(island, node=replace(island.node, scale_up=replace(island.node.scale_up, domain_gpus=segment)))

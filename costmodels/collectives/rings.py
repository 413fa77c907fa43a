"""Rings on a partial mesh: how many can run side by side on the links among some of its accelerators."""

from functools import lru_cache
from typing import Final

Links = tuple[tuple[int, int, int], ...]

_SEARCH_STEPS: Final = (
    20_000  # gives up on a further tour; 8 GPUs need under 3,000 steps, 16 sparse ones find theirs early
)


def ring_count(links: Links, members: tuple[int, ...]) -> int:
    """Count the one-way rings that link-disjointly visit all members.

    Rings are packed greedily, each taking the widest way left; a closed tour serves two rings, one per direction.
    Members that no tour joins (a member with one neighbour) pass through an intermediate accelerator: one ring.

    Parameters
    ----------
    links : tuple of (GPU, GPU, count)
        Undirected links of the mesh.
    members : tuple of int
        At least two of its GPUs.

    Returns
    -------
    int
        At least 1. The rate of a ring collective is this many links.

    References
    ----------
    NCCL searches rings over the same graph; on a DGX-1V it finds 1, 2 and 6 for 2, 3 and 8 GPUs, which measured rates
    confirm (docs/collectives.md).
    """
    free = dict.fromkeys([(a, b) for a in members for b in members if a != b], 0)
    for a, b, count in links:
        if a in members and b in members and a != b:
            free[a, b] += count
            free[b, a] += count
    if len(members) == 2:
        return max(1, free[members])
    rings = 0
    while tour := _tour(free, members):
        for a, b in zip(tour, tour[1:] + tour[:1], strict=True):
            free[a, b] -= 1
            free[b, a] -= 1
        rings += 2
    return max(1, rings)


def _tour(free: dict[tuple[int, int], int], members: tuple[int, ...]) -> list[int]:
    """Find a closed tour over free links, depth first, widest link first; empty if there is none."""
    path = [members[0]]
    steps = 0

    def extend() -> bool:
        nonlocal steps
        here = path[-1]
        if len(path) == len(members):
            return free[here, members[0]] > 0
        for there in sorted(set(members) - set(path), key=lambda other: (-free[here, other], other)):
            steps += 1
            if free[here, there] == 0 or steps > _SEARCH_STEPS:
                return False
            path.append(there)
            if extend():
                return True
            path.pop()
        return False

    return path if extend() else []


@lru_cache(maxsize=1024)
def worst_ring_count(links: Links, together: int, stride: int) -> int:
    """Fewest rings of any group of ``together`` members ``stride`` apart that fits the mesh; at least 1."""
    return min((ring_count(links, group) for group in _groups(links, together, stride)), default=1)


@lru_cache(maxsize=1024)
def worst_exchange_links(links: Links, together: int, stride: int) -> float:
    """Links that one member has for sending to all others directly, divided by the mean number of links on the way.

    Pairs without a link forward through an intermediate accelerator and occupy two. The member with the fewest decides.
    """
    width: dict[tuple[int, int], int] = {}
    for a, b, count in links:
        width[a, b] = width[b, a] = width.get((a, b), 0) + count
    worst = float("inf")
    for group in _groups(links, together, stride):
        for a in group:
            direct = [width.get((a, b), 0) for b in group if b != a]
            hops = sum(1 if count else 2 for count in direct) / len(direct)
            worst = min(worst, max(1, sum(direct)) / hops)
    return worst if worst < float("inf") else 1.0


def _groups(links: Links, together: int, stride: int) -> list[tuple[int, ...]]:
    """Groups that tile the mesh; only the first block where they do not divide it (the others reach beyond)."""
    size = 1 + max(max(a, b) for a, b, _ in links)
    block = together * stride
    blocks = size // block if size % block == 0 else min(1, size // block)
    starts = [number * block + rest for number in range(blocks) for rest in range(stride)]
    return [tuple(start + k * stride for k in range(together)) for start in starts if together > 1]

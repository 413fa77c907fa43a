"""Groups of ranks along the axes of a layout, and where their members lie in the bandwidth hierarchy.

Rank order is Megatron-LM's ``tp-cp-ep-dp-pp``, fastest axis first. Attention and dense layers use the dense grid,
experts the expert grid over the same ranks of a stage:

    rank = tp + TP * (cp + CP * (dp + DP * pp)) = etp + ETP * (ep + EP * (edp + EDP * pp))

Ranks fill domains (nodes, racks, pods) in order, so rank ``r`` lies in domain ``r // tier.gpus`` of a tier.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from costmodels.table import Bools, Ints, StrategyTable
from hardware.tiers import EVEN_PACE, Pace, Tier


class Axis(StrEnum):
    """Axes of the two grids, and the groups that combine or divide them."""

    TP = "tp"
    CP = "cp"
    DP = "dp"
    DP_CP = "dp-cp"  # all ranks that hold the same dense parameters
    SHARD = "shard"  # ranks that ZeRO shards dense states over
    REPLICA = "replica"  # ranks that hold the same shard of dense states
    ETP = "etp"
    EP = "ep"
    ETP_EP = "etp-ep"  # all ranks that hold one copy of the experts
    EDP = "edp"  # all ranks that hold the same experts
    EXPERT_SHARD = "expert-shard"
    EXPERT_REPLICA = "expert-replica"
    PP = "pp"


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Groups of one axis, one kind per strategy: arrays of shape (S,).

    ``ranks`` is the number of all ranks of the layout. They are split into groups of ``size`` members ``stride`` apart;
    ``size * stride`` divides ``ranks``.
    """

    size: Ints
    stride: Ints
    ranks: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedGroup:
    """A :class:`Group` on the hierarchy.

    ``members`` and ``domains``, shape (S, T), are worst cases over all groups of the axis and hence need not multiply
    to the size; see :func:`members` and :func:`domains`. ``ring_pace``, ``pairs_pace`` and ``neighbour_pace`` are those
    of such flows over the network's tiers.
    """

    size: Ints
    stride: Ints
    members: Ints
    domains: Ints
    ring_pace: Pace = EVEN_PACE
    pairs_pace: Pace = EVEN_PACE
    neighbour_pace: Pace = EVEN_PACE

    def take(self, rows: Ints) -> "PlacedGroup":
        """Groups ``rows`` as new groups."""
        return replace(
            self, size=self.size[rows], stride=self.stride[rows], members=self.members[rows], domains=self.domains[rows]
        )

    def paced(self, paces: Sequence[Pace]) -> "PlacedGroup":
        """Return the groups with paces by pattern (``ring``, ``pairs``, ``neighbour``); even where none is given."""
        return replace(self, **{f"{pace.pattern}_pace": pace for pace in paces})  # type: ignore[arg-type]

    def pace(self, collective: str) -> Pace:
        """Pace of a collective over the network's tiers, by what its members send to each other."""
        if collective in ("alltoall", "dispatch", "combine"):
            return self.pairs_pace
        return self.neighbour_pace if collective == "sendrecv" else self.ring_pace

    def within(self, tier: int) -> Ints:
        """Members together in one domain of a tier, shape (S,); tier -1 is the single accelerator."""
        return np.ones_like(self.size) if tier < 0 else self.members[:, tier]

    def parts(self, tier: int) -> Ints:
        """Domains of a tier that a group touches, shape (S,); tier -1 is the single accelerator."""
        return self.size if tier < 0 else self.domains[:, tier]


def group_of(axis: Axis, table: StrategyTable) -> Group:
    """Return the groups of an axis for every strategy.

    Parameters
    ----------
    axis : Axis
        Which groups.
    table : StrategyTable
        S strategies.

    Returns
    -------
    Group
        Sizes, strides and numbers of ranks, shape (S,).

    References
    ----------
    Megatron-LM, ``megatron/core/parallel_state.py``, order ``tp-cp-ep-dp-pp``; ZeRO shards lie within neighbouring
    ranks of the group (as PyTorch's hybrid sharding and Megatron's optimizer instances place them).
    """
    one = np.ones_like(table.tp)
    stage = table.gpus
    shard = table.zero_group
    experts = table.etp * table.ep
    expert_shard = table.expert_zero_group
    size, stride = {
        Axis.TP: (table.tp, one),
        Axis.CP: (table.cp, table.tp),
        Axis.DP: (table.dp, table.tp * table.cp),
        Axis.DP_CP: (table.dp * table.cp, table.tp),
        Axis.SHARD: (shard, table.tp),
        Axis.REPLICA: (table.dp * table.cp // shard, table.tp * shard),
        Axis.ETP: (table.etp, one),
        Axis.EP: (table.ep, table.etp),
        Axis.ETP_EP: (experts, one),
        Axis.EDP: (table.edp, experts),
        Axis.EXPERT_SHARD: (expert_shard, experts),
        Axis.EXPERT_REPLICA: (table.edp // expert_shard, experts * expert_shard),
        Axis.PP: (table.pp, stage),
    }[axis]
    return Group(size=size, stride=stride, ranks=stage * table.pp)


def place(group: Group, tiers: tuple[Tier, ...]) -> PlacedGroup:
    """Lay groups on a hierarchy.

    Parameters
    ----------
    group : Group
        S groups.
    tiers : tuple of Tier
        T tiers from the inside out; the last spans all ranks.

    Returns
    -------
    PlacedGroup
        With ``members`` and ``domains`` of shape (S, T). What lies together in a domain of one tier uses none of the
        next, so outwards members never fall and domains never rise, also where domains of one tier straddle those of
        the next (a rack of 72 accelerators across leaves of 64).
    """
    found = [_listed_placement(group, tier) if tier.domain_of else _placement(group, tier.gpus) for tier in tiers]
    return PlacedGroup(
        size=group.size,
        stride=group.stride,
        members=np.maximum.accumulate(np.stack([together for together, _ in found], axis=1), axis=1),
        domains=np.minimum.accumulate(np.stack([touched for _, touched in found], axis=1), axis=1),
    )


def members(group: Group, tiers: tuple[Tier, ...]) -> Ints:
    """Members that lie together in one domain of each tier.

    Where ranks do not divide evenly over domains, the least number counts that any group of the axis has in a domain
    that it touches: that domain has the fewest adapters for what all others expect from it.

    Parameters
    ----------
    group : Group
        S groups.
    tiers : tuple of Tier
        T tiers.

    Returns
    -------
    array of int, shape (S, T)
        At least 1 and at most ``group.size``.
    """
    return place(group, tiers).members


def domains(group: Group, tiers: tuple[Tier, ...]) -> Ints:
    """Most domains of each tier that any group of the axis touches, shape (S, T)."""
    return place(group, tiers).domains


def _placement(group: Group, gpus: int) -> tuple[Ints, Ints]:
    """Fewest members in a touched domain and most domains touched, each (S,), for domains of ``gpus`` ranks."""
    size, stride = group.size, group.stride
    block = size * stride
    inside = (size == 1) | (group.ranks <= gpus) | (gpus % block == 0)
    apart = stride >= gpus
    even = (gpus % stride == 0) & (block % gpus == 0)
    together = np.where(inside, size, np.where(apart, 1, gpus // stride))
    touched = np.where(inside, 1, np.where(apart, size, block // gpus))
    uneven = np.flatnonzero(~(inside | apart | even))
    if len(uneven):
        keys = np.stack([size[uneven], stride[uneven], group.ranks[uneven]], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        fewest, most = _uneven_placement(unique, gpus)
        together[uneven] = fewest[inverse.reshape(-1)]
        touched[uneven] = most[inverse.reshape(-1)]
    return together, touched


def _uneven_placement(keys: Ints, gpus: int) -> tuple[Ints, Ints]:
    """Handle groups that do not divide evenly over domains; ``keys`` (U, 3): size, stride below ``gpus``, ranks.

    A group is known by the offset of its first member in a domain. The first and the last domain hold what their
    cut leaves; the domains between hold floor(gpus / stride) or one more. Some domain between holds the lower number
    exactly when first and last leave fewer members than the higher number everywhere would need.
    """
    size, stride, _ = (column[:, None] for column in keys.T)
    offset = np.arange(gpus)[None, :]
    realised = _realised_offsets(keys, gpus)
    last_offset = offset + (size - 1) * stride
    touched = last_offset // gpus + 1
    first = np.minimum(size, -(-(gpus - offset) // stride))
    last = np.minimum(size, last_offset % gpus // stride + 1)
    ends = np.minimum(first, last)
    between = touched - 2
    high = -(-gpus // stride)
    middle = np.where(size - first - last == between * high, high, gpus // stride)
    fewest = np.where(touched == 1, size, np.where(between > 0, np.minimum(ends, middle), ends))
    return np.where(realised, fewest, size).min(axis=1), np.where(realised, touched, 1).max(axis=1)


def _realised_offsets(keys: Ints, gpus: int) -> Bools:
    """Which offsets in a domain occur for the first member of some group, shape (U, gpus).

    Groups start at ``q * size * stride + r`` with ``r < stride``. When there are enough blocks ``q`` to go round, their
    offsets are all multiples of the greatest common divisor of block and domain; else the blocks are walked one by one.
    """
    size, stride, ranks = (column[:, None] for column in keys.T)
    block = size * stride
    blocks = ranks // block
    step = np.gcd(block, gpus)
    offset = np.arange(gpus)[None, :]
    realised: Bools = offset % step < stride
    few = np.flatnonzero((blocks < gpus // step)[:, 0])
    realised[few] = _walked_offsets(blocks[few, 0], block[few, 0], stride[few, 0], gpus)
    return realised


def _walked_offsets(blocks: Ints, block: Ints, stride: Ints, gpus: int) -> Bools:
    """Offsets that the first ``stride`` ranks of so many blocks have in their domains, shape (U, gpus).

    Every block covers a range of offsets, which may go on at 0: beginnings less ends, added up along the offsets.
    """
    row = np.repeat(np.arange(len(blocks)), blocks)
    number = np.arange(len(row)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    start = number * block[row] % gpus
    end = start + stride[row]
    width = gpus + 1
    begins = np.bincount(row * width + start, minlength=len(blocks) * width)
    ends = np.bincount(row * width + np.minimum(end, gpus), minlength=len(blocks) * width)
    round_again = np.flatnonzero(end > gpus)
    begins += np.bincount(row[round_again] * width, minlength=len(blocks) * width)
    ends += np.bincount(row[round_again] * width + end[round_again] - gpus, minlength=len(blocks) * width)
    covered: Bools = (begins - ends).reshape(-1, width).cumsum(axis=1)[:, :gpus] > 0
    return covered


def _listed_placement(group: Group, tier: Tier) -> tuple[Ints, Ints]:
    """As :func:`_placement`, for a tier that lists the domain of every block of ranks: by counting."""
    keys, inverse = np.unique(np.stack([group.size, group.stride, group.ranks], axis=1), axis=0, return_inverse=True)
    counts = [_listed_counts(tier.domain_of, tier.block, *(int(number) for number in key)) for key in keys]
    fewest, most = np.array(counts, dtype=np.int64).reshape(-1, 2).T
    return fewest[inverse.reshape(-1)], most[inverse.reshape(-1)]


@lru_cache(maxsize=4096)
def _listed_counts(domain_of: tuple[int, ...], block: int, size: int, stride: int, ranks: int) -> tuple[int, int]:
    """Fewest members in a touched domain and most domains touched of groups of one size and stride.

    Bounds ask for more ranks than are listed: they get what the best of the listed groups has.
    """
    listed = np.repeat(np.array(domain_of), block)
    used = min(ranks, len(listed)) // (size * stride) * (size * stride)
    if size == 1 or not used:
        return size, 1
    _, domain = np.unique(listed[:used], return_inverse=True)
    of_member = domain.reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    domains = int(domain.max()) + 1
    of_group = np.arange(len(of_member))[:, None] * domains + of_member
    held = np.bincount(of_group.reshape(-1), minlength=len(of_member) * domains).reshape(-1, domains)
    fewest, touched = np.where(held > 0, held, size).min(axis=1), (held > 0).sum(axis=1)
    if ranks > len(listed):
        return int(fewest.max()), int(touched.min())
    return int(fewest.min()), int(touched.max())

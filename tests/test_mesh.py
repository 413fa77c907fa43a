"""Groups of ranks: against enumeration of all ranks, and against the groups that Megatron-LM builds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_grids import shared_coordinates

from costmodels.layout import Strategy
from costmodels.mesh import Axis, Group, domains, group_of, members, place
from costmodels.table import table_of
from hardware.cluster import FabricShape, LinkKind
from hardware.tiers import Tier


def tier(gpus: int) -> Tier:
    return Tier(
        name="t",
        kind=LinkKind.NVLINK,
        shape=FabricShape.SWITCH,
        gpus=gpus,
        bytes_per_s=1e11,
        pair_bytes_per_s=1e11,
        latency_s=1e-6,
    )


def enumerate_groups(size: int, stride: int, ranks: int) -> list[list[int]]:
    """All groups, found by walking the ranks."""
    seen: set[int] = set()
    groups = []
    for rank in range(ranks):
        if rank not in seen:
            group = [rank + k * stride for k in range(size)]
            seen.update(group)
            groups.append(group)
    assert seen == set(range(ranks))
    return groups


def brute_force(size: int, stride: int, ranks: int, gpus: int) -> tuple[int, int]:
    fewest, most = size, 1
    for group in enumerate_groups(size, stride, ranks):
        counts = np.unique([rank // gpus for rank in group], return_counts=True)[1]
        fewest = min(fewest, int(counts.min()))
        most = max(most, len(counts))
    return fewest, most


@settings(max_examples=400, deadline=None)
@given(
    size=st.integers(1, 12),
    stride=st.integers(1, 12),
    blocks=st.integers(1, 9),
    gpus=st.sampled_from([1, 2, 4, 5, 6, 7, 8, 12, 16, 36, 72]),
)
def test_placement_matches_enumeration(size: int, stride: int, blocks: int, gpus: int) -> None:
    ranks = size * stride * blocks
    group = Group(size=np.array([size]), stride=np.array([stride]), ranks=np.array([ranks]))
    tiers = (tier(gpus), tier(max(ranks, gpus + 1)))
    fewest, most = brute_force(size, stride, ranks, gpus)
    assert members(group, tiers).tolist() == [[fewest, size]]
    assert domains(group, tiers).tolist() == [[most, 1]]


def test_many_groups_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(7)
    size, stride, blocks = (rng.integers(1, 9, 300) for _ in range(3))
    together = Group(size=size, stride=stride, ranks=size * stride * blocks)
    tiers = (tier(6), tier(42), tier(100_000))
    placed = place(together, tiers)
    for row in range(300):
        alone = Group(size=size[row : row + 1], stride=stride[row : row + 1], ranks=together.ranks[row : row + 1])
        assert placed.members[row].tolist() == members(alone, tiers)[0].tolist()
        assert placed.domains[row].tolist() == domains(alone, tiers)[0].tolist()


@pytest.mark.parametrize(
    "axis", [Axis.TP, Axis.CP, Axis.DP, Axis.DP_CP, Axis.ETP, Axis.EP, Axis.ETP_EP, Axis.EDP, Axis.PP]
)
@pytest.mark.parametrize(
    ("strategy", "pp"),
    [
        (Strategy(tp=2, cp=2, dp=4, ep=8, etp=1), 4),
        (Strategy(tp=4, cp=1, dp=6, ep=3, etp=4), 2),
        (Strategy(tp=1, cp=3, dp=4, ep=2, etp=2), 3),
    ],
)
def test_groups_hold_the_ranks_that_differ_only_on_the_axis(axis: Axis, strategy: Strategy, pp: int) -> None:
    group = group_of(axis, table_of([strategy], pp=[pp], micro_batch=[1]))
    size, stride, ranks = int(group.size[0]), int(group.stride[0]), int(group.ranks[0])
    fixed = shared_coordinates(strategy, pp, axis)
    expected: dict[tuple[int, ...], list[int]] = {}
    for rank, key in enumerate(fixed):
        expected.setdefault(key, []).append(rank)
    assert sorted(expected.values()) == sorted(enumerate_groups(size, stride, ranks))


def test_groups_of_64_ranks_as_megatron_lm_builds_them() -> None:
    # TP2 CP2 PP4 EP8 ETP1 on 64 ranks: tp [0,1] cp [0,2] dp [0,4,8,12] pp [0,16,32,48] ep [0..7] expert-dp [0,8]
    table = table_of([Strategy(tp=2, cp=2, dp=4, ep=8)], pp=[4], micro_batch=[1])
    first = {
        axis: [int(k * group_of(axis, table).stride[0]) for k in range(int(group_of(axis, table).size[0]))]
        for axis in Axis
    }
    assert first[Axis.TP] == [0, 1]
    assert first[Axis.CP] == [0, 2]
    assert first[Axis.DP] == [0, 4, 8, 12]
    assert first[Axis.PP] == [0, 16, 32, 48]
    assert first[Axis.EP] == list(range(8))
    assert first[Axis.EDP] == [0, 8]


def test_hybrid_shards_lie_in_neighbouring_ranks() -> None:
    table = table_of([Strategy(tp=2, dp=16, ep=4, zero=3, shard_group=4)], pp=[1], micro_batch=[1])
    shard, replica = group_of(Axis.SHARD, table), group_of(Axis.REPLICA, table)
    assert (int(shard.size[0]), int(shard.stride[0])) == (4, 2)
    assert (int(replica.size[0]), int(replica.stride[0])) == (4, 8)
    experts = group_of(Axis.EXPERT_SHARD, table)
    assert (int(experts.size[0]), int(experts.stride[0])) == (2, 4)  # edp 8 in 4 instances
    assert place(shard, (tier(8), tier(32))).members.tolist() == [[4, 4]]
    odd = table_of([Strategy(dp=30, ep=6, zero=3, shard_group=15)], pp=[1], micro_batch=[1])
    assert group_of(Axis.EXPERT_SHARD, odd).size.tolist() == odd.expert_zero_group.tolist() == [1]  # of edp 5, not 2


@given(size=st.integers(1, 16), stride=st.integers(1, 8), blocks=st.integers(1, 9))
def test_tiers_that_straddle_each_other_charge_no_group_twice(size: int, stride: int, blocks: int) -> None:
    # racks of 72 across leaves of 60: groups of 8 that share a rack cut a leaf's edge, but never use the leaf
    ranks = size * stride * blocks
    group = Group(size=np.array([size]), stride=np.array([stride]), ranks=np.array([ranks]))
    tiers = (tier(4), tier(72), tier(60), tier(max(ranks, 73)))
    assert (np.diff(members(group, tiers)) >= 0).all()
    assert (np.diff(domains(group, tiers)) <= 0).all()


def test_groups_inside_a_rack_that_straddles_leaves_stay_inside() -> None:
    group = Group(size=np.array([8]), stride=np.array([1]), ranks=np.array([960]))
    tiers = (tier(72), tier(60), tier(960))
    assert members(group, tiers).tolist() == [[8, 8, 8]]
    assert domains(group, tiers).tolist() == [[1, 1, 1]]

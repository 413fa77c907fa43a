"""The enumeration of grids against the slow and simple one, its order, and GPU counts worth planning."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import asked, grids, legal, sized, small

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE
from costmodels.positions import contents_of
from hardware.tiers import island_tiers
from planner.layouts.build import uniform_layout
from planner.layouts.expand import expand, pipeline_groups, prefix_contents, virtual_degrees
from planner.layouts.grids import (
    LARGEST_IDLE_SHARE,
    MAX_MICRO_BATCH,
    attention_heads,
    divisor_counts,
    divisors,
    enumerate_grids,
    expert_count,
    halved_sizes,
    kernel_table,
    world_sizes,
)
from planner.layouts.shard_groups import group_sizes
from planner.layouts.splits import balanced_positions, even_chunks, even_positions, leading_positions
from planner.request import PlanRequest
from planner.rules import legal_mask

Row = tuple[int, ...]


def rows_of(request: PlanRequest, gpus: int, *, only_legal: bool) -> set[Row]:
    found = enumerate_grids(request, gpus)
    table = found.table
    keep = np.ones(len(found), dtype=np.bool_)
    if only_legal:
        keep = legal_mask(request.framework, table, request.model, request.job).ok
    columns = (table.tp, table.cp, table.pp, table.dp, table.ep, table.etp, table.micro_batch, table.zero)
    return {tuple(int(column[row]) for column in columns) for row in np.flatnonzero(keep)}


def slow_rows(request: PlanRequest, gpus: int) -> set[Row]:
    """The same by nested loops, every one judged as a layout with even stages."""
    found = set()
    for strategy, pp, size, number in grids(request, gpus):
        layout = uniform_layout(
            strategy, even_chunks(request.model.layers, pp, 1), micro_batch=size, num_microbatches=number
        )
        if legal(request, layout):
            found.add((strategy.tp, strategy.cp, pp, strategy.dp, strategy.ep, strategy.etp, size, strategy.zero))
    return found


def test_a_pinned_group_divides_the_ranks_that_zero_shards_over():
    request = replace(small(gpus=8, global_batch=8), fixed=(("shard_group", 4),))
    table = enumerate_grids(request, 8).table
    ranks = table.dp * table.cp
    assert set(ranks.tolist()) == {4, 8}
    assert (table.zero > 0).all()
    assert (table.shard_group == np.where(ranks == 4, 0, 4)).all()
    free = enumerate_grids(replace(request, fixed=()), 8).table
    assert not free.shard_group.any()


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((64, 1, 1), (8, 16, 32)),  # of eight nodes of eight
        ((64, 2, 1), (4, 8, 16, 32)),
        ((16, 8, 1), (2, 4, 8)),  # no two ranks of a node hold the same weights
        ((64, 1, 16), (16, 32)),  # the experts of a group lie on two nodes
        ((8, 1, 1), ()),  # all on one node
        ((6, 8, 1), (2,)),
        ((24, 1, 1), (8,)),
        ((2048, 1, 1), (8, 16, 32, 64, 128, 256)),  # doubled four times, and a leaf
        ((1, 8, 1), ()),
    ],
)
def test_groups_are_of_nodes_and_their_doubles(shape, sizes):
    nodes = max(8, shape[0] * shape[1] // 8)
    tiers = island_tiers(asked("llama32_1b", f"dgx-h100:{nodes}").cluster.islands[0])
    assert group_sizes(*shape, tiers) == sizes


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("model", ["llama32_1b", "deepseek_v2_lite"])
def test_legal_grids_are_those_of_nested_loops(model, gpus):
    layers = (6,) if model == "llama32_1b" else (1, 5)
    request = small(model, layers=layers, gpus=gpus, global_batch=12, seq=4096)
    assert rows_of(request, gpus, only_legal=True) == slow_rows(request, gpus)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(gpus=st.integers(1, 48), batch=st.integers(1, 64))
def test_every_grid_multiplies_out_and_comes_once(gpus, batch):
    request = replace(asked("mixtral_8x7b", "dgx-h100:6", global_batch=batch, seq=4096), recompute="none")
    found = enumerate_grids(request, gpus)
    table = found.table
    assert (table.tp * table.cp * table.pp * table.dp == gpus).all()
    assert (table.tp * table.cp * table.dp == table.ep * table.etp * table.edp).all()
    assert (table.micro_batch * table.dp * found.num_microbatches == batch).all()
    assert (table.micro_batch <= MAX_MICRO_BATCH).all()
    assert (found.gpus == gpus).all()
    rows = np.stack([table.tp, table.cp, table.pp, table.dp, table.ep, table.etp, table.micro_batch, table.zero])
    assert np.unique(rows, axis=1).shape[1] == len(found)


def test_pinned_degrees_are_the_only_ones():
    request = replace(
        asked("llama3_8b", "dgx-a100:2", global_batch=32, seq=4096), fixed=(("tp", 2), ("micro_batch", 2))
    )
    table = enumerate_grids(request, 16).table
    assert len(table) > 0
    assert set(table.tp.tolist()) == {2}
    assert set(table.micro_batch.tolist()) == {2}
    assert len(enumerate_grids(replace(request, fixed=(("tp", 5),)), 16)) == 0


def test_the_order_of_grids_is_fixed():
    request = asked("deepseek_v2_lite", "dgx-h100:2", global_batch=32, seq=4096)
    first, again = enumerate_grids(request, 16), enumerate_grids(request, 16)
    for name in ("tp", "cp", "pp", "dp", "ep", "etp", "zero", "micro_batch"):
        np.testing.assert_array_equal(getattr(first.table, name), getattr(again.table, name))


@given(st.integers(1, 5000))
def test_divisors(number):
    assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@given(st.integers(1, 3000), st.integers(0, 200))
def test_divisor_counts(lowest, more):
    counts = divisor_counts(lowest, lowest + more)
    assert counts.tolist() == [len(divisors(number)) for number in range(lowest, lowest + more + 1)]


def test_the_roundest_counts_of_the_largest_cluster():
    island = asked(cluster="dgx-h100:1").cluster.islands[0]
    odd = replace(island, nodes=1_000_000, node=replace(island.node, gpus=7))
    sizes = world_sizes(odd)
    assert sizes[:2] == (7_000_000, 6_999_993)
    most = max(len(divisors(size)) for size in range(6_000_000 // 7 * 7, 7_000_000, 7 * 720))
    assert all(len(divisors(size)) >= most for size in sizes[2:])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(nodes=st.integers(1, 200), gpus=st.sampled_from([1, 4, 6, 7, 8, 12]))
def test_gpu_counts_worth_planning(nodes, gpus):
    island = sized(asked("llama32_1b", "dgx-a100:1").cluster, gpus).islands[0]
    island = replace(island, nodes=nodes)
    sizes = world_sizes(island)
    assert sizes[0] == island.gpus
    assert list(sizes) == sorted(set(sizes), reverse=True)
    assert len(sizes) <= 6
    step = 1 if nodes == 1 else gpus
    assert all(size % step == 0 and size >= LARGEST_IDLE_SHARE * island.gpus for size in sizes)


@pytest.mark.parametrize(
    ("nodes", "gpus", "halves"),
    [(1, 8, (2, 1)), (2, 8, ()), (4, 8, (8,)), (5, 7, (14, 7)), (64, 4, (64, 32, 16, 8, 4)), (1, 1, ())],
)
def test_halves_of_the_nodes_down_to_one(nodes: int, gpus: int, halves: tuple[int, ...]):
    island = replace(sized(asked("llama32_1b", "dgx-a100:1").cluster, gpus).islands[0], nodes=nodes)
    assert halved_sizes(island) == halves


def test_kernel_sizes_cover_those_of_every_gpu_count():
    request = asked("deepseek_v2_lite", "dgx-h100:1", global_batch=8, seq=4096)
    kernels = kernel_table(request, 8)
    names = ("tp", "cp", "ep", "etp", "micro_batch")
    known = set(zip(*(getattr(kernels, name).tolist() for name in names), strict=True))
    for gpus in (1, 2, 4, 6, 8):
        table = enumerate_grids(request, gpus).table
        assert set(zip(*(getattr(table, name).tolist() for name in names), strict=True)) <= known


def test_models_say_what_divides():
    assert expert_count(asked("mixtral_8x7b", "dgx-h100:1").model) == 8
    assert expert_count(asked("llama3_8b", "dgx-h100:1").model) == 0
    assert attention_heads(asked("llama3_8b", "dgx-h100:1").model) == 32


def test_virtual_degrees_fill_every_position():
    for layers in (12, 30, 61, 80):
        for pp in (2, 4, 8):
            degrees = virtual_degrees(layers, pp, 4 * pp, None)
            assert degrees[0] == 1
            assert all(pp * v <= layers + 2 for v in degrees)
            strict = virtual_degrees(layers, pp, 4 * pp, None, 0)
            assert all(pp * v <= layers for v in strict)
            assert set(strict) <= set(degrees)
            assert virtual_degrees(layers, pp, 4 * pp + 1, None) == (1,)
    assert virtual_degrees(12, 4, 8, 3) == (3,)
    assert virtual_degrees(12, 4, 7, 3) == ()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(layers=st.integers(1, 130), positions=st.integers(1, 64))
def test_splits_hold_all_layers(layers, positions):
    for split in (even_positions, leading_positions):
        sizes = split(layers, positions)
        assert sizes.sum() == layers
        assert (sizes >= 0).all()
        assert sizes.max() - sizes.min() <= 2
    chunks = even_chunks(layers, positions, 1)
    assert sum(sum(sizes) for sizes in chunks) == layers


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_balanced_splits_are_near_the_mean(data):
    layers = data.draw(st.integers(2, 40))
    positions = data.draw(st.integers(1, layers))
    layer_s = np.array([data.draw(st.lists(st.floats(0.5, 2.0), min_size=layers, max_size=layers))])
    first_s, last_s = (np.array([data.draw(st.floats(0.0, 3.0))]) for _ in range(2))
    sizes = balanced_positions(layer_s, first_s, last_s, positions)[0]
    assert sizes.sum() == layers
    assert (sizes >= 1).all()
    ends = np.cumsum(sizes)
    times = [layer_s[0, end - size : end].sum() for end, size in zip(ends, sizes, strict=True)]
    times[0] += first_s[0]
    times[-1] += last_s[0]
    mean = sum(times) / positions
    inner = times[1:-1]
    assert not inner or max(inner) <= mean + 4.0 + 2.0 * max(0.0, first_s[0] + last_s[0] - mean)


def test_rows_of_options_know_their_full_recompute():
    request = small(layers=(4,), gpus=4)
    found = enumerate_grids(request, 4)
    options = (NO_RECOMPUTE, FULL_RECOMPUTE)
    wanted = np.zeros((len(found), 2), dtype=np.bool_)
    wanted[::2, 0] = True
    wanted[1::3, 1] = True
    block = expand(found, options, wanted)
    for row in range(len(block.grid)):
        full = int(block.full[row])
        if full >= 0:
            assert block.grid[full] == block.grid[row]
            assert block.grids.table.recompute[full] == 1
    plain = block.grids.table.recompute == 0
    assert (block.full[plain] >= 0).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_prefixes_are_those_of_explicit_layouts(data):
    """Contents of many layouts at once equal those that a layout is unfolded to."""
    name, layers = data.draw(st.sampled_from([("deepseek_v2_lite", (1, 6)), ("gpt_oss_20b", (1,) * 7)]))
    request = small(name, layers=layers, gpus=4)
    found = enumerate_grids(request, 4)
    rows = np.flatnonzero(found.table.pp == data.draw(st.sampled_from([1, 2, 4])))
    row = int(data.draw(st.sampled_from(rows.tolist())))
    block = expand(found.take(np.array([row])), (NO_RECOMPUTE, FULL_RECOMPUTE), np.ones((1, 2), dtype=np.bool_))
    group = next(iter(pipeline_groups(block.grids, request.model.layers, 1)))
    prefix = data.draw(st.integers(1, 3))
    chunks = even_chunks(request.model.layers, group.spec.pp, 1)
    layout = uniform_layout(
        block.grids.table.strategy(0),
        chunks,
        micro_batch=int(found.table.micro_batch[row]),
        num_microbatches=group.spec.num_microbatches,
        prefix=prefix,
    )
    explicit, table = contents_of(layout, request.model)
    whole, _ = contents_of(uniform_layout(
        block.grids.table.strategy(0), chunks, micro_batch=layout.micro_batch, num_microbatches=layout.num_microbatches
    ), request.model)  # fmt: skip
    made = prefix_contents(request.model, whole, np.array([1]), np.array([prefix]))
    for number, strategy in enumerate(table.strategy(index) for index in range(len(table))):
        mine = 1 if strategy.recompute == FULL_RECOMPUTE else 0
        np.testing.assert_array_equal(made.counts[0, :, mine], explicit.counts[0, :, number])

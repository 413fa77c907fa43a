"""Uneven splits of a uniform candidate: what each stage and chunk should hold, by the inter-op partitioner."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from costmodels.known_parts import known_parts
from costmodels.layout import Layout
from costmodels.memory import model_memory, stage_memory, usable_memory
from costmodels.pipeline.inflight import in_flight_total
from costmodels.positions import contents_of, pipeline_spec
from costmodels.pricing import Pricing
from costmodels.table import table_of
from planner.inter_op.chunks import ChunkProblem, Chunks, partition_chunks
from planner.inter_op.costs import Position
from planner.inter_op.objective import one_f_one_b
from planner.inter_op.stages import StageProblem, partition_stages
from planner.layouts.build import uniform_layout
from planner.search.stage_table import PartSizes, StagePlace, chunk_ends, layer_runs, part_sizes, span_costs_s

MOST_FEWER: Final = 4  # layers that the first stage of a V may have below the mean
BEST_SPLITS: Final = 3  # splits of the partitioner that are priced with the exact schedule


def uneven_layouts(pricing: Pricing, layout: Layout, paces: Sequence[Sequence[float]] = ((),)) -> Iterator[Layout]:
    """Yield layouts like the given one with better splits of the layers, as the partitioner sees them.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island.
    layout : Layout
        A uniform layout of one strategy on one island; layouts with mixed strategies yield nothing.
    paces : sequence of sequence of float
        Each: time of every stage over that of its like, above 1.0 for hot or slow devices; empty: all alike.

    Yields
    ------
    Layout
        For each of the paces up to three splits, best first under ``sum t + (m - 1) max t``; the given one may be
        among them. With virtual stages one in which every chunk holds a layer, and one in which the ends of the model
        may be alone.
    """
    used = {run.strategy for stage in layout.stages for run in stage.strategies}
    if layout.pp == 1 or len(used) > 1:
        return
    if layout.schedule.is_v:
        yield from _splits_of_a_v(layout)
        return
    sizes = _sizes(pricing, layout)
    limits = _limits(pricing, layout, sizes)
    spec = pipeline_spec(layout)
    held = [float(count) / layout.vpp for count in in_flight_total(spec)]
    for pace in paces:
        places = [
            Position(slowdown=slow, in_flight=flight, limit_bytes=limit)
            for slow, flight, limit in zip(pace or [1.0] * layout.pp, held, limits, strict=True)
        ]
        for chunks in _splits(pricing, layout, sizes, places):
            yield split_as(layout, chunks)


def split_as(layout: Layout, chunks: Sequence[Sequence[int]]) -> Layout:
    """Return a uniform layout with its layers split in another way."""
    split = uniform_layout(
        layout.first,
        chunks,
        micro_batch=layout.micro_batch,
        num_microbatches=layout.num_microbatches,
        schedule=layout.schedule,
    )
    return replace(split, rank_order=layout.rank_order)


def _splits_of_a_v(layout: Layout) -> Iterator[Layout]:
    """Yield splits of a V, whose first stage holds both ends of the model, with fewer layers there and equal others.

    What the others cannot share equally goes to the first of them or to the last; of an odd number either chunk of a
    stage has the larger half.
    """
    layers, pp = layout.layers, layout.pp
    found: dict[tuple[tuple[int, int], ...], None] = {}
    for first in range(layers // pp, max(1, layers // pp - MOST_FEWER), -1):
        each, rest = divmod(layers - first, pp - 1)
        for more in ([1] * rest + [0] * (pp - 1 - rest), [0] * (pp - 1 - rest) + [1] * rest):
            counts = [first, *(each + one for one in more)]
            found[tuple((count - count // 2, count // 2) for count in counts)] = None
            found[tuple((count // 2, count - count // 2) for count in counts)] = None
    for chunks in found:
        if min(map(min, chunks)) > 0:
            yield split_as(layout, chunks)


def _sizes(pricing: Pricing, layout: Layout) -> PartSizes:
    table = table_of([layout.first], pp=[layout.pp], micro_batch=[layout.micro_batch])
    memory = model_memory(pricing.model, pricing.job, table, pricing.constants.memory)
    return part_sizes(known_parts(pricing, table), memory, 0)


def _limits(pricing: Pricing, layout: Layout, sizes: PartSizes) -> list[float]:
    """Bytes that each stage has for layers and ends: what is safe to use less what the parts do not explain."""
    contents, _ = contents_of(layout, pricing.model)
    spec = pipeline_spec(layout)
    held = in_flight_total(spec) / layout.vpp
    uses = stage_memory(layout, pricing.model, pricing.job, pricing.accelerator, pricing.constants.memory)
    safe = usable_memory(pricing.accelerator) * pricing.constants.memory.risky_share
    per_position = contents.counts[0, :, 0, :]
    limits = []
    for stage, use in enumerate(uses):
        parts = per_position[stage :: layout.pp].sum(axis=0)
        explained = float(parts @ (sizes.states_bytes + held[stage] * sizes.kept_bytes))
        limits.append(safe - (use.total_bytes - explained))
    return limits


def _splits(
    pricing: Pricing, layout: Layout, sizes: PartSizes, places: Sequence[Position]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    model = pricing.model
    if layout.vpp == 1:
        paced = {place.slowdown: replace(sizes, time_s=sizes.time_s * place.slowdown) for place in places}
        cost = span_costs_s(
            model,
            [
                StagePlace(sizes=paced[place.slowdown], in_flight=place.in_flight, limit_bytes=place.limit_bytes)
                for place in places
            ],
        )
        plans = partition_stages(
            StageProblem(cost_s=cost, objective=one_f_one_b(layout.num_microbatches)), k=BEST_SPLITS
        )
        yield from (tuple((count,) for count in plan.split) for plan in plans.plans)
        return
    problem = ChunkProblem(
        runs=layer_runs(model, sizes),
        positions=tuple(replace(place, limit_bytes=max(place.limit_bytes, 0.0)) for place in places),
        chunks=layout.vpp,
        micro_batches=layout.num_microbatches,
        ends=chunk_ends(model, sizes),
    )
    yield from every_chunk_split(problem, alone=True)


def every_chunk_split(problem: ChunkProblem, *, alone: bool) -> tuple[Chunks, ...]:
    """Return the splits that the partitioner finds: where ends may be ``alone``, and with a layer in every chunk.

    What leaves no end alone where it may is the best of those too.
    """
    free = partition_chunks(replace(problem, lone_ends=True)) if alone else None
    plans = [free]
    if free is None or not (free.layers[0][0] and free.layers[-1][-1]):
        plans.insert(0, partition_chunks(problem))
    return tuple(dict.fromkeys(split for plan in plans if plan is not None for split in (plan.layers, *plan.near)))

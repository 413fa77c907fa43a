"""Uneven splits of a uniform candidate: what each stage and chunk should hold, by the inter-op partitioner."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from costmodels.layer_costs import price_parts
from costmodels.layout import Layout
from costmodels.memory import model_memory, stage_memory, usable_memory
from costmodels.pipeline.inflight import in_flight_total
from costmodels.positions import contents_of, pipeline_spec
from costmodels.pricing import Pricing
from costmodels.table import table_of
from planner.build import uniform_layout
from planner.inter_op.chunks import ChunkProblem, partition_chunks
from planner.inter_op.costs import Position
from planner.inter_op.objective import one_f_one_b
from planner.inter_op.stages import StageProblem, partition_stages
from planner.stage_table import PartSizes, StagePlace, chunk_ends, layer_runs, part_sizes, span_costs_s

BEST_SPLITS: Final = 3  # splits of the partitioner that are priced with the exact schedule


def uneven_layouts(pricing: Pricing, layout: Layout) -> Iterator[Layout]:
    """Yield layouts like the given one with better splits of the layers, as the partitioner sees them.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island.
    layout : Layout
        A uniform layout of one strategy on one island; layouts with mixed strategies yield nothing.

    Yields
    ------
    Layout
        Up to three splits, best first under ``sum t + (m - 1) max t``; the given one may be among them. With virtual
        stages one in which every chunk holds a layer, and one in which the ends of the model may be alone.
    """
    used = {run.strategy for stage in layout.stages for run in stage.strategies}
    if layout.pp == 1 or len(used) > 1:
        return
    sizes = _sizes(pricing, layout)
    limits = _limits(pricing, layout, sizes)
    spec = pipeline_spec(layout)
    held = [float(count) / layout.vpp for count in in_flight_total(spec)]
    for chunks in _splits(pricing, layout, sizes, list(zip(held, limits, strict=True))):
        yield uniform_layout(
            layout.first, chunks, micro_batch=layout.micro_batch, num_microbatches=layout.num_microbatches
        )


def _sizes(pricing: Pricing, layout: Layout) -> PartSizes:
    table = table_of([layout.first], pp=[layout.pp], micro_batch=[layout.micro_batch])
    memory = model_memory(pricing.model, pricing.job, table, pricing.constants.memory)
    return part_sizes(price_parts(pricing, table), memory, 0)


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
    pricing: Pricing, layout: Layout, sizes: PartSizes, places: list[tuple[float, float]]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    model = pricing.model
    if layout.vpp == 1:
        cost = span_costs_s(
            model, [StagePlace(sizes=sizes, in_flight=held, limit_bytes=limit) for held, limit in places]
        )
        plans = partition_stages(
            StageProblem(cost_s=cost, objective=one_f_one_b(layout.num_microbatches)), k=BEST_SPLITS
        )
        yield from (tuple((count,) for count in plan.split) for plan in plans.plans)
        return
    problem = ChunkProblem(
        runs=layer_runs(model, sizes),
        positions=tuple(Position(limit_bytes=max(limit, 0.0), in_flight=held) for held, limit in places),
        chunks=layout.vpp,
        micro_batches=layout.num_microbatches,
        ends=chunk_ends(model, sizes),
    )
    both = (partition_chunks(problem), partition_chunks(replace(problem, lone_ends=True)))
    yield from dict.fromkeys(plan.layers for plan in both if plan is not None)

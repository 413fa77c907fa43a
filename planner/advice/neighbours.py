"""Layouts one step away from a given one: one degree, one choice or one layer moved."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodels.layout import (
    FULL_RECOMPUTE,
    NO_RECOMPUTE,
    Granularity,
    Layout,
    RankOrder,
    Recompute,
    Stage,
    Strategy,
)
from costmodels.pipeline.schedules import Schedule, runs
from costmodels.results import LayoutCost
from hardware.errors import InputError
from hardware.tiers import island_tiers
from planner.layouts.build import recomputing_as, uniform_layout, with_strategies
from planner.layouts.grids import expert_count
from planner.layouts.recompute_options import OWN_CHOICES
from planner.layouts.shard_groups import group_sizes
from planner.layouts.splits import even_chunks
from planner.request import PlanRequest
from planner.rules import broken_rules

MODULES: Final = ("layernorm", "mlp", "moe_act", "mla_up_proj", "shared_experts", "moe")
"""Modules whose recompute is offered alone. Core attention is not: fused kernels keep nothing of it."""

_TRADES: Final = (("tp", "dp"), ("cp", "dp"), ("pp", "dp"), ("tp", "pp"))
_RANKS: Final = "ranks in the order"
_MOST_LAYERS_FOR_EVEN_SPLIT: Final = 2  # positions that may exceed the layers, as ends count as layers


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A layout and what was changed, in words."""

    change: str
    layout: Layout


def neighbours(request: PlanRequest, layout: Layout, cost: LayoutCost) -> tuple[Neighbour, ...]:
    """Return the legal layouts one change away.

    Parameters
    ----------
    request : PlanRequest
        Model, job and framework.
    layout : Layout
        Where to start from; layouts whose layers use several grids get changes of recompute and of the split only.
    cost : LayoutCost
        Names the heaviest and the slowest stage, which give away layers.

    Returns
    -------
    tuple of Neighbour
        In a fixed order, none twice, none equal to the layout itself.
    """
    found: dict[Layout, Neighbour] = {}
    for change, changed in _all(request, layout, cost):
        other = changed if change.startswith(_RANKS) else replace(changed, rank_order=layout.rank_order)
        if other == layout or other in found or not _legal(request, other):
            continue
        found[other] = Neighbour(change=change, layout=other)
    return tuple(found.values())


def _legal(request: PlanRequest, layout: Layout) -> bool:
    return not broken_rules(layout, request)


def _all(request: PlanRequest, layout: Layout, cost: LayoutCost) -> Iterator[tuple[str, Layout]]:
    yield from _recomputes(request, layout)
    yield from _splits(layout, cost)
    grids = {replace(run.strategy, recompute=NO_RECOMPUTE) for stage in layout.stages for run in stage.strategies}
    if len(grids) > 1 or len({stage.island for stage in layout.stages}) > 1:
        return
    yield from _batches(request, layout)
    yield from _zero_stages(request, layout)
    yield from _shard_groups(request, layout)
    yield from _rank_orders(layout)
    yield from _chunks(request, layout)
    yield from _trades(request, layout)
    yield from _experts(request, layout)


def _recomputes(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    present = _modules(request)
    own = OWN_CHOICES.get(request.framework)
    selective = [_selective(module) for module in MODULES if module in present] if own is None else own
    for option in (NO_RECOMPUTE, *selective, FULL_RECOMPUTE):
        yield _recompute_words(option), with_strategies(layout, recompute=option)


def _rank_orders(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """The other order of ranks, where it moves any group."""
    if layout.pp > 1 and layout.first.dp > 1 and layout.first.zero < 2:  # Megatron FSDP makes a mesh of its own
        for order in RankOrder:
            yield f"{_RANKS} {order}", replace(layout, rank_order=order)


def _selective(module: str) -> Recompute:
    return Recompute(granularity=Granularity.SELECTIVE, modules=(module,))


def _modules(request: PlanRequest) -> set[str]:
    """Recompute modules that the model has and that are worth a look."""
    experts = bool(expert_count(request.model))
    latent = any(getattr(getattr(kind, "mixer", None), "kv_rank", 0) for kind in request.model.kinds())
    return {
        "layernorm",
        *(("moe_act", "moe", "shared_experts") if experts else ("mlp",)),
        *(("mla_up_proj",) if latent else ()),
    }


def _splits(layout: Layout, cost: LayoutCost) -> Iterator[tuple[str, Layout]]:
    """Move one layer off the heaviest stage, or off the slowest one, to the one with most room or time."""
    if layout.pp == 1:
        return
    room = [use.usable_bytes - use.total_bytes for use in cost.memory]
    pairs = (
        (cost.heaviest.stage, max(range(layout.pp), key=lambda stage: room[stage])),
        (
            max(range(layout.pp), key=lambda stage: cost.stage_times_s[stage]),
            min(range(layout.pp), key=lambda stage: cost.stage_times_s[stage]),
        ),
    )
    for giver, taker in pairs:
        if giver == taker or layout.stages[giver].layers < 2:
            continue
        stages = list(layout.stages)
        stages[giver] = _resized(stages[giver], -1)
        stages[taker] = _resized(stages[taker], +1)
        yield f"one layer from stage {giver} to stage {taker}", replace(layout, stages=tuple(stages))


def _resized(stage: Stage, by: int) -> Stage:
    """Add a layer to the smallest chunk of a stage, or take one from its largest, with the strategy that is usual."""
    sizes = list(stage.layers_per_chunk)
    chunk = sizes.index(min(sizes)) if by > 0 else sizes.index(max(sizes))
    sizes[chunk] += by
    largest = max(range(len(stage.strategies)), key=lambda number: stage.strategies[number].count)
    runs = tuple(
        replace(run, count=run.count + by) if number == largest else run for number, run in enumerate(stage.strategies)
    )
    return replace(stage, layers_per_chunk=tuple(sizes), strategies=runs)


def _batches(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    per_replica = layout.micro_batch * layout.num_microbatches
    for size in (layout.micro_batch // 2, layout.micro_batch * 2):
        if size and per_replica % size == 0 and runs(layout.schedule, layout.pp, layout.vpp, per_replica // size):
            changed = replace(layout, micro_batch=size, num_microbatches=per_replica // size, microbatch_group=0)
            yield f"micro-batch {size}", changed
    del request


def _zero_stages(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """The stages beside its own; weights lie in host memory under stage 3 alone."""
    first = layout.first
    if first.dp * first.cp > 1 and not request.job.software.state_offload:
        for stage in (first.zero - 1, first.zero + 1):
            if 0 <= stage <= 3:
                yield f"ZeRO-{stage}" if stage else "no ZeRO", with_strategies(layout, zero=stage)


def _shard_groups(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """ZeRO over the smallest, the next smaller and the next larger group that a search tries, or over all ranks."""
    first, tiers = layout.first, island_tiers(request.cluster.islands[layout.stages[0].island])
    ranks = first.dp * first.cp
    sizes = group_sizes(ranks, first.tp, first.ep * first.etp, tiers) if first.zero else ()
    smaller = [size for size in sizes if size < first.zero_group]
    larger = [size for size in sizes if size > first.zero_group]
    for near in dict.fromkeys((*smaller[:1], *smaller[-1:], *larger[:1])):
        yield f"ZeRO over groups of {near} ranks", with_strategies(layout, shard_group=near)
    if first.shard_group:
        yield f"ZeRO over all {ranks} ranks", with_strategies(layout, shard_group=0)


def _chunks(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    if layout.pp == 1:
        return
    for vpp in (layout.vpp // 2, layout.vpp * 2):
        if vpp < 1:
            continue
        words = f"{vpp} virtual chunks a stage" if vpp > 1 else "no virtual chunks"
        yield from _rebuilt(request, layout, layout.first, (layout.pp, vpp), words)


def _trades(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Double one degree and halve another, both ways."""
    degrees = {"tp": layout.first.tp, "cp": layout.first.cp, "dp": layout.first.dp, "pp": layout.pp}
    for one, other in _TRADES:
        for up, down in ((one, other), (other, one)):
            if degrees[down] % 2:
                continue
            new = {**degrees, up: degrees[up] * 2, down: degrees[down] // 2}
            strategy = _regrided(request, layout.first, new)
            if strategy is not None:
                words = f"{up} {new[up]} instead of {degrees[up]}, {down} {new[down]} instead of {degrees[down]}"
                vpp = layout.vpp if new["pp"] > 1 else 1
                yield from _rebuilt(request, layout, strategy, (new["pp"], vpp), words)


def _regrided(request: PlanRequest, first: Strategy, degrees: dict[str, int]) -> Strategy | None:
    """Return the strategy on other degrees, its experts as they were where they still fit."""
    tp, cp, dp = degrees["tp"], degrees["cp"], degrees["dp"]
    etp = 1
    if expert_count(request.model):
        etp = first.etp if first.etp in (1, tp) else tp
        if tp * cp * dp % (first.ep * etp):
            return None
    sharded = first.zero or 1
    return replace(
        first,
        tp=tp,
        cp=cp,
        dp=dp,
        etp=etp,
        zero=sharded if dp * cp > 1 else 0,
        shard_group=0,
        sequence_parallel=tp > 1 and (first.sequence_parallel or first.tp == 1),
    )


def _experts(request: PlanRequest, layout: Layout) -> Iterator[tuple[str, Layout]]:
    first, experts = layout.first, expert_count(request.model)
    for ep in (first.ep // 2, first.ep * 2) if experts else ():
        if ep and experts % ep == 0 and first.gpus % (ep * first.etp) == 0:
            yield f"ep {ep}", with_strategies(layout, ep=ep)


def _rebuilt(
    request: PlanRequest, layout: Layout, strategy: Strategy, shape: tuple[int, int], words: str
) -> Iterator[tuple[str, Layout]]:
    """Yield the layout with another grid or pipeline shape and an even split, if the batch and the layers allow it.

    A schedule of its own, such as a V, stays where the stages have as many chunks as before.
    """
    pp, vpp = shape
    own = layout.schedule not in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED) and pp > 1 and vpp == layout.vpp
    schedule = layout.schedule if own else None
    micro_batches, rest = divmod(request.job.global_batch, strategy.dp * layout.micro_batch)
    if rest or not micro_batches or pp * vpp > request.model.layers + _MOST_LAYERS_FOR_EVEN_SPLIT:
        return
    if vpp > 1 and schedule is None and micro_batches % pp:
        return
    try:
        changed = uniform_layout(
            strategy,
            even_chunks(request.model.layers, pp, vpp, schedule),
            micro_batch=layout.micro_batch,
            num_microbatches=micro_batches,
            schedule=schedule,
        )
    except InputError:
        return
    if len({run.strategy.recompute for stage in layout.stages for run in stage.strategies if run.count}) < 2:
        yield words, changed
    elif changed.layers_per_stage == layout.layers_per_stage:
        yield words, recomputing_as(changed, layout)
    else:  # which layers recompute goes with the split
        yield f"{words}, {_recompute_words(strategy.recompute)}", changed


def _recompute_words(option: Recompute) -> str:
    return "no recompute" if option == NO_RECOMPUTE else f"recompute {option} in all layers"

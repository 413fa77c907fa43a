"""Small requests and every layout of their space, written down the slow and simple way."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Recompute, Strategy
from costmodels.pipeline.schedules import runs
from costmodels.pricing import Pricing
from costmodels.results import LayoutCost, Verdict
from costmodels.workload.model import ModelSpec
from hardware.cluster import Cluster
from planner.layouts.build import uniform_layout
from planner.layouts.expand import lone_ends
from planner.plan_report import RankedLayout
from planner.question import Question, request_of
from planner.request import Framework, PlanRequest
from planner.rules import check_layout

GIB = 2.0**30


@cache
def asked(model: str = "llama32_1b", cluster: str = "dgx-a100:1", **words: object) -> PlanRequest:
    """A request by name, with a small batch and a short sequence unless it says otherwise."""
    chosen = {"global_batch": 8, "seq": 2048, **words}
    return request_of(Question(model=model, cluster=cluster, **chosen))  # type: ignore[arg-type]


def cut(model: ModelSpec, *counts: int) -> ModelSpec:
    """The model with fewer layers in each of its runs; runs beyond the counts are dropped."""
    runs = tuple(replace(run, count=count) for run, count in zip(model.runs, counts, strict=False) if count)
    return replace(model, runs=runs)


def sized(cluster: Cluster, gpus: int, memory_gib: float | None = None, nodes: int = 1) -> Cluster:
    """One island of nodes with some of their GPUs, and another size of memory."""
    island = cluster.islands[0]
    part = island.node.accelerator
    if memory_gib is not None:
        part = replace(part, memory_bytes=memory_gib * GIB, allocatable_bytes=0.0)
    scale_up = replace(island.node.scale_up, domain_gpus=gpus)
    node = replace(island.node, accelerator=part, gpus=gpus, scale_up=scale_up)
    return replace(cluster, islands=(replace(island, node=node, nodes=nodes),))


def small(
    model: str = "llama32_1b",
    layers: tuple[int, ...] = (4,),
    gpus: int = 4,
    memory_gib: float | None = None,
    nodes: int = 1,
    **words: object,
) -> PlanRequest:
    """A request for a cut model on some GPUs of every node."""
    request = asked(model, **words)
    cluster = sized(request.cluster, gpus, memory_gib, nodes)
    return replace(request, model=cut(request.model, *layers), cluster=cluster)


def pricing_of(request: PlanRequest) -> Pricing:
    return Pricing(model=request.model, job=request.job, island=request.cluster.islands[0])


def compositions(total: int, parts: int, *, ends_may_be_empty: bool = False) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a sum of positive ones; the first and the last may be 0 if allowed."""
    free = int(ends_may_be_empty)
    for cuts in combinations(range(1, total + 2 * free), parts - 1):
        sizes = [high - low for low, high in pairwise((0, *cuts, total + 2 * free))]
        sizes[0] -= free
        sizes[-1] -= free
        yield tuple(sizes)


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


ZERO_STAGES = {
    Framework.MEGATRON: (1, 2, 3),
    Framework.TORCHTITAN: (2, 3),
    Framework.DEEPSPEED: (0, 1, 2, 3),
    Framework.NONE: (0, 1, 2, 3),
}
"""Stages that a search offers where there is something to shard."""


def grids(request: PlanRequest, gpus: int) -> Iterator[tuple[Strategy, int, int, int]]:
    """Every (strategy, pp, micro-batch, micro-batches) on so many GPUs, legal or not."""
    batch = request.job.global_batch
    for tp in divisors(gpus):
        for cp in divisors(gpus // tp):
            for pp in divisors(gpus // (tp * cp)):
                dp = gpus // (tp * cp * pp)
                if batch % dp or pp > request.model.layers:
                    continue
                for size in divisors(batch // dp):
                    for strategy in strategies(request, tp, cp, dp):
                        yield strategy, pp, size, batch // (dp * size)


def strategies(request: PlanRequest, tp: int, cp: int, dp: int) -> Iterator[Strategy]:
    """Every ZeRO stage with every group of its ranks, and every grid of experts, under some degrees."""
    sequence_parallel = tp > 1 and request.framework is not Framework.DEEPSPEED
    experts = max((getattr(getattr(kind, "ffn", None), "experts", 0) for kind in request.model.kinds()), default=0)
    for zero in ZERO_STAGES[request.framework] if dp * cp > 1 else (0,):
        for etp in {1, tp} if experts else {1}:
            for ep in divisors(experts) if experts else (1,):
                if tp * cp * dp % (ep * etp):
                    continue
                for group in shard_groups(request, tp, dp * cp, ep * etp) if zero else (0,):
                    yield Strategy(
                        tp=tp, cp=cp, dp=dp, ep=ep, etp=etp, zero=zero, shard_group=group,
                        sequence_parallel=sequence_parallel,
                    )  # fmt: skip


def shard_groups(request: PlanRequest, tp: int, ranks: int, experts: int) -> list[int]:
    """0 for all ranks, and every smaller group of whole nodes (or parts of nodes) that holds all experts."""
    node = max(1, request.cluster.islands[0].node.gpus // tp)
    near = max(size for size in divisors(ranks) if node % size == 0)
    sizes = [size for size in divisors(ranks) if 1 < size < ranks and size % near == 0]
    return [0, *(size for size in sizes if size * tp % experts == 0)]


def layouts_of(
    request: PlanRequest, strategy: Strategy, shape: tuple[int, int, int], recomputes: tuple[Recompute, ...]
) -> Iterator[Layout]:
    """Every split of a grid over stages and up to two chunks, under every recompute, also of the first layers alone.

    With the schedule of the request, where it has one; in a V the second chunk of a stage lies on the way back.
    """
    pp, size, number = shape
    layers, schedule = request.model.layers, request.schedule
    may_be_alone = schedule is None and lone_ends(request) > 0
    degrees = (1, 2) if pp > 1 and number % pp == 0 else (1,)
    if schedule is not None:
        degrees = tuple(vpp for vpp in (1, 2) if runs(schedule, pp, vpp, number))
    for vpp in degrees:
        for flat in compositions(layers, pp * vpp, ends_may_be_empty=vpp > 1 and may_be_alone):
            chunks = tuple(flat[stage::pp] for stage in range(pp))
            if schedule is not None and schedule.is_v:
                chunks = tuple((flat[stage], flat[2 * pp - 1 - stage]) for stage in range(pp))
            if min(sum(sizes) for sizes in chunks) == 0:
                continue
            for recompute in recomputes:
                prefixes = range(max(flat)) if recompute == NO_RECOMPUTE and FULL_RECOMPUTE in recomputes else (0,)
                for prefix in prefixes:
                    yield uniform_layout(
                        replace(strategy, recompute=recompute),
                        chunks,
                        micro_batch=size,
                        num_microbatches=number,
                        prefix=prefix,
                        schedule=schedule,
                    )


def legal(request: PlanRequest, layout: Layout) -> bool:
    return not check_layout(layout, request.model, request.job, framework=request.framework)


def nodes_of(ranked: RankedLayout, per_node: int) -> tuple[int, ...]:
    """Return the node of every block of ranks of a placed layout; empty where they are in order."""
    return tuple(int(place.host.removeprefix("node")) for place in ranked.placement[::per_node])


def fits(cost: LayoutCost) -> bool:
    return all(use.verdict is Verdict.FITS for use in cost.memory)


def with_one_adapter(request: PlanRequest) -> PlanRequest:
    """The same machine with one adapter a node, which all GPUs share."""
    (island,) = request.cluster.islands
    node = replace(island.node, nics=replace(island.node.nics, count=1))
    return replace(request, cluster=replace(request.cluster, islands=(replace(island, node=node),)))

"""The best of every layout of a small space, priced one by one."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

from small_requests import compositions, divisors, fits, grids, layouts_of, legal, pricing_of, strategies

from costmodels.explicit_step import PricedStep, priced_step
from costmodels.layout import Layout, Recompute, Strategy
from costmodels.price import price_layout
from costmodels.pricing import Pricing
from planner.layouts.build import schedule_of, uniform_stages
from planner.layouts.expand import WITH_ONE_RECOMPUTE, lone_ends
from planner.layouts.recompute_options import recompute_options
from planner.layouts.splits import leading_positions
from planner.placement import place_layout
from planner.planning import pricings_of
from planner.request import PlanRequest


def least_of(request: PlanRequest) -> tuple[float, int]:
    """Least step time over every layout of the space that is legal and fits, and how many are legal."""
    pricing = pricing_of(request)
    best_s, seen = float("inf"), 0
    for layout, step_s in every_layout(request):
        seen += 1
        if step_s < best_s:
            cost = price_layout([pricing], layout)
            assert abs(cost.step.total_s - step_s) <= 1e-12 * step_s
            best_s = cost.step.total_s if fits(cost) else best_s
    return best_s, seen


def least_with_heat(request: PlanRequest) -> float:
    """Least step time over every layout that fits, each placed as well as can be; heat takes pace and gives none."""
    pricings, best_s = pricings_of(request), float("inf")
    for layout, cool_s in sorted(every_layout(request), key=lambda pair: pair[1]):
        if cool_s >= best_s:
            break
        if fits(price_layout(pricings, layout)):
            best_s = min(best_s, place_layout(request, pricings, layout).cost.step.total_s)
    return best_s


def least_over_islands(request: PlanRequest) -> float:
    """Least step time over every layout that fits on one of several islands or on all of them together."""
    pricings, best_s = pricings_of(request), float("inf")
    for island in request.cluster.islands:
        alone = replace(request, cluster=replace(request.cluster, islands=(island,)))
        best_s = min(best_s, least_of(alone)[0])
    for layout, step_s in every_layout_over_islands(request):
        if step_s < best_s and fits(price_layout(pricings, layout)):
            best_s = step_s
    return best_s


def every_layout_over_islands(request: PlanRequest) -> Iterator[tuple[Layout, float]]:
    """Every legal layout that uses all islands, with its step time: stages of one size, each island's in a row.

    Stage sizes divide an island and leave a quarter of none idle; up to two chunks a stage.
    """
    gpus = [island.gpus for island in request.cluster.islands]
    for size in range(1, min(gpus) + 1):
        stages = [count // size for count in gpus]
        wanted = all(count % size <= count / 4 for count in gpus) and any(count % size == 0 for count in gpus)
        if not wanted or sum(stages) > request.model.layers:
            continue
        orders = [[i for i in order for _ in range(stages[i])] for order in permutations(range(len(stages)))]
        for strategy, pp, micro_batch, number in _grids_of_stages(request, size, sum(stages)):
            for hosts, recompute in product(orders, offered(request)):
                shape = (pp, micro_batch, number)
                yield from _on_hosts(request, replace(strategy, recompute=recompute), shape, hosts)


def _grids_of_stages(request: PlanRequest, size: int, pp: int) -> Iterator[tuple[Strategy, int, int, int]]:
    """Every (strategy, pp, micro-batch, micro-batches) of so many stages of so many GPUs, ZeRO over all ranks."""
    batch = request.job.global_batch
    for tp in divisors(size):
        for cp in divisors(size // tp):
            dp = size // (tp * cp)
            for micro_batch in divisors(batch // dp) if batch % dp == 0 else ():
                for strategy in strategies(request, tp, cp, dp):
                    if not strategy.shard_group and pinned_so(request, strategy, pp, micro_batch):
                        yield strategy, pp, micro_batch, batch // (dp * micro_batch)


def _on_hosts(
    request: PlanRequest, strategy: Strategy, shape: tuple[int, int, int], hosts: list[int]
) -> Iterator[tuple[Layout, float]]:
    pp, micro_batch, number = shape
    pricings, like = pricings_of(request), None
    for vpp in (1, 2) if number % pp == 0 else (1,):
        for flat in compositions(request.model.layers, pp * vpp, ends_may_be_empty=vpp > 1 and lone_ends(request) > 0):
            chunks = tuple(flat[stage::pp] for stage in range(pp))
            layout = Layout(
                stages=uniform_stages(strategy, chunks, islands=hosts),
                micro_batch=micro_batch,
                num_microbatches=number,
                schedule=schedule_of(pp, vpp),
            )
            if min(map(sum, chunks)) and legal(request, layout) and as_the_framework_does(request, layout):
                like = priced_step(pricings, layout, like)
                yield layout, float(like.times.total_s[0])


def every_layout(request: PlanRequest) -> Iterator[tuple[Layout, float]]:
    """Every legal layout of the space with its step time without heat.

    Down to one half of the GPUs, in whole nodes where there are several.
    """
    pricing, options = pricing_of(request), offered(request)
    (island,) = request.cluster.islands
    whole, step = island.gpus, 1 if island.nodes == 1 else island.node.gpus
    for gpus in range(whole, (whole + 1) // 2 - 1, -step):
        for strategy, *shape in grids(request, gpus):
            if not pinned_so(request, strategy, shape[0], shape[1]):
                continue
            alike: dict[tuple[Strategy, ...], PricedStep] = {}
            for layout in layouts_of(request, strategy, (shape[0], shape[1], shape[2]), options):
                if legal(request, layout) and as_the_framework_does(request, layout):
                    yield layout, step_of(pricing, layout, alike)


def pinned_so(request: PlanRequest, strategy: Strategy, pp: int, micro_batch: int) -> bool:
    """Whether a grid has the degrees that are pinned, and a pipeline where a schedule asks for one."""
    own = {"pp": pp, "micro_batch": micro_batch}
    degrees = {name: own.get(name, getattr(strategy, name, None)) for name, _ in request.fixed}
    return all(degrees[name] == value for name, value in request.fixed) and (pp > 1 or not request.always_piped)


def step_of(pricing: Pricing, layout: Layout, alike: dict[tuple[Strategy, ...], PricedStep]) -> float:
    """Step time of a layout of a grid, whose parts are priced once for all splits over the same strategies."""
    used = tuple(dict.fromkeys(run.strategy for stage in layout.stages for run in stage.strategies))
    step = priced_step([pricing], layout, alike.get(used))
    alike.setdefault(used, step)
    return float(step.times.total_s[0])


def offered(request: PlanRequest) -> tuple[Recompute, ...]:
    """Recompute choices of a request."""
    return recompute_options(request.recompute, request.framework, pricing_of(request))


def as_the_framework_does(request: PlanRequest, layout: Layout) -> bool:
    """DeepSpeed makes one split and has no virtual stages; it and torchtitan recompute alike in every layer."""
    used = {run.strategy for stage in layout.stages for run in stage.strategies}
    if request.framework in WITH_ONE_RECOMPUTE and len(used) > 1 and request.framework != "deepspeed":
        return False
    if request.framework != "deepspeed":
        return True
    made = tuple(leading_positions(request.model.layers, layout.pp).tolist())
    return layout.vpp == 1 and tuple(stage.layers for stage in layout.stages) == made

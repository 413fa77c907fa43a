"""What a layout's step would take under other circumstances: dispatchers, routing, power caps, one slow accelerator."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.collectives.routing import busiest_load, spread_of
from costmodels.exchange.experts import routing_of
from costmodels.job import Dispatcher
from costmodels.placement import identity, ranks_of_stages, stage_map
from costmodels.pricing import Constants
from costmodels.table import table_of
from costmodels.workload.model import LayerKind, MoeFfn
from hardware.cluster import DeviceState
from planner.placement import stated_placement
from planner.plan_report import RankedLayout
from planner.planning import estimate
from planner.request import PlanRequest

ROUTERS: Final = (("a bias per expert", 0.04), ("an auxiliary loss", 0.72))
"""What balances a router, and by how much its busiest expert exceeds the mean load then (MaxVio of the model of 1e9
parameters in table 2 of Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", arXiv
2408.15664; of 3e9: 0.04 and 0.52)."""
ROUTERS_EXPERTS: Final = 64
"""Experts of a layer in those models."""
UNBALANCED: Final = 2.0
"""Tokens of the busiest expert rank over the mean under a router that nothing balances."""
CAPS: Final = (0.9, 0.8, 0.6)
"""Power caps as shares of the limit of the part."""
SLOWER: Final = (0.025, 0.05, 0.10)
"""By how much one accelerator is slower than its like."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """One circumstance in words, and the step time under it; ``slower``: by how much one accelerator is, or 0.0."""

    words: str
    step_s: float
    slower: float = 0.0


def what_ifs(request: PlanRequest, ranked: RankedLayout, constants: Constants | None = None) -> tuple[WhatIf, ...]:
    """Price a layout under other circumstances, each alone.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    ranked : RankedLayout
        The layout with its price.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    tuple of WhatIf
        Dispatchers and routing for layouts that spread experts; caps where the part's power is modelled; one slow
        accelerator in the slowest stage where the layout has several. Ranks stay where they are.
    """
    asked = list(_dispatching(request, ranked)) + list(_capped(request, ranked))
    found = [WhatIf(words=words, step_s=_step_s(changed, ranked, constants)) for words, changed in asked]
    return (*found, *_slow(request, ranked, constants))


def _step_s(request: PlanRequest, ranked: RankedLayout, constants: Constants | None) -> float:
    return estimate(request, ranked.layout, constants, stated_placement(ranked, request)).cost.step.total_s


def _dispatching(request: PlanRequest, ranked: RankedLayout) -> Iterator[tuple[str, PlanRequest]]:
    if ranked.layout.first.ep == 1:
        return
    software = request.job.software
    for dispatcher in (Dispatcher.ALLTOALL, Dispatcher.DEEPEP, Dispatcher.HYBRIDEP):
        if dispatcher is not software.dispatcher:
            other = replace(software, dispatcher=dispatcher)
            yield f"dispatcher {dispatcher}", replace(request, job=replace(request.job, software=other))
    for words, load in _routers(request, ranked) if not software.capacity_factor else ():
        other = replace(software, routing_imbalance=load)
        yield words, replace(request, job=replace(request.job, software=other))


def _routers(request: PlanRequest, ranked: RankedLayout) -> Iterator[tuple[str, float]]:
    """Routers in words, and the load of the busiest expert rank over the mean that each leaves in the layout."""
    first, job = ranked.layout.first, request.job
    ffn = next(
        kind.ffn for kind in request.model.kinds() if isinstance(kind, LayerKind) and isinstance(kind.ffn, MoeFfn)
    )
    table = table_of([first], pp=[ranked.layout.pp], micro_batch=[ranked.layout.micro_batch])
    tokens = float(table.micro_batch[0]) * job.seq / (first.cp * float(table.sequence_split[0]))
    for balance, violation in ROUTERS:
        spread = spread_of(violation, ROUTERS_EXPERTS)
        load = float(busiest_load(routing_of(ffn, request.model, job), first.ep, tokens, spread))
        yield f"router with {balance}: busiest rank {load:.2f} x the mean", load
    yield f"router out of balance: busiest rank {UNBALANCED:g} x the mean", UNBALANCED


def _capped(request: PlanRequest, ranked: RankedLayout) -> Iterator[tuple[str, PlanRequest]]:
    part = request.cluster.islands[0].node.accelerator
    if ranked.cost.power.gpu_w <= 0.0 or len(request.cluster.islands) > 1:
        return
    for share in CAPS:
        cap_w = round(share * part.tdp_w)
        lowest = max(1.0, part.min_power_limit_w)
        if cap_w >= lowest and not 0.0 < request.job.power_cap_w <= cap_w:
            yield (
                f"GPUs capped at {cap_w} W ({share:.0%})",
                replace(request, job=replace(request.job, power_cap_w=cap_w)),
            )


def _slow(request: PlanRequest, ranked: RankedLayout, constants: Constants | None) -> Iterator[WhatIf]:
    layout, islands = ranked.layout, request.cluster.islands
    if layout.gpus == 1 or len(islands) > 1 or any(island.devices for island in islands):
        return
    slowest = max(range(layout.pp), key=lambda stage: ranked.cost.stage_times_s[stage])
    places = stated_placement(ranked, request) or identity(layout.gpus, islands[0].node.gpus)
    held = stage_map(places, ranks_of_stages(layout, 0), islands[0])
    node, gpu = map(int, np.argwhere(held == slowest)[0])
    for slower in SLOWER:
        island = replace(islands[0], devices=(DeviceState(node=node, gpu=gpu, speed=1.0 - slower),))
        changed = replace(request, cluster=replace(request.cluster, islands=(island,)))
        cost = estimate(changed, layout, constants, places).cost
        words = f"one GPU of {layout.gpus:,} {100.0 * slower:g} % slower"
        yield WhatIf(words=words, step_s=cost.step.total_s, slower=slower)


def slow_device_for(step_s: float, predicted_s: float, found: Sequence[WhatIf]) -> float:
    """Return by how much one accelerator would have to be slower than its like for a step to take so long.

    Parameters
    ----------
    step_s, predicted_s : float
        The step, and what it takes where all are alike [s].
    found : sequence of WhatIf
        Of :func:`what_ifs`.

    Returns
    -------
    float
        Between the slow ones that were priced, beyond the slowest of them in proportion; 0.0 where none was priced,
        the step is no longer than predicted, or none could be so slow.
    """
    priced = [(0.0, predicted_s), *((one.slower, one.step_s) for one in found if one.slower)]
    if len(priced) == 1 or not predicted_s < step_s or priced[-1][1] <= predicted_s:
        return 0.0
    if step_s <= priced[-1][1]:
        return float(np.interp(step_s, [seconds for _, seconds in priced], [slower for slower, _ in priced]))
    slower = priced[-1][0] * (step_s - predicted_s) / (priced[-1][1] - predicted_s)
    return slower if slower < 1.0 else 0.0

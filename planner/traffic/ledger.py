"""Every exchange that one rank of a layout's busiest stage takes part in during a step, as the prices count them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.collectives import ALL_REDUCE_ALGORITHMS, NetworkConstants, all_reduce_algorithm
from costmodels.exchange import boundary_exchange, layer_exchange, state_exchange
from costmodels.exchange.placed import Call, PlacedTable
from costmodels.layer_costs import PartCosts, price_parts
from costmodels.layout import Granularity, Layout, Recompute
from costmodels.memory.states import LocalParameters
from costmodels.mesh import Axis, PlacedGroup
from costmodels.part_ops import EMBEDDING, HEAD
from costmodels.pipeline.schedules import positions
from costmodels.positions import contents_of
from costmodels.pricing import Pricing
from costmodels.table import Floats, StrategyTable
from costmodels.tower_rows import tower_rows
from hardware.tiers import Tier


class Purpose(StrEnum):
    """What an exchange is for; the names are those of the details of a step time."""

    TP = "tp"
    CP = "cp"
    EP = "ep"
    WEIGHTS = "weights"
    SEND = "send"
    GRADIENT_REDUCTION = "gradient_reduction"
    WEIGHT_GATHER = "weight_gather"


_PURPOSE_OF: Final = MappingProxyType(
    {
        Axis.TP: Purpose.TP,
        Axis.CP: Purpose.CP,
        Axis.EP: Purpose.EP,
        Axis.ETP: Purpose.EP,
        Axis.ETP_EP: Purpose.EP,
        Axis.SHARD: Purpose.WEIGHTS,
        Axis.EXPERT_SHARD: Purpose.WEIGHTS,
    }
)
_REPEATED_WHOLE: Final = (Purpose.TP, Purpose.CP, Purpose.EP)


@dataclass(frozen=True, kw_only=True)
class StepCall:
    """Equal collectives of one rank in a step.

    Attributes
    ----------
    axis : str
        Axis of its group.
    ranks, domains : int
        Members of a group; domains of the innermost tier that one touches.
    message_bytes, seconds : float
        Of one collective, and of it alone.
    count : float
        Collectives of a step; micro-batches, layers and repeats of recompute multiplied out.
    tier : int
        Index of the outermost tier that the group needs.
    sent_bytes : float
        What the rank sends in one.
    leaving_bytes : tuple of float
        Its share of what crosses each outer tier in one.
    speed : float
        Pace over the network's tiers, over that which shares of them give.
    """

    purpose: Purpose
    axis: str
    collective: str
    algorithm: str
    ranks: int
    domains: int
    message_bytes: float
    seconds: float
    count: float
    tier: int
    sent_bytes: float
    leaving_bytes: tuple[float, ...]
    speed: float = 1.0


def step_calls(pricing: Pricing, layout: Layout, stage: int) -> tuple[StepCall, ...]:
    """List the collectives of a rank of one stage.

    Parameters
    ----------
    pricing : Pricing
        Of the stage's island.
    layout : Layout
        Whose step.
    stage : int
        Which of its stages; sends are those of a stage with neighbours on both sides.

    Returns
    -------
    tuple of StepCall
        In the order tp, cp, ep, weights of every micro-batch, sends, reduction and gather of the step.
    """
    contents, table = contents_of(layout, pricing.model)
    place = positions(layout.schedule, layout.pp, layout.vpp)[stage]
    counts = contents.counts[0, place].sum(axis=0)  # strategies x parts
    costs = price_parts(pricing, table)
    found: list[StepCall] = []
    for row in np.flatnonzero(counts.any(axis=1)):
        one = costs.placed.take(np.array([row]))
        found += _of_layers(pricing, one, counts[row], costs, layout.num_microbatches)
        if EMBEDDING in costs.names and counts[row, costs.index(EMBEDDING)]:
            found += _of_tower(pricing, one.table, layout.num_microbatches)
        found += _of_states(pricing, one, counts[row], costs, int(row))
    if layout.pp > 1:
        one = costs.placed.take(np.array([0]))
        sends = boundary_exchange(pricing.model, pricing.job, one)
        times = float(layout.num_microbatches * layout.vpp)
        found += [entry for call in sends.calls for entry in _entries(Purpose.SEND, call, times, one)]
    return tuple(sorted(found, key=lambda call: list(Purpose).index(call.purpose)))


def _of_layers(
    pricing: Pricing, one: PlacedTable, counts: Floats, costs: PartCosts, num_microbatches: int
) -> Iterator[StepCall]:
    """Exchanges of every micro-batch of the parts under one strategy."""
    recompute = one.table.recomputes[int(one.table.recompute[0])]
    for part in np.flatnonzero(counts):
        name = costs.names[part]
        exchange = layer_exchange(name, pricing.model, pricing.job, one)
        for call in exchange.calls:
            purpose = _PURPOSE_OF[call.axis]
            again = 1.0 if _repeats(recompute, purpose, name, call.collective) else 0.0
            times = float(counts[part]) * num_microbatches
            yield from _entries(purpose, call, times, one, again)


def _of_tower(pricing: Pricing, table: StrategyTable, num_microbatches: int) -> Iterator[StepCall]:
    """Exchanges of every micro-batch of a vision tower, which runs on the ranks of the embedding."""
    for row in tower_rows(pricing, table):
        placed = row.part.placed
        recompute = placed.table.recomputes[int(placed.table.recompute[0])]
        for call in row.part.exchange.calls:
            purpose = _PURPOSE_OF[call.axis]
            passed = bool(row.backward.any())
            again = passed and _repeats(recompute, purpose, row.part.name, call.collective)
            passes = call if passed else replace(call, backward=0.0)
            yield from _entries(purpose, passes, row.forward * num_microbatches, placed, float(again))


def _repeats(recompute: Recompute, purpose: Purpose, part: str, collective: str) -> bool:
    """Whether the backward pass makes the forward's exchanges again."""
    if recompute.per_op:
        return purpose is Purpose.TP and collective == "all_gather" and part not in (EMBEDDING, HEAD)
    if recompute.granularity is Granularity.FULL:
        return purpose in _REPEATED_WHOLE and part not in (EMBEDDING, HEAD)
    return purpose is Purpose.EP and "moe" in recompute.modules


def _of_states(pricing: Pricing, one: PlacedTable, counts: Floats, costs: PartCosts, row: int) -> Iterator[StepCall]:
    """Reduction of gradients and gather of weights of the parts under one strategy."""
    held = LocalParameters(
        dense=np.array([counts @ costs.dense_parameters[:, row]]),
        expert=np.array([counts @ costs.expert_parameters[:, row]]),
    )
    bucket_bytes = pricing.constants.overlap.bucket_bytes
    exchange = state_exchange(held, pricing.job, one, bucket_bytes)
    for call in exchange.calls:
        gathers = call.collective == "all_gather"
        purpose = Purpose.WEIGHT_GATHER if gathers else Purpose.GRADIENT_REDUCTION
        yield from _entries(purpose, call, 1.0, one)


def _entries(purpose: Purpose, call: Call, times: float, one: PlacedTable, again: float = 0.0) -> Iterator[StepCall]:
    """One call, so many times a step, its forward ones ``again`` as often; nothing if it does not take place."""
    often = float(np.sum(call.forward) * (1.0 + again) + np.sum(call.backward))
    message = float(call.message_bytes[0])
    if message <= 0.0 or often <= 0.0:
        return
    tiers = one.tiers
    group = one.group(call.axis)
    touched = group.domains[0]
    outermost = next((index for index, number in enumerate(touched) if number == 1), len(tiers) - 1)
    yield StepCall(
        purpose=purpose,
        axis=call.axis.value,
        collective=call.collective,
        algorithm=_algorithm(call, group, tiers, one.constants),
        ranks=int(group.size[0]),
        domains=int(touched[0]),
        message_bytes=message,
        seconds=float(call.seconds[0]),
        count=times * often,
        tier=outermost,
        sent_bytes=float(call.sent_bytes[0]),
        leaving_bytes=tuple(float(size) for size in call.leaving_bytes[:, 0]),
        speed=call.pace.speed,
    )


def _algorithm(call: Call, group: PlacedGroup, tiers: tuple[Tier, ...], constants: NetworkConstants) -> str:
    """Name the way that the library is taken to go."""
    across = int(group.domains[0, 0]) > 1
    if call.collective == "all_reduce":
        chosen = ALL_REDUCE_ALGORITHMS[int(all_reduce_algorithm(call.message_bytes, group, tiers, constants)[0])]
        return "in-network, tree" if across and chosen == "in-network" else chosen
    if call.collective == "alltoall":
        gathered = across and 1 < int(group.members[0, 0]) <= constants.rail_gpus
        return "pairwise by rail" if gathered else "pairwise"
    if call.collective in ("dispatch", "combine"):
        return "copy per domain" if across else "copy per rank"
    return "neighbour" if call.collective == "sendrecv" else "ring"

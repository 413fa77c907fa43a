"""Time of each kind of layer under each strategy: compute, recompute, and what of its exchanges stays visible.

Rows of every array are the *parts* of the model: its kinds of layers in order of first use, then the embedding (with a
vision tower, which runs on the same ranks), the head (final norm, logits, loss) and one multi-token-prediction layer.
All times are seconds per micro-batch on one rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.exchange import Boundaries, PlacedTable
from costmodels.job import Software
from costmodels.layout import Recompute
from costmodels.one_part import Part
from costmodels.part_ops import EMBEDDING, part_names, part_ops
from costmodels.power import accelerator as power
from costmodels.pricing import Pricing
from costmodels.table import Bools, Floats, StrategyTable
from costmodels.tower_rows import TowerRow, tower_rows
from costmodels.works import DEVICE_WORKS, EXCHANGE_WORKS, Work

_POWER_WORK: Final = MappingProxyType(
    {
        Work.GEMM: power.Work.GEMM,
        Work.ATTENTION: power.Work.ATTENTION,
        Work.MEMORY: power.Work.MEMORY,
        Work.RECOMPUTE: power.Work.GEMM,
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartCosts:
    """Times of all parts under all strategies.

    Attributes
    ----------
    names : tuple of str
        The parts, K of them.
    forward_s, backward_s : ndarray
        Seconds by kind of work, shape (len(Work), K, S). Exchanges count only what no compute hides.
    dense_parameters, expert_parameters : ndarray
        Parameters of one layer on one rank before ZeRO sharding, shape (K, S).
    weight_tensors : ndarray
        Tensors of parameters in one layer, shape (K,).
    clock : ndarray
        Sustained clock over the highest clock under the power limit, shape (S,); the times hold at it.
    forward_links_s, backward_links_s : ndarray
        Shape (T, K, S) for T tiers: seconds in which exchanges that leave the innermost domain run, hidden ones too,
        and seconds in which they would use a rank's whole share of each outer tier.
    boundaries : Boundaries
        What crosses stage boundaries under the S strategies on the island.
    turns_s : ndarray
        Seconds in which the hosts of a tensor-parallel group take turns, forward and backward, shape (2, K, S).
    host_exponent : ndarray
        How host and device share the passes of a part, as in :mod:`costmodels.host_waits`, shape (K, S).
    hosts_run_on : ndarray
        Where hosts run on in tensor-parallel exchanges, which are then no part of what they share, shape (S,).
    """

    names: tuple[str, ...]
    forward_s: Floats
    backward_s: Floats
    dense_parameters: Floats
    expert_parameters: Floats
    weight_tensors: Floats
    clock: Floats
    forward_links_s: Floats
    backward_links_s: Floats
    boundaries: Boundaries
    turns_s: Floats
    host_exponent: Floats
    hosts_run_on: Bools

    @property
    def software(self) -> Software:
        """What the job runs."""
        return self.boundaries.job.software

    @property
    def placed(self) -> PlacedTable:
        """The strategies on the island."""
        return self.boundaries.placed

    @cached_property
    def added_up(self) -> Floats:
        """Seconds forward and backward by work, then on links, as positions add them up: (S, 2 len(Work) + 2 T, K)."""
        seconds = (self.forward_s, self.backward_s, self.forward_links_s, self.backward_links_s)
        return np.ascontiguousarray(np.concatenate(seconds).transpose(2, 0, 1))

    def index(self, name: str) -> int:
        """Row of a part."""
        return self.names.index(name)


def price_parts(pricing: Pricing, table: StrategyTable, *, exchanges: bool = True) -> PartCosts:
    """Price every part of the model under every strategy.

    Without exchanges the times are a lower bound: what exchanges add to a step is never less than what they give back
    by a higher clock, since the energy of the compute rises with the clock and the power limit holds for the sum; waits
    for the host, which a higher clock makes longer, are left out with them.

    Parameters
    ----------
    pricing : Pricing
        Model, job, island and constants.
    table : StrategyTable
        Strategies, S rows, with their recompute.
    exchanges : bool
        Whether exchanges count.

    Returns
    -------
    PartCosts
    """
    costs = _priced_parts(pricing, table, exchanges=exchanges)
    software = pricing.job.software
    if software.capacity_factor or software.routing_imbalance == 1.0:
        return costs
    balanced = replace(software, routing_imbalance=1.0)
    even = replace(pricing, job=replace(pricing.job, software=balanced))
    return _with_waits_apart(costs, _priced_parts(even, table, exchanges=exchanges))


def _with_waits_apart(uneven: PartCosts, even: PartCosts) -> PartCosts:
    """Costs of the busiest expert rank, told apart: the works of an even one, and what all others wait for it."""
    passes = []
    for busiest_s, mean_s in ((uneven.forward_s, even.forward_s), (uneven.backward_s, even.backward_s)):
        apart_s = mean_s.copy()
        apart_s[Work.ROUTING] = busiest_s.sum(axis=0) - mean_s.sum(axis=0)
        passes.append(apart_s)
    return replace(uneven, forward_s=passes[0], backward_s=passes[1])


def _priced_parts(pricing: Pricing, table: StrategyTable, *, exchanges: bool) -> PartCosts:
    """Price the parts as their busiest expert rank takes them."""
    names = part_names(pricing)
    placed = PlacedTable(table, pricing.tiers, pricing.constants.network)
    parts = [Part(pricing, placed, *part) for part in zip(names, part_ops(pricing), strict=True)]
    tower = tower_rows(pricing, table)
    parts += [row.part for row in tower]
    links = [part.links_s(exchanges=exchanges) for part in parts]
    costs = _at_sustained_clock(
        pricing,
        PartCosts(
            names=names,
            forward_s=np.stack([part.forward_s(exchanges=exchanges) for part in parts], axis=1),
            backward_s=np.stack([part.backward_s(exchanges=exchanges) for part in parts], axis=1),
            dense_parameters=np.stack([part.parameters.dense for part in parts]),
            expert_parameters=np.stack([part.parameters.expert for part in parts]),
            weight_tensors=np.array([float(sum(op.parameters > 0 for op in part.ops)) for part in parts]),
            clock=np.ones(len(table)),
            forward_links_s=np.stack([forward for forward, _ in links], axis=1),
            backward_links_s=np.stack([backward for _, backward in links], axis=1),
            boundaries=Boundaries(pricing.model, pricing.job, placed),
            turns_s=np.stack([part.turns_s for part in parts], axis=1),
            host_exponent=np.stack([part.host_exponent for part in parts]),
            hosts_run_on=parts[0].hosts_run_on,
        ),
        np.concatenate([part_weights(pricing), [row.forward for row in tower]]),
    )
    if exchanges:
        _wait_for_host(costs, parts)
    return _with_tower(costs, tower) if tower else costs


def _with_tower(costs: PartCosts, tower: Sequence[TowerRow]) -> PartCosts:
    """Costs whose last rows are those of a tower, with these added to the embedding, which lies on the same ranks."""
    kept, row = len(costs.names), costs.index(EMBEDDING)
    runs, trained = np.array([(each.forward, each.trained) for each in tower]).T
    back = np.stack([each.backward for each in tower], axis=1)

    def added(of_parts: Floats, weights: Floats, axis: int = 1) -> Floats:
        rows = np.moveaxis(of_parts, axis, -1)
        found = rows[..., :kept].copy()
        found[..., row] += (rows[..., kept:] * weights).sum(axis=-1)
        return np.moveaxis(found, -1, axis)

    return replace(
        costs,
        forward_s=added(costs.forward_s, runs),
        backward_s=added(costs.backward_s, back),
        dense_parameters=added(costs.dense_parameters, trained, axis=0),
        expert_parameters=costs.expert_parameters[:kept],
        weight_tensors=added(costs.weight_tensors, trained, axis=0),
        forward_links_s=added(costs.forward_links_s, runs),
        backward_links_s=added(costs.backward_links_s, back),
        turns_s=np.stack([added(costs.turns_s[:1], runs)[0], added(costs.turns_s[1:], back)[0]]),
        host_exponent=costs.host_exponent[:kept],
    )


def _wait_for_host(costs: PartCosts, parts: Sequence[Part]) -> None:
    """Fill in :attr:`Work.LAUNCH`: what the host needs to start the kernels of a pass beyond what the device needs.

    A pass over a layer takes the longer of both: the host runs ahead of the device, or the device waits for it. Where
    tokens are routed outside a captured graph, host and device meet in every layer, since the host reads how many
    tokens each expert got; where layers are tensor-parallel, a device waits in every exchange for the host that is
    behind. Then neither hides behind the other, and the pass takes the root of the sum of squares; where groups leave
    their node, beside the exchanges, in which hosts run on. What the backward pass repeats is a pass of its own.
    """
    for row, part in enumerate(parts):
        forward_s, backward_s = costs.forward_s[:, row], costs.backward_s[:, row]
        forward_s[Work.LAUNCH] = part.forward_wait_s(forward_s)
        backward_s[Work.LAUNCH] = part.backward_wait_s(backward_s)


def repeated_s(pricing: Pricing, table: StrategyTable, recomputes: Sequence[Recompute]) -> Floats:
    """Compute that each recompute choice repeats in one layer of each part at the highest clock.

    A lower bound on what the choice adds to a step: repeated exchanges and a lower clock come on top.

    Returns
    -------
    ndarray
        Seconds per micro-batch, shape (len(recomputes), K, S).
    """
    placed = PlacedTable(table, pricing.tiers, pricing.constants.network)
    parts = [Part(pricing, placed, *part) for part in zip(part_names(pricing), part_ops(pricing), strict=True)]
    return np.stack([np.stack([part.repeated_by(recompute) for part in parts]) for recompute in recomputes])


def power_seconds(works_s: Floats, idle_s: Floats | float = 0.0) -> dict[power.Work, Floats]:
    """Seconds by what the power model distinguishes, from seconds by work, shape (len(Work), ...)."""
    return {
        power.Work.GEMM: works_s[Work.GEMM] + works_s[Work.RECOMPUTE],
        power.Work.ATTENTION: works_s[Work.ATTENTION],
        power.Work.MEMORY: works_s[Work.MEMORY],
        power.Work.COMMUNICATION: works_s[list(EXCHANGE_WORKS)].sum(axis=0),
        power.Work.IDLE: np.asarray(idle_s, dtype=np.float64),
    }


def part_weights(pricing: Pricing) -> Floats:
    """How often each part occurs in the whole model, shape (K,)."""
    model = pricing.model
    counts = [float(sum(run.count for run in model.runs if run.kind == kind)) for kind in model.kinds()]
    ends = [1.0, 1.0] if model.hidden else []
    return np.array([*counts, *ends, *([float(model.mtp_layers)] if model.mtp_layers else [])])


def _at_sustained_clock(pricing: Pricing, costs: PartCosts, weights: Floats) -> PartCosts:
    """Stretch compute to the clock that the power limit leaves for the model's mix of work."""
    model = power.power_model(pricing.accelerator)
    works = np.einsum("k,wks->ws", weights, costs.forward_s + costs.backward_s)
    clock = power.step_power(model, power_seconds(works), limit_w=pricing.power_limit_w).clock
    clock = np.minimum(clock, pricing.clock)
    factor = np.ones((len(Work), len(clock)))
    for work in DEVICE_WORKS:
        factor[work] = power.time_factor(clock, model.clock_bound[_POWER_WORK[work]])
    return replace(
        costs,
        forward_s=costs.forward_s * factor[:, None],
        backward_s=costs.backward_s * factor[:, None],
        clock=clock,
    )

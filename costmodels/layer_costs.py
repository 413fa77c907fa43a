"""Time of each kind of layer under each strategy: compute, recompute, and what of its exchanges stays visible.

Rows of every array are the *parts* of the model: its kinds of layers in order of first use, then the embedding, the
head (final norm,
logits, loss) and one multi-token-prediction layer. All times are seconds per micro-batch on one rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.compute import accumulation_s, dispatch_s, op_times
from costmodels.exchange import Boundaries, LayerExchange, PlacedTable, layer_exchange, tensor_calls
from costmodels.host_waits import host_wait_s
from costmodels.layout import Granularity, Recompute
from costmodels.memory.states import LocalParameters, local_parameters
from costmodels.overlap import exposed_s
from costmodels.part_ops import part_ops
from costmodels.power import accelerator as power
from costmodels.pricing import Pricing
from costmodels.reliability import expected_maximum
from costmodels.table import Bools, Floats, StrategyTable
from costmodels.workload.op import SUBMODULES, Op, OpKind

EMBEDDING: Final = "embedding"
HEAD: Final = "head"
MTP: Final = "mtp"


class Work(IntEnum):
    """What a rank's time goes to; index of the first axis of :attr:`PartCosts.forward_s`."""

    GEMM = 0
    ATTENTION = 1
    MEMORY = 2
    RECOMPUTE = 3
    LAUNCH = 4  # the host starts kernels slower than the accelerator runs them
    TP = 5
    CP = 6
    EP = 7
    WEIGHTS = 8  # weight gathers and gradient reductions of every micro-batch (ZeRO-3)
    RESHARD = 9  # activations that move between layers of unlike strategies
    SHARED = 10  # exchanges wait for links that other transfers use; known once stages and schedule are
    ROUTING = 11  # ranks wait for the one whose experts got the most tokens

    @property
    def is_compute(self) -> bool:
        """Whether it belongs to computing: the accelerator works, or waits for its host, not for a transfer."""
        return self <= Work.LAUNCH


DEVICE_WORKS: Final = (Work.GEMM, Work.ATTENTION, Work.MEMORY, Work.RECOMPUTE)
COMPUTE_WORKS: Final = tuple(work for work in Work if work.is_compute)
EXCHANGE_WORKS: Final = tuple(work for work in Work if not work.is_compute)
_WORK_OF: Final = MappingProxyType(
    {
        OpKind.GEMM: Work.GEMM,
        OpKind.GROUPED_GEMM: Work.GEMM,
        OpKind.ATTENTION: Work.ATTENTION,
        OpKind.SCAN: Work.ATTENTION,
        OpKind.MEMORY: Work.MEMORY,
        OpKind.OPAQUE: Work.GEMM,
    }
)

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

    @cached_property
    def meets(self) -> Bools:
        """Whether host and device meet in every layer of tensor-parallel ranks, shape (S,)."""
        return np.asarray(self.placed.table.tp > 1, dtype=np.bool_)

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


def part_names(pricing: Pricing) -> tuple[str, ...]:
    """Names of the model's parts in row order."""
    model = pricing.model
    ends = (EMBEDDING, HEAD) if model.hidden else ()
    return (*(kind.name for kind in model.kinds()), *ends, *((MTP,) if model.mtp_layers else ()))


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
    parts = [_Part(pricing, placed, *part) for part in zip(names, part_ops(pricing), strict=True)]
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
        ),
    )
    if exchanges:
        _wait_for_host(costs, parts)
    return costs


def _wait_for_host(costs: PartCosts, parts: "Sequence[_Part]") -> None:
    """Fill in :attr:`Work.LAUNCH`: what the host needs to start the kernels of a pass beyond what the device needs.

    A pass over a layer takes the longer of both: the host runs ahead of the device, or the device waits for it. Where
    tokens are routed outside a captured graph, host and device meet in every layer, since the host reads how many
    tokens each expert got; where layers are tensor-parallel, a device waits in every exchange for the host that is
    behind. Then neither hides behind the other, and the pass takes the root of the sum of squares. What the backward
    pass repeats is a pass of its own.
    """
    for row, part in enumerate(parts):
        forward_s, backward_s = costs.forward_s[:, row], costs.backward_s[:, row]
        again_s = backward_s[Work.RECOMPUTE]
        forward_s[Work.LAUNCH] = part.wait_s(part.forward_host_s, forward_s.sum(axis=0))
        wait_s = part.wait_s(part.backward_host_s, backward_s.sum(axis=0) - again_s)
        backward_s[Work.LAUNCH] = wait_s + part.wait_s(part.repeated_host_s, again_s)


def repeated_s(pricing: Pricing, table: StrategyTable, recomputes: Sequence[Recompute]) -> Floats:
    """Compute that each recompute choice repeats in one layer of each part at the highest clock.

    A lower bound on what the choice adds to a step: repeated exchanges and a lower clock come on top.

    Returns
    -------
    ndarray
        Seconds per micro-batch, shape (len(recomputes), K, S).
    """
    placed = PlacedTable(table, pricing.tiers, pricing.constants.network)
    parts = [_Part(pricing, placed, *part) for part in zip(part_names(pricing), part_ops(pricing), strict=True)]
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


def _at_sustained_clock(pricing: Pricing, costs: PartCosts) -> PartCosts:
    """Stretch compute to the clock that the power limit leaves for the model's mix of work."""
    model = power.power_model(pricing.accelerator)
    works = np.einsum("k,wks->ws", part_weights(pricing), costs.forward_s + costs.backward_s)
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


class _Part:
    """One part under all strategies: its compute by op, its exchanges, and what they add up to."""

    def __init__(self, pricing: Pricing, placed: PlacedTable, name: str, ops: Sequence[Op]) -> None:
        self.pricing = pricing
        self.placed = placed
        self.table = table = placed.table
        self.ops = ops
        self.parameters: LocalParameters = local_parameters(ops, table)
        self.name = name
        times = [
            op_times(
                op,
                pricing.job,
                table,
                pricing.accelerator,
                efficiency=pricing.constants.efficiency,
            )
            for op in ops
        ]
        self.op_forward_s = np.stack([t.forward_s for t in times])
        self.op_backward_s = np.stack([t.backward_s for t in times])
        self.work = np.array([_WORK_OF[op.kind] for op in ops])
        each_s = np.array([[dispatch_s(pricing.job, pricing.constants.efficiency, op)] for op in ops])
        self._forward_start_s = np.stack([t.forward_kernels for t in times]) * each_s
        self._backward_start_s = np.stack([t.backward_kernels for t in times]) * each_s

    def wait_s(self, host_s: Floats, device_s: Floats) -> Floats:
        """What a pass takes beyond its device seconds, shape (S,)."""
        software = self.pricing.job.software
        graphed = software.cuda_graphs and software.graphed_experts
        counted = not graphed and not software.capacity_factor  # a capacity fixes the sizes: nothing to read back
        routed = counted and any(op.kind is OpKind.GROUPED_GEMM for op in self.ops)
        return host_wait_s(device_s, host_s, routed | (self.table.tp > 1))

    @property
    def forward_host_s(self) -> Floats:
        """Seconds that the slowest host of a group needs to start the kernels of a forward pass, shape (S,)."""
        return self._host_s(self._forward_start_s.sum(axis=0) + self._collectives_s[0])

    @property
    def backward_host_s(self) -> Floats:
        """Seconds that the slowest host of a group needs to start the kernels of a backward pass, shape (S,)."""
        return self._host_s(self._backward_start_s.sum(axis=0) + self._collectives_s[1])

    @property
    def repeated_host_s(self) -> Floats:
        """Seconds that the slowest host of a group needs to start what the backward pass repeats, shape (S,)."""
        again = [self._forward_start_s[self._repeated(recompute)].sum(axis=0) for recompute in self.table.recomputes]
        whole = np.array([recompute.granularity is Granularity.FULL for recompute in self.table.recomputes])
        start_s = (
            np.stack(again)[self.table.recompute, np.arange(len(self.table))]
            + whole[self.table.recompute] * self._collectives_s[0]
        )
        return self._host_s(start_s)

    @cached_property
    def _collectives_s(self) -> tuple[Floats, Floats]:
        """Host's work for tensor-parallel collectives, forward and backward, shapes (S,)."""
        efficiency = self.pricing.constants.efficiency
        each_s = efficiency.shared.collective_kernels * dispatch_s(self.pricing.job, efficiency)
        forward, backward = tensor_calls(self.name, self.pricing.model, self.table)
        return each_s * forward, each_s * backward

    def _host_s(self, start_s: Floats) -> Floats:
        """Hosts vary, and ranks that meet in every layer wait for the slowest of their group."""
        efficiency = self.pricing.constants.efficiency
        host = efficiency.generation(self.pricing.accelerator).host
        return np.asarray(start_s * host * (1.0 + efficiency.shared.host_jitter * expected_maximum(self.table.tp)))

    @cached_property
    def exchange(self) -> LayerExchange:
        """Exchanges of the part before anything hides them."""
        return layer_exchange(self.name, self.pricing.model, self.pricing.job, self.placed)

    def forward_s(self, *, exchanges: bool) -> Floats:
        """Forward seconds by work, shape (len(Work), S)."""
        out = self._compute(self.op_forward_s)
        if not exchanges:
            return out
        gemm, attention = out[Work.GEMM], out[Work.ATTENTION]
        e = self.exchange
        out[Work.TP] = self._tp_exposed(e.tp_forward_s, gemm)
        out[Work.CP] = self._hidden_behind(e.cp_forward_s, attention)
        out[Work.EP] = self._ep_exposed(e.ep_forward_s, out)
        out[Work.WEIGHTS] = self._weights_exposed(e.weights_forward_s, out[list(DEVICE_WORKS)].sum(axis=0))
        return out

    def backward_s(self, *, exchanges: bool) -> Floats:
        """Backward seconds by work with recompute, shape (len(Work), S)."""
        out = self._compute(self.op_backward_s)
        out[Work.RECOMPUTE] = self._repeated_compute_s()
        out[Work.MEMORY] += self._accumulation_s()
        if not exchanges:
            return out
        e = self.exchange
        gemm = out[Work.GEMM]
        attention = out[Work.ATTENTION]
        repeated_exchange = self._repeated_s
        out[Work.TP] = self._tp_backward(gemm) + repeated_exchange[0]
        out[Work.CP] = self._hidden_behind(e.cp_backward_s, attention) + repeated_exchange[1]
        out[Work.EP] = self._ep_exposed(e.ep_backward_s, out) + repeated_exchange[2]
        out[Work.WEIGHTS] = self._weights_exposed(e.weights_backward_s, out[list(DEVICE_WORKS)].sum(axis=0))
        return out

    def links_s(self, *, exchanges: bool) -> tuple[Floats, Floats]:
        """Seconds on outer tiers of a forward and a backward pass, shapes (T, S); see :class:`PartCosts`."""
        shape = (1 + len(self.exchange.ep_load), len(self.table))
        if not exchanges or shape[0] == 1:
            return np.zeros(shape), np.zeros(shape)
        e, (again_tp, again_cp, again_ep) = self.exchange, self._repeated_s
        passes = (
            (e.tp_load, e.tp_forward_s, e.tp_backward_s + again_tp),
            (e.cp_load, e.cp_forward_s, e.cp_backward_s + again_cp),
            (e.ep_load, e.ep_forward_s, e.ep_backward_s + again_ep),
            (e.weights_load, e.weights_forward_s, e.weights_backward_s),
        )
        forward, backward = np.zeros(shape), np.zeros(shape)
        for load, forward_s, backward_s in passes:
            if load.any():
                uses = np.concatenate([load[:1] > 0.0, load])
                forward += uses * forward_s
                backward += uses * backward_s
        return forward, backward

    def _compute(self, op_s: Floats) -> Floats:
        out = np.zeros((len(Work), len(self.table)))
        np.add.at(out, self.work, op_s)
        return out

    def _accumulation_s(self) -> Floats:
        """Seconds to add the gradients of a micro-batch to their sum, shape (S,)."""
        p = self.pricing
        parameters = self.parameters.dense + self.parameters.expert
        return accumulation_s(parameters, p.job, p.accelerator, efficiency=p.constants.efficiency)

    @property
    def _step_exchange(self) -> float:
        """Time of a tensor-parallel exchange over its time alone: more where Python starts it between other calls."""
        software = self.pricing.job.software
        copied = software.scripted or software.copied_exchanges
        return self.pricing.constants.overlap.step_exchange if copied else 1.0

    def _tp_exposed(self, transfer_s: Floats, gemm_s: Floats) -> Floats:
        overlap = self.pricing.constants.overlap
        if not self.pricing.job.software.tp_overlap:
            return self._step_exchange * transfer_s
        pieces, contention = np.minimum(self.table.tp, overlap.tp_chunks), overlap.user_buffer_contention
        return exposed_s(transfer_s, gemm_s, overlap.window_share, least_share=1.0 / pieces, contention=contention)

    def _tp_backward(self, gemm_s: Floats) -> Floats:
        """Backward exchanges of column-parallel GEMMs run beside weight-gradient GEMMs in most frameworks."""
        e, overlap = self.exchange, self.pricing.constants.overlap
        if not self.pricing.job.software.tp_backward_overlap:
            return self._tp_exposed(e.tp_backward_s, gemm_s)
        beside_s = self._step_exchange * e.tp_backward_hidden_s
        beside = exposed_s(beside_s, 0.5 * gemm_s, overlap.window_share, contention=overlap.contention)
        return self._tp_exposed(e.tp_backward_s - e.tp_backward_hidden_s, gemm_s) + beside

    def _hidden_behind(self, transfer_s: Floats, window_s: Floats) -> Floats:
        """Ring attention sends the next keys and values while it works on the present ones; the others wait."""
        if self.pricing.job.software.cp_comm != "p2p":
            return transfer_s
        overlap = self.pricing.constants.overlap
        share = (self.table.cp - 1) / self.table.cp
        return exposed_s(transfer_s, share * window_s, overlap.window_share, contention=overlap.contention)

    def _ep_exposed(self, transfer_s: Floats, works: Floats) -> Floats:
        """With expert overlap, one micro-batch's exchange runs beside another one's compute of the other direction."""
        if not self.pricing.job.software.expert_overlap:
            return transfer_s
        window = works[list(DEVICE_WORKS)].sum(axis=0)
        overlap = self.pricing.constants.overlap
        return exposed_s(transfer_s, window, overlap.window_share, contention=overlap.contention)

    def _weights_exposed(self, transfer_s: Floats, compute_s: Floats) -> Floats:
        overlap = self.pricing.constants.overlap
        hides = self.pricing.job.software.param_overlap
        window = compute_s if hides else np.zeros_like(compute_s)
        return exposed_s(transfer_s, window, overlap.window_share, contention=overlap.contention)

    def repeated_by(self, recompute: Recompute) -> Floats:
        """Seconds of forward compute that a recompute choice runs again, shape (S,)."""
        return np.asarray(self.op_forward_s[self._repeated(recompute)].sum(axis=0))

    def _repeated(self, recompute: Recompute) -> Bools:
        """Which ops a recompute choice runs again."""
        return np.array([_repeats(recompute, op) for op in self.ops])

    def _repeated_compute_s(self) -> Floats:
        """Seconds of forward compute that the backward pass runs again, shape (S,)."""
        choices = np.stack([self.repeated_by(recompute) for recompute in self.table.recomputes])
        return np.asarray(choices[self.table.recompute, np.arange(len(self.table))])

    @cached_property
    def _repeated_s(self) -> Floats:
        """Seconds of TP, CP and EP exchanges that the backward pass runs again, shape (3, S)."""
        repeated = np.zeros((3, len(self.table)))
        e = self.exchange
        step_exchange = self._step_exchange
        for number, recompute in enumerate(self.table.recomputes):
            rows = self.table.recompute == number
            if recompute.granularity is Granularity.FULL and self.name not in (EMBEDDING, HEAD):
                repeated[:, rows] = np.stack([step_exchange * e.tp_forward_s, e.cp_forward_s, e.ep_forward_s])[:, rows]
            elif "moe" in recompute.modules:
                repeated[2, rows] = e.ep_forward_s[rows]
        return repeated


def _repeats(recompute: Recompute, op: Op) -> bool:
    """Whether the backward pass runs the op's forward again. The ends of the model are never recomputed."""
    if op.module in (EMBEDDING, HEAD) or recompute.granularity is Granularity.NONE:
        return False
    if recompute.granularity is Granularity.FULL:
        return True
    inside = {inner for module in recompute.modules for inner in SUBMODULES.get(module, ())}
    return op.module in recompute.modules or op.module in inside

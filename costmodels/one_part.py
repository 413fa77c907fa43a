"""Times of one part of a model under all strategies: compute by op, exchanges, what hides, waits and runs again."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.compute import (
    accumulation_s,
    dispatch_s,
    host_link_bytes_per_s,
    input_gradients_s,
    shard_copies_s,
    times_of_ops,
)
from costmodels.compute.local import ROUTED
from costmodels.compute.machine import machine_of
from costmodels.compute.traffic import traffic_s
from costmodels.exchange import LayerExchange, PlacedTable, layer_exchange, tensor_calls
from costmodels.host_waits import BESIDE, IN_TURN, MEETING, host_wait_s
from costmodels.layout import GATHERING_ZERO, REDUCING_ZERO, Granularity, Recompute
from costmodels.memory.offloaded import away_bytes
from costmodels.memory.states import LocalParameters, local_parameters
from costmodels.mesh import Axis
from costmodels.overlap import exposed_s
from costmodels.part_ops import EMBEDDING, HEAD
from costmodels.pricing import Pricing
from costmodels.reliability import expected_maximum
from costmodels.table import Bools, Floats
from costmodels.workload.op import SUBMODULES, Op, OpKind, Split
from costmodels.workload.per_op import listed
from costmodels.works import DEVICE_WORKS, WORK_OF, Work
from hardware.cluster import FabricShape

CAST_KERNELS: Final = 2.0
"""Kernels that add the gradients of one tensor to their fp32 sum: the cast and the addition (DeepSpeed,
``bf16_optimizer.py``, ``update_hp_grads``)."""


class Part:
    """One part under all strategies: its compute by op, its exchanges, and what they add up to."""

    def __init__(self, pricing: Pricing, placed: PlacedTable, name: str, ops: Sequence[Op]) -> None:
        self.pricing = pricing
        self.placed = placed
        self.table = table = placed.table
        self.ops = ops
        self.parameters: LocalParameters = local_parameters(ops, table)
        self.name = name
        times = times_of_ops(ops, pricing.job, table, pricing.accelerator, efficiency=pricing.constants.efficiency)
        self.op_forward_s, self.op_backward_s = times.forward_s, times.backward_s
        self.work = np.array([WORK_OF[op.kind] for op in ops])
        each_s = np.array([[dispatch_s(pricing.job, pricing.constants.efficiency, op)] for op in ops])
        each_s = each_s * self._host_share()
        self._forward_start_s, self._backward_start_s = times.forward_kernels * each_s, times.backward_kernels * each_s

    def _host_share(self) -> Floats:
        """What of the host's time per kernel the calls of the part's ops take, shape (ops, S).

        Where FSDP's or ZeRO's hooks stand around the modules, and of experts, nothing else is known than the whole.
        """
        share = np.where(self.table.zero >= REDUCING_ZERO, 1.0, self.pricing.job.software.host_share)
        return np.stack([np.ones_like(share) if op.split in ROUTED else share for op in self.ops])

    @cached_property
    def host_exponent(self) -> Floats:
        """How host and device share the passes of the part, as in :mod:`costmodels.host_waits`, shape (S,)."""
        software, tp = self.pricing.job.software, self.table.tp
        if software.blocking_launches:
            return np.full(tp.shape, IN_TURN)
        graphed = software.cuda_graphs and software.graphed_experts
        counted = not graphed and not software.capacity_factor  # a capacity fixes the sizes: nothing to read back
        routed = counted and any(op.kind is OpKind.GROUPED_GEMM for op in self.ops)
        return np.where(routed | (tp > 1), MEETING, BESIDE)

    @cached_property
    def hosts_run_on(self) -> Bools:
        """Where hosts run on while their devices exchange: tensor-parallel groups that leave their node, shape (S,).

        Such an exchange takes longer than what a host starts between two, so that no host is behind at the next one.
        """
        software, inside = self.pricing.job.software, sum(not tier.leaves_node for tier in self.placed.tiers)
        if software.hosts_in_turn or software.blocking_launches:
            return np.zeros(len(self.table), dtype=np.bool_)
        return np.asarray(self.placed.group(Axis.TP).parts(inside - 1) > 1)

    def forward_wait_s(self, works_s: Floats) -> Floats:
        """What a forward pass of these seconds by work, shape (len(Work), S), waits for the host, shape (S,)."""
        lead_s = self.hosts_run_on * works_s[Work.TP]
        return self._wait_s(self.forward_host_s - lead_s, works_s.sum(axis=0) - lead_s)

    def backward_wait_s(self, works_s: Floats) -> Floats:
        """As :meth:`forward_wait_s` of a backward pass; what it repeats is a pass of its own."""
        again_s, repeated_s = works_s[Work.RECOMPUTE], self.hosts_run_on * self._repeated_s[0]
        lead_s = self.hosts_run_on * works_s[Work.TP]
        once_s = self._wait_s(self.backward_host_s - lead_s + repeated_s, works_s.sum(axis=0) - again_s - lead_s)
        return once_s + self._wait_s(self.repeated_host_s - repeated_s, again_s)

    def _wait_s(self, host_s: Floats, device_s: Floats) -> Floats:
        """What a pass takes beyond its device seconds, shape (S,)."""
        return host_wait_s(device_s, np.maximum(host_s, 0.0), self.host_exponent)

    @property
    def forward_host_s(self) -> Floats:
        """Seconds that the slowest host of a group needs to start the kernels of a forward pass, shape (S,)."""
        return self._host_s(self._forward_start_s.sum(axis=0) + self._collectives_s[0] + self._gathers_s)

    @property
    def backward_host_s(self) -> Floats:
        """Seconds that the slowest host of a group needs to start the kernels of a backward pass, shape (S,)."""
        started_s = self._backward_start_s.sum(axis=0) + self._cast_start_s
        return self._host_s(started_s + self._collectives_s[1] + self._gathers_s)

    @property
    def repeated_host_s(self) -> Floats:
        """Seconds that the slowest host of a group needs to start what the backward pass repeats, shape (S,)."""
        again = [self._repeated(recompute) @ self._forward_start_s for recompute in self.table.recomputes]
        started_s = np.stack(again)[self.table.recompute, np.arange(len(self.table))]
        return self._host_s(started_s + self._whole * (self._collectives_s[0] + self._gathers_s))

    @property
    def turns_s(self) -> Floats:
        """Seconds in which the hosts of a group take turns at its exchanges, forward and backward, shape (2, S)."""
        forward, backward = self._calls
        each_s = self.pricing.constants.overlap.turn_s * self.table.tp
        return np.asarray(each_s * np.stack([forward, backward + self._whole * forward]))

    @property
    def _whole(self) -> Bools:
        """Where the backward pass repeats the whole forward one, shape (S,)."""
        full = [recompute.granularity is Granularity.FULL for recompute in self.table.recomputes]
        return np.array(full)[self.table.recompute]

    @cached_property
    def _calls(self) -> tuple[Floats, Floats]:
        """Tensor-parallel collectives, forward and backward, shapes (S,)."""
        return tensor_calls(self.name, self.pricing.model, self.pricing.job, self.table)

    @cached_property
    def _collectives_s(self) -> tuple[Floats, Floats]:
        """Host's work for tensor-parallel collectives, forward and backward, shapes (S,)."""
        efficiency = self.pricing.constants.efficiency
        each_s = efficiency.shared.collective_kernels * dispatch_s(self.pricing.job, efficiency)
        forward, backward = self._calls
        return each_s * forward, each_s * backward

    @cached_property
    def _gathers_s(self) -> Floats:
        """Host's work of a pass to gather the weights of experts module by module under ZeRO-3, shape (S,).

        The hooks of a module's forward and backward fetch, wait and release one weight at a time; nothing is fetched
        ahead, as which expert comes next is not known. Grouped products have one weight for all experts.
        """
        software = self.pricing.job.software
        experts = [op for op in self.ops if op.kind is OpKind.GROUPED_GEMM]
        if not experts or software.grouped_gemm or not software.gather_parameters:
            return np.zeros(len(self.table))
        least = min(op.k * op.n for op in experts)  # a gated projection is two modules
        modules = sum(op.k * op.n / least * np.ceil(op.experts / self.table.ep) for op in experts)
        each_s = self.pricing.constants.efficiency.shared.module_gather_s
        return np.asarray(np.where(self.table.zero == 3, each_s * modules, 0.0))

    @property
    def _cast_start_s(self) -> float:
        """Host's work to start a cast and a sum for every weight, bias and gain, one by one, after a backward pass."""
        if not self.pricing.job.software.cast_gradients:
            return 0.0
        hidden = self.pricing.model.hidden
        tensors = sum(2 if _has_biases(op, hidden) else 1 for op in self.ops if op.parameters)
        return CAST_KERNELS * tensors * dispatch_s(self.pricing.job, self.pricing.constants.efficiency)

    def _host_s(self, start_s: Floats) -> Floats:
        """Hosts vary, and ranks that meet in every layer wait for the slowest of their group.

        A host that runs ahead makes up for what it lost; where every launch waits for its kernel none does, and each
        exchange waits for the host that took longest since the last one.
        """
        efficiency = self.pricing.constants.efficiency
        shared, host = efficiency.shared, efficiency.generation(self.pricing.accelerator).host
        blocking = self.pricing.job.software.blocking_launches
        jitter = shared.blocked_jitter if blocking else shared.host_jitter
        mean_s = start_s * host * self._pieces_host * (shared.blocked_host if blocking else 1.0)
        return np.asarray(mean_s * (1.0 + jitter * expected_maximum(self.table.tp)))

    @cached_property
    def _pieces_host(self) -> Floats:
        """Host's seconds over those of whole layers, shape (S,).

        More than 1 where the exchange of experts runs beside another micro-batch: each layer is started in pieces,
        with a graph of gradients and events of its own for every piece.
        """
        cut = self.pricing.job.software.expert_overlap and any(op.kind is OpKind.GROUPED_GEMM for op in self.ops)
        factor = self.pricing.constants.efficiency.shared.overlapped_host if cut else 1.0
        return np.where(self.table.ep > 1, factor, 1.0)

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
        out[Work.TP] = self._tp_exposed(e.tp_forward_s, gemm) + self._copies_s[0]
        out[Work.CP] = self._hidden_behind(e.cp_forward_s, attention)
        out[Work.EP] = self._ep_exposed(e.ep_forward_s, out)
        out[Work.WEIGHTS] = self._weights_exposed(e.weights_forward_s, 0.0, out) + self._shard_copies_s[0]
        out[Work.OFFLOAD] = self._copies_exposed(out)
        return out

    def backward_s(self, *, exchanges: bool) -> Floats:
        """Backward seconds by work with recompute, shape (len(Work), S)."""
        out = self._compute(self.op_backward_s)
        out[Work.RECOMPUTE] = self._repeated_compute_s()
        out[Work.MEMORY] += self._accumulation_s() + self._input_gradients_s()
        if not exchanges:
            return out
        e = self.exchange
        gemm = out[Work.GEMM]
        attention = out[Work.ATTENTION]
        repeated_exchange = self._repeated_s
        out[Work.TP] = self._tp_backward(gemm) + self._copies_s[1] + repeated_exchange[0]
        out[Work.CP] = self._hidden_behind(e.cp_backward_s, attention) + repeated_exchange[1]
        out[Work.EP] = self._ep_exposed(e.ep_backward_s, out) + repeated_exchange[2]
        gathers_s = e.weights_backward_s - e.weights_reduced_s
        out[Work.WEIGHTS] = self._weights_exposed(gathers_s, e.weights_reduced_s, out) + self._shard_copies_s[1]
        out[Work.OFFLOAD] = self._copies_exposed(out)
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

    @cached_property
    def _shard_copies_s(self) -> tuple[Floats, Floats]:
        """Seconds of the copies around weight gathers and gradient reductions, forward and backward, shapes (S,)."""
        p = self.pricing
        return shard_copies_s(self.parameters, p.job, self.table, p.accelerator, efficiency=p.constants.efficiency)

    def _copies_exposed(self, works_s: Floats) -> Floats:
        """Seconds by which copies of activations over the host's link outlast the pass that they run beside, (S,).

        They run on streams of their own by copy engines, in both directions at once.
        """
        p = self.pricing
        if not p.job.software.offload_modules:
            return np.zeros(len(self.table))
        copied_s = away_bytes(self.ops, p.job, self.table) / host_link_bytes_per_s(p.island.node)
        return np.asarray(np.maximum(copied_s - works_s.sum(axis=0), 0.0))

    def _input_gradients_s(self) -> Floats:
        """Seconds of a backward pass to add up the gradients of inputs that products apart share, shape (S,)."""
        p = self.pricing
        return input_gradients_s(self.ops, p.job, self.table, p.accelerator, efficiency=p.constants.efficiency)

    @cached_property
    def _copies_s(self) -> tuple[Floats, Floats]:
        """Seconds of the copies around tensor-parallel exchanges, forward and backward, shapes (S,)."""
        machine = machine_of(self.pricing.accelerator, self.pricing.constants.efficiency)
        forward, backward = self.exchange.tp_copied_forward_bytes, self.exchange.tp_copied_backward_bytes
        return traffic_s(forward, machine, kernels=0.0), traffic_s(backward, machine, kernels=0.0)

    @cached_property
    def _step_exchange(self) -> Floats:
        """Time of a tensor-parallel exchange over its time alone, shape (S,).

        More than 1 where Python starts it between other calls, and most where the group's links are shared.
        """
        software, overlap = self.pricing.job.software, self.pricing.constants.overlap
        if not software.scripted:
            return np.ones(len(self.table))
        shared = self.placed.group(Axis.TP).parts(0) > 1
        if self.placed.tiers[0].shape is FabricShape.TREE:
            shared = np.ones_like(shared)
        return np.where(shared, overlap.step_exchange, overlap.step_exchange_own)

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

    def _weights_exposed(self, gathers_s: Floats, reductions_s: Floats | float, works: Floats) -> Floats:
        """Seconds of weight gathers and of a micro-batch's gradient reductions that a pass does not hide, shape (S,).

        What hides shares the pass's compute, seconds by work of shape (len(Work), S). Under ZeRO-3 both run in the
        order in which one communicator got them: a pass that waits for its gathers waits for reductions too.
        """
        overlap, software = self.pricing.constants.overlap, self.pricing.job.software
        reduces_beside = software.grad_overlap & (software.param_overlap | (self.table.zero < GATHERING_ZERO))
        beside_s = software.param_overlap * gathers_s + reduces_beside * reductions_s
        window_s = works[list(DEVICE_WORKS)].sum(axis=0)
        shown_s = exposed_s(beside_s, window_s, overlap.window_share, contention=overlap.contention)
        return np.asarray(gathers_s + reductions_s - beside_s + shown_s)

    def repeated_by(self, recompute: Recompute) -> Floats:
        """Seconds of forward compute that a recompute choice runs again, shape (S,)."""
        return np.asarray(self._repeated(recompute) @ self.op_forward_s)

    def _repeated(self, recompute: Recompute) -> Floats:
        """Share of every op that a recompute choice runs again, shape (ops,)."""
        software, unlisted = self.pricing.job.software, self.pricing.job.precision.unlisted
        if recompute.per_op and self.name not in (EMBEDDING, HEAD):
            return np.array([op.again for op in listed(self.ops, compiled=software.compiled, unlisted=unlisted)])
        again = np.array([float(_repeats(recompute, op)) for op in self.ops])
        if software.repeats_what_is_read and recompute.granularity is not Granularity.NONE:
            again[_read_until(self.ops) :] = 0.0
        return again

    @cached_property
    def _unread_tp_s(self) -> Floats:
        """Seconds of the reduction behind a part's last product, where no repeated pass comes to it, shape (S,)."""
        p, unread = self.pricing, np.zeros(len(self.table))
        last = self.ops[_read_until(self.ops) :]
        if not p.job.software.repeats_what_is_read or not any(op.split is Split.ROW for op in last):
            return unread
        size = self.placed.tokens(p.job) * (p.job.precision.activation_bytes * p.model.hidden)
        for call in self.exchange.calls:
            if call.axis is Axis.TP and call.collective in ("reduce_scatter", "all_reduce"):
                unread = unread + np.where(call.message_bytes == size, self._step_exchange * call.seconds, 0.0)
        copied = p.job.software.copied_exchanges & self.table.sequence_parallel & (self.table.tp > 1)
        machine = machine_of(p.accelerator, p.constants.efficiency)
        return unread + traffic_s(np.where(copied, 2.0 * size, 0.0), machine, kernels=0.0)

    def _repeated_compute_s(self) -> Floats:
        """Seconds of forward compute that the backward pass runs again, shape (S,)."""
        choices = np.stack([self.repeated_by(recompute) for recompute in self.table.recomputes])
        return np.asarray(choices[self.table.recompute, np.arange(len(self.table))])

    @cached_property
    def _repeated_s(self) -> Floats:
        """Seconds of TP, CP and EP exchanges that the backward pass runs again, shape (3, S)."""
        repeated = np.zeros((3, len(self.table)))
        e = self.exchange
        tp_s = self._step_exchange * e.tp_forward_s + self._copies_s[0]
        for number, recompute in enumerate(self.table.recomputes):
            rows = self.table.recompute == number
            if recompute.granularity is Granularity.FULL and self.name not in (EMBEDDING, HEAD):
                repeated[:, rows] = np.stack([tp_s - self._unread_tp_s, e.cp_forward_s, e.ep_forward_s])[:, rows]
            elif recompute.per_op and self.name not in (EMBEDDING, HEAD):  # gathers; what sums scatter is kept
                repeated[0, rows] = (0.5 * tp_s)[rows]
            elif "moe" in recompute.modules:
                repeated[2, rows] = e.ep_forward_s[rows]
        return repeated


def _read_until(ops: Sequence[Op]) -> int:
    """How many ops of a layer run again where recompute ends with the last tensor that the backward pass reads.

    The sum with the residual keeps nothing but a dropout mask; of the product before it only the input is read.

    References
    ----------
    PyTorch documentation of ``torch.utils.checkpoint``: the non-reentrant form stops as soon as all needed tensors are
    there (pull request 96866, release 2.1); the reentrant one, and Megatron-LM's own, run the whole function.
    """
    end = len(ops)
    while (
        end and ops[end - 1].kind is OpKind.MEMORY and ops[end - 1].split is Split.SEQUENCE and not _keeps(ops[end - 1])
    ):
        end -= 1
    return end - (end > 0 and ops[end - 1].kind is OpKind.GEMM)


def _has_biases(op: Op, hidden: int) -> bool:
    """Whether a product or a norm has a tensor of biases beside its weights or gains."""
    return op.parameters == 2 * hidden or 0 < op.k * op.n < op.parameters


def _keeps(op: Op) -> bool:
    """Whether the backward pass reads a tensor that the op keeps."""
    return bool(op.saved_elements_per_token or op.saved_bytes_per_token)


def _repeats(recompute: Recompute, op: Op) -> bool:
    """Whether the backward pass runs the op's forward again. The ends of the model are never recomputed."""
    if op.module in (EMBEDDING, HEAD) or recompute.granularity is Granularity.NONE:
        return False
    if recompute.granularity is Granularity.FULL:
        return True
    inside = {inner for module in recompute.modules for inner in SUBMODULES.get(module, ())}
    return op.module in recompute.modules or op.module in inside

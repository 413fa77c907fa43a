"""Forward and backward time of an op of a layer, for a whole table of strategies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.compute.attention import AttentionShape, flash_attention_s, matrix_attention_s
from costmodels.compute.capacity import capacity_s, masked
from costmodels.compute.gemm import GemmShape, gemm_s
from costmodels.compute.joined import products_of
from costmodels.compute.local import ROUTED, Grid, attention_shape, feature_split, gemm_shape, grid_of, rank_tokens
from costmodels.compute.machine import ELEMENT_BYTES, LOW_PRECISION, Machine, machine_of, refuse_format
from costmodels.compute.row_scales import row_scaling_s
from costmodels.compute.traffic import quantise_s, scan_s, traffic_s
from costmodels.efficiency import Efficiency
from costmodels.job import Dispatcher, TrainingJob
from costmodels.table import Floats, StrategyTable
from costmodels.workload.ends import LOGITS
from costmodels.workload.kernels import SCORE_ELEMENTS, Softmax
from costmodels.workload.linear_loss import LinearLoss
from costmodels.workload.op import Op, OpKind, Split
from hardware.cluster import Accelerator

_UNFUSED_KERNELS: Final = 4.0  # kernels of a memory-bound op whose steps are not fused
_DISPATCH_KERNELS: Final = 8.0  # routing, counts, sorting, permutation and exchange on one side of the experts
_PERMUTATION: Final = MappingProxyType({Dispatcher.HYBRIDEP: 0.4, Dispatcher.DEEPEP: 0.55})
"""Passes over routed tokens that are left of the seven around an all-to-all. Hybrid-EP writes and reads them in expert
order: 3. DeepEP sends from the layer's input and sums before it returns: 4, each received token sorted by expert and
back."""
_SCAN_KERNELS: Final = (5.0, 10.0)  # chunk states, their scan, chunk products, convolution; with gradients
_SCAN_BACKWARD: Final = 2.5  # gradients of both operands, and the chunk states again
_SOFTMAX_BATCH: Final = 4.0  # sequences times heads that a block of the fused softmax takes
_SEPARATE_ELEMENTS: Final = SCORE_ELEMENTS[Softmax.SEPARATE_FP32] - SCORE_ELEMENTS[Softmax.FUSED]
_SEPARATE_KERNELS: Final = 4.0  # cast, scale, mask, softmax and cast back for one
_ALIGNED_BYTES: Final = 16.0  # kernels load so much at once
_WORD_BYTES: Final = 4.0  # the least that goes to shared memory without a detour over registers
_ADAPTER_PASSES: Final = (2.0, 3.0)  # over the result: the scale alpha / rank reads and writes; the sum reads two
_ADAPTER_KERNELS: Final = (4.0, 6.0)  # forward and backward: parallel layers of their own (Megatron-core's adapters)
_PLAIN_ADAPTER_KERNELS: Final = (2.0, 3.0)
"""Of plain modules (PEFT): two products, a dropout, a cast, a scale and a sum, each one call, where a kernel of a layer
stands for several.

Fitted with ``host_share`` of the preset fsdp-modules: 0.35 ms more per adapter for two passes forward and one backward
(Qwen 1.8B on A100, modelscope/ms-swift docs/source_en/LLM/Benchmark.md, full and adapters at 512 tokens), 0.27 ms with
five a layer (QwenLM/Qwen README.md, 256 tokens).
"""
_OPAQUE_BACKWARD: Final = 2.0  # gradients of inputs and of weights


@dataclass(frozen=True, kw_only=True)
class OpTimes:
    """Device seconds of ops per micro-batch on one rank, and the kernels that the host starts.

    Arrays of shape (S,) of one op, or (ops, S) of several. ``forward_kernels`` and ``backward_kernels`` count what a
    kernel-by-kernel framework launches for an op.
    """

    forward_s: Floats
    backward_s: Floats
    forward_kernels: Floats
    backward_kernels: Floats


_TIMES: Final = tuple(item.name for item in fields(OpTimes))


@dataclass(frozen=True, kw_only=True)
class _Priced:
    """Device seconds of one op over a grid (U,), and how many kernels the host starts for it: (U,), or for all rows."""

    forward_s: Floats
    backward_s: Floats
    forward_kernels: Floats | float
    backward_kernels: Floats | float


def times_of_ops(
    ops: Sequence[Op],
    job: TrainingJob,
    table: StrategyTable,
    accelerator: Accelerator,
    *,
    clock: Floats | float = 1.0,
    efficiency: Efficiency,
) -> OpTimes:
    """Times of ops per micro-batch on one rank, without communication.

    Parameters
    ----------
    ops : sequence of Op
        The ops; quantities per token before any division over the mesh.
    job : TrainingJob
        Sequence length, number formats, software.
    table : StrategyTable
        Strategies, S rows.
    accelerator : Accelerator
        The accelerator of the stage.
    clock : array or float
        Sustained clock over the accelerator's highest clock [1], scalar or shape (S,). Efficiencies hold at 1.0;
        :mod:`costmodels.power.accelerator` gives what a power limit leaves of it.
    efficiency : Efficiency
        Constants of all generations.

    Returns
    -------
    OpTimes
        Of shape (ops, S). Recomputed work is not in the backward time.

    Raises
    ------
    InputError
        When the accelerator lacks the job's number format.
    """
    refuse_format(accelerator, job.precision)
    grid = grid_of(table, clock)
    row_clock = clock if np.ndim(clock) == 0 else np.asarray(clock, dtype=np.float64)[grid.first]
    machine = replace(
        machine_of(accelerator, efficiency, clock=row_clock, in_step=True),
        block_scaled=job.precision.scale_block > 0,
        early_release=job.software.early_release,
    )
    priced = [_PRICES[op.kind](op, grid, job, machine) for op in ops]
    found = np.empty((len(_TIMES), len(ops), len(grid.first)))
    for number, name in enumerate(_TIMES):
        for row, one in enumerate(priced):
            found[number, row] = getattr(one, name)
    return OpTimes(**dict(zip(_TIMES, found.take(grid.inverse, axis=2), strict=True)))


def dispatch_s(job: TrainingJob, efficiency: Efficiency, op: Op | None = None) -> float:
    """Host time to start one kernel: in a captured graph, from compiled code, from fused modules or op by op [s].

    Graphs of parts of a layer leave out what follows the routing: its sizes are not known when the graph is captured.
    """
    shared = efficiency.shared
    routed = op is not None and op.split in ROUTED
    if job.software.cuda_graphs and (job.software.graphed_experts or not routed):
        return shared.graph_dispatch_s
    if job.software.compiled:
        return shared.compiled_dispatch_s
    return shared.script_dispatch_s if job.software.scripted else shared.dispatch_s


def _gemm(op: Op, grid: Grid, job: TrainingJob, machine: Machine) -> _Priced:
    """Forward, gradient of the input (m, n by k), and gradient of the weight (k, m by n, added to the buffer)."""
    shape = gemm_shape(op, grid, job)
    number_format = job.precision.gemm if op.low_precision else job.precision.attention
    # Without a grouped kernel every expert's product is a kernel of its own.
    one_by_one = op.kind is OpKind.GROUPED_GEMM and not job.software.grouped_gemm
    calls = shape.groups if one_by_one else 1.0
    shape = replace(shape, groups=1.0) if one_by_one else shape
    shape = replace(shape, aligned=_aligned(op, shape.n, machine, number_format))
    accumulate_bytes = 2.0 * (job.software.gradient_bytes or job.precision.gradient_bytes)
    if job.software.separate_accumulation:
        accumulate_bytes = job.precision.activation_bytes
    loss = job.software.linear_loss
    if op.name == LOGITS and loss is not None:
        return _head_in_parts(replace(shape, output_bytes=accumulate_bytes), loss, job, machine, number_format)
    rows = shape.m * shape.groups * calls
    forward_s, backward_s = np.zeros_like(rows), np.zeros_like(rows)
    products = products_of(op, shape, job.software)
    for one in products:
        forward_s = forward_s + calls * gemm_s(one, machine, number_format)
        backward_s = backward_s + calls * gemm_s(replace(one, n=one.k, k=one.n), machine, number_format)
        if job.trained_share == 1.0:
            weight_gradient = replace(one, m=one.k, k=one.m, output_bytes=accumulate_bytes)
            width = job.precision.attention if job.software.wide_weight_gradients else number_format
            backward_s = backward_s + calls * gemm_s(weight_gradient, machine, width)
    casts_s = _casts(products, calls, job, machine, number_format)
    beside = _adapter(op, shape, job, machine)
    casts = 1.0 if number_format in LOW_PRECISION else 0.0
    launches: Floats | float = 1.0
    if op.kind is OpKind.GROUPED_GEMM:
        # One call from Python; inside it a kernel per expert and cast (several streams of one library).
        launches = launches + machine.shared.expert_kernels * np.ceil(op.experts / grid.ep)
    return _Priced(
        forward_s=forward_s + casts_s[0] + beside.forward_s,
        backward_s=backward_s + casts_s[1] + beside.backward_s,
        forward_kernels=launches * (1.0 + casts) + beside.forward_kernels,
        backward_kernels=launches * (2.0 + casts) + beside.backward_kernels,
    )


def _casts(
    products: Sequence[GemmShape], calls: Floats | float, job: TrainingJob, machine: Machine, number_format: str
) -> tuple[Floats, Floats]:
    """Seconds of the casts to the format of products that read one input, forward and backward."""
    if number_format in LOW_PRECISION and job.software.row_scales and not job.precision.scale_block:
        trained = job.trained_share == 1.0 and not job.software.wide_weight_gradients
        return row_scaling_s(products, calls, machine, trained=trained)
    first, rows = products[0], products[0].m * products[0].groups * calls
    columns = np.sum([one.n for one in products], axis=0)
    return quantise_s(rows * first.k, machine, number_format), quantise_s(rows * columns, machine, number_format)


def _adapter(op: Op, shape: GemmShape, job: TrainingJob, machine: Machine) -> _Priced:
    """Low-rank adapter beside a frozen product: two thin products, a scale, and the sum of both results.

    Backward: the gradients of both factors, of what lies between them and of the input, and that one's sum. In the
    precision of activations, whatever the frozen product runs in.
    """
    rank, nothing = float(job.adapter_rank), np.zeros_like(shape.m)
    if not rank or op.kind is not OpKind.GEMM or op.module not in job.adapter_modules:
        return _Priced(forward_s=nothing, backward_s=nothing, forward_kernels=0.0, backward_kernels=0.0)
    number_format, width = job.precision.attention, job.precision.activation_bytes
    thin = rank * np.ones_like(shape.m)
    into = GemmShape(m=shape.m, n=thin, k=shape.k)
    out = GemmShape(m=shape.m, n=shape.n, k=thin)
    scaled_bytes, summed_bytes = (width * passes * shape.m for passes in _ADAPTER_PASSES)
    forward_kernels, backward_kernels = _ADAPTER_KERNELS if job.software.joined_products else _PLAIN_ADAPTER_KERNELS
    factors = (replace(into, m=into.k, k=into.m), replace(out, m=out.k, k=out.m))
    inputs = (replace(into, n=into.k, k=into.n), replace(out, n=out.k, k=out.n))
    return _Priced(
        forward_s=sum((gemm_s(one, machine, number_format) for one in (into, out)), nothing)
        + traffic_s((scaled_bytes + summed_bytes) * shape.n, machine, kernels=2.0),
        backward_s=sum((gemm_s(one, machine, number_format) for one in (*factors, *inputs)), nothing)
        + traffic_s(scaled_bytes * shape.n + summed_bytes * shape.k, machine, kernels=2.0),
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
    )


def _head_in_parts(
    shape: GemmShape, loss: LinearLoss, job: TrainingJob, machine: Machine, number_format: str
) -> _Priced:
    """Product with the output matrix, made with the loss part by part, and both of its gradients.

    ``shape`` is the whole product; its ``output_bytes`` are what adding to the sum of the weight's gradients moves.
    """
    written = job.precision.activation_bytes
    rows = loss.token_parts(np.asarray(shape.m), shape.n, int(np.max(shape.k)))
    columns = loss.column_parts(shape.n)
    parameters = shape.k * shape.n
    product = replace(shape, m=shape.m / rows, output_bytes=0.0 if loss.on_chip else written)
    forward_s = rows * gemm_s(product, machine, number_format)
    part = replace(shape, m=shape.m / rows, n=shape.n / columns)
    hidden = replace(part, n=part.k, k=part.n, output_bytes=loss.hidden_pass_bytes or written)
    backward_s = rows * columns * gemm_s(hidden, machine, number_format)
    if job.trained_share == 1.0:
        weight = replace(part, m=part.k, k=part.m, output_bytes=written + loss.weight_pass_bytes)
        backward_s = backward_s + rows * columns * gemm_s(weight, machine, number_format)
        backward_s = backward_s + traffic_s(shape.output_bytes * parameters, machine)
    if loss.recomputed:
        backward_s = backward_s + forward_s
    return _Priced(
        forward_s=forward_s,
        backward_s=backward_s,
        forward_kernels=rows,
        backward_kernels=(2.0 * columns + loss.recomputed) * rows,
    )


def _aligned(op: Op, columns: Floats, machine: Machine, number_format: str) -> Floats | float:
    """Rate of a product over one whose rows of results start at multiples of 16 bytes, shape (U,); 1 where all do.

    References
    ----------
    NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor Cores".
    """
    if op.padded:
        return 1.0
    row_bytes = np.floor(columns) * ELEMENT_BYTES[number_format]
    shared = machine.shared
    off = np.where(row_bytes % _WORD_BYTES == 0, shared.word_aligned_math, shared.unaligned_math)
    share: Floats = np.where(row_bytes % _ALIGNED_BYTES == 0, 1.0, off)
    return share


def _attention(op: Op, grid: Grid, job: TrainingJob, machine: Machine) -> _Priced:
    shape = attention_shape(op, grid, job)
    number_format = job.precision.attention
    started: Floats | float = 0.0
    if job.software.flash_attention:
        forward_s, backward_s = flash_attention_s(shape, machine, number_format, job.software.attention_kernel)
    else:
        separate = _separate_softmax(shape, job)
        elements = op.traffic_elements_per_score + _SEPARATE_ELEMENTS * separate
        forward_s, backward_s = matrix_attention_s(
            shape, machine, elements_per_score=elements, number_format=number_format
        )
        started = _SEPARATE_KERNELS * separate
    return _Priced(
        forward_s=forward_s,
        backward_s=backward_s,
        forward_kernels=2.0 + started,
        backward_kernels=3.0 + started,
    )


def _separate_softmax(shape: AttentionShape, job: TrainingJob) -> Floats:
    """1 where the fused kernel does not take a rank's heads and sequences, and PyTorch's kernels do its work; (U,)."""
    if job.software.softmax is not Softmax.FUSED_IN_FOURS:
        return np.zeros_like(shape.heads)
    sequences = shape.tokens / shape.matrix_keys
    return np.where(sequences * shape.heads % _SOFTMAX_BATCH == 0.0, 0.0, 1.0)


def _memory(op: Op, grid: Grid, job: TrainingJob, machine: Machine) -> _Priced:
    traffic_bytes = _traffic_bytes(op, grid, job)
    if op.split is Split.EXPERT_TOKENS:
        passes = 0.0 if masked(job.software) else _PERMUTATION.get(job.software.dispatcher, 1.0)
        traffic_bytes = traffic_bytes * passes
    kernels = 1.0 if job.software.fused_kernels or job.software.compiled else _UNFUSED_KERNELS
    started = _DISPATCH_KERNELS if op.split is Split.EXPERT_TOKENS else kernels
    if job.software.compiled:
        traffic_bytes = traffic_bytes * machine.shared.compiled_traffic
    backward = op.backward_traffic or machine.shared.backward_traffic
    capacity_forward_s, capacity_backward_s = capacity_s(op, grid, job, machine)
    return _Priced(
        forward_s=traffic_s(traffic_bytes, machine, kernels=kernels) + capacity_forward_s,
        backward_s=traffic_s(backward * traffic_bytes, machine, kernels=kernels) + capacity_backward_s,
        forward_kernels=started,
        backward_kernels=started,
    )


def _scan(op: Op, grid: Grid, job: TrainingJob, machine: Machine) -> _Priced:
    flops = op.flops_per_token * rank_tokens(op, grid, job) / feature_split(op, grid)
    traffic_bytes = _traffic_bytes(op, grid, job)
    forward_kernels, backward_kernels = _SCAN_KERNELS
    backward_bytes = machine.shared.backward_traffic * traffic_bytes
    return _Priced(
        forward_s=scan_s(flops, traffic_bytes, machine, kernels=forward_kernels),
        backward_s=scan_s(_SCAN_BACKWARD * flops, backward_bytes, machine, kernels=backward_kernels),
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
    )


def _opaque(op: Op, grid: Grid, job: TrainingJob, machine: Machine) -> _Priced:
    """A layer of totals: FLOPs at a general share of the peak beside its traffic and one reading of its weights."""
    split = feature_split(op, grid)
    flops = op.flops_per_token * rank_tokens(op, grid, job) / split
    weights = op.parameters * job.precision.weight_bytes / split
    rate = machine.rate_flops_per_s(job.precision.attention) * machine.shared.opaque_math
    power = machine.shared.roofline_power
    memory_s = traffic_s(_traffic_bytes(op, grid, job) + weights, machine, kernels=0.0)
    forward_s = ((flops / rate) ** power + memory_s**power) ** (1.0 / power) + machine.shared.memory_launch_s
    return _Priced(
        forward_s=forward_s, backward_s=_OPAQUE_BACKWARD * forward_s, forward_kernels=1.0, backward_kernels=2.0
    )


def _traffic_bytes(op: Op, grid: Grid, job: TrainingJob) -> Floats:
    per_token = op.traffic_elements_per_token * job.precision.activation_bytes + op.traffic_bytes_per_token
    traffic: Floats = per_token * rank_tokens(op, grid, job) / feature_split(op, grid)
    return traffic


_PRICES: Final[Mapping[OpKind, Callable[[Op, Grid, TrainingJob, Machine], _Priced]]] = MappingProxyType(
    {
        OpKind.GEMM: _gemm,
        OpKind.GROUPED_GEMM: _gemm,
        OpKind.ATTENTION: _attention,
        OpKind.MEMORY: _memory,
        OpKind.SCAN: _scan,
        OpKind.OPAQUE: _opaque,
    }
)

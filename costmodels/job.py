"""The training job and the software that runs it, as frozen values."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from costmodels.layout import Recompute
from costmodels.table import Bools, Ints
from costmodels.workload.kernels import Softmax
from costmodels.workload.linear_loss import LinearLoss

_MX_BLOCK: Final = 32  # elements that share a scale in the Open Compute Project's formats
LATE_FILL: Final = "fill"
"""Of ``Software.late_frees``: the host queues the forward passes that fill a pipeline without waiting for any."""


class Dispatcher(StrEnum):
    """How tokens reach their experts."""

    ALLTOALL = "alltoall"
    ALLGATHER = "allgather"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"


class ShardCopies(StrEnum):
    """What sharded data parallelism copies around its gathers and reductions; bytes in ``docs/compute.md``."""

    NONE = "none"  # exchanges read and write where products do
    FLAT = "flat"  # FSDP1: gathers into one tensor that weights are views of; its gradient is joined, cast, divided
    EACH = "each"  # FSDP2: gathered weights are copied out, gradients in, cast on the way
    BUCKETS = "buckets"  # DeepSpeed: gradients go to a bucket, are put in the order of ranks, and divided


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats of one training recipe; loaded from ``precision.toml`` by :mod:`costmodels.precision`.

    ``gemm`` names the field of :class:`hardware.cluster.PeakRates` for the layers' GEMMs, ``attention``
    the one for attention. Byte counts are per parameter or per element.
    """

    name: str
    gemm: str
    attention: str
    weight_bytes: float  # working copy of the weights
    extra_weight_bytes: float  # further resident copies (transposed fp8, ...)
    gradient_bytes: float  # accumulation buffer
    master_bytes: float  # fp32 master weights held by the optimizer; 0.0 when the working copy is the master
    activation_bytes: float  # an element kept for backward, default
    gemm_activation_bytes: float  # an element kept as the input of a low-precision GEMM
    gather_bytes: float  # per parameter in a weight all-gather
    reduce_bytes: float  # per parameter in a gradient reduction
    scale_block: int = 0  # elements of low-precision operands that share a scale; 0: one scale per tensor
    step_bytes: float = 0.0  # per parameter of the optimizer's shard, only while the optimizer steps (fp32 gradient)
    moment_bytes: float = 8.0  # of Adam's two moments, where the job states nothing else
    source: str = ""

    @property
    def scaled(self) -> bool:
        """Whether the layers' products run in a format of 8 or fewer bits, whose operands have scales."""
        return self.gemm.startswith(("fp8", "fp4", "int8"))

    @property
    def unlisted(self) -> bool:
        """Whether torchtitan's list of kept outputs lacks the layers' products: of all scaled formats but MXFP8.

        Those of MXFP8 count as plain products (``torch.mm`` of torchao's ``MXTensor``), those of NVFP4 are a function's
        of its own: torchtitan ``components/quantization/nvfp4.md``, whose two models hold as much in bf16 as in MXFP8
        and 34 to 64 GiB less in NVFP4. Products of one scale per tensor are not counted either: two runs of Llama 3.1
        8B on H200 hold 3 to 5 % more than is predicted so, and 40 % less than with them.
        """
        return self.scaled and not (self.gemm == "fp8" and self.scale_block == _MX_BLOCK)


@dataclass(frozen=True, kw_only=True)
class Software:
    """What the framework of a run can do; loaded from ``software.toml`` by :mod:`costmodels.software`.

    Flags say what is *used*, so that a row of an old framework is priced with what it had.
    """

    name: str
    framework: str
    flash_attention: bool = True
    fused_kernels: bool = True  # bias-dropout-add, rotary, SwiGLU
    softmax: Softmax = Softmax.FUSED  # of attention that is not fused
    tp_overlap: bool = False  # TP collectives overlap GEMMs (userbuffers)
    grad_overlap: bool = True  # gradient reduction hides behind backward
    sharded_grad_overlap: bool = True  # under ZeRO-1 too; false: there it waits for the end of all backward passes
    param_overlap: bool = True  # weight all-gather hides behind forward
    p2p_overlap: bool = True  # interleaved sends overlap compute
    expert_overlap: bool = False  # expert all-to-all hides behind compute of another micro-batch
    cuda_graphs: bool = False
    graphed_experts: bool = (
        True  # captured graphs hold the experts too (whole iterations), not attention and router alone
    )
    fused_loss: bool = False  # cross-entropy without a second copy of the logits
    linear_loss: LinearLoss | None = None  # the loss and the product with the output matrix, part by part
    loss_bytes_per_logit: float = 0.0  # at the peak of a loss of separate kernels; 0.0: the memory model's usual
    split_loss_bytes_per_logit: float = 0.0  # the same where tp ranks hold a part of the columns each; 0.0: no other
    grouped_gemm: bool = True
    plain_experts: bool = False  # clamps of activations and biases of outputs around grouped products are not fused
    compiled: bool = False  # torch.compile or XLA fuses memory-bound ops
    dispatcher: Dispatcher = Dispatcher.ALLTOALL
    cp_comm: str = "p2p"  # p2p, a2a, allgather
    capacity_factor: float = (
        0.0  # tokens per expert over the even share when tokens are dropped or padded; 0.0: dropless
    )
    masked_dispatch: bool = False  # with a capacity, products with masks take tokens to experts and back
    routing_imbalance: float = 1.0  # busiest expert rank over the mean
    consecutive_routing: bool = False  # benchmarks without a router: tokens take neighbouring experts in turn
    gradient_bytes: float = 0.0  # overrides the recipe's; 0.0: as the recipe
    reduce_bytes: float = 0.0  # per parameter in a gradient reduction, over the recipe's; 0.0: as the recipe
    sync_each_batch: bool = (
        True  # sharded gradients are reduced with each micro-batch; false: whole ones wait for the last
    )
    fresh_gradients: bool = False  # shards of gradients are no tensors before the backward pass makes them
    pipelines_reduce_once: bool = (
        False  # torch.distributed.pipelining: every stage reduces after its last backward pass
    )
    whole_reductions: bool = False  # under ZeRO-1 and 2 all ranks get the sum of all gradients, not of their part alone
    broadcast_weights: bool = False  # ZeRO shards whole tensors, and each owner of some broadcasts them when updated
    separate_accumulation: bool = False  # every micro-batch's gradients are added to the sum in a pass of their own
    cast_gradients: bool = False  # that pass copies them in fp32 first, and adds the copy to an fp32 sum
    sliced_states: bool = False  # shards of every tensor are copied one by one from Python before and after exchanges
    polled_exchanges: bool = False  # stages look now and then whether what they send or receive has arrived
    retries_when_full: bool = False  # without a pipeline, full memory was given back and taken anew in every layer
    hosts_in_turn: bool = False  # hosts of a tp group start its exchanges one after the other, in pipelines over nodes
    polled_when_full: bool = False  # so did all its runs that filled the memory and had a pipeline
    gradient_copy_bytes: float = 0.0  # per parameter: buckets of plain replicas, beside the gradients that accumulate
    passing_gradient_bytes: float = 0.0  # per parameter: a micro-batch's gradients, added to the sum when it is done
    late_frees: str = ""  # what collectives read stays reserved for: "passes", each of a chunk, or "fill"
    main_params_in_optimizer: bool = True
    optimizer_offload: bool = False
    optimizer_offload_share: float = 1.0  # of its states, where they are offloaded; the device steps with the rest
    state_offload: bool = False  # weights, gradients and optimizer all stay in host memory (FSDP's CPU offload)
    activation_offload_layers: int = 0
    offload_modules: tuple[str, ...] = ()  # of a layer, whose kept activations wait in host memory (Megatron-core)
    offload_modules_share: float = 1.0  # of the layers for which they do
    dropout: bool = False  # masks are kept
    attention_kernel: str = "cudnn"  # the fused kernel: cudnn (and FlashAttention 3), fa2, fa1, triton
    early_release: bool = False  # of Blackwell's first year: low-precision kernels were tuned in later releases
    scripted: bool = False  # layers are PyTorch calls op by op from Python, without fused modules
    host_share: float = 1.0  # of the host's time per kernel, in layers without experts that no hooks stand around
    blocking_launches: bool = False  # every launch waits for its kernel (CUDA_LAUNCH_BLOCKING): no host runs ahead
    late_validation: bool = False  # no all-reduce of norms ends the step of schedules that split the backward pass
    tp_backward_overlap: bool = True  # exchanges of column-parallel inputs run beside weight-gradient GEMMs
    fused_norms: bool = True  # norms are one kernel each even where fused_kernels is false
    copied_exchanges: bool = False  # tensor-parallel exchanges copy what they gather along the sequence, and scatter
    low_precision_gathers: bool = (
        False  # tensor-parallel ranks gather inputs, and gradients of outputs, as 8-bit products read them
    )
    row_scales: bool = False  # 8-bit operands have a scale per row, where the recipe has none per block
    wide_weight_gradients: bool = False  # products of gradients of weights stay in 16 bits, whatever the others do
    joined_products: bool = True  # of one input: queries, keys and values are one product, as are gate and up
    buffered_sends: bool = False  # stages send from buffers while they compute, under every schedule
    scatter_gather: bool = False  # tp ranks that hold the same activations send a part each over stage boundaries
    parallel_loss: bool = True  # the loss works on each tp rank's columns of the logits; false: on gathered logits
    inputs_gathered_apart: bool = False  # by each column-parallel product; a compiler joins gathers, not gradients
    gathered_inputs_kept: bool = False  # column-parallel layers keep their input as gathered over tp
    stops_recompute: bool = False  # full recompute ends with the last tensor that the backward pass reads
    stage_slots: int = 0  # slots per stage of the pipeline for all that stages but the last keep; 0: as the schedule
    stage_outputs_kept: bool = False  # a stage keeps what it sent on until the backward pass
    shard_gradient_bytes: float = 0.0  # per parameter of the rank's optimizer shard: its own copy of the gradient
    step_gradient_bytes: float = 0.0  # the same copy where it lives during the optimizer's step alone
    step_flat_bytes: float = 0.0  # with that copy, per parameter: the shard's gradients laid out flat before it is made
    step_parameters: float = 0.0  # under ZeRO-3, of a rank, that the optimizer steps over at once; 0.0: all
    step_moment_copies: float = 0.0  # temporaries of Adam's step, each as large as one of its moments
    bucket_bytes: float = 0.0  # communication buckets that stay allocated under ZeRO
    gather_parameters: float = 0.0  # ZeRO-3 gathers about as many at once, but never less than a product; 0.0: a layer
    shard_copies: ShardCopies = ShardCopies.NONE  # under ZeRO-2 and 3, beside gathers and reductions
    head_stays_gathered: bool = False  # under ZeRO-3, from its forward pass to the end of its backward pass
    gather_copy_bytes: float = 0.0  # per parameter, under ZeRO: updated weights gathered into one flat tensor
    live_parameters: float = 0.0  # under ZeRO-3, parameters whose whole weights may be present; 0.0: whole layers
    unstated_precision: str = ""  # what its runs use that state no number format
    wide_weights: bool = False  # weights stay in 16 bits beside the 8-bit copies that products read
    transposed_weights: bool = True  # frozen 8-bit weights have a transposed copy beside them for the backward pass
    low_activation_input: bool = False  # what an activation function reads is kept in the width of products' inputs
    dummy_gradients: bool = False  # one dummy gradient per distinct weight shape stays allocated (TE 2.3 and later)
    source: str = ""

    @property
    def expert_kernels_apart(self) -> bool:
        """Whether what is not fused around grouped products runs: graphs of whole iterations need the fused form."""
        return self.plain_experts and not (self.cuda_graphs and self.graphed_experts)

    @property
    def repeats_what_is_read(self) -> bool:
        """Whether full recompute repeats no more than the backward pass reads; compilers drop the rest."""
        return self.stops_recompute or self.compiled

    @property
    def share_in_host(self) -> float:
        """Share of the optimizer's states that lie, and are stepped with, in the host."""
        return 1.0 if self.state_offload else self.optimizer_offload_share if self.optimizer_offload else 0.0

    def hides_reduction(self, zero: Ints, pp: Ints | int) -> Bools:
        """Where the reduction of gradients runs beside the last backward pass, of the shape of the ZeRO stages."""
        beside = self.sharded_grad_overlap | (zero != 1)
        after = self.pipelines_reduce_once & (np.asarray(pp) > 1)
        return np.asarray(self.grad_overlap & beside & ~after, dtype=np.bool_)

    def gradients_wait(self, pp: int) -> bool:
        """Whether whole gradients may wait for the last micro-batch, in pipelines of a depth."""
        return not self.sync_each_batch or (self.pipelines_reduce_once and pp > 1)


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images of a sequence of a model with a tower, and what of the tower is trained.

    ``count`` images stand for ``tokens`` of the sequence each; without any the tower waits, with its states.
    ``trains_tower`` is of its patches and layers, ``trains_projector`` of what takes these to the language model.
    ``divided``: its products divide over tp; else every tensor-parallel rank runs it whole. ``recompute`` is of its
    layers; None: they recompute as those of the language model do. ``asks_gradients``: where its layers recompute in
    full, checkpointing asks for gradients of their first input, so that a backward pass runs through a frozen one too.
    """

    count: int
    tokens: int
    trains_tower: bool = True
    trains_projector: bool = True
    divided: bool = False
    recompute: Recompute | None = None
    asks_gradients: bool = False

    @property
    def all_tokens(self) -> int:
        """Tokens of a sequence that stand for images."""
        return self.count * self.tokens


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What is trained: batch, sequence, precision, optimizer, software.

    ``trained_share`` is the share of the parameters that are trained: below 1.0 adapters beside frozen weights (LoRA),
    whose gradients are not computed, reduced or stored. ``adapter_modules`` are the recompute modules whose products
    have adapters: those of other modules then need no input in the backward pass; empty: all keep theirs.
    ``adapter_rank`` is the rank of those adapters, whose products are priced with it; 0: not known, they are not.
    ``optimizer_bytes`` is the size of the optimizer's states per parameter besides master weights (8.0: Adam in fp32).
    """

    global_batch: int
    seq: int
    precision: Precision
    software: Software
    optimizer_bytes: float = 8.0
    trained_share: float = 1.0
    adapter_modules: tuple[str, ...] = ()
    adapter_rank: int = 0
    power_cap_w: float = 0.0  # per GPU; 0.0: the part's own limit
    images: Images | None = None  # None: a language model alone, whatever tower the model has

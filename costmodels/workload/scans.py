"""Ops of linear-time mixers: Mamba-2, Mamba-1, the gated delta rule and lightning attention."""

from costmodels.workload.kernels import FP32_BYTES
from costmodels.workload.model import DeltaNet, Lightning, SelectiveScan, ShortConvolution, StateSpace
from costmodels.workload.op import Op, OpKind, Split

_CHUNK = 128  # tokens per chunk of the state-space kernels
_DELTA_CHUNK = 64  # tokens per chunk of the delta-rule kernels
_LIGHTNING_CHUNK = 256  # tokens per block of lightning attention (Hugging Face Transformers, MiniMaxConfig: block_size)
_SELECTIVE_CHUNK = 2048  # tokens for which a state is written (mamba csrc/selective_scan/selective_scan.cpp)


def mamba_ops(mixer: StateSpace, hidden: int) -> tuple[Op, ...]:
    """Return the ops of a Mamba-2 mixer, from the normed input to the output projection.

    The scan counts ``7 * inner * state`` FLOPs per token, as Megatron-LM's FLOP counter does. The kernel that fuses
    convolution and scan keeps the input projection's output and the output before the gate, and computes the rest again
    (``mamba_ssm``: ``mamba_split_conv1d_scan_combined``); the gated norm keeps its input. Without a norm the kernel
    gates its output itself and makes it again in the backward pass.

    Parameters
    ----------
    mixer : StateSpace
        Shape of the mixer.
    hidden : int
        Width of the model.

    Returns
    -------
    tuple of Op
        In forward order.
    """
    inner = mixer.heads * mixer.head_dim
    conv = inner + 2 * mixer.groups * mixer.state
    projected = inner + conv + mixer.heads
    states = 4.0 * inner * mixer.state / _CHUNK  # fp32 state of every chunk, written and read
    scan = Op(
        name="scan",
        module="mamba",
        kind=OpKind.SCAN,
        split=Split.HEADS,
        heads=mixer.heads,
        flops_per_token=7.0 * inner * mixer.state,
        traffic_elements_per_token=4.0 * conv + 3.0 * inner + states,
        saved_elements_per_token=float(projected + inner if mixer.norm else projected),
        dropped_by=("mamba",),
        parameters=conv * (mixer.conv_width + (1 if mixer.conv_bias else 0)) + 3 * mixer.heads,
    )
    return (
        _in_projection("mamba", hidden, projected, bias=mixer.projection_bias),
        scan,
        *((_gated_norm("mamba", inner, parameters=inner),) if mixer.norm else ()),
        _out_projection("mamba", inner, hidden, bias=mixer.projection_bias),
    )


def selective_ops(mixer: SelectiveScan, hidden: int) -> tuple[Op, ...]:
    """Return the ops of a Mamba-1 mixer, from the normed input to the output projection.

    The scan counts ``7 * inner * state`` FLOPs per token, as Megatron-LM counts that of Mamba-2. The kernels keep the
    input projection's output, the convolved input, and what they read of the time steps and state projections
    (``mamba_ssm``: ``MambaInnerFn``; a layer with norms runs convolution and scan by themselves and keeps the time
    steps too). The projection to the state reads all channels: its rows divide over tp and its output is added up.

    Parameters
    ----------
    mixer : SelectiveScan
        Shape of the mixer.
    hidden : int
        Width of the model.

    Returns
    -------
    tuple of Op
        In forward order.

    References
    ----------
    Gu and Dao, arXiv 2312.00752, section 3; Lieber et al., arXiv 2403.19887 (Jamba: its norms).
    """
    inner, selected = mixer.inner, mixer.rank + 2 * mixer.state
    select = Op(
        name="x_proj",
        module="mamba",
        kind=OpKind.GEMM,
        split=Split.ROW,
        k=inner,
        n=selected,
        shared_input_elements_per_token=float(inner),
        dropped_by=("mamba",),
        parameters=inner * selected,
    )
    steps = Op(
        name="dt_proj",
        module="mamba",
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=mixer.rank,
        n=inner,
        saved_elements_per_token=float(selected * (2 if mixer.norms else 1)),
        saved_split=Split.REPLICATED,
        dropped_by=("mamba",),
        parameters=mixer.rank * inner + inner,
    )
    return (
        _in_projection("mamba", hidden, 2 * inner, bias=mixer.projection_bias),
        select,
        steps,
        _selective_scan(mixer),
        _out_projection("mamba", inner, hidden, bias=mixer.projection_bias),
    )


def _selective_scan(mixer: SelectiveScan) -> Op:
    """Convolution, which reads and writes the channels, and scan, which reads them, steps and gate, and writes."""
    inner = mixer.inner
    states = 4.0 * inner * mixer.state / _SELECTIVE_CHUNK
    return Op(
        name="scan",
        module="mamba",
        kind=OpKind.SCAN,
        split=Split.HEADS,
        heads=inner,
        flops_per_token=7.0 * inner * mixer.state,
        traffic_elements_per_token=6.0 * inner + states,
        saved_elements_per_token=float(3 * inner + (2 * inner if mixer.norms else 0)),
        dropped_by=("mamba",),
        parameters=inner * (mixer.conv_width + (1 if mixer.conv_bias else 0) + mixer.state + 1),
    )


def lightning_ops(mixer: Lightning, hidden: int) -> tuple[Op, ...]:
    """Return the ops of lightning attention, from the normed input to the output projection.

    Queries, keys and values pass an activation each; a head's square state takes the product of keys and values and is
    read by the queries: ``4 * heads * dim^2`` FLOPs per token, as Megatron-LM counts products of a linear attention.
    Within a block scores are products of queries and keys, which stand for the same products and are not counted again.

    Parameters
    ----------
    mixer : Lightning
        Shape of the mixer.
    hidden : int
        Width of the model.

    Returns
    -------
    tuple of Op
        In forward order.

    References
    ----------
    MiniMax, arXiv 2501.08313, section 2.2.
    """
    inner = mixer.heads * mixer.head_dim
    states = 4.0 * inner * mixer.head_dim / _LIGHTNING_CHUNK  # fp32 state of every block, written and read
    normed = 4.0 * inner if mixer.qk_norm else 0.0  # queries and keys, read and written
    scan = Op(
        name="scan",
        module="attn",
        kind=OpKind.SCAN,
        split=Split.HEADS,
        heads=mixer.heads,
        flops_per_token=4.0 * inner * mixer.head_dim,
        # activations read and write 3, the scan reads 3, writes 1
        traffic_elements_per_token=10.0 * inner + normed + states,
        saved_elements_per_token=float(4 * inner + 3 * inner),  # projected, with the gate; and activated
        dropped_by=("attn",),
    )
    return (
        _in_projection("attn", hidden, 4 * inner, bias=False),
        scan,
        _gated_norm("attn", inner, parameters=inner),
        _out_projection("attn", inner, hidden, bias=False),
    )


def convolution_ops(mixer: ShortConvolution) -> tuple[Op, ...]:
    """Return the ops of a short convolution between two gates, from the normed input to the output projection.

    One projection makes a gate, another gate and the channels: the first gate times the channels is convolved, and the
    second gate multiplies what comes out. All is bound by memory but the projections.

    Parameters
    ----------
    mixer : ShortConvolution
        Shape of the mixer.

    Returns
    -------
    tuple of Op
        In forward order.

    References
    ----------
    ``transformers`` models/lfm2 (``Lfm2ShortConv``).
    """
    width = mixer.width
    convolved = Op(
        name="convolution",
        module="attn",
        kind=OpKind.MEMORY,
        split=Split.TENSOR,
        traffic_elements_per_token=8.0 * width,  # product (2 + 1), convolution (1 + 1), product (2 + 1)
        saved_elements_per_token=4.0 * width,  # what is projected, and what is convolved
        dropped_by=("attn",),
        parameters=width * (mixer.conv_width + (1 if mixer.bias else 0)),
    )
    return (
        _in_projection("attn", width, 3 * width, bias=mixer.bias),
        convolved,
        _out_projection("attn", width, width, bias=mixer.bias),
    )


def delta_ops(mixer: DeltaNet, hidden: int) -> tuple[Op, ...]:
    """Return the ops of a gated delta-rule mixer, from the normed input to the output projection.

    FLOPs are as Megatron-LM counts them: convolution ``2 * width`` per channel and four products of a head's state per
    value head. Queries and keys are repeated to the value heads before the scan and kept in that form. The
    weights of the norm over a head are repeated on every tp rank and counted with the block's norm.

    Parameters
    ----------
    mixer : DeltaNet
        Shape of the mixer.
    hidden : int
        Width of the model.

    Returns
    -------
    tuple of Op
        In forward order.
    """
    keys = mixer.key_heads * mixer.key_dim
    values = mixer.value_heads * mixer.value_dim
    conv = 2 * keys + values
    decays = keys if mixer.channel_decay else mixer.value_heads
    gates = values + decays
    projected = conv + gates + mixer.value_heads
    repeated = 2 * mixer.value_heads * mixer.key_dim
    chunk_matrix = mixer.value_heads * _DELTA_CHUNK
    scan = Op(
        name="scan",
        module="gdn",
        kind=OpKind.SCAN,
        split=Split.HEADS,
        heads=mixer.value_heads,
        flops_per_token=2.0 * mixer.conv_width * conv + 8.0 * mixer.value_heads * mixer.key_dim * mixer.value_dim,
        traffic_elements_per_token=4.0 * conv + 2.0 * repeated + 3.0 * values + 2.0 * chunk_matrix,
        saved_elements_per_token=float(projected + conv + repeated + values + chunk_matrix),
        saved_bytes_per_token=2.0 * FP32_BYTES * mixer.value_heads,
        dropped_by=("gdn",),
        parameters=conv * mixer.conv_width + decays + mixer.value_heads,
    )
    return (
        _in_projection("gdn", hidden, projected - (gates if mixer.gate_rank else 0), bias=False),
        *(_gates("gdn", hidden, mixer.gate_rank, gates) if mixer.gate_rank else ()),
        scan,
        _gated_norm("gdn_norm_out", values, parameters=0),
        _out_projection("gdn", values, hidden, bias=False, also_dropped_by=("gdn_norm_out",)),
    )


def _in_projection(module: str, hidden: int, n: int, *, bias: bool) -> Op:
    return Op(
        name="in_proj",
        module=module,
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=hidden,
        n=n,
        saved_elements_per_token=float(hidden),
        saved_split=Split.SEQUENCE,
        dropped_by=("layernorm",),
        parameters=hidden * n + (n if bias else 0),
    )


def _gates(module: str, hidden: int, rank: int, width: int) -> tuple[Op, ...]:
    """Decays and output gate through a latent each; the products with its columns are repeated on every tp rank."""
    down = Op(
        name="gates_down",
        module=module,
        kind=OpKind.GEMM,
        split=Split.SEQUENCE,
        k=hidden,
        n=2 * rank,
        shared_input_elements_per_token=float(hidden),
        dropped_by=("layernorm",),
        parameters=2 * hidden * rank,
    )
    up = Op(
        name="gates_up",
        module=module,
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=rank,
        n=width,
        saved_elements_per_token=2.0 * rank,
        saved_split=Split.SEQUENCE,
        dropped_by=(module,),
        parameters=rank * width,
    )
    return down, up


def _gated_norm(module: str, width: int, *, parameters: int) -> Op:
    return Op(
        name="gated_norm",
        module=module,
        kind=OpKind.MEMORY,
        split=Split.HEADS,
        traffic_elements_per_token=3.0 * width,
        saved_elements_per_token=float(width),
        dropped_by=("gdn" if module == "gdn_norm_out" else module,),
        parameters=parameters,
    )


def _out_projection(module: str, width: int, hidden: int, *, bias: bool, also_dropped_by: tuple[str, ...] = ()) -> Op:
    return Op(
        name="out_proj",
        module=module,
        kind=OpKind.GEMM,
        split=Split.ROW,
        k=width,
        n=hidden,
        saved_elements_per_token=float(width),
        dropped_by=(module, *also_dropped_by),
        parameters=width * hidden + (hidden if bias else 0),
    )

"""Norms and residual additions around the parts of a block."""

from costmodels.workload.attention import head_norms, index_norm, inner_attention_norm
from costmodels.workload.kernels import FP32_BYTES, MASK_ELEMENTS, Kernels
from costmodels.workload.model import (
    Attention,
    DeltaNet,
    LayerKind,
    Lightning,
    OneMixer,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from costmodels.workload.op import Op, OpKind, Split

_FUSED_NORM_TRAFFIC = 2.0  # read the input, write the output
# Root-mean-square norm as separate kernels, in two-byte elements: cast to fp32 (1 + 2), square (2 + 2), mean (2),
# scale (2 + 2), cast back (2 + 1), weight (1 + 1).
_UNFUSED_RMS_TRAFFIC = 18.0


def inner_norm_parameters(mixer: OneMixer) -> int:
    """Count the norm parameters inside a mixer (query and key norms, latent norms, gated norms), not of the block."""
    if isinstance(mixer, Attention):
        return inner_attention_norm(mixer)
    if isinstance(mixer, StateSpace):
        return mixer.heads * mixer.head_dim if mixer.norm else 0
    if isinstance(mixer, SelectiveScan):
        return mixer.rank + 2 * mixer.state if mixer.norms else 0
    if isinstance(mixer, ShortConvolution):
        return 0
    return mixer.value_dim if isinstance(mixer, DeltaNet) else mixer.heads * mixer.head_dim + _lightning_norms(mixer)


def repeated_norm_parameters(kind: LayerKind) -> int:
    """Count the norm parameters inside the mixers that every tp rank repeats and no op of the mixers owns."""
    return sum(map(_repeated, kind.mixers))


def _repeated(mixer: OneMixer) -> int:
    if isinstance(mixer, Attention):
        return index_norm(mixer) + (head_norms(mixer) if mixer.qk_norm and not mixer.qk_norm_parameters else 0)
    if isinstance(mixer, Lightning):
        return _lightning_norms(mixer)
    return inner_norm_parameters(mixer) if isinstance(mixer, DeltaNet | SelectiveScan) else 0


def _lightning_norms(mixer: Lightning) -> int:
    """Weights of one norm over a query head and one over a key head."""
    return 2 * mixer.head_dim if mixer.qk_norm else 0


def norm_width(kind: LayerKind) -> int:
    """Parameters of one norm of the block: the model's width, or twice that with biases (LayerNorm)."""
    inner = sum(map(inner_norm_parameters, kind.mixers))
    return (kind.norm_parameters - inner) // max(1, kind.norm_count)


def whole_product(name: str, module: str, k: int, n: int) -> Op:
    """Return a product of one token that every tensor-parallel rank computes whole.

    Parameters
    ----------
    name, module : str
        Names of the op and of the module it belongs to.
    k, n : int
        Inputs and outputs of a token.

    Returns
    -------
    Op
        It keeps its input for the backward pass.
    """
    return Op(
        name=name,
        module=module,
        kind=OpKind.GEMM,
        split=Split.REPLICATED,
        k=k,
        n=n,
        saved_elements_per_token=float(k),
        parameters=k * n,
    )


def norm_op(name: str, hidden: int, parameters: int, kernels: Kernels, *, input_is_kept: bool = False) -> Op:
    """Return a norm over the model's width; it keeps its input unless another op of the layer does.

    The per-token statistics (4 or 8 bytes) are left out: under 1/1000 of the input. A root-mean-square norm of separate
    kernels keeps an fp32 copy of its input (PyTorch's composite ``rms_norm``).
    """
    unfused_rms = not kernels.fused and parameters == hidden
    return Op(
        name=name,
        module="layernorm",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=(_UNFUSED_RMS_TRAFFIC if unfused_rms else _FUSED_NORM_TRAFFIC) * hidden,
        saved_elements_per_token=0.0 if input_is_kept else float(hidden),
        saved_bytes_per_token=FP32_BYTES * hidden if unfused_rms else 0.0,
        parameters=parameters,
    )


def residual_op(name: str, hidden: int, branches: int, kernels: Kernels) -> Op:
    """Return the addition of ``branches`` to the residual stream, with bias and dropout where they are on."""
    traffic = 2.0 + branches
    if kernels.dropout:
        traffic += MASK_ELEMENTS * branches
        if not kernels.fused:
            traffic += 4.0 * branches  # bias and dropout each read and write the branch
    return Op(
        name=name,
        module="residual",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=traffic * hidden,
        saved_bytes_per_token=float(hidden * branches) if kernels.dropout else 0.0,
    )


def encoder_end_ops(kind: LayerKind, hidden: int, kernels: Kernels) -> tuple[Op, ...]:
    """Return what the last layer of an encoder adds: a norm where it has one, and its output, which is kept.

    Parameters
    ----------
    kind : LayerKind
        Any layer; others add nothing.
    hidden : int
        Width of the model.
    kernels : Kernels
        Options of the kernels.
    """
    if not kind.ends_encoder:
        return ()
    norm = norm_op("encoder_norm", hidden, kind.encoder_norm_parameters, kernels)
    output = Op(
        name="encoder_output",
        module="residual",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        saved_elements_per_token=float(hidden),
    )
    return (norm, output) if kind.encoder_norm_parameters else (output,)

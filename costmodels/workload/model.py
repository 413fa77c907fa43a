"""A model as frozen values: kinds of layers and runs of equal layers.

The unit is the layer as frameworks count it (a transformer block; in hybrid models each mixer or feed-forward block
is a layer of its own). A layer has a token mixer, a feed-forward part, or both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from costmodels.workload.details import ModelDetails, details_of_preset


class AttentionKind(StrEnum):
    """How queries, keys and values are projected."""

    GROUPED = "grouped"  # multi-head, grouped-query and multi-query attention
    LATENT = "latent"  # multi-head latent attention (DeepSeek-V2)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Softmax attention. For latent attention ``qk_dim`` = nope + rope and the ranks are set; ``q_rank`` 0 means none.

    ``window`` 0 means the whole sequence. Grouped attention may have a query rank too, an output projection through
    ``out_groups`` blocks of rank ``out_rank``, and one projection for keys and values (``shared_kv``; DeepSeek-V4).
    Without ``own_kv`` keys and values are those of an earlier layer (cross-layer attention, Gemma 4, Hunyuan-Large).
    ``index_heads`` of width ``index_dim`` score all keys to choose those that are attended to (sparse attention of
    DeepSeek-V3.2); as many keys as are chosen stand as the window. Without ``index_weights`` their scores are not
    weighed by head. ``head_gate``: the width gates every head's output by one number. ``bidirectional``: every token
    attends to all. ``position_bias`` counts the learned biases of relative positions, of all heads together (T5).
    ``compress``: beside the window, keys of which each stands for so many tokens, made by a compressor; ``chosen`` of
    them are attended to, as the indexer says, or all without it (DeepSeek-V4). ``absorbed``: a kernel reads the keys
    that an indexer chose from the latents themselves, with queries as wide as these.
    """

    kind: AttentionKind = AttentionKind.GROUPED
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    window: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    sinks: bool = False
    qk_norm_parameters: int = 0  # 0 with qk_norm: one weight per dimension of a query head and of a key head
    rotary: bool = True  # rotary position embedding
    shared_kv: bool = False
    own_kv: bool = True
    out_rank: int = 0
    out_groups: int = 1
    index_heads: int = 0
    index_dim: int = 0
    index_weights: bool = True
    head_gate: bool = False
    bidirectional: bool = False
    position_bias: int = 0
    compress: int = 0
    chosen: int = 0
    absorbed: bool = False


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """A Mamba-2 mixer (state space duality); ``norm``: its output is normed behind the gate."""

    heads: int
    head_dim: int
    state: int
    groups: int
    conv_width: int = 4
    conv_bias: bool = True
    projection_bias: bool = False
    norm: bool = True


@dataclass(frozen=True, kw_only=True)
class SelectiveScan:
    """A Mamba-1 mixer of ``inner`` channels, each with a state of its own.

    Time steps come through a projection of ``rank`` columns. ``norms``: time steps and both state projections are
    normed (Jamba).
    """

    inner: int
    state: int
    rank: int
    conv_width: int = 4
    conv_bias: bool = True
    projection_bias: bool = False
    norms: bool = False


@dataclass(frozen=True, kw_only=True)
class Lightning:
    """Linear attention with a fixed decay for each head, a norm over all heads and an output gate (MiniMax-01).

    The norm may be over groups of heads, with as many weights (Ring-linear).
    """

    heads: int
    head_dim: int
    qk_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """A gated delta-rule linear-attention mixer (Qwen3-Next); ``key_dim`` and ``value_dim`` are of one head.

    With ``channel_decay`` every channel of the keys decays by itself (Kimi Delta Attention, arXiv 2510.26692); decays
    and output gate come through ``gate_rank`` columns, or straight from the width without it.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    channel_decay: bool = False
    gate_rank: int = 0


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A convolution over a few tokens between two gates, all made of the width by one projection (LFM2)."""

    width: int
    conv_width: int
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Attention and a Mamba-2 mixer that read one normed input; their outputs are added (Falcon-H1)."""

    attention: Attention
    state_space: StateSpace


@dataclass(frozen=True, kw_only=True)
class DenseFfn:
    """A dense feed-forward block; ``gated`` has two input projections (SwiGLU, GeGLU).

    ``activation_parameters`` are numbers that the activation learns (xIELU has two).
    """

    hidden: int
    gated: bool
    bias: bool = False
    activation_parameters: int = 0


@dataclass(frozen=True, kw_only=True)
class MoeFfn:
    """A mixture of experts. ``hidden`` is the width of one expert, ``shared_hidden`` of all shared experts together.

    ``latent`` is the width that tokens are projected to before dispatch (0: the model's width). The router scores
    ``idle_experts`` more that compute nothing (LongCat-Flash); ``top_k`` counts the experts that compute.
    """

    experts: int
    top_k: int
    hidden: int
    gated: bool
    bias: bool = False
    router_bias: bool = False
    shared_hidden: int = 0
    shared_gate: bool = False
    latent: int = 0
    idle_experts: int = 0


OneMixer = Attention | StateSpace | SelectiveScan | DeltaNet | Lightning | ShortConvolution
Mixer = OneMixer | SideBySide
Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """One kind of block. ``norm_parameters`` counts every norm's weights and biases of the block (with qk norms).

    ``norm_count`` counts the norms over the model's width: one before each part, further ones after the parts.
    ``parallel``: the feed-forward part reads the same residual as the mixer; with one norm it reads the same input.
    ``side_width``: width of an embedding of the layer's own, which is gated into the residual at its end (Gemma 4).
    ``cross``: attention to the output of an encoder, between mixer and feed-forward part, behind a norm of its own.
    ``low_rank``: columns of a low-rank product beside the mixer, behind a norm of its own (Gemma 3n).
    ``ends_encoder``: the last layer of an encoder, whose output is kept for all that attend to it, behind a norm of
    ``encoder_norm_parameters``.
    """

    name: str
    mixer: Mixer | None
    ffn: Ffn | None
    norm_parameters: int
    norm_count: int = 2
    parallel: bool = False
    side_width: int = 0
    low_rank: int = 0
    cross: Attention | None = None
    ends_encoder: bool = False
    encoder_norm_parameters: int = 0

    @property
    def mixers(self) -> tuple[OneMixer, ...]:
        """Mixers of the layer: none, one, or those side by side."""
        if isinstance(self.mixer, SideBySide):
            return (self.mixer.attention, self.mixer.state_space)
        return () if self.mixer is None else (self.mixer,)


@dataclass(frozen=True, kw_only=True)
class OpaqueLayer:
    """A layer known only by its totals, as in a plain layer list (convolutions, unknown blocks).

    Per *sample*: one item of the batch. ``shardable`` names the axes that may divide it, of ``tp``, ``cp``, ``ep``;
    ``tp_exchange_bytes_per_sample`` is what sharding over tp all-reduces, forward, per sample.
    """

    name: str
    forward_flops_per_sample: float
    parameters: int
    activation_bytes_per_sample: float
    output_bytes_per_sample: float
    shardable: tuple[str, ...] = ()
    tp_exchange_bytes_per_sample: float = 0.0
    forward_bytes_per_sample: float = 0.0  # memory traffic; 0.0: activation + weights


@dataclass(frozen=True, kw_only=True)
class LayerRun:
    """``count`` equal layers in a row."""

    kind: LayerKind | OpaqueLayer
    count: int


@dataclass(frozen=True, kw_only=True)
class TowerProduct:
    """One product at an end of a tower, per patch or per image token: ``k`` numbers in, ``n`` out.

    ``further_parameters`` are those beside its matrix: biases, and norms and tables of positions around it. Where the
    tower divides over tp, a projector's product does so by columns, or ``by_rows``.
    """

    name: str
    k: int
    n: int
    further_parameters: int = 0
    by_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A vision tower: what makes tokens of a language model of the patches of images, before its first layer.

    ``trunk`` has the layers, of which all patches of one image attend to each other, and no vocabulary; ``patches``
    make its input, ``projector`` what the language model reads: one token for ``merge`` patches. An image has
    ``image_patches`` patches, always so where ``fixed``; else that is one of 1024 x 1024 pixels. With
    ``megatron_modules`` Megatron-Bridge builds it of Megatron-core's modules, which divide over tp; else of Hugging
    Face's, which every rank holds whole.
    """

    trunk: "ModelSpec"
    patches: tuple[TowerProduct, ...]
    projector: tuple[TowerProduct, ...]
    merge: int
    image_patches: int
    patch_side: int  # pixels
    fixed: bool = False
    megatron_modules: bool = False

    @property
    def image_tokens(self) -> int:
        """Tokens of the language model that one image stands for."""
        return max(1, self.image_patches // self.merge)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model: embedding, runs of layers, multi-token-prediction layers, final norm and head.

    ``vocab`` is the tokenizer's size; training frameworks pad it to a multiple of ``vocab_multiple * tp``.
    A model of opaque layers has ``hidden`` 0 and ``vocab`` 0 and no embedding or head. ``streams`` residual streams run
    through the layers beside one another (hyper-connections); ``alternating``: one of them passes through a layer.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    runs: tuple[LayerRun, ...]
    vocab_multiple: int = 128
    tied_embeddings: bool = False
    learned_positions: int = 0  # rows of a learned position table
    max_positions: int = 0  # longest sequence the configuration allows; 0: not stated
    embedding_norm_parameters: int = 0
    final_norm_parameters: int = 0
    head_bias: bool = False
    side_vocab: int = 0  # rows of the layers' own embeddings; 0: as many as the vocabulary
    side_norm_parameters: int = 0  # norm of the layers' own embeddings
    mtp_layers: int = 0
    mtp_kind: LayerKind | None = None
    causal: bool = True
    streams: int = 1
    alternating: bool = False
    fixed_seq: int = 0  # opaque models: a sample has this many tokens (0: sequences have no meaning)
    tower: Tower | None = None  # of images; before the first layer
    details: ModelDetails | None = None  # None: the table of presets, see :mod:`costmodels.workload.details`
    stated: tuple[tuple[str, object], ...] = field(default=(), compare=False, repr=False)  # what it was built from
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers, without multi-token-prediction layers."""
        return sum(run.count for run in self.runs)

    @property
    def mixed(self) -> bool:
        """Whether parts of a layer read from and write to several residual streams (hyper-connections)."""
        return self.streams > 1 and not self.alternating

    @property
    def residual(self) -> int:
        """Width of what passes from layer to layer: all residual streams together."""
        return self.hidden * self.streams

    @property
    def side_width(self) -> int:
        """Width of the embeddings that layers have of their own, all layers together."""
        return sum(run.count * run.kind.side_width for run in self.runs if isinstance(run.kind, LayerKind))

    @property
    def unlike_layers(self) -> bool:
        """Whether blocks of attention and a dense part differ in its width, or lack one of the two.

        Not so for hybrid models, each of whose layers is one part.
        """
        kinds = self.kinds()
        blocks = [kind for kind in kinds if isinstance(kind, LayerKind) and not kind.cross]
        parts = [(kind.mixer, kind.ffn) for kind in blocks]
        plain = all(isinstance(mixer, Attention | None) and isinstance(ffn, DenseFfn | None) for mixer, ffn in parts)
        if not plain or len(blocks) < len(kinds) or all(None in pair for pair in parts):
            return False
        return len({ffn.hidden for _, ffn in parts if ffn is not None}) > 1 or any(None in pair for pair in parts)

    @property
    def known_details(self) -> ModelDetails:
        """Details that the model states itself, or those of its preset."""
        return self.details or details_of_preset(self.name, self.family)

    @property
    def has_experts(self) -> bool:
        """Whether any layer has a mixture of experts."""
        return any(isinstance(kind, LayerKind) and isinstance(kind.ffn, MoeFfn) for kind in self.kinds())

    def kinds(self) -> tuple[LayerKind | OpaqueLayer, ...]:
        """Return the distinct kinds in order of first use."""
        return tuple(dict.fromkeys(run.kind for run in self.runs))

    def layer_kinds(self) -> Iterator[LayerKind | OpaqueLayer]:
        """Yield the kind of every layer in order."""
        for run in self.runs:
            for _ in range(run.count):
                yield run.kind

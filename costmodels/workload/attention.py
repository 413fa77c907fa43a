"""Ops of softmax attention: multi-head, grouped-query and multi-query attention, and multi-head latent attention."""

from dataclasses import replace

from costmodels.workload.compressed import compressor_norm, compressor_ops, index_compressor_ops
from costmodels.workload.kernels import FP32_BYTES, MASK_ELEMENTS, SCORE_ELEMENTS, Kernels, Softmax
from costmodels.workload.model import Attention, AttentionKind
from costmodels.workload.op import Op, OpKind, Split

_ROTARY_FUSED = 2.0  # read and write
_ROTARY_UNFUSED = 9.0  # rotate half (2), two products (3 + 2, with the tables), sum (3) less the shared read


def attention_ops(mixer: Attention, hidden: int, kernels: Kernels, *, causal: bool) -> tuple[Op, ...]:
    """Return the ops from the normed input to the output projection.

    Parameters
    ----------
    mixer : Attention
        Shape of the attention.
    hidden : int
        Width of the model.
    kernels : Kernels
        Options of the kernels.
    causal : bool
        Whether a token attends to earlier tokens only.

    Returns
    -------
    tuple of Op
        In forward order.

    References
    ----------
    Kept tensors: Korthikanti et al., arXiv 2205.05198, section 4.1; Dao et al., arXiv 2205.14135 (fused attention keeps
    its output and one fp32 statistic per query and head instead of the matrix).
    """
    causal = causal and not mixer.bidirectional
    return (
        *_projections(mixer, hidden),
        _rotary(mixer, kernels),
        *compressor_ops(mixer, hidden),
        *_indexer(mixer, hidden, causal=causal),
        _core(mixer, kernels, causal=causal),
        *_output_gate(mixer),
        *_head_gate(mixer, hidden),
        *_output(mixer, hidden, kernels),
    )


def cross_ops(mixer: Attention, hidden: int, kernels: Kernels) -> tuple[Op, ...]:
    """Return the ops of attention to an encoder's output, from the normed input to the output projection.

    Keys and values are made of that output in every layer; it is kept once, where the encoder ends. As many tokens are
    attended to as attend.

    Parameters
    ----------
    mixer : Attention
        Shape of the attention, ``bidirectional``.
    hidden : int
        Width of the model.
    kernels : Kernels
        Options of the kernels.

    Returns
    -------
    tuple of Op
        In forward order.
    """
    queries = mixer.heads * mixer.qk_dim
    keys_and_values = (mixer.kv_heads * mixer.qk_dim, mixer.kv_heads * mixer.v_dim)
    inputs = tuple(
        Op(
            name=name,
            module="attn",
            kind=OpKind.GEMM,
            split=Split.COLUMN,
            k=hidden,
            n=sum(columns),
            saved_elements_per_token=float(hidden) if owned else 0.0,
            shared_input_elements_per_token=0.0 if owned else float(hidden),
            saved_split=Split.SEQUENCE,
            dropped_by=("layernorm",),
            parameters=hidden * sum(columns) + (sum(columns) if mixer.qkv_bias else 0),
            columns=columns,
        )
        for name, columns, owned in (("q", (queries,), True), ("kv", keys_and_values, False))
    )
    rest = (_rotary(mixer, kernels), _core(mixer, kernels, causal=False), *_output(mixer, hidden, kernels))
    return tuple(replace(op, name=f"cross_{op.name}") for op in (*inputs, *rest))


def inner_attention_norm(mixer: Attention) -> int:
    """Count the norm parameters inside attention: query and key norms, norms of latents.

    Parameters
    ----------
    mixer : Attention
        Shape of the attention.

    Returns
    -------
    int
        Weights, whole.
    """
    heads = (mixer.qk_norm_parameters or head_norms(mixer)) if mixer.qk_norm else 0
    return heads + mixer.q_rank + mixer.kv_rank + index_norm(mixer)


def head_norms(mixer: Attention) -> int:
    """Count the weights of one norm over a query head and one over a key head, where the layer has keys of its own."""
    return (2 if mixer.own_kv else 1) * mixer.qk_dim


def index_norm(mixer: Attention) -> int:
    """Count the parameters of norms of keys that every tp rank repeats: of the indexer's, of compressed ones.

    Parameters
    ----------
    mixer : Attention
        Shape of the attention.

    Returns
    -------
    int
        Weights and biases; 0 without an indexer and compressed keys.
    """
    return compressor_norm(mixer) if mixer.compress else 2 * mixer.index_dim


def _projections(mixer: Attention, hidden: int) -> tuple[Op, ...]:
    if mixer.kind is AttentionKind.LATENT:
        return _latent_projections(mixer, hidden)
    if mixer.q_rank:
        return (*_low_rank_queries(mixer, hidden), *_qk_norm(mixer))
    return (_qkv(mixer, hidden), *_qk_norm(mixer))


def _low_rank_queries(mixer: Attention, hidden: int) -> tuple[Op, ...]:
    """Queries through a latent; keys and values, of few heads, straight from the width on every tp rank."""
    keys, values = mixer.kv_heads * mixer.qk_dim, 0 if mixer.shared_kv else mixer.kv_heads * mixer.v_dim
    kv = _down("kv", hidden, keys + values, bias=mixer.qkv_bias, owns_input=False)
    return (
        _down("q_down", hidden, mixer.q_rank, bias=mixer.qkv_bias, owns_input=True),
        replace(kv, columns=(keys, values)) if values else kv,
        _latent_norm(mixer),
        _up("q_up", mixer.q_rank, mixer.heads * mixer.qk_dim, owns_input=True),
    )


def _latent_norm(mixer: Attention) -> Op:
    width = mixer.q_rank + mixer.kv_rank
    return Op(
        name="latent_norm",
        module="attn",
        kind=OpKind.MEMORY,
        split=Split.SEQUENCE,
        traffic_elements_per_token=2.0 * width,
        saved_elements_per_token=float(width),
        dropped_by=("attn",),
        parameters=width,
    )


def _qkv(mixer: Attention, hidden: int) -> Op:
    queries = mixer.heads * (mixer.qk_dim + (mixer.v_dim if mixer.output_gate else 0))
    keys_and_values = mixer.kv_heads * (mixer.qk_dim + (0 if mixer.shared_kv else mixer.v_dim))
    n = queries + (keys_and_values if mixer.own_kv else 0)
    keys = mixer.kv_heads * mixer.qk_dim
    columns = (queries, keys, keys_and_values - keys) if mixer.own_kv else (queries,)
    return Op(
        name="qkv",
        module="attn",
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=hidden,
        n=n,
        saved_elements_per_token=float(hidden),
        saved_split=Split.SEQUENCE,
        dropped_by=("layernorm",),
        parameters=hidden * n + (n if mixer.qkv_bias else 0),
        columns=tuple(width for width in columns if width),
    )


def _qk_norm(mixer: Attention) -> tuple[Op, ...]:
    if not mixer.qk_norm:
        return ()
    width = (mixer.heads + mixer.kv_heads) * mixer.qk_dim
    return (
        Op(
            name="qk_norm",
            module="mla_up_proj" if mixer.q_rank else "attn",
            kind=OpKind.MEMORY,
            split=Split.HEADS,
            traffic_elements_per_token=2.0 * width,
            saved_elements_per_token=float(width),
            saved_bytes_per_token=FP32_BYTES * (mixer.heads + mixer.kv_heads),
            dropped_by=("attn", "mla_up_proj"),
            parameters=mixer.qk_norm_parameters,  # weights of one head: every tp rank has them, the block owns them
        ),
    )


def _latent_projections(mixer: Attention, hidden: int) -> tuple[Op, ...]:
    """Down-projections are repeated on every tp rank (over its own tokens); up-projections divide over heads."""
    queries = mixer.heads * mixer.qk_dim
    nope = mixer.qk_dim - mixer.rope_dim
    kv_n = mixer.kv_rank + mixer.rope_dim
    up_n = mixer.heads * (nope + mixer.v_dim)
    down: tuple[Op, ...]
    if mixer.q_rank:
        down = (
            _down("q_down", hidden, mixer.q_rank, bias=mixer.qkv_bias, owns_input=True),
            _down("kv_down", hidden, kv_n, bias=mixer.qkv_bias, owns_input=False),
        )
        q_up = _up("q_up", mixer.q_rank, queries, owns_input=True)
    else:
        down = (_down("kv_down", hidden, kv_n, bias=mixer.qkv_bias, owns_input=True),)
        q_up = _up("q_proj", hidden, queries, owns_input=False)
    kv_up = _up("kv_up", mixer.kv_rank, up_n, owns_input=True)
    if mixer.absorbed:  # as many products, of queries and of outputs: batched ones, which no recipe quantises
        kv_up = replace(kv_up, low_precision=False)
    return (*down, _latent_norm(mixer), q_up, kv_up)


def _down(name: str, hidden: int, n: int, *, bias: bool, owns_input: bool) -> Op:
    return Op(
        name=name,
        module="attn",
        kind=OpKind.GEMM,
        split=Split.SEQUENCE,
        k=hidden,
        n=n,
        saved_elements_per_token=float(hidden) if owns_input else 0.0,
        shared_input_elements_per_token=0.0 if owns_input else float(hidden),
        dropped_by=("layernorm",),
        parameters=hidden * n + (n if bias else 0),
    )


def _up(name: str, k: int, n: int, *, owns_input: bool) -> Op:
    return Op(
        name=name,
        module="mla_up_proj",
        kind=OpKind.GEMM,
        split=Split.COLUMN,
        k=k,
        n=n,
        saved_elements_per_token=float(k) if owns_input else 0.0,
        shared_input_elements_per_token=0.0 if owns_input else float(k),
        saved_split=Split.SEQUENCE,
        dropped_by=("attn",) if owns_input else ("layernorm",),
        parameters=k * n,
    )


def _rotary(mixer: Attention, kernels: Kernels) -> Op:
    """Position embedding and layout of queries, keys and values; its outputs are what core attention keeps."""
    latent = mixer.kind is AttentionKind.LATENT
    keys = mixer.heads if latent else mixer.kv_heads
    rotated = (mixer.heads + keys) * mixer.qk_dim
    values = 0 if mixer.shared_kv else keys * mixer.v_dim
    if mixer.absorbed and kernels.flash_attention:  # queries before their product with the latents are kept, too
        wide = mixer.heads * (mixer.kv_rank + mixer.rope_dim)
        rotated, values = wide + mixer.heads * (mixer.qk_dim - mixer.rope_dim), mixer.kv_rank + mixer.rope_dim
        traffic = 2.0 * wide + _ROTARY_FUSED * (mixer.heads + 1) * mixer.rope_dim
    elif not mixer.rotary:
        traffic = 0.0
    elif mixer.shared_kv and mixer.rope_dim and kernels.fused:
        # values are rotated keys: the kernel turns a slice of every head in its place, and that of the output back
        traffic = _ROTARY_FUSED * (2 * mixer.heads + keys) * mixer.rope_dim
    else:
        traffic = (_ROTARY_FUSED if kernels.fused else _ROTARY_UNFUSED) * rotated + 2.0 * values
    return Op(
        name="rotary",
        module="mla_up_proj" if latent or mixer.q_rank else "attn",
        kind=OpKind.MEMORY,
        split=Split.HEADS,
        traffic_elements_per_token=traffic,
        saved_elements_per_token=float(rotated + values),
        dropped_by=("attn", "mla_up_proj"),
    )


def _indexer(mixer: Attention, hidden: int, *, causal: bool) -> tuple[Op, ...]:
    """Scores that choose the keys; projections and scores are repeated whole on every tp rank.

    Queries come from the latent of the queries (from the model's width without one), one key and the heads' weights
    from the width; a score is a product over the index width, weighted and summed over the heads.

    References
    ----------
    Megatron-core ``transformer/experimental_attention_variant/dsa.py`` (``DSAIndexer``: projections ``duplicated``,
    input gathered over tp and detached); DeepSeek-AI, DeepSeek-V3.2.
    """
    if not mixer.index_heads:
        return ()
    queries = mixer.index_heads * mixer.index_dim
    projections = (
        ("index_q", mixer.q_rank or hidden, queries),
        *(() if mixer.compress else (("index_k", hidden, mixer.index_dim),)),
        *((("index_weights", hidden, mixer.index_heads),) if mixer.index_weights else ()),
    )
    return (
        *(index_compressor_ops(mixer, hidden) if mixer.compress else ()),
        *(
            Op(
                name=name,
                module="attn",
                kind=OpKind.GEMM,
                split=Split.REPLICATED,
                k=k,
                n=n,
                saved_elements_per_token=float(n),  # queries, key and weights, for the indexer's own loss
                shared_input_elements_per_token=float(k),
                dropped_by=("attn",),
                parameters=k * n,
            )
            for name, k, n in projections
        ),
        Op(
            name="index_scores",
            module="attn",
            kind=OpKind.ATTENTION,
            split=Split.REPLICATED,
            heads=mixer.index_heads,
            kv_heads=1,
            qk_dim=mixer.index_dim,
            compress=mixer.compress,
            causal=causal,
            dropped_by=("attn",),
            low_precision=False,
        ),
    )


def _core(mixer: Attention, kernels: Kernels, *, causal: bool) -> Op:
    flash = kernels.flash_attention
    # Not fused: the softmax's output (in fp32 before its cast, too) and, with dropout, its mask and the dropped matrix
    # are kept. Dropout reads and writes the matrix once more.
    dropped = 1.0 if kernels.dropout else 0.0
    kept_fp32 = FP32_BYTES if kernels.softmax is Softmax.SEPARATE_FP32 else 0.0
    gated_output = mixer.heads * mixer.v_dim if mixer.output_gate or mixer.head_gate else 0
    latent = (mixer.kv_rank + mixer.rope_dim, mixer.kv_rank) if mixer.absorbed and flash else ()
    kept_output = mixer.heads * (mixer.kv_rank if latent else mixer.v_dim)
    return Op(
        name="core_attention",
        module="core_attn",
        kind=OpKind.ATTENTION,
        split=Split.HEADS,
        heads=mixer.heads,
        kv_heads=mixer.heads if mixer.kind is AttentionKind.LATENT else mixer.kv_heads,
        qk_dim=mixer.qk_dim,
        v_dim=mixer.v_dim,
        window=mixer.window,
        compress=mixer.compress,
        chosen=mixer.chosen,
        latent=latent,
        causal=causal,
        saved_elements_per_token=float(kept_output if flash else gated_output),
        saved_bytes_per_token=FP32_BYTES * mixer.heads if flash else 0.0,
        saved_elements_per_score=0.0 if flash else 1.0 + dropped,
        saved_bytes_per_score=0.0 if flash else dropped + kept_fp32,
        traffic_elements_per_score=0.0 if flash else SCORE_ELEMENTS[kernels.softmax] + (2.0 + MASK_ELEMENTS) * dropped,
        dropped_by=("attn",),
        parameters=(mixer.heads if mixer.sinks else 0) + mixer.position_bias,
        low_precision=False,
    )


def _output_gate(mixer: Attention) -> tuple[Op, ...]:
    if not mixer.output_gate:
        return ()
    width = mixer.heads * mixer.v_dim
    return (
        Op(
            name="output_gate",
            module="attn",
            kind=OpKind.MEMORY,
            split=Split.HEADS,
            traffic_elements_per_token=3.0 * width,
            saved_elements_per_token=float(width),  # the gate; core attention keeps the other factor
            dropped_by=("attn",),
        ),
    )


def _head_gate(mixer: Attention, hidden: int) -> tuple[Op, ...]:
    """A number for every head, made of the width, that its output is multiplied by."""
    if not mixer.head_gate:
        return ()
    return (
        Op(
            name="head_gate",
            module="attn",
            kind=OpKind.GEMM,
            split=Split.COLUMN,
            k=hidden,
            n=mixer.heads,
            shared_input_elements_per_token=float(hidden),
            dropped_by=("layernorm",),
            parameters=hidden * mixer.heads,
        ),
        Op(
            name="gated_heads",
            module="attn",
            kind=OpKind.MEMORY,
            split=Split.HEADS,
            traffic_elements_per_token=2.0 * mixer.heads * mixer.v_dim,
            saved_elements_per_token=float(mixer.heads),  # the gate; core attention keeps the other factor
            dropped_by=("attn",),
        ),
    )


def _output(mixer: Attention, hidden: int, kernels: Kernels) -> tuple[Op, ...]:
    width = mixer.heads * mixer.v_dim
    # fused attention keeps its output already
    shared = kernels.flash_attention and not (mixer.output_gate or mixer.head_gate or mixer.absorbed)
    latent = mixer.out_rank * mixer.out_groups
    first = Op(
        name="proj_down" if latent else "proj",
        module="attn",
        kind=OpKind.GEMM,
        split=Split.COLUMN if latent else Split.ROW,
        k=width // mixer.out_groups,
        n=latent or hidden,
        saved_elements_per_token=0.0 if shared else float(width),
        shared_input_elements_per_token=float(width) if shared else 0.0,
        saved_split=Split.HEADS if latent else None,
        dropped_by=("attn",),
        parameters=width // mixer.out_groups * (latent or hidden) + (hidden if mixer.out_bias and not latent else 0),
        # groups are one batched product (Megatron-core: an einsum), which no recipe quantises
        low_precision=mixer.out_groups == 1,
    )
    if not latent:
        return (first,)
    second = Op(
        name="proj",
        module="attn",
        kind=OpKind.GEMM,
        split=Split.ROW,
        k=latent,
        n=hidden,
        saved_elements_per_token=float(latent),
        dropped_by=("attn",),
        parameters=latent * hidden + (hidden if mixer.out_bias else 0),
    )
    return (first, second)

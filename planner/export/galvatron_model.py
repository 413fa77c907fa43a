"""Sizes of a model as overrides of Galvatron's YAML (``GalvatronModelArgs``), which come before its model file.

References
----------
Galvatron 2.4.1 ``core/runtime/args_schema.py``.
"""

from costmodels.workload.model import Attention, AttentionKind, LayerKind, ModelSpec, MoeFfn
from planner.export.plan_checks import norm_of
from planner.ingest.galvatron import MODEL


def size_overrides(model: ModelSpec) -> tuple[str, ...]:
    """Return the sizes of a model of equal blocks of grouped attention and one feed-forward part.

    Parameters
    ----------
    model : ModelSpec
        Any model.

    Returns
    -------
    tuple of str
        ``key=value``; empty for models whose layers differ or have what Galvatron has no key for: their sizes are left
        to the model file.
    """
    kinds = model.kinds()
    kind = kinds[0]
    if len(kinds) > 1 or not isinstance(kind, LayerKind) or kind.norm_count != 2 or kind.parallel or model.mtp_layers:
        return ()
    attention, ffn = kind.mixer, kind.ffn
    if not isinstance(attention, Attention) or attention.kind is not AttentionKind.GROUPED or ffn is None:
        return ()
    odd = (attention.window, attention.out_bias, attention.output_gate, attention.sinks, attention.shared_kv, ffn.bias)
    if any(odd) or attention.qk_norm_parameters or (isinstance(ffn, MoeFfn) and (ffn.shared_hidden or ffn.latent)):
        return ()
    sizes: dict[str, object] = {
        "hidden_size": model.hidden,
        "num_attention_heads": attention.heads,
        "num_query_groups": attention.kv_heads,
        "kv_channels": attention.qk_dim,
        "ffn_hidden_size": ffn.hidden,
        "vocab_size": model.vocab,
        "make_vocab_size_divisible_by": model.vocab_multiple,
        "normalization": norm_of(model),
        "add_qkv_bias": attention.qkv_bias,
        "qk_layernorm": attention.qk_norm,
        "gated_linear_unit": ffn.gated,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
    }
    if isinstance(ffn, MoeFfn):
        sizes |= {"num_moe_experts": ffn.experts, "moe_router_topk": ffn.top_k, "moe_ffn_hidden_size": ffn.hidden}
    return tuple(
        f"{MODEL}{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in sizes.items()
    )

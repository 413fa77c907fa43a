"""Layers of unlike sizes in Megatron-LM's flags: a JSON file with an entry for every layer, as Llama-Nemotron's.

References
----------
Megatron-LM ``megatron/training/arguments.py`` (``validate_model_config_args_from_heterogeneous_config``: what the
arguments must say as the file does) and ``megatron/core/transformer/heterogeneous``, core 0.13 to 0.19.
"""

import json
from typing import Any, Final

from costmodels.workload.details import ModelDetails
from costmodels.workload.model import Attention, DenseFfn, LayerKind, ModelSpec
from planner.export.launch import Program
from planner.export.megatron_hybrid import no_flag
from planner.export.plan_checks import activation_of
from planner.ingest.megatron.layers_file import PATH

LAYERS_FILE: Final = "layers.json"
LAYERS_PROGRAM: Final = Program(target=f'"$TRAIN_SCRIPT" {PATH} "$here/{LAYERS_FILE}"')
_SCALING: Final = "llama3"


def unlike_layer(model: ModelSpec, kind: object) -> LayerKind:
    """One layer with one or both of its parts, or the reason why the file cannot say it.

    Raises
    ------
    InputError
        Parts side by side, norms behind them, or a width beside them.
    """
    if not isinstance(kind, LayerKind) or kind.parallel or kind.side_width:
        raise no_flag(model, "parts side by side in layers of unlike sizes", "one part after the other")
    parts = sum(part is not None for part in (kind.mixer, kind.ffn))
    if kind.norm_count != parts:
        raise no_flag(model, f"{kind.norm_count} norms of {parts} parts in layers of unlike sizes", "one before a part")
    return kind


def unlike_arguments(model: ModelSpec) -> list[str]:
    """Flags that the file asks for beside those that build any model of this kind.

    Raises
    ------
    InputError
        The model has what Megatron-LM refuses beside such a file.
    """
    details, kinds = model.known_details, [kind for kind in model.layer_kinds() if isinstance(kind, LayerKind)]
    scaled = "layers of unlike sizes without Llama 3's scaling of positions"
    if details.rope_scaling != _SCALING or details.rope_fraction != 1.0:
        raise no_flag(model, scaled, "rotary positions scaled as Llama 3.1's (rope_scaling llama3)")
    gated = {kind.ffn.gated for kind in kinds if kind.ffn is not None}
    if gated != {True} or activation_of(model, gated=True) != "silu":
        raise no_flag(model, "layers of unlike sizes with another activation than gated silu", "SwiGLU")
    if model.final_norm_parameters != model.hidden:
        raise no_flag(model, "layers of unlike sizes with LayerNorm", "RMSNorm")
    if model.mtp_layers:
        raise no_flag(model, "predicted tokens behind layers of unlike sizes", "no such layers")
    plain = next(kind.mixer for kind in kinds if isinstance(kind.mixer, Attention))
    grouped = ["--group-query-attention", "--num-query-groups", str(plain.kv_heads)]
    return [*(grouped if plain.kv_heads == plain.heads else []), "--use-rotary-position-embeddings"]


def layers_text(model: ModelSpec) -> str:
    """Text of the file: Llama-Nemotron's form, with exact widths."""
    details = model.known_details
    kinds = [kind for kind in model.layer_kinds() if isinstance(kind, LayerKind)]
    heads = next(kind.mixer.heads for kind in kinds if isinstance(kind.mixer, Attention))
    config: dict[str, Any] = {
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": model.layers,
        "tie_word_embeddings": model.tied_embeddings,
        **_positions(details),
        "block_configs": [_block(kind) for kind in kinds],
    }
    return json.dumps(config, indent=1) + "\n"


def _positions(details: ModelDetails) -> dict[str, Any]:
    return {"rope_theta": details.rope_theta, "rope_scaling": {"rope_type": _SCALING, "factor": details.rope_factor}}


def _block(kind: LayerKind) -> dict[str, Any]:
    """Entry of one layer; a part that it lacks is no operation."""
    mixer, ffn = kind.mixer, kind.ffn
    group = mixer.heads // mixer.kv_heads if isinstance(mixer, Attention) else None
    width = ffn.hidden if isinstance(ffn, DenseFfn) else None
    return {
        "attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
        "ffn": {"ffn_hidden_size": width, "no_op": width is None, "replace_with_linear": False},
    }

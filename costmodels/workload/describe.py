"""A model as plain data, for people and programs."""

from costmodels.workload.counts import flops_per_token, parameter_count
from costmodels.workload.model import ModelSpec
from costmodels.workload.presets import is_opaque

DEFAULT_SEQ = 4096


def to_dict(model: ModelSpec, *, seq: int = 0) -> dict[str, object]:
    """Return what ``plan catalog models NAME --json`` prints.

    Parameters
    ----------
    model : ModelSpec
        The model.
    seq : int
        Tokens of a sequence for the FLOPs; 0: 4096, or the longest that the model allows when that is shorter.

    Returns
    -------
    dict
        ``parameters``, ``active_parameters``, ``layers``, ``flops_per_token`` and what they rest on. For a list of
        layers ``flops_per_token`` is per sample, or per token when the file says how many tokens a sample has.
    """
    count = parameter_count(model)
    result: dict[str, object] = {
        "name": model.name,
        "family": model.family,
        "parameters": count.total,
        "active_parameters": count.active,
        "embedding_parameters": count.embedding,
        "head_parameters": count.head,
        "mtp_parameters": count.mtp,
        "layers": model.layers,
        "mtp_layers": model.mtp_layers,
        "layer_kinds": [
            {"name": name, "parameters": parameters, "count": layers} for name, parameters, layers in count.per_kind
        ],
        "sources": list(model.sources),
        "notes": list(model.notes),
    }
    if model.tower is not None:
        result |= {"tower_parameters": count.tower, "projector_parameters": count.projector}
        result["image_tokens"] = model.tower.image_tokens
    if is_opaque(model):
        per_sample = flops_per_token(model, 1)
        result["flops_per_token"] = per_sample / (model.fixed_seq or 1)
        unit = "token" if model.fixed_seq else "sample"
        result["flops_convention"] = f"forward and backward (twice the forward) per {unit}"
        return result
    length = seq or min(DEFAULT_SEQ, model.max_positions or DEFAULT_SEQ)
    result["hidden"] = model.hidden
    result["vocab"] = model.vocab
    result["seq"] = length
    result["flops_per_token"] = flops_per_token(model, length)
    result["flops_per_token_full_scores"] = flops_per_token(model, length, causal=False)
    result["flops_convention"] = (
        "forward and backward (twice the forward), no recompute, masked scores left out, active experts only, "
        "multi-token prediction included"
    )
    return result

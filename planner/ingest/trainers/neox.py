"""GPT-NeoX: one YAML file, or several, for DeepSpeed's configuration, the degrees and the model.

They are taken apart into the configuration and Megatron-DeepSpeed's options.

References
----------
GPT-NeoX ``megatron/neox_arguments/arguments.py`` (``consume_deepy_args``, ``calculate_derived``),
``megatron/training.py`` (``get_model``: ZeRO 2 and 3 with ``PipelineModule`` or model parallelism end the program). It
brings its own DeepSpeed, which takes keys of 16 bits that others refuse.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from hardware.errors import InputError
from hardware.package_table import package_table
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.deepspeed.text import read_config
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault, near_key

_PIPE: Final = "pipe_parallel_size"
_TENSOR: Final = "model_parallel_size"
_EXPERTS: Final = "moe_num_experts"
NEOX_SIGNS: Final = (_PIPE, _TENSOR)
"""Keys, with underscores, by which a configuration is known as GPT-NeoX's."""
_BF16: Final = ("bfloat16", "bf16")
_NEOX_HALF: Final = (*_BF16, "fp16")
_SHARDED_GRADIENTS: Final = 2
_SIZED: Final = ("num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "intermediate_size")
_GATED: Final = ("geglu", "reglu", "bilinear", "swiglu", "glu")
_MULTIPLE: Final = 256
"""What the width of a feed-forward is rounded up to (``megatron/model/transformer.py``, ``ParallelMLP``)."""
_OTHER_LAYERS: Final = ("mamba", "rwkv", "gmlp", "amlp")


def of_neox(text: LaunchText) -> LaunchText:
    """A launch whose words are a GPT-NeoX configuration as DeepSpeed's configuration and options; others as they are.

    Parameters
    ----------
    text : LaunchText
        A launch without a DeepSpeed configuration, or with one that may be GPT-NeoX's.
    """
    told = _settings(text)
    if not _is_neox(told):
        return text
    config: dict[str, Any] = {}
    words: list[str] = []
    for name, value in told.items():
        if name in ("fp16", "bf16") and isinstance(value, dict):
            config |= _half(name, value)
        elif name in key_table()["top_level"]:
            config[name] = value
        elif name == "precision" and value in _NEOX_HALF:
            config["fp16" if value == "fp16" else "bf16"] = {"enabled": True}
        elif name in ("activation", "norm", "pos_emb") or name in _SIZED or name not in _keys():
            continue  # with the sizes of the model, or told by neox_faults
        elif isinstance(value, bool):
            words += [f"--{name}"] if value else []
        elif isinstance(value, int | float | str):
            told_value = 1 if name == "pipe_parallel_size" and value == 0 else value  # 0: no pipeline
            words += [f"--{name}", str(told_value)]
    words += _model_words(told)
    own = [word for word in text.arguments if word.startswith("-")] if not text.config else text.arguments
    return replace(text, config=json.dumps(config), arguments=(*words, *own))


def _model_words(told: Mapping[str, Any]) -> list[str]:
    """Options of the sizes of its transformer; none where its layers are of another kind.

    A gated feed-forward has a third of the stated width (two products in the place of one, as many parameters).
    """
    if any(kind in str(told.get("attention_config", "")) for kind in _OTHER_LAYERS):
        return []
    words = [word for name in _SIZED if name in told for word in (f"--{name}", str(told[name]))]
    hidden = told.get("hidden_size", 0)
    width = told.get("intermediate_size") or (4 * hidden if isinstance(hidden, int) else 0)
    if told.get("activation") in _GATED and isinstance(width, int):
        words = [*words, "--swiglu", "--ffn-hidden-size", str(-(-(width * 2 // 3 // 2) // _MULTIPLE) * _MULTIPLE)]
    words += ["--normalization", "RMSNorm"] if told.get("norm") == "rmsnorm" else []
    kind = told.get("pos_emb", "learned")
    words += ["--use-rotary-position-embeddings"] if kind == "rotary" else []
    words += ["--no-position-embedding"] if kind not in ("rotary", "learned") else []
    return [*words, *(["--disable-bias-linear"] if told.get("use_bias_in_attn_linear") is False else [])]


def neox_faults(text: LaunchText) -> tuple[Fault, ...]:
    """What GPT-NeoX itself refuses beside what DeepSpeed does; nothing in a launch of another program.

    Parameters
    ----------
    text : LaunchText
        As the user wrote it.
    """
    told = _settings(text)
    if not _is_neox(told):
        return ()
    zero = told.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    found = [_unknown(name) for name in told if name not in _keys()]
    if not isinstance(stage, int):
        return tuple(found)
    if stage >= _SHARDED_GRADIENTS:
        if told.get(_PIPE, 0) == 1:
            found.append(
                _fault(_PIPE, f"ZeRO stage {stage} with {_PIPE} 1, a pipeline of one stage; allowed: {_PIPE} 0")
            )
        if _above_one(told.get(_TENSOR)):
            allowed = f"ZeRO 0 or 1, or {_TENSOR} 1"
            found.append(_fault(_TENSOR, f"ZeRO stage {stage} with {_TENSOR} {told[_TENSOR]}; allowed: {allowed}"))
        if _above_one(told.get(_EXPERTS)):
            found.append(_fault(_EXPERTS, f"ZeRO stage {stage} with a mixture of experts; allowed: ZeRO 0 or 1"))
    return tuple(found)


def _unknown(name: str) -> Fault:
    near = near_key(name, _keys())
    return Fault(rule="neox-unknown-key", argument=name, message=f"{name} is unknown to GPT-NeoX{near}")


@cache
def _keys() -> frozenset[str]:
    return frozenset(package_table("planner.ingest.trainers", "neox_keys.toml")["known"])


def _fault(argument: str, message: str) -> Fault:
    return Fault(rule="neox-zero", argument=argument, message=message)


def _above_one(value: object) -> bool:
    return isinstance(value, int) and value > 1


def is_neox(text: LaunchText) -> bool:
    """Whether a launch has settings of GPT-NeoX, as the user wrote it."""
    return _is_neox(_settings(text))


def _is_neox(told: Mapping[str, Any]) -> bool:
    return any(name in NEOX_SIGNS for name in told)


def _half(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """A section of 16 bits, which may be told to be of the other kind; keys that DeepSpeed has not are NeoX's."""
    kept = {key: value for key, value in section.items() if key in key_table()["sections"][name]}
    if name == "fp16" and section.get("type") in _BF16:
        return {"bf16": {"enabled": kept.get("enabled", True)}}
    return {name: kept}


def _settings(text: LaunchText) -> dict[str, Any]:
    """Settings with underscores, nested as in their file: JSON, or ``a.b=value`` words, as YAML is written out."""
    return {name.replace("-", "_"): value for name, value in _nested(text).items()}


def _nested(text: LaunchText) -> dict[str, Any]:
    if text.config:
        try:
            return read_config(text.config)
        except InputError:
            return {}
    nested: dict[str, Any] = {}
    for word in text.arguments:
        path, sign, value = word.partition("=")
        if not sign or word.startswith("-"):
            continue
        *sections, name = path.split(".")
        inner = nested
        for section in sections:
            deeper = inner.setdefault(section, {})
            inner = deeper if isinstance(deeper, dict) else {}
        inner[name] = _plain(value)
    return nested


def _plain(text: str) -> Any:
    """A value as JSON reads it; other words are texts."""
    try:
        return json.loads(text)
    except ValueError:
        return text

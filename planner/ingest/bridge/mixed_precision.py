"""Mixed precision of Megatron-Bridge: one configuration decides the number formats of model, optimizer and gradients.

``MixedPrecisionConfig.setup`` lays its fields over those of the same name in ``model``, ``optimizer`` and ``ddp``, so
that an override of such a field there says nothing; and a configuration that is given by its name cannot be changed
field by field, so that one that differs from the names is built whole (``_target_``).

References
----------
Megatron-Bridge 0.6 ``training/mixed_precision.py``, ``training/config.py`` (``runtime_config_update``),
``training/utils/omegaconf_utils.py``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from hardware.package_table import package_table

KEY: Final = "mixed_precision"
GRADIENTS: Final = "grad_reduce_in_fp32"
_GATHER: Final = "fp8_param_gather"
_GATHERS: Final = (_GATHER, "reuse_grad_buf_for_mxfp8_param_ag")
_OVERWRITTEN: Final = ("model.", "optimizer.", "ddp.")
_TARGET: Final = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
_DTYPES: Final = MappingProxyType({"bf16": "torch.bfloat16", "fp16": "torch.half"})
_NOTHING: Final = ("null", "none", "")
_DEFAULTS: Final = MappingProxyType(
    {
        GRADIENTS: "true",
        "fp8": "null",
        "fp8_recipe": "tensorwise",
        _GATHER: "false",
        "fp4": "null",
        "fp4_recipe": "nvfp4",
        "fp4_param_gather": "false",
        "first_last_layers_bf16": "false",
        "reuse_grad_buf_for_mxfp8_param_ag": "false",
    }
)
"""Fields that decide on number formats, with what they are where a configuration does not say."""


@lru_cache(maxsize=1)
def named_configurations() -> Mapping[str, Mapping[str, str]]:
    """Fields of the configurations that have a name, where they differ from the defaults; values as overrides say them.

    Returns
    -------
    Mapping
        By name.
    """
    return MappingProxyType(
        {
            name: MappingProxyType({field: _word(value) for field, value in fields.items()})
            for name, fields in package_table("planner.ingest.bridge", "mixed_precision.toml")["configuration"].items()
        }
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def precision_override(name: str, *, bf16_gradients: bool, wide_weights: bool) -> str:
    """Override that asks for a configuration.

    Parameters
    ----------
    name : str
        Of the configuration.
    bf16_gradients : bool
        Whether gradients are summed and reduced in bf16, where the named configuration does it in fp32.
    wide_weights : bool
        Whether weights stay in 16 bits, where the named configuration keeps and gathers them in 8.

    Returns
    -------
    str
        ``mixed_precision=...``: the name, or the whole configuration where it differs.
    """
    fields = named_configurations()[name]
    changed = {GRADIENTS: "false"} if bf16_gradients and fields.get(GRADIENTS) != "false" else {}
    changed |= {field: "false" for field in _GATHERS if wide_weights and fields.get(field) == "true"}
    if not changed:
        return f"{KEY}={name}"
    dtype = f"{{_target_:{_DTYPES['bf16' if 'bf16' in fields else 'fp16']},_call_:false}}"
    words = {"params_dtype": dtype, "pipeline_dtype": dtype, **fields, **changed}
    return f"{KEY}={{_target_:{_TARGET},{','.join(f'{field}:{word}' for field, word in words.items())}}}"


def stated_precision(overrides: Iterable[str]) -> Mapping[str, str] | None:
    """Fields of the mixed precision that overrides state, defaults included.

    Parameters
    ----------
    overrides : iterable of str
        ``key=value``; others than those of mixed precision are passed over.

    Returns
    -------
    Mapping or None
        None when no override says anything, or turns mixed precision off. Single fields are laid over bf16.

    Raises
    ------
    InputError
        No configuration has the name.
    """
    found: dict[str, str] | None = None
    for override in overrides:
        name, _, value = override.lstrip("+-").partition("=")
        text = value.strip().strip("'\"")
        if name == KEY:
            found = None if text.lower() in _NOTHING else {**_DEFAULTS, **_configuration(text)}
        elif name.startswith(f"{KEY}."):
            found = {**(found or {**_DEFAULTS, "bf16": "true"}), name.removeprefix(f"{KEY}."): text.lower()}
    return MappingProxyType(found) if found is not None else None


def _configuration(text: str) -> Mapping[str, str]:
    if text.startswith("{"):
        inner = re.sub(r"\{[^{}]*\}", "", text[1:].rstrip("}"))  # number formats are tables of their own
        pairs = (pair.partition(":") for pair in inner.split(","))
        return {field.strip().strip("'\""): value.strip().strip("'\"").lower() for field, _, value in pairs}
    known = named_configurations()
    found = known.get(text.replace("-", "_"))
    if found is None:
        raise InputError(f"{KEY}={text}", allowed=", ".join(known))
    return found


def precision_flags(fields: Mapping[str, str]) -> list[str]:
    """Flags of Megatron-LM that say what a configuration says.

    Parameters
    ----------
    fields : Mapping
        As :func:`stated_precision` gives them.

    Returns
    -------
    list of str
        Formats of weights and GEMMs; gradients in bf16 where they are.
    """
    flags = [f"--{name}" for name in ("bf16", "fp16") if fields.get(name) == "true"]
    for name in ("fp8", "fp4"):
        if fields[name] not in _NOTHING:
            flags += [f"--{name}-format", fields[name], f"--{name}-recipe", fields[f"{name}_recipe"]]
    if fields[_GATHER] == "true" and "--fp8-format" in flags:
        flags.append("--fp8-param-gather")
    if fields[GRADIENTS] == "false" and "--bf16" in flags:
        flags.append("--grad-reduce-in-bf16")
    return flags


def overwritten(name: str, value: str, fields: Mapping[str, str] | None) -> str | None:
    """Key that decides what an override of model, optimizer or ddp seems to say.

    Parameters
    ----------
    name, value : str
        The override.
    fields : Mapping or None
        As :func:`stated_precision` gives them; None: the recipe decides, and nobody knows.

    Returns
    -------
    str or None
        ``mixed_precision.FIELD`` when the configuration says otherwise.
    """
    section = next((section for section in _OVERWRITTEN if name.startswith(section)), None)
    field = name.partition(".")[2]
    if section is None or fields is None or field not in _DEFAULTS:
        return None
    told = "null" if value.lower() in _NOTHING else value.lower()
    return f"{KEY}.{field}" if fields[field] != told else None


def recipe_override(words: Sequence[str], *, bf16_gradients: bool, wide_weights: bool) -> tuple[str, ...]:
    """Overrides of a training recipe with the width of its gradients and weights.

    Parameters
    ----------
    words : sequence of str
        Overrides of the recipe as the table of keys has them.
    bf16_gradients : bool
        Whether gradients are summed and reduced in bf16.
    wide_weights : bool
        Whether weights stay in 16 bits where the recipe has them in 8.

    Returns
    -------
    tuple of str
        The same, ``mixed_precision`` built whole where a name does not say it.
    """
    named = named_configurations()
    split = [word.partition("=") for word in words]
    return tuple(
        precision_override(value, bf16_gradients=bf16_gradients, wide_weights=wide_weights)
        if key == KEY and value in named
        else f"{key}={value}"
        for key, _, value in split
    )

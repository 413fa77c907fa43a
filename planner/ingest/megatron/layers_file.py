"""Layers of unlike sizes: the JSON file that Megatron-LM's ``--heterogeneous-layers-config-path`` names.

Its text stands behind ``--heterogeneous-layers-config-encoded-json``, which Megatron-LM reads in the file's place where
both are given; readers of launches put it there.

References
----------
Megatron-LM ``megatron/training/arguments.py`` (``validate_model_config_args_from_heterogeneous_config``) and
``megatron/core/transformer/heterogeneous/heterogeneous_config.py``, alike in core 0.13 to 0.19.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.hybrids import searched_blocks
from hardware.errors import InputError
from planner.ingest.options import Arguments
from planner.rules.split import Layers

PATH: Final = "--heterogeneous-layers-config-path"
TEXT: Final = "--heterogeneous-layers-config-encoded-json"
_SWITCHES: Final = ("--swiglu", "--group-query-attention", "--use-rope-scaling", "--use-rotary-position-embeddings")
_WORDS: Final = (
    ("--normalization", "LayerNorm", "RMSNorm"),
    ("--position-embedding-type", "learned_absolute", "rope"),
)
_SIZES: Final = (
    ("--num-layers", "num_hidden_layers"),
    ("--hidden-size", "hidden_size"),
    ("--num-attention-heads", "num_attention_heads"),
)
_UNTIED: Final = "--untie-embeddings-and-output-weights"
_SCALE: Final = 8.0  # of positions, where --rope-scaling-factor is not given


def layers_table(read: Arguments) -> Mapping[str, Any] | None:
    """The file's values; None where no text is given or it is no object of JSON."""
    return _parsed(read.text(TEXT)) if read.has(TEXT) else None


@lru_cache(maxsize=8)
def _parsed(text: str) -> Mapping[str, Any] | None:
    """An object of JSON; None for anything else. A launch asks for it in several places."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return MappingProxyType(told) if isinstance(told, dict) else None


def unlike_blocks(read: Arguments) -> tuple[tuple[int, int], ...] | None:
    """Key-value heads and feed-forward width of every layer; 0: without that part. None where no file is given.

    Raises
    ------
    InputError
        The file does not say them.
    """
    if not read.has(PATH):
        return None
    table = layers_table(read)
    if table is None:
        raise InputError(f"{PATH}: layers of unlike sizes", allowed="a JSON file beside the launch, or --model MODEL")
    sizes = {key: read.number(option, 0) for option, key in _SIZES[1:]}
    return searched_blocks(Fields({**table, **sizes}, PATH))


def common_width(read: Arguments, width: int) -> int:
    """What divides the feed-forward width of every layer: of those in the file, where one is given."""
    try:
        blocks = unlike_blocks(read)
    except InputError:
        return width
    return width if blocks is None else gcd(*(wide for _, wide in blocks))


def file_facts(read: Arguments) -> Mapping[str, tuple[str, ...]]:
    """What rules ask about the file, as options that are given when they hold.

    Returns
    -------
    mapping of str to tuple of str
        ``--layers-json``: the text is an object; ``--layers-silu``: its activation; ``--layers-one-group``: as many
        keys in every layer that has some; ``--layers-each``: an entry for every layer; ``--layers-differ``: the options
        that are otherwise than it says.
    """
    table = layers_table(read)
    if table is None:
        return {}
    blocks = table.get("block_configs")
    parts = [block.get("attention") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    groups = {part.get("n_heads_in_group") for part in parts if isinstance(part, dict)} - {None}
    facts: dict[str, tuple[str, ...]] = {"--layers-json": ()}
    facts |= {"--layers-silu": ()} if table.get("hidden_act") == "silu" else {}
    facts |= {"--layers-one-group": ()} if len(groups) == 1 else {}
    facts |= {"--layers-each": ()} if len(parts) == read.number("--num-layers", 0) else {}
    differ = _differing(read, table, groups.pop() if len(groups) == 1 else None)
    return facts | ({"--layers-differ": (", ".join(differ),)} if differ else {})


def _differing(read: Arguments, table: Mapping[str, Any], group: object) -> list[str]:
    """Options that are otherwise than the file asks for."""
    scaling, heads = table.get("rope_scaling"), read.number("--num-attention-heads", 0)
    wrong = [name for name in _SWITCHES if not read.has(name)]
    wrong += [name for name, default, wanted in _WORDS if read.text(name, default) != wanted]
    wrong += [option for option, key in _SIZES if table.get(key) != read.number(option, 0)]
    wrong += ["--rotary-percent"] if _number(read, "--rotary-percent", 1.0) != 1.0 else []
    wrong += ["--rotary-base"] if table.get("rope_theta") != _number(read, "--rotary-base", 10_000.0) else []
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    wrong += ["--rope-scaling-factor"] if factor != _number(read, "--rope-scaling-factor", _SCALE) else []
    wrong += [_UNTIED] if table.get("tie_word_embeddings") is not (not read.has(_UNTIED)) else []
    fits = isinstance(group, int) and group > 0 and heads // group == read.number("--num-query-groups", 1)
    return wrong if fits or group is None else [*wrong, "--num-query-groups"]


def _number(read: Arguments, name: str, default: float) -> float:
    try:
        return float(read.text(name, str(default)))
    except ValueError:
        return default


def without_idle(read: Arguments, built: Layers) -> Layers:
    """Layers of each stage and chunk without those that have neither part, which do nothing.

    Parameters
    ----------
    read : Arguments
        With a file of layers or without.
    built : tuple of tuples of int
        As Megatron-LM counts them.
    """
    try:
        blocks = unlike_blocks(read)
    except InputError:
        return built
    if blocks is None or all(map(any, blocks)):
        return built
    counts = [stage[chunk] for chunk in range(len(built[0])) for stage in built]
    ends = [0, *accumulate(counts)]
    kept = [sum(map(any, blocks[low:high])) for low, high in pairwise(ends)]
    return tuple(tuple(kept[stage :: len(built)]) for stage in range(len(built)))

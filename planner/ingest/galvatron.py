"""Galvatron's JSON with a strategy for every layer, read into a layout.

References
----------
Hetu-Galvatron 2.4: ``galvatron/core/runtime/hybrid_parallel_config.py`` (keys, defaults, ``check_hp_config``) and
``galvatron/utils/config_utils.py`` (``config2strategy``).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Stage, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.architecture import Architecture
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.ingest.options import near_key, whole
from planner.ingest.plain_layout import StatedLayout, UnpricedError, joined, refuse_illegal
from planner.layouts.splits import even_chunks
from planner.request import Framework
from planner.rules.proposal import ModelFacts, Proposal, Split, replicas_of

_LISTS: Final = (
    "tp_sizes_enc",
    "tp_consecutive_flags",
    "cp_sizes_enc",
    "dp_types_enc",
    "use_sp",
    "checkpoint",
    "ep_sizes_enc",
    "tp_of_ep_sizes_enc",
)
_NEEDED: Final = ("pp_deg", "tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "global_bsz", "chunks")
_OTHERS: Final = (
    "pp_division",
    "pipeline_type",
    "default_dp_type",
    "vtp",
    "vsp",
    "vcp",
    "vocab_sdp",
    "embed_sdp",
    "world_size",
)
_DEFAULTS: Final = MappingProxyType({"tp_consecutive_flags": 1, "cp_sizes_enc": 1, "ep_sizes_enc": 1})
_SCHEDULES: Final = MappingProxyType({"pipedream_flush": Schedule.ONE_F_ONE_B, "gpipe": Schedule.GPIPE})
_STAGES: Final = MappingProxyType({"ddp": 0, "zero2": 2, "zero3": 3})
MODEL: Final = "runtime.model."
"""What the overrides of a model's sizes begin with."""
_SIZES: Final = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class GalvatronLaunch:
    """A launch of Galvatron: number of ranks, the JSON's values, overrides by name, and keys that it does not read."""

    world: int
    config: Mapping[str, Any]
    overrides: Mapping[str, str]
    unread: tuple[str, ...]


def model_of(launch: GalvatronLaunch) -> ModelSpec | None:
    """Return the model whose sizes the overrides state; None where they leave them to a file.

    Raises
    ------
    InputError
        The sizes do not go together.
    """
    told = {name.removeprefix(MODEL): value for name, value in launch.overrides.items() if name.startswith(MODEL)}

    def size(name: str, default: int = 0) -> int:
        return whole(told.get(name, "")) or default

    def on(name: str, default: str = "false") -> bool:
        return told.get(name, default).lower() == "true"

    if not all(size(name) for name in _SIZES):
        return None
    experts = size("num_moe_experts")
    facts = Architecture(
        layers=size("num_layers"),
        hidden=size("hidden_size"),
        heads=size("num_attention_heads"),
        kv_heads=size("num_query_groups", size("num_attention_heads")),
        head_dim=size("kv_channels"),
        ffn=size("ffn_hidden_size"),
        vocab=size("vocab_size"),
        vocab_multiple=size("make_vocab_size_divisible_by", 128),
        norm="rms" if told.get("normalization", "RMSNorm") == "RMSNorm" else "layer",
        qkv_bias=on("add_qkv_bias"),
        qk_norm=on("qk_layernorm"),
        gated=on("gated_linear_unit", "true"),
        tied=not on("untie_embeddings_and_output_weights", "true"),
        experts=experts,
        top_k=size("moe_router_topk", 2) if experts else 0,
        expert_ffn=size("moe_ffn_hidden_size", size("ffn_hidden_size")) if experts else 0,
    )
    return facts.build("model of the overrides", sources=("launch arguments",), where="overrides")


def parse_galvatron(text: str, overrides: Sequence[str] = (), *, world: int) -> GalvatronLaunch:
    """Read Galvatron's JSON and the overrides of its YAML.

    Parameters
    ----------
    text : str
        JSON, as in ``galvatron_config_*.json``.
    overrides : sequence of str
        ``name=value``, such as ``runtime.train.sequence_parallel=true``.
    world : int
        Number of ranks.

    Raises
    ------
    InputError
        The text is no JSON object, a needed key is missing, or an override is not ``name=value``.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", allowed="a Galvatron configuration") from None
    if not isinstance(config, dict):
        raise InputError(f"{type(config).__name__} instead of an object", allowed="a Galvatron configuration")
    missing = [key for key in _NEEDED if key not in config]
    if missing:
        raise InputError(f"{', '.join(missing)}: missing", allowed="a Galvatron configuration")
    known = (*_LISTS, *_NEEDED, *_OTHERS)
    found = {}
    for override in overrides:
        name, sign, value = override.partition("=")
        if not sign:
            raise InputError(f"override {override!r}", allowed="name=value")
        found[name] = value
    return GalvatronLaunch(
        world=world,
        config=MappingProxyType(config),
        overrides=MappingProxyType(found),
        unread=tuple(key + near_key(key, known) for key in config if key not in known),
    )


def layout_of(launch: GalvatronLaunch, model: ModelFacts) -> Layout:
    """State a launch as a layout.

    Parameters
    ----------
    launch : GalvatronLaunch
        See :func:`parse_galvatron`.
    model : ModelFacts
        Sizes of the model.

    Returns
    -------
    Layout
        With the strategy of every layer; ``use_sp`` (Ulysses) is read as context parallelism over all-to-all.

    Raises
    ------
    InputError
        A value is wrong, or the launch breaks a rule.
    """
    return refuse_illegal(stated_layout(launch, model), model, world=launch.world, framework=Framework.GALVATRON)


def stated_layout(launch: GalvatronLaunch, model: ModelFacts) -> StatedLayout:
    """Read what a launch states, legal or not; parameters as of :func:`layout_of`.

    Raises
    ------
    InputError
        A value is wrong, a list has another length than the model, or a grid does not divide its stage.
    """
    config = launch.config
    pp, batch, chunks = (_whole(config[key], key) for key in ("pp_deg", "global_bsz", "chunks"))
    layers = len(_numbers(config["tp_sizes_enc"], "tp_sizes_enc"))
    if layers != model.layers:
        raise InputError(f"tp_sizes_enc names {layers} layers, the model has {model.layers}", allowed="equal numbers")
    strategies = _strategies(launch, model, pp, layers)
    dp, samples = strategies[0].dp, strategies[0].dp * chunks
    most = _most_replicas(config, strategies)
    if batch % dp or batch % most:
        raise InputError(
            f"global_bsz {batch} does not divide by {max(dp, most)} replicas, of the layers and of the vocabulary"
            f" (vtp {config.get('vtp', 1)}, vcp {config.get('vcp', 1)})",
            allowed=f"a multiple of {max(dp, most)}, or vtp and vcp as the layers have",
        )
    told = str(config.get("pipeline_type", "gpipe"))
    if told not in _SCHEDULES:
        raise InputError(f"pipeline_type {told!r}", allowed=", ".join(_SCHEDULES))
    counts = _division(config, pp, layers)
    if batch % samples:
        raise UnpricedError(
            f"{batch // dp} samples of a replica in {chunks} chunks are of two sizes, which has no price here",
            allowed=f"chunks that divide {batch // dp}",
        )
    layout = Layout(
        stages=_stages(strategies, counts),
        micro_batch=batch // samples,
        num_microbatches=chunks,
        schedule=_SCHEDULES[told],
    )
    return StatedLayout(layout=layout, global_batch=batch, seq=stated_seq(launch) or max(1, model.max_positions))


def _most_replicas(config: Mapping[str, Any], strategies: Sequence[Strategy]) -> int:
    """Replicas of the narrowest grid among layers and vocabulary, whose degrees are 1 where they are left out.

    References
    ----------
    Hetu-Galvatron 2.4.1 ``hybrid_parallel_config.py``: the batch divides by a stage's GPUs over both least degrees.
    """
    vocabulary = [_whole(config.get(key, 1), key) for key in ("vtp", "vcp")]
    tp = min(vocabulary[0], *(strategy.tp for strategy in strategies))
    cp = min(vocabulary[1], *(strategy.cp for strategy in strategies))
    return max(1, strategies[0].gpus // tp // cp)


def stated_seq(launch: GalvatronLaunch) -> int:
    """Tokens of a sequence as an override states them; 0: none does."""
    return whole(launch.overrides.get("runtime.train.seq_length", "")) or 0


def degrees_of(launch: GalvatronLaunch, model: ModelFacts) -> Proposal:
    """Degrees of the first layer as they stand, for judging a launch whose layout cannot be stated."""

    def first(key: str) -> int:
        number = whole(str(launch.config.get(key, 1)).split(",")[0].strip())
        return 1 if number is None else number

    tp, cp, pp = first("tp_sizes_enc"), first("cp_sizes_enc"), first("pp_deg")
    dp = replicas_of(launch.world, tp, cp, pp)
    batch, chunks = first("global_bsz"), first("chunks")
    micro, rest = divmod(batch, max(1, chunks * dp))
    return Proposal(
        world=launch.world,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=first("ep_sizes_enc"),
        etp=first("tp_of_ep_sizes_enc"),
        micro_batch=1 if rest else max(1, micro),
        global_batch=batch,
        seq=stated_seq(launch) or max(1, model.max_positions),
        sequence_parallel=tp > 1,
        model=model,
        split=Split(explicit=even_chunks(model.layers, pp, 1) if 1 < pp <= launch.world else ()),
    )


def _whole(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{value!r}", allowed="a whole number from 1", where=where)
    return value


def _numbers(text: object, where: str) -> list[int]:
    numbers = [whole(word.strip()) for word in str(text).split(",")]
    if None in numbers:
        raise InputError(f"{text!r}", allowed="whole numbers joined by commas", where=where)
    return [number for number in numbers if number is not None]


def _columns(config: Mapping[str, Any], layers: int) -> dict[str, list[int]]:
    """Every list of the JSON, or its default, with one number a layer."""
    columns = {}
    for key in _LISTS:
        fallback = 1 if key == "tp_of_ep_sizes_enc" else _DEFAULTS.get(key, 0)
        columns[key] = _numbers(config[key], key) if key in config else [fallback] * layers
        if len(columns[key]) != layers:
            raise InputError(f"{len(columns[key])} numbers for {layers} layers", allowed="one a layer", where=key)
    for key in ("dp_types_enc", "use_sp", "checkpoint", "tp_consecutive_flags"):
        if set(columns[key]) - {0, 1}:
            raise InputError(f"{sorted(set(columns[key]))}", allowed="0 or 1 for each layer", where=key)
    return columns


def _strategies(launch: GalvatronLaunch, model: ModelFacts, pp: int, layers: int) -> list[Strategy]:
    columns = _columns(launch.config, layers)
    default = str(launch.config.get("default_dp_type", "ddp"))
    if default not in _STAGES or launch.world % pp:
        raise InputError(
            f"default_dp_type {default!r}, pp_deg {pp} of {launch.world} GPUs",
            allowed=f"{', '.join(_STAGES)}; a pp_deg that divides the GPUs",
        )
    sequence = launch.overrides.get("runtime.train.sequence_parallel", "true").lower() == "true"
    gpus, experts = launch.world // pp, model.experts > 0
    found = []
    for index in range(layers):
        row = {key: column[index] for key, column in columns.items()}
        ulysses = row["use_sp"] == 1
        tp = 1 if ulysses else row["tp_sizes_enc"]
        cp = row["cp_sizes_enc"] * (row["tp_sizes_enc"] if ulysses else 1)
        if not tp or not cp or gpus % (tp * cp):
            raise InputError(f"layer {index}: tp {tp} x cp {cp} does not divide the {gpus} GPUs of a stage")
        found.append(
            Strategy(
                tp=tp,
                cp=cp,
                dp=gpus // (tp * cp),
                ep=row["ep_sizes_enc"] if experts else 1,
                etp=row["tp_of_ep_sizes_enc"] if experts else 1,
                sequence_parallel=sequence and tp > 1,
                zero=3 if row["dp_types_enc"] else _STAGES[default],
                recompute=FULL_RECOMPUTE if row["checkpoint"] else NO_RECOMPUTE,
            )
        )
    return found


def _division(config: Mapping[str, Any], pp: int, layers: int) -> list[int]:
    """Layers of each stage: as stated, or even with the rest on the last stage."""
    if "pp_division" in config:
        counts = _numbers(config["pp_division"], "pp_division")
    else:
        counts = [layers // pp] * (pp - 1) + [layers - layers // pp * (pp - 1)]
    if len(counts) != pp or sum(counts) != layers:
        raise InputError(f"{counts}", allowed=f"{pp} numbers that sum to {layers} layers", where="pp_division")
    return counts


def _stages(strategies: Sequence[Strategy], counts: Sequence[int]) -> tuple[Stage, ...]:
    stages, start = [], 0
    for count in counts:
        held = strategies[start : start + count] or strategies[start - 1 : start]
        runs = joined((strategy, int(count > 0)) for strategy in held)
        stages.append(Stage(layers_per_chunk=(count,), strategies=runs))
        start += count
    return tuple(stages)

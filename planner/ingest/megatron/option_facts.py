"""What several options of Megatron-LM say together, as further options, for rules that no single option decides.

Old spellings stand for the new ones: ``--graphs`` is the kind of CUDA graphs in force and ``--graphed`` what they
capture, whether ``--cuda-graph-impl``, ``--enable-cuda-graph`` or a scope asked for them. Every other one is given when
it holds; rules name it as they name an option.

References
----------
Megatron-LM ``megatron/training/arguments.py`` and ``megatron/core/transformer/transformer_config.py``, core 0.19.
"""

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError
from planner.ingest.megatron import hybrid_pattern
from planner.ingest.megatron.layer_pattern import moe_pattern
from planner.ingest.megatron.layers_file import file_facts
from planner.ingest.megatron.schedule_facts import batches_between, common_divisor, learning_rate_facts
from planner.ingest.options import Arguments, whole
from planner.rules.table import version_key

Given = Mapping[str, tuple[str, ...]]

_MODULES: Final = frozenset({"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"})
_RECOMPUTED: Final = frozenset(
    ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out"]
)
_WHOLE: Final = frozenset({"full", "full_iteration", "full_iteration_inference"})
RAMPS_BEFORE: Final = (0, 18)
"""Core version from which ``--rampup-batch-size`` is taken and ignored."""
_UNTRAINED_SINCE: Final = (0, 17)
"""Core version from which ``--skip-train`` leaves options of the learning rate unasked."""
_RAMP: Final = 3  # start, increment, samples
_DIGITS: Final = 12  # of samples, which may be many
_MOST_SAMPLES: Final = 1e17
_UNITS: Final = MappingProxyType({"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12})
_OFFLOADED: Final = frozenset(
    ["core_attn", "attn_proj", "expert_fc1", "fused_group_mlp", "moe_act", "attn_norm", "mlp_norm", "qkv_linear"]
)
_SINCE: Final = MappingProxyType({"shared_experts": (0, 14), "gdn_norm_out": (0, 19), "fused_group_mlp": (0, 19)})
"""First version of modules that not every version knows."""
_SPLIT_DATA: Final = ("--train-data-path", "--valid-data-path", "--test-data-path")
_INFERENCE: Final = MappingProxyType({"local": ("layer", "block")})


def option_facts(read: Arguments, layers: int, single: int, version: str) -> Given:
    """Further options that follow from those which were given.

    Parameters
    ----------
    read : Arguments
        As they were given.
    layers : int
        Layers of the model.
    single : int
        Samples of a micro-batch on every replica, the global batch where none is given.
    version : str
        Core version, whose modules are known.
    """
    kind, modules = _graphs(read)
    facts: dict[str, tuple[str, ...]] = {"--graphs": (kind,)}
    facts |= {"--graphed": modules} if modules else {}
    facts |= {**_evaluation(read, single), **file_facts(read), **_unknown_modules(read, version_key(version))}
    facts |= {**_unfit_freq(read, layers), **learning_rate_facts(read), **_between(read, version_key(version))}
    facts |= {} if read.has("--skip-train") and version_key(version) >= _UNTRAINED_SINCE else {"--trains": ()}
    held = {**_graph_facts(read, kind, modules), **_expert_facts(read), **_layer_facts(read, layers)}
    held |= {**_ramp(read), **_data_facts(read)}
    return facts | {name: () for name, holds in held.items() if holds}


def batches_of(read: Arguments, single: int, *, ramps: bool) -> tuple[int, int]:
    """Samples of the first step and of the last ones; equal where the batch does not grow.

    Parameters
    ----------
    read : Arguments
        As they were given.
    single : int
        Samples of a micro-batch on every replica, the global batch that is taken when none is given.
    ramps : bool
        Whether the version heeds ``--rampup-batch-size``; it is also one that does not ask whether the batch of
        evaluation divides, so that ``--decrease-batch-size-if-needed`` alone makes a batch whole.
    """
    schedule = _schedule(read.text("--step-batch-size-schedule"))
    if schedule:
        return schedule[0][1], schedule[-1][1]
    last = read.number("--global-batch-size", single)
    if read.has("--decrease-batch-size-if-needed") and (ramps or read.has("--eval-global-batch-size")):
        last = last // max(1, single) * single or last
    ramp = _whole(read.texts("--rampup-batch-size"))
    return (ramp[0] if ramps and len(ramp) == _RAMP else last), last


def schedule_notes(read: Arguments, version: str) -> tuple[str, ...]:
    """What a version does not heed of the batch's growth."""
    if not read.has("--rampup-batch-size") or version_key(version) < RAMPS_BEFORE:
        return ()
    given = " ".join(read.texts("--rampup-batch-size"))
    ignored = f"core {version} takes --rampup-batch-size {given} and ignores it: every step has the whole batch"
    return (f"{ignored}, and --step-batch-size-schedule makes it grow",)


def _schedule(text: str) -> list[tuple[int, int]]:
    """Thresholds and batches of ``THRESHOLD:BATCH`` entries in order; none where one is not understood."""
    found: list[tuple[int, int]] = []
    for entry in text.replace(",", " ").split():
        parts = [_scaled(part) for part in entry.split(":", 1)]
        if len(parts) != 2 or parts[0] is None or parts[1] is None:
            return []
        found.append((int(parts[0]), int(parts[1])))
    return sorted(found)


def _scaled(text: str) -> float | None:
    body, unit = (text[:-1], _UNITS[text[-1:].upper()]) if text[-1:].upper() in _UNITS else (text, 1.0)
    try:
        value = float(body) * unit
    except ValueError:
        return None
    return value if 0 <= value < _MOST_SAMPLES else None


def _whole(texts: tuple[str, ...]) -> list[int]:
    return [number for text in texts if (number := whole(text, _DIGITS)) is not None]


def _ramp(read: Arguments) -> dict[str, bool]:
    ramp, last = _whole(read.texts("--rampup-batch-size")), read.number("--global-batch-size", 0)
    counts = len(ramp) == _RAMP and min(ramp) > 0
    schedule = _schedule(read.text("--step-batch-size-schedule"))
    starts = [tokens // max(1, read.number("--seq-length", 1)) for tokens, _ in schedule]
    growing = starts[:1] == [0] and all(low < high for low, high in pairwise(starts))
    return {
        "--schedule-fits": growing and min(batch for _, batch in schedule) > 0,
        "--batch-grows": read.has("--rampup-batch-size") or read.has("--step-batch-size-schedule"),
        "--ramp-counts": counts,
        "--ramp-fits": counts and ramp[0] != last and (last - ramp[0]) % ramp[1] == 0,
    }


def _between(read: Arguments, version: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """What divides every batch between the first and the last one, where a version grows its batch over several."""
    batches = [batch for _, batch in _schedule(read.text("--step-batch-size-schedule"))]
    ramp = _whole(read.texts("--rampup-batch-size"))
    common = common_divisor(batches)
    if not batches and version < RAMPS_BEFORE and len(ramp) == _RAMP:
        common = batches_between(ramp[0], ramp[1], read.number("--global-batch-size", 0))
    return {"--batches-between": (str(common),)} if common else {}


def _evaluation(read: Arguments, single: int) -> dict[str, tuple[str, ...]]:
    """Batch and micro-batch of evaluation, where they are not those of training.

    The micro-batch is without its sign, which leaves the remainder that Megatron-LM asks for as it is.
    """
    names = ("--eval-global-batch-size", "--eval-micro-batch-size")
    if not any(read.has(name) for name in names):
        return {}
    batch, micro = read.number("--global-batch-size", single), read.number("--micro-batch-size", 1)
    return {
        "--eval-batch": (str(read.number(names[0], batch)),),
        "--eval-micro-batch": (str(abs(read.number(names[1], micro))),),
    }


def _unknown_modules(read: Arguments, version: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """Modules to recompute, to offload or to capture that a version does not know, as they were written."""
    asked = {
        "--recompute-unknown": (read.texts("--recompute-modules"), _RECOMPUTED),
        "--offload-unknown": (read.texts("--offload-modules"), _OFFLOADED),
        "--graph-unknown": (_graph_modules(read), _MODULES | _WHOLE),
    }
    found: dict[str, tuple[str, ...]] = {}
    for fact, (names, known) in asked.items():
        odd = [name for name in names if name not in known or version < _SINCE.get(name, version)]
        found |= {fact: (", ".join(dict.fromkeys(odd)),)} if odd else {}
    return found


def _graph_modules(read: Arguments) -> tuple[str, ...]:
    """What CUDA graphs are told to capture, by the new name or the old one."""
    return read.texts("--cuda-graph-modules") or read.texts("--cuda-graph-scope")


def _graphs(read: Arguments) -> tuple[str, tuple[str, ...]]:
    """Kind of CUDA graphs and what they capture; nothing captured by name means whole layers."""
    kind = read.text("--cuda-graph-impl", "none")
    if read.has("--enable-cuda-graph"):
        kind = "local"
    elif read.has("--external-cuda-graph"):
        kind = "transformer_engine"
    modules = _graph_modules(read)
    if "full_iteration" in modules:
        kind = "full_iteration"
    return kind, tuple(module for module in modules if module not in _WHOLE)


def _graph_facts(read: Arguments, kind: str, modules: tuple[str, ...]) -> dict[str, bool]:
    whole = kind == "full_iteration" or not modules
    recomputed = read.texts("--recompute-modules") or ("core_attn",)
    routed = "moe_router" in modules and read.has("--moe-shared-expert-intermediate-size")
    return {
        "--graph-modules-several": len(_graph_modules(read)) > 1,
        "--graph-inference-fits": read.text("--inference-cuda-graph-scope") in _INFERENCE.get(kind, ("none",)),
        "--nan-unchecked": read.has("--fp16") and not read.has("--loss-scale"),
        "--graphs-attention": whole or "attn" in modules,
        "--graphs-mlp": whole or "mlp" in modules,
        "--graphs-moe": whole or "moe" in modules,
        "--recomputes-attention": "core_attn" in recomputed,
        "--wgrad-graphed": "attn" in modules or (routed and not read.has("--moe-shared-expert-overlap")),
    }


def _expert_facts(read: Arguments) -> dict[str, bool]:
    factor = "--moe-expert-capacity-factor"
    capacity = read.has(factor) and not read.text(factor).startswith("-")
    kinds, weights = read.texts("--moe-router-load-balancing-type"), read.texts("--moe-aux-loss-coeff")
    padded = read.has("--moe-pad-expert-input-to-capacity")
    return {
        "--expert-capacity": capacity,
        "--drop-and-pad": capacity and padded,
        "--preprocess-copies": capacity or read.has("--moe-router-padding-for-fp8"),
        "--balance-fits": len(kinds) < 2 or len(kinds) == len(weights),
        "--gated": read.has("--swiglu") or read.has("--quick-geglu"),
    }


def _data_facts(read: Arguments) -> dict[str, bool]:
    """Data, checkpoints in the background, and inference in micro-batches."""
    batched = read.text("--inference-batch-times-seqlen-threshold", "-1")
    return {
        "--split-data": any(read.texts(name) for name in _SPLIT_DATA),
        "--saves-async": read.has("--async-save") and read.has("--use-persistent-ckpt-worker"),
        "--inference-batched": not batched.startswith("-"),
    }


def _layer_facts(read: Arguments, layers: int) -> dict[str, bool]:
    pattern = read.text(hybrid_pattern.OPTION) or read.text(hybrid_pattern.OLD_OPTION)
    return {
        "--hybrid": bool(pattern),
        "--hybrid-parted": "|" in pattern.partition("/")[0],
        "--norope-fits": _fits_layers(read.text("--no-rope-freq", "1"), layers),
        "--delta-freq-fits": _counts_layers(read.text("--linear-attention-freq", "1"), layers),
        "--cp-exchanges-fit": len(read.texts("--cp-comm-type")) in (0, 1, layers),
    }


def _unfit_freq(read: Arguments, layers: int) -> dict[str, tuple[str, ...]]:
    """What is wrong with the pattern of layers with experts, in words; nothing where it fits."""
    hybrid = read.has(hybrid_pattern.OPTION) or read.has(hybrid_pattern.OLD_OPTION)
    if hybrid or not read.number("--num-experts", 0):
        return {}
    try:
        moe_pattern(read.text("--moe-layer-freq", "1"), layers)
    except InputError as error:
        return {"--moe-freq-unfit": (error.what,)}
    return {}


def _counts_layers(pattern: str, layers: int) -> bool:
    """Whether a period other than 0, or a list with one entry for each layer."""
    try:
        return len(moe_pattern(pattern, layers)) == layers
    except InputError:
        return False


def _fits_layers(pattern: str, layers: int) -> bool:
    """Whether a period divides the layers, or a list has one entry for each."""
    if pattern.isdecimal():
        period = whole(pattern) or 0
        return period > 0 and layers % period == 0
    return _counts_layers(pattern, layers)

"""Launches of MindSpeed-LLM in the flags of Megatron-LM: options that it adds are left out or said in its words.

References
----------
MindSpeed-LLM ``docs`` of its features and ``mindspeed_llm/features_manager``: ``--noop-layers`` names layers, counted
in ``--num-layers``, that do nothing; ``--num-layer-list`` has the layers of each stage; ``--first-k-dense-replace``
layers have no experts; ``--n-shared-experts`` of the width of a routed one; ``--context-parallel-algo``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from planner.ingest.adapters import Adapters, targets_named
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Option, whole, without_unknown
from planner.ingest.trainers.words import told_options, without_options

_SIGNS: Final = frozenset(
    (
        *("--noop-layers", "--num-layer-list", "--context-parallel-algo", "--use-fused-swiglu", "--use-fused-rmsnorm"),
        *("--use-fused-rotary-pos-emb", "--reuse-fp32-param", "--moe-permutation-async-comm", "--swap-attention"),
        *("--recompute-activation-function", "--gemm-gradient-accumulation-fusion", "--enable-hf2mg-convert"),
        *("--model-type-hf", "--is-instruction-dataset"),
    )
)
_PIPELINE: Final = "--pipeline-model-parallel-size"
_VIRTUAL: Final = ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")
_DISPATCHER: Final = "--moe-token-dispatcher-type"
_GONE: Final = MappingProxyType({"alltoall_seq": "alltoall"})
"""Dispatchers that Megatron-core had once, and what came after them."""
_RING: Final = "megatron_cp_algo"
_OTHER_FORM: Final = ("--tokenizer-type", "--spec", "--moe-layer-freq", "--padded-vocab-size", _DISPATCHER)
"""Options that take other values here."""
_NOTE: Final = "options that MindSpeed adds are left out; its kernels, swaps and overlaps have no price here"


def is_mindspeed(text: LaunchText) -> bool:
    """Whether a launch has options that MindSpeed-LLM alone adds."""
    return not _SIGNS.isdisjoint(word.partition("=")[0] for word in text.arguments)


def of_mindspeed(text: LaunchText, options: Mapping[str, Option]) -> LaunchText:
    """A launch in Megatron-LM's flags alone.

    Parameters
    ----------
    text : LaunchText
        Of MindSpeed-LLM.
    options : mapping of str to Option
        Of Megatron-LM's parser.
    """
    told = told_options(text.arguments)
    kept, _ = without_unknown(text.arguments, options)
    layers, pp = (whole(told.get(name, "")) or 0 for name in ("--num-layers", _PIPELINE))
    pp = pp or 1
    chunks = _chunks(told, layers, pp)
    left_out = (*_OTHER_FORM, *(("--num-layers", *_VIRTUAL) if chunks else ()))
    words = _one_value_each(without_options(kept, left_out), options)
    if chunks:
        layers = sum(chunks)
        words += ["--num-layers", str(layers), "--pipeline-model-parallel-layout", _layout(told, chunks)]
    if vocab := told.get("--padded-vocab-size"):
        words += [*([] if "--vocab-size" in told else ["--vocab-size", vocab]), "--make-vocab-size-divisible-by", "1"]
    words += _experts(told, layers)
    algorithm = told.get("--context-parallel-algo", _RING)
    spread = (whole(told.get("--context-parallel-size", "")) or 1) > 1
    ring = (f"context parallelism by {algorithm} is priced as a ring",) if spread and algorithm != _RING else ()
    return replace(text, arguments=tuple(words), program="", notes=(*text.notes, _NOTE, *ring))


def adapters_of_mindspeed(text: LaunchText) -> Adapters | None:
    """What a launch adapts; None where it trains its model."""
    told = told_options(text.arguments)
    rank = whole(told.get("--lora-r", "")) or 0
    return Adapters(rank=rank, targets=targets_named(told.get("--lora-target-modules", "").split())) if rank else None


def _one_value_each(words: Sequence[str], options: Mapping[str, Option]) -> list[str]:
    """Words without those behind an option's one value: paths that are to be filled in are sentences in its scripts.

    An option whose value is a choice that MindSpeed adds goes too.
    """
    found: list[str] = []
    left = 0
    for word in words:
        if word.startswith("--"):
            name, sign, _ = word.partition("=")
            known = options.get(name)
            left = 0 if sign or known is None else 1 if known.values == "1" else len(words)
            found.append(word)
        elif left:
            known = options.get(found[-1])
            if known is not None and known.choices and word not in known.choices:
                found.pop()
            else:
                found.append(word)
            left -= 1
    return found


def _chunks(told: Mapping[str, str], layers: int, pp: int) -> Sequence[int]:
    """Layers of each chunk in the order of the layers, where they are stated one by one; empty where they are not."""
    if stated := [whole(part) or 0 for part in told.get("--num-layer-list", "").split(",") if part]:
        return stated if len(stated) == pp else ()
    idle = {int(part) for part in told.get("--noop-layers", "").split(",") if part.isdecimal()}
    each, many = (whole(told.get(name, "")) or 0 for name in _VIRTUAL)
    chunks = pp * (layers // pp // each if each else many or 1)
    if not idle or chunks < 1 or layers % chunks:
        return ()
    size = layers // chunks
    return [sum(layer not in idle for layer in range(first, first + size)) for first in range(0, layers, size)]


def _layout(told: Mapping[str, str], chunks: Sequence[int]) -> str:
    ahead = "m" * (whole(told.get("--mtp-num-layers", "")) or 0)
    return f"E{'|'.join('t' * count for count in chunks)}{ahead}L"


def _experts(told: Mapping[str, str], layers: int) -> list[str]:
    """Options of a mixture: which layers have experts, the shared ones, how tokens reach them."""
    if "--num-experts" not in told:
        return []
    dense = whole(told.get("--first-k-dense-replace", "")) or 0
    words = ["--moe-layer-freq", f"([0]*{dense}+[1]*{layers - dense})"] if 0 < dense < layers else []
    shared, width = (whole(told.get(name, "")) or 0 for name in ("--n-shared-experts", "--moe-ffn-hidden-size"))
    if shared * width and "--moe-shared-expert-intermediate-size" not in told:
        words += ["--moe-shared-expert-intermediate-size", str(shared * width)]
    if way := told.get(_DISPATCHER):
        words += [_DISPATCHER, _GONE.get(way, way)]
    return words

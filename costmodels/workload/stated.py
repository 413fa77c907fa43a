"""The model of a measured run: a name and the few widths that a paper states.

Order of trust: a preset of the same name and width (with the stated numbers put over it); else the stated widths,
with what is left open decided by rules that :func:`model_from_architecture` documents and notes in the model.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import parameter_count
from costmodels.workload.model import ModelSpec
from costmodels.workload.presets import architecture, find, unknown
from hardware.errors import InputError

_GATED_NAMES: Final = (
    "llama",
    "mistral",
    "mixtral",
    "qwen",
    "deepseek",
    "internlm",
    "aquila",
    "lucie",
    "baichuan",
    "skywork",
    "gemma",
    "yi-",
    "glm",
)
_PLAIN_NAMES: Final = (
    "gpt",
    "opt",
    "bloom",
    "mpt",
    "bert",
    "megatron",
    "turing",
    "nlg",
    "falcon",
    "nemotron",
    "gshard",
)
_GPT_VOCAB: Final = 51200  # 50257 padded to a multiple of 128 x 8, as Megatron-LM's published tables use it
_LLAMA_VOCAB: Final = 32000
_BLOOM_VOCAB: Final = 250880
_NARROW: Final = 2048  # GPT-3 (arXiv 2005.14165, table 2.1): heads of 64 up to this width, of 128 above
_TIE_TOLERANCE: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class StatedArchitecture:
    """What a run states of its model; 0 where it states nothing.

    ``parameters`` is the stated size (not in billions) and only decides whether embeddings are tied.
    """

    name: str = ""
    layers: int = 0
    hidden: int = 0
    ffn: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocab: int = 0
    experts: int = 0
    top_k: int = 0
    seq: int = 0
    parameters: float = 0.0


def model_from_architecture(stated: StatedArchitecture) -> ModelSpec:
    """Return the model of a measured run.

    Rules, where neither a preset nor the run decides:

    - gated feed-forward (with root-mean-square norms, rotary positions, no biases, untied embeddings): the name holds a
      family known to be so (Llama, Mistral, Qwen, DeepSeek, ...); else plain GELU for names known to be so (GPT, OPT,
      BLOOM, MPT, BERT, ...); else gated exactly when the feed-forward width is stated and is not 4 times the model's;
    - feed-forward width: 4 times the model's; heads: of 64 up to a width of 2048, of 128 above;
    - vocabulary: "128k vocab" in the name; 250880 for BLOOM; 32000 for gated models; else 51200;
    - layers: as many as come nearest to the stated size;
    - embeddings tied: whichever of tied and untied comes nearer to the stated size, if one is within 3 % of it;
    - "truncated to N layers": that many layers, one of them a leading dense one if keeping all leading dense layers
      would leave fewer expert layers than dense ones (as SimuMax's four-layer DeepSeek-V3: the memory of its stages
      fits one dense and three expert layers), and no multi-token prediction.

    Parameters
    ----------
    stated : StatedArchitecture
        Name and widths.

    Returns
    -------
    ModelSpec
        With a note for every rule that was applied.

    Raises
    ------
    InputError
        The run states no layers or width and its name is no preset.
    """
    truncated = _truncation(stated.name)
    if truncated and not stated.layers:
        stated = replace(stated, layers=truncated)
    if not stated.hidden and not stated.layers:
        whole = find(_without_remarks(stated.name))
        if whole is None:
            raise unknown(stated.name)
        return whole
    preset = _preset(stated)
    if preset is not None:
        facts = _overridden(preset, stated, truncated=bool(truncated))
        return facts.build(stated.name or facts.family, sources=("preset of that name, with the run's numbers",))
    if not stated.hidden or not (stated.layers or stated.parameters):
        missing = "layers" if stated.hidden else "hidden size"
        raise InputError(f"{stated.name!r} states no {missing}", allowed="a preset, or layers and hidden size")
    return _synthesised(stated)


def _truncation(name: str) -> int:
    match = re.search(r"truncated to ([0-9]{1,6}) layers?", name)
    return int(match.group(1)) if match else 0


def _without_remarks(name: str) -> str:
    """Return the name without brackets and trailing words that hold no digit."""
    bare = re.sub(r"\(.*?\)|\[.*?\]|truncated to .*|,.*", "", name).strip()
    words = bare.split()
    while len(words) > 1 and find(" ".join(words)) is None and not any(c.isdigit() for c in words[-1]):
        words.pop()
    return " ".join(words)


def _preset(stated: StatedArchitecture) -> Architecture | None:
    """Return the facts of the longest leading part of the name that is a preset of the stated width.

    Without a stated width only the whole name counts.
    """
    name = _without_remarks(stated.name)
    for part in _leading_parts(name) if stated.hidden else (name,):
        facts = architecture(part)
        if facts is None:
            continue
        if stated.hidden and facts.hidden != stated.hidden:
            continue
        if stated.heads and facts.heads != stated.heads:
            continue
        return facts
    return None


def _leading_parts(name: str) -> Iterator[str]:
    cuts = [match.start() for match in re.finditer(r"[ -]", name)]
    yield name
    for cut in reversed(cuts):
        yield name[:cut]


def _overridden(preset: Architecture, stated: StatedArchitecture, *, truncated: bool) -> Architecture:
    facts = replace(
        preset,
        layers=stated.layers or preset.layers,
        kv_heads=stated.kv_heads or preset.kv_heads,
        vocab=stated.vocab or _vocab_of_name(stated.name) or preset.vocab,
        experts=stated.experts or preset.experts,
        top_k=stated.top_k or preset.top_k,
    )
    if preset.learned_positions:
        facts = replace(facts, learned_positions=max(preset.learned_positions, stated.seq))
    if truncated:
        facts = replace(facts, mtp_layers=0, first_dense=_dense_of_truncated(facts))
    if stated.ffn and stated.ffn not in (preset.ffn, preset.expert_ffn):
        facts = replace(facts, expert_ffn=stated.ffn) if facts.experts else replace(facts, ffn=stated.ffn)
    return facts


def _dense_of_truncated(facts: Architecture) -> int:
    dense = min(facts.first_dense, facts.layers)
    return dense if facts.layers - dense >= dense else min(1, dense)


def _synthesised(stated: StatedArchitecture) -> ModelSpec:
    notes: list[str] = []
    gated = _is_gated(stated)
    notes.append(f"feed-forward assumed {'gated' if gated else 'plain'}, from the name or its width")
    hidden = stated.hidden
    heads = stated.heads or hidden // (64 if hidden <= _NARROW else 128)
    if not stated.heads:
        notes.append(f"{heads} heads assumed")
    vocab = stated.vocab or _vocab(stated.name, gated=gated)
    if not stated.vocab:
        notes.append(f"vocabulary of {vocab} assumed")
    positions = 0 if gated else max(stated.seq, 1024)
    facts = Architecture(
        family="llama-like" if gated else "gpt-like",
        layers=stated.layers or 1,
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        kv_heads=stated.kv_heads,
        head_dim=max(1, hidden // heads) if hidden % heads else 0,
        ffn=stated.ffn or 4 * hidden,
        gated=gated,
        norm="rms" if gated else "layer",
        rotary=gated,
        ffn_bias=not gated,
        qkv_bias=not gated,
        out_bias=not gated,
        experts=stated.experts,
        top_k=stated.top_k or (2 if stated.experts else 0),
        learned_positions=positions,
        causal="bert" not in stated.name.lower(),
        tied=not gated,
    )
    if not stated.layers:
        facts = _layers_by_size(facts, stated.parameters)
        notes.append(f"{facts.layers} layers assumed, from the stated size")
    name = stated.name or facts.family
    return _tied_by_size(facts, stated).build(name, sources=("widths stated with the run",), notes=tuple(notes))


def _layers_by_size(facts: Architecture, parameters: float) -> Architecture:
    """Set the number of layers that comes nearest to the stated size; sizes are linear in it."""
    one, two = (parameter_count(replace(facts, layers=layers).build("size")).total for layers in (1, 2))
    return replace(facts, layers=max(1, round(1 + (parameters - one) / (two - one))))


def _is_gated(stated: StatedArchitecture) -> bool:
    name = stated.name.lower()
    if any(word in name for word in _GATED_NAMES):
        return True
    if any(word in name for word in _PLAIN_NAMES):
        return False
    return bool(stated.ffn) and stated.ffn != 4 * stated.hidden


def _vocab_of_name(name: str) -> int:
    """Return the vocabulary that a name states, 0 for none."""
    stated = re.search(r"([0-9]{1,6})k vocab", name.lower())
    return 1000 * int(stated.group(1)) if stated else 0


def _vocab(name: str, *, gated: bool) -> int:
    if "bloom" in name.lower():
        return _BLOOM_VOCAB
    return _vocab_of_name(name) or (_LLAMA_VOCAB if gated else _GPT_VOCAB)


def _tied_by_size(facts: Architecture, stated: StatedArchitecture) -> Architecture:
    """Tie embeddings or not, whichever comes nearer to the stated size."""
    if not stated.parameters:
        return facts
    choices = [replace(facts, tied=tied) for tied in (facts.tied, not facts.tied)]
    errors = [abs(parameter_count(choice.build("size")).total / stated.parameters - 1.0) for choice in choices]
    best = min(range(len(choices)), key=lambda index: (errors[index], index))
    return choices[best] if errors[best] <= _TIE_TOLERANCE else facts

"""Where Megatron-LM builds which layers: virtual degree, layers per stage and chunk, and what is wrong with a split.

References
----------
Megatron-LM ``megatron/training/arguments.py`` (virtual degree), ``megatron/core/transformer/transformer_config.py``
(conflicts and divisibility) and ``transformer_block.py`` (layers to build), core 0.13 and 0.19.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hardware.errors import InputError
from planner.rules.layout_string import parse_layout_string, parse_positions
from planner.rules.proposal import Proposal, Split

EMPTY_MIDDLE: Final = "ends-empty"  # middle stages without layers: later versions refuse them, earlier ones build them
MTP_BEFORE_END: Final = "layout-mtp-end"  # prediction layers apart from the loss: earlier versions refuse them
EVEN_ANYWAY: Final = "even-anyway"  # stages of a hybrid model that early versions build evenly, whatever is stated
_SHARED: Final = "shared-top-k"
_COUNTED: Final = (EMPTY_MIDDLE, MTP_BEFORE_END, "layout-mtp", EVEN_ANYWAY, _SHARED)
"""Problems of some versions alone, which leave the layers of stages as stated."""

_SHARING: Final = ("--dsa-indexer-topk-freq", "--dsa-indexer-skip-topk-offset")
"""Every how many layers one chooses keys for those behind it, and the first layer that does."""

Problems = dict[str, dict[str, int | str]]
Layers = tuple[tuple[int, ...], ...]


def virtual_degree(split: Split, layers: int, pp: int) -> int:
    """Virtual chunks per stage that a split asks for; 1 also where the split is wrong and no degree follows.

    Parameters
    ----------
    split : Split
        As the user stated it.
    layers, pp : int
        Layers of the model; pipeline degree.
    """
    if split.explicit:
        return len(split.explicit[0])
    if split.segments and not (split.even and split.layout):
        return max(1, len(split.segments) // max(1, pp))
    if split.layout:
        return max(1, _entries(split.layout) // max(1, pp))
    if split.virtual_stages > 0:
        return split.virtual_stages
    if split.layers_per_virtual_stage > 0:
        return max(1, _counted_layers(split, layers) // max(1, pp) // split.layers_per_virtual_stage)
    return 1


def layers_built(proposal: Proposal) -> Layers | None:
    """Decoder layers of each stage and chunk, or None when the split is refused before layers are counted.

    Returns
    -------
    tuple of tuples of int, or None
        Per stage, the layers of each virtual chunk.
    """
    split = proposal.split
    if split.explicit:
        return split.explicit
    return _built(proposal) if set(split_problems(proposal)) <= set(_COUNTED) else None


def _built(proposal: Proposal) -> Layers:
    """Layers of a split that can be counted."""
    split = proposal.split
    if split.even:
        return ((proposal.model.layers // proposal.pp,),) * proposal.pp
    if len(split.segments) > 1:
        return tuple(split.segments[stage :: proposal.pp] for stage in range(proposal.pp))
    if split.layout and not split.segments:
        return parse_layout_string(split.layout, proposal.pp)
    vpp = proposal.vpp
    per_stage = _stage_layers(split, proposal.model.layers, proposal.pp)
    table = [[count // vpp] * vpp for count in per_stage]
    table[0][0] -= int(split.account_embedding)
    table[-1][-1] -= int(split.account_loss)
    return tuple(tuple(stage) for stage in table)


def layers_unchecked(proposal: Proposal) -> int:
    """Layers that all stages would hold together if nobody checked that they add up to the model's.

    Stages take the whole part of their share, as frameworks without the check do, so that layers are lost silently.
    """
    split, pp, vpp = proposal.split, max(1, proposal.pp), max(1, proposal.vpp)
    layers = proposal.model.layers
    if split.explicit or len(split.segments) > 1:
        return sum(split.segments) or sum(sum(stage) for stage in split.explicit)
    if split.layout:
        try:
            return sum(entry.count("t") for entry in parse_positions(split.layout))
        except InputError:
            return 0
    if _has_ends(split):
        ends = max(0, split.first) + max(0, split.last)
        middle = pp - int(split.first >= 0) - int(split.last >= 0)
        each = (layers - ends) // middle if middle > 0 and layers > ends else 0
        counts = [max(0, split.first), max(0, split.last), *[each] * max(0, middle)]
    else:
        counts = [_counted_layers(split, layers) // pp] * pp
    return sum(count // vpp * vpp for count in counts) - int(split.account_embedding) - int(split.account_loss)


def split_problems(proposal: Proposal) -> Problems:
    """Name what is wrong with the split, by code, with the numbers that a message needs.

    Returns
    -------
    dict of str to dict
        Empty when the split is right. The codes are the arguments of the rules with the check ``split``.
    """
    split = proposal.split
    if split.explicit:
        return _explicit_problems(proposal)
    if split.segments:
        problems = {**(_layout_problems(proposal) if split.layout else {}), **_segment_problems(proposal)}
        return problems or _even_problems(proposal)
    problems = {
        **_conflicts(split),
        **_virtual_problems(proposal),
        **(_layout_problems(proposal) if split.layout else _count_problems(proposal)),
    }
    return {**problems, **_shared_problems(proposal)} if set(problems) <= set(_COUNTED) else problems


def _shared_problems(proposal: Proposal) -> Problems:
    """A position whose first layer takes the keys that a layer of another position chose (sparse attention)."""
    options = dict(proposal.options)
    every, start = (_first(options.get(name, ())) for name in _SHARING)
    if options.get("--experimental-attention-variant") != ("dsa",) or every < 2 or start < 0:
        return {}
    start, before = max(1, start), 0
    table = _built(proposal)
    for counts in zip(*table, strict=True):
        for count in counts:
            behind = max(0, before + 1 - start) % every
            if count and behind:
                return {_SHARED: {"layer": before + 1, "computing": before + 1 - behind, "every": every, "from": start}}
            before += count
    return {}


def _first(values: tuple[str, ...]) -> int:
    """First value as a whole number; 0 where there is none."""
    return int(values[0]) if values and values[0].lstrip("-").isdecimal() else 0


def _entries(layout: str) -> int:
    try:
        return len(parse_positions(layout))
    except InputError:
        return 0


def _counted_layers(split: Split, layers: int) -> int:
    """Layers with the embedding and the loss, where the user counts them as layers."""
    return layers + int(split.account_embedding) + int(split.account_loss)


def _has_ends(split: Split) -> bool:
    return split.first >= 0 or split.last >= 0


def _explicit_problems(proposal: Proposal) -> Problems:
    explicit, problems = proposal.split.explicit, Problems()
    held = sum(sum(stage) for stage in explicit)
    if held != proposal.model.layers:
        problems["layers-sum"] = {"held": held}
    if len(explicit) != proposal.pp:
        problems["stages-count"] = {"stages": len(explicit)}
    if len({len(stage) for stage in explicit}) > 1:
        problems["chunks-equal"] = {"chunks": ", ".join(str(len(stage)) for stage in explicit)}
    if min((min(stage, default=0) for stage in explicit), default=0) < 0:
        problems["layers-negative"] = {}
    chunks = max((len(stage) for stage in explicit), default=0)
    in_order = [stage[chunk] for chunk in range(chunks) for stage in explicit if chunk < len(stage)]
    if 0 in in_order:
        problems["empty-position"] = {"position": in_order.index(0)}
    if proposal.model.state_heads and len(set(in_order)) > 1:
        problems["hybrid-even"] = {"split": ",".join(map(str, in_order))}
    return problems


def _segment_problems(proposal: Proposal) -> Problems:
    """Problems of a layer pattern: one that parts no positions is cut evenly, or by given ends."""
    entries = len(proposal.split.segments)
    if proposal.split.even and (proposal.split.layout or _has_ends(proposal.split)):
        return {} if proposal.split.layout else _even_end_problems(proposal)
    if entries == 1:
        return _count_problems(proposal)
    return {"segments-pp": {"entries": entries}} if entries % proposal.pp else {}


def _even_end_problems(proposal: Proposal) -> Problems:
    """What a configuration of early versions asks of given ends, which its stack of layers then does not look at."""
    split, pp = proposal.split, proposal.pp
    if split.first == 0 or split.last == 0:
        return {"ends-positive": {}}
    rest = proposal.model.layers - max(0, split.first) - max(0, split.last)
    middle = pp - int(split.first >= 0) - int(split.last >= 0)
    return {"ends-rest": {"rest": rest, "middle": middle}} if middle and rest % middle else {}


def _even_problems(proposal: Proposal) -> Problems:
    """What is stated of stages that come out even, and so do not hold all layers or not those that are stated."""
    split, pp, layers = proposal.split, proposal.pp, proposal.model.layers
    if not split.even:
        return {}
    plain = replace(proposal, split=replace(split, even=False, segments=()))
    if pp == 1 or _built(plain) == _built(proposal):
        return {}
    return {EVEN_ANYWAY: {"each": layers // pp, "lost": layers % pp}}


def _conflicts(split: Split) -> Problems:
    problems = Problems()
    ways = {
        "--num-virtual-stages-per-pipeline-rank": split.virtual_stages >= 0,
        "--num-layers-per-virtual-pipeline-stage": split.layers_per_virtual_stage >= 0,
        "--pipeline-model-parallel-layout": bool(split.layout),
    }
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) > 1:
        problems["one-virtual-way"] = {"given": " and ".join(given)}
    accounts = split.account_embedding or split.account_loss
    if _has_ends(split) and accounts:
        problems["ends-and-account"] = {}
    if split.layout and (_has_ends(split) or accounts):
        problems["layout-and-others"] = {}
    if split.layers_per_virtual_stage >= 0 and split.virtual_stages < 0 and _has_ends(split):
        problems["chunk-size-and-ends"] = {}
    return problems


def _virtual_problems(proposal: Proposal) -> Problems:
    split, problems = proposal.split, Problems()
    chunk = split.layers_per_virtual_stage
    if chunk >= 0 and split.virtual_stages < 0 and not split.layout:
        per_stage = _counted_layers(split, proposal.model.layers) // proposal.pp
        if chunk == 0 or per_stage % chunk:
            problems["chunk-size"] = {"chunk": chunk, "per_stage": per_stage}
    if split.virtual_stages == 0:
        problems["virtual-positive"] = {}
    return problems


def _stage_layers(split: Split, layers: int, pp: int) -> list[int]:
    """Layers of each stage with embedding and loss where counted; the split has no problems."""
    counted = _counted_layers(split, layers) - max(0, split.first) - max(0, split.last)
    middle = pp - int(split.first >= 0) - int(split.last >= 0)
    counts = [counted // middle if middle else 0] * pp
    if split.first >= 0:
        counts[0] = split.first
    if split.last >= 0:
        counts[-1] = split.last
    return counts


def _count_problems(proposal: Proposal) -> Problems:
    """Problems of splits stated by counts: equal stages, given ends, or embedding and loss counted as layers."""
    split, pp = proposal.split, proposal.pp
    if _has_ends(split):
        return _end_problems(proposal)
    counted = _counted_layers(split, proposal.model.layers)
    if counted % pp:
        return {"layers-pp": {"counted": counted}}
    per_stage = counted // pp
    if per_stage % proposal.vpp:
        return {"layers-vpp": {"per_stage": per_stage}}
    chunk = per_stage // proposal.vpp
    taken = int(split.account_embedding) + int(split.account_loss) if pp * proposal.vpp == 1 else 1
    if (split.account_embedding or split.account_loss) and chunk < taken:
        return {"account-empty": {"chunk": chunk}}
    return {}


def _end_problems(proposal: Proposal) -> Problems:
    split, pp, vpp = proposal.split, proposal.pp, proposal.vpp
    if split.first == 0 or split.last == 0:
        return {"ends-positive": {}}
    if pp == 1 and split.first > 0 and split.last == proposal.model.layers:
        return {}  # of two counts for one stage the last one counts
    rest = proposal.model.layers - max(0, split.first) - max(0, split.last)
    middle = pp - int(split.first >= 0) - int(split.last >= 0)
    numbers: dict[str, int | str] = {"rest": rest, "middle": middle}
    if rest < 0 or middle < 0 or (rest and not middle) or (middle and rest % middle):
        return {"ends-rest": numbers}
    if middle and not rest:
        return {EMPTY_MIDDLE: numbers}
    counts = {max(0, split.first), max(0, split.last), rest // middle if middle else 0}
    odd = sorted(count for count in counts if count % vpp)
    if odd:
        return {"ends-vpp": {"per_stage": odd[0]}}
    return {} if middle or vpp == 1 or pp == 1 else {"ends-vpp-alone": {}}


def _layout_problems(proposal: Proposal) -> Problems:
    try:
        positions = parse_positions(proposal.split.layout)
    except InputError as error:
        return {"layout-grammar": {"what": error.what}}
    if len(positions) % proposal.pp:
        return {"layout-stages": {"entries": len(positions)}}
    flat = "".join(positions)
    found = {letter: flat.count(letter) for letter in "EtmL"}
    problems = Problems()
    if found["E"] != 1 or found["L"] != 1 or not flat.startswith("E") or not flat.endswith("L"):
        problems["layout-ends"] = {}
    if found["t"] != proposal.model.layers:
        problems["layout-layers"] = {"decoders": found["t"]}
    if found["m"] != proposal.model.mtp:
        problems["layout-mtp"] = {"found": found["m"]}
    elif found["m"]:
        problems |= _mtp_problems(positions, found, proposal.pp)
    return problems


def _mtp_problems(positions: tuple[str, ...], found: Mapping[str, int], pp: int) -> Problems:
    """Placement of multi-token-prediction layers: after all decoders, together, in a last chunk, not on stage 0."""
    flat = "".join(positions)
    holders = [index for index, entry in enumerate(positions) if "m" in entry]
    last_chunk = len(positions) - pp
    if "t" in flat[flat.index("m") :]:
        return {"layout-mtp-order": {}}
    if positions[holders[0]].count("m") != found["m"]:
        return {"layout-mtp-together": {}}
    if holders[0] < last_chunk:
        return {"layout-mtp-chunk": {}}
    return {} if holders[0] == len(positions) - 1 else {MTP_BEFORE_END: {"position": holders[0]}}

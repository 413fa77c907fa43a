"""Megatron-LM's pipeline layout strings, such as ``Et*21|t*21|t*19|t*19L``: writer and reader.

Stages are separated by ``|``. Letters: ``E`` embedding, ``t`` decoder layer, ``m`` multi-token-prediction layer, ``L``
loss. ``(...)*n`` repeats a group, then ``x*n`` repeats the character before it; commas mean nothing. Entry
``c * pp + s`` is virtual chunk ``c`` of stage ``s``.

References
----------
Megatron-LM user guide and ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` (core 0.13 and later): the
grammar and the order of entries.
"""

import re
from typing import Final

from hardware.errors import InputError

LETTERS: Final = "EtmL"
_GROUP: Final = re.compile(r"\((?P<body>[^)]+)\)\*(?P<times>[0-9]+)")
_REPEAT: Final = re.compile(r"(?P<body>.)\*(?P<times>[0-9]+)")
_MOST_LETTERS: Final = 1_000_000  # far above any model; keeps a mistyped count from filling the memory
_SHORTEST_RUN: Final = 3  # equal stages in a row that are worth a group


def layout_string(layers: tuple[tuple[int, ...], ...], mtp: int = 0) -> str:
    """Write the layers of each stage and chunk as a layout string.

    Parameters
    ----------
    layers : tuple of tuples of int
        Per stage, the layers of each virtual chunk; all stages hold equally many chunks.
    mtp : int
        Multi-token-prediction layers; they go to the last position, before the loss.

    Returns
    -------
    str
        Equal neighbours are written as a repeated group. Quote it in a shell.

    Raises
    ------
    InputError
        A stage has another number of chunks than the first, or a count is negative.
    """
    pp, vpp = len(layers), len(layers[0]) if layers else 0
    if not vpp or any(len(stage) != vpp for stage in layers) or min(min(stage) for stage in layers) < 0:
        raise InputError(f"layers per stage {layers} cannot be written as a pipeline layout", allowed=_SHAPE_ALLOWED)
    entries = [_decoders(layers[s][c]) for c in range(vpp) for s in range(pp)]
    entries[0] = "E" + entries[0]
    entries[-1] += ("m" if mtp == 1 else f"m*{mtp}" if mtp else "") + "L"
    return _join(entries)


_SHAPE_ALLOWED: Final = "the same number of chunks on every stage, counts from 0"


def _decoders(count: int) -> str:
    return "t" * count if count < 3 else f"t*{count}"


def _join(entries: list[str]) -> str:
    """Join entries with ``|``, writing three or more equal ones in a row (never the last) as a group."""
    parts: list[str] = []
    index = 0
    while index < len(entries):
        run = 1
        while index + run < len(entries) - 1 and entries[index + run] == entries[index]:
            run += 1
        if run >= _SHORTEST_RUN and index + run < len(entries):
            parts.append(f"({entries[index]}|)*{run}")
        else:
            parts.extend(f"{entry}|" for entry in entries[index : index + run])
        index += run
    return "".join(parts).removesuffix("|")


def parse_positions(text: str) -> tuple[str, ...]:
    """Expand a layout string into one string of letters for each pipeline position.

    Raises
    ------
    InputError
        A character is no letter of the grammar, or the string expands beyond any model.
    """
    plain = text.replace(",", "")
    for pattern in (_GROUP, _REPEAT):
        size = len(plain) + sum(len(m["body"]) * int(m["times"]) for m in pattern.finditer(plain))
        if size > _MOST_LETTERS:
            raise InputError(f"pipeline layout {text!r} expands to {size} letters", allowed=f"up to {_MOST_LETTERS}")
        plain = pattern.sub(lambda m: m["body"] * int(m["times"]), plain)
    strange = sorted(set(plain) - set(LETTERS + "|"))
    if strange:
        raise InputError(
            f"pipeline layout {text!r} has {''.join(strange)!r}, which is left over when repeats are expanded",
            allowed="E, t, m, L, |, x*n and (group)*n without groups inside groups",
        )
    return tuple(plain.split("|"))


def parse_layout_string(text: str, pp: int) -> tuple[tuple[int, ...], ...]:
    """Read the decoder layers of each stage and virtual chunk from a layout string.

    Parameters
    ----------
    text : str
        A layout string.
    pp : int
        Pipeline degree.

    Returns
    -------
    tuple of tuples of int
        Per stage, the layers of each chunk.

    Raises
    ------
    InputError
        The string does not follow the grammar, or its number of entries is no multiple of ``pp``.
    """
    counts = [entry.count("t") for entry in parse_positions(text)]
    if pp < 1 or len(counts) % pp:
        raise InputError(f"pipeline layout {text!r} has {len(counts)} entries", allowed=f"a multiple of pp {pp}")
    return tuple(tuple(counts[s::pp]) for s in range(pp))

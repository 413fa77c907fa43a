"""Matrices of ``rocm-smi --showtopo`` and ``amd-smi topology``."""

import re
from collections.abc import Sequence
from typing import Final

from hardware.cluster import LinkKind
from hardware.importers.facts import Groups, Links, NodeFacts, groups_joined, links_of_each
from hardware.importers.source_text import SourceText

MOST_DEVICES: Final = 256
AMD_FORM: Final = "rocm-smi --showtopo"
MOST_LINKS: Final = 7
"""XGMI links of any part up to MI355X: one to each other GPU of eight."""
_TYPES: Final = ("Link Type between two GPUs", "LINK TYPE TABLE:")
_WEIGHTS: Final = ("Weight between two GPUs", "WEIGHT TABLE:")
_HOPS: Final = ("Hops between two GPUs", "HOPS TABLE:")
_DEVICE: Final = re.compile(r"(GPU\d{1,4}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])$")
_NUMA: Final = re.compile(r"\s*GPU\[(\d{1,4})\]\s*:\s*\(Topology\) Numa Node:\s*(-?\d{1,4})\s*$")


def is_amd_matrix(text: str) -> bool:
    """Return whether a text holds the output of ``rocm-smi --showtopo`` or ``amd-smi topology``."""
    return any(title in text for title in (*_TYPES, *_HOPS))


def read_amd_matrix(source: SourceText) -> NodeFacts:
    """Read ``rocm-smi --showtopo`` or ``amd-smi topology``.

    Parameters
    ----------
    source : SourceText
        The sections of link types and, where there, of weights, hops and NUMA nodes.

    Returns
    -------
    NodeFacts
        A pair joined by XGMI counts as one link if no other such pair has a lower weight: the tools print no number of
        links.

    Raises
    ------
    InputError
        Sections that are missing, cut short or contradict each other, or parts of GPUs listed as GPUs.

    Notes
    -----
    ``Hops`` is 1 for every pair that XGMI joins, also by way of other GPUs (ROCm/rocm-systems issue 5763); the weight
    is 15 for each XGMI link on the way (``amdkfd``).
    """
    lines = source.lines()
    types = _section(source, lines, _TYPES)
    weights = _section(source, lines, _WEIGHTS, optional=True)
    hops = _section(source, lines, _HOPS, optional=True)
    gpus = len(types)
    for name, cells in (("weights", weights), ("hops", hops)):
        if cells and len(cells) != gpus:
            raise source.wrong(f"{gpus} GPUs by link type and {len(cells)} by {name}", allowed="one node in a file")
    links = _links(source, types, weights, hops)
    if max(links_of_each(gpus, links)) > MOST_LINKS:
        what = f"{gpus} GPUs with XGMI to more than {MOST_LINKS} others: partitions of GPUs (CPX, DPX, QPX) are listed"
        raise source.wrong(what, allowed="the output in SPX mode, where each GPU is one device")
    whole = gpus == 8 and len(links) == 28
    part = whole or (gpus == 8 and len(groups_joined(gpus, links)) == 1)
    return NodeFacts(
        where=source.where,
        form=AMD_FORM,
        gpus=gpus,
        accelerator="mi300x" if whole else "mi250x-gcd" if part else "",
        accelerator_why=(
            "a mesh of eight; MI325X and MI350X nodes are alike"
            if whole
            else "eight dies that XGMI joins in part; MI250 nodes are alike"
            if part
            else ""
        ),
        links=links,
        links_known=True,
        link_kind=LinkKind.XGMI,
        numa=_numa(lines, gpus),
    )


def _links(source: SourceText, types: list[list[str]], weights: list[list[str]], hops: list[list[str]]) -> Links:
    """Return the pairs that XGMI joins directly."""
    pairs = []
    for a, row in enumerate(types):
        for b in range(a + 1, len(types)):
            if row[b] != types[b][a]:
                raise source.wrong(f"GPU{a} and GPU{b}: {row[b]} and {types[b][a]}", allowed="one link type")
            if row[b] == "XGMI" and (not hops or hops[a][b] == "1"):
                pairs.append((a, b))
    known = [weights[a][b] for a, b in pairs if weights and weights[a][b].isdecimal()]
    least = min(map(int, known), default=0)
    direct = [pair for pair in pairs if len(known) < len(pairs) or int(weights[pair[0]][pair[1]]) == least]
    return tuple((a, b, 1) for a, b in direct)


def _numa(lines: Sequence[str], gpus: int) -> Groups:
    nodes = {int(match[1]): match[2] for line in lines if "Numa Node" in line and (match := _NUMA.match(line))}
    if not all(nodes.get(gpu, "-1") != "-1" for gpu in range(gpus)):
        return ()
    groups: dict[str, list[int]] = {}
    for gpu in range(gpus):
        groups.setdefault(nodes[gpu], []).append(gpu)
    return tuple(map(tuple, groups.values()))


def _section(
    source: SourceText, lines: Sequence[str], titles: Sequence[str], *, optional: bool = False
) -> list[list[str]]:
    """Return the cells of the matrix below a title."""
    start = next((number for number, line in enumerate(lines) if any(map(line.__contains__, titles))), None)
    if start is None:
        if optional:
            return []
        raise source.wrong(f"no section '{titles[0]}'", allowed=f"output of {AMD_FORM}")
    devices = lines[start + 1].split() if start + 1 < len(lines) else []
    if not devices or not all(_DEVICE.match(name) for name in devices):
        raise source.wrong(f"no header below '{titles[0]}'", start + 2, "GPU0 GPU1 ...")
    if len(devices) > MOST_DEVICES:
        raise source.wrong(f"{len(devices)} devices", start + 2, f"up to {MOST_DEVICES}")
    cells = []
    for place, name in enumerate(devices):
        number = start + 2 + place
        words = lines[number].split() if number < len(lines) else []
        if words[:1] != [name] or len(words) != len(devices) + 1:
            what = f"no row of {len(devices)} cells for {name}"
            raise source.wrong(what, min(number + 1, len(lines)), "a row for each GPU: is the file cut short?")
        cells.append(words[1:])
    return cells

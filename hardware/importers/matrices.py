"""The matrix of ``nvidia-smi topo -m``."""

import re
from collections.abc import Sequence
from typing import Final

from hardware.importers.devices import RACK_ACCELERATOR, SUPERCHIP, by_link_count, kind_of_adapter
from hardware.importers.facts import Adapter, Groups, Links, NodeFacts, links_of_each, nearest_of
from hardware.importers.source_text import SourceText

MOST_DEVICES: Final = 256
NVIDIA_FORM: Final = "nvidia-smi topo -m"
_GPU: Final = re.compile(r"GPU(\d{1,4})$")
_CODE: Final = re.compile(r"(X|NV\d{1,3}|PIX|PXB|PHB|NODE|SOC|SYS|N/A)$")
_CAPABILITY: Final = re.compile(r"(OK|NS|GNS|CNS|PNS|TNS|CR|DR)$")
"""Cells of ``nvidia-smi topo -p2p``, which say what peers may do and not what joins them."""
_RUN_TOGETHER: Final = re.compile(r"(?:GPU|NIC|mlx\d_)\d{1,4}")
_COLUMN: Final = re.compile(r"(CPU|NUMA|GPU)$|[a-zA-Z]\w*\d$")
"""The second word of a header: a device, or the first word of an affinity."""
_AFFINITY: Final = re.compile(r"(CPU Affinity|NUMA Affinity|GPU NUMA ID)")
_LEGEND: Final = re.compile(r"\s*(NIC\d{1,4})\s*:\s*(\S+)")
_SECOND: Final = re.compile(r"(X|NV\d{1,3}|PIX|PXB|PHB|NODE|SOC|SYS|GPU\d{1,4}|NIC\d{1,4}|mlx\d_\d{1,3})$")
_BELOW_SWITCH: Final = ("PIX", "PXB")
_DISTANCES: Final = ("PIX", "PXB", "PHB", "NODE", "SOC", "SYS", "N/A")
"""From the nearest; ``SOC`` is what ``SYS`` was called."""


def is_nvidia_matrix(source: SourceText) -> bool:
    """Return whether a text holds a matrix of ``nvidia-smi topo -m``: a row of it, or its header."""
    if "GPU0" not in source.text:
        return False
    words = (line.split(maxsplit=2)[:2] for line in source.lines() if "GPU" in line)
    return any(len(pair) == 2 and _GPU.match(pair[0]) and _SECOND.match(pair[1]) for pair in words)


def read_nvidia_matrix(source: SourceText) -> NodeFacts:
    """Read ``nvidia-smi topo -m`` in any of its forms.

    Parameters
    ----------
    source : SourceText
        With or without adapters, CPU and NUMA affinity, legends and lines before and after.

    Returns
    -------
    NodeFacts
        GPUs in the order of the matrix. The PCIe path of a pair with NVLinks is not printed by the tool.

    Raises
    ------
    InputError
        No matrix, two matrices, missing rows or cells, unknown codes, a pair with two different statements.
    """
    lines = source.lines()
    start, devices, tail = _header(source, lines)
    rows, rest = _rows(source, lines, start, devices)
    _check_symmetric(source, rows, start)
    gpus = [place for place, name in enumerate(devices) if _GPU.match(name)]
    others = [place for place, name in enumerate(devices) if not _GPU.match(name)]
    links = tuple(
        (a, b, int(rows[devices[i]][j][2:]))
        for a, i in enumerate(gpus)
        for b, j in enumerate(gpus)
        if a < b and re.match(r"NV\d", rows[devices[i]][j])
    )
    names = {match[1]: match[2] for line in lines if "NIC" in line and (match := _LEGEND.match(line))}
    adapters = tuple(names.get(devices[place], devices[place]) for place in others)
    part, why = _part(len(gpus), links, coherent=_coherent([rest[devices[place]] for place in gpus], tail))
    return NodeFacts(
        where=source.where,
        form=NVIDIA_FORM,
        gpus=len(gpus),
        accelerator=part,
        accelerator_why=why,
        links=links,
        links_known=True,
        numa=_affinity_groups([rest[devices[place]] for place in gpus], tail),
        pcie_switches=_shared_switches([[rows[devices[i]][j] for j in others] for i in gpus]),
        nearest_adapters=nearest_of([[_distance(rows[devices[i]][j]) for j in others] for i in gpus]),
        adapters=tuple(Adapter(name=name, kind=kind_of_adapter(name)) for name in adapters),
        adapters_known=True,
        notes=_far_adapters([[rows[devices[i]][j] for i in gpus] for j in others]),
    )


def _header(source: SourceText, lines: Sequence[str]) -> tuple[int, list[str], list[str]]:
    """Return the line after the header, the devices of its columns, and the columns after them."""
    found = [number for number, line in enumerate(lines) if "GPU" in line and _is_header(line)]
    if not found:
        raise source.wrong("no header with GPU0, GPU1, ...", allowed=f"output of {NVIDIA_FORM}")
    if len(found) > 1:
        raise source.wrong("a second matrix begins", found[1] + 1, "one matrix in a file, one file for each node")
    line = lines[found[0]]
    cut = _AFFINITY.search(line)
    devices = [name for word in line[: cut.start() if cut else None].split() for name in _names(word)]
    tail = _AFFINITY.findall(line)
    if len(set(devices)) != len(devices):
        raise source.wrong("a device has two columns", found[0] + 1, "each device once")
    if len(devices) > MOST_DEVICES:
        raise source.wrong(f"{len(devices)} devices", found[0] + 1, f"up to {MOST_DEVICES}")
    return found[0] + 1, devices, tail


def _names(word: str) -> list[str]:
    """Return the devices of a word of the header: wide tables run together where they are copied, ``NIC11NIC12``."""
    parts = _RUN_TOGETHER.findall(word)
    return parts if len(parts) > 1 and "".join(parts) == word else [word]


def _is_header(line: str) -> bool:
    words = line.split(maxsplit=2)[:2]
    if not words or not _GPU.match(_names(words[0])[0]):
        return False
    return len(words) == 1 or bool(_COLUMN.match(words[1]) and not _CODE.match(words[1]))


def _rows(
    source: SourceText, lines: Sequence[str], start: int, devices: list[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the cells of each device and the words that follow them."""
    cells: dict[str, list[str]] = {}
    rest: dict[str, list[str]] = {}
    for number, line in enumerate(lines[start:], start=start + 1):
        words = line.split()
        if not words or words[0] not in devices or len(cells) == len(devices):
            if len(cells) == len(devices) or not words:
                if cells:
                    break
                continue
            raise source.wrong(f"'{words[0][:40]}' is no device of the header", number, ", ".join(devices[:20]))
        name, row = words[0], words[1 : len(devices) + 1]
        if name in cells:
            raise source.wrong(f"{name} has two rows", number, "each device once")
        bad = next((cell for cell in row if not _CODE.match(cell)), None)
        if bad is not None and _CAPABILITY.match(bad):
            raise source.wrong(
                f"'{bad}' says what peers can do, not what joins them", number, f"output of {NVIDIA_FORM}"
            )
        if bad is not None or len(row) < len(devices):
            what = f"'{bad[:40]}' is no connection" if bad else f"{len(row)} cells for {len(devices)} devices"
            raise source.wrong(what, number, "X, NV1 and the like, PIX, PXB, PHB, NODE, SYS for each device")
        cells[name], rest[name] = row, words[len(devices) + 1 :]
    missing = [name for name in devices if name not in cells]
    if missing:
        raise source.wrong(f"no row for {missing[0]}", start, "a row for each column: is the file cut short?")
    return cells, rest


def _check_symmetric(source: SourceText, rows: dict[str, list[str]], start: int) -> None:
    names = list(rows)
    order = {name: place for place, name in enumerate(names)}
    for name, row in rows.items():
        place = order[name]
        for other, cell in zip(names, row, strict=False):
            if cell != rows[other][place]:
                what = f"{name} and {other} are joined by {cell} and by {rows[other][place]}"
                raise source.wrong(what, start + place + 1, "one statement for each pair")
        if row[place] != "X":
            raise source.wrong(f"{name} to itself is '{row[place]}'", start + place + 1, "X")


def _part(gpus: int, links: Links, *, coherent: bool) -> tuple[str, str]:
    """Return the usual part with such links, and what it is read from."""
    per_gpu = _links_per_gpu(gpus, links)
    if coherent:
        part = SUPERCHIP if gpus == 1 or {count for *_, count in links} != {per_gpu} else RACK_ACCELERATOR
        return part, "GPUs whose memory is a NUMA node, hence beside a Grace processor; several parts are"
    part = by_link_count(per_gpu, gpus)
    return part, f"GPUs with {per_gpu} NVLinks; several parts have as many" if part else ""


def _coherent(rest: list[list[str]], tail: list[str]) -> bool:
    """Whether the memory of every GPU is a NUMA node of its own: the last column then has a number."""
    return "GPU NUMA ID" in tail and all(len(words) >= len(tail) and words[-1].isdecimal() for words in rest)


def _links_per_gpu(gpus: int, links: Links) -> int:
    """Return how many NVLinks a GPU has: those of any pair behind switches, else the sum over its peers; 0 if mixed."""
    counts = {count for _, _, count in links}
    if len(links) == gpus * (gpus - 1) // 2 and len(counts) == 1:
        count = counts.pop()
        return count if count * (gpus - 1) > 18 else count * (gpus - 1)
    sums = set(links_of_each(gpus, links))
    return sums.pop() if len(sums) == 1 else 0


def _affinity_groups(rest: list[list[str]], tail: list[str]) -> Groups:
    """Return GPUs by NUMA node, or by the processors near them where the NUMA node is not printed."""
    for column in ("NUMA Affinity", "CPU Affinity"):
        if column not in tail:
            continue
        place = tail.index(column)
        values = [words[place] if len(words) > place else "N/A" for words in rest]
        if not any(value.startswith("N/A") for value in values):
            return tuple(
                tuple(gpu for gpu, value in enumerate(values) if value == one) for one in dict.fromkeys(values)
            )
    return ()


def _shared_switches(cells: list[list[str]]) -> Groups:
    """Return GPUs by the adapters that are nearest to them below a PCIe switch."""
    nearest: dict[tuple[int, ...], list[int]] = {}
    for gpu, row in enumerate(cells):
        for code in _BELOW_SWITCH:
            close = tuple(place for place, cell in enumerate(row) if cell == code)
            if close:
                nearest.setdefault(close, []).append(gpu)
                break
    return tuple(tuple(group) for group in nearest.values())


def _distance(code: str) -> tuple[float, float]:
    return 0.0, float(_DISTANCES.index(code) if code in _DISTANCES else len(_DISTANCES))


def _far_adapters(columns: list[list[str]]) -> tuple[str, ...]:
    far = [place for place, column in enumerate(columns) if not set(column) & set(_BELOW_SWITCH)]
    if not far or len(far) == len(columns):
        return ()
    some = ", ".join(f"NIC{place}" for place in far[:8])
    return (f"{some}: below no PCIe switch with a GPU; they may serve storage or management",)

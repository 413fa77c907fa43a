"""Matrices of ``nvidia-smi topo -m`` and ``rocm-smi --showtopo``."""

import re
from collections.abc import Sequence
from typing import Final

from hardware.cluster import LinkKind
from hardware.importers.devices import by_link_count, kind_of_adapter
from hardware.importers.facts import Adapter, Groups, Links, NodeFacts, links_of_each
from hardware.importers.source_text import SourceText

MOST_DEVICES: Final = 256
NVIDIA_FORM: Final = "nvidia-smi topo -m"
AMD_FORM: Final = "rocm-smi --showtopo"
_GPU: Final = re.compile(r"GPU(\d{1,4})$")
_CODE: Final = re.compile(r"(X|NV\d{1,3}|PIX|PXB|PHB|NODE|SOC|SYS|N/A|OK|NS|GNS|CNS|PNS|NVB)$")
_AFFINITY: Final = re.compile(r"(CPU Affinity|NUMA Affinity|GPU NUMA ID)")
_LEGEND: Final = re.compile(r"\s*(NIC\d{1,4})\s*:\s*(\S+)")
_NUMA: Final = re.compile(r"\s*GPU\[(\d{1,4})\]\s*:\s*\(Topology\) Numa Node:\s*(-?\d{1,4})\s*$")
_SECOND: Final = re.compile(r"(X|NV\d{1,3}|PIX|PXB|PHB|NODE|SOC|SYS|GPU\d{1,4}|NIC\d{1,4}|mlx\d_\d{1,3})$")
_BELOW_SWITCH: Final = ("PIX", "PXB")


def is_nvidia_matrix(source: SourceText) -> bool:
    """Return whether a text holds a matrix of ``nvidia-smi topo -m``: a row of it, or its header."""
    if "GPU0" not in source.text:
        return False
    words = (line.split(maxsplit=2)[:2] for line in source.lines() if "GPU" in line)
    return any(len(pair) == 2 and _GPU.match(pair[0]) and _SECOND.match(pair[1]) for pair in words)


def is_amd_matrix(text: str) -> bool:
    """Return whether a text holds the output of ``rocm-smi --showtopo``."""
    return "Link Type between two GPUs" in text or "Hops between two GPUs" in text


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
    per_gpu = _links_per_gpu(len(gpus), links)
    part = by_link_count(per_gpu, len(gpus))
    return NodeFacts(
        where=source.where,
        form=NVIDIA_FORM,
        gpus=len(gpus),
        accelerator=part,
        accelerator_why=f"GPUs with {per_gpu} NVLinks; several parts have as many" if part else "",
        links=links,
        links_known=True,
        numa=_affinity_groups([rest[devices[place]] for place in gpus], tail),
        pcie_switches=_shared_switches([[rows[devices[i]][j] for j in others] for i in gpus]),
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
    devices = line[: cut.start() if cut else None].split()
    tail = _AFFINITY.findall(line)
    if len(set(devices)) != len(devices):
        raise source.wrong("a device has two columns", found[0] + 1, "each device once")
    if len(devices) > MOST_DEVICES:
        raise source.wrong(f"{len(devices)} devices", found[0] + 1, f"up to {MOST_DEVICES}")
    return found[0] + 1, devices, tail


def _is_header(line: str) -> bool:
    words = line.split(maxsplit=2)[:2]
    return bool(words) and bool(_GPU.match(words[0])) and not (len(words) > 1 and _CODE.match(words[1]))


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


def _far_adapters(columns: list[list[str]]) -> tuple[str, ...]:
    far = [place for place, column in enumerate(columns) if not set(column) & set(_BELOW_SWITCH)]
    if not far or len(far) == len(columns):
        return ()
    some = ", ".join(f"NIC{place}" for place in far[:8])
    return (f"{some}: below no PCIe switch with a GPU; they may serve storage or management, and are counted",)


def read_amd_matrix(source: SourceText) -> NodeFacts:
    """Read ``rocm-smi --showtopo``.

    Parameters
    ----------
    source : SourceText
        The sections ``Link Type between two GPUs`` and, where there, ``Weight``, ``Hops`` and ``Numa Nodes``.

    Returns
    -------
    NodeFacts
        A pair joined by XGMI counts as one link if it is one hop apart: the tool prints no number of links.

    Raises
    ------
    InputError
        Sections that are missing, cut short or contradict each other.
    """
    lines = source.lines()
    types = _section(source, lines, "Link Type between two GPUs")
    hops = _section(source, lines, "Hops between two GPUs", optional=True)
    gpus = len(types)
    if hops and len(hops) != gpus:
        raise source.wrong(f"{gpus} GPUs by link type and {len(hops)} by hops", allowed="one node in a file")
    links = []
    for a in range(gpus):
        for b in range(a + 1, gpus):
            if types[a][b] != types[b][a]:
                raise source.wrong(f"GPU{a} and GPU{b}: {types[a][b]} and {types[b][a]}", allowed="one link type")
            if types[a][b] == "XGMI" and (not hops or hops[a][b] == "1"):
                links.append((a, b, 1))
    nodes = {int(match[1]): match[2] for line in lines if (match := _NUMA.match(line))}
    known = all(nodes.get(gpu, "-1") != "-1" for gpu in range(gpus))
    groups: dict[str, list[int]] = {}
    for gpu in range(gpus if known else 0):
        groups.setdefault(nodes[gpu], []).append(gpu)
    mesh = gpus == 8 and len(links) == 28
    return NodeFacts(
        where=source.where,
        form=AMD_FORM,
        gpus=gpus,
        accelerator="mi300x" if mesh else "",
        accelerator_why="a mesh of eight; MI325X and MI350X nodes are alike" if mesh else "",
        links=tuple(links),
        links_known=True,
        link_kind=LinkKind.XGMI,
        numa=tuple(tuple(group) for group in groups.values()),
    )


def _section(source: SourceText, lines: Sequence[str], title: str, *, optional: bool = False) -> list[list[str]]:
    """Return the cells of the matrix below a title."""
    start = next((number for number, line in enumerate(lines) if title in line and "=" in line), None)
    if start is None:
        if optional:
            return []
        raise source.wrong(f"no section '{title}'", allowed=f"output of {AMD_FORM}")
    devices = lines[start + 1].split() if start + 1 < len(lines) else []
    if not devices or not all(_GPU.match(name) for name in devices):
        raise source.wrong(f"no header below '{title}'", start + 2, "GPU0 GPU1 ...")
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

"""Topology and graph XML of NCCL and RCCL: full dumps, hints with PCI devices only, and search results."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hardware.cluster import LinkKind
from hardware.importers.devices import by_compute_capability, by_gcn, by_pci, kind_of_adapter
from hardware.importers.facts import Adapter, Groups, Links, NodeFacts, nearest_of
from hardware.importers.source_text import SourceText
from hardware.importers.xml_tree import Element, parse_xml

SYSTEM_FORM: Final = "NCCL topology XML"
GRAPH_FORM: Final = "NCCL graph XML"
MOST_GPUS: Final = 1024
MOST_MBIT_PER_S: Final = 3_200_000
"""Speeds above are slips of unit: RCCL's examples state 200000000 for a Slingshot adapter of 200 Gb/s."""
USABLE_PCIE: Final = 0.85
"""Part of the encoded PCIe rate that payload reaches: 26 of 31.5 and 55 of 63 GB/s in the catalogue's nodes."""
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_ADAPTER_CLASS: Final = "0x02"
_SWITCH_CLASS: Final = "0x0680"
_SOCKET_BYTES_PER_S: Final = MappingProxyType({"ppc64": 32e9, "arm64": 6e9, "AuthenticAMD": 16e9})
_INTEL_BYTES_PER_S: Final = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
"""From which model number on: Emerald Rapids, Sapphire Rapids, Skylake, older ones."""
_RATE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,2})?)\s*GT/s")


@dataclass(frozen=True)
class _Device:
    """A PCI function (or an adapter without one) and the elements above it, from the processor inwards."""

    element: Element
    path: tuple[Element, ...]


def read_nccl_xml(source: SourceText) -> tuple[NodeFacts, ...]:
    """Read an XML file of NCCL or RCCL.

    Parameters
    ----------
    source : SourceText
        ``<system>`` (``NCCL_TOPO_FILE``, ``NCCL_TOPO_DUMP_FILE``) or ``<graphs>`` (``NCCL_GRAPH_DUMP_FILE``).

    Returns
    -------
    tuple of NodeFacts
        One for each host of the file. GPUs are in the order of ``dev``, else of their PCI addresses.

    Raises
    ------
    InputError
        Not such a document, wrong values, or devices whose class nobody states.
    """
    root = parse_xml(source)
    if root.name == "graphs":
        return (_graph_facts(source, root),)
    if root.name != "system":
        raise source.wrong(f"<{root.name[:40]}> is no topology", root.line, "<system> or <graphs>")
    hosts: dict[str, list[Element]] = {}
    for cpu in root.children:
        if cpu.name == "cpu":
            hosts.setdefault(cpu.get("host_hash"), []).append(cpu)
    if not hosts:
        raise source.wrong("no <cpu> below <system>", root.line, "a topology with its processors")
    return tuple(_system_facts(source, cpus) for cpus in hosts.values())


def _system_facts(source: SourceText, cpus: list[Element]) -> NodeFacts:
    devices = [device for cpu in cpus for device in _devices(cpu, ())]
    gpus = _ordered(source, [device for device in devices if _is_gpu(device.element)])
    adapters = [device for device in devices if _is_adapter(device.element)]
    if not gpus and not adapters and (nameless := _nameless(cpus)):
        return NodeFacts(where=source.where, form=SYSTEM_FORM, gpus=0, nameless=nameless)
    if not gpus:
        raise source.wrong(_no_gpus(devices, adapters), cpus[0].line, "GPUs by class 0x0302, 0x0300, 0x0380 or 0x1200")
    if len(gpus) > MOST_GPUS:
        raise source.wrong(f"{len(gpus)} GPUs", cpus[0].line, f"up to {MOST_GPUS} in a node")
    places = {device.element.get("busid").casefold(): place for place, device in enumerate(gpus)}
    links, switched, absent = _links(source, gpus, places)
    part, why, sure = _accelerator([device.element for device in gpus])
    described = any(child.name == "gpu" for device in gpus for child in device.element.children)
    notes = [] if not absent else [f"NVLinks or XGMI links to {absent} GPUs that the file does not describe: left out"]
    owned = [(device, port) for device in adapters for port in _ports(source, device.element, notes)]
    amd = any(child.name == "xgmi" for device in gpus for child in device.element.walk())
    return NodeFacts(
        where=source.where,
        form=SYSTEM_FORM,
        gpus=len(gpus),
        accelerator=part,
        accelerator_why=why,
        accelerator_sure=sure,
        links=links,
        links_known=described,
        link_kind=LinkKind.XGMI if amd else LinkKind.NVLINK,
        switch_links=switched,
        numa=_numa(cpus, gpus),
        pcie_switches=_shared_switches(gpus, adapters),
        nearest_adapters=nearest_of([[_distance(gpu, *one) for one in owned] for gpu in gpus]),
        adapters=tuple(port for _, port in owned),
        adapters_known=True,
        pcie_bytes_per_s=_pcie_bytes_per_s(gpus),
        gpu_bytes_per_s=_towards_adapters(gpus, adapters, notes, linked=bool(links) or switched > 0),
        notes=tuple(notes),
    )


def _devices(element: Element, path: tuple[Element, ...]) -> list[_Device]:
    found = []
    for child in element.children:
        if child.name == "pci" or (child.name == "nic" and element.name == "cpu"):
            found.append(_Device(child, (*path, element)))
        if child.name == "pci":
            found += _devices(child, (*path, element))
    return found


def _is_gpu(element: Element) -> bool:
    own = any(child.name == "gpu" for child in element.children)
    return own or (element.name == "pci" and element.get("class").startswith(_GPU_CLASSES))


def _is_adapter(element: Element) -> bool:
    own = element.name == "nic" or any(child.name == "nic" for child in element.children)
    return own or element.get("class").startswith(_ADAPTER_CLASS)


def _nameless(cpus: list[Element]) -> tuple[Groups, ...]:
    """Return PCI devices without class, numbered, by the switch above them and by socket; none if a class is stated."""
    sockets: list[Groups] = []
    number = 0
    for cpu in sorted(cpus, key=lambda cpu: cpu.get("numaid").zfill(4)):
        groups: dict[int, list[int]] = {}
        for device in _devices(cpu, ()):
            if device.element.get("class"):
                return ()
            if not device.element.children:
                groups.setdefault(id(device.path[-1]), []).append(number)
                number += 1
        sockets.append(tuple(tuple(group) for group in groups.values()))
    return tuple(sockets) if number else ()


def _no_gpus(devices: list[_Device], adapters: list[_Device]) -> str:
    return f"no GPU among {len(devices)} PCI devices, of which {len(adapters)} are adapters"


def _ordered(source: SourceText, gpus: list[_Device]) -> list[_Device]:
    numbers = [next((child.get("dev") for child in d.element.children if child.name == "gpu"), "") for d in gpus]
    if all(re.fullmatch(r"\d{1,5}", number) for number in numbers) and len(set(numbers)) == len(numbers):
        return [device for _, device in sorted(zip(map(int, numbers), gpus, strict=True), key=lambda pair: pair[0])]
    addresses = [device.element.get("busid").casefold() for device in gpus]
    if len(set(addresses)) != len(addresses) or not all(addresses):
        twice = next((d for d, a in zip(gpus, addresses, strict=True) if not a or addresses.count(a) > 1), gpus[0])
        raise source.wrong("a GPU without a PCI address of its own", twice.element.line, 'busid = "0000:0f:00.0"')
    return sorted(gpus, key=lambda device: device.element.get("busid").casefold())


def _links(source: SourceText, gpus: list[_Device], places: dict[str, int]) -> tuple[Links, int, int]:
    """Return links between GPUs, links of each GPU to switches, and how many further GPUs are named."""
    pairs: dict[tuple[int, int], int] = {}
    switched = [0] * len(gpus)
    absent = set()
    for place, device in enumerate(gpus):
        one_way: dict[int, int] = {}
        for link in device.element.walk():
            if link.name not in ("nvlink", "xgmi"):
                continue
            count = _whole(source, link, "count", 64)
            target = link.get("target").casefold()
            if link.get("tclass").startswith(_SWITCH_CLASS):
                switched[place] += count
            elif target in places:
                one_way[places[target]] = one_way.get(places[target], 0) + count
            else:
                absent.add(target)
        for other, count in one_way.items():
            key = (min(place, other), max(place, other))
            if place != other:
                pairs[key] = max(pairs.get(key, 0), count)
    links = tuple((a, b, count) for (a, b), count in sorted(pairs.items()) if count)
    return links, min(switched), len(absent)


def _accelerator(elements: list[Element]) -> tuple[str, str, bool]:
    """Return the part, what it was read from, and whether that names one part only."""
    first = elements[0]
    vendor, device = first.get("vendor"), first.get("device")
    part = by_pci(vendor, device)
    gpu = next((child for child in first.children if child.name == "gpu"), None)
    if part == "mi250-gcd" and gpu is not None and gpu.get("sm") == "110":
        part = "mi250x-gcd"  # both have one PCI id; the larger one has 110 compute units a die
    if part:
        return part, f"PCI device {vendor}:{device}", True
    if gpu is None:
        return "", "", False
    if gpu.get("gcn"):
        return by_gcn(gpu.get("gcn")), f"architecture {gpu.get('gcn')}", False
    return by_compute_capability(gpu.get("sm")), f"compute capability {gpu.get('sm')}", False


def _ports(source: SourceText, element: Element, notes: list[str]) -> list[Adapter]:
    ethernet = element.get("class").startswith("0x0200")
    infiniband = element.get("class").startswith("0x0207")
    by_class = LinkKind.INFINIBAND if infiniband else None
    if element.get("vendor").casefold() == "0x1d0f":
        by_class = LinkKind.EFA
    nets = [net for net in element.walk() if net.name == "net"]
    if not nets:
        return [Adapter(name=element.get("busid") or "adapter", kind=by_class)]
    ports = []
    limit = _link_bytes_per_s(element) / len(nets)
    for net in nets:
        name = net.get("name") or "adapter"
        speed = _whole(source, net, "speed", 10**9)
        if speed > MOST_MBIT_PER_S:
            notes.append(f"{name}: {speed} Mb/s cannot be; taken as kilobits: {speed / 1e6:g} Gb/s")
            speed //= 1000
        if 0.0 < limit < speed * 1.25e5:
            notes.append(f"{name}: {speed / 1e3:g} Gb/s behind {limit / 1.25e8:.0f} Gb/s of its PCIe link")
            speed = int(limit / 1.25e5)
        kind = by_class or kind_of_adapter(name) or (LinkKind.ROCE if ethernet and name.startswith("mlx") else None)
        direct = {"0": False, "1": True}.get(net.get("gdr"))
        ports.append(Adapter(name=name, kind=kind, bytes_per_s=speed * 1.25e5, gpudirect=direct))
    return ports


def _whole(source: SourceText, element: Element, key: str, most: int) -> int:
    text = element.get(key) or "0"
    if not re.fullmatch(r"\d{1,10}", text) or int(text) > most:
        raise source.wrong(f"{key} = '{text[:40]}'", element.line, f"a whole number up to {most}")
    return int(text)


def _numa(cpus: Iterable[Element], gpus: list[_Device]) -> Groups:
    groups = (
        tuple(place for place, gpu in enumerate(gpus) if gpu.path[0] is cpu)
        for cpu in sorted(cpus, key=lambda cpu: cpu.get("numaid").zfill(4))
        if re.fullmatch(r"\d{1,4}", cpu.get("numaid"))
    )
    return tuple(group for group in groups if group)


def _shared_switches(gpus: list[_Device], adapters: list[_Device]) -> Groups:
    """Return GPUs by the nearest PCIe switch above them that has an adapter below it too."""
    above = {id(bridge) for adapter in adapters for bridge in adapter.path[1:]}
    groups: dict[int, list[int]] = {}
    for place, gpu in enumerate(gpus):
        shared = [bridge for bridge in gpu.path[1:] if id(bridge) in above]
        if shared:
            groups.setdefault(id(shared[-1]), []).append(place)
    return tuple(tuple(group) for group in groups.values())


def _distance(gpu: _Device, adapter: _Device, port: Adapter) -> tuple[float, float]:
    """Order adapters as NCCL does: the fastest way first, then by one bridge, several, the processor, another one."""
    ours, theirs = gpu.path[1:], adapter.path[1:]
    if ours and theirs and ours[-1] is theirs[-1]:
        return -port.bytes_per_s, 0.0
    if any(bridge is other for bridge in ours for other in theirs):
        return -port.bytes_per_s, 1.0
    if gpu.path[0] is adapter.path[0]:
        return -port.bytes_per_s, 2.0
    across = _socket_bytes_per_s(gpu.path[0])
    return -min(port.bytes_per_s, across or port.bytes_per_s), 3.0


def _pcie_bytes_per_s(gpus: list[_Device]) -> float:
    """Return the payload rate of the slowest link between a processor and a GPU; 0.0 where none is stated."""
    rates = [_link_bytes_per_s(element) for gpu in gpus for element in (*gpu.path[1:], gpu.element) if _on_pcie(gpu)]
    return min((rate for rate in rates if rate), default=0.0)


def _towards_adapters(gpus: list[_Device], adapters: list[_Device], notes: list[str], *, linked: bool) -> float:
    """Return what the slowest GPU pushes towards adapters; 0.0 where nothing says.

    Its own PCIe link; and where all adapters hang on other processors, its part of the link between these, unless GPUs
    are linked to each other: libraries then send by way of a GPU beside the adapter.
    """
    own = _gpu_bytes_per_s(gpus, adapters)
    homes = [id(adapter.path[0]) for adapter in adapters]
    far = [gpu.path[0] for gpu in gpus if homes and id(gpu.path[0]) not in homes]
    rates = [_socket_bytes_per_s(cpu) / sum(other is cpu for other in far) for cpu in far]
    if linked or not rates or not min(rates):
        return own
    each = f"{min(rates) / 1e9:g} GB/s each"
    notes.append(f"{len(far)} of {len(gpus)} GPUs reach adapters over the link between processors: {each}")
    return min(filter(None, (own, *rates)))


def _socket_bytes_per_s(cpu: Element) -> float:
    """Rate between processors as NCCL assumes it by their make; 0.0 where the file does not state it.

    References
    ----------
    NVIDIA/nccl, ``src/graph/topo.h`` (BDW_QPI_BW, SKL_QPI_BW, SRP_QPI_BW, ERP_QPI_BW, AMD_BW, P9_BW, ARM_BW) and
    ``topo.cc``, ``ncclTopoGetInterCpuBw``.
    """
    arch, vendor, model = cpu.get("arch"), cpu.get("vendor"), cpu.get("modelid")
    if arch in _SOCKET_BYTES_PER_S:
        return _SOCKET_BYTES_PER_S[arch]
    if vendor == "GenuineIntel" and re.fullmatch(r"\d{1,3}", model):
        return next((rate for least, rate in _INTEL_BYTES_PER_S if int(model) >= least), 0.0)
    return _SOCKET_BYTES_PER_S.get(vendor, 0.0)


def _gpu_bytes_per_s(gpus: list[_Device], adapters: list[_Device]) -> float:
    """Return the payload rate of the slowest link from a GPU to the switch that it shares with an adapter, else up."""
    shared = sum(map(len, _shared_switches(gpus, adapters))) == len(gpus)
    if not shared:
        return _pcie_bytes_per_s(gpus)
    rates = [_link_bytes_per_s(gpu.element) for gpu in gpus if _on_pcie(gpu)]
    return min((rate for rate in rates if rate), default=0.0)


def _on_pcie(gpu: _Device) -> bool:
    """Whether a GPU's way to its host is the PCIe link that is listed, not a coherent link of its own."""
    return not any(child.name == "c2c" for child in gpu.element.walk())


def _link_bytes_per_s(element: Element) -> float:
    """Payload rate of a PCIe device's link; 0.0 where it is not stated."""
    match, width = _RATE.match(element.get("link_speed")), element.get("link_width")
    if not match or not re.fullmatch(r"\d{1,2}", width):
        return 0.0
    transfers = float(match[1])
    encoding = 128.0 / 130.0 if transfers >= 8.0 else 0.8
    return transfers * 1e9 * int(width) / 8.0 * encoding * USABLE_PCIE


def _graph_facts(source: SourceText, root: Element) -> NodeFacts:
    """Return what a search result says: GPUs, adapters, and what kind of path joins GPUs."""
    graphs = [child for child in root.children if child.name == "graph"]
    devices = {el.get("dev") for el in root.walk() if el.name == "gpu"}
    nets = {el.get("dev") for el in root.walk() if el.name == "net"}
    if not graphs or not devices:
        raise source.wrong("no channel with GPUs", root.line, "<graph> with <channel> and <gpu>")
    if not all(re.fullmatch(r"\d{1,4}", device) for device in devices):
        raise source.wrong("a GPU without a number", root.line, '<gpu dev="0"/>')
    path = graphs[0].get("typeintra")
    notes = [f"path between GPUs: {path}, {graphs[0].get('nchannels')} channels of {graphs[0].get('speedintra')} GB/s"]
    fast = path in ("NVL", "NVB")
    return NodeFacts(
        where=source.where,
        form=GRAPH_FORM,
        gpus=len(devices),
        links_known=not fast,
        adapters=tuple(Adapter(name=f"net {name}") for name in sorted(nets)),
        adapters_known=True,
        notes=tuple(notes),
    )

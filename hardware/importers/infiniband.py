"""InfiniBand fabrics: ``ibnetdiscover`` and ``ibstat``."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from hardware.cluster import LinkKind
from hardware.importers.facts import NetworkFacts
from hardware.importers.hostlist import MOST_HOSTS
from hardware.importers.network_files import fabric_facts
from hardware.importers.source_text import SourceText

DISCOVER_FORM: Final = "ibnetdiscover"
STAT_FORM: Final = "ibstat"
LANE_BYTES_PER_S: Final = MappingProxyType(
    {"SDR": 0.3125e9, "DDR": 0.625e9, "QDR": 1.25e9, "FDR10": 1.25e9, "FDR": 1.75e9, "EDR": 3.125e9, "HDR": 6.25e9,
     "NDR": 12.5e9, "XDR": 25e9}
)  # fmt: skip
"""Signalling rate of one lane, one direction (InfiniBand Trade Association roadmap); a 4x NDR port has 400 Gb/s."""
_NODE: Final = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,4})\s+"([^"]{1,64})"(?:\s*#\s*"([^"]{0,200})")?')
_PORT: Final = re.compile(r'\[(\d{1,4})\](?:\([^)]{0,40}\))?\s+"([^"]{1,64})"\[(\d{1,4})\](.*)')
_SPEED: Final = re.compile(r"\b(\d{1,2})x([A-Z]{3}\d{0,2})\s*$")
_ADAPTER_NAME: Final = re.compile(r"(\S+)\s+(HCA-\d+|mlx\d_\w+|ibp\S+|roce\S+|qib\d+|hfi1_\d+|mthca\d+)$")
_BLOCK: Final = re.compile(r'^(?:Switch|Ca|Rt)[ \t]+\d{1,4}[ \t]+"([^"\n]{1,64})"', re.M)
MOST_PORTS: Final = 256
"""Active ports of a host: the largest have 32 adapters of two ports."""
_GUID: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{12,16})$")


_Port = tuple[str, str]
"""A switch or adapter and the number of its port, as printed."""


@dataclass(frozen=True)
class _Fabric:
    """Names of switches and adapters by id, and cables with their rates."""

    switches: dict[str, str]
    adapters: dict[str, str]
    cables: dict[tuple[str, str], int]
    speeds: list[float]


def read_ibnetdiscover(source: SourceText, hosts_by_guid: Mapping[str, str] | None = None) -> NetworkFacts:
    """Read the output of ``ibnetdiscover``.

    Parameters
    ----------
    source : SourceText
        Blocks of switches and channel adapters.
    hosts_by_guid : mapping, optional
        Host of an adapter's GUID (16 hexadecimal digits), from ``ibstat``; else the description names the host.

    Returns
    -------
    NetworkFacts
        Hosts are the adapters' descriptions up to ``HCA-1``, ``mlx5_0`` and the like. Adapters whose description names
        no host are counted in a note. The aggregation nodes of switches mean that the fabric can reduce.

    Raises
    ------
    InputError
        A block or port that cannot be read, or no hosts.
    """
    fabric = _parse(source)
    owners: dict[str, str] = {}
    nameless = 0
    aggregation = 0
    for key, name in fabric.adapters.items():
        guid = key.split("-", 1)[-1].casefold()
        match = _ADAPTER_NAME.match(name.strip())
        if "aggregation node" in name.casefold():
            aggregation += 1
        elif hosts_by_guid and guid in hosts_by_guid:
            owners[key] = hosts_by_guid[guid]
        elif match:
            owners[key] = match[1]
        else:
            nameless += 1
    cables: dict[tuple[str, str], int] = {}
    for (one, other), count in fabric.cables.items():
        ends = [end if end in fabric.switches else owners.get(end) for end in (one, other)]
        if ends[0] is not None and ends[1] is not None:
            pair = (min(ends[0], ends[1]), max(ends[0], ends[1]))
            cables[pair] = cables.get(pair, 0) + count
    facts = fabric_facts(source, DISCOVER_FORM, cables, set(fabric.switches))
    notes = list(facts.notes)
    if nameless:
        notes.append(f"{nameless} adapters whose description names no host are left out")
    speed = max(sorted(set(fabric.speeds)), key=fabric.speeds.count, default=0.0)
    return replace(facts, bytes_per_s=speed, in_network_reduction=aggregation > 0, notes=tuple(notes))


def _parse(source: SourceText) -> _Fabric:
    fabric = _Fabric({}, {}, {}, [])
    here = ""
    known = set(_BLOCK.findall(source.text))
    if len(known) > MOST_HOSTS:
        raise source.wrong(f"more than {MOST_HOSTS} switches and adapters", allowed="a fabric of one cluster")
    ports: dict[_Port, _Port] = {}
    for number, line in enumerate(source.lines(), start=1):
        if line.startswith(("Switch", "Ca", "Rt")):
            node = _NODE.match(line)
            if node is None:
                raise source.wrong(f"'{line[:60]}'", number, 'Switch 64 "S-..." # "name"')
            here = node[3]
            names = fabric.switches if node[1] == "Switch" else fabric.adapters
            names[here] = node[4] or here
        elif line.startswith("["):
            port = _PORT.match(line)
            if port is None or not here:
                raise source.wrong(f"'{line[:60]}'", number, '[1] "H-..."[1] below a Switch or Ca')
            if port[2] not in known:
                what = f"a port leads to '{port[2][:40]}', which has no block"
                raise source.wrong(what, number, "the whole output")
            one, other = (here, port[1]), (port[2], port[3])
            if ports.get(other) != one:  # both ends of a cable print it
                ports[one] = other
            speed = _SPEED.search(port[4])
            if here not in fabric.switches and speed and speed[2] in LANE_BYTES_PER_S:
                fabric.speeds.append(int(speed[1]) * LANE_BYTES_PER_S[speed[2]])
    cables = Counter((one, other) if one < other else (other, one) for (one, _), (other, _) in ports.items())
    return replace(fabric, cables=dict(cables))


def hosts_by_guid(source: SourceText) -> dict[str, str]:
    """Return GUID to host of a list of hosts (``VM_hostname NAME``, then GUIDs); empty for other forms."""
    found: dict[str, str] = {}
    host = ""
    for line in source.lines():
        words = line.split()
        if len(words) == 2 and words[0] == "VM_hostname":
            host = words[1]
        elif host and len(words) == 1 and (match := _GUID.match(words[0])):
            found[match[1].casefold()] = host
        if len(found) > MOST_HOSTS:
            raise source.wrong(f"more than {MOST_HOSTS} adapters", allowed="hosts of one cluster")
    return found


def read_ibstat(source: SourceText) -> NetworkFacts:
    """Read ``ibstat`` of one host, or a list of hosts with the GUIDs of their adapters.

    Parameters
    ----------
    source : SourceText
        ``CA 'mlx5_0'`` blocks with ``Port``, ``State``, ``Rate`` and ``Link layer``; or ``VM_hostname`` lines.

    Returns
    -------
    NetworkFacts
        Active ports of one host; or hosts and the usual number of GUIDs.

    Raises
    ------
    InputError
        Neither form, or no active port.
    """
    listed = hosts_by_guid(source)
    if listed:
        hosts = tuple(dict.fromkeys(listed.values()))
        tally = Counter(listed.values())
        counts = [tally[host] for host in hosts]
        usual = max(sorted(set(counts), reverse=True), key=counts.count)
        return NetworkFacts(
            where=source.where, form=STAT_FORM, hosts=hosts, adapters=usual, kind=LinkKind.INFINIBAND,
            notes=("one GUID a host may be one adapter, or the first of several",) if usual == 1 else (),
        )  # fmt: skip
    rates, layers = [], []
    state = ""
    for number, line in enumerate(source.lines(), start=1):
        key, _, value = line.strip().partition(":")
        if key == "State":
            state = value.strip()
        elif key == "Rate" and state.startswith("Active"):
            if not re.fullmatch(r"\d{1,4}(\.\d+)?( .*)?", value.strip()):
                raise source.wrong(f"Rate '{value.strip()[:40]}'", number, "gigabits per second, such as 400")
            rates.append(float(value.split()[0]) * 1.25e8)
            if len(rates) > MOST_PORTS:
                raise source.wrong(f"more than {MOST_PORTS} active ports", number, "ibstat of one host")
        elif key == "Link layer" and state.startswith("Active"):
            layers.append(value.strip())
    if not rates:
        raise source.wrong("no active port", allowed="output of ibstat")
    notes = (f"{len(rates)} active ports of different rates",) if len(set(rates)) > 1 else ()
    return NetworkFacts(
        where=source.where, form=STAT_FORM, hosts=(), adapters=len(rates), bytes_per_s=sum(rates) / len(rates),
        kind=LinkKind.ROCE if layers and set(layers) == {"Ethernet"} else LinkKind.INFINIBAND, notes=notes,
    )  # fmt: skip

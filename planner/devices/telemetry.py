"""Measured accelerators: what monitoring saw under load, laid on the nodes of a cluster."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hardware import catalog
from hardware.cluster import Cluster, DeviceState, Island
from hardware.errors import InputError
from hardware.importers.device_names import accelerator_in
from hardware.importers.telemetry import DeviceReading, Telemetry, host_order, on_host, read_telemetry
from hardware.nouns import count


@dataclass(frozen=True, kw_only=True)
class MeasuredCluster:
    """A cluster with the states of its devices, what was measured in words, and what was assumed."""

    cluster: Cluster
    hosts: tuple[str, ...]
    stated: tuple[str, ...]
    assumed: tuple[str, ...]


def measured_cluster(paths: Sequence[Path], spec: str = "", accelerator: str = "") -> MeasuredCluster:
    """Lay series of monitoring tools on a cluster.

    Parameters
    ----------
    paths : sequence of Path
        Series taken while a job trains; a file that names no hosts is of one node, named after the file.
    spec : str
        The cluster, as the command line names it; empty: the usual nodes of the accelerator that the files name.
    accelerator : str
        Name for files that state none.

    Returns
    -------
    MeasuredCluster
        Hosts take the nodes in the order of their names.

    Raises
    ------
    InputError
        A file that cannot be read, more hosts than nodes, a device that its node does not have, or one seen twice.
    """
    files = _read(paths)
    assumed = [text for file in files for text in file.assumed]
    cluster = catalog.cluster(spec) if spec else _cluster_of(files, _hosts(files), accelerator, assumed)
    return _laid(cluster, files, assumed)


def with_telemetry(cluster: Cluster, paths: Sequence[Path]) -> MeasuredCluster:
    """Lay series of monitoring tools on the nodes of a known cluster; otherwise as :func:`measured_cluster`."""
    files = _read(paths)
    return _laid(cluster, files, [text for file in files for text in file.assumed])


def _read(paths: Sequence[Path]) -> list[Telemetry]:
    files = [on_host(read_telemetry(path), path.stem) for path in paths]
    _check_hosts(files)
    return files


def _hosts(files: Sequence[Telemetry]) -> tuple[str, ...]:
    return tuple(sorted({reading.host for file in files for reading in file.readings}, key=host_order))


def _laid(cluster: Cluster, files: Sequence[Telemetry], assumed: Sequence[str]) -> MeasuredCluster:
    hosts = _hosts(files)
    if len(hosts) > cluster.nodes:
        raise InputError(
            f"the series are of {len(hosts)} hosts and {cluster.name} has {cluster.nodes} nodes",
            allowed="a cluster with as many nodes",
            where=files[0].where,
        )
    notes = list(assumed)
    if len(hosts) > 1:
        notes.append(f"nodes 0 to {len(hosts) - 1} are {', '.join(hosts[:8])}{', ...' if len(hosts) > 8 else ''}")
    if len(hosts) < cluster.nodes:
        notes.append(f"{count(cluster.nodes - len(hosts), 'node')} without a series: as the model has it")
    notes += _partial(cluster, files, hosts)
    notes += _too_fast(cluster, files)
    return MeasuredCluster(
        cluster=_with_devices(cluster, files, hosts),
        hosts=hosts,
        stated=tuple(_line(reading) for file in files for reading in file.readings),
        assumed=tuple(notes),
    )


def _partial(cluster: Cluster, files: Sequence[Telemetry], hosts: Sequence[str]) -> list[str]:
    """Say which hosts have accelerators without a reading."""
    seen = Counter(reading.host for file in files for reading in file.readings)
    sizes = [island.node.gpus for island in cluster.islands for _ in range(island.nodes)]
    covered: dict[tuple[int, int], list[str]] = defaultdict(list)
    for host, gpus in zip(hosts, sizes, strict=False):
        if seen[host] < gpus:
            covered[seen[host], gpus].append(host)
    return [
        f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}: {found} of {gpus} accelerators measured under "
        "load, the others as the model has them"
        for (found, gpus), names in covered.items()
    ]


def _too_fast(cluster: Cluster, files: Sequence[Telemetry]) -> list[str]:
    """Say where a clock is higher than the part runs at: it counts as the part's highest."""
    part = cluster.islands[0].node.accelerator
    highest_hz = part.max_clock_hz or part.peak_clock_hz
    alike = len({island.node.accelerator.name for island in cluster.islands}) == 1
    fast = [
        reading for file in files for reading in file.readings if highest_hz and reading.clock_hz > 1.01 * highest_hz
    ]
    return [
        f"{reading.host} GPU {reading.gpu}: {reading.clock_hz / 1e6:.0f} MHz is above the {highest_hz / 1e6:.0f} MHz "
        f"that {part.name} reaches, and counts as that"
        for reading in (fast if alike else ())
    ]


def _check_hosts(files: Sequence[Telemetry]) -> None:
    """Refuse a device that two files describe."""
    seen: dict[tuple[str, int], str] = {}
    for file in files:
        for reading in file.readings:
            key = (reading.host, reading.gpu)
            if key in seen:
                raise InputError(
                    f"GPU {reading.gpu} of host {reading.host} is in {seen[key]} too",
                    allowed="one file for a host; files that name no host need names of their own",
                    where=file.where,
                )
            seen[key] = file.where


def _cluster_of(files: Sequence[Telemetry], hosts: Sequence[str], accelerator: str, assumed: list[str]) -> Cluster:
    """Return usual nodes of the accelerator that most readings name."""
    devices = Counter(reading.device for file in files for reading in file.readings if reading.device)
    device = devices.most_common(1)[0][0] if devices else ""
    name = accelerator or accelerator_in(device)
    if not name:
        what = f"device '{device}' is not in the catalogue" if device else "the files name no device"
        raise InputError(what, allowed="--cluster NAME:NODES, or --accelerator NAME", where=files[0].where)
    per_node = max(file.gpus for file in files)
    cluster = catalog.cluster_of_run(name, len(hosts) * per_node, per_node)
    assumed.append(f"the nodes are {cluster.islands[0].node.name} with {per_node} x {name}: --cluster names others")
    return cluster


def _with_devices(cluster: Cluster, files: Sequence[Telemetry], hosts: Sequence[str]) -> Cluster:
    """Return the cluster with the readings as states of its devices; states of the same devices are replaced."""
    islands: list[Island] = []
    first = 0
    number = {host: node for node, host in enumerate(hosts)}
    where = {reading.host: file.where for file in files for reading in file.readings}
    readings = [reading for file in files for reading in file.readings]
    for island in cluster.islands:
        states = {(state.node, state.gpu): state for state in island.devices}
        for reading in readings:
            node = number[reading.host] - first
            if 0 <= node < island.nodes:
                _check_seat(reading, island, where[reading.host])
                states[node, reading.gpu] = _state(reading, node)
        islands.append(replace(island, devices=tuple(states[key] for key in sorted(states))))
        first += island.nodes
    return replace(cluster, islands=tuple(islands))


def _check_seat(reading: DeviceReading, island: Island, where: str) -> None:
    if reading.gpu >= island.node.gpus:
        raise InputError(
            f"GPU {reading.gpu} of host {reading.host}: {island.node.name} has {island.node.gpus}",
            allowed=f"indices 0 to {island.node.gpus - 1}, or another --cluster",
            where=where,
        )
    seen, expected = accelerator_in(reading.device), island.node.accelerator.name
    known = expected in catalog.accelerator_names()
    if seen and known and seen.partition("-")[0] != expected.partition("-")[0]:
        raise InputError(
            f"the device is '{reading.device}' and the cluster has {expected}",
            allowed="a --cluster of that accelerator",
            where=where,
        )


def _state(reading: DeviceReading, node: int) -> DeviceState:
    return DeviceState(
        node=node,
        gpu=reading.gpu,
        clock_hz=reading.clock_hz,
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
    )


def _line(reading: DeviceReading) -> str:
    """What was seen of one device, for a person."""
    parts = [
        f"{reading.clock_hz / 1e6:.0f} MHz" if reading.clock_hz else "",
        f"{reading.temperature_c:.0f} C" if reading.temperature_c else "",
        f"{reading.power_w:.0f} W" if reading.power_w else "",
        f"held down by {', '.join(reading.reasons)}" if reading.reasons else "",
    ]
    return f"{reading.host} GPU {reading.gpu}: {', '.join(filter(None, parts))} ({reading.samples} samples under load)"

"""Topology files of any known form to a cluster and its TOML, with every assumption named. See docs/importing.md."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hardware.catalog_checks import check_cluster
from hardware.cluster import Cluster
from hardware.cluster_file import to_toml
from hardware.errors import InputError
from hardware.importers.amd_matrices import is_amd_matrix, read_amd_matrix
from hardware.importers.assemble import Built, Wishes, build_island, cluster_of
from hardware.importers.facts import Facts, NetworkFacts, NodeFacts
from hardware.importers.infiniband import hosts_by_guid, read_ibnetdiscover, read_ibstat
from hardware.importers.matrices import is_nvidia_matrix, read_nvidia_matrix
from hardware.importers.nccl_xml import read_nccl_xml
from hardware.importers.network_files import read_netq
from hardware.importers.slurm import read_slurm, read_slurm_yaml
from hardware.importers.source_text import SourceText, read_source
from hardware.importers.topograph import read_topograph

MOST_FILES: Final = 256
MOST_HOSTS_SHOWN: Final = 4096
_MARKS_WITHIN: Final = 2**20  # characters in which a network file shows its form
FORMS: Final = (
    "nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology, NCCL or RCCL XML, SLURM topology.conf or .yaml, "
    "ibnetdiscover, ibstat, topograph YAML, NetQ JSON"
)


@dataclass(frozen=True, kw_only=True)
class Import:
    """An imported cluster: what files state, what was assumed, and the hosts in the order of nodes."""

    cluster: Cluster
    files: tuple[str, ...]
    stated: tuple[str, ...]
    assumed: tuple[str, ...]
    hosts: tuple[str, ...] = ()

    def toml(self) -> str:
        """Return the cluster file, with what is stated and what is assumed as comments before it."""
        lines = [f"# Imported from {_comment(file)}" for file in self.files]
        lines += ["#", "# Stated there:", *(f"#   {_comment(text)}" for text in self.stated)]
        lines += ["#", "# Assumed, for no file states it:", *(f"#   {_comment(text)}" for text in self.assumed)]
        if self.hosts:
            shown = self.hosts[:MOST_HOSTS_SHOWN]
            more = f" and {len(self.hosts) - len(shown)} more" if len(shown) < len(self.hosts) else ""
            lines += ["#", "# Nodes in this order:"]
            lines += [f"#   {_comment(','.join(shown[at : at + 8]))}" for at in range(0, len(shown), 8)]
            lines += [f"#  {more}"] if more else []
        return "\n".join(lines) + "\n\n" + to_toml(self.cluster)


def _comment(text: str) -> str:
    """Return a text that stays within one comment line of TOML."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def import_topology(paths: Sequence[str | Path], wishes: Wishes | None = None) -> Import:
    """Read one or several files that describe one cluster.

    Parameters
    ----------
    paths : sequence of str or Path
        Node files (one for each kind of node, or one for each node) and network files, in any order.
    wishes : Wishes, optional
        Accelerator, node type, number of nodes and name where files leave them open or are to be overruled.

    Returns
    -------
    Import
        A cluster that passes the checks of cluster files.

    Raises
    ------
    InputError
        A file cannot be read or is of no known form; files contradict each other; nothing tells the accelerator.
    """
    wishes = wishes or Wishes()
    if not 1 <= len(paths) <= MOST_FILES:
        raise InputError(f"{len(paths)} files", allowed=f"1 to {MOST_FILES}")
    sources = [read_source(path) for path in paths]
    guids = {
        guid: host for source in sources if "VM_hostname" in source.text for guid, host in hosts_by_guid(source).items()
    }
    facts = [found for source in sources for found in read_facts(source, guids)]
    nodes = [found for found in facts if isinstance(found, NodeFacts)]
    network = _one_network([found for found in facts if isinstance(found, NetworkFacts)])
    islands = _islands(nodes, network, wishes)
    name = wishes.name or Path(paths[0]).stem
    cluster = cluster_of(islands, name, [source.where for source in sources])
    check_cluster(cluster, sources[0].where)
    stated = tuple(dict.fromkeys(text for built in islands for text in built.stated))
    assumed = tuple(dict.fromkeys(text for built in islands for text in built.assumed))
    if len(islands) > 1:
        assumed += ("islands are joined at the rate of the slowest node's adapters",)
    return Import(
        cluster=cluster,
        files=tuple(source.where for source in sources),
        stated=stated,
        assumed=assumed,
        hosts=_hosts(network),
    )


def read_facts(source: SourceText, guids: dict[str, str] | None = None) -> tuple[Facts, ...]:
    """Return what one file states, whatever its form.

    Parameters
    ----------
    source : SourceText
        The file; its form is told by its content, not by its name.
    guids : dict, optional
        Hosts of InfiniBand adapters, for fabrics whose descriptions name none.

    Raises
    ------
    InputError
        No known form, or a broken file.
    """
    text = source.text
    if is_amd_matrix(text):
        return (read_amd_matrix(source),)
    if is_nvidia_matrix(source):
        return (read_nvidia_matrix(source),)
    if text.lstrip()[:1] == "<":
        return read_nccl_xml(source)
    return (_read_network(source, guids),)


def _read_network(source: SourceText, guids: dict[str, str] | None) -> NetworkFacts:
    """Return what a network file states, by the first form whose mark it bears."""
    start = source.text[:_MARKS_WITHIN]
    if re.search(r'^(Switch|Ca)\s+\d+\s+"', start, re.M):
        return read_ibnetdiscover(source, guids)
    forms = (
        (r"^[ \t]*(SwitchName|BlockName)[ \t]*=", read_slurm),
        (r"^(VM_hostname\s|CA ')", read_ibstat),
        (r"^-[ \t]+topology[ \t]*:", read_slurm_yaml),
        (r"^(switches|blocks|capacity_blocks)[ \t]*:", read_topograph),
        (r"\A\s*[\[{]", read_netq),
    )
    for mark, read in forms:
        if re.search(mark, start, re.M | re.I):
            return read(source)
    raise source.wrong("no known form of topology file", 1, FORMS)


def _one_network(found: list[NetworkFacts]) -> NetworkFacts | None:
    """Return what all network files say together."""
    if not found:
        return None
    first = next((facts for facts in found if facts.tiers), found[0])
    for other in found:
        if other.hosts and first.hosts and len(other.hosts) != len(first.hosts):
            what = f"{len(other.hosts)} nodes, but {first.where} has {len(first.hosts)}"
            raise InputError(what, allowed="files of one cluster", where=other.where)
    with_adapters = next((facts for facts in found if facts.adapters), first)
    return replace(
        first,
        where="; ".join(facts.where for facts in found),
        form="; ".join(dict.fromkeys(facts.form for facts in found)),
        hosts=first.hosts or next((facts.hosts for facts in found if facts.hosts), ()),
        domains=next((facts.domains for facts in found if facts.domains), ()),
        adapters=with_adapters.adapters,
        kind=with_adapters.kind,
        bytes_per_s=with_adapters.bytes_per_s,
        in_network_reduction=any(facts.in_network_reduction for facts in found),
        accelerator=next((facts.accelerator for facts in found if facts.accelerator), ""),
        notes=tuple(note for facts in found for note in facts.notes),
    )


def _islands(nodes: list[NodeFacts], network: NetworkFacts | None, wishes: Wishes) -> list[Built]:
    kinds: dict[NodeFacts, list[NodeFacts]] = {}
    for facts in nodes:
        kinds.setdefault(replace(facts, where="", notes=()), []).append(facts)
    if not kinds:
        return [build_island(None, network, wishes)]
    if len(kinds) == 1:
        alike = next(iter(kinds.values()))
        return [build_island(alike[0], network, wishes, len(alike))]
    if (network is not None and network.hosts) or wishes.nodes:
        first, second = (group[0].where for group in list(kinds.values())[:2])
        what = f"{first} and {second} describe different nodes, and nothing says how many there are of each"
        raise InputError(what, allowed="one kind of node with a network file or --nodes")
    return [build_island(alike[0], network, wishes, len(alike)) for alike in kinds.values()]


def _hosts(network: NetworkFacts | None) -> tuple[str, ...]:
    """Return hosts as nodes are numbered: by the group of the outermost tier, then the next one, down to the leaf."""
    if network is None:
        return ()
    tiers = [tier.groups for tier in reversed(network.tiers)] or [network.domains]
    places = [{host: place for place, group in enumerate(groups) for host in group} for groups in tiers]
    if not all(len(place) == len(network.hosts) for place in places):
        return network.hosts
    return tuple(sorted(network.hosts, key=lambda host: tuple(place[host] for place in places)))

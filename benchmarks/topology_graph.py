"""CPU seconds and memory of the graph of 16,384 GPUs, and what a network of three tiers adds to a search.

    python benchmarks/topology_graph.py

2,048 nodes of eight H100 on a three-tier Clos: leaves of 32 nodes with eight rails, pods of 512 nodes, a core. The
graph is built in a process of its own, so that its peak memory is its own; the search is made with one tier and with
three.
"""

import resource
import subprocess
import sys
import time
from dataclasses import replace

from hardware import catalog
from hardware.cluster import Cluster, FabricTier
from hardware.topology import cluster_graph
from planner import Question, plan, request_of

NODES = 2048
TIERS = (
    FabricTier(name="leaf", nodes=32, rails=8),
    FabricTier(name="spine", nodes=512, oversubscription=2.0),
    FabricTier(name="core", nodes=0),
)
ONE_TIER = (FabricTier(name="leaf", nodes=0),)
ROUNDS = 3


def clos(tiers: tuple[FabricTier, ...] = TIERS) -> Cluster:
    """Return the machine under a network."""
    cluster = catalog.cluster(f"dgx-h100:{NODES}")
    return replace(cluster, islands=(replace(cluster.islands[0], fabric=tiers),))


def graph() -> None:
    """Build the graph in this process and print the figures."""
    machine = clos()
    import networkx  # noqa: F401, PLC0415 - its import is not the graph's

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    begin = time.process_time()
    found = cluster_graph(machine)
    seconds = time.process_time() - begin
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    print(f"graph of {machine.gpus:,} GPUs: {found.number_of_nodes():,} vertices, {found.number_of_edges():,} edges, "
          f"{seconds:.2f} CPU s, {after:.0f} MiB in all, {after - before:.0f} of them the graph's")  # fmt: skip


def search_s(tiers: tuple[FabricTier, ...]) -> float:
    """CPU seconds of a search on the machine under a network; the least of some rounds."""
    asked = request_of(Question(model="llama31_405b", cluster="dgx-h100:2048", global_batch=2048, seq=8192))
    request = replace(asked, cluster=clos(tiers), time_limit_s=600.0)
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        plan(request)
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    """Print the figures."""
    subprocess.run([sys.executable, __file__, "--graph"], check=True)
    one, three = search_s(ONE_TIER), search_s(TIERS)
    print(
        f"search of llama31_405b on it: {one:.2f} CPU s with one tier, {three:.2f} with three: {three / one - 1:+.0%}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--graph"]:
        graph()
    else:
        main()

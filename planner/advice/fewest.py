"""How few accelerators hold a job: the smallest size of a machine that does, and what the next smaller one lacks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodels.memory import usable_memory
from costmodels.pricing import Constants
from costmodels.results import MemoryUse, Verdict
from hardware.cluster import Cluster
from hardware.resized import with_nodes
from planner.adapters import without_adapters
from planner.infeasible.reasons import states_bytes, states_parts
from planner.plan_report import RankedLayout
from planner.planning import fastest, pricings_of
from planner.request import PlanRequest
from planner.search.effort import Until, from_now
from planner.search.every_island import ANY_FIT
from planner.search.smallest import smallest_layout
from planner.search.uniform import Aim, UniformSearch

MOST_OVER_STATES: Final = 8.0
"""Sizes are tried up to this many times the memory that the states alone take if all of the model is trained; with
adapters activations decide."""
FIRST_SHARE: Final = 0.5
"""Of the time that is left, for the search on the first size that holds a job: a safe one is still to be found."""


@dataclass(frozen=True, kw_only=True)
class TooFew:
    """The next smaller size, and why it does not do.

    Attributes
    ----------
    gpus : int
        Accelerators of that size.
    states : tuple of (str, float)
        Each kind of state of the whole model, kept once, the largest first [B].
    usable_bytes : float
        All usable memory of that size [B].
    use : MemoryUse or None
        The heaviest accelerator of the layout that needs least; None where no layout is legal there.
    host_lacks : bool
        Accelerators hold a layout, but not the hosts what it keeps in their memory.
    """

    gpus: int
    states: tuple[tuple[str, float], ...]
    usable_bytes: float
    use: MemoryUse | None
    host_lacks: bool = False

    @property
    def states_bytes(self) -> float:
        """All states of the model, each kept once."""
        return sum(size for _, size in self.states)

    @property
    def decides(self) -> str:
        """What is short: ``host`` memory, all ``states``, or one component; ``rules`` where nothing is legal."""
        if self.host_lacks:
            return "host"
        if self.states_bytes > self.usable_bytes:
            return "states"
        if self.use is None:
            return "rules"
        return max(self.use.components, key=lambda item: item[1])[0]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of a machine that holds the job: the question on it, and the fastest layout there."""

    request: PlanRequest
    ranked: RankedLayout


@dataclass(frozen=True, kw_only=True)
class Fewest:
    """The answer for one kind of machine.

    ``first`` is the smallest size on which anything fits, ``safe`` the smallest on which a layout fits with room for
    what allocators waste; None where there is none within :data:`MOST_OVER_STATES` or in the time. ``below`` is the
    size before ``first``; None where ``first`` is a single accelerator. ``cut_at_gpus`` is the largest size that was
    looked at when the time limit ended the search; 0 where it did not.
    """

    request: PlanRequest
    first: Size | None
    safe: Size | None
    below: TooFew | None
    cut_at_gpus: int = 0


def fewest(request: PlanRequest, constants: Constants | None = None) -> Fewest:
    """Find the smallest size of a machine on which a job fits.

    Parameters
    ----------
    request : PlanRequest
        Its cluster's first island names the kind of node; how many there are does not count.
    constants : Constants, optional
        Of the cost models; default: those that ship.

    Returns
    -------
    Fewest
        Sizes are parts of a node that divide it, then whole nodes, from the least that holds the states.
    """
    until = from_now(request.time_limit_s)
    below: TooFew | None = None
    first: Size | None = None
    for machine in _sizes(request):
        asked = replace(request, cluster=machine, top=1)
        if _hosts_lack(asked):
            below = TooFew(
                gpus=machine.gpus,
                states=states_parts(asked),
                usable_bytes=_usable_bytes(asked),
                use=None,
                host_lacks=True,
            )
            continue
        span = until if first else until.part(FIRST_SHARE)
        found = _fastest(asked, constants, span, safely=first is not None)
        if found is not None and _host_holds(asked, found):
            size = Size(request=asked, ranked=found)
            first = first or size
            if found.cost.heaviest.verdict is Verdict.FITS:
                return Fewest(request=request, first=first, safe=size, below=below)
        elif first is None:
            below = replace(_too_few(asked, constants), host_lacks=found is not None)
        if until.late():
            return Fewest(request=request, first=first, safe=None, below=below, cut_at_gpus=machine.gpus)
    return Fewest(request=request, first=first, safe=None, below=below)


def in_host_memory(request: PlanRequest) -> PlanRequest:
    """Return the request with the optimizer's states in host memory."""
    software = replace(request.job.software, optimizer_offload=True)
    return replace(request, job=replace(request.job, software=software))


def host_bytes_of_node(request: PlanRequest, ranked: RankedLayout) -> float:
    """Host memory that a layout takes of a node [B]."""
    node = request.cluster.islands[0].node
    return ranked.cost.heaviest.host_bytes * min(node.gpus, ranked.layout.gpus)


def _hosts_lack(request: PlanRequest) -> bool:
    """Whether the hosts cannot hold the optimizer's states even once, where these are to lie there."""
    island = request.cluster.islands[0]
    there = island.nodes * island.node.host.memory_bytes
    return (
        request.job.software.optimizer_offload
        and 0 < there < request.job.software.share_in_host * dict(states_parts(request))["optimizer"]
    )


def _host_holds(request: PlanRequest, ranked: RankedLayout) -> bool:
    """Whether hosts have what a layout keeps there; a node that states no memory is taken to have it."""
    there = request.cluster.islands[0].node.host.memory_bytes
    return not there or host_bytes_of_node(request, ranked) <= there


def _fastest(request: PlanRequest, constants: Constants | None, until: Until, *, safely: bool) -> RankedLayout | None:
    """The fastest layout on a machine of one size, where any fits (``safely``: with room); the quick look is first."""
    if not _offloaded(request) and states_bytes(request) > _usable_bytes(request):
        return None
    any_on_all = Aim(any_will_do=True, on_all=True)
    search = UniformSearch(request, pricings_of(request, constants)[0], any_on_all, until)
    found = search.run(ANY_FIT[:1] if safely else ANY_FIT)
    if not found.best:
        return None
    # what keeps least has been looked at: where it fits with risk alone, nothing fits safely
    return fastest(request, constants, until, (found.accepted,))


def _too_few(request: PlanRequest, constants: Constants | None) -> TooFew:
    usable, room = _usable_bytes(request), states_bytes(request) <= _usable_bytes(request) or _offloaded(request)
    least = smallest_layout(request, pricings_of(request, constants)[0]) if room else None
    use = None if least is None else least.use
    return TooFew(gpus=request.cluster.gpus, states=states_parts(request), usable_bytes=usable, use=use)


def _usable_bytes(request: PlanRequest) -> float:
    return request.cluster.gpus * usable_memory(request.cluster.islands[0].node.accelerator)


def _offloaded(request: PlanRequest) -> bool:
    return request.job.software.optimizer_offload or request.job.software.state_offload


def _sizes(request: PlanRequest) -> Iterator[Cluster]:
    """Parts of a node that divide it, then whole nodes, up to many times what the states need."""
    cluster, island = request.cluster, request.cluster.islands[0]
    whole, alike = island.node.gpus, replace(island, devices=(), inlets_c=())
    for gpus in (size for size in range(1, whole) if whole % size == 0):
        part = with_nodes(replace(alike, node=replace(island.node, gpus=gpus)), 1)
        yield replace(cluster, name=f"{island.node.name}, {gpus} of {whole} GPUs", islands=(part,))
    whole_model = replace(request, job=without_adapters(request.job))
    most = MOST_OVER_STATES * states_bytes(whole_model) / (whole * usable_memory(island.node.accelerator))
    for nodes in range(1, 2 + int(most)):
        several = with_nodes(alike, nodes)
        yield replace(cluster, name=f"{island.node.name}:{nodes}", islands=(several,))

"""A judged launch as plain values, in the words of ``plan check --json``."""

from typing import Any

from planner.ingest.megatron import Launch, LaunchVerdict, judge
from planner.request import Framework
from planner.rules.nearest import Neighbour, nearest_legal
from planner.rules.proposal import Proposal

_GRID = ("tp", "pp", "cp", "vpp", "ep", "etp", "micro_batch", "global_batch", "sequence_parallel")


def check_launch(launch: Launch, *, neighbours: int = 3) -> dict[str, Any]:
    """Judge a Megatron-LM launch and find legal ones near to it.

    Parameters
    ----------
    launch : Launch
        See :func:`planner.ingest.megatron.parse_megatron`.
    neighbours : int
        How many near legal proposals to state when it is not legal.

    Returns
    -------
    dict
        ``legal`` (no rule is broken), ``accepted`` (Megatron-LM would start it; it may still fail in the first forward
        pass), ``violations``, ``layers_per_stage`` (null where the split is refused), ``grid``, ``nearest``.
    """
    verdict: LaunchVerdict = judge(launch)
    near: tuple[Neighbour, ...] = ()
    if not verdict.legal and not launch.faults:
        near = nearest_legal(launch.proposal, Framework.MEGATRON, version=launch.version, count=neighbours)
    layers = verdict.layers_per_stage
    return {
        "legal": verdict.legal,
        "accepted": verdict.accepted,
        "violations": [
            {
                "rule": violation.rule,
                "message": violation.message,
                "values": dict(violation.values),
                "found": str(violation.found),
            }
            for violation in verdict.violations
        ],
        "layers_per_stage": None if layers is None else [list(chunks) for chunks in layers],
        "grid": _grid(launch.proposal),
        "nearest": [_neighbour(neighbour) for neighbour in near],
    }


def _grid(proposal: Proposal) -> dict[str, Any]:
    grid = {name: getattr(proposal, name) for name in _GRID}
    shards = proposal.tp * proposal.pp * proposal.cp * proposal.gtp
    return {**grid, "world": proposal.world, "dp": proposal.world // shards if shards > 0 else 0}


def _neighbour(neighbour: Neighbour) -> dict[str, Any]:
    return {
        "changes": str(neighbour),
        **_grid(neighbour.proposal),
        "layers_per_stage": [list(chunks) for chunks in neighbour.layers_per_stage],
    }

"""The placement that a user gives an estimate: in words, or as a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from costmodels.layout import Layout
from costmodels.placement import Placement, identity
from hardware.errors import InputError
from hardware.text_file import read_json_file
from planner.placement import placement_of
from planner.plan_report import RankPlace
from planner.request import PlanRequest

BEST: Final = "best"
IN_ORDER: Final = "in-order"
MOST_BYTES: Final = 64 * 2**20
_ALLOWED: Final = f"{BEST}, {IN_ORDER}, or a file with a list 'placement' of rank, host and gpu, such as a report"


def given_placement(words: str, request: PlanRequest, layout: Layout) -> Placement | None:
    """Read where the ranks of a layout run.

    Parameters
    ----------
    words : str
        ``best``, ``in-order``, or the path of a JSON file: a report, or an object with a list ``placement``.
    request : PlanRequest
        Its cluster names the hosts node0, node1, ...
    layout : Layout
        On one island.

    Returns
    -------
    Placement or None
        None: the planner is to choose.

    Raises
    ------
    InputError
        The words are not known, the file cannot be read, or the placement is none that the launcher can start.
    """
    if words == BEST:
        return None
    island = layout.stages[0].island
    if any(stage.island != island for stage in layout.stages):
        raise InputError(f"--placement {words} of a layout over several islands", allowed=BEST)
    if words == IN_ORDER:
        return identity(layout.gpus, request.cluster.islands[island].node.gpus)
    path = Path(words)
    data = read_json_file(path, allowed=_ALLOWED, most_bytes=MOST_BYTES)
    places = tuple(_place(entry, words) for entry in _listed(data, words))
    return placement_of(places, request.cluster, layout, words, request.launcher)


def _listed(data: Mapping[str, object], where: str) -> list[Any]:
    layouts = data.get("layouts")
    first = layouts[0] if isinstance(layouts, list) and layouts else data.get("layout", data)
    found = first.get("placement") if isinstance(first, Mapping) else None
    if not isinstance(found, list) or not found:
        raise InputError("no placement", allowed=_ALLOWED, where=where)
    return found


def _place(entry: object, where: str) -> RankPlace:
    if isinstance(entry, Mapping):
        rank, host, gpu = (entry.get(name) for name in ("rank", "host", "gpu"))
        if type(rank) is int and isinstance(host, str) and type(gpu) is int:
            return RankPlace(rank=rank, host=host, gpu=gpu)
    raise InputError("an entry of the placement is not understood", allowed="objects of rank, host, gpu", where=where)

"""GPUs of a launch that does not state them: as many as it starts on, near those of the machine that it is carried to.

A torchtitan file with ``data_parallel_shard_degree = -1``, a script whose variables a scheduler sets, DeepSpeed without
a hostfile: replicas are what is left of the GPUs, so that the launch fits many sizes, though not every one.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hardware.errors import InputError
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import cluster_of, is_preset_alone, read_launch, states_world
from planner.layouts.grids import divisors
from planner.question import LaunchQuestion
from planner.rules.proposal import Proposal

MOST_TRIED: Final = 64
_BLOCKS: Final = (1, 3, 5, 7)
"""GPUs are powers of two of these where a launch does not tell its degrees."""
_MOST_DOUBLED: Final = 13


def launch_on_its_gpus(question: LaunchQuestion) -> tuple[JudgedLaunch, str]:
    """Read a launch on the GPUs that it states, or on as many as it starts on.

    Parameters
    ----------
    question : LaunchQuestion
        Its ``cluster`` is the machine that the launch is carried to: the nearest size up to its own is taken, or else
        the nearest above.

    Returns
    -------
    tuple
        The launch as it was judged there, and what was assumed in words; empty where the launch or the user says.

    Raises
    ------
    InputError
        The launch cannot be read; or no size is known and none is near that it starts on.
    """
    if states_world(question) or not question.cluster or is_preset_alone(question.cluster):
        return read_launch(question), ""
    gpus = cluster_of(question.cluster, 0).gpus
    first: JudgedLaunch | None = None
    refused: InputError | None = None
    try:
        first = read_launch(replace(question, world=gpus))
    except InputError as error:
        refused = error
    if first is not None and first.layout is not None:
        return first, _assumed(gpus, gpus)
    for world in _sizes(gpus, first.proposal if first is not None else None):
        found = _legal(question, world)
        if found is not None:
            return found, _assumed(world, gpus)
    if first is not None:
        return first, ""
    raise refused or InputError("the launch does not say how many GPUs it has", allowed="--world-size N")


def _legal(question: LaunchQuestion, world: int) -> JudgedLaunch | None:
    """The launch on so many GPUs, where it starts on them."""
    try:
        judged = read_launch(replace(question, world=world))
    except InputError:
        return None
    return judged if judged.layout is not None else None


def _assumed(world: int, gpus: int) -> str:
    near = "those of the machine" if world == gpus else f"the nearest to {gpus:,} on which it starts"
    return f"The launch does not say how many GPUs it has: {world:,} are assumed, {near}; --world-size N says it."


def _sizes(gpus: int, proposal: Proposal | None) -> Iterator[int]:
    """Sizes to try, the nearest first, those above the machine's last."""
    if proposal is None:
        found = {block << doubled for block in _BLOCKS for doubled in range(_MOST_DOUBLED)}
    else:
        block = max(1, proposal.tp) * max(1, proposal.cp) * max(1, proposal.pp) * max(1, proposal.gtp)
        replicas = {*divisors(proposal.global_batch // max(1, proposal.micro_batch)), gpus // block, 1}
        found = {block * count for count in replicas if count}
    yield from sorted(found - {gpus}, key=lambda world: (world > gpus, abs(world - gpus)))[:MOST_TRIED]

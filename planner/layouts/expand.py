"""From grids to priced candidates: recompute choices, virtual stages, even splits, memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.layer_costs import PartCosts
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from costmodels.part_ops import EMBEDDING, HEAD, MTP
from costmodels.pipeline.schedules import PipelineSpec, Schedule, runs
from costmodels.positions import Contents, kind_prefix, part_counts
from costmodels.table import Bools, Floats, Ints
from costmodels.workload.model import LayerKind, ModelSpec, StateSpace
from hardware.errors import InputError
from planner.layouts.grids import Grids
from planner.layouts.splits import balanced_positions, between_lone_ends, even_positions, leading_positions
from planner.request import Framework, PlanRequest

MAX_VPP: Final = 24
WITHOUT_VIRTUAL_STAGES: Final = (Framework.DEEPSPEED, Framework.GALVATRON)
WITHOUT_FREE_SPLITS: Final = (Framework.DEEPSPEED,)
WITH_ONE_RECOMPUTE: Final = (Framework.DEEPSPEED, Framework.TORCHTITAN)  # the same for every layer
MEGATRON_CORE: Final = (Framework.MEGATRON, Framework.BRIDGE, Framework.NEMO)
FEW_A_PLACE: Final = 2  # layers a position up to which its ends are left alone
FEW_CHUNKS: Final = 4  # virtual degrees tried even where they do not divide


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Candidates that share a pipeline shape. ``rows`` index the expanded table, shape (R,)."""

    spec: PipelineSpec
    rows: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Expanded:
    """Grids under chosen recompute options, one row each.

    ``grid`` is the row of the grids that a row came from; ``full`` the row that recomputes the same grid in full, or
    -1.
    """

    grids: Grids
    grid: Ints
    full: Ints


def expand(grids: Grids, options: tuple[Recompute, ...], wanted: Bools, *, mixes: bool = True) -> Expanded:
    """Put every grid under the recompute options wanted for it.

    Parameters
    ----------
    grids : Grids
        S grids.
    options : tuple of Recompute
        O options.
    wanted : ndarray of bool
        Shape (S, O).
    mixes : bool
        Whether some layers may recompute in full and others not.

    Returns
    -------
    Expanded
        Rows by grid, then by option. Where no recompute is wanted, full recompute is there too: for the first layers.
    """
    mixes = mixes and FULL_RECOMPUTE in options
    if mixes and NO_RECOMPUTE in options:
        wanted = wanted.copy()
        wanted[:, options.index(FULL_RECOMPUTE)] |= wanted[:, options.index(NO_RECOMPUTE)]
    grid, option = np.nonzero(wanted)
    table = replace(grids.table.take(grid), recompute=option, recomputes=options)
    full = np.full(len(grid), -1, dtype=np.int64)
    if mixes:
        number = options.index(FULL_RECOMPUTE)
        row_of = np.full(len(grids), -1, dtype=np.int64)
        row_of[grid[option == number]] = np.flatnonzero(option == number)
        full = row_of[grid]
    expanded = Grids(table=table, num_microbatches=grids.num_microbatches[grid], gpus=grids.gpus[grid])
    return Expanded(grids=expanded, grid=grid, full=full)


def virtual_degrees(layers: int, pp: int, num_microbatches: int, pinned: int | None, ends: int = 2) -> tuple[int, ...]:
    """Virtual chunks per stage worth trying: 1, all that split the layers evenly, and a few that do not.

    Interleaving needs ``num_microbatches`` to be a multiple of ``pp`` in every framework's default form. ``ends`` is
    how many ends of the model may be alone on a position.
    """
    if pinned is not None:
        fits = pinned == 1 or (pp > 1 and num_microbatches % pp == 0 and pinned * pp <= layers + ends)
        return (pinned,) if fits else ()
    if pp == 1 or num_microbatches % pp:
        return (1,)
    most = min(MAX_VPP, (layers + ends) // pp)
    even = [v for v in range(2, most + 1) if any((layers + more) % (pp * v) == 0 for more in (0, 1, 2))]
    few = list(range(2, min(FEW_CHUNKS, layers // pp) + 1))
    return (1, *sorted({*even, *few}))


def splits_freely(request: PlanRequest) -> bool:
    """Whether the framework takes any number of layers on any stage; NeMo 2 has equal stages of hybrid models."""
    if request.framework is Framework.NEMO and _is_hybrid(request):
        return False
    return request.framework not in WITHOUT_FREE_SPLITS


def pinned_virtual(request: PlanRequest) -> int | None:
    """Virtual chunks that a request leaves no choice about: pinned, as its schedule has, or 1 where there are none.

    Raises
    ------
    InputError
        More are pinned where there are none.
    """
    if request.schedule is not None and request.schedule.fixed_vpp is not None:
        return request.schedule.fixed_vpp
    pinned = request.fixed_degree("vpp")
    layers = _layers_of_one_chunk(request)
    if not layers and request.framework not in WITHOUT_VIRTUAL_STAGES:
        return pinned
    if pinned not in (None, 1):
        raise InputError(f"--fix vpp={pinned}: {request.framework} has no virtual stages{layers}", allowed="vpp=1")
    return 1


def _layers_of_one_chunk(request: PlanRequest) -> str:
    """Words for layers that a framework on Megatron-core builds without chunks; empty where it has chunks.

    The rules are ``megatron-unlike-virtual`` and ``recipes-hybrid-virtual``.
    """
    if request.framework in MEGATRON_CORE and request.model.unlike_layers:
        return " of layers of unlike sizes"
    hybrid = request.framework in (Framework.BRIDGE, Framework.NEMO) and _is_hybrid(request)
    return " of hybrid models" if hybrid else ""


def _is_hybrid(request: PlanRequest) -> bool:
    """Whether layers of the model have Mamba-2 mixers."""
    return any(isinstance(kind, LayerKind) and isinstance(kind.mixer, StateSpace) for kind in request.model.kinds())


def lone_ends(request: PlanRequest) -> int:
    """How many ends of the model may be alone on a pipeline position."""
    return 2 if request.framework in MEGATRON_CORE else 0


def pipeline_groups(
    grids: Grids, layers: int, pinned_vpp: int | None, ends: int = 2, schedule: Schedule | None = None
) -> Iterator[Group]:
    """Split rows into groups of one pipeline shape, each with every virtual degree; the order is fixed.

    ``ends`` is how many ends of the model may be alone on a position; ``schedule`` as of a request.
    """
    shapes = np.stack([grids.table.pp, grids.num_microbatches], axis=1)
    distinct, inverse = np.unique(shapes, axis=0, return_inverse=True)
    for number, (pp, m) in enumerate(distinct.tolist()):
        rows = np.flatnonzero(inverse == number)
        if schedule is not None and schedule.is_v:  # a layer on every position
            degrees: tuple[int, ...] = (2,) if 1 < pp <= layers // 2 else ()
        else:
            whole = pp if schedule is Schedule.LOOPED_BFS else m  # which takes any number of micro-batches
            degrees = virtual_degrees(layers, pp, whole, pinned_vpp, ends)
        for vpp in degrees:
            used = schedule or (Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B)
            if runs(used, pp, vpp, m):
                yield Group(spec=PipelineSpec(schedule=used, pp=pp, vpp=vpp, num_microbatches=m), rows=rows)


def even_contents(request: PlanRequest, group: Group, islands: tuple[int, ...]) -> Contents:
    """Contents of a group whose layers are split evenly as the framework does it, one strategy each."""
    model, places = request.model, group.spec.pp * group.spec.vpp
    split = even_positions if splits_freely(request) else leading_positions
    counts = part_counts(model, split(model.layers, places))
    shape = (len(group.rows), counts.shape[0], 1, counts.shape[1])
    return Contents(
        spec=group.spec,
        rows=group.rows[:, None],
        counts=np.broadcast_to(counts[None, :, None, :], shape),
        islands=islands,
    )


def lone_contents(request: PlanRequest, group: Group, islands: tuple[int, ...]) -> Contents | None:
    """Contents of a group with both ends of the model alone on their positions: its pipeline fills and drains sooner.

    None where ends may not be alone, where an even split leaves them alone too, and where positions have many layers.
    """
    model, pp, places = request.model, group.spec.pp, group.spec.pp * group.spec.vpp
    few = 2 < places <= model.layers + 2 <= FEW_A_PLACE * places + 2
    if group.spec.vpp == 1 or request.schedule or not lone_ends(request) or not few:
        return None
    split = between_lone_ends(model.layers, pp, places)
    if (split == even_positions(model.layers, places)).all():
        return None
    counts = part_counts(model, split)
    shape = (len(group.rows), counts.shape[0], 1, counts.shape[1])
    return Contents(
        spec=group.spec,
        rows=group.rows[:, None],
        counts=np.broadcast_to(counts[None, :, None, :], shape),
        islands=islands,
    )


def balanced_contents(model: ModelSpec, group: Group, costs: PartCosts, islands: tuple[int, ...]) -> Contents | None:
    """Contents of a group whose positions take about the same time, each row by its own times.

    None where an even split is as good: equal layers that divide evenly, or fewer layers than positions.
    """
    places = group.spec.pp * group.spec.vpp
    if places > model.layers or places == 1 or (len(model.runs) == 1 and model.layers % places == 0):
        return None
    part_s = (costs.forward_s + costs.backward_s).sum(axis=0)[:, group.rows]
    index = {kind: row for row, kind in enumerate(model.kinds())}
    layer_s = part_s[[index[kind] for kind in model.layer_kinds()]].T
    ends = {name: part_s[row] for row, name in enumerate(costs.names)}
    nothing = np.zeros(len(group.rows))
    last_s = ends.get(HEAD, nothing) + model.mtp_layers * ends.get(MTP, nothing)
    layers = balanced_positions(layer_s, ends.get(EMBEDDING, nothing), last_s, places)
    counts = part_counts(model, layers)[:, :, None, :]
    return Contents(spec=group.spec, rows=group.rows[:, None], counts=counts, islands=islands)


def prefix_contents(model: ModelSpec, contents: Contents, other_rows: Ints, first: Ints) -> Contents:
    """Contents in which the first layers of every position use another strategy.

    Parameters
    ----------
    model : ModelSpec
        Says of which kind each layer is, in order.
    contents : Contents
        One strategy per layout (J = 1).
    other_rows : ndarray of int
        Row of the other strategy, shape (R,).
    first : ndarray of int
        Layers of every position that use it, shape (R,); a position with fewer layers uses it for all.

    Returns
    -------
    Contents
        J = 2: the given strategy, the other one. The embedding goes with the first layer, the head with the last, as in
        :func:`costmodels.positions.contents_of`.
    """
    upto = kind_prefix(model)
    kinds = upto.shape[1]
    whole = contents.counts[:, :, 0, :]
    layers = whole[..., :kinds]
    held = layers.sum(axis=-1).astype(np.int64)
    start = np.cumsum(held, axis=-1) - held
    moved = upto[start + np.minimum(first[:, None], held)] - upto[start]
    counts: Floats = np.zeros((*whole.shape[:2], 2, whole.shape[2]))
    counts[:, :, 0, :] = whole
    counts[:, :, 0, :kinds] -= moved
    counts[:, :, 1, :kinds] = moved
    some, every = moved.sum(axis=-1) > 0.0, moved.sum(axis=-1) >= layers.sum(axis=-1)
    ends_too = some & np.where(np.arange(whole.shape[1]) == 0, True, every)
    counts[:, :, 1, kinds:] = np.where(ends_too[..., None], whole[..., kinds:], 0.0)
    counts[:, :, 0, kinds:] -= counts[:, :, 1, kinds:]
    return Contents(
        spec=contents.spec,
        rows=np.stack([contents.rows[:, 0], other_rows], axis=1),
        counts=counts,
        islands=contents.islands,
    )

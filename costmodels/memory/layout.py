"""Memory of one layout in full: uneven layers, virtual chunks, a strategy for every layer."""

from dataclasses import dataclass

import numpy as np

from costmodels.job import TrainingJob
from costmodels.layout import Layout, Stage, Strategy
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.grid import ModelMemory, Pick, model_memory
from costmodels.memory.held import held_bytes
from costmodels.memory.stage import StageSums, components, moments, usable_memory, verdicts
from costmodels.pipeline.schedules import PipelineSpec, positions
from costmodels.results import MemoryUse, Moment, Verdict
from costmodels.table import Floats, Ints, table_of
from costmodels.workload.model import ModelSpec
from hardware.cluster import Accelerator

_ENDS = 3
_EMBEDDING, _HEAD, _MTP = -3, -2, -1  # parts behind the kinds of layers


def stage_memory(
    layout: Layout,
    model: ModelSpec,
    job: TrainingJob,
    accelerator: Accelerator,
    constants: MemoryConstants | None = None,
) -> tuple[MemoryUse, ...]:
    """Memory of the heaviest rank of every stage of a layout.

    Parameters
    ----------
    layout : Layout
        Stages, micro-batches, schedule; its layers must be those of the model.
    model : ModelSpec
        The model.
    job : TrainingJob
        Sequence length, precision, software.
    accelerator : Accelerator
        The device.
    constants : MemoryConstants, optional
        Default: :func:`costmodels.memory.constants.default_memory`.

    Returns
    -------
    tuple of MemoryUse
        In stage order. Components: ``weights``, ``gradients``, ``optimizer``; ``activations`` of the micro-batches in
        flight; ``working`` and ``gathered``, or ``logits``, whichever is larger; ``buffers``, ``communicators``,
        ``context``, ``reserve``.

    Raises
    ------
    InputError
        The schedule cannot run with the layout's sizes.
    """
    constants = constants or default_memory()
    places = _places(layout, model)
    rows = len(places.strategies)
    table = table_of(list(places.strategies), pp=[layout.pp] * rows, micro_batch=[layout.micro_batch] * rows)
    sums = _sums(layout, job, places, model_memory(model, job, table, constants))
    usable = usable_memory(accelerator)
    named = components(sums, usable, constants)
    verdict, moment = verdicts(named, usable, constants), moments(named, job, usable)
    return tuple(
        MemoryUse(
            stage=stage,
            components=tuple((name, float(size[stage])) for name, size in named.items()),
            usable_bytes=usable,
            verdict=Verdict(verdict[stage]),
            moment=Moment(moment[stage]) if verdict[stage] == Verdict.OOM else Moment.NONE,
            host_bytes=float(sums.host[stage]),
        )
        for stage in range(layout.pp)
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Places:
    """Which parts of the model lie where.

    ``counts`` has shape (pp, vpp, parts, strategies); the parts are the kinds of layers, then embedding, head and
    multi-token-prediction layer. ``tables`` are further copies of the embedding table, shape (pp, strategies).
    """

    strategies: tuple[Strategy, ...]
    counts: Ints
    tables: Ints


def _places(layout: Layout, model: ModelSpec) -> _Places:
    kinds = {kind: index for index, kind in enumerate(model.kinds())}
    strategies = tuple(dict.fromkeys(run.strategy for stage in layout.stages for run in stage.strategies))
    rows = {strategy: index for index, strategy in enumerate(strategies)}
    counts = np.zeros((layout.pp, layout.vpp, len(kinds) + _ENDS, len(strategies)), dtype=np.int64)
    where = positions(layout.schedule, layout.pp, layout.vpp)
    slots = sorted(np.ndindex(layout.pp, layout.vpp), key=lambda slot: int(where[slot]))
    remaining = model.layer_kinds()
    per_slot = {(s, c): _chunk(stage, c) for s, stage in enumerate(layout.stages) for c in range(layout.vpp)}
    for slot in slots:
        for strategy in per_slot[slot]:
            counts[*slot, kinds[next(remaining)], rows[strategy]] += 1
    first, last = slots[0], slots[-1]
    ends = [per_slot[slot] or [layout.stages[slot[0]].strategies[-1].strategy] for slot in (first, last)]
    head = rows[ends[1][-1]]
    counts[*first, _EMBEDDING, rows[ends[0][0]]] = 1
    counts[*last, _HEAD, head] = 1
    counts[*last, _MTP, head] = model.mtp_layers
    tables = np.zeros((layout.pp, len(strategies)), dtype=np.int64)
    if first[0] != last[0] and (model.tied_embeddings or model.mtp_layers):
        tables[last[0], head] = 1
    return _Places(strategies=strategies, counts=counts, tables=tables)


def _chunk(stage: Stage, chunk: int) -> list[Strategy]:
    """Strategies of the layers of one chunk."""
    every = [run.strategy for run in stage.strategies for _ in range(run.count)]
    start = sum(stage.layers_per_chunk[:chunk])
    return every[start : start + stage.layers_per_chunk[chunk]]


def _sums(layout: Layout, job: TrainingJob, places: _Places, memory: ModelMemory) -> StageSums:
    """Add up the parts of every stage; every array has shape (pp,)."""
    counts = places.counts.astype(np.float64)
    on_stage = counts.sum(axis=1)
    with_tables = on_stage.copy()
    with_tables[:, _EMBEDDING] += places.tables
    parts = (*memory.layers, memory.embedding, memory.head, memory.mtp)

    def added(pick: Pick) -> Floats:
        sizes: Floats = np.einsum("sku,ku->s", with_tables, np.array([pick(part) for part in parts]))
        return sizes

    def widest(pick: Pick, some: slice | list[int]) -> Floats:
        sizes = np.array([pick(part) for part in parts])[some]
        peak: Floats = np.where(on_stage[:, some] > 0, sizes, 0.0).max(axis=(1, 2), initial=0.0)
        return peak

    kept = np.array([part.kept for part in parts])
    blocks = [*range(len(memory.layers)), _MTP]
    offloaded = _offloaded_share(job, on_stage[:, : len(memory.layers)])
    counts[:, :, : len(memory.layers)] *= 1.0 - offloaded[:, None, None, None]
    chunk_kept = np.asarray(np.einsum("scku,ku->sc", counts, kept), dtype=np.float64)
    spec = PipelineSpec(
        schedule=layout.schedule, pp=layout.pp, num_microbatches=layout.num_microbatches, vpp=layout.vpp
    )
    buffer = np.where(offloaded > 0, widest(lambda part: part.kept, blocks), 0.0)
    first_row = np.array([places.strategies.index(stage.strategies[0].strategy) for stage in layout.stages])
    return StageSums(
        weights=added(lambda part: part.weights),
        gradients=added(lambda part: part.gradients),
        optimizer=added(lambda part: part.optimizer),
        host=added(lambda part: part.host),
        activations=held_bytes(spec, chunk_kept),
        one_microbatch=chunk_kept[:, 0],
        working=widest(lambda part: part.working, blocks) + buffer,
        gathered=widest(lambda part: part.gathered, blocks),
        loss=widest(lambda part: part.working + part.gathered, [_HEAD]),
        embedding_gradient=widest(lambda part: part.working, [_EMBEDDING]),
        received=memory.received[first_row],
        groups=memory.groups[first_row],
    )


def _offloaded_share(job: TrainingJob, layers: Floats) -> Floats:
    """Share of each stage's layers whose kept activations wait in host memory, shape (pp,)."""
    total = layers.sum(axis=(1, 2))
    share: Floats = np.minimum(job.software.activation_offload_layers, total) / np.maximum(total, 1.0)
    return share

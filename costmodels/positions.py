"""Which parts of the model lie on which pipeline position, as counts.

A *position* is one virtual chunk of one stage, numbered along the model. The parts are those of
:func:`costmodels.layer_costs.part_names`: kinds of layers, then embedding, head and multi-token-prediction layer.
"""

from dataclasses import dataclass, replace

import numpy as np

from costmodels.layout import Layout, Stage, Strategy
from costmodels.pipeline.schedules import PipelineSpec, positions
from costmodels.table import Floats, Ints, StrategyTable, table_of
from costmodels.workload.model import ModelSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """What every position of R layouts with one pipeline shape holds.

    Attributes
    ----------
    spec : PipelineSpec
        Schedule, stages, chunks, micro-batches: common to all R layouts.
    rows : ndarray of int
        Rows of the strategy table that the layers of a layout use, shape (R, J).
    counts : ndarray
        Number of each part on each position under each of the J strategies, shape (R, P, J, K).
    islands : tuple of int
        Island of every stage.
    extra_in_flight : int
        Micro-batches that every stage holds beyond what the schedule says.
    optimizer_on_host : tuple of float
        Share of each stage's optimizer states that the host holds; empty: none.
    reshard_s : ndarray or None
        Seconds per micro-batch and direction in which activations move between unlike strategies, shape (R, P).
    alone : bool
        Whether to leave out what transfers of one phase cost each other on shared links.
    """

    spec: PipelineSpec
    rows: Ints
    counts: Floats
    islands: tuple[int, ...]
    extra_in_flight: int = 0
    optimizer_on_host: tuple[float, ...] = ()
    reshard_s: Floats | None = None
    alone: bool = False

    @property
    def distinct_counts(self) -> Floats:
        """``counts``, shape (1, P, J, K) where they repeat one layout's by broadcasting, else (R, P, J, K)."""
        return self.counts[:1] if self.counts.strides[0] == 0 else self.counts

    @property
    def by_island(self) -> tuple[tuple[int, slice | Ints], ...]:
        """Islands that hold stages, each with its stages as an index: a slice where they are all of them."""
        used = sorted(set(self.islands))
        if len(used) == 1:
            return ((used[0], slice(None)),)
        return tuple((island, np.flatnonzero(np.array(self.islands) == island)) for island in used)

    def take(self, rows: Ints) -> "Contents":
        """Some of the layouts."""
        repeats = self.counts.strides[0] == 0
        shape = (len(rows), *self.counts.shape[1:])
        return replace(
            self,
            rows=self.rows[rows],
            counts=np.broadcast_to(self.counts[:1], shape) if repeats else self.counts[rows],
            reshard_s=None if self.reshard_s is None else self.reshard_s[rows],
        )


def added_up(counts: Floats, sizes: Floats) -> Floats:
    """Sizes of parts, summed over what every chunk holds.

    Parameters
    ----------
    counts : ndarray
        Shape (R, stages, vpp, J, K), or (1, ...) where all layouts hold the same.
    sizes : ndarray
        N sizes of each part, shape (R, J, N, K).

    Returns
    -------
    ndarray
        Shape (N, R, stages, vpp).

    Notes
    -----
    A product for each layout is small enough that the linear algebra library starts no threads for it.
    """
    by_chunk = counts.reshape(len(counts), counts.shape[1] * counts.shape[2], -1)
    layouts, _, number, _ = sizes.shape
    found = sizes.swapaxes(1, 2).reshape(layouts, number, -1) @ by_chunk.swapaxes(1, 2)
    return np.asarray(found.reshape(layouts, number, *counts.shape[1:3]).swapaxes(0, 1))


def pipeline_spec(layout: Layout) -> PipelineSpec:
    """Schedule and sizes of a layout."""
    return PipelineSpec(
        schedule=layout.schedule,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=layout.num_microbatches,
        group_size=layout.microbatch_group,
    )


def kind_prefix(model: ModelSpec) -> Floats:
    """Layers of each kind among the first n layers, shape (layers + 1, kinds)."""
    kinds = {kind: index for index, kind in enumerate(model.kinds())}
    kind_of_layer = np.repeat([kinds[run.kind] for run in model.runs], [run.count for run in model.runs])
    before: Floats = np.zeros((1, len(kinds)))
    return np.concatenate([before, np.cumsum(np.eye(len(kinds))[kind_of_layer], axis=0)])


def layer_counts(model: ModelSpec, layers: Ints) -> Floats:
    """Layers of each kind on every position.

    Parameters
    ----------
    model : ModelSpec
        The model.
    layers : ndarray of int
        Layers per position in model order, shape (..., P).

    Returns
    -------
    ndarray
        Shape (..., P, kinds).
    """
    ends = np.cumsum(layers, axis=-1)
    prefix = kind_prefix(model)
    counts: Floats = prefix[ends] - prefix[ends - layers]
    return counts


def part_counts(model: ModelSpec, layers: Ints) -> Floats:
    """Every part on every position, shape (..., P, K): layers, the embedding first, head and MTP last."""
    kinds = layer_counts(model, layers)
    ends = (2 if model.hidden else 0) + (1 if model.mtp_layers else 0)
    counts = np.zeros((*kinds.shape[:-1], kinds.shape[-1] + ends))
    counts[..., : kinds.shape[-1]] = kinds
    if model.hidden:
        counts[..., 0, kinds.shape[-1]] = 1.0
        counts[..., -1, kinds.shape[-1] + 1] = 1.0
    if model.mtp_layers:
        counts[..., -1, -1] = model.mtp_layers
    return counts


def contents_of(layout: Layout, model: ModelSpec) -> tuple[Contents, StrategyTable]:
    """Contents of one explicit layout (R = 1) and the table of the strategies that it uses."""
    spec = pipeline_spec(layout)
    strategies = tuple(dict.fromkeys(run.strategy for stage in layout.stages for run in stage.strategies))
    samples = layout.micro_batch * layout.first.dp  # of one micro-batch over all replicas, whatever a layer's dp
    table = table_of(
        list(strategies),
        pp=[layout.pp] * len(strategies),
        micro_batch=[max(1, samples // strategy.dp) for strategy in strategies],
    )
    place = positions(layout.schedule, layout.pp, layout.vpp)
    slots = sorted(np.ndindex(layout.pp, layout.vpp), key=lambda slot: int(place[slot]))
    layers = np.array([layout.stages[stage].layers_per_chunk[chunk] for stage, chunk in slots])
    whole = part_counts(model, layers)
    if layout.vocabulary_spread and model.hidden:
        kinds = len(model.kinds())
        whole[..., kinds : kinds + 2] = 1.0 / len(slots)
    counts = np.zeros((1, len(slots), len(strategies), whole.shape[-1]))
    kind_index = {kind: index for index, kind in enumerate(model.kinds())}
    remaining = model.layer_kinds()
    for position, (stage, chunk) in enumerate(slots):
        used = _chunk_strategies(layout.stages[stage], chunk)
        for strategy in used:
            counts[0, position, strategies.index(strategy), kind_index[next(remaining)]] += 1.0
        beside = used or [layout.stages[stage].strategies[-1].strategy]
        end = beside[0] if position == 0 else beside[-1]  # embedding: first layer; head: last
        counts[0, position, strategies.index(end), len(kind_index) :] = whole[position, len(kind_index) :]
    contents = Contents(
        spec=spec,
        rows=np.arange(len(strategies))[None, :],
        counts=counts,
        islands=tuple(stage.island for stage in layout.stages),
        extra_in_flight=max(0, min(layout.extra_in_flight, layout.num_microbatches - layout.pp)),
        optimizer_on_host=layout.optimizer_on_host,
    )
    return contents, table


def strategy_changes(layout: Layout) -> Ints:
    """Changes of the layout of activations on every position, shape (P,): between its layers, and on entering it."""
    place = positions(layout.schedule, layout.pp, layout.vpp)
    slots = sorted(np.ndindex(layout.pp, layout.vpp), key=lambda slot: int(place[slot]))
    changes = np.zeros(len(slots), dtype=np.int64)
    before: Strategy | None = None
    for position, (stage, chunk) in enumerate(slots):
        for strategy in _chunk_strategies(layout.stages[stage], chunk):
            changes[position] += before is not None and not same_activations(before, strategy)
            before = strategy
    return changes


def same_activations(before: Strategy, after: Strategy) -> bool:
    """Whether two layers keep the tokens between them on the same ranks; ZeRO and recompute do not matter."""
    grids = [(s.tp, s.cp, s.dp, s.sequence_parallel) for s in (before, after)]
    return grids[0] == grids[1]


def _chunk_strategies(stage: Stage, chunk: int) -> list[Strategy]:
    """Strategies of the layers of one chunk in order."""
    every = [run.strategy for run in stage.strategies for _ in range(run.count)]
    start = sum(stage.layers_per_chunk[:chunk])
    return every[start : start + stage.layers_per_chunk[chunk]]

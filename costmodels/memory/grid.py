"""Stages of many layouts at once, each with one strategy for all of its layers: the form that a search filters with."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodels.job import TrainingJob
from costmodels.memory.activations import input_bytes
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.layer import LayerMemory, embedding_memory, head_memory, layer_memory, mtp_memory
from costmodels.memory.stage import StageSums
from costmodels.memory.tokens import token_shares
from costmodels.table import Floats, Ints, StrategyTable
from costmodels.workload.model import LayerKind, ModelSpec, OpaqueLayer

_RECEIVE_BUFFERS = 2.0  # one for an activation, one for a gradient

Pick = Callable[[LayerMemory], Floats]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelMemory:
    """Memory of every part of a model under S strategies; ``layers`` lies in the order of ``kinds``."""

    kinds: tuple[LayerKind | OpaqueLayer, ...]
    layers: tuple[LayerMemory, ...]
    embedding: LayerMemory
    head: LayerMemory
    mtp: LayerMemory
    received: Floats
    groups: Floats


def model_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> ModelMemory:
    """Memory of every kind of layer and of the ends of a model under every strategy.

    Parameters
    ----------
    model : ModelSpec
        The model.
    job : TrainingJob
        Sequence length, precision, software.
    table : StrategyTable
        Strategies, shape (S,).
    constants : MemoryConstants, optional
        Default: :func:`costmodels.memory.constants.default_memory`.

    Returns
    -------
    ModelMemory
        Arrays of shape (S,).
    """
    constants = constants or default_memory()
    kinds = model.kinds()
    hidden_input = input_bytes(model.hidden, job, token_shares(job, table))
    return ModelMemory(
        kinds=kinds,
        layers=tuple(layer_memory(kind, model, job, table, constants) for kind in kinds),
        embedding=embedding_memory(model, job, table, constants),
        head=head_memory(model, job, table, constants),
        mtp=mtp_memory(model, job, table, constants),
        received=np.where(table.pp > 1, _RECEIVE_BUFFERS * hidden_input, 0.0),
        groups=communicators(table),
    )


def communicators(table: StrategyTable) -> Floats:
    """Communicators of a rank that have more than one rank, shape (S,)."""
    experts = table.ep > 1
    degrees = (table.tp, table.cp, table.dp * table.cp, table.pp, table.ep, table.etp * experts, table.edp * experts)
    count: Floats = np.add.reduce([(degree > 1).astype(np.float64) for degree in degrees])
    return count


@dataclass(frozen=True, kw_only=True, eq=False)
class StageContents:
    """What every stage of every layout holds.

    Attributes
    ----------
    counts : ndarray of int
        Layers of each kind, shape (S, stages, kinds); stages beyond a layout's ``pp`` hold none.
    held : ndarray
        Micro-batches of the whole stage in flight at the peak, shape (S, stages)
        (:func:`costmodels.memory.held.held_microbatches`).
    pp : ndarray of int
        Pipeline degree, shape (S,).
    """

    counts: Ints
    held: Floats
    pp: Ints

    @property
    def first(self) -> Floats:
        """1.0 on the stage that holds the embedding, shape (S, stages)."""
        return np.broadcast_to(np.arange(self.held.shape[1]) == 0, self.held.shape).astype(np.float64)

    @property
    def last(self) -> Floats:
        """1.0 on the stage that holds the head, shape (S, stages)."""
        return np.asarray(np.arange(self.held.shape[1]) == self.pp[:, None] - 1, dtype=np.float64)


def grid_sums(model: ModelSpec, job: TrainingJob, memory: ModelMemory, contents: StageContents) -> StageSums:
    """Add up the parts of every stage of every layout.

    Parameters
    ----------
    model, job : ModelSpec, TrainingJob
        Ties of the embedding; offloading.
    memory : ModelMemory
        Parts under S strategies.
    contents : StageContents
        Layers and micro-batches in flight per stage.

    Returns
    -------
    StageSums
        Arrays of shape (S, stages).
    """
    counts, first, last = contents.counts, contents.first, contents.last
    copy = last * (1.0 - first) * (1.0 if model.tied_embeddings or model.mtp_layers else 0.0)
    mtp = last * model.mtp_layers
    total = counts.sum(axis=2)
    offloaded = np.minimum(job.software.activation_offload_layers, total) / np.maximum(total, 1)

    def column(pick: Pick, part: LayerMemory) -> Floats:
        return pick(part)[:, None]

    def layers(pick: Pick) -> Floats:
        return sum((column(pick, part) * counts[:, :, k] for k, part in enumerate(memory.layers)), 0.0 * first)

    def added(pick: Pick) -> Floats:
        ends = column(pick, memory.embedding) * (first + copy) + column(pick, memory.head) * last
        return layers(pick) + ends + column(pick, memory.mtp) * mtp

    def widest(pick: Pick) -> Floats:
        widths = 0.0 * first
        for k, part in enumerate(memory.layers):
            widths = np.maximum(widths, np.where(counts[:, :, k] > 0, column(pick, part), 0.0))
        return np.maximum(widths, column(pick, memory.mtp) * (mtp > 0))

    layers_kept = layers(_kept)
    ends_kept = column(_kept, memory.embedding) * first + column(_kept, memory.head) * last
    kept = layers_kept * (1.0 - offloaded) + ends_kept + column(_kept, memory.mtp) * mtp
    buffer = np.where(offloaded > 0, layers_kept / np.maximum(total, 1), 0.0)
    return StageSums(
        weights=added(lambda part: part.weights),
        gradients=added(lambda part: part.gradients),
        optimizer=added(lambda part: part.optimizer),
        host=added(lambda part: part.host),
        activations=kept * contents.held,
        one_microbatch=kept,
        working=widest(lambda part: part.working) + buffer,
        gathered=widest(lambda part: part.gathered),
        loss=(memory.head.working + memory.head.gathered)[:, None] * last,
        embedding_gradient=memory.embedding.working[:, None] * first,
        received=np.broadcast_to(memory.received[:, None], kept.shape),
        groups=np.broadcast_to(memory.groups[:, None], kept.shape),
    )


def _kept(part: LayerMemory) -> Floats:
    return part.kept

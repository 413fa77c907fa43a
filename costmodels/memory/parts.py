"""Memory of every part of a model: its kinds of layers, then embedding and head, then multi-token prediction."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.memory.activations import input_bytes
from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.layer import (
    LayerMemory,
    embedding_memory,
    head_memory,
    layer_memory,
    mtp_memory,
    table_memory,
)
from costmodels.memory.states import most_step_bytes
from costmodels.memory.tokens import token_shares
from costmodels.memory.tower import with_tower
from costmodels.table import Floats, StrategyTable
from costmodels.workload.model import ModelSpec

ADDED: Final = (
    "weights",
    "gradients",
    "optimizer",
    "host",
    "step",
    "copies",
    "passing",
    "unreduced",
    "fresh",
    "left_whole",
    "late",
)
"""Sizes of :class:`LayerMemory` that the parts of a stage add up."""
SIZES: Final = (*ADDED, "working", "gathered", "once", "away", "kept", "whole")
"""All of its sizes, in the order of :attr:`ModelMemory.sizes`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelMemory:
    """Memory of K parts of a model under S strategies.

    Attributes
    ----------
    parts : tuple of LayerMemory
        Kinds of layers in order of first use, then embedding and head (when the model has a width), then one
        multi-token-prediction layer (when it has any): the order of :class:`costmodels.positions.Contents`.
    kinds : int
        How many of the parts are kinds of layers.
    token_table : LayerMemory
        A further copy of the token table, for a head or a multi-token-prediction layer on another stage.
    boundary : ndarray
        One micro-batch between two stages [B], shape (S,); 0 with one stage.
    buckets : ndarray
        Resident buckets of the sharded optimizer's exchanges [B], shape (S,); 0 without ZeRO.
    reduces : ndarray
        1.0 where gradients are reduced over ranks, else 0.0, shape (S,).
    groups : ndarray
        Communicators of a rank that have more than one rank, shape (S,).
    step_most : ndarray
        What the optimizer's step alone holds at most [B], shape (S,).
    layers_ahead : float
        Layers that the host queues before the device runs them.
    """

    parts: tuple[LayerMemory, ...]
    kinds: int
    token_table: LayerMemory
    boundary: Floats
    buckets: Floats
    reduces: Floats
    groups: Floats
    step_most: Floats
    layers_ahead: float

    @cached_property
    def sizes(self) -> Floats:
        """:data:`SIZES` of every part under every strategy [B], shape (S, len(SIZES), K)."""
        return np.stack([np.stack([getattr(part, name) for part in self.parts], axis=-1) for name in SIZES], axis=1)

    @property
    def embedding(self) -> int | None:
        """Row of the embedding, or None."""
        return self.kinds if len(self.parts) > self.kinds else None

    @property
    def head(self) -> int | None:
        """Row of the head, or None."""
        return self.kinds + 1 if len(self.parts) > self.kinds else None

    @property
    def blocks(self) -> list[int]:
        """Rows of the kinds of layers and of the multi-token-prediction layer."""
        return [row for row in range(len(self.parts)) if row not in (self.embedding, self.head)]


def model_memory(
    model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants | None = None
) -> ModelMemory:
    """Memory of every part of a model under every strategy.

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
        Parts with arrays of shape (S,).
    """
    constants = constants or default_memory()
    kinds = model.kinds()
    parts = [layer_memory(kind, model, job, table, constants) for kind in kinds]
    if model.hidden:
        parts.append(with_tower(embedding_memory(model, job, table, constants), model, job, table, constants))
        parts.append(head_memory(model, job, table, constants))
    if model.mtp_layers:
        parts.append(mtp_memory(model, job, table, constants))
    hidden_input = input_bytes(model.residual, job, token_shares(job, table))
    return ModelMemory(
        parts=tuple(parts),
        kinds=len(kinds),
        token_table=table_memory(model, job, table, constants),
        boundary=np.where(table.pp > 1, hidden_input, 0.0),
        buckets=np.where(table.zero >= 1, job.software.bucket_bytes, 0.0),
        reduces=(table.dp * table.cp > 1).astype(np.float64),
        groups=communicators(table),
        step_most=most_step_bytes(job, table),
        layers_ahead=constants.layers_ahead,
    )


def communicators(table: StrategyTable) -> Floats:
    """Communicators of a rank that have more than one rank, shape (S,)."""
    experts = table.ep > 1
    degrees = (table.tp, table.cp, table.dp * table.cp, table.pp, table.ep, table.etp * experts, table.edp * experts)
    count: Floats = np.add.reduce([(degree > 1).astype(np.float64) for degree in degrees])
    return count

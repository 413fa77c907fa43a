"""Memory of a vision tower on the ranks that hold the token embedding."""

from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.memory.constants import MemoryConstants
from costmodels.memory.layer import LayerMemory, layer_memory, ops_memory
from costmodels.table import Floats, StrategyTable
from costmodels.tower import TowerPart, tower_parts
from costmodels.workload.model import ModelSpec

_STATES: Final = ("weights", "gradients", "optimizer", "host", "copies", "step", "unreduced", "fresh", "left_whole")


def with_tower(
    embedding: LayerMemory, model: ModelSpec, job: TrainingJob, table: StrategyTable, constants: MemoryConstants
) -> LayerMemory:
    """Add what a model's tower holds to the memory of its token embedding.

    Parameters
    ----------
    embedding : LayerMemory
        Of the embedding alone.
    model : ModelSpec
        The model; without a tower, or without images in the job, the embedding is returned as it is.
    job : TrainingJob
        Its images, precision and software.
    table : StrategyTable
        Strategies of the language model, shape (S,).
    constants : MemoryConstants
        Constants.

    Returns
    -------
    LayerMemory
        States of all parts; activations, kept by every micro-batch in flight, of parts that a backward pass runs
        through. When the activations of the language model are gone, the tower's backward pass, or the forward pass of
        one that is frozen, needs its own beside what comes and goes in it: as far as that exceeds the table's gradient,
        it counts as ``passing``.
    """
    parts = tower_parts(model, job, table)
    if not parts or model.tower is None:
        return embedding
    held = [(part, _memory(part, model.tower.trunk, constants)) for part in parts]

    def added(name: str) -> Floats:
        return np.asarray(sum((part.count * getattr(memory, name) for part, memory in held), getattr(embedding, name)))

    nothing = np.zeros(len(table), dtype=np.float64)
    kept = sum((part.count * part.runs * part.backward * memory.kept for part, memory in held), nothing)
    most = np.stack([part.runs * (memory.working + memory.gathered) for part, memory in held]).max(axis=0)
    passing = added("passing") + np.maximum(0.0, kept + most - embedding.working)
    states = {name: added(name) for name in _STATES}
    return replace(embedding, **states, kept=embedding.kept + kept, passing=passing)


def _memory(part: TowerPart, trunk: ModelSpec, constants: MemoryConstants) -> LayerMemory:
    if part.kind is None:
        return ops_memory(part.ops, trunk, part.job, part.table, constants)
    return layer_memory(part.kind, trunk, part.job, part.table, constants)

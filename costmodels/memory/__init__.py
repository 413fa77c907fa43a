"""What one rank of every pipeline stage holds, by component, and whether it fits."""

from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.grid import ModelMemory, StageContents, grid_sums, model_memory
from costmodels.memory.held import held_bytes, held_microbatches
from costmodels.memory.layer import LayerMemory, embedding_memory, head_memory, layer_memory, mtp_memory
from costmodels.memory.layout import stage_memory
from costmodels.memory.stage import (
    StageSums,
    allocated_bytes,
    components,
    moments,
    reserved_bytes,
    total_bytes,
    usable_memory,
    verdicts,
)

__all__ = [
    "LayerMemory",
    "MemoryConstants",
    "ModelMemory",
    "StageContents",
    "StageSums",
    "allocated_bytes",
    "components",
    "default_memory",
    "embedding_memory",
    "grid_sums",
    "head_memory",
    "held_bytes",
    "held_microbatches",
    "layer_memory",
    "model_memory",
    "moments",
    "mtp_memory",
    "reserved_bytes",
    "stage_memory",
    "total_bytes",
    "usable_memory",
    "verdicts",
]

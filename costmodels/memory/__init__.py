"""What one rank of every pipeline stage holds, by component, and whether it fits."""

from costmodels.memory.constants import MemoryConstants, default_memory
from costmodels.memory.layer import LayerMemory, embedding_memory, head_memory, layer_memory, logits_bytes, mtp_memory
from costmodels.memory.layout import stage_memory
from costmodels.memory.parts import ModelMemory, model_memory
from costmodels.memory.peak import (
    StageSums,
    allocated_bytes,
    components,
    moments,
    reserved_bytes,
    total_bytes,
    usable_memory,
    verdicts,
)
from costmodels.memory.stages import stage_sums

__all__ = [
    "LayerMemory",
    "MemoryConstants",
    "ModelMemory",
    "StageSums",
    "allocated_bytes",
    "components",
    "default_memory",
    "embedding_memory",
    "head_memory",
    "layer_memory",
    "logits_bytes",
    "model_memory",
    "moments",
    "mtp_memory",
    "reserved_bytes",
    "stage_memory",
    "stage_sums",
    "total_bytes",
    "usable_memory",
    "verdicts",
]

"""A vision tower under a job: its parts with the table of strategies and the job that each is priced under.

The tower runs before the language model's first layer, on the ranks that hold the token embedding: in pipelines the
first stage. Frameworks build it there whole (Megatron-Bridge, ms-swift), and ZeRO-3 shards it with the rest. Every rank
of a context-parallel group runs all images of its sequences, and no rank shares its products with others unless
:attr:`costmodels.job.Images.divided`.

References
----------
Megatron-Bridge 0.6, ``models/qwen_vl/modelling_qwen3_vl`` (Megatron-core's modules, divided over tp, without sequence
parallelism) and ``models/*/modeling_*.py`` of the others (Hugging Face's modules, gradients averaged over tp).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from costmodels.job import Images, Software, TrainingJob
from costmodels.layout import NO_RECOMPUTE, Granularity
from costmodels.table import Floats, StrategyTable
from costmodels.workload.counts import forward_flops
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import LayerKind, ModelSpec, OpaqueLayer, Tower
from costmodels.workload.op import Op
from costmodels.workload.tower import patch_ops, projector_ops

PROJECTOR: Final = "projector"
PATCHES: Final = "patches"


@dataclass(frozen=True, kw_only=True, eq=False)
class TowerPart:
    """One kind of layer of a tower, or one of its ends.

    Attributes
    ----------
    name : str
        Of the kind, or :data:`PATCHES` or :data:`PROJECTOR`.
    kind : LayerKind or None
        None for an end.
    ops : tuple of Op
        Per patch; of the projector per image token.
    count : int
        How many such layers the tower has.
    trained : bool
        Whether its weights are.
    backward : ndarray
        1.0 under strategies whose backward pass runs through it, else 0.0, shape (S,).
    runs : bool
        Whether there are images at all.
    job : TrainingJob
        Sequences are images; weights that are frozen have no gradients.
    table : StrategyTable
        The strategies as the tower sees them.
    """

    name: str
    kind: LayerKind | None
    ops: tuple[Op, ...]
    count: int
    trained: bool
    backward: Floats
    runs: bool
    job: TrainingJob
    table: StrategyTable


def tower_parts(model: ModelSpec, job: TrainingJob, table: StrategyTable) -> tuple[TowerPart, ...]:
    """Return the parts of a model's tower; none without a tower, or where the job has no images.

    Parameters
    ----------
    model : ModelSpec
        The model.
    job : TrainingJob
        Its images, batch, precision and software.
    table : StrategyTable
        Strategies, shape (S,).

    Returns
    -------
    tuple of TowerPart
        In the order in which they run.
    """
    tower, images = model.tower, job.images
    if tower is None or images is None:
        return ()
    patches = _job_of(job, images, images.tokens * tower.merge)
    tokens = _job_of(job, images, images.tokens)
    seen = _table_of(table, images)
    parts = [
        TowerPart(
            name=name,
            kind=kind,
            ops=ops,
            count=count,
            trained=images.trains_projector if name == PROJECTOR else images.trains_tower,
            backward=_backward(name, images, seen),
            runs=images.count > 0,
            job=tokens if name == PROJECTOR else patches,
            table=seen,
        )
        for name, kind, ops, count in _pieces(tower, patches.software)
    ]
    return tuple(map(_as_frozen, parts))


def _backward(name: str, images: Images, table: StrategyTable) -> Floats:
    """Where a backward pass runs through a part: it or what is before it is trained, or gradients are asked for."""
    if images.trains_tower or (name == PROJECTOR and images.trains_projector):
        return np.ones(len(table))
    if name == PATCHES or not images.asks_gradients:
        return np.zeros(len(table))
    full = [recompute.granularity is Granularity.FULL for recompute in table.recomputes]
    return np.array(full, dtype=np.float64)[table.recompute]


def _as_frozen(part: TowerPart) -> TowerPart:
    """A part whose weights are frozen has no gradients of them, and keeps nothing where no backward pass comes."""
    job = part.job if part.trained else replace(part.job, trained_share=0.0)
    keeps = (
        part.table
        if part.backward.any()
        else replace(part.table, recomputes=(NO_RECOMPUTE,) * len(part.table.recomputes))
    )
    return replace(part, job=job, table=keeps)


def _ops_of(kind: LayerKind | OpaqueLayer, trunk: ModelSpec, software: Software) -> tuple[Op, ...]:
    """Ops of a layer as the software runs them: fused, or with norms of one kernel among separate ones."""
    kernels = partial(layer_ops, kind, trunk, flash_attention=software.flash_attention, softmax=software.softmax)
    if software.fused_kernels or software.compiled:
        return kernels(fused_kernels=True)
    separate = kernels(fused_kernels=False)
    if not software.fused_norms:
        return separate
    pairs = zip(kernels(fused_kernels=True), separate, strict=True)
    return tuple(fused if fused.module == "layernorm" else plain for fused, plain in pairs)


def _pieces(tower: Tower, software: Software) -> Iterator[tuple[str, LayerKind | None, tuple[Op, ...], int]]:
    """Name, kind, ops and number of each part of a tower."""
    yield PATCHES, None, patch_ops(tower), 1
    for kind in tower.trunk.kinds():
        ops = _ops_of(kind, tower.trunk, software)
        count = sum(run.count for run in tower.trunk.runs if run.kind == kind)
        yield kind.name, kind if isinstance(kind, LayerKind) else None, ops, count
    yield PROJECTOR, None, projector_ops(tower), 1


def _job_of(job: TrainingJob, images: Images, seq: int) -> TrainingJob:
    """The job with images in the place of sequences, in 16 bits whatever the language model's products run in."""
    batch = max(1, images.count) * job.global_batch
    precision = replace(
        job.precision, gemm=job.precision.attention, gemm_activation_bytes=job.precision.activation_bytes
    )
    software = job.software if images.divided else _of_plain_modules(job.software)
    whole = replace(job, global_batch=batch, seq=max(1, seq), precision=precision, software=software, images=None)
    return replace(whole, trained_share=1.0, adapter_modules=(), adapter_rank=0)


def _of_plain_modules(software: Software) -> Software:
    """Software that runs Hugging Face's modules: beside Megatron-core's, PyTorch calls one by one, norms of several."""
    if software.compiled or software.scripted:
        return software
    plain = replace(software, fused_kernels=False, fused_norms=False, scripted=True, cuda_graphs=False)
    return replace(plain, attention_kernel="fa2")


def _table_of(table: StrategyTable, images: Images) -> StrategyTable:
    """Strategies as a tower sees them: no context or expert parallelism, tp where it is divided, images for samples."""
    ones = np.ones_like(table.tp)
    return replace(
        table,
        tp=table.tp if images.divided else ones,
        cp=ones,
        dp=table.dp * table.cp,  # states are sharded over both
        ep=ones,
        etp=ones,
        sequence_parallel=np.zeros_like(table.sequence_parallel),
        micro_batch=table.micro_batch * max(1, images.count),
        recomputes=table.recomputes if images.recompute is None else (images.recompute,) * len(table.recomputes),
    )


def tower_flops(model: ModelSpec, images: Images | None) -> float:
    """Return the model FLOPs of the images of one sequence: forward, and backward of what is trained; no recompute.

    Parameters
    ----------
    model : ModelSpec
        The model; without a tower nothing.
    images : Images or None
        Of the job.

    Returns
    -------
    float
        As :func:`costmodels.workload.counts.flops_per_token` counts; all scores of an image.
    """
    tower = model.tower
    if tower is None or images is None:
        return 0.0
    patches = images.tokens * tower.merge
    kinds = [(layer_ops(run.kind, tower.trunk), run.count) for run in tower.trunk.runs]
    inner = sum(count * _flops(ops, patches, images.trains_tower) for ops, count in [*kinds, (patch_ops(tower), 1)])
    ends = projector_ops(tower)
    outer = _flops(ends, images.tokens, images.trains_projector)
    if images.trains_tower and not images.trains_projector:  # gradients pass through it
        outer += _flops(ends, images.tokens, trained=False)
    return images.count * (patches * inner + images.tokens * outer)


def _flops(ops: Sequence[Op], seq: int, trained: bool) -> float:
    """FLOPs per token of the sequence: three times the forward pass where weights are trained."""
    return (3.0 if trained else 1.0) * sum(forward_flops(op, float(seq), causal=False) for op in ops)

"""Layers, models and jobs whose exchanges are counted, and tables placed on a cluster."""

from dataclasses import replace

from costmodels.collectives import (
    default_network,
)
from costmodels.exchange import (
    LayerExchange,
    PlacedTable,
    layer_exchange,
)
from costmodels.job import Precision, Software, TrainingJob
from costmodels.layout import Strategy
from costmodels.mesh import Axis, PlacedGroup, group_of, place
from costmodels.table import StrategyTable, table_of
from costmodels.workload.model import (
    Attention,
    AttentionKind,
    DenseFfn,
    LayerKind,
    LayerRun,
    ModelSpec,
    MoeFfn,
    OpaqueLayer,
    StateSpace,
)
from hardware.catalog import cluster
from hardware.tiers import island_tiers

NETWORK = default_network()
TIERS = island_tiers(cluster("dgx-h100:64").islands[0])
SEQ, HIDDEN = 4096, 4096
BF16 = Precision(
    name="bf16",
    gemm="bf16",
    attention="bf16",
    weight_bytes=2.0,
    extra_weight_bytes=0.0,
    gradient_bytes=4.0,
    master_bytes=4.0,
    activation_bytes=2.0,
    gemm_activation_bytes=2.0,
    gather_bytes=2.0,
    reduce_bytes=4.0,
)
DENSE = LayerKind(
    name="dense",
    mixer=Attention(heads=32, kv_heads=8, qk_dim=128, v_dim=128),
    ffn=DenseFfn(hidden=14336, gated=True),
    norm_parameters=2 * HIDDEN,
)
LATENT = Attention(
    kind=AttentionKind.LATENT, heads=64, kv_heads=64, qk_dim=192, v_dim=128, q_rank=1536, kv_rank=512, rope_dim=64
)
MOE = LayerKind(
    name="moe",
    mixer=LATENT,
    ffn=MoeFfn(experts=64, top_k=6, hidden=1408, gated=True, shared_hidden=2816),
    norm_parameters=2 * HIDDEN,
)
MAMBA = LayerKind(
    name="mamba",
    mixer=StateSpace(heads=128, head_dim=64, state=128, groups=8),
    ffn=None,
    norm_parameters=HIDDEN,
    norm_count=1,
)


def model_of(*kinds: LayerKind | OpaqueLayer, **changes: object) -> ModelSpec:
    spec = ModelSpec(
        name="m", family="f", hidden=HIDDEN, vocab=32000, runs=tuple(LayerRun(kind=kind, count=2) for kind in kinds)
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def job_of(**software: object) -> TrainingJob:
    flags = Software(name="s", framework="f", **software)  # type: ignore[arg-type]
    return TrainingJob(global_batch=64, seq=SEQ, precision=BF16, software=flags)


def one(pp: int = 1, **degrees: object) -> StrategyTable:
    return table_of([Strategy(**degrees)], pp=[pp], micro_batch=[1])  # type: ignore[arg-type]


def priced(kind: LayerKind | OpaqueLayer, table: StrategyTable, **software: object) -> LayerExchange:
    return layer_exchange(kind.name, model_of(kind), job_of(**software), placed(table))


def placed(table: StrategyTable) -> PlacedTable:
    return PlacedTable(table, TIERS, NETWORK)


def group(axis: Axis, table: StrategyTable) -> PlacedGroup:
    return place(group_of(axis, table), TIERS)


ACTIVATION_BYTES = SEQ * HIDDEN * 2.0

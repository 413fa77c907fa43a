"""What the rules judge: a grid, a batch, a split into stages, the model's divisible sizes, and framework switches.

A proposal may come from a framework's arguments (:mod:`planner.ingest`), from a layout, or from the search; the rules
do not know which. It may be wrong in every way: judging is the rules' work, so nothing is refused here.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd, prod
from typing import Any, Final

from costmodels.job import TrainingJob
from costmodels.layout import Granularity, Layout, RankOrder, Recompute, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.model import (
    Attention,
    AttentionKind,
    DeltaNet,
    DenseFfn,
    LayerKind,
    ModelSpec,
    MoeFfn,
    StateSpace,
)
from planner.sayable import Sayable

RECOMPUTE_MODULES: Final = ("moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
"""Recompute modules that some rule asks about."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The sizes of a model that degrees must divide; 0 means that the model has no such part.

    Where layers differ, a size is the greatest common divisor over the layers, so that it divides exactly when every
    layer's size divides.
    """

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0  # of dense layers; 0 when every layer is a mixture of experts
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    vocab: int = 0
    mtp: int = 0
    max_positions: int = 0
    state_heads: int = 0
    state_groups: int = 0
    delta_key_heads: int = 0
    delta_value_heads: int = 0
    encoder_layers: int = 0
    tower_heads: int = 0  # of a vision tower that Megatron-core's modules make
    latent: bool = False
    untied: bool = True
    linear_bias: bool = False
    unlike_layers: bool = False  # dense layers of several widths, or without one of their parts


@dataclass(frozen=True, kw_only=True)
class Split:
    """How layers fall on stages, as the user stated it; a planner states ``explicit`` and nothing else.

    The other fields mirror the ways of Megatron-LM: -1 or an empty string means not given. ``segments`` are the layers
    of each pipeline position that a hybrid model's layer pattern parts, all of them together where it parts none.
    ``even``: stages hold equal numbers whatever else is stated, as those of hybrid models in early versions.
    """

    virtual_stages: int = -1
    layers_per_virtual_stage: int = -1
    first: int = -1
    last: int = -1
    account_embedding: bool = False
    account_loss: bool = False
    layout: str = ""
    segments: tuple[int, ...] = ()
    even: bool = False
    explicit: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Framework switches that legality depends on; the defaults are those of a plain Megatron-LM launch."""

    hybrid_cp: int = 0  # product of the hierarchical context-parallel sizes; 0: not given
    cp_hierarchical: bool = False  # some layer uses the a2a+p2p exchange
    cp_all_to_all: bool = False  # some layer uses the a2a exchange (Ulysses)
    pp_before_dp: bool = False  # rank order tp-cp-ep-pp-dp
    distributed_optimizer: bool = False
    optimizer_instances: int = 1
    weight_shards: int = 0  # shards of dense weights over tp and the extra weight axis; 0: tp
    expert_weight_shards: int = 0  # the same for experts, over etp
    megatron_fsdp: bool = False
    torch_fsdp: bool = False
    full_shard: bool = False  # Megatron FSDP shards weights too
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    low_precision_param_gather: bool = False
    gradient_accumulation_fusion: bool = True
    checkpoint_fsdp_dtensor: bool = False
    checkpoint_torch_dcp: bool = False
    checkpoint_torch: bool = False
    adam_or_sgd: bool = True
    optimizer_cpu_offload: bool = False
    precision_aware_optimizer: bool = False
    fp16: bool = False
    bf16: bool = False
    fp8: bool = False
    fp8_delayed: bool = False
    tp_comm_overlap: bool = False
    overlap_p2p: bool = True
    interleaved_one: bool = False  # one virtual stage counts as interleaved (core 0.13, when it is asked for)
    any_rounds: bool = False  # a schedule of virtual chunks whose micro-batches need not divide into rounds
    splits_backward: bool = False  # gradients of weights are an operation of their own
    compiled: bool = False  # torch.compile on the model
    gpipe: bool = False  # all micro-batches forward, then all backward: they need not fill the stages
    microbatch_group: int = 0  # 0: the pipeline degree, unless it is given
    microbatch_group_given: bool = False
    ends_alone: bool = False  # embedding and head have stages of their own, which hold no layer
    recompute_full: bool = False
    recompute_selective: bool = False
    recompute_per_op: bool = False  # outputs on torchtitan's list are kept
    recompute_some: bool = False  # some layers recompute in full, others do not
    recompute_method: bool = False
    recompute_layers: int = 0
    recompute_layers_given: bool = False
    recompute_moe: bool = False
    recompute_moe_act: bool = False
    recompute_layernorm: bool = False
    recompute_mla_up_proj: bool = False
    recompute_shared_experts: bool = False
    recompute_implied: bool = False  # by --moe-layer-recompute alone, which nothing asks more of
    grouped_gemm: bool = False
    overlap_expert_comm: bool = False
    overlap_shared_expert: bool = False
    layer_graphs: bool = False  # CUDA graphs of single layers, not of whole iterations
    dispatcher_allgather: bool = False
    expert_bias: bool = False
    sigmoid_router: bool = False
    pre_softmax: bool = False
    router_groups: int = 0
    router_group_topk: int = 0
    expert_ffn_given: bool = False
    query_groups_given: bool = False
    head_dim_given: bool = False
    rope_or_no_positions: bool = True
    cpu_offload_layers: int = 0
    cuda_max_connections: int = -1  # -1: not stated, 0: unset
    first_batch: int = 0  # samples of the first step, where the batch grows; 0: it does not
    loss_chunks: int = 1  # equal parts of a rank's tokens of a sequence, each with its logits and its loss


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One thing to judge.

    ``dp`` 0 means that it follows from ``world``. ``gtp`` and ``egtp`` are the extra weight-shard factors of dense and
    expert layers. ``zero`` is the ZeRO stage. ``grids`` counts the different grids of layers and stages. ``options``
    are those of a command line with their values, where the proposal comes from one.
    """

    world: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 0
    gtp: int = 1
    egtp: int = 1
    zero: int = 0
    shard_group: int = 0
    micro_batch: int = 1
    global_batch: int = 1
    seq: int = 1
    sequence_parallel: bool = False
    grids: int = 1
    model: ModelFacts = field(default_factory=ModelFacts)
    split: Split = field(default_factory=Split)
    switches: Switches = field(default_factory=Switches)
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def said_by(self, sayable: Sayable) -> bool:
        """Whether a launcher can be told the degrees."""
        groups = sayable.groups or not self.shard_group
        return groups and sayable.says_grid(self.tp, self.cp, self.pp, self.ep, self.zero)


def replicas_of(world: int, *degrees: int) -> int:
    """Data-parallel degree that is left of ``world`` GPUs; 1 where the other degrees ask for more than there are."""
    return max(1, world // max(1, prod(degrees)))


def _common(sizes: list[int]) -> int:
    """Greatest common divisor of the positive sizes; 0 when there is none."""
    return gcd(*[size for size in sizes if size > 0]) if sizes else 0


def facts_of(model: ModelSpec) -> ModelFacts:
    """Collect the sizes of a model that legality depends on.

    Parameters
    ----------
    model : ModelSpec
        Opaque layers contribute nothing but their number.

    Returns
    -------
    ModelFacts
        Multi-token-prediction layers count with the others.
    """
    kinds = [kind for kind in (*model.kinds(), model.mtp_kind) if isinstance(kind, LayerKind)]
    mixers = [mixer for kind in kinds for mixer in kind.mixers]
    attentions = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    states = [mixer for mixer in mixers if isinstance(mixer, StateSpace)]
    deltas = [mixer for mixer in mixers if isinstance(mixer, DeltaNet)]
    dense = [kind.ffn for kind in kinds if isinstance(kind.ffn, DenseFfn)]
    moe = [kind.ffn for kind in kinds if isinstance(kind.ffn, MoeFfn)]
    return ModelFacts(
        layers=model.layers,
        hidden=model.hidden,
        heads=_common([a.heads for a in attentions]),
        kv_heads=_common([a.heads if a.kind is AttentionKind.LATENT else a.kv_heads for a in attentions]),
        ffn=_common([f.hidden for f in dense]),
        experts=_common([f.experts for f in moe]),
        top_k=max((f.top_k for f in moe), default=0),
        expert_ffn=_common([f.hidden for f in moe]),
        shared_ffn=_common([f.shared_hidden for f in moe]),
        vocab=model.vocab,
        mtp=model.mtp_layers,
        max_positions=model.max_positions if model.learned_positions else 0,  # others follow the sequence
        state_heads=_common([s.heads for s in states]),
        state_groups=_common([s.groups for s in states]),
        delta_key_heads=_common([d.key_heads for d in deltas]),
        delta_value_heads=_common([d.value_heads for d in deltas]),
        encoder_layers=encoder_layers(model),
        tower_heads=_tower_heads(model),
        latent=any(
            a.kind is AttentionKind.LATENT or (a.shared_kv and a.q_rank > 0) for a in attentions
        ),  # both are Megatron's latent kind
        untied=not model.tied_embeddings,
        linear_bias=any(f.bias for f in dense) or any(f.bias for f in moe),
        unlike_layers=model.unlike_layers,
    )


def _tower_heads(model: ModelSpec) -> int:
    """Heads of the tower of a model that tp divides where a framework makes it of Megatron-core's modules."""
    if model.tower is None or not model.tower.megatron_modules:
        return 0
    mixers = [mixer for kind in model.tower.trunk.kinds() if isinstance(kind, LayerKind) for mixer in kind.mixers]
    return _common([mixer.heads for mixer in mixers if isinstance(mixer, Attention)])


def encoder_layers(model: ModelSpec) -> int:
    """Layers of the encoder that the other layers attend to; 0 for a model of one stack."""
    kinds = list(model.layer_kinds())
    ends = [index for index, kind in enumerate(kinds) if isinstance(kind, LayerKind) and kind.ends_encoder]
    return ends[-1] + 1 if ends else 0


def grid_of(strategy: Strategy) -> Strategy:
    """Strategy without what may differ from layer to layer under one grid (recompute)."""
    return dataclasses.replace(strategy, recompute=Strategy().recompute)


def exported_switches(model: ModelFacts, precision: str = "bf16") -> Switches:
    """Switches of a plan before its grid is known: what every export of this model and precision sets."""
    return Switches(
        grouped_gemm=True,
        head_dim_given=True,
        expert_ffn_given=model.experts > 0,
        sigmoid_router=True,
        pre_softmax=True,
        bf16=True,
        fp8=precision.startswith(("fp8", "mxfp8")),
        fp8_delayed=precision == "fp8-ds",
    )


def job_switches(model: ModelFacts, job: TrainingJob) -> Switches:
    """Switches of a plan before its grid is known, with the loss of its job."""
    loss = job.software.linear_loss
    chunks = max(1, loss.chunks) if loss is not None else 1
    return dataclasses.replace(
        exported_switches(model, job.precision.name),
        loss_chunks=chunks,
        compiled=job.software.compiled,
        cp_all_to_all=job.software.cp_comm == "a2a",
    )


def recompute_switches(recomputes: Iterable[Recompute]) -> dict[str, Any]:
    """Switches that the recompute of some layers sets together, by name."""
    told = tuple(recomputes)
    full = any(recompute.granularity is Granularity.FULL for recompute in told)
    selective = any(recompute.granularity is Granularity.SELECTIVE and not recompute.per_op for recompute in told)
    modules = {module for recompute in told for module in recompute.modules}
    return {
        "recompute_full": full,
        "recompute_method": full,
        "recompute_layers": int(full),
        "recompute_layers_given": full,
        "recompute_selective": selective and not full,
        "recompute_per_op": any(recompute.per_op for recompute in told),
        "recompute_some": full and any(recompute.granularity is not Granularity.FULL for recompute in told),
        **{f"recompute_{name}": name in modules for name in RECOMPUTE_MODULES},
    }


def _order_switches(layout: Layout) -> dict[str, Any]:
    """Switches of the order of ranks and of micro-batches."""
    return {
        "microbatch_group": layout.microbatch_group,
        "ends_alone": layout.pp > 2 and layout.stages[0].layers == layout.stages[-1].layers == 0,
        "pp_before_dp": layout.rank_order is RankOrder.PP_INSIDE,
        **schedule_switches(layout.schedule if layout.pp > 1 else None),
    }


def schedule_switches(schedule: Schedule | None) -> dict[str, Any]:
    """Switches of the schedule of a pipeline; None: 1F1B, or interleaved."""
    return {
        "gpipe": schedule is Schedule.GPIPE,
        "any_rounds": schedule is not None and (schedule.is_v or schedule is Schedule.LOOPED_BFS),
        "splits_backward": schedule is not None and schedule.splits_backward,
    }


def _instances(grid: Strategy) -> int:
    """Copies of the sharded states: one unless ZeRO shards over fewer ranks than dp x cp."""
    return max(1, grid.dp * grid.cp // grid.shard_group) if grid.shard_group else 1


def shard_group_of(proposal: Proposal, dp: int) -> int:
    """Ranks that ZeRO shards over in a proposal with so many replicas; 0: all that hold the same weights."""
    instances, ranks = proposal.switches.optimizer_instances, dp * proposal.cp
    group = ranks // instances if instances > 1 else proposal.shard_group
    return group if proposal.zero and 0 < group < ranks else 0


def rank_order_of(proposal: Proposal, dp: int) -> RankOrder:
    """Order of the ranks of a proposal with so many replicas; without stages or replicas there is but one."""
    turned = proposal.switches.pp_before_dp and proposal.pp > 1 and dp > 1
    return RankOrder.PP_INSIDE if turned else RankOrder.DP_INSIDE


def group_of(proposal: Proposal) -> int:
    """Micro-batches of a group of the interleaved schedule; 0 where they are as many as stages, or none interleave."""
    group = proposal.switches.microbatch_group
    return group if proposal.vpp > 1 and proposal.pp > 1 and group != proposal.pp else 0


def _experts_tp(grid: Strategy, layout: Layout, model: ModelFacts) -> int:
    """Tensor parallelism of the experts; in a model without any it follows tp where the rank order counts with it."""
    return grid.tp if layout.rank_order is RankOrder.PP_INSIDE and not model.experts else grid.etp


def proposals_of(
    layout: Layout, model: ModelFacts, *, global_batch: int, seq: int, world: int, base: Switches | None = None
) -> tuple[Proposal, ...]:
    """State a layout as proposals, one for each different grid among its layers.

    Parameters
    ----------
    layout : Layout
        Any layout, uniform or not.
    model : ModelFacts
        See :func:`facts_of`.
    global_batch : int
        Samples per step of the job.
    seq : int
        Tokens per sample.
    world : int
        GPUs that the job is given.
    base : Switches, optional
        As of :func:`job_switches`; those of a job in bf16 by default.

    Returns
    -------
    tuple of Proposal
        Each carries the number of grids in ``grids`` and the whole layout's split.
    """
    strategies = [run.strategy for stage in layout.stages for run in stage.strategies]
    grids = tuple(dict.fromkeys(grid_of(strategy) for strategy in strategies))
    switches = dataclasses.replace(
        base or exported_switches(model),
        distributed_optimizer=any(grid.zero > 0 for grid in grids),
        megatron_fsdp=any(grid.zero > 1 for grid in grids),
        full_shard=any(grid.zero == 3 for grid in grids),
        checkpoint_fsdp_dtensor=any(grid.zero > 1 for grid in grids),
        **_order_switches(layout),
        **recompute_switches(strategy.recompute for strategy in strategies),
    )
    samples = layout.micro_batch * layout.first.dp  # of one micro-batch over all replicas, whatever a layer's dp
    return tuple(
        Proposal(
            world=grid.gpus * layout.pp if len(grids) > 1 and layout.gpus == world else world,
            tp=grid.tp,
            pp=layout.pp,
            cp=grid.cp,
            vpp=layout.vpp,
            ep=grid.ep,
            etp=_experts_tp(grid, layout, model),
            dp=grid.dp,
            zero=grid.zero,
            shard_group=grid.shard_group,
            micro_batch=max(1, samples // grid.dp),
            global_batch=global_batch,
            seq=seq,
            sequence_parallel=grid.sequence_parallel,
            grids=len(grids),
            model=model,
            split=Split(explicit=layout.layers_per_stage),
            switches=dataclasses.replace(switches, optimizer_instances=_instances(grid)),
        )
        for grid in grids
    )

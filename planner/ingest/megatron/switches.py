"""Switches of a Megatron-LM launch that legality depends on, from its options and environment."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.ingest.options import Arguments, whole
from planner.rules.proposal import Switches
from planner.rules.table import version_key

LATER: Final = (0, 14)  # names of FSDP, recompute of shared experts, one virtual stage is none
_GROUP: Final = "--microbatch-group-size-per-virtual-pipeline-stage"
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
_MIXED_SINCE: Final = (0, 18)


def switches_of(read: Arguments, version: str, environment: Mapping[str, str] | None) -> Switches:
    """Read the switches that rules ask about.

    Parameters
    ----------
    read : Arguments
        Of Megatron-LM.
    version : str
        Core version, whose names and defaults count.
    environment : mapping of str to str, or None
        Of the launch; None says nothing about its variables.
    """
    positions = "rope" if read.has("--use-rotary-position-embeddings") else read.text("--position-embedding-type")
    exchanges = read.texts("--cp-comm-type")
    sizes = [size for text in read.texts("--hierarchical-context-parallel-sizes") if (size := whole(text)) is not None]
    checkpoint = read.text("--ckpt-format", "torch_dist")
    base = Switches(
        hybrid_cp=math.prod(sizes) if sizes else 0,
        cp_hierarchical="a2a+p2p" in exchanges,
        cp_all_to_all="a2a" in exchanges,
        pp_before_dp=read.has("--use-tp-pp-dp-mapping"),
        optimizer_instances=read.number("--num-distributed-optimizer-instances", 1),
        weight_shards=read.number("--tensor-parallel-num-weight-shards", 0),
        expert_weight_shards=read.number("--expert-tensor-parallel-num-weight-shards", 0),
        checkpoint_fsdp_dtensor=checkpoint == "fsdp_dtensor",
        checkpoint_torch_dcp=checkpoint == "torch_dcp",
        checkpoint_torch=checkpoint in ("torch", "zarr"),
        adam_or_sgd=read.text("--optimizer", "adam") in ("adam", "sgd"),
        fp16=read.has("--fp16"),
        bf16=read.has("--bf16"),
        fp8=read.has("--fp8-format"),
        fp8_delayed=read.has("--fp8-format") and read.text("--fp8-recipe", "delayed") == "delayed",
        tp_comm_overlap=read.has("--tp-comm-overlap"),
        overlap_p2p=not read.has("--no-overlap-p2p-communication"),
        microbatch_group=read.number(_GROUP, 0),
        microbatch_group_given=read.has(_GROUP),
        head_dim_given=read.has("--kv-channels"),
        query_groups_given=read.has("--group-query-attention"),
        rope_or_no_positions=positions in ("rope", "none"),
        cpu_offload_layers=read.number("--cpu-offloading-num-layers", 0),
        cuda_max_connections=_connections(environment),
    )
    return _moe_switches(_recompute_switches(_sharding_switches(base, read, version), read), read, version)


def _connections(environment: Mapping[str, str] | None) -> int:
    if environment is None:
        return -1
    text = environment.get(CONNECTIONS, "")
    return int(text[:9]) if text.isdecimal() else 0


def _sharding_switches(base: Switches, read: Arguments, version: str) -> Switches:
    custom = read.has("--use-custom-fsdp")
    fsdp = read.has("--use-megatron-fsdp") or custom
    old = version_key(version) < LATER
    strategy = read.text("--data-parallel-sharding-strategy", "no_shard" if old else "optim_grads_params")
    turned_on = old and strategy.startswith("optim_grads")  # core 0.13 overlaps by the strategy, with FSDP or without
    return replace(
        base,
        distributed_optimizer=read.has("--use-distributed-optimizer") or (fsdp and not custom),
        megatron_fsdp=fsdp,
        torch_fsdp=read.has("--use-torch-fsdp2"),
        full_shard=fsdp and strategy == "optim_grads_params",
        overlap_grad_reduce=read.has("--overlap-grad-reduce") or turned_on,
        overlap_param_gather=read.has("--overlap-param-gather") or (turned_on and strategy == "optim_grads_params"),
        low_precision_param_gather=read.has("--fp8-param-gather"),
        gradient_accumulation_fusion=not read.has("--no-gradient-accumulation-fusion"),
        optimizer_cpu_offload=read.has("--optimizer-cpu-offload"),
        precision_aware_optimizer=read.has("--use-precision-aware-optimizer"),
    )


def _recompute_switches(base: Switches, read: Arguments) -> Switches:
    granularity = "selective" if read.has("--recompute-activations") else read.text("--recompute-granularity")
    implied = read.has("--moe-layer-recompute") and not granularity
    granularity = "selective" if implied else granularity
    modules = set(read.texts("--recompute-modules")) or {"core_attn"}
    modules |= {"moe"} if read.has("--moe-layer-recompute") else set()
    return replace(
        base,
        recompute_full=granularity == "full",
        recompute_selective=granularity == "selective",
        recompute_method=read.has("--recompute-method"),
        recompute_layers=read.number("--recompute-num-layers", 0),
        recompute_layers_given=read.has("--recompute-num-layers"),
        recompute_moe="moe" in modules,
        recompute_moe_act="moe_act" in modules,
        recompute_layernorm="layernorm" in modules,
        recompute_mla_up_proj="mla_up_proj" in modules,
        recompute_shared_experts="shared_experts" in modules,
        recompute_implied=implied,
    )


def _moe_switches(base: Switches, read: Arguments, version: str) -> Switches:
    return replace(
        base,
        grouped_gemm=read.has("--moe-grouped-gemm"),
        overlap_expert_comm=read.has("--overlap-moe-expert-parallel-comm"),
        overlap_shared_expert=read.has("--moe-shared-expert-overlap"),
        layer_graphs=read.text("--cuda-graph-impl", "none") in ("local", "transformer_engine"),
        dispatcher_allgather=read.text("--moe-token-dispatcher-type", "allgather") == "allgather",
        expert_bias=read.has("--moe-router-enable-expert-bias"),
        sigmoid_router=read.text("--moe-router-score-function", "softmax") != "softmax",
        pre_softmax=read.has("--moe-router-pre-softmax")
        or read.texts("--moe-router-load-balancing-type") == ("sinkhorn",),
        router_groups=read.number("--moe-router-num-groups", 0),
        router_group_topk=read.number("--moe-router-group-topk", 0),
        expert_ffn_given=read.has("--moe-ffn-hidden-size") and not _mixed(read, version),
    )


def _mixed(read: Arguments, version: str) -> bool:
    """Whether a pattern leaves layers dense, in versions that then take an expert width without experts."""
    freq = read.text("--moe-layer-freq", "1")
    return version_key(version) >= _MIXED_SINCE and ("0" in freq if "[" in freq else freq != "1")

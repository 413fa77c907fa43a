"""What Megatron-core builds of a model: which layers on which stage, and whether widths, heads and experts divide.

To be imported once Megatron can be, with its stand-ins in place.
"""

# ruff: noqa: PLC0415  -- Megatron and PyTorch are imported after their stand-ins are in place

import copy
from typing import Any

import forks
from stand_ins import Absent
from steps import call, step


def layers_of(args: Any, config: Any) -> list[list[int]]:
    """Layers that Megatron builds for each pipeline rank and virtual stage; every layer must appear exactly once."""
    pattern = hybrid_pattern(args)
    if pattern:
        return _hybrid_layers(args, config, pattern)
    with step("layers"):
        from megatron.core import parallel_state
        from megatron.core.transformer.transformer_block import get_num_layers_to_build
        from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

        virtual = args.virtual_pipeline_model_parallel_size
        table: list[list[int]] = []
        seen: list[int] = []
        for stage in range(args.pipeline_model_parallel_size):
            parallel_state.set_pipeline_model_parallel_rank(stage)
            row = []
            for chunk in range(virtual or 1):
                if virtual:
                    parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
                which = chunk if virtual else None
                count = get_num_layers_to_build(config, vp_stage=which)
                first = get_transformer_layer_offset(config, vp_stage=which)
                row.append(count)
                seen += range(first, first + count)
            table.append(row)
        parallel_state.set_pipeline_model_parallel_rank(None)
        if sorted(seen) != list(range(args.num_layers)):
            raise ValueError(f"{len(seen)} layers built, {len(set(seen))} different, {args.num_layers} wanted")
        return table


def hybrid_pattern(args: Any) -> str:
    """Letters of a hybrid model's layers, by the new name of the option or the old; empty for other models."""
    return getattr(args, "hybrid_layer_pattern", None) or getattr(args, "hybrid_override_pattern", None) or ""


def _hybrid_layers(args: Any, config: Any, pattern: str) -> list[list[int]]:
    """Layers of a hybrid model on each pipeline rank and virtual stage: the segment that Megatron selects."""
    with step("layers"):
        try:
            from megatron.core.models.hybrid import hybrid_layer_allocation as allocation
        except ImportError:
            from megatron.core.ssm import mamba_hybrid_layer_allocation as allocation
        stages, virtual = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
        if not hasattr(allocation, "select_pipeline_segment"):  # before core 0.17 every stage takes its share
            if virtual:
                raise ValueError("a hybrid model has no virtual stages")
            letters = allocation.allocate_layers(args.num_layers, 0.0, 0.0, pattern)
            return [[count] for count in _selected_layers(config, list(letters), stages)]
        import torch.distributed as dist

        main = allocation.parse_hybrid_pattern(pattern).main_pattern
        ends = (config.num_layers_in_first_pipeline_stage, config.num_layers_in_last_pipeline_stage)
        table: list[list[int]] = []
        seen: list[int] = []
        rank_of, size_of = dist.get_rank, dist.get_world_size
        for stage in range(stages):
            row = []
            dist.get_rank = lambda *_a, _stage=stage, **_k: _stage
            dist.get_world_size = lambda *_a, **_k: stages
            for chunk in range(virtual or 1):
                layers, first = allocation.select_pipeline_segment(main, object(), chunk if virtual else None, *ends)
                row.append(len(layers))
                seen += range(first, first + len(layers))
            table.append(row)
        dist.get_rank, dist.get_world_size = rank_of, size_of
        if sorted(seen) != list(range(args.num_layers)):
            raise ValueError(f"{len(seen)} layers built, {len(set(seen))} different, {args.num_layers} wanted")
        return table


def _selected_layers(config: Any, letters: list[str], stages: int) -> list[int]:
    """Layers that each stage takes of a hybrid model before core 0.17, by its own stack's selection."""
    from types import SimpleNamespace

    from megatron.core.ssm.mamba_block import MambaStack

    found = []
    for stage in range(stages):
        group = SimpleNamespace(rank=lambda stage=stage: stage, size=lambda: stages)
        stack = SimpleNamespace(config=config, pp_group=group)
        found.append(len(MambaStack._select_layers_for_pipeline_parallel(stack, letters)[1]))
    return found


def experts_of(config: Any) -> None:
    """Build the base of a mixture's layer, which asks whether the experts divide over their group."""
    if not config.num_moe_experts:
        return
    with step("build"):
        from megatron.core.transformer.moe.moe_layer import BaseMoELayer
        from megatron.core.transformer.moe.moe_utils import get_default_pg_collection

        layer = type("Layer", (BaseMoELayer,), {"forward": lambda *_: None})
        layer(config, layer_number=1, pg_collection=get_default_pg_collection())


def mixers_of(config: Any, pattern: str) -> None:
    """State what a Mamba-2 mixer asks when it is built, which needs a GPU: heads and groups divide over tp and cp."""
    groups = getattr(config, "mamba_num_groups", None)
    if "M" not in pattern or not groups:
        return
    heads = config.mamba_num_heads or 2 * config.hidden_size // config.mamba_head_dim
    tp, cp = config.tensor_model_parallel_size, config.context_parallel_size
    local = groups // tp
    whole = heads % tp == groups % tp == heads % groups == 0 and heads // tp % cp == 0
    if not whole or (local % cp and cp % local):
        raise forks.RefusedError("build", f"{heads} heads and {groups} groups of Mamba-2 over tp {tp}, cp {cp}")


def feed_forward_of(args: Any, config: Any) -> None:
    """Build the real feed-forward blocks of this model on the meta device, which asks whether widths divide."""
    import torch
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

    plain = copy.deepcopy(config)
    plain.perform_initialization = False
    plain.use_cpu_initialization = False
    plain.gradient_accumulation_fusion = False
    plain.sequence_parallel = False
    torch.cuda.current_device = lambda: torch.device("meta")
    torch.cuda.Event = torch.cuda.Stream = Absent("event")
    pattern = hybrid_pattern(args)
    dense = "-" in pattern if pattern else not _all_experts(config)
    widths = [(config.ffn_hidden_size, False)] if dense else []
    if config.num_moe_experts and config.moe_shared_expert_intermediate_size:
        widths.append((config.moe_shared_expert_intermediate_size, False))
    if config.num_moe_experts:
        widths.append((config.moe_ffn_hidden_size, True))
    for width, of_expert in widths:
        given = {"config": plain, "init_method": torch.nn.init.zeros_, "bias": False, "skip_bias_add": True}
        given |= {"is_expert": of_expert, "tp_group": _tensor_group(of_expert)}
        double = 2 if config.gated_linear_unit else 1
        call(ColumnParallelLinear, {"input_size": config.hidden_size, "output_size": width * double, **given})
        call(
            RowParallelLinear,
            {"input_size": width, "output_size": config.hidden_size, "input_is_parallel": True, **given},
        )


def layer_specs_of(args: Any, config: Any) -> None:
    """Ask which layers of the model are dense and which are experts, and which have another kind of attention."""
    if getattr(config, "transformer_impl", "") == "inference_optimized" and args.mtp_num_layers is not None:
        raise forks.RefusedError("build", "gpt_builders.py: prediction layers with the layers of inference")
    if getattr(config, "experimental_attention_variant", None) and not hybrid_pattern(args):
        _variant_specs_of(args, config)
    elif config.num_moe_experts and not hybrid_pattern(args):
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

        given = {"use_transformer_engine": False, "normalization": args.normalization, "vp_stage": 0}
        given["qk_l2_norm"] = getattr(args, "qk_l2_norm", False)
        call(get_gpt_decoder_block_spec, {"config": copy.deepcopy(config), **given})
    elif config.multi_latent_attention and not hybrid_pattern(args):
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

        given = {"qk_layernorm": config.qk_layernorm, "qk_l2_norm": getattr(args, "qk_l2_norm", False)}
        call(get_gpt_layer_local_spec, {"multi_latent_attention": True, **given})


def _variant_specs_of(args: Any, config: Any) -> None:
    """Lay out the layers of an experimental attention on every stage; parts of Transformer Engine have stand-ins.

    What the sparse attention of core 0.19 asks when it is built, which needs a GPU, is asked in words.
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.transformer.spec_utils import ModuleSpec

    plain = ModuleSpec(module=object, metainfo={"fuse_input_layernorm": True})
    variants.TESpecProvider = lambda: Absent("layers")  # type: ignore[attr-defined]
    variants._get_self_attention_module_spec = lambda **_: plain  # type: ignore[attr-defined]
    for stage in range(args.pipeline_model_parallel_size):
        parallel_state.set_pipeline_model_parallel_rank(stage)
        for chunk in range(args.virtual_pipeline_model_parallel_size or 1):
            which = chunk if args.virtual_pipeline_model_parallel_size else None
            given = {"config": copy.deepcopy(config), "vp_stage": which, "pp_rank": stage}
            call(variants.get_transformer_block_with_experimental_attention_variant_spec, given)
    parallel_state.set_pipeline_model_parallel_rank(None)
    if config.experimental_attention_variant == "dsa" and hasattr(config, "dsa_indexer_topk_freq"):
        split = config.tensor_model_parallel_size > 1 and not config.sequence_parallel
        if split or config.cache_mla_latents:
            raise forks.RefusedError("build", "absorbed latent attention: tp without sequence parallelism, or a cache")


def unlike_layers_of(args: Any, config: Any) -> list[list[int]]:
    """Parameters of every layer of unlike sizes on each stage, from the real layers; none for layers of one size.

    The layers of a stage are asked for as the training script does: without the number of a virtual chunk.
    """
    if not getattr(config, "per_block_parameters", None) or config.num_moe_experts:  # experts come first
        return []
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import get_gpt_heterogeneous_layer_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    plain = copy.deepcopy(config)
    plain.perform_initialization = plain.use_cpu_initialization = plain.gradient_accumulation_fusion = False
    plain.persist_layer_norm = plain.sequence_parallel = False  # from here on what needs Transformer Engine's layers
    plain.context_parallel_size, plain.fp8, plain.fp4, plain.recompute_granularity = 1, None, None, None
    plain.fp8_param = plain.fp4_param = False
    groups, table = ProcessGroupCollection.use_mpu_process_groups(), []
    for stage in range(args.pipeline_model_parallel_size):
        parallel_state.set_pipeline_model_parallel_rank(stage)
        layers = get_gpt_heterogeneous_layer_spec(plain, False).layer_specs
        first, row = get_transformer_layer_offset(plain), []
        for index, spec in enumerate(layers, 1):
            config.get_config_for_layer(first + index)  # as it is, which is validated anew
            own = plain.get_config_for_layer(first + index)
            with torch.device("meta"):
                layer = build_module(spec, config=own, layer_number=index, pg_collection=groups)
            row.append(sum(parameter.numel() for parameter in layer.parameters()))
        table.append(row)
    parallel_state.set_pipeline_model_parallel_rank(None)
    return table


def _tensor_group(of_expert: bool) -> Any:
    from megatron.core import parallel_state

    return (
        parallel_state.get_expert_tensor_parallel_group()
        if of_expert
        else parallel_state.get_tensor_model_parallel_group()
    )


def _all_experts(config: Any) -> bool:
    freq = config.moe_layer_freq
    return config.num_moe_experts is not None and (freq == 1 or (isinstance(freq, list) and 0 not in freq))

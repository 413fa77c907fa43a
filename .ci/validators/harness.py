"""Runs the real Megatron-LM argument checks on a machine without GPUs.

Standard input holds one JSON object a line, ``{"name", "world_size", "args", "environment"?, "groups"?}``; standard
output answers with one line each, ``{"name", "accepted", "step", "error", "layers", "parameters"}``. Megatron is
imported once; every case runs in a forked child, because it keeps global state.

What is real: the parser, ``validate_args``, the micro-batch calculator, the process groups (over PyTorch's fake
backend), the transformer configuration, and the layers of every pipeline rank and virtual stage. What stands in:
``triton`` and Transformer Engine (absent on a CPU), the GPU's capability, and ``typing.override`` before Python 3.12.
The two checks that the interleaved schedule makes in the first step, and those of Mamba-2 mixers, are asked in words,
because these functions need a GPU; the answer names the step ``schedule`` or ``build``. With ``--build`` feed-forward
layers are built on the meta device, and layers of unlike sizes wholly.
"""

# ruff: noqa: PLC0415  -- Megatron and PyTorch are imported after their stand-ins are in place

import argparse
import contextlib
import copy
import dataclasses
import importlib.util
import inspect
import io
import logging
import os
import sys
import types
import typing
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import forks
from stand_ins import Absent, AbsentModules

CAPABILITY = {"ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0)}
TRANSFORMER_ENGINE = "2.12.0"


def load(capability: str) -> Any:
    """Import Megatron's argument module with stand-ins for what a CPU machine lacks."""
    os.environ.update(TORCHDYNAMO_DISABLE="1", TORCH_COMPILE_DISABLE="1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    import torch
    import torch._dynamo
    import torch.utils.flop_counter  # both look for triton: before the stand-in

    if importlib.util.find_spec("triton") is None:
        sys.meta_path.append(AbsentModules("triton"))
    shape = types.SimpleNamespace(major=CAPABILITY[capability][0], minor=CAPABILITY[capability][1], name="stand-in")
    torch.cuda.get_device_capability = lambda *_a, **_k: CAPABILITY[capability]
    torch.cuda.get_device_properties = lambda *_a, **_k: shape
    torch.cuda.current_device = lambda: 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from megatron.training import arguments
    _pretend_transformer_engine()
    return arguments


def _pretend_transformer_engine() -> None:
    """Give Megatron a Transformer Engine version and the fused kernels whose absence it would refuse."""
    from packaging.version import Version

    names = {
        "megatron.core.utils": (),
        "megatron.core.models.common.embeddings.rope_utils": (
            "fused_apply_rotary_pos_emb",
            "fused_apply_rotary_pos_emb_thd",
        ),
        "megatron.core.transformer.moe.moe_utils": (
            "fused_permute",
            "fused_permute_with_probs",
            "fused_sort_chunks_by_index",
            "fused_sort_chunks_by_index_with_probs",
            "fused_unpermute",
        ),
    }
    for module_name, kernels in names.items():
        module = importlib.import_module(module_name)
        if module_name == "megatron.core.utils":
            module._te_version = Version(TRANSFORMER_ENGINE)  # type: ignore[attr-defined]
        for kernel in kernels:
            if getattr(module, kernel, None) is None:
                setattr(module, kernel, Absent(kernel))


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Run one step quietly and turn its failure into a refusal."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield
    except forks.RefusedError:
        raise
    except SystemExit:
        lines = printed.getvalue().strip().splitlines()
        raise forks.RefusedError(name, lines[-1] if lines else "exit") from None
    except Exception as error:
        raise forks.RefusedError(name, f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def examine(arguments: Any, case: dict[str, Any], *, build: bool) -> dict[str, Any]:
    """Take one argument list through Megatron's own checks; call it once in a process."""
    answer: dict[str, Any] = {"name": case.get("name", ""), "accepted": False, "step": "", "error": "", "layers": None}
    world = int(case["world_size"])
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case.get("environment") or _environment(case["args"]))
    try:
        args = parsed_args(arguments, case["args"])
        _groups(args, world)
        config = core_config(arguments, args)
        answer["layers"] = layers_of(args, config)
        answer["micro_batches"] = schedule_of(args, config, micro_batches())
        if build:
            with step("build"):
                _build_layer(args, config)
                _layer_specs(args, config)
                answer["parameters"] = _unlike_layers(args, config)
            mixers_of(config, _hybrid_pattern(args))
            optimizer_config(args)
            learning_rate(args)
        answer["accepted"] = True
        answer["grid"] = _grid(args, world)
        if case.get("groups"):
            answer["groups"] = _all_groups(args, world)
    except forks.RefusedError as refused:
        answer.update(step=refused.step, error=refused.error)
    return answer


def _environment(args: Sequence[str]) -> dict[str, str]:
    sharded = any(flag in args for flag in ("--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2"))
    offload = {"NVTE_CPU_OFFLOAD_V1": "1"}  # Transformer Engine from 2.10 asks for it where activations are offloaded
    return offload if sharded else {**offload, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def parsed_args(arguments: Any, args: Sequence[str]) -> Any:
    """Arguments as Megatron parses and validates them."""
    with step("parse"):
        sys.argv = ["pretrain_gpt.py", *args]
        parsed = arguments.parse_args()
    with step("validate"):
        arguments.validate_args(parsed)
    with step("micro-batches"):
        from megatron.core import num_microbatches_calculator as calculator

        given = {
            "rank": 0,
            "rampup_batch_size": getattr(parsed, "rampup_batch_size", None),
            "global_batch_size": parsed.global_batch_size,
            "micro_batch_size": parsed.micro_batch_size,
            "data_parallel_size": parsed.data_parallel_size,
            "decrease_batch_size_if_needed": getattr(parsed, "decrease_batch_size_if_needed", False),
            "step_batch_size_schedule": getattr(parsed, "step_batch_size_schedule", None),
            "seq_length": parsed.seq_length,
        }
        _call(calculator.init_num_microbatches_calculator, given)
    with step("schedule"):  # as entering the training loop does
        calculator.update_num_microbatches(0, consistency_check=True)
    return parsed


def _call(function: Any, given: dict[str, Any]) -> Any:
    """Call a function with those of the given arguments that its version knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in known})


def _groups(args: Any, world: int) -> None:
    with step("groups"):
        import torch.distributed as dist
        from megatron.core import parallel_state
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        given = {
            "tensor_model_parallel_size": args.tensor_model_parallel_size,
            "pipeline_model_parallel_size": args.pipeline_model_parallel_size,
            "virtual_pipeline_model_parallel_size": args.virtual_pipeline_model_parallel_size,
            "context_parallel_size": args.context_parallel_size,
            "hierarchical_context_parallel_sizes": args.hierarchical_context_parallel_sizes,
            "expert_model_parallel_size": args.expert_model_parallel_size,
            "expert_tensor_parallel_size": args.expert_tensor_parallel_size,
            "num_distributed_optimizer_instances": args.num_distributed_optimizer_instances,
            "gtp_remat_size": getattr(args, "gtp_weight_remat_size", 1),
            "expert_gtp_remat_size": getattr(args, "expert_gtp_weight_remat_size", 1),
            "order": "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            "create_gloo_process_groups": False,
        }
        _call(parallel_state.initialize_model_parallel, given)


def core_config(arguments: Any, args: Any) -> Any:
    """Transformer configuration that the arguments make."""
    with step("config"):
        try:
            from megatron.training.argument_utils import core_transformer_config_from_args as make
        except ImportError:
            make = arguments.core_transformer_config_from_args
        return make(args)


def layers_of(args: Any, config: Any) -> list[list[int]]:
    """Layers that Megatron builds for each pipeline rank and virtual stage; every layer must appear exactly once."""
    pattern = _hybrid_pattern(args)
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


def _hybrid_pattern(args: Any) -> str:
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
            return [[len(letters) // stages] for _ in range(stages)]
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
    heads, groups = getattr(config, "mamba_num_heads", None), getattr(config, "mamba_num_groups", None)
    if "M" not in pattern or not heads or not groups:
        return
    tp, cp = config.tensor_model_parallel_size, config.context_parallel_size
    local = groups // tp
    whole = heads % tp == groups % tp == heads % groups == 0 and heads // tp % cp == 0
    if not whole or (local % cp and cp % local):
        raise forks.RefusedError("build", f"{heads} heads and {groups} groups of Mamba-2 over tp {tp}, cp {cp}")


def micro_batches() -> int:
    """Micro-batches of a step, as Megatron counts them."""
    from megatron.core import num_microbatches_calculator as calculator

    return int(calculator.get_num_microbatches())


def schedule_of(args: Any, config: Any, count: int) -> int:
    """Micro-batches of a step; the interleaved schedule's own conditions on them."""
    stages = args.pipeline_model_parallel_size
    group = getattr(config, "microbatch_group_size_per_vp_stage", None)
    group = stages if group is None else group
    if args.virtual_pipeline_model_parallel_size:
        if not stages <= group <= count:
            raise forks.RefusedError("schedule", f"micro-batch group {group} is not from {stages} to {count}")
        if 0 < count % group < stages:
            raise forks.RefusedError(
                "schedule", f"{count} micro-batches leave {count % group} in the last group of {group}"
            )
    return count


def _build_layer(args: Any, config: Any) -> None:
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
    pattern = _hybrid_pattern(args)
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
        _call(ColumnParallelLinear, {"input_size": config.hidden_size, "output_size": width * double, **given})
        _call(
            RowParallelLinear,
            {"input_size": width, "output_size": config.hidden_size, "input_is_parallel": True, **given},
        )


def _layer_specs(args: Any, config: Any) -> None:
    """Ask which layers of the model are dense and which are experts, and which have linear attention."""
    if getattr(config, "experimental_attention_variant", None) == "gated_delta_net":
        from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants

        _call(variants.get_linear_attention_pattern, {"config": copy.deepcopy(config)})
        return
    if config.num_moe_experts and not _hybrid_pattern(args):
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

        given = {"use_transformer_engine": False, "normalization": args.normalization, "vp_stage": 0}
        _call(get_gpt_decoder_block_spec, {"config": copy.deepcopy(config), **given})


def _unlike_layers(args: Any, config: Any) -> list[list[int]]:
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


def optimizer_config(args: Any) -> None:
    """Make the optimizer's configuration as the training loop does; a stand-in plays the fused Adam that a GPU has."""
    with step("build"):
        from megatron.core.optimizer.optimizer_config import OptimizerConfig

        fused = types.ModuleType("transformer_engine.pytorch.optimizers")
        fused.FusedAdam = _fused_adam  # type: ignore[attr-defined]
        parents = {name: types.ModuleType(name) for name in ("transformer_engine", "transformer_engine.pytorch")}
        sys.modules.update({**parents, fused.__name__: fused})
        names = [field.name for field in dataclasses.fields(OptimizerConfig)]
        OptimizerConfig(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def learning_rate(args: Any) -> None:
    """Make the schedule of the learning rate as the training loop does, around an optimizer of no parameters."""
    if args.lr is None or not (args.train_iters or args.train_samples) or getattr(args, "skip_train", False):
        return
    with step("build"):
        from megatron.training import training

        training.get_args = lambda: args
        training.get_optimizer_param_scheduler(types.SimpleNamespace(param_groups=[]))


def _fused_adam(
    params: object,
    master_weight_dtype: object,
    exp_avg_dtype: object,
    exp_avg_sq_dtype: object,
    use_decoupled_grad: object,
) -> None:
    """Have the arguments that Megatron looks for."""


def _all_experts(config: Any) -> bool:
    freq = config.moe_layer_freq
    return config.num_moe_experts is not None and (freq == 1 or (isinstance(freq, list) and 0 not in freq))


def _grid(args: Any, world: int) -> dict[str, Any]:
    return {
        "tp": args.tensor_model_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "cp": args.context_parallel_size,
        "ep": args.expert_model_parallel_size,
        "etp": args.expert_tensor_parallel_size,
        "dp": args.data_parallel_size,
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "sequence_parallel": bool(args.sequence_parallel),
        "world": world,
    }


def _all_groups(args: Any, world: int) -> dict[str, list[list[int]]]:
    """Ranks of every process group by axis, from Megatron's own rank generator."""
    from megatron.core.parallel_state import RankGenerator

    tp, pp, cp = args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.context_parallel_size
    ep, etp = args.expert_model_parallel_size, args.expert_tensor_parallel_size
    order = "tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"
    dense = RankGenerator(tp=tp, ep=1, dp=world // (tp * pp * cp), pp=pp, cp=cp, order=order)
    expert = RankGenerator(tp=etp, ep=ep, dp=world // (etp * ep * pp), pp=pp, cp=1, order=order)
    groups = {axis: dense.get_ranks(axis) for axis in ("tp", "cp", "dp", "pp")}
    if args.num_experts:
        groups |= {"ep": expert.get_ranks("ep"), "edp": expert.get_ranks("dp")}
    return {axis: sorted(ranks) for axis, ranks in groups.items()}


def main() -> int:
    """Answer cases from standard input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capability", choices=sorted(CAPABILITY), default="hopper")
    parser.add_argument("--build", action="store_true", help="build the feed-forward layers too")
    parser.add_argument("--version", action="store_true", help="print the versions and stop")
    options = parser.parse_args()
    arguments = load(options.capability)
    if options.version:
        import megatron.core
        import torch

        print(f"megatron-core {megatron.core.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")
        return 0
    forks.answer_all(lambda case: examine(arguments, case, build=options.build))
    return 0


if __name__ == "__main__":
    sys.exit(main())

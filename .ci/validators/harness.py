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
import dataclasses
import importlib.util
import logging
import os
import sys
import types
import typing
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forks
from built_layers import feed_forward_of, hybrid_pattern, layer_specs_of, layers_of, mixers_of, unlike_layers_of
from stand_ins import Absent, AbsentModules
from steps import call, step

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
    with contextlib.ExitStack() as quiet:
        nowhere = quiet.enter_context(Path(os.devnull).open("w"))  # a file, because core 0.16 asks for its number
        quiet.enter_context(contextlib.redirect_stdout(nowhere))
        quiet.enter_context(contextlib.redirect_stderr(nowhere))
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
                feed_forward_of(args, config)
                layer_specs_of(args, config)
                answer["parameters"] = unlike_layers_of(args, config)
            mixers_of(config, hybrid_pattern(args))
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
        call(calculator.init_num_microbatches_calculator, given)
    with step("schedule"):  # as entering the training loop does
        calculator.update_num_microbatches(0, consistency_check=True)
    return parsed


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
        call(parallel_state.initialize_model_parallel, given)


def core_config(arguments: Any, args: Any) -> Any:
    """Transformer configuration that the arguments make."""
    with step("config"):
        try:
            from megatron.training.argument_utils import core_transformer_config_from_args as make
        except ImportError:
            make = arguments.core_transformer_config_from_args
        return make(args)


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

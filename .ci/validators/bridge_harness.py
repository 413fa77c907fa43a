"""Runs Megatron-Bridge's own override parser and checks on a machine without GPUs.

Standard input holds one JSON object a line, ``{"name", "world_size", "model", "overrides", "environment"}``; ``model``
lists the flags of Megatron-LM that build the recipe's model. Standard output answers with one line each, ``{"name",
"accepted", "step", "error", "layers", "microbatches", "formats"}``. It is imported once; cases run in forked children.

What is real: the default configuration of pre-training recipes, the provider of GPT models, the override grammar
(Hydra's) and how it is laid over the configuration, ``runtime_config_update`` with ``ConfigContainer.validate``,
Megatron-core's process groups (over PyTorch's fake backend) and the layers of every rank and chunk. What stands
in: Transformer Engine, triton and the packages of other modalities, which a CPU machine lacks; the model's sizes, which
a recipe would take from Hugging Face; the interleaved schedule's conditions on micro-batches and that hybrid models
have no virtual stages, which are asked in words.
"""

# ruff: noqa: PLC0415  -- Megatron and PyTorch are imported after their stand-ins are in place

import contextlib
import dataclasses
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import built_layers
import forks
import harness
import steps
from stand_ins import stand_in_for

ABSENT = ("transformer_engine", "megatron.energon", "PIL", "tensorboard", "google", "diffusers", "modelopt")
NOT_SIZES = (
    "parallel",
    "pipeline",
    "recompute",
    "params_dtype",
    "bf16",
    "fp16",
    "fp8",
    "fp4",
    "timers",
    "comm",
    "microbatch",
)
USER = ["--lr", "1e-4", "--train-iters", "10", "--tokenizer-type", "NullTokenizer", "--mock-data"]


def load() -> Any:
    """Import Megatron-Bridge with stand-ins for what a CPU machine lacks."""
    arguments = harness.load("hopper")
    stand_in_for(ABSENT)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from megatron.bridge.models.gpt_provider import GPTModelProvider
        from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
        from megatron.bridge.recipes.common import _peft_common, _pretrain_common
        from megatron.bridge.training.config import runtime_config_update
        from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
    return types.SimpleNamespace(
        arguments=arguments,
        provider=GPTModelProvider,
        hybrid=HybridModelProvider,
        recipe=_pretrain_common,
        adapted=_peft_common,
        override=process_config_with_overrides,
        update=runtime_config_update,
    )


def provider_of(bridge: Any, words: list[str]) -> Any:
    """Provider of the model that flags build, with the sizes alone: degrees and formats are the overrides'."""
    os.environ.update(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    args = harness.parsed_args(bridge.arguments, [*words, *USER, "--micro-batch-size", "1", "--bf16"])
    core = harness.core_config(bridge.arguments, args)
    latent = args.multi_latent_attention
    kind = bridge.hybrid if args.hybrid_layer_pattern else bridge.provider
    if latent:
        from megatron.bridge.models.mla_provider import MLAModelProvider

        kind = MLAModelProvider
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    given = {}
    for field in dataclasses.fields(core):
        value = getattr(core, field.name)
        plain = isinstance(value, (int, float, str, bool, list)) or field.name == "activation_func"
        if field.name in known and plain and not any(word in field.name for word in NOT_SIZES):
            given[field.name] = value
    given |= {"hybrid_layer_pattern": args.hybrid_layer_pattern} if args.hybrid_layer_pattern else {}
    return kind(**{**given, "vocab_size": args.vocab_size or 32000, "seq_length": args.seq_length})


def judge(bridge: Any, case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with steps.step("model"):
        config = bridge.adapted() if case.get("adapted") else bridge.recipe()
        if case.get("adapted"):
            config.checkpoint.pretrained_checkpoint = frozen()
            config.dataset = bridge.recipe().dataset  # as the launch's --dataset mock does
        config.model = provider_of(bridge, case["model"])
        config.tokenizer.tokenizer_type = "NullTokenizer"
        config.tokenizer.vocab_size = config.model.vocab_size
    with steps.step("overrides"):
        config = bridge.override(config, cli_overrides=case["overrides"])
    os.environ["WORLD_SIZE"] = str(case["world_size"])
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS")
    os.environ.update(case["environment"])
    dist.init_process_group("fake", rank=0, world_size=case["world_size"], store=FakeStore())
    with steps.step("validate"):
        bridge.update(config)  # resolves the precision, then validates
    model = config.model
    with steps.step("groups"):
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=model.tensor_model_parallel_size,
            pipeline_model_parallel_size=model.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=model.virtual_pipeline_model_parallel_size,
            context_parallel_size=model.context_parallel_size,
            expert_model_parallel_size=model.expert_model_parallel_size,
            expert_tensor_parallel_size=model.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=config.ddp.num_distributed_optimizer_instances,
            order="tp-cp-ep-pp-dp" if config.dist.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )
    told = types.SimpleNamespace(
        virtual_pipeline_model_parallel_size=model.virtual_pipeline_model_parallel_size,
        pipeline_model_parallel_size=model.pipeline_model_parallel_size,
        num_layers=model.num_layers,
        hybrid_layer_pattern=getattr(model, "hybrid_layer_pattern", None),
    )
    if told.hybrid_layer_pattern and told.virtual_pipeline_model_parallel_size:
        raise forks.RefusedError("build", "virtual stages of a hybrid model")  # asserted where models are built
    built_layers.experts_of(model)
    built_layers.mixers_of(model, told.hybrid_layer_pattern or "")
    layers = built_layers.layers_of(told, model)
    shards = model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size
    samples = config.train.micro_batch_size * (case["world_size"] // shards)
    if config.train.global_batch_size % samples:
        raise forks.RefusedError("batch", f"{config.train.global_batch_size} % {samples}")
    count = config.train.global_batch_size // samples
    harness.schedule_of(told, model, count)
    adapters = {"dim": config.peft.dim, "targets": config.peft.target_modules} if case.get("adapted") else {}
    return {"layers": layers, "microbatches": count, "formats": formats_of(config), "adapters": adapters}


def frozen() -> str:
    """A folder that passes for the checkpoint of a frozen model."""
    folder = Path(tempfile.gettempdir()) / "frozen-model"
    folder.mkdir(exist_ok=True)
    (folder / "run_config.yaml").touch()
    return str(folder)


def formats_of(config: Any) -> dict[str, Any]:
    """Number formats that the launch would run with, after mixed precision was laid over the other sections."""
    model = config.model
    return {
        "fp32_gradients": bool(config.ddp.grad_reduce_in_fp32),
        "weights": str(model.params_dtype),
        "fp8": model.fp8 and model.fp8_recipe,
        "fp4": model.fp4,
    }


def main() -> int:
    """Answer every case of standard input."""
    bridge = load()
    if "--version" in sys.argv:
        import importlib.metadata

        print("megatron-bridge", importlib.metadata.version("megatron-bridge"))
        return 0
    if "--fields" in sys.argv:
        print(json.dumps(sections()))
        return 0
    if "--named" in sys.argv:
        print(json.dumps(named()))
        return 0
    forks.answer_all(lambda case: judge(bridge, case))
    return 0


def named() -> dict[str, dict[str, str]]:
    """Fields of the named configurations of mixed precision where they differ from the defaults."""
    from megatron.bridge.training.mixed_precision import MIXED_PRECISION_RECIPES, MixedPrecisionConfig

    default, told = MixedPrecisionConfig(), {}
    formats = ("params_dtype", "pipeline_dtype", "fp8_param", "fp4_param")  # follow from other fields
    for name, made in MIXED_PRECISION_RECIPES.items():
        found = made()
        fields = [field.name for field in dataclasses.fields(found) if field.name not in formats]
        values = {field: getattr(found, field) for field in fields if getattr(found, field) != getattr(default, field)}
        told[name] = {field: _word(value) for field, value in values.items()}
    return told


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def sections() -> dict[str, list[str]]:
    """Names of the fields of the sections that decide on a layout."""
    import typing

    from megatron.bridge.training.config import ConfigContainer

    found = {}
    hints = typing.get_type_hints(ConfigContainer)
    for name in ("model", "train", "ddp", "optimizer", "checkpoint", "dist"):
        kinds = [kind for kind in (typing.get_args(hints[name]) or (hints[name],)) if dataclasses.is_dataclass(kind)]
        found[name] = sorted({field.name for kind in kinds for field in dataclasses.fields(kind)})
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Runs NeMo 2's own override parser and strategy on a machine without GPUs.

Standard input holds one JSON object a line, ``{"name", "world_size", "sizes", "overrides"}``; ``sizes`` are fields of
NeMo's configuration of GPT models. Standard output answers with one line each, ``{"name", "accepted", "step", "error",
"layers", "microbatches", "formats"}``. It is imported once; cases run in forked children.

What is real: the pre-training recipe of Llama 3 8B with the case's model in it, nemo_run's parser of overrides, the
strategy, precision plugin, model and optimizer that they build, ``MegatronStrategy.connect`` (which lays the degrees
over the model's configuration and validates it, and the number formats over optimizer and ``ddp``), NeMo's
initialisation of Megatron-core's process groups over PyTorch's fake backend, its micro-batch calculator, and the layers
of every rank.
What stands in: Transformer Engine, triton and packages of other modalities; the interleaved schedule's conditions on
micro-batches and that hybrid models have no virtual stages, which are asked in words.
"""

# ruff: noqa: PLC0415  -- NeMo and PyTorch are imported after their stand-ins are in place

import contextlib
import importlib.metadata
import io
import logging
import os
import sys
import types
import typing
import warnings
from typing import Any

import built_layers
import forks
import harness
import steps
from stand_ins import stand_in_for

ABSENT = ("transformer_engine", "triton", "onnx", "pandas", "modelopt", "leptonai", "sklearn", "tensorboard", "wget")
ABSENT += ("sentencepiece", "datasets", "google")
VERSIONS = {"transformer-engine": harness.TRANSFORMER_ENGINE, "transformer_engine": harness.TRANSFORMER_ENGINE}


def load() -> Any:
    """Import NeMo with stand-ins for what a CPU machine lacks."""
    os.environ.update(TORCHDYNAMO_DISABLE="1", TORCH_COMPILE_DISABLE="1", WORLD_SIZE="1", RANK="0", LOCAL_RANK="0")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    import torch
    import torch._dynamo
    import torch.utils.flop_counter

    told = importlib.metadata.version
    importlib.metadata.version = lambda name: VERSIONS.get(name) or told(name)
    stand_in_for(ABSENT)
    shape = types.SimpleNamespace(major=9, minor=0, name="stand-in")
    torch.cuda.get_device_capability = lambda *_a, **_k: (9, 0)
    torch.cuda.get_device_properties = lambda *_a, **_k: shape
    torch.cuda.current_device = lambda: 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import fiddle
        import nemo_run
        from nemo.collections import llm
        from nemo.lightning import _strategy_lib
        from nemo.lightning.data import setup_microbatch_calculator
        from nemo_run.cli.cli_parser import parse_cli_args
    return types.SimpleNamespace(
        build=fiddle.build,
        config=nemo_run.Config,
        llm=llm,
        strategy=_strategy_lib,
        batches=setup_microbatch_calculator,
        parse=parse_cli_args,
    )


def recipe_of(nemo: Any, case: dict[str, Any]) -> Any:
    """The recipe with the case's model, and overrides laid over it."""
    with steps.step("model"):
        recipe = nemo.llm.llama3_8b.pretrain_recipe(dir=None, name="case")
        hybrid = "hybrid_override_pattern" in case["sizes"]
        kinds = (nemo.llm.MambaModel, nemo.llm.SSMConfig) if hybrid else (nemo.llm.GPTModel, nemo.llm.GPTConfig)
        recipe.model = nemo.config(kinds[0], config=nemo.config(kinds[1], **case["sizes"]))
    with steps.step("overrides"):
        return nemo.parse(recipe, case["overrides"])


def judge(nemo: Any, case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    recipe, world = recipe_of(nemo, case), case["world_size"]
    os.environ["WORLD_SIZE"] = str(world)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    with steps.step("build"):
        strategy, plugin = nemo.build(recipe.trainer.strategy), nemo.build(recipe.trainer.plugins)
        model, optimizer = nemo.build(recipe.model), nemo.build(recipe.optim)
        model.optim = optimizer
        strategy._precision_plugin = plugin
    with steps.step("connect"):
        strategy.connect(model)
    with steps.step("groups"):
        degrees = strategy.parallelism
        shards = degrees.tensor_model_parallel_size * degrees.pipeline_model_parallel_size
        if world % (shards * degrees.context_parallel_size):
            raise ValueError(f"world size {world} does not divide by {shards * degrees.context_parallel_size}")
        degrees.use_gloo_process_groups = False
        nemo.strategy.init_parallel_ranks(world, 0, 0, degrees)
        nemo.strategy.init_model_parallel(model)
    config = model.config
    told = types.SimpleNamespace(  # as many models a rank as the strategy says, whatever the layout makes of it
        virtual_pipeline_model_parallel_size=strategy.virtual_pipeline_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        num_layers=config.num_layers,
        hybrid_override_pattern=getattr(config, "hybrid_override_pattern", None),
    )
    if told.hybrid_override_pattern and told.virtual_pipeline_model_parallel_size:
        raise forks.RefusedError("build", "virtual stages of a hybrid model")  # asserted where models are built
    built_layers.experts_of(config)
    built_layers.mixers_of(config, told.hybrid_override_pattern or "")
    layers = built_layers.layers_of(told, config)
    with steps.step("batch"):
        nemo.batches(0, recipe.data.micro_batch_size, recipe.data.global_batch_size, None)
    count = harness.micro_batches()
    harness.schedule_of(told, config, count)
    formats = {
        "fp32_gradients": bool(strategy.ddp_config.grad_reduce_in_fp32),
        "sharded_optimizer": bool(strategy.ddp_config.use_distributed_optimizer),
        "fp8": config.fp8 and config.fp8_recipe,
    }
    return {"layers": layers, "microbatches": count, "formats": formats}


def main() -> int:
    """Answer every case of standard input."""
    nemo = load()
    if "--version" in sys.argv:
        print("nemo-toolkit", importlib.metadata.version("nemo-toolkit"), end=", ")
        print("megatron-core", importlib.metadata.version("megatron-core"))
        return 0
    forks.answer_all(lambda case: judge(nemo, case))
    return 0


if __name__ == "__main__":
    sys.exit(main())

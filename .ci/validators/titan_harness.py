"""Runs torchtitan's own checks on a machine without GPUs.

Standard input holds one JSON object a line, ``{"name", "world_size", "rank", "args"}``; standard output answers with
one line each, ``{"name", "accepted", "step", "error", "layers", "groups", "model", "microbatches", "chunks",
"launch"}``, where ``launch`` says what the command line and its configuration come to. torchtitan is imported once;
every case runs in a forked child, because process groups are global.

What is real: the configuration registry and its command line (``ConfigManager``, tyro), the checks of
``Trainer.Config`` and of the model's ``update_from_config``, the device meshes of ``ParallelDims`` (over PyTorch's fake
backend), the split of modules into pipeline stages, and the schedule with its checks. What stands in: ``triton``, and
the model whose modules are split (empty modules with the model's names). Two checks of ``Trainer.__init__`` and one of
``ChunkedLossWrapper``, which need GPUs, are asked here in words: whole gradient accumulation, the sequence's divisors.
"""

# ruff: noqa: PLC0415  -- torchtitan and PyTorch are imported after their stand-ins are in place

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import sys
import types
import warnings
from typing import Any

import forks
from stand_ins import AbsentModules


def load() -> Any:
    """Import torchtitan; returns the class that reads its command line."""
    os.environ.update(TORCHDYNAMO_DISABLE="1", TORCH_COMPILE_DISABLE="1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    for name in ("torch._dynamo", "torch.utils.flop_counter"):  # both look for triton: before the stand-in
        importlib.import_module(name)

    if importlib.util.find_spec("triton") is None:
        sys.meta_path.append(AbsentModules("triton"))
    from torchtitan.config import ConfigManager

    return ConfigManager


def read_config(manager: Any, words: list[str]) -> Any:
    """Ask the real command line; tyro leaves the process when it refuses."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            return manager().parse_args(words)
    except SystemExit:
        raise forks.RefusedError("parse", " ".join(text.getvalue().split())[-600:]) from None
    except Exception as error:
        raise forks.RefusedError("parse", f"{type(error).__name__}: {error}") from None


def check_trainer(config: Any, dims: Any) -> None:
    """State what ``Trainer.__init__`` asks before it needs a GPU: model, sequence, batch."""
    try:
        config.model_spec.model.update_from_config(config=config)
    except Exception as error:
        raise forks.RefusedError("model", f"{type(error).__name__}: {error}") from None
    sequence = dims.tp if config.parallelism.enable_sequence_parallel else 1
    sequence *= 2 * dims.cp if dims.cp > 1 else 1
    if config.training.seq_len % sequence:
        raise forks.RefusedError("trainer", f"sequence {config.training.seq_len} % {sequence}")
    if config.training.seq_len // dims.cp % config.loss.num_chunks:
        raise forks.RefusedError("trainer", f"sequence {config.training.seq_len // dims.cp} % {config.loss.num_chunks}")
    local = config.training.local_batch_size * dims.dp_replicate * dims.dp_shard
    batch = config.training.global_batch_size
    config.training.global_batch_size = batch = local if batch < 0 else batch
    if batch <= 0 or batch % local:
        raise forks.RefusedError("trainer", f"global batch {batch} % {local}")


def skeleton(layers: int) -> Any:
    """Empty modules with the names of a decoder's."""
    import torch

    parts = {"tok_embeddings": torch.nn.Identity(), "norm": torch.nn.Identity(), "lm_head": torch.nn.Identity()}
    model = torch.nn.Module()
    for name, part in parts.items():
        model.add_module(name, part)
    model.add_module("layers", torch.nn.ModuleDict({str(index): torch.nn.Identity() for index in range(layers)}))
    return model


def split(config: Any, dims: Any) -> tuple[list[list[int]], int]:
    """Layers of every stage and chunk as the real code splits modules, and micro-batches of the real schedule."""
    import torch
    from torchtitan.distributed import pipeline_parallel

    layers = len(config.model_spec.model.layers)
    if dims.pp == 1:
        local = config.training.local_batch_size * dims.dp_replicate * dims.dp_shard
        return [[layers]], config.training.global_batch_size // local
    parallelism, whole = config.parallelism, skeleton(layers)
    names = parallelism.module_fqns_per_model_part
    if names is None:
        metadata = pipeline_parallel._get_pipeline_metadata(dims, parallelism, config.model_spec.model)
        names = pipeline_parallel._generate_llm_fqn_per_model_part(*metadata)
    mesh, found, seen = dims.get_mesh("pp"), [], []
    own_stages: list[Any] = []
    for rank in range(dims.pp):
        stand_in = types.SimpleNamespace(
            get_local_rank=lambda rank=rank: rank, size=lambda: dims.pp, get_group=mesh.get_group
        )
        stages, models = pipeline_parallel._pipeline_module_split(
            whole, stand_in, parallelism.pipeline_parallel_schedule, torch.device("cpu"),
            names,
        )  # fmt: skip
        if rank == mesh.get_local_rank():
            own_stages = stages
        found.append([len(model.layers) if model.layers is not None else 0 for model in models])
        seen += [int(name) for model in models if model.layers is not None for name in model.layers]
    if sorted(seen) != list(range(layers)):
        raise forks.RefusedError("layers", f"layers {sorted(seen)} of {layers}")
    schedule = pipeline_parallel._build_pipeline_schedule(
        parallelism=parallelism,
        local_batch_size=config.training.local_batch_size,
        stages=own_stages,
        loss_fn=lambda *_: (None, None),
    )
    return found, int(schedule._n_microbatches)


def groups(dims: Any) -> dict[str, list[int]]:
    """Ranks that this rank shares an axis with, by axis."""
    names = ["pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "efsdp"]
    found = {}
    for name in names:
        mesh = dims.get_optional_mesh(name)
        if mesh is not None:
            found[name] = [int(rank) for rank in mesh.mesh.flatten().tolist()]
    return found


def sizes(model: Any) -> dict[str, int]:
    """Sizes of the model that the configuration builds."""
    last = model.layers[-1]
    dense = [layer.feed_forward.w1.out_features for layer in model.layers if getattr(layer, "feed_forward", None)]
    moe = getattr(last, "moe", None)
    return {
        "layers": len(model.layers),
        "hidden": model.dim,
        "heads": last.attention.n_heads,
        "kv_heads": getattr(last.attention, "n_kv_heads", None) or last.attention.n_heads,
        "ffn": dense[0] if dense else 0,
        "experts": (getattr(moe, "num_experts", None) or moe.router.num_experts) if moe else 0,
        "vocab": model.vocab_size,
    }


def judge(manager: Any, case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import ParallelDims

    config = read_config(manager, case["args"])
    dist.init_process_group("fake", rank=case["rank"], world_size=case["world_size"], store=FakeStore())
    try:
        dims = ParallelDims.from_config(config.parallelism, case["world_size"])
        dims.build_mesh()
    except Exception as error:
        raise forks.RefusedError("mesh", f"{type(error).__name__}: {error}") from None
    found = sizes(config.model_spec.model)
    check_trainer(config, dims)
    try:
        layers, microbatches = split(config, dims)
    except forks.RefusedError:
        raise
    except Exception as error:
        raise forks.RefusedError("pipeline", f"{type(error).__name__}: {error}") from None
    chunks = config.loss.num_chunks
    answer = {"layers": layers, "microbatches": microbatches, "groups": groups(dims), "model": found, "chunks": chunks}
    return {**answer, "launch": launch_of(config, dims)}


def launch_of(config: Any, dims: Any) -> dict[str, Any]:
    """Settings that the command line and its configuration come to."""
    from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy

    training, parallelism = config.training, config.parallelism
    kept = config.activation_checkpoint
    return {
        "tp": dims.tp,
        "cp": dims.cp,
        "pp": dims.pp,
        "ep": dims.ep,
        "replicate": dims.dp_replicate,
        "shard": dims.dp_shard,
        "local_batch": training.local_batch_size,
        "batch": training.global_batch_size,
        "seq": training.seq_len,
        "param": training.mixed_precision_param,
        "sequence_parallel": parallelism.enable_sequence_parallel,
        "resharded": get_fsdp_reshard_after_forward_policy(parallelism.fsdp_reshard_after_forward, dims.pp > 1),
        "checkpoint": type(kept).__qualname__.partition(".")[0] if kept is not None else "",
    }


def fields() -> dict[str, list[str]]:
    """Names of the options of the sections that decide on a layout."""
    import dataclasses

    from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig

    sections = {"training": TrainingConfig, "parallelism": ParallelismConfig, "compile": CompileConfig}
    return {name: [field.name for field in dataclasses.fields(section)] for name, section in sections.items()}


def settings(module: str, config: str) -> dict[str, Any]:
    """Settings of a registered configuration that differ from the sections' defaults, and names of its other fields."""
    import dataclasses

    made = getattr(importlib.import_module(f"torchtitan.models.{module}.config_registry"), config)()
    changed, others = {}, {}
    for section in dataclasses.fields(made):
        value = getattr(made, section.name)
        if section.name in ("training", "parallelism", "compile"):
            plain = type(value)()
            names = [field.name for field in dataclasses.fields(value)]
            found = {name: getattr(value, name) for name in names if getattr(value, name) != getattr(plain, name)}
            changed[section.name] = {name: entry for name, entry in found.items() if name != "steps"}
        elif section.name == "loss":
            changed["loss"] = {"num_chunks": value.num_chunks}
            others["loss"] = ["loss_fn"]
        elif section.name not in ("model_spec", "activation_checkpoint"):
            inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
            others[section.name] = sorted(field.name for field in inner)
    checkpoint = type(made.activation_checkpoint).__qualname__.partition(".")[0]
    return {"changed": changed, "checkpoint": checkpoint, "others": others}


def main() -> int:
    """Answer every case of standard input."""
    manager = load()
    if "--version" in sys.argv:
        import importlib.metadata

        print("torchtitan", importlib.metadata.version("torchtitan"))
        return 0
    if "--fields" in sys.argv:
        print(json.dumps(fields()))
        return 0
    if "--settings" in sys.argv:
        print(json.dumps([settings(*pair.split(":")) for pair in sys.argv[sys.argv.index("--settings") + 1 :]]))
        return 0
    forks.answer_all(lambda case: judge(manager, case))
    return 0


if __name__ == "__main__":
    sys.exit(main())

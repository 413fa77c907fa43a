"""Random launches as users write them: DeepSpeed's JSON, torchtitan's options, Megatron-Bridge's overrides."""

import random
from collections.abc import Sequence
from typing import Any

from costmodels.workload.presets import model
from planner.export.megatron_model import model_arguments
from planner.ingest.deepspeed.sections import key_table
from planner.ingest.torchtitan.models import model_of_config, registry
from planner.rules import facts_of

Case = dict[str, Any]
MODELS = ("llama3_8b", "llama3_70b", "gpt2_xl", "mixtral_8x22b", "qwen25_32b")
ODD = ("auto", None, "true", "yes", 1, 0, 1.0, "x", -1, 5e8, "5e8", "500", 1.5, [], {}, True, False, 3, "cpu")


def deepspeed_case(rng: random.Random) -> Case:
    """A configuration with its program's degrees; about half are refused by DeepSpeed itself."""
    name = rng.choice(MODELS)
    facts = facts_of(model(name))
    tp, pp, dp = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2, 4, 8, 3)), rng.choice((1, 2, 4, 8, 16))
    method = rng.choice(("type:transformer", "type:transformer", "type:transformer|embedding", "uniform"))
    words = ["--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(pp)]
    words += ["--seq-length", "1024", *(["--pp-partition-method", method] if pp > 1 else [])]
    config = _batch(rng, dp)
    if rng.random() < 0.9:
        config["zero_optimization"] = _zero(rng, pp)
    config |= rng.choice(({"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}, {"bf16": {"enabled": "auto"}}, {}))
    for section in ("bf16", "fp16"):
        if section in config and rng.random() < 0.3:
            config[section][rng.choice(list(key_table()["sections"][section]))] = rng.choice(ODD)
    if rng.random() < 0.15:
        wrong = ("trian_batch_size", "zero_optimisation", *key_table()["removed"], *key_table()["objects"])
        config[rng.choice(wrong)] = rng.choice((True, {}, 1))
    if rng.random() < 0.1:
        config["communication_data_type"] = rng.choice(("fp16", "fp32", "fp8"))
    degrees = {"tp": tp, "pp": pp, "dp": dp, "data": dp, "layers": facts.layers, "world_size": tp * pp * dp}
    return {"name": name, "config": config, "words": words, "method": method, "tied": not facts.untied, **degrees}


def _batch(rng: random.Random, dp: int) -> Case:
    micro, steps = rng.choice((1, 2, 4)), rng.choice((1, 2, 4, 8, 3))
    batch = micro * steps * dp + (rng.choice((1, dp)) if rng.random() < 0.1 else 0)
    whole = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
    return {key: value for key, value in whole.items() if rng.random() < 0.8}


def _zero(rng: random.Random, pp: int) -> Case:
    kinds = key_table()["sections"]["zero_optimization"]
    section: Case = {"stage": rng.choice((0, 1, 1, 2) if pp > 1 else (0, 1, 2, 3, 3, "auto", "2"))}
    if rng.random() < 0.3:
        device = rng.choice(("cpu", "cpu", "nvme", "none", "disk"))
        section["offload_optimizer"] = {"device": device}
    for _ in range(rng.choice((0, 0, 1, 2))):
        key = rng.choice([name for name, kind in kinds.items() if kind not in ("table", "stage")])
        if not {key, f"stage3_{key}", key.removeprefix("stage3_")} & section.keys():
            plain = True if kinds[key] == "flag" else 500_000_000
            section[key] = rng.choice(ODD) if rng.random() < 0.4 else plain
    if rng.random() < 0.05:
        section[rng.choice(("overlapcomm", "mics_shard_size"))] = 1
    return section


def titan_case(rng: random.Random) -> Case:
    """Options over a configuration of the registry, most of them left out."""
    entries = [entry for entry in registry() if "precision" not in entry and model_of_config(entry["config"])]
    entry = rng.choice(entries)
    tp = rng.choice([degree for degree in (1, 1, 2, 4, 8) if entry["kv_heads"] % degree == 0])
    pp, replicas, shard = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2)), rng.choice((1, 2, 4))
    words = ["--module", entry["module"], "--config", entry["config"]]
    options = [
        ("parallelism.tensor_parallel_degree", (tp,), 1.0),
        ("parallelism.pipeline_parallel_degree", (pp,), 1.0),
        ("parallelism.data_parallel_replicate_degree", (replicas,), 1.0),
        ("parallelism.expert_parallel_degree", (1, 2, 4), 0.7),
        ("training.local_batch_size", (4, 8, 16, 3), 0.7),
        ("training.seq_len", (2048, 4096), 0.4),
        ("parallelism.fsdp_reshard_after_forward", ("default", "always", "never", "sometimes"), 0.3),
        ("parallelism.pipeline_parallel_schedule", ("1F1B", "GPipe", "Interleaved1F1B", "DualPipeV", "X"), 0.5),
        ("parallelism.pipeline_parallel_first_stage_less_layers", (0, 1, 2, 9), 0.15),
        ("metrics.log_freq", (5,), 0.1),
        ("optimizer.lr", (1e-4,), 0.05),
    ]
    for name, values, share in options:
        if rng.random() < share:
            words += [f"--{name}", str(rng.choice(values))]
    words += ["--training.disable_cuda_graphs"] if rng.random() < 0.8 else []
    words += ["--compile.enable_async_tensor_parallel"] if rng.random() < 0.1 else []
    kept = ("full", "none", "selective", "memory-budget")
    words += [f"activation-checkpoint:{rng.choice(kept)}"] if rng.random() < 0.5 else []
    return {"name": entry["config"], "world_size": tp * pp * replicas * shard, "rank": 0, "args": words, "words": words}


def bridge_case(rng: random.Random) -> Case:
    """Overrides of a recipe whose model has the sizes of a preset."""
    name = rng.choice(("llama3_8b", "llama3_70b", "qwen3_30b_a3b", "qwen25_32b"))
    spec, seq = model(name), rng.choice((2048, 4096, 2050))
    tp, pp, cp, dp = rng.choice((1, 2, 4)), rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2)), rng.choice((1, 2, 4))
    words = [f"model.tensor_model_parallel_size={tp}", f"model.pipeline_model_parallel_size={pp}"]
    words += [f"model.context_parallel_size={cp}", f"model.seq_length={seq}", f"dataset.seq_length={seq}"]
    micro, steps = rng.choice((1, 2)), rng.choice((1, 4, 8, 6))
    words += [f"train.micro_batch_size={micro}", f"train.global_batch_size={micro * steps * dp}"]
    words += [f"model.sequence_parallel={str(tp > 1 and rng.random() < 0.8).lower()}"]
    words += [f"model.expert_model_parallel_size={rng.choice((1, 2, 4))}"] if facts_of(spec).experts else []
    extra: Sequence[str] = (
        "model.virtual_pipeline_model_parallel_size=2",
        "model.recompute_granularity=full",
        "ddp.overlap_param_gather=true",
        "optimizer.use_distributed_optimizer=false",
        "mixed_precision=bf16_with_fp8_current_scaling_mixed",
        "dist.use_tp_pp_dp_mapping=true",
        "+model.tensor_model_parallel_size=2",
        "model.tensor_model_paralel_size=2",
        "optimizer.optimizer_cpu_offload=true",
    )
    words += [word for word in extra if rng.random() < 0.12]
    told = {"model": list(model_arguments(spec, seq)), "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
    return {"name": name, "world_size": tp * pp * cp * dp, "overrides": words, "words": words, **told}

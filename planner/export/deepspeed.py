"""A plan as a DeepSpeed launch: ``ds_config.json``, and the degrees in Megatron-DeepSpeed's words.

DeepSpeed cuts a pipeline evenly and has no list of layers for each stage; another split is refused with the nearest
one.
Every export is read back with :mod:`planner.ingest.deepspeed.configuration` before it is handed out.

References
----------
DeepSpeed 0.19: ``runtime/config.py``, ``runtime/pipe/module.py``, ``runtime/pipe/topology.py`` (axes pipe, data,
model).
Megatron-DeepSpeed ``megatron/arguments.py``.
"""

import json
from typing import Any, Final

from costmodels.job import TrainingJob
from costmodels.layout import Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.export.deepspeed_model import left_open, model_words
from planner.export.launch import Export, Planned, Program
from planner.export.plan_checks import (
    check_rules,
    check_sizes,
    one_grid,
    placed_environment,
    refuse_adapters,
    refuse_linear_loss,
    whole_or_no_recompute,
)
from planner.ingest.deepspeed.configuration import balanced_layers, layout_of, parse_deepspeed
from planner.ingest.deepspeed.sections import MOST_STAGE
from planner.ingest.plain_layout import same_launch
from planner.offloads import keeps_inputs_there
from planner.request import Framework
from planner.rules.proposal import facts_of
from planner.rules.table import resolve_version

CONFIG: Final = "ds_config.json"
_HALF: Final = ("bf16", "fp16")
_HALF_BYTES: Final = 2.0
_PROGRAM: Final = Program(
    target=f'"$TRAIN_SCRIPT" --deepspeed --deepspeed_config "$here/{CONFIG}"',
    script="/path/to/Megatron-DeepSpeed/pretrain_gpt.py",
    user_words="--lr 1e-4 --train-iters 20",
    user_says="data, tokenizer, learning rate, checkpoints",
)


def export_deepspeed(plan: Planned) -> Export:
    """Write a plan as a DeepSpeed launch.

    Parameters
    ----------
    plan : Planned
        One grid, an even split.

    Returns
    -------
    Export
        Accepted by the rules, read back as the same layout; ``ds_config.json`` is among its files.

    Raises
    ------
    InputError
        A part of the layout cannot be said to DeepSpeed; the message names it, and the nearest plan that can.
    """
    model, job, layout = plan.model, plan.job, plan.layout
    known = resolve_version(Framework.DEEPSPEED, plan.version)
    check_sizes(plan)
    refuse_adapters(plan.job, "Megatron-DeepSpeed")
    refuse_linear_loss(plan.job, "Megatron-DeepSpeed", "it has none; trainers of Hugging Face have liger and cut")
    grid = one_grid(layout, "DeepSpeed")
    check_rules(plan, Framework.DEEPSPEED, known)
    _check_pipeline(layout)
    full = whole_or_no_recompute(layout, "DeepSpeed")
    config = json.dumps(ds_config(job, layout, grid, full=full), indent=2) + "\n"
    arguments = (
        *_degree_arguments(model, layout, grid),
        *model_words(model),
        *_batch_arguments(job, layout, full=full),
    )
    read = layout_of(parse_deepspeed(config, arguments, world=layout.gpus), facts_of(model))
    if not same_launch(read, layout, experts=model.has_experts):
        raise InputError("the files do not read back as the plan", allowed="report this as an error of the exporter")
    return Export(
        framework=Framework.DEEPSPEED,
        version=known,
        arguments=arguments,
        environment=(("CUDA_DEVICE_MAX_CONNECTIONS", "1"), *placed_environment(plan.placement)),
        nodes=plan.nodes,
        ranks=plan.ranks,
        notes=_notes(model, layout),
        program=_PROGRAM,
        files=((CONFIG, config),),
    )


def ds_config(job: TrainingJob, layout: Layout, grid: Strategy, *, full: bool) -> dict[str, Any]:
    """Values of ``ds_config.json``.

    Parameters
    ----------
    job : TrainingJob
        Batch, precision and what the software overlaps.
    layout : Layout
        The plan.
    grid : Strategy
        Its grid.
    full : bool
        Every layer recomputes.

    Raises
    ------
    InputError
        The precision is none of DeepSpeed's.
    """
    sharding: dict[str, Any] = {"stage": grid.zero, "contiguous_gradients": True}
    if grid.zero:
        # of stage 3 the option says whether gathers run ahead: reductions take turns with them either way
        beside = job.software.param_overlap if grid.zero == MOST_STAGE else job.software.grad_overlap
        sharding |= {"overlap_comm": beside, "reduce_scatter": True}
    if grid.zero and (job.software.optimizer_offload or job.software.state_offload):
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **_ratio(job, grid)}
    if grid.zero == MOST_STAGE and job.software.state_offload:
        sharding["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_microbatches,
        "zero_optimization": sharding,
        "gradient_clipping": 1.0,
        "steps_per_print": 10,
        **_precision(job, grid),
    }
    if layout.pp > 1:
        config["pipeline"] = {
            "stages": layout.pp,
            "partition": "type:transformer",
            "activation_checkpoint_interval": int(full),
        }
    if full:
        config["activation_checkpointing"] = {"partition_activations": False, "contiguous_memory_optimization": False}
    if full and keeps_inputs_there(job.software):
        config["activation_checkpointing"]["cpu_checkpointing"] = True
    return config


def _ratio(job: TrainingJob, grid: Strategy) -> dict[str, float]:
    """The part of the optimizer's states in the host, where it is not all of them."""
    share = job.software.share_in_host
    if share < 1.0 and grid.zero != MOST_STAGE:
        raise InputError(f"optimizer_offload_share {share:g} with ZeRO-{grid.zero}", allowed="ZeRO-3, or a share of 1")
    return {"ratio": share} if share < 1.0 else {}


def _precision(job: TrainingJob, grid: Strategy) -> dict[str, Any]:
    name = job.precision.name.partition("-")[0]
    if name == "fp32":
        return {}
    if name not in _HALF:
        raise InputError(f"precision {job.precision.name} has no section in {CONFIG}", allowed="bf16, fp16, fp32")
    gradient = job.software.gradient_bytes or job.precision.gradient_bytes
    config: dict[str, Any] = {name: {"enabled": True}}
    if name == "bf16":
        if gradient != _HALF_BYTES and not grid.zero:
            raise InputError(
                f"gradients of {gradient:g} bytes a parameter without ZeRO, which DeepSpeed sums in bf16 since 0.17.6",
                allowed="ZeRO 1 to 3, or gradient_bytes=2",
            )
        config["data_types"] = {"grad_accum_dtype": "bf16" if gradient == _HALF_BYTES else "fp32"}
    return config


def _check_pipeline(layout: Layout) -> None:
    if layout.pp > 1 and layout.schedule is not Schedule.ONE_F_ONE_B:
        raise InputError(f"schedule {layout.schedule}", allowed="1f1b in DeepSpeed")
    held = tuple(stage.layers for stage in layout.stages)
    even = balanced_layers(layout.layers, layout.pp)
    if held != even:
        raise InputError(
            f"layers per stage {','.join(map(str, held))}: DeepSpeed cuts a pipeline evenly",
            allowed=f"the nearest that it can: --layers-per-stage {','.join(map(str, even))} (plan estimate prices it)",
        )


def _degree_arguments(model: ModelSpec, layout: Layout, grid: Strategy) -> list[str]:
    arguments = [
        *("--tensor-model-parallel-size", str(grid.tp)),
        *("--pipeline-model-parallel-size", str(layout.pp)),
        *("--zero-stage", str(grid.zero)),
    ]
    arguments += ["--no-pipeline-parallel"] if layout.pp == 1 else []
    arguments += ["--ds-sequence-parallel-size", str(grid.cp)] if grid.cp > 1 else []
    arguments += ["--sequence-parallel"] if grid.sequence_parallel and grid.tp > 1 else []
    if model.has_experts:
        arguments += ["--moe-expert-parallel-size", str(grid.ep)]
        if grid.etp not in (1, grid.tp):
            raise InputError(f"etp {grid.etp} with tp {grid.tp}", allowed=f"1 or {grid.tp} in DeepSpeed")
        arguments += ["--enable-expert-tensor-parallelism"] if grid.etp > 1 else []
    facts = facts_of(model)
    sizes = (
        ("--num-layers", facts.layers),
        ("--hidden-size", facts.hidden),
        ("--num-attention-heads", facts.heads),
        ("--num-key-value-heads", facts.kv_heads),
        ("--ffn-hidden-size", facts.expert_ffn or facts.ffn),
        ("--num-experts", facts.experts),
        ("--topk", facts.top_k),
    )
    return [*arguments, *(word for name, size in sizes if size for word in (name, str(size)))]


def _batch_arguments(job: TrainingJob, layout: Layout, *, full: bool) -> list[str]:
    arguments = [
        *("--micro-batch-size", str(layout.micro_batch), "--global-batch-size", str(job.global_batch)),
        *("--seq-length", str(job.seq), "--max-position-embeddings", str(job.seq)),
    ]
    name = job.precision.name.partition("-")[0]
    arguments += [f"--{name}"] if name in _HALF else []
    return [*arguments, *(["--checkpoint-activations", "--deepspeed-activation-checkpointing"] if full else [])]


def _notes(model: ModelSpec, layout: Layout) -> tuple[str, ...]:
    notes = [
        "data, tokenizer and learning rate are yours to add",
        "start it as launch.sh does: the deepspeed launcher sorts the GPUs of a node and undoes a placement",
    ]
    if left := left_open(model):
        notes.append(
            f"Megatron-DeepSpeed has no option for {', '.join(left)} of {model.name}: the program must have it"
        )
    if layout.pp > 1:
        notes.append(
            "the partition counts layers whose class has 'transformer' in its name, as Megatron-DeepSpeed's have"
        )
    if layout.pp > 1 and model.has_experts:
        notes.append("Megatron-DeepSpeed's own pipelined model has no experts: your PipelineModule must hold them")
    return tuple(notes)

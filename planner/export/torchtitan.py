"""A plan as a torchtitan launch: a configuration of its registry, and the options that make it this plan.

Every export is read back with :mod:`planner.ingest.torchtitan.command_line` before it is handed out.

References
----------
torchtitan 0.3.0: ``config/configs.py`` (options), ``trainer.py`` (batch), ``distributed/parallel_dims.py`` (mesh of pp,
dp_replicate, dp_shard, cp, tp, with tp fastest), ``distributed/pipeline_parallel.py`` (stages by module names),
``models/common/moe_sharding.py`` (experts over ep, or over tp without ep).
"""

from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from costmodels.job import TrainingJob
from costmodels.layout import TITAN_SELECTIVE, Layout, Strategy
from costmodels.pipeline.schedules import Schedule, positions
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.export.launch import Export, Planned, Program
from planner.export.plan_checks import (
    check_rules,
    check_sizes,
    one_grid,
    placed_environment,
    refuse_adapters,
    whole_or_no_recompute,
)
from planner.ingest.plain_layout import same_launch
from planner.ingest.torchtitan.command_line import CHUNKS, layout_of, parse_torchtitan
from planner.ingest.torchtitan.models import registry, same_sizes
from planner.ingest.torchtitan.stages import round_group
from planner.request import Framework
from planner.rules.proposal import ModelFacts, facts_of
from planner.rules.table import resolve_version
from planner.variants import SCHEDULE, notes_of

_SCHEDULES: Final = MappingProxyType(
    {
        Schedule.ONE_F_ONE_B: "1F1B",
        Schedule.INTERLEAVED: "Interleaved1F1B",
        Schedule.GPIPE: "GPipe",
        Schedule.ZBV: "ZBVZeroBubble",
        Schedule.LOOPED_BFS: "LoopedBFS",
        Schedule.INTERLEAVED_ZB: "InterleavedZeroBubble",
        Schedule.DUALPIPEV: "DualPipeV",
    }
)
_RESHARD: Final = MappingProxyType({0: "default", 2: "never", 3: "always"})
_PURE: Final = "bf16-pure"
_OF_CONFIGURATIONS: Final = MappingProxyType({"fp8-cs-fsdp": "fp8-cs", "mxfp8-fsdp": "mxfp8"})
"""Recipes that are part of a configuration, by the names that the registry has for them."""
_DTYPES: Final = MappingProxyType(
    {
        **dict.fromkeys(("bf16", "bf16-fsdp", _PURE, *_OF_CONFIGURATIONS), "bfloat16"),
        "fp32": "float32",
    }
)
_PROGRAM: Final = Program(
    target="-m torchtitan.train",
    script="",
    user_words="",
    user_says="data, steps, checkpoints, such as --training.steps 20",
    user_first=True,
)


def export_torchtitan(plan: Planned) -> Export:
    """Write a plan as a torchtitan launch.

    Parameters
    ----------
    plan : Planned
        One grid for the whole model, which must be one of torchtitan's registry.

    Returns
    -------
    Export
        Accepted by the rules, read back as the same layout.

    Raises
    ------
    InputError
        A part of the model or of the layout cannot be said to torchtitan; the message names it.
    """
    model, job, layout = plan.model, plan.job, plan.layout
    known = resolve_version(Framework.TORCHTITAN, plan.version)
    check_sizes(plan)
    refuse_adapters(job, "torchtitan, whose options have none")
    grid = one_grid(layout, "torchtitan")
    _schedule_of(layout)
    check_rules(plan, Framework.TORCHTITAN, known)
    arguments = launch_arguments(model, job, layout, grid)
    export = Export(
        framework=Framework.TORCHTITAN,
        version=known,
        arguments=arguments,
        environment=(("PYTORCH_ALLOC_CONF", "expandable_segments:True"), *placed_environment(plan.placement)),
        nodes=plan.nodes,
        ranks=plan.ranks,
        notes=(
            "data, tokenizer, learning rate, steps and checkpoints are those of the configuration unless you add yours",
            *notes_of(((SCHEDULE, layout.schedule.value),) if layout.pp > 1 else (), Framework.TORCHTITAN),
        ),
        program=_PROGRAM,
    )
    launch = parse_torchtitan(arguments, world=layout.gpus)
    read, loss = layout_of(launch, facts_of(model)), job.software.linear_loss
    same = same_launch(read, layout, experts=model.has_experts)
    if not same or launch.loss_chunks != (loss.chunks if loss else 1):
        raise InputError(
            "the arguments do not read back as the plan", allowed="report this as an error of the exporter"
        )
    return export


def launch_arguments(model: ModelSpec, job: TrainingJob, layout: Layout, grid: Strategy) -> tuple[str, ...]:
    """Arguments that say a layout, whether the rules allow it or not.

    Raises
    ------
    InputError
        A part of the model or of the layout has no option.
    """
    entry = _registered(model, job.precision.name)
    return (
        *("--module", entry["module"], "--config", entry["config"]),
        *_batch_arguments(job, layout),
        *_grid_arguments(grid, layout, entry),
        *_split_arguments(layout),
        *_software_arguments(job, layout, grid),
        *_loss_arguments(job),
        f"activation-checkpoint:{_checkpointing(layout)}",
    )


def _checkpointing(layout: Layout) -> str:
    if all(
        run.strategy.recompute == TITAN_SELECTIVE for stage in layout.stages for run in stage.strategies if run.count
    ):
        return "selective"
    return "full" if whole_or_no_recompute(layout, "torchtitan") else "none"


def _registered(model: ModelSpec, precision: str) -> dict[str, Any]:
    facts: ModelFacts = facts_of(model)
    wanted = _OF_CONFIGURATIONS.get(precision, "")
    fitting = [entry for entry in registry() if entry.get("precision", "") == wanted]
    for entry in fitting:
        if same_sizes(entry, facts):
            if model.mtp_layers:
                raise InputError(
                    f"model {model.name} has {model.mtp_layers} multi-token-prediction layers, "
                    f"torchtitan's {entry['config']} has none",
                    allowed="a model without them",
                )
            return entry
    raise InputError(
        f"torchtitan has no {precision if wanted else 'bf16'} configuration of the sizes of {model.name}",
        allowed=", ".join(entry["config"] for entry in fitting),
    )


def _batch_arguments(job: TrainingJob, layout: Layout) -> list[str]:
    """Batch: a pipeline takes its micro-batches from the local batch, else gradients accumulate over local batches."""
    dtype = _DTYPES.get(job.precision.name)
    if dtype is None:
        raise InputError(
            f"precision {job.precision.name} has no option in torchtitan, and no configuration",
            allowed=f"bf16, {_PURE}, fp32, {', '.join(_OF_CONFIGURATIONS.values())}",
        )
    local = layout.micro_batch * (layout.num_microbatches if layout.pp > 1 else 1)
    return [
        *("--training.local_batch_size", str(local), "--training.global_batch_size", str(job.global_batch)),
        *("--training.seq_len", str(job.seq), "--training.mixed_precision_param", dtype),
        *(["--training.dtype", dtype] if job.precision.name == _PURE else []),
    ]


def _grid_arguments(grid: Strategy, layout: Layout, entry: dict[str, Any]) -> list[str]:
    replicate, shard = _data_degrees(grid)
    arguments = [
        *("--parallelism.data_parallel_replicate_degree", str(replicate)),
        *("--parallelism.data_parallel_shard_degree", str(shard)),
        *("--parallelism.fsdp_reshard_after_forward", _RESHARD[grid.zero]),
        *("--parallelism.tensor_parallel_degree", str(grid.tp)),
        *("--parallelism.context_parallel_degree", str(grid.cp)),
        *("--parallelism.expert_parallel_degree", str(grid.ep)),
        *("--parallelism.pipeline_parallel_degree", str(layout.pp)),
    ]
    if grid.tp > 1 and not grid.sequence_parallel:
        arguments.append("--parallelism.no_enable_sequence_parallel")
    if grid.cp > 1:
        if entry["attention"] == "varlen":
            raise InputError(f"cp {grid.cp}: {entry['config']} uses variable-length attention", allowed="cp 1")
        arguments += ["--parallelism.context_parallel_load_balancer", "ptrr"]
    return arguments


def _data_degrees(grid: Strategy) -> tuple[int, int]:
    """Replicas, and ranks that FSDP shards over besides cp."""
    if not grid.zero:
        if grid.cp > 1:
            raise InputError(f"ZeRO 0 with cp {grid.cp}: torchtitan shards over cp", allowed="ZeRO 2 or 3, or cp 1")
        return grid.dp, 1
    group = grid.zero_group
    if group % grid.cp:
        raise InputError(
            f"ZeRO over groups of {group} ranks with cp {grid.cp}: torchtitan shards over whole cp groups",
            allowed=f"a group that is a multiple of {grid.cp}",
        )
    return grid.dp * grid.cp // group, group // grid.cp


def _split_arguments(layout: Layout) -> list[str]:
    """Names of the modules of every pipeline position, and the schedule."""
    if layout.pp == 1:
        return []
    schedule = _schedule_of(layout)
    rounds = round_group(layout.schedule, layout.pp, layout.num_microbatches)
    if layout.microbatch_group not in (rounds, rounds or layout.pp):
        raise InputError(
            f"groups of {layout.microbatch_group} micro-batches in the interleaved schedule",
            allowed=f"groups of {rounds or layout.pp}, which torchtitan forms of {layout.num_microbatches}",
        )
    return [
        *("--parallelism.pipeline_parallel_schedule", schedule),
        *("--parallelism.pipeline_parallel_microbatch_size", str(layout.micro_batch)),
        "--parallelism.module_fqns_per_model_part",
        *module_names(layout),
    ]


def _schedule_of(layout: Layout) -> str:
    """Name of the schedule of a layout; of one without a pipeline nothing is written."""
    schedule = _SCHEDULES.get(layout.schedule)
    looped = layout.schedule.loops or layout.schedule.is_v
    if layout.pp > 1 and (schedule is None or looped != (layout.vpp > 1)):
        raise InputError(
            f"schedule {layout.schedule} with {layout.vpp} virtual stages",
            allowed="1f1b, gpipe; with virtual stages interleaved, loopedbfs, interleavedzerobubble, zbv, dualpipev",
        )
    return schedule or ""


def module_names(layout: Layout) -> list[str]:
    """Modules of each pipeline position, joined by commas, in the order of positions.

    Raises
    ------
    InputError
        A position has no layer.
    """
    places = positions(layout.schedule, layout.pp, layout.vpp)
    counts = [0] * (layout.pp * layout.vpp)
    for stage, chunks in enumerate(layout.layers_per_stage):
        for chunk, count in enumerate(chunks):
            counts[int(places[stage, chunk])] = count
    if not all(counts):
        raise InputError(
            f"pipeline position {counts.index(0)} holds no layer", allowed="a layer on every position in torchtitan"
        )
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    parts = [[f"layers.{index}" for index in range(start, stop)] for start, stop in pairwise(bounds)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return [",".join(part) for part in parts]


def _loss_arguments(job: TrainingJob) -> list[str]:
    """Chunks of the loss; one chunk is a loss on whole logits."""
    linear = job.software.linear_loss
    if job.software.fused_loss or (linear is not None and not linear.own_kernels):
        name = linear.name if linear is not None else "fused"
        raise InputError(f"loss {name} has no option in torchtitan", allowed="--loss chunked, or --loss whole")
    return [CHUNKS, str(linear.chunks if linear is not None else 1)]


def _software_arguments(job: TrainingJob, layout: Layout, grid: Strategy) -> list[str]:
    software = job.software
    graphs = software.cuda_graphs and layout.pp == 1 and grid.ep == 1  # torchtitan captures neither
    arguments = ["--training.no_disable_cuda_graphs" if graphs else "--training.disable_cuda_graphs"]
    compiled = ["--compile.enable", "--compile.components", "model,loss"]
    arguments += compiled if software.compiled else ["--compile.no_enable"]
    arguments += ["--training.enable_cpu_offload"] if software.state_offload else []
    overlap = software.compiled and software.tp_overlap and grid.tp > 1 and grid.sequence_parallel
    return [*arguments, *(["--compile.enable_async_tensor_parallel"] if overlap else [])]

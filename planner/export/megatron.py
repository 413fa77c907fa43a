"""A plan as a Megatron-LM launch: arguments, environment, ranks; what cannot be said is refused by name.

Every export is read back with :mod:`planner.ingest.megatron.arguments` and judged by the rules before it is handed out,
so that a launch which Megatron-LM would refuse, or would build with other layers, never leaves this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from costmodels.job import Dispatcher, TrainingJob
from costmodels.layout import Granularity, Layout, RankOrder, Recompute, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from hardware.package_table import package_table
from planner.export.launch import Export, Planned, Program
from planner.export.megatron_hybrid import (
    has_state_blocks,
    hybrid_program,
    in_parts,
    is_hybrid,
    pattern_arguments,
)
from planner.export.megatron_layers import LAYERS_FILE, LAYERS_PROGRAM, layers_text
from planner.export.megatron_model import has_delta_rule, model_arguments, model_notes
from planner.export.plan_checks import check_sizes, one_grid, refuse_adapters, refuse_linear_loss
from planner.ingest.megatron.arguments import judge, parse_megatron
from planner.ingest.megatron.layers_file import PATH, TEXT
from planner.ingest.megatron.software_flags import (
    CAPACITY,
    DEEPEP,
    DISPATCHER,
    DROPOUTS,
    EXCHANGE,
    EXCHANGES,
    FLEX,
    FLEX_BACKEND,
    FLEXIBLE,
    FUSED_LOSS,
    LOSS_IMPL,
    attention_words,
    offload_words,
    switch_words,
)
from planner.ingest.options import megatron_options
from planner.losses import NO_FUSED_LOSS_SINCE
from planner.plan_report import RankPlace
from planner.request import Framework
from planner.rules.layout_string import layout_string
from planner.rules.proposal import facts_of
from planner.rules.table import resolve_version, rules_of_alone, version_key

__all__ = ["export_megatron", "layout_string", "recompute_arguments", "run_arguments"]

FULL_LAYOUT_SINCE: Final = (0, 14)  # multi-token prediction inside a layout, FSDP under its later name
_DELTA_SINCE: Final = (0, 16)
_BACKENDS_SINCE: Final = (0, 16)  # the flex dispatcher has several
_SHARDING: Final = MappingProxyType({2: "optim_grads", 3: "optim_grads_params"})
_OPTIMIZER_DTYPES: Final = MappingProxyType({8.0: "", 4.0: "bf16", 2.0: "fp8"})


def export_megatron(plan: Planned) -> Export:
    """Write a plan as a Megatron-LM launch.

    Parameters
    ----------
    plan : Planned
        One grid for the whole model.

    Returns
    -------
    Export
        Accepted by the rules of its version, building exactly the layers of the layout.

    Raises
    ------
    InputError
        A part of the model, of the layout or of the placement cannot be said to this version; the message names it.
    """
    model, job, layout = plan.model, plan.job, plan.layout
    known = resolve_version(Framework.MEGATRON, plan.version)
    check_sizes(plan)
    refuse_adapters(job, "Megatron-LM, which has none")
    if has_state_blocks(model):
        model, layout = in_parts(model, layout)
    hybrid = is_hybrid(model)
    if has_delta_rule(model) and version_key(known) < _DELTA_SINCE:
        raise InputError(f"model {model.name}: core {known} has no gated delta rule", allowed="core 0.16 or later")
    split = pattern_arguments(model, layout, known) if hybrid else _split_arguments(model, layout, known)
    run = run_arguments(model, job, layout, known, split=split)
    sizes = model_arguments(model, job.seq)
    kernels = (*_loss_arguments(plan, known), *(() if plan.recipe else attention_words(job.software)))
    arguments = (*(known_words(sizes, known) if plan.recipe else sizes), *run, *_fusion_arguments(model), *kernels)
    layers = layers_text(model) if model.unlike_layers else ""
    export = Export(
        framework=Framework.MEGATRON,
        version=known,
        arguments=arguments,
        environment=_environment(layout, plan.placement),
        nodes=plan.nodes,
        ranks=plan.ranks,
        notes=(*model_notes(model), *_run_notes(job)),
        program=hybrid_program(known) if hybrid else LAYERS_PROGRAM if layers else Program(),
        files=((LAYERS_FILE, layers),) if layers else (),
    )
    _prove(export, plan=replace(plan, layout=layout), file=[PATH, LAYERS_FILE, TEXT, layers] if layers else [])
    return export


def known_words(words: Sequence[str], version: str) -> tuple[str, ...]:
    """Return options of an argument list that a core version has, with their values, where it allows these."""
    options = megatron_options(version)
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    given = [words[start:end] for start, end in pairwise((*starts, len(words)))]
    known = [one for one in given if one[0] in options and set(one[1:]) <= set(options[one[0]].choices or one[1:])]
    return tuple(word for one in known for word in one)


def run_arguments(
    model: ModelSpec, job: TrainingJob, layout: Layout, version: str, *, split: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Flags that are not the model's: grid, split, batch, sharding, precision, overlap, recompute.

    Parameters
    ----------
    model, job, layout : ModelSpec, TrainingJob, Layout
        The plan.
    version : str
        Core version.
    split : sequence of str, optional
        Flags that split the layers, where they are not those of a model of blocks.

    Raises
    ------
    InputError
        The layout needs what Megatron-LM cannot do.
    """
    grid, is_moe = one_grid(layout, "Megatron-LM"), model.has_experts
    _check_schedule(layout)
    return (
        *_grid_arguments(grid, layout, is_moe),
        *(_split_arguments(model, layout, version) if split is None else split),
        *_group_arguments(layout),
        *("--micro-batch-size", str(layout.micro_batch), "--global-batch-size", str(job.global_batch)),
        *_precision_arguments(job, grid),
        *_sharding_arguments(job, grid, version),
        *_software_arguments(job, layout, grid, is_moe=is_moe, version=version),
        *recompute_arguments(layout),
        *_dropout_arguments(job),
    )


def _check_schedule(layout: Layout) -> None:
    wanted = Schedule.INTERLEAVED if layout.vpp > 1 else Schedule.ONE_F_ONE_B
    if layout.schedule is not wanted and layout.pp > 1:
        raise InputError(
            f"schedule {layout.schedule} with {layout.vpp} virtual stages",
            allowed=f"{wanted} in Megatron-LM for this number of virtual stages",
        )


def _grid_arguments(grid: Strategy, layout: Layout, is_moe: bool) -> list[str]:
    arguments = [
        *("--tensor-model-parallel-size", str(grid.tp)),
        *("--pipeline-model-parallel-size", str(layout.pp)),
        *("--context-parallel-size", str(grid.cp)),
    ]
    if is_moe:  # the experts' tensor parallelism would follow tp when left out
        arguments += ["--expert-model-parallel-size", str(grid.ep), "--expert-tensor-parallel-size", str(grid.etp)]
    if grid.sequence_parallel and grid.tp > 1:
        arguments.append("--sequence-parallel")
    if layout.rank_order is RankOrder.PP_INSIDE:
        arguments.append("--use-tp-pp-dp-mapping")
    return arguments


def _group_arguments(layout: Layout) -> list[str]:
    """Micro-batches of a group of the interleaved schedule, where they are not as many as stages."""
    group = layout.microbatch_group
    grouped = layout.vpp > 1 and group not in (0, layout.pp)
    return ["--microbatch-group-size-per-virtual-pipeline-stage", str(group)] if grouped else []


def _split_arguments(model: ModelSpec, layout: Layout, version: str) -> list[str]:
    """How layers fall on stages: nothing for equal stages, virtual stages for equal chunks, else a layout string."""
    split = layout.layers_per_stage
    if layout.pp == 1:
        return []
    counts = {count for stage in split for count in stage}
    if len(counts) == 1:
        return ["--num-virtual-stages-per-pipeline-rank", str(layout.vpp)] if layout.vpp > 1 else []
    if model.mtp_layers and version_key(version) < FULL_LAYOUT_SINCE:
        ends = _ends_arguments(split)
        if ends is None:
            raise InputError(
                f"layers per stage {split} with multi-token prediction",
                allowed=f"equal middle stages in Megatron-LM core {version}; core 0.14 takes any split",
            )
        return ends
    return ["--pipeline-model-parallel-layout", layout_string(split, model.mtp_layers)]


def _ends_arguments(split: tuple[tuple[int, ...], ...]) -> list[str] | None:
    """First and last stage by number, where the middle stages are equal and chunks inside a stage are."""
    sums = [sum(stage) for stage in split]
    if len(set(sums[1:-1])) > 1 or any(len(set(stage)) > 1 for stage in split):
        return None
    arguments = [
        "--decoder-first-pipeline-num-layers",
        str(sums[0]),
        "--decoder-last-pipeline-num-layers",
        str(sums[-1]),
    ]
    return [*arguments, *(["--num-virtual-stages-per-pipeline-rank", str(len(split[0]))] if len(split[0]) > 1 else [])]


def _recipes() -> Mapping[str, Any]:
    return package_table("planner.export", "megatron_precision.toml")


def _precision_arguments(job: TrainingJob, grid: Strategy) -> list[str]:
    recipe = _recipes().get(job.precision.name)
    if recipe is None:
        raise InputError(f"precision {job.precision.name} has no Megatron-LM recipe", allowed=", ".join(_recipes()))
    gathered = grid.zero and job.precision.weight_bytes < job.precision.activation_bytes
    arguments = [*recipe["flags"], *(recipe.get("sharded", ()) if gathered else ())]
    gradient = job.software.gradient_bytes or job.precision.gradient_bytes
    return [*arguments, "--grad-reduce-in-bf16"] if gradient == 2.0 and "--bf16" in arguments else arguments


def _sharding_arguments(job: TrainingJob, grid: Strategy, version: str) -> list[str]:
    arguments = []
    if grid.zero == 1:
        arguments.append("--use-distributed-optimizer")
    elif grid.zero > 1:
        old = version_key(version) < FULL_LAYOUT_SINCE
        arguments += ["--use-distributed-optimizer", "--use-custom-fsdp" if old else "--use-megatron-fsdp"]
        arguments += ["--data-parallel-sharding-strategy", _SHARDING[grid.zero], "--no-gradient-accumulation-fusion"]
        arguments += [] if old else ["--ckpt-format", "fsdp_dtensor"]
    ranks = grid.dp * grid.cp
    if grid.zero and grid.shard_group and grid.shard_group != ranks:
        arguments += ["--num-distributed-optimizer-instances", str(ranks // grid.shard_group)]
    if job.software.grad_overlap and ranks > 1:
        arguments += switch_words(job.software, "grad_overlap")
        arguments += switch_words(job.software, "param_overlap") if grid.zero else []
    return [*arguments, *_optimizer_arguments(job)]


def _optimizer_arguments(job: TrainingJob) -> list[str]:
    """Adam, with its moments in the number format that their bytes tell."""
    dtype = _OPTIMIZER_DTYPES.get(job.optimizer_bytes)
    if dtype is None:
        raise InputError(
            f"optimizer states of {job.optimizer_bytes:g} bytes per parameter",
            allowed="8 (Adam in fp32), 4 (bf16 moments) or 2 (fp8 moments) for Megatron-LM",
        )
    arguments = ["--use-precision-aware-optimizer"] if dtype or job.software.optimizer_offload else []
    arguments += ["--exp-avg-dtype", dtype, "--exp-avg-sq-dtype", dtype] if dtype else []
    share = f"{job.software.optimizer_offload_share:g}"
    there = ["--optimizer-cpu-offload", "--optimizer-offload-fraction", share]
    return [*arguments, *(there if job.software.optimizer_offload else [])]


def _software_arguments(job: TrainingJob, layout: Layout, grid: Strategy, *, is_moe: bool, version: str) -> list[str]:
    software, arguments = job.software, []
    refuse_linear_loss(job, "Megatron-core", "releases up to 0.19 have no such loss, its development branch has linear")
    if grid.sequence_parallel and grid.tp > 1:
        arguments += switch_words(software, "tp_overlap")
    if layout.vpp > 1:
        arguments += switch_words(software, "p2p_overlap")
    if grid.cp > 1:
        arguments += [EXCHANGE, EXCHANGES[software.cp_comm]]
    if software.activation_offload_layers:
        arguments += ["--cpu-offloading-num-layers", str(software.activation_offload_layers)]
    arguments += offload_words(software)
    return [*arguments, *(_dispatch_arguments(job, layout, grid, version) if is_moe else [])]


def _loss_arguments(plan: Planned, version: str) -> tuple[str, ...]:
    """The fused loss, which is Transformer Engine's: Megatron-LM's own fusion holds as much as its loss in kernels.

    References
    ----------
    Megatron-core 0.18.2 ``training/arguments.py``: the parser refuses Transformer Engine's loss, recipes take it.
    """
    if not plan.job.software.fused_loss:
        return ()
    if not plan.recipe and version_key(version) >= version_key(NO_FUSED_LOSS_SINCE):
        raise InputError(
            f"the fused loss of Transformer Engine, which the parser of Megatron-LM core {version} refuses",
            allowed="a plan with --loss whole, or --framework-version 0.17",
        )
    return (FUSED_LOSS, LOSS_IMPL, "te")


def _fusion_arguments(model: ModelSpec) -> list[str]:
    """Fusions that are on by default and that grouped experts with biases refuse."""
    biased = model.has_experts and facts_of(model).linear_bias
    return ["--no-bias-dropout-fusion"] if biased else []


def _dispatch_arguments(job: TrainingJob, layout: Layout, grid: Strategy, version: str) -> list[str]:
    software = job.software
    arguments = switch_words(software, "grouped_gemm")
    if software.dispatcher in FLEXIBLE:
        arguments += [DISPATCHER, FLEX]
        alone = version_key(version) < _BACKENDS_SINCE and software.dispatcher is Dispatcher.DEEPEP
        arguments += [DEEPEP] if alone else [FLEX_BACKEND, str(software.dispatcher)]
    else:
        arguments += [DISPATCHER, str(software.dispatcher)]
    if software.capacity_factor:
        arguments += [CAPACITY, f"{software.capacity_factor:g}"]
    if grid.ep > 1 and (layout.pp == 1 or layout.vpp > 1):
        arguments += switch_words(software, "expert_overlap")
    return arguments


def recompute_arguments(layout: Layout) -> list[str]:
    """Recompute flags.

    Megatron-LM recomputes either some modules of every layer, or whole layers: all of them, or the first n of every
    virtual chunk.

    Parameters
    ----------
    layout : Layout
        Strategies state the recompute of each layer.

    Returns
    -------
    list of str
        Empty when no layer recomputes.

    Raises
    ------
    InputError
        The layers' recompute is none of these.
    """
    chunks = [chunk for stage in layout.stages for chunk in _chunk_recompute(stage.layers_per_chunk, stage.strategies)]
    found = {recompute for chunk in chunks for recompute in chunk}
    kinds = {recompute.granularity for recompute in found}
    if kinds <= {Granularity.NONE}:
        return []
    if kinds == {Granularity.SELECTIVE} and len(found) == 1:
        modules = found.pop().modules
        return ["--recompute-granularity", "selective", *(["--recompute-modules", *modules] if modules else [])]
    if kinds == {Granularity.FULL}:
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if kinds == {Granularity.FULL, Granularity.NONE}:
        first = _first_layers(chunks)
        if first:
            return [
                *("--recompute-granularity", "full"),
                *("--recompute-method", "block"),
                *("--recompute-num-layers", str(first)),
            ]
    told = ", ".join(sorted({str(recompute) for recompute in found}))
    raise InputError(
        f"recompute differs between layers in a way that Megatron-LM cannot say: {told}",
        allowed="the same modules on every layer; or whole layers, all of them or the first n of every virtual chunk",
    )


def _chunk_recompute(layers: tuple[int, ...], runs: Sequence[Any]) -> list[list[Recompute]]:
    """Recompute of each layer, chunk by chunk."""
    flat = [run.strategy.recompute for run in runs for _ in range(run.count)]
    bounds = [0]
    for count in layers:
        bounds.append(bounds[-1] + count)
    return [flat[start:stop] for start, stop in pairwise(bounds)]


def _first_layers(chunks: list[list[Recompute]]) -> int:
    """The n for which exactly the first n layers of every chunk recompute wholly; 0 when there is none."""
    full = [[recompute.granularity is Granularity.FULL for recompute in chunk] for chunk in chunks]
    first = max(sum(chunk) for chunk in full)
    holds = all(chunk == [index < first for index in range(len(chunk))] for chunk in full)
    return first if holds else 0


def _dropout_arguments(job: TrainingJob) -> list[str]:
    rate = "0.1" if job.software.dropout else "0"
    return [word for flag in DROPOUTS for word in (flag, rate)]


def _environment(layout: Layout, placement: Sequence[RankPlace]) -> tuple[tuple[str, str], ...]:
    """Variables of the launch; FSDP wants several hardware queues, tensor and context parallelism one."""
    grid = layout.first
    environment = []
    if grid.zero > 1:
        environment.append(("CUDA_DEVICE_MAX_CONNECTIONS", ""))
    elif grid.tp * grid.cp > 1:
        environment.append(("CUDA_DEVICE_MAX_CONNECTIONS", "1"))
    if placement:
        environment.append(("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))
    return tuple(environment)


def _run_notes(job: TrainingJob) -> tuple[str, ...]:
    notes = ["data, tokenizer, learning rate and checkpoints are yours to add"]
    if job.software.cuda_graphs:
        scope = "" if job.software.graphed_experts else ", of attention and routers alone"
        notes.append(f"the plan assumes CUDA graphs{scope}: choose --cuda-graph-impl for your model")
    if job.software.param_overlap and not job.software.grad_overlap:
        notes.append("the plan overlaps the gathering of parameters alone, Megatron-LM does it with that of gradients")
    if job.software.compiled:
        notes.append("the plan assumes compiled kernels, which Megatron-LM does not have")
    return tuple(notes)


def _prove(export: Export, *, plan: Planned, file: Sequence[str]) -> None:
    """Refuse an export that the framework's own checks would refuse, or that would build other layers.

    ``file`` holds the words of the file of layers that the program names. Recipes of other frameworks do not pass
    Megatron-LM's parser, whose own rules do not count then.
    """
    layout = plan.layout
    known = megatron_options(export.version)
    missing = [word for word in export.arguments if word.startswith("--") and word not in known]
    if missing:
        raise InputError(
            f"Megatron-LM core {export.version} has no option {', '.join(missing)}", allowed="a newer version"
        )
    environment = {name: value for name, value in export.environment if value}
    launch = parse_megatron(
        (*export.arguments, *file), world=layout.gpus, version=export.version, environment=environment
    )
    verdict = judge(launch)
    own = rules_of_alone(Framework.MEGATRON) if plan.recipe else ()
    broken = [violation for violation in verdict.violations if violation.rule not in own]
    if broken:
        reasons = "; ".join(violation.message for violation in broken)
        raise InputError(f"Megatron-LM core {export.version} would refuse this plan: {reasons}")
    if verdict.layers_per_stage != layout.layers_per_stage or launch.proposal.seq != plan.job.seq:
        raise InputError(
            f"the arguments would build {verdict.layers_per_stage}, the plan has {layout.layers_per_stage}",
            allowed="report this as an error of the exporter",
        )

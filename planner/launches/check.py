"""A user's own launch answered: legal or not, what it builds, what it costs, and what is better near it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, TITAN_SELECTIVE, Granularity, Layout, Recompute, Strategy
from costmodels.precision import with_wide_weights
from costmodels.results import Verdict
from costmodels.software import software
from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from hardware.catalog import cluster as find_cluster
from hardware.catalog import fixed_cluster_names
from hardware.catalog_schema import canonical
from hardware.cluster import Cluster
from hardware.errors import InputError
from hardware.text_file import is_file
from planner.adapters import with_adapters
from planner.advice.remedies import Remedy, remedies
from planner.ingest.beside_faults import UnknownModelError, with_others
from planner.ingest.bridge.programs import gpus_in_name, with_recipe_chosen
from planner.ingest.judge import judge_launch, stated_world
from planner.ingest.judged import JudgedLaunch, LaunchInput, no_layout_rule
from planner.ingest.launch_text import LaunchText, read_launch_text
from planner.ingest.other_frameworks import framework_meant, refuse_other_framework
from planner.launches.exchange_notes import exchange_notes
from planner.launches.near import near_launch
from planner.launches.vision import with_images
from planner.layouts.build import uniform_layout
from planner.losses import with_loss
from planner.nearest import nearest
from planner.offloads import ALL_LAYERS
from planner.plan_report import RankedLayout
from planner.planning import estimate, over_islands
from planner.question import LaunchQuestion, job_of
from planner.request import Framework, PlanRequest
from planner.rules.nearest import Neighbour, spread
from planner.rules.proposal import Proposal, group_of, rank_order_of, replicas_of, shard_group_of
from planner.rules.split import layers_built
from planner.rules.table import newer_notes, resolve_version

CHECKED: Final = (
    Framework.MEGATRON,
    Framework.BRIDGE,
    Framework.NEMO,
    Framework.TORCHTITAN,
    Framework.DEEPSPEED,
    Framework.GALVATRON,
)
FASTEST: Final = 3  # faster layouts that are named
_OF_WORLD: Final = ("world-grid", "world-expert-grid", "batch", no_layout_rule(Framework.DEEPSPEED))
_OF_MISSING_SIZES: Final = ("-option-missing", "model-missing")
_FILES: Final = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".json", ".txt")
_OF_NAME: Final = "the launch does not say how many GPUs it has: they are those of its recipe's name"
MOST_STEPS: Final = 3  # changes in a row that are tried


@dataclass(frozen=True, kw_only=True)
class PricedNeighbour:
    """A legal launch near one that is not, with its price where one is asked for."""

    neighbour: Neighbour
    ranked: RankedLayout | None


@dataclass(frozen=True, kw_only=True)
class FasterLayout:
    """A faster layout near the launch: the changes that lead to it, one after the other."""

    changes: tuple[str, ...]
    ranked: RankedLayout


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """The answer. ``request`` and what is priced are None or empty without a model or a cluster.

    ``unpriced`` says why a layout that the framework takes has no price.
    """

    judged: JudgedLaunch
    near: tuple[PricedNeighbour, ...]
    request: PlanRequest | None
    ranked: RankedLayout | None
    faster: tuple[FasterLayout, ...]
    unpriced: str = ""


def check_launch(question: LaunchQuestion) -> LaunchReport:
    """Judge a launch and price it.

    Parameters
    ----------
    question : LaunchQuestion
        What the user asks.

    Returns
    -------
    LaunchReport

    Raises
    ------
    InputError
        The launch cannot be read, or a name is not known.
    """
    given = _launch_input(question)
    judged = _judged(question, given)
    near = near_launch(judged, given)
    request = request_of_launch(judged, question.cluster) if question.cluster else None
    if request is not None:
        judged = replace(judged, notes=(*judged.notes, *exchange_notes(judged, request.cluster)))
    if request is None:
        unpriced = tuple(PricedNeighbour(neighbour=neighbour, ranked=None) for neighbour in near)
        return LaunchReport(judged=judged, near=unpriced, request=None, ranked=None, faster=())
    priced = tuple(_priced(request, neighbour) for neighbour in near)
    ranked, why_not = _estimated(request, judged.layout)
    start = ranked if judged.legal else next((one.ranked for one in priced if one.ranked is not None), ranked)
    faster = faster_layouts(request, start) if start is not None else ()
    return LaunchReport(judged=judged, near=priced, request=request, ranked=ranked, faster=faster, unpriced=why_not)


def _estimated(request: PlanRequest, layout: Layout | None) -> tuple[RankedLayout | None, str]:
    """The price, or why there is none: frameworks take schedules that no simulator here has."""
    if layout is None:
        return None, ""
    try:
        return estimate(request, over_islands(request, layout)), ""
    except InputError as error:
        return None, str(error)


def read_launch(question: LaunchQuestion) -> JudgedLaunch:
    """Read and judge a launch; parameters and errors as of :func:`check_launch`."""
    return _judged(question, _launch_input(question))


def _judged(question: LaunchQuestion, given: LaunchInput) -> JudgedLaunch:
    """The answer on a launch as it was read, with what must be said of its version and its GPUs."""
    try:
        refuse_other_framework(given)
        judged = judge_launch(given)
    except InputError as error:
        raise (error.within(str(question.file)) if question.file else error) from None
    judged = with_images(judged, given.text, question.images)
    judged = replace(judged, notes=(*judged.notes, *newer_notes(given.framework, given.version)))
    return judged if _stated_world(question, given.text, given.framework) else _on_assumed_world(judged)


def _launch_input(question: LaunchQuestion) -> LaunchInput:
    """What a question gives a reader of launches to read; errors as of :func:`check_launch`."""
    framework = _framework(question.framework) if question.framework else None
    if not question.arguments and question.file is None:
        raise InputError("no launch is given", allowed="--args-file FILE, or -- ARGS...")
    first = question.arguments[0] if question.arguments else ""
    program = first.endswith(".py")  # of a whole command
    if question.file is None and not first.startswith("-") and not program and is_file(Path(first)):
        raise InputError(f"{first} is a file, no argument of a launch", allowed=f"--args-file {first}")
    if question.file is None and len(question.arguments) == 1 and Path(first).suffix in _FILES and "=" not in first:
        raise InputError(f"there is no file {first}", allowed="--args-file FILE, or -- ARGS...")
    text = read_launch_text(question.file, question.arguments)
    if framework is None:
        framework, reason = framework_meant(text)
        told = f"taken as a launch of {framework}: {reason}; --framework says another"
        text = replace(text, notes=(*text.notes, told)) if reason else text
    text = with_recipe_chosen(text) if framework is Framework.BRIDGE else text
    world = _stated_world(question, text, framework)
    if not world and gpus_in_name(text.recipe):
        text = replace(text, world=gpus_in_name(text.recipe), notes=(*text.notes, _OF_NAME))
    given = LaunchInput(
        text=text,
        framework=framework,
        version=resolve_version(framework, question.version),
        world=world or text.world or 1,
        model=None,
    )
    return replace(given, model=_model_named(question.model, given)) if question.model else given


def _model_named(name: str, given: LaunchInput) -> ModelSpec:
    """The model of a name or a file.

    Raises
    ------
    InputError
        It is not known; what else is wrong with the launch is told with it.
    """
    try:
        return presets.model(name)
    except InputError as error:
        allowed = with_others(error.allowed, _wrong_without_model(given))
        raise InputError(error.what, allowed=allowed, where=error.where) from None


def _wrong_without_model(given: LaunchInput) -> tuple[str, ...]:
    """What is wrong with a launch whatever its model is."""
    try:
        judged = judge_launch(given)
    except UnknownModelError as error:
        return error.others
    except InputError:  # of a launch that is not read further
        return ()
    return tuple(one.message for one in judged.violations if not one.rule.endswith(_OF_MISSING_SIZES))


def _on_assumed_world(judged: JudgedLaunch) -> JudgedLaunch:
    """The answer on a launch that does not say how many GPUs it has, unless that is what breaks it.

    Raises
    ------
    InputError
        One GPU does not hold its degrees.
    """
    if judged.unknown and not judged.accepted:  # they are wrong whatever the GPUs, and the rest depends on those
        told = tuple(found for found in judged.violations if "unknown" in found.rule)
        judged = replace(judged, violations=told, proposal=None, built=None)
    if any(violation.rule in _OF_WORLD for violation in judged.violations):
        raise InputError(
            "the launch does not say how many GPUs it has", allowed="--world-size N, or --cluster PRESET:NODES"
        )
    return replace(judged, notes=(*judged.notes, "the launch does not say how many GPUs it has: one is assumed"))


def _framework(name: str) -> Framework:
    known = {framework.value: framework for framework in CHECKED}
    found = known.get(name.strip().lower())
    if found is None:
        raise InputError(f"framework {name!r} is not known{nearest(name, known)}", allowed=", ".join(known))
    return found


def _stated_world(question: LaunchQuestion, text: LaunchText, framework: Framework) -> int:
    """GPUs of the job: as the user says, as the launch says, as the cluster has; 0: none does."""
    told = question.world or stated_world(text, framework)
    if told:
        return told
    return find_cluster(question.cluster).gpus if question.cluster and not is_preset_alone(question.cluster) else 0


def states_world(question: LaunchQuestion) -> bool:
    """Whether the user or the launch itself says how many GPUs it has; errors as of :func:`check_launch`."""
    given = _launch_input(replace(question, cluster=""))
    return bool(question.world or stated_world(given.text, given.framework))


def is_preset_alone(cluster: str) -> bool:
    """Whether a cluster is a preset without a number of nodes."""
    is_file = cluster.casefold().endswith(".toml") or os.sep in cluster
    return not is_file and ":" not in cluster and canonical(cluster) not in map(canonical, fixed_cluster_names())


def cluster_of(name: str, gpus: int) -> Cluster:
    """Return a cluster; a preset without a number of nodes gets as many nodes as the GPUs need.

    Raises
    ------
    InputError
        The cluster is not known.
    """
    found = find_cluster(f"{name}:1" if is_preset_alone(name) else name)
    if is_preset_alone(name) and found.gpus < gpus:
        found = find_cluster(f"{name}:{-(-gpus // found.gpus)}")
    return found


def cluster_for(name: str, world: int) -> Cluster:
    """Return a cluster that holds a job, see :func:`cluster_of`.

    Raises
    ------
    InputError
        The cluster is not known, or has fewer GPUs than the job.
    """
    found = cluster_of(name, world)
    if found.gpus < world:
        raise InputError(
            f"{found.name} has {found.gpus} GPUs, the launch uses {world}",
            allowed="a cluster with as many, such as PRESET:NODES",
        )
    return found


def request_of_launch(judged: JudgedLaunch, cluster: str) -> PlanRequest | None:
    """The launch's model, job and machine as a request; None when its model or its batch is not known.

    Raises
    ------
    InputError
        The cluster is not known, or too small.
    """
    machine = cluster_for(cluster, judged.world)
    if judged.model is None or judged.proposal is None:
        return None
    return PlanRequest(
        model=judged.model,
        cluster=machine,
        job=job_of_launch(judged, judged.proposal),
        framework=judged.framework,
        sayable=judged.sayable,
    )


def job_of_launch(judged: JudgedLaunch, proposal: Proposal) -> TrainingJob:
    """Batch, number formats and switches of a launch that change its price."""
    job = job_of(
        judged.framework, judged.precision, global_batch=max(1, proposal.global_batch), seq=max(1, proposal.seq)
    )
    base = with_loss(software(judged.software) if judged.software else job.software, judged.loss, judged.loss_chunks)
    base = replace(base, **judged.stated.fields)
    tools = replace(
        base,
        activation_offload_layers=_offloaded_layers(judged, proposal) or base.activation_offload_layers,
        gradient_bytes=judged.gradient_bytes or base.gradient_bytes,
        optimizer_offload=judged.optimizer_offload or base.optimizer_offload,
        optimizer_offload_share=judged.optimizer_offload_share,
        state_offload=judged.state_offload or base.state_offload,
        sync_each_batch=judged.sync_each_batch or base.sync_each_batch,
        # gradients are reduced in no less than products are computed in (accelerate: reduce_dtype is param_dtype)
        reduce_bytes=base.reduce_bytes and max(base.reduce_bytes, min(job.precision.activation_bytes, 4.0)),
    )
    recipe = with_wide_weights(job.precision) if judged.wide_weights else job.precision
    job = replace(job, software=tools, optimizer_bytes=judged.optimizer_bytes, precision=recipe)
    adapters, job = judged.adapters, replace(job, images=judged.images)
    if adapters is None or judged.model is None:
        return job
    return with_adapters(job, judged.model, adapters.rank, adapters.targets, separate=adapters.separate)


def _offloaded_layers(judged: JudgedLaunch, proposal: Proposal) -> int:
    """Layers of a stage whose activations, or inputs under full recompute, wait in host memory; 0: none are stated."""
    return ALL_LAYERS if judged.inputs_offload else proposal.switches.cpu_offload_layers


def layout_of_proposal(proposal: Proposal) -> Layout:
    """State a legal proposal as a layout; selective recompute is that of core attention.

    Raises
    ------
    InputError
        Its degrees do not cover its GPUs or its batch.
    """
    dp = proposal.dp or replicas_of(proposal.world, proposal.tp, proposal.cp, proposal.pp, proposal.gtp)
    strategy = Strategy(
        tp=proposal.tp,
        cp=proposal.cp,
        dp=dp,
        ep=proposal.ep if proposal.model.experts else 1,
        etp=proposal.etp if proposal.model.experts else 1,
        sequence_parallel=proposal.sequence_parallel and proposal.tp > 1,
        zero=proposal.zero,
        shard_group=shard_group_of(proposal, dp),
        recompute=_recompute(proposal),
    )
    split = layers_built(proposal) or spread(proposal.model.layers, proposal.pp, proposal.vpp)
    layout = uniform_layout(
        strategy,
        split,
        micro_batch=proposal.micro_batch,
        num_microbatches=max(1, proposal.global_batch // (proposal.micro_batch * dp)),
    )
    return replace(layout, rank_order=rank_order_of(proposal, dp), microbatch_group=group_of(proposal))


def _recompute(proposal: Proposal) -> Recompute:
    switches = proposal.switches
    if switches.recompute_full:
        return FULL_RECOMPUTE
    if switches.recompute_per_op:
        return TITAN_SELECTIVE
    if not switches.recompute_selective:
        return Recompute()
    names = ("moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
    told = tuple(name for name in names if getattr(switches, f"recompute_{name}"))
    return Recompute(granularity=Granularity.SELECTIVE, modules=told or ("core_attn",))


def _priced(request: PlanRequest, neighbour: Neighbour) -> PricedNeighbour:
    proposal = neighbour.proposal
    job = replace(request.job, global_batch=proposal.global_batch)
    try:
        moved = replace(request, job=job)
        ranked = estimate(moved, over_islands(moved, layout_of_proposal(proposal)))
    except InputError:  # a grid that the layout or its schedule cannot hold has no price
        return PricedNeighbour(neighbour=neighbour, ranked=None)
    return PricedNeighbour(neighbour=neighbour, ranked=ranked)


def faster_layouts(request: PlanRequest, start: RankedLayout) -> tuple[FasterLayout, ...]:
    """Faster layouts near one: the best single changes, and where the best change after the best change leads.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job, and what the launcher can be told: other layouts are passed over.
    start : RankedLayout
        Priced; where it does not fit, what fits counts as better.

    Returns
    -------
    tuple of FasterLayout
        Fastest first, each with its changes in order.
    """
    found: list[FasterLayout] = []
    at = start
    changes: tuple[str, ...] = ()
    for step in range(MOST_STEPS):
        better = _better(request, at)
        for remedy in better[: FASTEST if not step else 1]:
            ranked = RankedLayout(layout=remedy.layout, cost=remedy.cost, evidence=start.evidence)
            found.append(FasterLayout(changes=(*changes, remedy.change), ranked=ranked))
        if not better:
            break
        at = RankedLayout(layout=better[0].layout, cost=better[0].cost, evidence=start.evidence)
        changes = (*changes, better[0].change)
    found.sort(key=lambda item: (item.ranked.cost.step.total_s, item.changes))
    return tuple(found[:FASTEST])


def _better(request: PlanRequest, at: RankedLayout) -> tuple[Remedy, ...]:
    priced = remedies(request, at.layout, at.cost)
    if at.cost.heaviest.verdict is not Verdict.OOM:
        return priced.faster
    fitting = [remedy for remedy in priced.saving if remedy.verdict is not Verdict.OOM]
    return tuple(sorted(fitting, key=lambda remedy: (remedy.cost.step.total_s, remedy.change)))

"""A recipe carried to another machine: what must change and why, and what the fastest layout would change further."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from costmodels.compute.machine import lacking_format
from costmodels.job import Precision, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Layout, Strategy
from costmodels.precision import precision as find_precision
from costmodels.results import MemoryUse, Verdict
from costmodels.software_words import said_switches, stated_job, stated_switches
from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from hardware.cluster import Cluster
from hardware.errors import InputError
from hardware.nouns import count
from planner.adapters import with_adapters_of
from planner.advice.remedies import Remedy, remedies
from planner.images import of_its_length
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import cluster_of, is_preset_alone, job_of_launch, layout_of_proposal
from planner.launches.own_gpus import launch_on_its_gpus
from planner.layouts.build import recomputing_as, with_strategies
from planner.layouts.recompute_options import OWN_CHOICES
from planner.plan_report import PlanReport, RankedLayout
from planner.planning import estimate, over_islands, plan
from planner.question import LaunchQuestion, PortQuestion, Question, job_of, request_for
from planner.request import Framework, Objective, PlanRequest
from planner.rules.nearest import nearest_legal
from planner.rules.proposal import Proposal, facts_of, job_switches, proposals_of
from planner.rules.verdict import Violation, broken_rules, check
from planner.sayable import EVERYTHING, Sayable
from planner.search.objective import why_slower

MOST_CHANGES: Final = 8
"""Forced changes in a row before a recipe is given up."""
ADAM_BYTES: Final = 8.0
WRITTEN_BYTES: Final = (ADAM_BYTES, 4.0, 2.0)
"""Bytes a parameter of Adam's moments in fp32, bf16 and fp8, which exports state."""
_ONE_RECOMPUTE: Final = "one-recompute"
_WIDE: Final = ("bf16", "fp16", "fp32")
"""Formats that a recipe falls back to, where the machine has them."""
_TENSOR_SCALED: Final = "fp8-cs"
_GIB: Final = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Where a port starts: a layout with the model, batch and precision that it was made for.

    ``job`` has what else changes its price: number formats of gradients and optimizer, offload; None: the framework's.
    ``sayable`` is what its launcher can be told, ``left`` the program that it was made for where another is asked for,
    ``assumed`` what the launch leaves open and was assumed, in words, ``software`` what a launch has unlike
    its framework, in the words of ``--software``.
    """

    name: str
    model: ModelSpec
    layout: Layout
    global_batch: int
    seq: int
    precision: str
    framework: Framework
    job: TrainingJob | None = None
    sayable: Sayable = EVERYTHING
    left: str = ""
    assumed: str = ""
    software: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Change:
    """One setting that changes: what, and the rule or the memory that forces it."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Port:
    """A recipe on another machine.

    Attributes
    ----------
    recipe : Recipe
        As it was.
    carried : RankedLayout or None
        The recipe with the forced changes alone; None when none that fits was found.
    forced : tuple of Change
        In the order in which they were found.
    further : tuple of str
        What the fastest layout changes besides.
    report : PlanReport
        The search on the new machine.
    """

    recipe: Recipe
    carried: RankedLayout | None
    forced: tuple[Change, ...]
    further: tuple[str, ...]
    report: PlanReport


def recipe_of_launch(question: LaunchQuestion) -> Recipe:
    """Read a launch as the start of a port.

    Raises
    ------
    InputError
        The launch cannot be read, would not start where it was made, or its model is not known.
    """
    judged, assumed = launch_on_its_gpus(question)
    if judged.layout is None or judged.model is None or judged.proposal is None:
        wrong = judged.violations[0].message if judged.violations else "its model is not known"
        what, _, allowed = wrong.partition("; allowed: ")
        hint = "a launch that plan check finds legal"
        raise InputError(
            f"the launch cannot be carried: {what}",
            allowed=f"{allowed}; {hint}" if allowed else hint,
            where=question_name(question),
        )
    job = _carried_job(judged, judged.proposal)
    return Recipe(
        name=question_name(question),
        model=_preset_like(judged.model),
        layout=judged.layout,
        global_batch=judged.proposal.global_batch,
        seq=judged.proposal.seq,
        precision=judged.precision,
        framework=judged.framework,
        job=job,
        sayable=judged.sayable,
        assumed=assumed,
        software=tuple(_stated_words(judged, job)),
    )


def _stated_words(judged: JudgedLaunch, job: TrainingJob) -> Iterator[str]:
    """What a report of a launch must state, and more of a trainer's, so that it is read back with the same prices."""
    usual = job_of(judged.framework, judged.precision, global_batch=1, seq=1).software
    yield from said_switches(replace(usual, **judged.stated.fields), usual)
    if job.software.optimizer_offload and job.software.optimizer_offload_share < 1.0:
        yield f"optimizer_offload_share={job.software.optimizer_offload_share:g}"
    if not judged.sayable.key:
        return
    if judged.software:
        yield judged.software
    if job.optimizer_bytes != ADAM_BYTES:
        yield f"optimizer_bytes={job.optimizer_bytes:g}"
    if judged.sync_each_batch:
        yield "sync_each_batch=on"


def _carried_job(judged: JudgedLaunch, proposal: Proposal) -> TrainingJob:
    """The launch's job; optimizers that no exporter writes are planned for as Adam with states of fp32."""
    job = job_of_launch(judged, proposal)
    written = judged.optimizer == "adam" and job.optimizer_bytes in WRITTEN_BYTES
    return job if written else replace(job, optimizer_bytes=ADAM_BYTES)


def _preset_like(model: ModelSpec) -> ModelSpec:
    """The preset of the same sizes for sequences as long, so that a report names a model that is known; else itself."""
    facts = replace(facts_of(model), max_positions=0)
    for name in presets.names():
        preset = presets.find(name)
        if preset is None or replace(facts_of(preset), max_positions=0) != facts:
            continue
        if not preset.max_positions or preset.max_positions >= model.max_positions:
            return preset
    return model


def question_name(question: LaunchQuestion) -> str:
    """File of a launch, for messages."""
    return str(question.file) if question.file else "the given arguments"


def port(recipe: Recipe, question: PortQuestion) -> Port:
    """Carry a recipe to another machine.

    Parameters
    ----------
    recipe : Recipe
        Where to start.
    question : PortQuestion
        The machine (a preset without a number of nodes has as many GPUs as the recipe), the batch and the search.

    Returns
    -------
    Port

    Raises
    ------
    InputError
        The machine is not known, or a limit, a pin or the profile does not go with it.
    """
    machine = cluster_of(question.asked.cluster, recipe.layout.gpus)
    numbers, formats = (question.asked.precision, ()) if question.asked.precision else _formats(recipe, machine)
    request = _request(recipe, replace(question.asked, precision=numbers), machine)
    carried, forced = carry(recipe, request)
    report = _with_carried(plan(request), carried)
    further = _further(carried, report) if carried is not None else ()
    return Port(recipe=recipe, carried=carried, forced=(*formats, *forced), further=further, report=report)


def _formats(recipe: Recipe, machine: Cluster) -> tuple[str, tuple[Change, ...]]:
    """Training recipe on a machine, and the change where a part of it does not compute in the format of the old one."""
    wanted = find_precision(recipe.precision, framework=recipe.framework.value)
    for island in machine.islands:
        part = island.node.accelerator
        lacking = lacking_format(part, wanted)
        if lacking:
            wide = next((name for name in _wider(wanted) if _computed(name, machine)), _WIDE[-1])
            told = Change(
                what=f"precision {recipe.precision} -> {wide}", why=f"{part.name} does not compute in {lacking}"
            )
            return wide, (told,)
    return recipe.precision, ()


def _wider(recipe: Precision) -> tuple[str, ...]:
    """What a recipe falls back to: fp8 with a scale per block to fp8 with one per tensor first."""
    return (*((_TENSOR_SCALED,) if recipe.scale_block and recipe.gemm == "fp8" else ()), *_WIDE)


def _computed(name: str, machine: Cluster) -> bool:
    """Whether all accelerators of a machine compute in a recipe."""
    return all(not lacking_format(island.node.accelerator, find_precision(name)) for island in machine.islands)


def _request(recipe: Recipe, asked: Question, machine: Cluster) -> PlanRequest:
    """The search on the new machine: what is asked of it, and the recipe's model and job where nothing else is."""
    batch, seq = asked.global_batch or recipe.global_batch, asked.seq or recipe.seq
    precision = asked.precision
    job, stated = recipe.job, asked.software
    told_anew = stated_switches((*asked.tries, *asked.software))
    carried = tuple(word for word in recipe.software if word.partition("=")[0] not in told_anew)
    if job is None or precision != recipe.precision:
        stated = (*carried, *stated)
        told, job = job, job_of(recipe.framework, precision, global_batch=batch, seq=seq)
        job = job if told is None else replace(with_adapters_of(job, told), images=told.images)
    anyones = bool(recipe.sayable.key) or recipe.framework is Framework.NONE
    job = stated_job(job, stated, precision, any_framework=anyones)
    asked = replace(
        asked,
        model=recipe.model.name,
        cluster=machine.name if is_preset_alone(asked.cluster) else asked.cluster,
        precision=precision,
        framework=recipe.framework.value,
        trainer=recipe.sayable.key,
        software=(*carried, *asked.software),
    )
    job = of_its_length(replace(job, global_batch=batch, seq=seq), recipe.model, recipe.seq)
    return request_for(asked, recipe.model, machine, job)


def _with_carried(report: PlanReport, carried: RankedLayout | None) -> PlanReport:
    """The report with the carried recipe first, where a search that ran out of time found nothing as fast."""
    asked = report.request
    pinned = asked.fixed or asked.recompute != "auto"
    if carried is None or pinned or asked.objective is not Objective.TIME:
        return report
    found = report.layouts
    if found and found[0].cost.step.total_s <= carried.cost.step.total_s:
        return report
    others = [replace(found[0], why=why_slower(carried.cost, found[0].cost)), *found[1:]] if found else []
    return replace(report, layouts=(carried, *others)[: report.request.top])


def carry(recipe: Recipe, request: PlanRequest) -> tuple[RankedLayout | None, tuple[Change, ...]]:
    """Change a recipe until it is legal and fits, each change with what forces it; nothing is changed for speed.

    Parameters
    ----------
    recipe : Recipe
        Where to start.
    request : PlanRequest
        Model, machine and job to run it on.

    Returns
    -------
    tuple
        The carried layout with its price, or None; and the changes.
    """
    layout, changes = _on_gpus(recipe, request)
    if layout is None:
        return None, tuple(changes)
    at = _priced(request, layout)
    while at is not None and at.cost.heaviest.verdict is Verdict.OOM and len(changes) < MOST_CHANGES:
        use = at.cost.heaviest
        remedy = _cheapest(request, at)
        if remedy is None:
            changes.append(Change(what="nothing that is legal saves memory", why=_memory(use)))
            return None, tuple(changes)
        changes.append(Change(what=remedy.change, why=_memory(use)))
        at = RankedLayout(layout=remedy.layout, cost=remedy.cost, evidence=at.evidence)
    if at is None or at.cost.heaviest.verdict is Verdict.OOM:
        return None, tuple(changes)
    return at, tuple(changes)


def _memory(use: MemoryUse) -> str:
    return f"stage {use.stage} needs {use.total_bytes / _GIB:.1f} GiB, {use.usable_bytes / _GIB:.1f} usable"


def _cheapest(request: PlanRequest, at: RankedLayout) -> Remedy | None:
    """The change that makes it fit and is then fastest; else the one that saves most."""
    saving = remedies(request, at.layout, at.cost).saving
    fitting = [remedy for remedy in saving if remedy.verdict is not Verdict.OOM]
    if fitting:
        return min(fitting, key=lambda remedy: (remedy.cost.step.total_s, remedy.change))
    return max(saving, key=lambda remedy: (remedy.saved_bytes, remedy.change), default=None)


def _on_gpus(recipe: Recipe, request: PlanRequest) -> tuple[Layout | None, list[Change]]:
    """The recipe on as many GPUs as the machine has: replicas follow, then what rules force."""
    changes: list[Change] = []
    recipe, joined = _of_one_recompute(recipe, request)
    changes += joined
    gpus, before = request.cluster.gpus, recipe.layout
    first = before.first
    if gpus == before.gpus and request.job.global_batch == recipe.global_batch:
        if not broken_rules(before, request):
            return before, changes
    elif gpus != before.gpus:
        shards = first.tp * first.cp * before.pp
        whole = gpus % shards == 0
        told = f"dp {first.dp} -> {gpus // shards}" if whole else f"GPUs {before.gpus} -> {gpus}"
        changes.append(Change(what=told, why=f"{gpus} GPUs instead of {before.gpus}, tp x cp x pp = {shards}"))
    proposal = _proposal(recipe, request, gpus)
    broken = check(proposal, request.framework)
    if broken:
        near = [one for one in nearest_legal(proposal, request.framework, count=9) if _keeps(one.proposal, request)]
        fewer = None if near else _on_fewer(recipe, request)
        if near:
            changes.append(Change(what=str(near[0]), why=_rules(broken)))
            proposal = _regrouped(near[0].proposal, recipe)
        elif fewer is not None:
            changes = [*joined, Change(what=_in_use(fewer, first, gpus), why=_rules(broken))]
            proposal = fewer
        else:
            changes.append(Change(what="nothing near it is legal", why=_rules(broken)))
            return None, changes
    layout = layout_of_proposal(proposal)
    ranks = layout.first.dp * layout.first.cp
    if first.shard_group not in (0, layout.first.zero_group):
        why = f"dp x cp {first.dp * first.cp} -> {ranks}"
        told = f"ranks that ZeRO shards over {first.shard_group} -> {_sharded_over(layout.first)}"
        changes.append(Change(what=told, why=why))
    same = (proposal.pp, proposal.vpp) == (before.pp, before.vpp)
    return recomputing_as(layout, before) if same else layout, changes


def _of_one_recompute(recipe: Recipe, request: PlanRequest) -> tuple[Recipe, list[Change]]:
    """The recipe with one recompute for all layers where the framework has no option for some: its own, else full."""
    same = replace(request, job=replace(request.job, global_batch=recipe.global_batch))
    mixed = [broken for broken in broken_rules(recipe.layout, same) if broken.rule == _ONE_RECOMPUTE]
    if not mixed:
        return recipe, []
    options = (*OWN_CHOICES.get(request.framework, ()), FULL_RECOMPUTE)
    layouts = [with_strategies(recipe.layout, recompute=option) for option in options]
    before = {broken.rule for broken in broken_rules(recipe.layout, same)}
    found = next((one for one in layouts if {rule.rule for rule in broken_rules(one, same)} < before), layouts[-1])
    what = f"recompute of some layers -> {found.first.recompute} in all"
    return replace(recipe, layout=found), [Change(what=what, why=_rules(tuple(mixed)))]


def _keeps(proposal: Proposal, request: PlanRequest) -> bool:
    same = (proposal.global_batch, proposal.world) == (request.job.global_batch, request.cluster.gpus)
    return same and proposal.said_by(request.sayable)


def _in_use(fewer: Proposal, before: Strategy, gpus: int) -> str:
    dp = layout_of_proposal(fewer).first.dp
    replicas = f", dp {before.dp} -> {dp}" if dp != before.dp else ""
    return f"{fewer.world:,} of {count(gpus, 'GPU')} in use{replicas}"


def _on_fewer(recipe: Recipe, request: PlanRequest) -> Proposal | None:
    """The recipe's degrees on as many of the machine's GPUs as the framework takes; None where it takes no number."""
    shards = recipe.layout.first.tp * recipe.layout.first.cp * recipe.layout.pp
    for replicas in range((request.cluster.gpus - 1) // shards, 0, -1):
        proposal = _proposal(recipe, request, shards * replicas)
        if not check(proposal, request.framework):
            return proposal
    return None


def _regrouped(proposal: Proposal, recipe: Recipe) -> Proposal:
    """A proposal with other degrees, whose ZeRO shards over groups as large as the recipe's where they still divide."""
    group, ranks = recipe.layout.first.shard_group, proposal.world // (proposal.tp * proposal.pp)
    group = group if group and ranks % group == 0 else 0  # as large as a node, or all
    switches = replace(proposal.switches, optimizer_instances=ranks // group if group else 1)
    return replace(proposal, shard_group=group, switches=switches)


def _proposal(recipe: Recipe, request: PlanRequest, world: int) -> Proposal:
    """The recipe's degrees on so many GPUs; dp follows."""
    facts = facts_of(recipe.model)
    told = proposals_of(
        recipe.layout,
        facts,
        global_batch=request.job.global_batch,
        seq=request.job.seq,
        world=world,
        base=job_switches(facts, request.job),
    )[0]
    return _regrouped(replace(told, world=world, dp=0), recipe)


def _rules(broken: tuple[Violation, ...]) -> str:
    return "; ".join(f"{violation.message} ({violation.rule})" for violation in broken)


def _priced(request: PlanRequest, layout: Layout) -> RankedLayout | None:
    try:
        return estimate(request, over_islands(request, layout))
    except InputError:  # a schedule that cannot run with these sizes
        return None


def _further(carried: RankedLayout, report: PlanReport) -> tuple[str, ...]:
    """Settings that differ between the carried recipe and the fastest layout."""
    if not report.layouts:
        return ()
    old, new = carried.layout, report.layouts[0].layout
    pairs = (
        ("tp", old.first.tp, new.first.tp),
        ("pp", old.pp, new.pp),
        ("cp", old.first.cp, new.first.cp),
        ("ep", old.first.ep, new.first.ep),
        ("etp", old.first.etp, new.first.etp),
        ("dp", old.first.dp, new.first.dp),
        ("virtual chunks", old.vpp, new.vpp),
        ("ZeRO", old.first.zero, new.first.zero),
        ("ranks that ZeRO shards over", _sharded_over(old.first), _sharded_over(new.first)),
        ("micro-batch", old.micro_batch, new.micro_batch),
        ("recompute", str(old.first.recompute), str(new.first.recompute)),
        ("rank order", old.rank_order, new.rank_order),
    )
    changed = [f"{name} {before} -> {after}" for name, before, after in pairs if before != after]
    if (old.pp, old.vpp) == (new.pp, new.vpp) and old.layers_per_stage != new.layers_per_stage:
        changed.append("layers per stage " + ",".join(str(stage.layers) for stage in new.stages))
    return tuple(changed)


def _sharded_over(strategy: Strategy) -> str:
    """Ranks of a group; those that hold the same weights are told by their degrees."""
    return str(strategy.shard_group) if strategy.shard_group else "all"

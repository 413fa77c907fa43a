"""A saved layout as the files that start it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from costmodels.results import Verdict
from hardware.errors import InputError
from hardware.nouns import count
from planner.export.bridge import export_bridge
from planner.export.deepspeed import export_deepspeed
from planner.export.folder import export_files
from planner.export.galvatron import export_galvatron
from planner.export.hosts import site_of
from planner.export.launch import Export, Planned
from planner.export.layout_json import write_layout
from planner.export.megatron import export_megatron
from planner.export.nemo import export_nemo
from planner.export.torchtitan import export_torchtitan
from planner.images import program_notes
from planner.layouts.platform_notes import refuse_platforms
from planner.layouts.shape_notes import position_notes
from planner.nearest import nearest
from planner.placement.order import places_in_order
from planner.plan_report import PlanReport, RankedLayout, RankPlace
from planner.report.console import section, show
from planner.report.layout_text import bullets
from planner.report.target import Target
from planner.report.words import BYTES_PER_GIB, layout_text, listed, percent, seconds
from planner.request import Framework, Launcher, PlanRequest
from planner.rules.table import newer_notes

EXPORTERS: Mapping[str, Callable[[Planned], Export]] = MappingProxyType(
    {
        "megatron": export_megatron,
        "bridge": export_bridge,
        "nemo": export_nemo,
        "torchtitan": export_torchtitan,
        "deepspeed": export_deepspeed,
        "galvatron": export_galvatron,
    }
)
FORMATS = (*EXPORTERS, "json")
_NEUTRAL = "--to json, which says any layout, without a framework's words"
NAMED = 3
"""Layouts that are named in the place of one which a format cannot say."""


@dataclass(frozen=True, kw_only=True)
class LaunchFiles:
    """A launch: its text for standard output, its files by name, and what the user should know.

    ``warnings`` are those of the notes that stand against starting it.
    """

    title: str
    text: str
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def launch_of(request: PlanRequest, ranked: RankedLayout, target: Target) -> LaunchFiles:
    """Return a layout in a format.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster, job.
    ranked : RankedLayout
        The layout, with its placement.
    target : Target
        Format, version and hosts.

    Returns
    -------
    LaunchFiles

    Raises
    ------
    InputError
        The format is not known, or cannot say what the layout is; the hosts are too few.
    """
    title = f"{request.model.name} on {request.cluster.name}: {layout_text(ranked.layout)}"
    if target.format == "json":
        text = write_layout(ranked.layout)
        return LaunchFiles(title=title, text=text, files=MappingProxyType({"layout.json": text}))
    hosts = target.hosts or (request.cluster.host_names if any(i.hosts for i in request.cluster.islands) else ())
    exporter = EXPORTERS.get(target.format)
    if exporter is None:
        known = nearest(target.format, FORMATS)
        raise InputError(f"--to {target.format!r} is not known{known}", allowed=", ".join(FORMATS))
    framework = Framework(target.format)
    refuse_platforms(framework, request.cluster)
    islands = {stage.island for stage in ranked.layout.stages}
    launcher = Launcher(target.launcher) if target.launcher else request.launcher
    export = exporter(
        Planned(
            model=request.model,
            job=request.job,
            layout=ranked.layout,
            site=site_of(request.cluster, ranked.layout.gpus, hosts, islands),
            placement=_on_hosts(_places(request, ranked), hosts),
            version=target.version,
            launcher=launcher,
        )
    )
    warnings = (*_warnings(request, ranked), *newer_notes(framework, target.version))
    towers = program_notes(request.job, request.model, framework)
    export = replace(export, launcher=launcher, notes=(*warnings, *towers, *export.notes))
    return LaunchFiles(
        title=title,
        text=export.argument_text + "\n",
        files=MappingProxyType(export_files(export, ranked.layout, title)),
        notes=export.notes,
        warnings=warnings,
    )


def launchable(report: PlanReport, target: Target) -> tuple[int, ...]:
    """Ranks of the first layouts that a format can say, at most a few.

    Parameters
    ----------
    report : PlanReport
        Ranked layouts.
    target : Target
        Format, version and hosts.
    """
    found: list[int] = []
    for rank, ranked in enumerate(report.layouts, 1):
        with suppress(InputError):
            launch_of(report.request_of(ranked), ranked, target)
            found.append(rank)
        if len(found) == NAMED:
            break
    return tuple(found)


def launchable_words(report: PlanReport, ranks: Sequence[int]) -> str:
    """Say which ranks can be launched, how long their steps take, and what they cost against the first."""
    first = report.layouts[0].cost.step.total_s
    told = []
    for rank in ranks:
        step_s = report.layouts[rank - 1].cost.step.total_s
        told.append(f"rank {rank}, {seconds(step_s)} (+{percent(step_s / first - 1.0)})")
    return listed(told)


def launch_or_others(report: PlanReport, rank: int, target: Target) -> LaunchFiles:
    """Return a layout of a report in a format, or refuse it with the ranks that the format can say.

    Parameters
    ----------
    report : PlanReport
        Ranked layouts.
    rank : int
        From 1.
    target : Target
        Format, version and hosts.

    Raises
    ------
    InputError
        As of :func:`launch_of`.
    """
    try:
        ranked = report.layouts[rank - 1]
        return launch_of(report.request_of(ranked), ranked, target)
    except InputError as error:
        if target.format not in EXPORTERS:
            raise
        others = launchable(report, target)
        can = f"--rank {others[0]}: {launchable_words(report, others)} can" if others else ""
        told = filter(None, (error.allowed, can, "" if "--to json" in error.allowed else _NEUTRAL))
        raise InputError(error.what, allowed="; or ".join(told), where=error.where) from None


def _warnings(request: PlanRequest, ranked: RankedLayout) -> tuple[str, ...]:
    """What stands against starting a launch: memory that will not do, and positions that are new to the model."""
    use = ranked.cost.heaviest
    needs, usable = (size / BYTES_PER_GIB for size in (use.total_bytes, use.usable_bytes))
    memory = f"a GPU of stage {use.stage} needs {needs:.1f} GiB of {usable:.1f} usable"
    short = {
        Verdict.OOM: (f"this layout does not fit: {memory}",),
        Verdict.RISKY: (f"this layout may run out of memory: {memory}",),
    }
    other = f"found for {request.program}, within what it can be told: this launch is of another program"
    elsewhere = (other,) if request.sayable.program else ()
    return (*elsewhere, *short.get(use.verdict, ()), *position_notes(request.model, request.job.seq))


def _places(request: PlanRequest, ranked: RankedLayout) -> tuple[RankPlace, ...]:
    """Where the ranks run; empty in order from the first node on, which launchers do by themselves."""
    if ranked.placement or len(request.cluster.islands) == 1:
        return ranked.placement
    return places_in_order(ranked.layout, request.cluster)


def _on_hosts(placement: Sequence[RankPlace], hosts: Sequence[str]) -> tuple[RankPlace, ...]:
    """Return a placement with the user's host names in the place of node0, node1, ... that plans use."""
    if not hosts:
        return tuple(placement)
    names = {f"node{number}": host for number, host in enumerate(hosts)}
    unnamed = sorted({place.host for place in placement} - set(names))
    if unnamed:
        raise InputError(
            f"--hosts names {count(len(hosts), 'host')} and the plan places ranks on {unnamed[0]}", allowed="more hosts"
        )
    return tuple(replace(place, host=names[place.host]) for place in placement)


def print_launch(console: Console, launch: LaunchFiles, folder: Path) -> None:
    """Say what was written and what is left to do."""
    parts = [section(launch.title, bullets([str(folder / name) for name in launch.files]))]
    parts += [section("To know", bullets(launch.notes))] if launch.notes else []
    show(console, *parts)


def print_warnings(console: Console, launch: LaunchFiles) -> None:
    """Say what stands against starting a launch, if anything does."""
    if launch.warnings:
        show(console, section("To know", bullets(launch.warnings)))

"""A saved layout as the files that start it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from hardware.errors import InputError
from hardware.nouns import count
from planner.export.bridge import export_bridge
from planner.export.deepspeed import export_deepspeed
from planner.export.folder import export_files
from planner.export.galvatron import export_galvatron
from planner.export.launch import Export, Planned, site_of
from planner.export.layout_json import write_layout
from planner.export.megatron import export_megatron
from planner.export.nemo import export_nemo
from planner.export.torchtitan import export_torchtitan
from planner.nearest import nearest
from planner.placement.order import places_in_order
from planner.plan_report import RankedLayout, RankPlace
from planner.report.console import section, show
from planner.report.layout_text import bullets
from planner.report.target import Target
from planner.report.words import layout_text
from planner.request import Launcher, PlanRequest

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


@dataclass(frozen=True, kw_only=True)
class LaunchFiles:
    """A launch: its text for standard output, its files by name, and what the user should know."""

    title: str
    text: str
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


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
    islands = {stage.island for stage in ranked.layout.stages}
    if exporter is not None:
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
        export = replace(export, launcher=launcher)
        return LaunchFiles(
            title=title,
            text=export.argument_text + "\n",
            files=MappingProxyType(export_files(export, ranked.layout, title)),
            notes=export.notes,
        )
    known = nearest(target.format, FORMATS)
    raise InputError(f"--to {target.format!r} is not known{known}", allowed=", ".join(FORMATS))


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

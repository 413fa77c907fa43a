"""Saved reports read again: where time and memory go, what is sent, how it is launched, how it runs on."""

from dataclasses import replace
from pathlib import Path

from hardware.errors import InputError
from planner.commands.outputs import DONE, Outputs
from planner.plan_report import PlanReport, RankedLayout
from planner.question import Question, question_of, request_of, said
from planner.report.console import text_console, working, write_stdout
from planner.report.files import check_name
from planner.report.json_report import heading, report_to_json
from planner.report.target import Target


def saved_layout(path: Path, rank: int) -> tuple[PlanReport, RankedLayout]:
    """Return a saved report and one of its layouts."""
    from planner.report.json_reader import read_report  # noqa: PLC0415

    report = read_report(path)
    if not report.layouts:
        raise InputError("nothing feasible was found, so there is no layout", where=str(path))
    if not 1 <= rank <= len(report.layouts):
        raise InputError(f"--rank {rank}", allowed=f"1 to {len(report.layouts)}", where=str(path))
    return report, report.layouts[rank - 1]


def explain(path: Path, rank: int, measured_s: float | None = None, measured: tuple[Path, str] | None = None) -> int:
    """Print where the time and the memory of a saved layout go, and where a measured step differs from it.

    The measured step is given in seconds, or as a table of runs with the id of a row.
    """
    from planner.advice.gap import explain_gap  # noqa: PLC0415
    from planner.advice.heat import heat_advice  # noqa: PLC0415
    from planner.advice.measured_step import measured_step_s  # noqa: PLC0415
    from planner.advice.remedies import remedies, repriced  # noqa: PLC0415
    from planner.advice.what_if import slow_device_for, what_ifs  # noqa: PLC0415
    from planner.infeasible.refused_savings import refused_savings  # noqa: PLC0415
    from planner.placement import stated_placement  # noqa: PLC0415
    from planner.report.explain_text import Surroundings, print_change, print_explanation  # noqa: PLC0415
    from planner.report.gap_text import print_gap  # noqa: PLC0415
    from planner.traffic.sensitivity import sensitivities  # noqa: PLC0415

    saved, before = saved_layout(path, rank)
    if measured is not None:
        measured_s = measured_step_s(*measured, saved.layouts[rank - 1].layout, saved.request.job.seq)
    with working("pricing changes"):
        report = repriced(saved, (rank, rank + 1)).about(before)
        ranked = report.layouts[rank - 1]
        there = stated_placement(ranked, report.request)
        changes = remedies(report.request, ranked.layout, ranked.cost, there=there)
        around = Surroundings(
            fabrics=sensitivities(report.request, ranked.layout, there=there),
            what_ifs=what_ifs(report.request, ranked),
            heat=heat_advice(report.request, ranked),
            refused=refused_savings(report.request, ranked.layout),
        )
        gap = None if measured_s is None else explain_gap(report.request, ranked.layout, measured_s, there=there)
    console = text_console()
    print_explanation(console, report, rank, changes, around)
    print_change(console, before, ranked)
    if gap is not None:
        slow = slow_device_for(gap.measured_s, gap.predicted_s, around.what_ifs)
        print_gap(console, gap, ranked.evidence, slow)
    return DONE


def traffic(path: Path, rank: int, *, scaling: bool, json_out: str | None) -> int:
    """Print what a saved layout sends over which link, and the same job on other networks and numbers of nodes."""
    from planner.advice.remedies import repriced  # noqa: PLC0415
    from planner.report.traffic_json import networks_to_json, scaling_to_json, traffic_to_json  # noqa: PLC0415
    from planner.report.traffic_text import print_traffic  # noqa: PLC0415
    from planner.report.words import layout_text  # noqa: PLC0415
    from planner.traffic import network_rankings, scaling_of, traffic_of  # noqa: PLC0415

    outputs = Outputs(json=json_out)
    outputs.check(str(path))
    saved, _ = saved_layout(path, rank)
    with working("pricing networks and searching clusters" if scaling else "pricing networks"):
        report = repriced(saved, range(1, len(saved.layouts) + 1))
        networks = network_rankings(report.request, report.layouts)
        report = report.about(report.layouts[rank - 1])
        found = traffic_of(report.request, report.layouts[rank - 1])
        curves = scaling_of(report.request, name_of=layout_text) if scaling else None
    outputs.write_json(
        lambda: {
            **heading(),
            "rank": rank,
            "traffic": traffic_to_json(found),
            "networks": networks_to_json(networks),
            **({} if curves is None else {"scaling": scaling_to_json(curves)}),
        }
    )
    print_traffic(text_console(json_on_stdout=outputs.json_on_stdout), report, rank, found, networks, curves)
    return DONE


def export(path: Path, rank: int, target: Target, folder: Path | None) -> int:
    """Write the launch of a saved layout, or print its arguments."""
    from planner.export.folder import write_folder  # noqa: PLC0415
    from planner.report.launch import launch_or_others, print_launch, print_warnings  # noqa: PLC0415

    if folder is not None:
        check_name(folder)
    report, _ = saved_layout(path, rank)
    launch = launch_or_others(report, rank, target)
    if folder is None:
        write_stdout(launch.text)
        print_warnings(text_console(json_on_stdout=True), launch)
        return DONE
    write_folder(folder, dict(launch.files))
    print_launch(text_console(), launch, folder)
    return DONE


def rebalance(path: Path, rank: int, asked: Question, outputs: Outputs) -> int:
    """Propose another split and placement of a saved layout on the machine as it was measured."""
    from planner.devices.rebalance import rebalance as found_for  # noqa: PLC0415
    from planner.report.device_text import print_rebalance  # noqa: PLC0415

    unread = [name for name in said(asked) if name != "--telemetry"]
    if unread:
        raise InputError(
            f"{', '.join(unread)} with --from and no machine to carry it to: the saved report states what is asked",
            allowed="--from REPORT.json with --telemetry FILE; CLUSTER --from LAUNCH carries a recipe over",
        )
    outputs.check(str(path), *asked.telemetry)
    report, running = saved_layout(path, rank)
    question = question_of(report.request)
    whole = request_of(replace(question, telemetry=asked.telemetry or question.telemetry))
    request = whole.with_choices(running.choices)
    with working(f"placing layers and ranks of {request.model.name} anew"):
        change = found_for(request, running)
    best = replace(change.best, choices=running.choices)
    proposed = replace(report, request=whole, layouts=(best,), notes=("placed anew on measured devices",))
    told = {
        "now_s": change.now_s,
        "gain": change.gain,
        "restart_s": change.restart_s,
        "payback_steps": change.payback_steps,
    }
    written = outputs.write_json(lambda: report_to_json(proposed) | {"rebalance": told}) + outputs.write_views(proposed)
    print_rebalance(text_console(json_on_stdout=outputs.json_on_stdout), request, (running, change), written)
    return DONE

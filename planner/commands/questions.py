"""Questions answered by searches and prices: one machine, several, and grids of both."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hardware.errors import InputError
from planner.commands.outputs import DONE, INFEASIBLE, Outputs
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.question import Question, request_of
from planner.report.console import text_console, working
from planner.report.files import check_name, check_places
from planner.report.json_report import estimate_to_json, report_to_json
from planner.rules import broken_rules


def search(question: Question, outputs: Outputs) -> int:
    """Find the best layouts, print them, write the files."""
    from planner.devices.stragglers import stragglers  # noqa: PLC0415
    from planner.planning import plan  # noqa: PLC0415 - the solver is heavy and mistakes should show at once
    from planner.report.device_text import straggler_section  # noqa: PLC0415
    from planner.report.search_text import print_search  # noqa: PLC0415

    outputs.check(question.model, question.cluster, question.profile, *question.telemetry)
    request = request_of(question)
    with working(f"searching layouts of {request.model.name} on {request.cluster.name}"):
        report = plan(request)
        slow = stragglers(report) if any(island.devices for island in request.cluster.islands) else None
    told = {"stragglers": asdict(slow)} if slow else {}
    written = outputs.write_json(lambda: report_to_json(report) | told) + outputs.write_views(report)
    console = text_console(json_on_stdout=outputs.json_on_stdout)
    more = (straggler_section(slow),) if slow else ()
    print_search(console, report, outputs.json or "", written, more)
    return DONE if report.layouts else INFEASIBLE


def estimate(question: Question, explicit: ExplicitLayout, outputs: Outputs, placement: str = "best") -> int:
    """Price one explicit layout, print it, say which rules it breaks."""
    from costmodels.results import Verdict  # noqa: PLC0415
    from planner.advice.remedies import mended, remedies  # noqa: PLC0415
    from planner.planning import estimate as price  # noqa: PLC0415
    from planner.planning import over_islands  # noqa: PLC0415
    from planner.report.estimate_text import print_estimate  # noqa: PLC0415
    from planner.report.placement_file import given_placement  # noqa: PLC0415

    outputs.check(question.model, question.cluster, question.profile)
    request = request_of(question)
    layout = over_islands(request, layout_of(request, explicit))
    ranked = price(request, layout, placement=given_placement(placement, request, layout))
    broken = broken_rules(ranked.layout, request)
    changes = None
    if ranked.cost.heaviest.verdict is Verdict.OOM:
        changes = mended(request, remedies(request, layout, ranked.cost))
    written = outputs.write_json(lambda: estimate_to_json(ranked, request, broken))
    console = text_console(json_on_stdout=outputs.json_on_stdout)
    print_estimate(console, request, ranked, broken, changes, written)
    return DONE


def fewest(question: Question, clusters: Sequence[str], outputs: Outputs) -> int:
    """Find the smallest size of some machines that holds a job, and that with its optimizer in host memory."""
    from planner.advice.fewest import fewest as fewest_of  # noqa: PLC0415
    from planner.advice.fewest import in_host_memory  # noqa: PLC0415
    from planner.launches.check import is_preset_alone  # noqa: PLC0415
    from planner.report.compare_text import fewest_to_json, print_fewest  # noqa: PLC0415

    outputs.check(question.model, *clusters)
    kinds = [f"{name}:1" if is_preset_alone(name) else name for name in clusters]
    requests = [request_of(replace(question, cluster=name)) for name in kinds]
    with working("searching sizes"):
        found = [(fewest_of(request), fewest_of(in_host_memory(request))) for request in requests]
    outputs.write_json(lambda: fewest_to_json(requests[0], found))
    print_fewest(text_console(json_on_stdout=outputs.json_on_stdout), requests[0], found)
    return DONE if any(plain.first is not None for plain, _ in found) else INFEASIBLE


def compare(question: Question, degree: str, outputs: Outputs) -> int:
    """Search once for every value of a degree and print the best layouts side by side."""
    from planner.advice.compare import compare as compare_by  # noqa: PLC0415
    from planner.report.compare_text import compared_to_json, print_compared  # noqa: PLC0415

    outputs.check(question.model, question.cluster)
    request = request_of(question)
    with working(f"searching with each {degree}"):
        rows = compare_by(request, degree)
    outputs.write_json(lambda: compared_to_json(request, degree, rows))
    print_compared(text_console(json_on_stdout=outputs.json_on_stdout), request, degree, rows)
    return DONE if any(row.ranked is not None for row in rows) else INFEASIBLE


def sweep(path: Path, folder: Path, *, workers: int, scheduler: str, resume: bool) -> int:
    """Answer a grid of questions and write the table."""
    from planner.report.sweep_text import print_sweep, sweep_progress  # noqa: PLC0415
    from planner.sweeps.sweep import POINTS, TABLE, run_sweep  # noqa: PLC0415
    from planner.sweeps.sweep_file import read_sweep  # noqa: PLC0415

    if scheduler and workers > 1:
        raise InputError("--workers with --scheduler: its workers do the work", allowed="one of them")
    check_name(folder)
    file = read_sweep(path)
    if folder.is_dir():
        check_places({"-o": folder / TABLE}, [str(path)])
        if not resume and ((folder / TABLE).exists() or any((folder / POINTS).glob("*.json"))):
            raise InputError(f"{folder} holds a sweep", allowed="--resume to keep its points, or another folder")
    with sweep_progress(file.title, len(file.questions)) as progress:
        result = run_sweep(
            file.questions, folder, workers=workers, scheduler=scheduler, resume=resume, progress=progress
        )
    print_sweep(text_console(), file.title, result)
    return DONE

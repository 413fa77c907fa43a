"""What each command does: from the user's words to an answer, its files, its text and its exit code.

Errors of the user are raised as :class:`hardware.errors.InputError`; the command line turns them into exit code 2.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from hardware.errors import InputError
from hardware.importers.assemble import Wishes
from hardware.nouns import count
from planner.calibrate.inputs import Inputs
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.plan_report import PlanReport, RankedLayout
from planner.question import LaunchQuestion, PortQuestion, Question, question_of, request_of
from planner.report.console import show, text_console, working, write_stdout
from planner.report.files import check_name, check_places, write_whole
from planner.report.json_report import estimate_to_json, heading, report_to_json
from planner.report.json_text import json_text
from planner.report.target import Target
from planner.request import pins
from planner.rules import check_layout

DONE: Final = 0
INFEASIBLE: Final = 3
STDOUT: Final = "-"

__all__ = [
    "ExplicitLayout",
    "Inputs",
    "LaunchQuestion",
    "Outputs",
    "PortQuestion",
    "Question",
    "Target",
    "Wishes",
    "calibrate",
    "catalog",
    "check",
    "compare",
    "estimate",
    "explain",
    "export",
    "fewest",
    "import_nccl_tests",
    "import_telemetry",
    "import_topology",
    "pins",
    "port",
    "rebalance",
    "search",
    "sweep",
    "traffic",
    "validate",
]


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Files to write besides the text; ``json`` may be ``-`` for standard output."""

    json: str | None = None
    html: Path | None = None
    trace: Path | None = None

    def check(self, *inputs: str) -> None:
        """Refuse places that cannot be written, or that are ``inputs`` as typed, before long work begins."""
        json_file = None if self.json in (None, STDOUT) else Path(str(self.json))
        places = {"--json": json_file, "--html": self.html, "--trace": self.trace}
        check_places({option: path for option, path in places.items() if path is not None}, inputs)

    def write_json(self, data: dict[str, object]) -> list[str]:
        """Write JSON where it is wanted; return the file's name, if it is a file."""
        if self.json is None:
            return []
        if self.json == STDOUT:
            write_stdout(json_text(data))
            return []
        write_whole(Path(self.json), json_text(data))
        return [self.json]


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
    data = report_to_json(report) | ({"stragglers": asdict(slow)} if slow else {})
    written = outputs.write_json(data) + _write_views(report, outputs)
    console = text_console(json_on_stdout=outputs.json == STDOUT)
    more = (straggler_section(slow),) if slow else ()
    print_search(console, report, outputs.json or "", written, more)
    return DONE if report.layouts else INFEASIBLE


def rebalance(path: Path, rank: int, telemetry: Sequence[str], outputs: Outputs) -> int:
    """Propose another split and placement of a saved layout on the machine as it was measured."""
    from planner.devices.rebalance import rebalance as found_for  # noqa: PLC0415
    from planner.report.device_text import print_rebalance  # noqa: PLC0415

    outputs.check(str(path), *telemetry)
    report, running = _saved(path, rank)
    question = question_of(report.request)
    request = request_of(replace(question, telemetry=tuple(telemetry) or question.telemetry))
    with working(f"placing layers and ranks of {request.model.name} anew"):
        change = found_for(request, running)
    proposed = replace(report, request=request, layouts=(change.best,), notes=("placed anew on measured devices",))
    told = {
        "now_s": change.now_s,
        "gain": change.gain,
        "restart_s": change.restart_s,
        "payback_steps": change.payback_steps,
    }
    written = outputs.write_json(report_to_json(proposed) | {"rebalance": told}) + _write_views(proposed, outputs)
    print_rebalance(text_console(json_on_stdout=outputs.json == STDOUT), request, (running, change), written)
    return DONE


def port(question: PortQuestion, outputs: Outputs) -> int:
    """Carry a recipe to another machine, and search there."""
    from planner.launches.porting import port as carried_to  # noqa: PLC0415
    from planner.report.porting_text import port_sections, port_to_json, recipe_in  # noqa: PLC0415
    from planner.report.search_text import print_search  # noqa: PLC0415

    outputs.check(str(question.file), question.model, question.cluster)
    recipe = recipe_in(question)
    with working(f"carrying {recipe.name} to {question.cluster}"):
        found = carried_to(recipe, question)
    written = outputs.write_json(report_to_json(found.report) | {"port": port_to_json(found)})
    console = text_console(json_on_stdout=outputs.json == STDOUT)
    show(console, *port_sections(found))
    print_search(console, found.report, outputs.json or "", written + _write_views(found.report, outputs))
    return DONE if found.report.layouts else INFEASIBLE


def _write_views(report: PlanReport, outputs: Outputs) -> list[str]:
    """Write the page, and the trace of the best layout."""
    written = []
    if outputs.html is not None:
        from planner.report.html import html_text  # noqa: PLC0415

        write_whole(outputs.html, html_text(report))
        written.append(str(outputs.html))
    if outputs.trace is not None and report.layouts:
        from planner.report.trace import trace_text  # noqa: PLC0415

        write_whole(outputs.trace, trace_text(report.layouts[0], report.request))
        written.append(str(outputs.trace))
    return written


def estimate(question: Question, explicit: ExplicitLayout, outputs: Outputs, placement: str = "best") -> int:
    """Price one explicit layout, print it, say which rules it breaks."""
    from costmodels.results import Verdict  # noqa: PLC0415
    from planner.advice.remedies import remedies  # noqa: PLC0415
    from planner.planning import estimate as price  # noqa: PLC0415
    from planner.report.estimate_text import print_estimate  # noqa: PLC0415
    from planner.report.placement_file import given_placement  # noqa: PLC0415

    outputs.check(question.model, question.cluster, question.profile)
    request = request_of(question)
    layout = layout_of(request, explicit)
    ranked = price(request, layout, placement=given_placement(placement, request, layout))
    broken = check_layout(ranked.layout, request.model, request.job, framework=request.framework)
    changes = remedies(request, layout, ranked.cost) if ranked.cost.heaviest.verdict is Verdict.OOM else None
    written = outputs.write_json(estimate_to_json(ranked, request, broken))
    console = text_console(json_on_stdout=outputs.json == STDOUT)
    print_estimate(console, request, ranked, broken, changes, written)
    return DONE


def explain(path: Path, rank: int, measured_s: float | None = None, measured: tuple[Path, str] | None = None) -> int:
    """Print where the time and the memory of a saved layout go, and where a measured step differs from it.

    The measured step is given in seconds, or as a table of runs with the id of a row.
    """
    from planner.advice.gap import explain_gap  # noqa: PLC0415
    from planner.advice.heat import heat_advice  # noqa: PLC0415
    from planner.advice.measured_step import measured_step_s  # noqa: PLC0415
    from planner.advice.remedies import remedies, repriced  # noqa: PLC0415
    from planner.advice.what_if import what_ifs  # noqa: PLC0415
    from planner.infeasible.refused_savings import refused_savings  # noqa: PLC0415
    from planner.report.explain_text import Surroundings, print_change, print_explanation  # noqa: PLC0415
    from planner.report.gap_text import print_gap  # noqa: PLC0415
    from planner.traffic.sensitivity import sensitivities  # noqa: PLC0415

    saved, before = _saved(path, rank)
    if measured is not None:
        measured_s = measured_step_s(*measured, saved.layouts[rank - 1].layout, saved.request.job.seq)
    with working("pricing changes"):
        report = repriced(saved, (rank, rank + 1))
        ranked = report.layouts[rank - 1]
        changes = remedies(report.request, ranked.layout, ranked.cost)
        around = Surroundings(
            fabrics=sensitivities(report.request, ranked.layout),
            what_ifs=what_ifs(report.request, ranked),
            heat=heat_advice(report.request, ranked),
            refused=refused_savings(report.request, ranked.layout),
        )
        gap = None if measured_s is None else explain_gap(report.request, ranked.layout, measured_s)
    console = text_console()
    print_explanation(console, report, rank, changes, around)
    print_change(console, before, ranked)
    if gap is not None:
        print_gap(console, gap, ranked.evidence)
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
    saved, _ = _saved(path, rank)
    with working("pricing networks and searching clusters" if scaling else "pricing networks"):
        report = repriced(saved, range(1, len(saved.layouts) + 1))
        found = traffic_of(report.request, report.layouts[rank - 1])
        networks = network_rankings(report.request, report.layouts)
        curves = scaling_of(report.request, name_of=layout_text) if scaling else None
    data: dict[str, object] = {
        **heading(),
        "rank": rank,
        "traffic": traffic_to_json(found),
        "networks": networks_to_json(networks),
    }
    outputs.write_json(data if curves is None else {**data, "scaling": scaling_to_json(curves)})
    print_traffic(text_console(json_on_stdout=json_out == STDOUT), report, rank, found, networks, curves)
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
    outputs.write_json(fewest_to_json(requests[0], found))
    print_fewest(text_console(json_on_stdout=outputs.json == STDOUT), requests[0], found)
    return DONE if any(plain.first is not None for plain, _ in found) else INFEASIBLE


def compare(question: Question, degree: str, outputs: Outputs) -> int:
    """Search once for every value of a degree and print the best layouts side by side."""
    from planner.advice.compare import compare as compare_by  # noqa: PLC0415
    from planner.report.compare_text import compared_to_json, print_compared  # noqa: PLC0415

    outputs.check(question.model, question.cluster)
    request = request_of(question)
    with working(f"searching with each {degree}"):
        rows = compare_by(request, degree)
    outputs.write_json(compared_to_json(request, degree, rows))
    print_compared(text_console(json_on_stdout=outputs.json == STDOUT), request, degree, rows)
    return DONE if any(row.ranked is not None for row in rows) else INFEASIBLE


def _saved(path: Path, rank: int) -> tuple[PlanReport, RankedLayout]:
    """Return a saved report and one of its layouts."""
    from planner.report.json_reader import read_report  # noqa: PLC0415

    report = read_report(path)
    if not report.layouts:
        raise InputError("nothing feasible was found, so there is no layout", where=str(path))
    if not 1 <= rank <= len(report.layouts):
        raise InputError(f"--rank {rank}", allowed=f"1 to {len(report.layouts)}", where=str(path))
    return report, report.layouts[rank - 1]


def export(path: Path, rank: int, target: Target, folder: Path | None) -> int:
    """Write the launch of a saved layout, or print its arguments."""
    from planner.export.folder import write_folder  # noqa: PLC0415
    from planner.report.launch import launch_of, print_launch  # noqa: PLC0415

    if folder is not None:
        check_name(folder)
    report, ranked = _saved(path, rank)
    launch = launch_of(report.request, ranked, target)
    if folder is None:
        write_stdout(launch.text)
        return DONE
    write_folder(folder, dict(launch.files))
    print_launch(text_console(), launch, folder)
    return DONE


def check(question: LaunchQuestion, json_out: str | None) -> int:
    """Judge a user's launch by its framework's rules, and price it."""
    from planner.launches.check import check_launch  # noqa: PLC0415
    from planner.report.check_text import check_to_json, print_check  # noqa: PLC0415

    outputs = Outputs(json=json_out)
    outputs.check(str(question.file or ""))
    report = check_launch(question)
    outputs.write_json(check_to_json(report))
    print_check(text_console(json_on_stdout=json_out == STDOUT), report)
    return DONE if report.judged.legal else INFEASIBLE


def sweep(path: Path, folder: Path, *, workers: int, scheduler: str, resume: bool) -> int:
    """Answer a grid of questions and write the table."""
    from planner.report.sweep_text import print_sweep, sweep_progress  # noqa: PLC0415
    from planner.sweeps.sweep import TABLE, run_sweep  # noqa: PLC0415
    from planner.sweeps.sweep_file import read_sweep  # noqa: PLC0415

    if scheduler and workers > 1:
        raise InputError("--workers with --scheduler: its workers do the work", allowed="one of them")
    check_name(folder)
    file = read_sweep(path)
    if folder.is_dir():
        check_places({"-o": folder / TABLE}, [str(path)])
    with sweep_progress(file.title, len(file.questions)) as progress:
        result = run_sweep(
            file.questions, folder, workers=workers, scheduler=scheduler, resume=resume, progress=progress
        )
    print_sweep(text_console(), file.title, result)
    return DONE


def validate(paths: Sequence[Path], profile: str, json_out: str | None) -> int:
    """Predict measured runs and print the errors."""
    from planner.evidence.validate import validate as predict_runs  # noqa: PLC0415
    from planner.profile import read_profile  # noqa: PLC0415
    from planner.report.console import counted  # noqa: PLC0415
    from planner.report.validation import predictions_to_json, print_predictions  # noqa: PLC0415

    outputs = Outputs(json=json_out)
    outputs.check(*map(str, paths), profile)
    machine = read_profile(Path(profile)) if profile else None
    predictions = predict_runs(paths, profile=machine, progress=counted)
    outputs.write_json(predictions_to_json(predictions, machine))
    print_predictions(text_console(json_on_stdout=json_out == STDOUT), predictions, machine)
    return DONE


def calibrate(inputs: Inputs, output: Path) -> int:
    """Fit the profile of a machine and write it."""
    from planner.calibrate.calibration import calibrate as fit_inputs  # noqa: PLC0415
    from planner.profile import profile_text  # noqa: PLC0415
    from planner.report.calibration_text import print_calibration  # noqa: PLC0415

    read = (*inputs.runs, *inputs.nccl_tests, *inputs.products)
    check_places({"--output": output}, map(str, read))
    with working("fitting the profile"):
        found = fit_inputs(inputs)
    write_whole(output, profile_text(found.profile))
    print_calibration(text_console(), found, output)
    return DONE


def catalog(kind: str, name: str | None, json_out: str | None) -> int:
    """List a kind of entry, or show one."""
    from planner.report.catalog_json import catalog_entry, catalog_list  # noqa: PLC0415
    from planner.report.catalog_text import print_entry, print_list  # noqa: PLC0415

    outputs = Outputs(json=json_out)
    outputs.check(name or "")
    console = text_console(json_on_stdout=json_out == STDOUT)
    if name is None:
        outputs.write_json(catalog_list(kind))
        if json_out is None:
            print_list(console, kind)
        return DONE
    entry = catalog_entry(kind, name)
    outputs.write_json(entry)
    if json_out is None:
        print_entry(console, entry)
    return DONE


def import_topology(paths: Sequence[Path], wishes: Wishes, output: Path | None) -> int:
    """Turn topology files into a cluster file, and say what was assumed."""
    from hardware.importers.topology import import_topology as read_files  # noqa: PLC0415
    from planner.report.import_text import print_import  # noqa: PLC0415

    if output is not None:
        check_places({"-o": output}, map(str, paths))
    found = read_files(paths, wishes)
    _write_cluster(found.toml(), output)
    shape = " + ".join(f"{island.nodes} x {island.node.gpus}" for island in found.cluster.islands)
    print_import(f"{found.cluster.name}: {shape} GPUs", found.stated, found.assumed, output)
    return DONE


def import_nccl_tests(paths: Sequence[Path], cluster: str, accelerator: str, output: Path | None) -> int:
    """Set the link rates of a cluster by logs of nccl-tests and write it as a file."""
    from hardware.cluster_file import to_toml  # noqa: PLC0415
    from planner.calibrate.link_rates import calibrate  # noqa: PLC0415
    from planner.report.import_text import print_import, rate_lines  # noqa: PLC0415

    if output is not None:
        check_places({"-o": output}, [*map(str, paths), cluster])
    found = calibrate(paths, cluster, accelerator)
    rates = rate_lines(found.rates)
    head = "".join(f"# {line}\n" for line in ("Measured:", *rates, "Assumed:", *found.assumed) if line.isprintable())
    _write_cluster(f"{head}\n{to_toml(found.cluster)}", output)
    print_import(f"{found.cluster.name}: {count(found.cluster.gpus, 'GPU')}", rates, found.assumed, output)
    return DONE


def import_telemetry(paths: Sequence[Path], cluster: str, accelerator: str, output: Path | None) -> int:
    """Lay series of monitoring tools on a cluster and write it as a file."""
    from hardware.cluster_file import to_toml  # noqa: PLC0415
    from planner.devices.telemetry import measured_cluster  # noqa: PLC0415
    from planner.report.import_text import print_import  # noqa: PLC0415

    if output is not None:
        check_places({"-o": output}, [*map(str, paths), cluster])
    found = measured_cluster(paths, cluster, accelerator)
    lines = ("Measured under load:", *found.stated, "Assumed:", *found.assumed)
    head = "".join(f"# {line}\n" for line in lines if line.isprintable())
    _write_cluster(f"{head}\n{to_toml(found.cluster)}", output)
    print_import(f"{found.cluster.name}: {count(found.cluster.gpus, 'GPU')}", found.stated, found.assumed, output)
    return DONE


def _write_cluster(text: str, output: Path | None) -> None:
    if output is None:
        write_stdout(text)
    else:
        write_whole(output, text)

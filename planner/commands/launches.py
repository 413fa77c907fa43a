"""Launches of the user's own: judged, and carried to another machine."""

from planner.commands.outputs import DONE, INFEASIBLE, Outputs
from planner.question import LaunchQuestion, PortQuestion
from planner.report.console import show, text_console, working
from planner.report.json_report import report_to_json


def check(question: LaunchQuestion, json_out: str | None) -> int:
    """Judge a user's launch by its framework's rules, and price it."""
    from planner.launches.check import check_launch  # noqa: PLC0415
    from planner.report.check_text import check_to_json, print_check  # noqa: PLC0415

    outputs = Outputs(json=json_out)
    outputs.check(str(question.file or ""))
    report = check_launch(question)
    outputs.write_json(lambda: check_to_json(report))
    print_check(text_console(json_on_stdout=outputs.json_on_stdout), report)
    return DONE if report.judged.legal else INFEASIBLE


def port(question: PortQuestion, outputs: Outputs) -> int:
    """Carry a recipe to another machine, and search there."""
    from planner.launches.porting import port as carried_to  # noqa: PLC0415
    from planner.report.porting_text import port_sections, port_to_json, recipe_in  # noqa: PLC0415
    from planner.report.search_text import print_search  # noqa: PLC0415

    asked = question.asked
    outputs.check(str(question.file), asked.model, asked.cluster, asked.profile)
    recipe = recipe_in(question)
    with working(f"carrying {recipe.name} to {asked.cluster}"):
        found = carried_to(recipe, question)
    written = outputs.write_json(lambda: report_to_json(found.report) | {"port": port_to_json(found)})
    console = text_console(json_on_stdout=outputs.json_on_stdout)
    show(console, *port_sections(found))
    print_search(console, found.report, outputs.json or "", written + outputs.write_views(found.report))
    return DONE if found.report.layouts else INFEASIBLE

"""Measured runs: predicted, and what a machine's profile is fitted on."""

from collections.abc import Sequence
from pathlib import Path

from planner.calibrate.inputs import Inputs
from planner.commands.outputs import DONE, Outputs
from planner.report.console import text_console, working
from planner.report.files import check_places, write_whole


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
    outputs.write_json(lambda: predictions_to_json(predictions, machine))
    print_predictions(text_console(json_on_stdout=outputs.json_on_stdout), predictions, machine)
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

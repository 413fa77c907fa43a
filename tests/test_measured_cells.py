"""Tables of measured runs with values that no run can have: every row that is left out is named with its reason."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from calibration_runs import Machine, rows, write
from typer.testing import CliRunner

from costmodels.profile import UNCHANGED, Profile
from costmodels.software import FALLBACK, software
from hardware.errors import InputError
from planner.calibrate.calibration import calibrate
from planner.calibrate.inputs import Inputs
from planner.calibrate.runs import read_calibration_runs
from planner.cli import app
from planner.evidence.cells import unread_columns, wrong_cell
from planner.evidence.left_out import LeftOut, left_out, rows_in_words
from planner.evidence.measured import parse_run, read_runs
from planner.evidence.validate import predict, validate
from planner.profile import MachineProfile, MemoryErrors, profile_text, read_profile
from planner.report.validation import predictions_to_json

pytestmark = pytest.mark.deep


def table(tmp_path, **changes):
    """Write five good runs, the first changed."""
    first, *others = rows(Machine(peaks=True), 5)
    return write(tmp_path / "runs.csv", [first | changes, *others])


def shown(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("value", ["-4", "0", "inf", "-inf", "nan", "2.31s", "1e-300", "9" * 400, "1e16"])
@pytest.mark.parametrize("column", ["step_time_s", "peak_mem_gb"])
def test_a_measured_value_that_no_run_has_leaves_its_row_out(tmp_path, column, value):
    path = table(tmp_path, **{column: value})
    first, *others = validate([path])
    assert first.skipped is not None
    assert first.skipped.startswith(f"{column}: ")
    assert (first.error, first.memory_ratio) == (None, None)
    assert all(abs(found.error) < 1e-9 and abs(found.memory_ratio - 1.0) < 1e-9 for found in others)
    chosen = read_calibration_runs([path])
    assert chosen.skipped == (LeftOut(reason=first.skipped, rows=("runs.csv: run-0",)),)
    assert [run.run.id for run in chosen.runs] == ["run-1", "run-2", "run-3", "run-4"]


@pytest.mark.parametrize(("column", "value"), [("step_time_s", "-4"), ("peak_mem_gb", "-5")])
def test_both_commands_show_the_row_the_column_and_the_value(tmp_path, column, value):
    path, profile = table(tmp_path, **{column: value}), tmp_path / "machine.toml"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in (("validate", path), ("calibrate", path, "-o", profile)):
            code, text = shown(*words)
            assert code == 0, text
            assert f"1 {column}: '{value}' is not accepted; allowed: " in text
            assert "(runs.csv: run-0)" in text
    assert len(read_profile(profile).runs) == 4


def test_without_a_row_left_nothing_is_written(tmp_path):
    path = write(tmp_path / "runs.csv", [row | {"step_time_s": "-1"} for row in rows(Machine(), 4)])
    code, text = shown("calibrate", path, "-o", tmp_path / "machine.toml")
    assert code == 2
    assert "4: step_time_s: '-1' is not accepted" in text
    assert "(runs.csv: run-0, run-1, run-2 and 1 more)" in text
    assert not (tmp_path / "machine.toml").exists()


@pytest.mark.parametrize(
    ("column", "value", "wrong"),
    [
        ("tp", "-2", True),
        ("dp", "2.5", True),
        ("vpp", "many", True),
        ("ep", "-1", True),
        ("ep", "0", False),
        ("n_gpus", "0", True),
        ("layers", "nan", True),
        ("zero", "4", True),
        ("zero", "offload", False),
        ("zero", "3.0", False),
        ("mfu", "104", True),
        ("mfu", "0", False),
        ("scaleout_gbps_per_node", "-1", True),
        ("scaleout_gbps_per_node", "0.0", False),
        ("peak_mem_gb", "N/A", False),
        ("step_time_s", "", False),
    ],
)
def test_settings_of_a_row_are_held_to_what_can_be(column, value, wrong):
    found = wrong_cell({column: value}, "ok")
    assert (found is not None) == wrong
    assert found is None or found.startswith(f"{column}: {value!r} is not accepted; allowed: ")


def test_what_a_failed_run_measured_is_not_looked_at():
    assert wrong_cell({"step_time_s": "-1", "peak_mem_gb": "out"}, "oom") is None
    assert wrong_cell({"step_time_s": "-1", "peak_mem_gb": "40"}, "memory_only") is None
    assert wrong_cell({"peak_mem_gb": "out"}, "memory_only") is not None


def with_column(path, name, value):
    """Add a column with one value to a table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([f"{lines[0]},{name}", *(f"{line},{value}" for line in lines[1:])]) + "\n")
    return path


def test_steps_of_a_low_mfu_are_named_with_the_unit(tmp_path):
    path = with_column(table(tmp_path), "mfu", "0.4")
    hint = "mfu below 5 %, as of a troubled run (mfu is in percent: 40 for 40 %, not 0.4)"
    for words in (("validate", path), ("calibrate", path, "-o", tmp_path / "m.toml")):
        text = shown(*words)[1]
        assert hint in text
        assert "(runs.csv: run-0, run-1, run-2 and 2 more)" in text
    assert "5 runs, 5 predicted, 0 with a step time" in shown("validate", path)[1]
    low = replace(read_runs(path)[0], row={"mfu": "3"})
    assert low.untimed == "mfu below 5 %, as of a troubled run"
    assert replace(low, row={"mfu": "40"}).untimed == ""


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [("step_time_s", "0.0018", "take at their peak; allowed: from"), ("peak_mem_gb", "52000", "allowed: GB of one")],
)
def test_what_the_hardware_cannot_have_leaves_its_row_out(tmp_path, column, value, told):
    """A step in kiloseconds, a peak in MB."""
    path = table(tmp_path, **{column: value})
    first, *others = validate([path])
    assert first.skipped is not None
    assert first.skipped.startswith(f"{column}: {value}")
    assert told in first.skipped
    assert not any(other.skipped for other in others)
    assert told in shown("calibrate", path, "-o", tmp_path / "m.toml")[1]
    failed = replace(first.run, status="oom")
    assert predict(failed).skipped is None


def test_a_precision_that_is_not_known_is_named(tmp_path):
    path = table(tmp_path, dtype="bf61")
    assert [bool(found.assumed) for found in validate([path])] == [True, False, False, False, False]
    assert (
        "'bf61': no precision that is known, priced as if none were stated (runs.csv: run-0)"
        in shown("validate", path)[1]
    )


@pytest.mark.parametrize(
    ("framework", "told"),
    [
        ("torchtitain", "framework 'torchtitain': none that is known (nearest: torchtitan), priced as generic: "),
        ("our own", "framework 'our own': none that is known, priced as generic: "),
        ("", "no framework is stated, priced as generic: "),
    ],
)
def test_a_framework_that_is_not_known_is_named_once_with_what_it_is_priced_as(tmp_path, framework, told):
    path = table(tmp_path)
    plain = path.read_text(encoding="utf-8")
    path.write_text(plain.replace(",torchtitan,", f",{framework},"), encoding="utf-8")
    words = f"{told}fused attention, overlapped data parallelism"
    for asked in (("validate", path), ("calibrate", path, "-o", tmp_path / "m.toml")):
        text = " ".join(shown(*asked)[1].split())
        assert text.count(f"5 {words} (runs.csv: run-0, run-1, run-2 and 2 more)") == 1
    found = validate([path])
    assert predictions_to_json(found)["summary"]["assumed"] == {words: 5}
    priced_as = software(FALLBACK)
    assert priced_as.flash_attention
    assert priced_as.grad_overlap
    assert {prediction.cost is not None for prediction in found} == {True}
    path.write_text(plain, encoding="utf-8")
    assert predictions_to_json(validate([path]))["summary"]["assumed"] == {}


def test_a_column_near_to_one_that_is_absent_is_named(tmp_path):
    path = table(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("step_time_s", "step_time_ms"), encoding="utf-8")
    for words in (("validate", path), ("calibrate", path, "-o", tmp_path / "m.toml")):
        assert "runs.csv: column 'step_time_ms' is not read; did you mean step_time_s (seconds)?" in shown(*words)[1]


def test_columns_of_ones_own_are_left_alone():
    assert unread_columns(["id", "step_time_s", "step_time_src", "my notes", "nodes", "tokens_per_s", ""]) == ()
    assert unread_columns(["microbatch_size"]) == (
        "column 'microbatch_size' is not read; did you mean micro_batch_size?",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [lines[0], lines[1], lines[2] + ",1,2"], r"line 3: row 'run-1' has 20 cells and the header 18"),
        (lambda lines: [lines[0], lines[1].rpartition(",")[0]], r"line 2: row 'run-0' has 17 cells and the header 18"),
        (lambda lines: [lines[0] + ",tp", lines[1] + ",8"], r"line 1: the column tp stands twice"),
    ],
)
def test_cells_under_wrong_names_are_refused_with_the_line(tmp_path, change, said):
    path = table(tmp_path)
    path.write_text("\n".join(change(path.read_text(encoding="utf-8").splitlines())) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_runs(path)


@pytest.mark.parametrize(("mark", "said"), [(";", "semicolons stand"), ("\t", "tabs stand")])
def test_a_table_of_other_marks_is_told_from_one_without_a_header(tmp_path, mark, said):
    lines = table(tmp_path).read_text(encoding="utf-8").splitlines()
    path = tmp_path / "other.csv"
    path.write_text("\n".join(line.replace(",", mark) for line in lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"lacks the column id, .*; {said}"):
        read_runs(path)


def test_rows_of_two_tables_with_one_id_are_two_runs(tmp_path):
    """Prices are remembered by table and id: the second run is not the first one again."""
    one, other = rows(Machine(), 2)
    paths = [write(tmp_path / f"{name}.csv", [row | {"id": "a"}]) for name, row in (("x", one), ("y", other))]
    found = calibrate(Inputs(runs=tuple(paths)))
    assert np.allclose([run.before for run in found.profile.runs], 0.0, atol=1e-9)
    assert all(predict(run).error == pytest.approx(0.0) for path in paths for run in read_runs(path))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e3])
def test_a_profile_that_cannot_be_read_is_not_written(value):
    profile = MachineProfile(
        accelerator="h100-sxm-80gb", frameworks=(), learned=(), factors=UNCHANGED, memory=MemoryErrors(),
        files=(), runs=(),
    )  # fmt: skip
    assert profile_text(profile)
    with pytest.raises(InputError, match="the profile that was fitted"):
        profile_text(replace(profile, factors=Profile(activations=value)))


def test_rows_are_grouped_by_reason_and_listed_by_file():
    found = left_out([("odd", "x.csv: a"), ("low", "x.csv: b"), ("low", "y.csv: c"), ("low", "y.csv: d")])
    assert found == (
        LeftOut(reason="low", rows=("x.csv: b", "y.csv: c", "y.csv: d")),
        LeftOut(reason="odd", rows=("x.csv: a",)),
    )
    assert rows_in_words(found[0].rows) == "x.csv: b, y.csv: c, d"
    assert rows_in_words(found[0].rows, most=1) == "x.csv: b and 2 more"


def test_rows_that_are_skipped_are_told_with_their_numbers():
    grid = {"n_gpus": "16", "seq_len": "4096", "tp": "1", "pp": "1", "micro_batch_size": "4"}
    rows = [
        {**grid, "id": "a", "global_batch_size": "250"},
        {**grid, "id": "b", "global_batch_size": "254"},
        {**grid, "id": "c", "global_batch_size": "256", "tp": "3"},
        {**grid, "id": "d", "global_batch_size": "256", "tp": ""},
    ]
    told = left_out((run.skipped, run.id) for run in map(parse_run, rows))
    assert [(one.reason, one.rows) for one in told] == [
        ("global batch 250 is no multiple of micro-batch 4 x dp 16 = 64; 1 with other numbers", ("a", "b")),
        ("degrees do not multiply to the GPUs: tp 3 x pp 1 x cp 1 x dp 5 is 15, n_gpus 16", ("c",)),
        ("layout not stated: tp", ("d",)),
    ]


def test_reasons_that_name_different_things_stay_apart():
    pairs = (("model 'llama-7b' is not known", "a"), ("model 'llama-8b' is not known", "b"), ("h100 x 2", "c"))
    assert [one.reason for one in left_out((*pairs, ("h200 x 2", "d")))] == [
        "h100 x 2",
        "h200 x 2",
        "model 'llama-7b' is not known",
        "model 'llama-8b' is not known",
    ]


def test_names_of_columns_may_have_spaces_around_them(tmp_path):
    path = table(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace(",", " , "), encoding="utf-8")
    spaced = read_runs(path)
    assert [(run.id, run.step_time_s, run.grid) for run in spaced] == [
        (run.id, run.step_time_s, run.grid) for run in read_runs(table(tmp_path))
    ]


def test_times_in_another_unit_are_told(tmp_path):
    """Milliseconds were an error of 99.9 %, and a calibration that learns nothing."""
    told = "more than 100 times the prediction, which is no matter of speed: step_time_s is in seconds"
    good = rows(Machine(peaks=True), 5)
    path = write(tmp_path / "runs.csv", good)
    assert told not in shown("validate", path)[1]
    write(path, [row | {"step_time_s": str(1000.0 * float(row["step_time_s"]))} for row in good])
    assert told in shown("validate", path)[1]
    assert told in shown("calibrate", path, "-o", tmp_path / "p.toml")[1]

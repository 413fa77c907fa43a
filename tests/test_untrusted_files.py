"""Values in users' files that no machine, model or run can have: refused with file and field, never a defect."""

import json

import plan_samples as samples
import pytest
from typer.testing import CliRunner

from costmodels.workload.fields import Fields
from hardware.cluster_file import read_cluster_file
from hardware.errors import MOST_PART, MOST_WORD, InputError
from hardware.importers.nccl_log import read_nccl_log
from planner.calibrate.tables import read_products
from planner.cli import app
from planner.evidence.measured import MOST_NUMBER, number, parse_run
from planner.evidence.runs import mixed_recompute, stated_layers, stated_split
from planner.evidence.validate import predict
from planner.report.json_reader import read_report
from planner.report.json_report import report_to_json
from planner.sweeps.sweep_file import read_sweep

HUGE = 10**400  # a number in TOML and JSON, but none in floating point
RUN = CliRunner()


@pytest.mark.parametrize("value", [HUGE, -1, -0.1, 1e31, float("inf"), float("nan"), True, "1", None, [1.0]])
def test_what_is_no_number_is_refused(value):
    read = Fields({"x": value, "list": [1.0, value]}, "file.toml")
    with pytest.raises(InputError, match=r"file\.toml: x: .*a number, not negative"):
        read.number("x")
    with pytest.raises(InputError, match=r"file\.toml: list: .*a list of numbers, not negative"):
        read.numbers("list")


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e31, float("-inf"), float("nan"), False, "-1", None])
def test_what_is_no_signed_number_is_refused(value):
    with pytest.raises(InputError, match=r"file\.toml: x: .*a number from -1e\+30 to 1e\+30"):
        Fields({"x": value}, "file.toml").signed("x")


def test_numbers_are_read():
    read = Fields({"x": 3, "y": -2.5, "list": [1, 0.5]}, "file.toml")
    assert (read.number("x"), read.signed("y"), read.numbers("list")) == (3.0, -2.5, (1.0, 0.5))
    assert read.numbers("other") == ()


def test_messages_stay_readable():
    error = InputError(f"unknown field {'k' * 100_000}", allowed=" ".join(["name"] * 100_000), where="a\x1b[2J\nb")
    assert len(str(error)) < 2 * MOST_PART
    assert error.what.startswith("unknown field kkk")
    assert len(error.what) < MOST_WORD + 20
    assert error.where == "a\\x1b[2J\\nb"
    assert str(InputError("é 中: 3 is no number", where="ü.toml")) == "ü.toml: é 中: 3 is no number"


def test_an_error_within_a_file_names_it_first():
    assert str(InputError("no", allowed="yes").within("file")) == "file: no; allowed: yes"
    assert str(InputError("no", where="field").within("file")) == "file: field: no"


@pytest.mark.parametrize("text", ["9" * 400, "1e16", "-1e16", "inf", "nan", "", "x", "1_0 0"])
def test_columns_of_runs_that_hold_no_number_are_empty(text):
    assert number({"n_gpus": text}, "n_gpus") is None
    assert number({"n_gpus": f"{MOST_NUMBER:g}"}, "n_gpus") == MOST_NUMBER


RUN_ROW = {
    "id": "one",
    "model": "llama3_8b",
    "hardware": "H100",
    "n_gpus": "8",
    "precision": "bf16",
    "seq_len": "4096",
    "global_batch_size": "64",
    "micro_batch_size": "1",
    "tp": "2",
    "pp": "2",
    "dp": "2",
}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("n_gpus", "9" * 400),
        ("layers", "9" * 40),
        ("hidden_size", "1e15"),
        ("vocab", "1e15"),
        ("experts", "1e15"),
        ("notes", "layers per stage: [1,, 2] of [ , ]"),
        ("notes", f"layer split [0, {'9' * 5000}, 34]"),
        ("notes", "offload alpha=1.2.3"),
        ("notes", f"recomputed ops per stage ['{'9' * 5000}/2', '1/1']"),
        ("mem_note", "published 1.2.3 GiB"),
        ("fsdp", f"1 group {'9' * 5000}"),
        ("offload", f"activation offload {'9' * 5000} layers"),
        ("model", f"llama3_8b truncated to {'9' * 5000} layers"),
    ],
)
def test_a_damaged_row_is_predicted_or_skipped_with_a_reason(column, text):
    row = RUN_ROW | {"peak_mem_gb": "40"} | {column: text}
    prediction = predict(parse_run(row))
    assert prediction.skipped or prediction.step_time_s


def test_remarks_that_do_not_add_up_state_nothing():
    assert stated_layers("layers per stage: [1] of [7,, 8]", 2, 15) == (7, 8)
    assert stated_layers(f"layers per stage: [1] of [{'9' * 5000}]", 2, 15) == ()
    assert stated_split(f"layer split [0, {'9' * 50}, 34]", 2, 32) == ()
    assert mixed_recompute("layers per stage: [2 1] of [7, 8]", ((7,), (8,))) != (None, None)


@pytest.mark.parametrize("value", ["1e308", "1e-300", "0", "-1", "nan", "9" * 400])
@pytest.mark.parametrize("column", ["m", "n", "k", "time_us"])
def test_a_table_of_products_keeps_to_what_can_be_computed(column, value, tmp_path):
    row = {"m": "4096", "n": "4096", "k": "4096", "dtype": "bf16", "time_us": "200"} | {column: value}
    path = tmp_path / "gemm.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    part = samples.request().cluster.islands[0].node.accelerator
    small = column == "m" and value in ("1e-300", "0", "-1")  # rows of fewer than a tile are left out
    with pytest.raises(InputError, match=r"gemm\.csv: .*m below" if small else rf"gemm\.csv: row 2: {column}: "):
        read_products(path, part)


def test_a_log_with_a_count_of_any_length_is_read(tmp_path):
    path = tmp_path / "all_reduce.txt"
    path.write_text(
        "# nccl-tests all_reduce_perf\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        f"     1048576        262144     float     sum      -1    100.0   10.49   18.35 {'9' * 5000}\n"
    )
    assert read_nccl_log(path).rows[0].wrong == 0


def test_a_launch_with_a_number_beyond_all_is_refused_by_file(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"train_batch_size": 10**30, "train_micro_batch_size_per_gpu": 1}))
    arguments = ("check", "--framework", "deepspeed", "--args-file", str(path), "--world-size", "8")
    result = RUN.invoke(app, [*arguments, "--model", "llama3_8b"])
    assert result.exit_code == 2, result.output
    assert f"{path}: global batch 1000000000" in result.stderr
    assert "whole numbers up to 1000000000000" in result.stderr


@pytest.mark.parametrize("framework", ["deepspeed", "galvatron"])
def test_a_launch_that_is_no_json_is_named(framework, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    arguments = ("check", "--framework", framework, "--args-file", str(path), "--world-size", "8")
    result = RUN.invoke(app, [*arguments, "--model", "llama3_8b"])
    assert result.exit_code == 2, result.output
    assert str(path) in result.stderr


def test_a_sweep_with_a_cap_beyond_all_is_refused(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'[[grid]]\nmodels = ["llama3_8b"]\nclusters = ["dgx-h100:1"]\nglobal_batches = [8]\npower_caps_w = [{HUGE}]\n'
    )
    with pytest.raises(InputError, match=r"sweep\.toml: grid 1: power_caps_w: "):
        read_sweep(path)


@pytest.mark.parametrize("value", ["1e-300", "5e-324", "1e-16"])
def test_a_rate_next_to_nothing_is_refused(value, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(f'[[island]]\nnode = "dgx-h100"\nnodes = 2\n[island.nics]\ngbit_per_s = {value}\n')
    with pytest.raises(InputError, match=r"lab\.toml: island 1\.nics\.gbit_per_s: .*1E-15 or more where it is not 0"):
        read_cluster_file(path)


def _written(change, folder):
    data = json.loads(json.dumps(report_to_json(samples.report())))
    change(data)
    path = folder / "plan.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["layouts"][0]["breakdown"].update(compute_s=HUGE), "breakdown: compute_s"),
        (lambda data: data["layouts"][0].update(mfu=HUGE), "layouts[0]: mfu"),
        (lambda data: data["request"].update(model="llama9_1b"), "plan.json: request: "),
        (lambda data: data["request"].update(objective="beauty"), "plan.json: request: objective"),
        (lambda data: data["request"].update(cluster="dgx-h100:4"), "then, 32 now"),
        (lambda data: data["layouts"][0]["stages"][0]["strategies"][0].update(dp=10**9), "GPUs of island 0"),
        (lambda data: data["layouts"][0]["placement"].pop(), "layouts[0]: placement: '63 ranks' is not accepted"),
        (lambda data: data["layouts"][0]["placement"][3].update(rank=4), "each of 0 to 63 once"),
    ],
)
def test_a_report_that_cannot_be_is_refused_with_file_and_field(change, words, tmp_path):
    with pytest.raises(InputError) as error:
        read_report(_written(change, tmp_path))
    assert str(error.value).startswith(str(tmp_path / "plan.json"))
    assert words in str(error.value)

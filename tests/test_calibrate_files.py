"""Profiles as files, tables and logs that calibrate, and the commands from outside."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibration_runs import Machine, rows, slower, write
from typer.testing import CliRunner

from costmodels.compute.gemm import GemmShape, gemm_s
from costmodels.compute.machine import machine_of
from costmodels.pricing import Constants
from costmodels.profile import UNCHANGED, Profile, profiled
from hardware.catalog import accelerator
from hardware.errors import InputError
from planner.calibrate.calibration import calibrate
from planner.calibrate.inputs import Inputs
from planner.calibrate.runs import read_calibration_runs
from planner.calibrate.tables import read_products
from planner.cli import app
from planner.evidence.left_out import LeftOut
from planner.evidence.nearness import evidence_for
from planner.evidence.profile_use import profile_notes
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import pricings_of
from planner.profile import FittedRun, InputFile, MachineProfile, MemoryErrors, profile_text, read_profile
from planner.question import Question, request_of
from planner.sweeps.sweep_file import read_sweep
from planner.traits import RunTraits

LOG = Path(__file__).parent / "fixtures" / "nccl_logs" / "all_reduce-root.txt"
H100 = "h100-sxm-80gb"
TRAITS = RunTraits(
    generation="hopper",
    hardware=H100,
    framework="megatron",
    gemm="bf16",
    moe="dense",
    recompute="none",
    gpus=16.0,
    parameters=8.03,
    seq=4096.0,
    micro_batch=1.0,
    tp=2.0,
    pp=1.0,
    cp=1.0,
    ep=1.0,
)
PROFILE = MachineProfile(
    accelerator=H100,
    frameworks=("megatron",),
    factors=Profile(matrix=0.91, scale_out=0.5, host=1.5, activations=1.1, memory_offset_bytes=1e9),
    learned=("matrix", "scale_out"),
    runs=tuple(
        FittedRun(
            id=f'run "{n}" \\ ü\n',
            traits=TRAITS,
            before=-0.2,
            after=0.01,
            left_out=0.02 * (n - 2),
            scale_up_bytes_per_s=450e9,
            network_bytes_per_s=50e9,
        )
        for n in range(6)
    ),
    files=(InputFile(name="runs.csv", kind="runs", sha256="0" * 64, used=6),),
    memory=MemoryErrors(runs=2, before=0.2, after=0.1, left_out=0.12),
)


def saved(folder: Path, profile: MachineProfile = PROFILE) -> Path:
    path = folder / "machine.toml"
    path.write_text(profile_text(profile), encoding="utf-8")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_profile_comes_back_from_its_file(tmp_path):
    assert read_profile(saved(tmp_path)) == replace(PROFILE, name="machine.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("matrix = 0.91", "matrix = -1.0", r"machine.toml: factors: matrix: -1.0 is not accepted"),
        ("matrix = 0.91", "matrix = 1e9", r"factors: matrix: .* a factor from 0.01 to 100"),
        ("matrix = 0.91", 'matrix = "fast"', r"factors: matrix: 'fast' is not accepted"),
        ("matrix = 0.91\n", "", r"factors: matrix: missing"),
        ("matrix = 0.91", "matrix = 0.91\nmatrices = 1.0", r"unknown field 'matrices' \(did you mean 'matrix'"),
        ("format = 1", "format = 7", r"format: 7 is not accepted; allowed: 1; calibrate again"),
        ("format = 1", "format = ", r"machine.toml: not TOML"),
        ("tp = 2.0", "tp = 0.0", r"run 1: tp: 0.0 is not accepted"),
        ("tp = 2.0", "tp = 1e-320", r"run 1: tp: .* a number from 1e-09"),
        ("tp = 2.0", f"tp = 1{'0' * 400}", r"run 1: tp: 10*\.\.\. is not accepted"),
        ("left_out = -0.04", "left_out = -800.0", r"run 1: left_out: .* a number from -30 to 30"),
        ("left_out = -0.04", f"left_out = 1{'0' * 400}", r"run 1: left_out: 10*\.\.\. is not accepted"),
        ("left_out = -0.04", f"left_out = {'9' * 5000}", r"machine.toml: not TOML \(Exceeds the limit"),
        ("left_out = -0.04", "left_out = nan", r"run 1: left_out: nan is not accepted"),
        ("distrusted = false", "distrusted = 0", r"run 1: distrusted: 0 is not accepted"),
    ],
)
def test_a_profile_that_was_changed_by_hand_is_refused(tmp_path, old, new, message):
    path = saved(tmp_path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_profile(path)


def test_a_profile_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"nowhere.toml: cannot be read .*allowed: a profile that plan calibrate wrote"
    ):
        read_profile(tmp_path / "nowhere.toml")


def asked(path: Path, **more):
    values = {"model": "llama3_8b", "cluster": "dgx-h100:2", "global_batch": 64, "seq": 4096, "profile": str(path)}
    return request_of(Question(**(values | more)))


def test_a_profile_is_refused_on_another_machine(tmp_path):
    with pytest.raises(InputError, match=r"machine.toml is the profile of h100-sxm-80gb; dgx-a100:2 has a100"):
        asked(saved(tmp_path), cluster="dgx-a100:2")


@pytest.mark.parametrize(
    ("cluster", "of_runs", "said"),
    [
        ("dgx-h100:2", {}, ()),
        ("dgx-h100:2", {"network_bytes_per_s": 25e9}, ("25 GB/s a GPU between nodes; here it is 50",)),
        ("dgx-h100:2", {"network_bytes_per_s": 40e9}, ()),
        ("dgx-h100:1", {"network_bytes_per_s": 25e9}, ()),
        ("dgx-h100:2", {"network_bytes_per_s": 0.0}, ("fitted on single nodes",)),
        ("dgx-h100:2", {"scale_up_bytes_per_s": 200e9}, ("200 GB/s a GPU inside the fast domain; here it is 450",)),
        ("dgx-h100:2", {"scale_up_bytes_per_s": 0.0}, ()),
    ],
    ids=["as the runs", "half", "near", "no network", "single nodes", "fewer links", "an older file"],
)
def test_links_that_the_runs_did_not_have_are_named(tmp_path, cluster, of_runs, said):
    runs = tuple(replace(run, **of_runs) for run in PROFILE.runs)
    profile = replace(PROFILE, runs=runs, learned=("matrix",))
    notes = [note for note in profile_notes(asked(saved(tmp_path, profile), cluster=cluster)) if "larger" not in note]
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))


def test_a_profile_of_an_older_release_has_no_rates(tmp_path):
    text = "".join(line for line in profile_text(PROFILE).splitlines(True) if "bytes_per_s" not in line)
    path = tmp_path / "machine.toml"
    path.write_text(text, encoding="utf-8")
    older = tuple(replace(run, scale_up_bytes_per_s=0.0, network_bytes_per_s=0.0) for run in PROFILE.runs)
    assert read_profile(path).runs == older


def test_what_belongs_to_the_framework_is_left_out_for_another_one(tmp_path):
    path = saved(tmp_path)
    mine = pricings_of(asked(path))[0].constants
    other = pricings_of(asked(path, framework="torchtitan"))[0].constants
    assert mine == pricings_of(asked(path, framework="nemo"))[0].constants  # the same core
    assert mine.network == other.network
    assert mine.memory != other.memory == Constants().memory
    assert other.efficiency.shared.dispatch_s == Constants().efficiency.shared.dispatch_s


def test_the_interval_is_that_of_left_out_runs_and_grows_with_the_distance(tmp_path):
    request = asked(saved(tmp_path))
    pricing, layout = pricings_of(request)[0], layout_of(request, ExplicitLayout(tp=2))
    found = evidence_for(pricing, layout, 10.0, 1e9, request.profile)
    assert found.label == "calibrated"
    assert found.profile == "machine.toml"
    assert found.low_s == pytest.approx(10.0 * np.exp(-0.06))
    assert found.high_s == pytest.approx(10.0 * np.exp(0.06))
    sure = replace(PROFILE, runs=tuple(replace(each, left_out=0.01) for each in PROFILE.runs))
    far = asked(saved(tmp_path, sure), cluster="dgx-h100:256", global_batch=2048, model="llama31_405b", seq=8192)
    layout = layout_of(far, ExplicitLayout(tp=8, pp=16, cp=2))
    wide = evidence_for(pricings_of(far)[0], layout, 10.0, 1e9, far.profile)
    near = evidence_for(pricing, layout_of(request, ExplicitLayout(tp=2)), 10.0, 1e9, far.profile)
    assert near.high_s == pytest.approx(10.0 * np.exp(0.03))
    assert wide.high_s > 1.01 * near.high_s


def gemm_table(path: Path, factor: float, extra: str = "") -> Path:
    sizes = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (8192, 4096, 14336), (2048, 8192, 2048)]
    m, n, k = np.array(sizes, dtype=np.float64).T
    machine = machine_of(accelerator(H100), profiled(Constants(), Profile(matrix=factor)).efficiency)
    times_us = gemm_s(GemmShape(m=m, n=n, k=k), machine, "bf16") * 1e6
    lines = [f"{a},{b},{c},bfloat16,{time}" for (a, b, c), time in zip(sizes, times_us, strict=True)]
    path.write_text("\n".join(["m,n,k,dtype,time_us", *lines, *([extra] if extra else [])]) + "\n", encoding="utf-8")
    return path


def test_a_table_of_products_calibrates_their_rate(tmp_path):
    table = gemm_table(tmp_path / "gemm.csv", 0.8, "1,4096,4096,bf16,10")
    found = calibrate(Inputs(products=(table,), accelerator="H100-SXM-80GB"))
    assert found.profile.factors.matrix == pytest.approx(0.8, abs=0.04)
    assert found.profile.frameworks == ()
    assert found.profile.files[0].used == 5
    assert found.skipped == (LeftOut(reason="m below 128", rows=("gemm.csv: row 7",)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k,dtype\n", r"gemm.csv: line 1: lacks the column time_us"),
        (
            "m,n,k,dtype,time_us\n4096,4096,0,bf16,1\n",
            r"gemm.csv: row 2: k: '0' is not accepted; allowed: a number from",
        ),
        ("m,n,k,dtype,time_us\nmany,4096,64,bf16,1\n", r"gemm.csv: row 2: m: 'many' is not accepted"),
        ("m,n,k,dtype,time_us\n4096,4096,64,int8,1\n", r"no row can be used \(1: dtype 'int8' \(gemm\.csv: row 2\)\)"),
    ],
)
def test_a_wrong_table_of_products_is_refused_with_its_place(tmp_path, text, message):
    (tmp_path / "gemm.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        calibrate(Inputs(products=(tmp_path / "gemm.csv",), accelerator=H100))


def test_logs_of_collectives_calibrate_links():
    found = calibrate(Inputs(nccl_tests=(LOG,), accelerator=H100, cluster="dgx-h100:1"))
    assert found.profile.files[0].kind == "nccl-tests"
    assert set(found.profile.learned) <= {"scale_up", "scale_up_latency"}


def test_rows_of_two_machines_are_refused_or_chosen_from(tmp_path):
    table = rows(slower(matrix=0.8), 3)
    others = [row | {"id": f"a{row['id']}"} for row in rows(Machine(hardware="A100-SXM-80GB"), 2)]
    path = write(tmp_path / "runs.csv", [*table, *others])
    with pytest.raises(InputError, match=r"rows of 2 accelerators \(3 on h100-sxm-80gb, 2 on a100-sxm-80gb\)"):
        calibrate(Inputs(runs=(path,)))
    chosen = calibrate(Inputs(runs=(path,), accelerator="a100-sxm-80gb"))
    assert len(chosen.profile.runs) == 2
    assert chosen.skipped == (
        LeftOut(reason="on h100-sxm-80gb", rows=("runs.csv: run-0", "runs.csv: run-1", "runs.csv: run-2")),
    )


def test_runs_that_cannot_be_used_are_refused_with_their_reasons(tmp_path):
    path = write(tmp_path / "runs.csv", [row | {"tp": ""} for row in rows(Machine(), 2)])
    with pytest.raises(InputError, match=r"no row can be used \(2: layout not stated"):
        calibrate(Inputs(runs=(path,)))


def test_from_outside_calibrate_then_validate_and_search(tmp_path):
    table, profile = write(tmp_path / "runs.csv", rows(slower(matrix=0.8), 5)), tmp_path / "machine.toml"
    result = run("calibrate", table, "-o", profile)
    assert result.exit_code == 0, result.output
    assert "rate of matrix products" in result.output
    first = profile.read_bytes()
    assert run("calibrate", table, "-o", profile).exit_code == 0
    assert profile.read_bytes() == first

    plain = json.loads(run("validate", table, "--json", "-").stdout)
    better = json.loads(run("validate", table, "--profile", profile, "--json", "-").stdout)
    errors = [said["summary"]["all"][0]["median_error"] for said in (plain, better)]
    assert errors[1] < 0.5 * errors[0]
    assert better["summary"]["profile"] == {
        "file": "machine.toml",
        "accelerator": H100,
        "frameworks": ["torchtitan"],
        "applied": 5,
    }

    report = tmp_path / "plan.json"
    question = ("llama3_8b", "dgx-h100:1", "--global-batch", "16", "--seq", "4096", "--framework", "torchtitan")
    fixed = ("--fix", "tp=2", "--fix", "pp=1", "--fix", "micro_batch=1", "--fix", "cp=1")
    result = run("search", *question, *fixed, "--profile", profile, "--json", report)
    assert result.exit_code == 0, result.output
    assert "fitted on 5 runs" in result.output
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["request"]["profile"] == str(profile)
    assert found["layouts"][0]["evidence"]["profile"] == "machine.toml"
    explained = run("explain", report)
    assert explained.exit_code == 0, explained.output
    assert "fitted on 5 runs" in explained.output
    assert "The cost models have changed" not in explained.output


def test_from_outside_mistakes_end_with_two_and_write_nothing(tmp_path):
    profile = tmp_path / "machine.toml"
    for arguments in (
        ("calibrate", "-o", profile),
        ("calibrate", tmp_path / "nothing.csv", "-o", profile),
        ("calibrate", write(tmp_path / "runs.csv", rows(Machine(), 1)), "-o", tmp_path / "runs.csv"),
        ("validate", tmp_path / "runs.csv", "--profile", profile),
        ("search", "llama3_8b", "dgx-h100:1", "--global-batch", 8, "--seq", 512, "--profile", profile),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, result.output
    assert not profile.exists()


def test_a_profile_of_ones_plans_as_no_profile(tmp_path):
    path = saved(tmp_path, replace(PROFILE, factors=UNCHANGED, learned=()))
    assert pricings_of(asked(path)) == pricings_of(asked(path, profile=""))


def test_the_row_of_the_page_is_read(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "calibration.md").read_text(encoding="utf-8")
    path = tmp_path / "runs.csv"
    path.write_text(re.search(r"```text\n(id,.*?)```", page, re.DOTALL)[1], encoding="utf-8")
    (found,) = read_calibration_runs([path]).runs
    assert found.timed
    assert found.weighed
    assert found.asked.layout.gpus == 16


def test_a_sweep_plans_with_a_profile_beside_it(tmp_path):
    saved(tmp_path)
    file = tmp_path / "sweep.toml"
    lines = ["[[grid]]", 'models = ["llama3_8b"]', 'clusters = ["dgx-h100:2"]', "global_batches = [64]"]
    file.write_text("\n".join([*lines, "sequences = [4096]", 'profile = "machine.toml"']), encoding="utf-8")
    (question,) = read_sweep(file).questions
    assert request_of(question).profile == replace(PROFILE, name="machine.toml")


def test_a_header_that_is_no_csv_is_named(tmp_path):
    (tmp_path / "old-mac.csv").write_bytes(b"m,n,k\rdtype,time_us\r")
    with pytest.raises(InputError, match=r"old-mac\.csv: line 1: is no CSV"):
        read_products(tmp_path / "old-mac.csv", accelerator("h100-sxm-80gb"))

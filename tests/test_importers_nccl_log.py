"""Logs of nccl-tests: every version's columns, broken ends, and the link rates that they tell."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from costmodels.collectives import default_network
from hardware.cluster_file import read_cluster_file
from hardware.errors import InputError
from hardware.importers.nccl_log import ranks_of, read_nccl_log
from planner.calibrate.link_rates import LARGE_BYTES, calibrate, log_ratios
from planner.cli import app

FOLDER = Path(__file__).parent / "fixtures" / "nccl_logs"
TOPOLOGY = Path(__file__).parent / "fixtures" / "topology"
# file: collective, rows, ranks, hosts, device, whether the summary is there, rows left out
LOGS = {
    "all_reduce-root.txt": ("all_reduce", 5, 8, 1, "NVIDIA H100 80GB HBM3", True, 0),
    "all_gather-old.txt": ("all_gather", 5, 8, 1, "A100-SXM4-40GB", True, 1),
    "all_reduce-aborted.txt": ("all_reduce", 5, 16, 2, "NVIDIA A100-SXM4-40GB", False, 1),
    "reduce_scatter-one-half.txt": ("reduce_scatter", 5, 8, 1, "A100-SXM4-40GB", True, 0),
    "broadcast-prefixed.txt": ("broadcast", 5, 8, 1, "A100-SXM4-40GB", False, 0),
    "all_reduce-bare.txt": ("all_reduce", 5, 128, 0, "", False, 0),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_have_what_a_reader_finds(name):
    collective, rows, ranks, hosts, device, complete, skipped = LOGS[name]
    log = read_nccl_log(FOLDER / name)
    assert (log.collective, len(log.rows), ranks_of(log), len(set(log.hosts))) == (collective, rows, ranks, hosts)
    assert (log.device, log.complete, log.skipped) == (device, complete, skipped)


def test_columns_are_those_of_the_header():
    row = read_nccl_log(FOLDER / "all_reduce-root.txt").rows[-1]
    assert (row.bytes, row.count, row.data_type, row.wrong) == (2**33, 2**31, "float", 0)
    assert row.time_s == pytest.approx(2**33 * 1.75 / 480e9 + 20e-6, rel=1e-5)
    assert row.bus_bytes_per_s == pytest.approx(479.7e9, rel=1e-3)
    assert row.in_place_time_s == pytest.approx(1.01 * row.time_s, rel=1e-5)
    half = read_nccl_log(FOLDER / "reduce_scatter-one-half.txt").rows[-1]
    assert (half.in_place_time_s, half.in_place_bus_bytes_per_s) == (0.0, 0.0)
    assert half.best_bus_bytes_per_s == half.bus_bytes_per_s > 2e11


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing here\n", "no row"),
        (" 1024 256 float sum -1 10.0 5.00 8.00 0 10 0.1 0.2 0\n", "are not 5.00 GB/s"),
        (" 1048576 262144 float 100.0 10.49 10.49 0\n", "which collective"),
        ("# all_reduce_perf\n# all_gather_perf\n 1048576 262144 float 100.0 10.49 10.49 0\n", "several programs"),
    ],
)
def test_broken_logs_are_refused(tmp_path, text, reason):
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_nccl_log(path)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LOGS)), st.data())
def test_cut_logs_end_in_rows_or_an_error(tmp_path_factory, name, data):
    text = (FOLDER / name).read_text()
    path = tmp_path_factory.mktemp("cut") / name
    path.write_text("#" + text[data.draw(st.integers(0, 400)) : data.draw(st.integers(400, len(text)))])
    where = ""
    try:
        log = read_nccl_log(path)
        where = log.where if log.rows else ""
    except InputError as error:
        where = error.where
    assert name in where


def test_a_log_within_a_node_sets_the_scale_up_rate():
    found = calibrate([FOLDER / "all_gather-old.txt"])
    node = found.cluster.islands[0].node
    (rate,) = found.rates
    assert rate.link == "scale_up"
    assert node.scale_up.bytes_per_s == rate.after_bytes_per_s != rate.before_bytes_per_s
    assert any("source = measured" in source and "all_gather of 8 ranks" in source for source in node.sources)


def test_the_model_reproduces_what_set_the_rate():
    again = calibrate([FOLDER / "all_gather-old.txt"]).cluster
    log = read_nccl_log(FOLDER / "all_gather-old.txt")
    rows = [row for row in log.rows if row.bytes >= LARGE_BYTES]
    ratios = log_ratios(log.collective, rows, 8, again.islands[0], default_network())
    assert abs(np.median(ratios)) < 0.02


def test_slow_runs_over_several_nodes_set_the_adapters_and_fast_ones_leave_them():
    slow = calibrate([FOLDER / "all_reduce-aborted.txt"])
    assert slow.rates[0].link == "nics"
    assert slow.cluster.islands[0].node.nics.bytes_per_s < 0.9 * slow.rates[0].before_bytes_per_s
    assert any("no summary" in line for line in slow.assumed)


def test_a_log_without_head_wants_a_cluster():
    with pytest.raises(InputError, match="no head") as caught:
        calibrate([FOLDER / "all_reduce-bare.txt"])
    assert "--cluster" in caught.value.allowed
    with pytest.raises(InputError, match="128 ranks on a cluster of 8"):
        calibrate([FOLDER / "all_reduce-bare.txt"], "dgx-h100:1")


def run(*arguments):
    return CliRunner().invoke(app, ["import", *map(str, arguments)])


def test_the_command_line_writes_clusters_that_search_takes(tmp_path):
    place = tmp_path / "cluster.toml"
    done = run("topology", TOPOLOGY / "smi-8gpu-nvswitch.txt", "-o", place)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "Assumed, for no file states it:" in done.stderr
    searched = CliRunner().invoke(
        app,
        ["search", "llama3_8b", str(place), "--global-batch", "32", "--seq", "4096", "--fix", "tp=2", "--fix", "pp=1"],
    )
    assert searched.exit_code == 0, searched.output
    measured = tmp_path / "measured.toml"
    done = run("nccl-tests", FOLDER / "all_reduce-root.txt", "--cluster", place, "-o", measured)
    assert done.exit_code == 0, done.output
    node = read_cluster_file(measured).islands[0].node
    assert node.scale_up.bytes_per_s != read_cluster_file(place).islands[0].node.scale_up.bytes_per_s
    assert any("source = measured" in source for source in node.sources)


def test_the_command_line_prints_without_a_place_and_refuses_with_code_2(tmp_path):
    printed = run("topology", TOPOLOGY / "nccl-4gpu-nvswitch.xml")
    assert printed.exit_code == 0
    assert "[[island]]" in printed.stdout
    refused = run("topology", TOPOLOGY / "slurm-tree.conf", "-o", tmp_path / "none.toml")
    assert (refused.exit_code, "--accelerator" in refused.stderr) == (2, True)
    assert not (tmp_path / "none.toml").exists()

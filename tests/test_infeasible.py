"""Nothing feasible: the constraint is named in numbers, and the change that is named really mends it."""

import re
from dataclasses import replace

import pytest

from hardware.catalog import cluster
from planner import Question, plan, request_of
from planner.infeasible.changes import and_more_sequences, more_nodes, shorter


def ask(**more):
    return request_of(Question(**({"seq": 2048, "top": 1, "time_limit_s": 20.0} | more)))


@pytest.mark.deep
def test_more_nodes_that_are_named_hold_the_model():
    request = ask(model="gpt3_175b", cluster="mi250-thermal-study", global_batch=128)
    report = plan(request)
    assert not report.layouts
    assert "bytes a parameter" in report.infeasible.constraint
    nodes = int(re.match(r"(\d+) nodes", report.infeasible.nearest_change)[1])
    assert nodes > request.cluster.nodes
    island = replace(request.cluster.islands[0], nodes=nodes)
    assert plan(replace(request, cluster=replace(request.cluster, islands=(island,)))).layouts


def test_a_pin_that_is_named_is_the_one_to_free():
    request = ask(model="llama3_8b", cluster="dgx-h100:1", global_batch=32, fixed=("tp=3",))
    report = plan(request)
    assert "do not divide by tp 3" in report.infeasible.constraint
    assert report.infeasible.nearest_change.startswith("free tp (pinned to 3)")
    assert plan(replace(request, fixed=())).layouts


def test_a_batch_that_does_not_divide_is_said():
    report = plan(ask(model="llama3_8b", cluster="dgx-h100:1", global_batch=7, fixed=("dp=8",)))
    assert report.infeasible.constraint == "no grid over 8 GPUs divides a global batch of 7 with dp=8"


@pytest.mark.parametrize(
    ("model", "pins", "reason"),
    [
        ("llama3_8b", ("tp=3",), "tp=3 divides none of the numbers of GPUs that are planned: 16, 8"),
        ("llama3_8b", ("pp=7", "cp=2"), "cp=2 x pp=7 divides none of the numbers of GPUs that are planned: 16, 8"),
        ("llama3_8b", ("dp=13",), "dp=13 divides none of the numbers of GPUs that are planned: 16, 8"),
        ("llama3_8b", ("ep=2",), "ep=2, but llama3_8b has no experts"),
        ("mixtral_8x7b", ("ep=3",), "8 experts do not divide by ep=3"),
        ("mixtral_8x7b", ("ep=8", "pp=4"), "ep=8 divides the GPUs of no stage with pp=4; numbers of GPUs that are"),
        ("mixtral_8x7b", ("ep=8", "etp=4"), "ep=8 x etp=4 divides the GPUs of no stage; numbers of GPUs that are"),
        ("llama3_8b", ("micro_batch=3",), "no grid over 16 GPUs divides a global batch of 64 with micro_batch=3"),
    ],
)
def test_pins_that_multiply_out_to_nothing_are_not_blamed_on_the_batch(model, pins, reason):
    report = plan(ask(model=model, cluster="dgx-h100:2", global_batch=64, fixed=pins))
    assert report.infeasible.constraint.startswith(reason)
    assert report.infeasible.nearest_change.startswith("free ")


@pytest.mark.parametrize("name", ["dgx-h100:1"])
def test_memory_that_is_missed_is_given_in_numbers(name):
    request = ask(model="llama2_13b", cluster=name, global_batch=8, seq=4096, fixed=("tp=1", "pp=1", "zero=1"))
    report = plan(replace(request, cluster=cluster(name)))
    assert not report.layouts
    assert re.search(r"\d+(\.\d)? GiB", report.infeasible.constraint)
    assert " fits" in report.infeasible.nearest_change


def test_a_sequence_longer_than_the_positions_is_cut_to_them():
    request = ask(model="bert_large", cluster="dgx-h100:1", global_batch=8, seq=1000)
    report = plan(request)
    assert "max positions 512" in report.infeasible.constraint
    assert report.infeasible.nearest_change.startswith("sequences of 512 tokens")


def test_sequences_of_odd_length_are_shortened_too():
    base = ask(model="llama3_8b", cluster="dgx-h100:1", global_batch=8)
    lengths = [change.request.job.seq for change in shorter(replace(base, job=replace(base.job, seq=5001)))]
    assert lengths == [4096, 2048, 1024, 512]
    assert not any(shorter(replace(base, job=replace(base.job, seq=512))))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ({"model": "llama3_8b", "cluster": "l4-8:1", "global_batch": 1, "seq": 1}, "2 nodes (16 GPUs): PP16 fits"),
        (
            {"model": "llama3_70b", "cluster": "dgx-h100:1", "global_batch": 7, "seq": 4096, "fixed": ("tp=3",)},
            "free all pins, 2 nodes (16 GPUs): ",
        ),
    ],
)
def test_nodes_alone_are_named_where_they_alone_help(asked, change):
    report = plan(ask(**asked))
    assert report.infeasible.nearest_change.startswith(change)
    assert report.infeasible.remedy.job == report.request.job
    assert plan(report.infeasible.remedy).layouts


def test_a_larger_batch_is_named_beside_nodes_that_do_not_help_alone():
    request = ask(model="llama3_70b", cluster="dgx-h100:1", global_batch=8, fixed=("tp=1", "cp=1", "pp=1", "zero=3"))
    remedy = more_nodes(request, 4), and_more_sequences(request, 4)
    assert [change.request.job.global_batch for change in remedy] == [8, 32]
    assert remedy[1].words == "4 nodes (32 GPUs) and a global batch of 32"


def test_part_of_a_machine_is_named_for_a_batch_that_divides_no_grid_over_all_of_it():
    """8,000 = 2^6 x 5^3 GPUs are no product of a tp that divides 32 heads, a cp of 2^n and at most 32 stages."""
    request = ask(model="llama3_8b", cluster="dgx-h100:1000", global_batch=1, seq=131072)
    report = plan(request)
    assert report.infeasible.constraint == "no grid over 8,000 GPUs divides a global batch of 1"
    used = report.infeasible.remedy.cluster.gpus
    assert f"at most {used // 8} of its 1,000 nodes" in report.infeasible.nearest_change
    shards = {tp * cp * pp for tp in (1, 2, 4, 8, 16, 32) for cp in (1, 2, 4, 8, 16, 32, 64) for pp in range(1, 33)}
    assert used == max(size for size in shards if size < 8000 and size % 8 == 0)
    assert report.infeasible.remedy.job == request.job

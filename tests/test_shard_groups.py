"""ZeRO over groups of ranks: priced, offered, exported and read back; frameworks that cannot do it say so."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hardware.cluster_file import parse_cluster
from hardware.errors import InputError
from planner import Question, request_of
from planner.advice.neighbours import neighbours
from planner.cli import app
from planner.launches.check import layout_of_proposal
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.layouts.grids import enumerate_grids
from planner.planning import estimate, pricings_of
from planner.question import request_for
from planner.report.words import layout_text
from planner.request import Framework
from planner.rules import check_layout
from planner.rules.proposal import facts_of, proposals_of
from planner.sayable import EVERYTHING, FSDP_1, TRAINERS
from planner.search.shard_groups import legal_groups
from planner.search.uniform import UniformSearch

RUN = CliRunner()
SLOW = """
name = "slow"
[[island]]
node = "dgx-h100"
nodes = 4
[island.nics]
count = 1
gbit_per_s = {rate}
"""
FSDP = {"zero": 3, "recompute": "full"}


def request(rate: float = 400.0, framework: str = "torchtitan"):
    question = Question(model="llama3_8b", cluster="dgx-h100:4", global_batch=64, seq=8192, framework=framework)
    usual = request_of(question)
    return request_for(question, usual.model, parse_cluster(SLOW.format(rate=rate), "slow.toml", "slow"), usual.job)


@pytest.mark.parametrize("rate", [25.0, 100.0])
def test_groups_of_a_node_save_time_on_slow_networks_and_cost_memory(rate):
    asked = request(rate)
    everywhere, grouped = (
        estimate(asked, layout_of(asked, ExplicitLayout(**FSDP, shard_group=group))).cost for group in (None, 8)
    )
    assert grouped.step.total_s < 0.8 * everywhere.step.total_s
    moments = [dict(cost.heaviest.components)["optimizer"] for cost in (everywhere, grouped)]
    assert moments[1] == pytest.approx(4.0 * moments[0], rel=0.02)  # 8 ranks hold what 32 held


def test_a_group_of_all_ranks_is_none_and_others_divide_them():
    asked = request()
    assert layout_of(asked, ExplicitLayout(**FSDP, shard_group=32)) == layout_of(asked, ExplicitLayout(**FSDP))
    for wrong in ({"zero": 3, "shard_group": 5}, {"zero": 0, "shard_group": 8}):
        with pytest.raises(InputError, match="--shard-group"):
            layout_of(asked, ExplicitLayout(**wrong))


def test_groups_of_a_node_are_offered_where_the_framework_has_them():
    for framework, offered in (("torchtitan", True), ("megatron", True), ("galvatron", False)):
        asked = request(framework=framework)
        layout = layout_of(asked, ExplicitLayout(**FSDP))
        changes = {near.change: near.layout for near in neighbours(asked, layout, estimate(asked, layout).cost)}
        assert ("ZeRO over groups of 8 ranks" in changes) == offered
        if offered:
            grouped = changes["ZeRO over groups of 8 ranks"]
            assert layout_text(grouped) == "TP1 PP1 DP32 ZeRO3/8"
            back = neighbours(asked, grouped, estimate(asked, grouped).cost)
            assert layout in [near.layout for near in back if near.change == "ZeRO over all 32 ranks"]


def test_fsdp_1_shards_over_the_gpus_of_a_node_and_groups_of_no_other_size():
    """HYBRID_SHARD of a launch has no option for the size of its groups."""
    asked = request()
    (pricing,) = pricings_of(asked)
    grids = UniformSearch(asked, pricing).grids_of(32)

    def sizes(sayable):
        return set(legal_groups(replace(asked, sayable=sayable), grids, pricing.tiers)[1].table.shard_group.tolist())

    assert sizes(EVERYTHING) > {4, 8, 16}
    assert sizes(FSDP_1) == {8}
    assert sizes(TRAINERS["trainer-fsdp"]) == set()
    assert "GPUs of a node" in FSDP_1.lacks
    for size, some in ((4, False), (8, True), (32, True)):
        pinned = replace(asked, sayable=FSDP_1, fixed=(("shard_group", size),))
        assert bool(len(enumerate_grids(pinned, 32))) == some


def test_from_outside_groups_are_exported_and_read_back(tmp_path):
    file, out = tmp_path / "plan.json", tmp_path / "launch"
    words = ["estimate", "llama3_8b", "dgx-h100:2", "--global-batch", "32", "--seq", "8192", "--zero", "3"]
    words += ["--framework", "torchtitan", "--recompute", "full"]
    assert RUN.invoke(app, [*words, "--shard-group", "8", "--json", str(file)]).exit_code == 0
    result = RUN.invoke(app, ["export", str(file), "--to", "torchtitan", "-o", str(out)])
    assert result.exit_code == 0, result.output
    arguments = (out / "launch.sh").read_text()
    assert "data_parallel_replicate_degree 2" in arguments
    assert "data_parallel_shard_degree 8" in arguments
    checked = tmp_path / "check.json"
    words = ["check", "--framework", "torchtitan", "--args-file", str(out / "launch.sh"), "--cluster", "dgx-h100:2"]
    assert RUN.invoke(app, [*words, "--json", str(checked)]).exit_code == 0
    priced, read = (json.loads(path.read_text()) for path in (file, checked))
    assert priced["layout"]["shard_group"] == 8
    assert read["prediction"]["step_time_s"] == pytest.approx(priced["layout"]["step_time_s"], rel=1e-6)


def test_from_outside_a_search_finds_groups_writes_them_and_reads_them_back(tmp_path):
    cluster, file, out = tmp_path / "slow.toml", tmp_path / "plan.json", tmp_path / "launch"
    cluster.write_text(SLOW.format(rate=50.0))
    words = ["search", "llama3_8b", str(cluster), "--global-batch", "64", "--seq", "8192", "--framework", "torchtitan"]
    pins = [word for pin in ("pp=1", "tp=1", "cp=1", "dp=32", "zero=3") for word in ("--fix", pin)]
    result = RUN.invoke(app, [*words, *pins, "--json", str(file)])
    assert result.exit_code == 0, result.output
    best = json.loads(file.read_text())["layouts"][0]
    assert best["shard_group"] in {8, 16}
    assert best["memory"]["verdict"] == "fits"
    assert f"ZeRO{best['zero']}/{best['shard_group']}" in result.output
    assert (
        RUN.invoke(app, [*words, *pins, "--fix", "shard_group=32", "--json", str(tmp_path / "all.json")]).exit_code == 0
    )
    everywhere = json.loads((tmp_path / "all.json").read_text())["layouts"][0]
    assert everywhere["shard_group"] == 0
    assert best["step_time_s"] < 0.9 * everywhere["step_time_s"]
    result = RUN.invoke(app, ["export", str(file), "--to", "torchtitan", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert f"data_parallel_shard_degree {best['shard_group']}" in (out / "launch.sh").read_text()


@pytest.mark.parametrize("framework", ["deepspeed", "galvatron"])
def test_a_pinned_group_that_a_framework_cannot_have_is_refused_with_its_rule(framework):
    asked = replace(request(framework=framework), fixed=(("shard_group", 8),), time_limit_s=5.0)
    search = UniformSearch(asked, pricings_of(asked)[0])
    legal = search.grids_of(32)
    assert not legal.table.shard_group.any()
    assert any("groups of 8 of 32 ranks has no option" in reason for reason in search.tally.rejected)


def test_a_proposal_keeps_the_group_of_its_layout():
    asked = request(framework="megatron")
    layout = layout_of(asked, ExplicitLayout(zero=1, shard_group=8))
    proposals = proposals_of(layout, facts_of(asked.model), global_batch=64, seq=8192, world=32)
    assert layout_of_proposal(proposals[0]).first.shard_group == 8


@pytest.mark.parametrize(
    ("version", "zero", "group", "refused"),
    [("0.16", 2, 8, True), ("0.16", 3, 16, False), ("0.16", 1, 8, False), ("0.17", 2, 8, False)],
)
def test_megatron_fsdp_shards_experts_over_groups_from_core_0_17(version, zero, group, refused):
    asked = request_of(Question(model="mixtral_8x7b", cluster="dgx-h100:2", global_batch=16, seq=4096))
    layout = layout_of(asked, ExplicitLayout(zero=zero, shard_group=group, ep=8))
    found = check_layout(layout, asked.model, asked.job, framework=Framework.MEGATRON, version=version)
    assert ("megatron-fsdp-instances-experts" in {broken.rule for broken in found}) == refused

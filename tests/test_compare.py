"""``plan fewest`` and ``plan compare``: sizes of machines, one degree over its values, and what surrounds a layout."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from costmodels.compute.traffic import HOST_ADAM_PER_S, host_optimizer_step_s
from costmodels.job import Dispatcher
from costmodels.results import Verdict
from costmodels.workload.counts import parameter_count
from hardware.catalog import cluster
from hardware.errors import InputError
from planner.advice.compare import compare, gathered_bytes, padded_seq
from planner.advice.fewest import fewest, host_bytes_of_node, in_host_memory
from planner.advice.remedies import remedies
from planner.advice.what_if import what_ifs
from planner.cli import app
from planner.infeasible.refused_savings import refused_savings
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.layouts.logits import logits_of
from planner.planning import estimate, plan
from planner.question import Question, request_of
from planner.report.compare_text import fewest_to_json, print_fewest
from planner.report.json_report import layout_to_json

RUN = CliRunner()


def asked(model="llama32_1b", machine="dgx-h100:1", **more):
    return request_of(Question(model=model, cluster=machine, **{"global_batch": 16, "seq": 2048, **more}))


def priced(request, **explicit):
    return estimate(request, layout_of(request, ExplicitLayout(**explicit)))


def test_fewest_is_the_first_size_that_fits():
    found = fewest(asked("llama3_8b", global_batch=8))
    assert found.first is not None
    assert found.safe is not None
    assert found.first.ranked.layout.gpus == 2
    assert found.below is not None
    assert found.below.gpus == 1
    assert found.below.decides == "states"
    assert found.below.states_bytes == pytest.approx(18 * 8.03e9, rel=1e-3)
    assert found.below.states[0][0] == "optimizer"


def test_the_safe_size_is_the_first_whose_own_search_finds_room_to_spare():
    pinned = ("tp=8", "cp=1", "micro_batch=1")
    request = asked("llama31_405b", global_batch=64, seq=4096, recompute="full", fixed=pinned)
    found = fewest(request)
    verdicts = []
    for nodes in (12, 13):  # 126 layers over 13 stages fit safely with a split of their own alone
        island = replace(request.cluster.islands[0], nodes=nodes)
        best = plan(replace(request, top=1, cluster=replace(request.cluster, islands=(island,)))).layouts[0]
        verdicts.append(best.cost.heaviest.verdict)
    assert verdicts == [Verdict.RISKY, Verdict.FITS]
    assert (found.first.request.cluster.gpus, found.safe.request.cluster.gpus) == (96, 104)


def test_a_time_limit_that_ends_the_look_at_sizes_is_said():
    request = asked("llama31_405b", global_batch=64, seq=4096, time_limit_s=0.0)
    found = fewest(request)
    assert (found.first, found.safe) == (None, None)
    assert found.cut_at_gpus == 1
    console = Console(file=io.StringIO(), width=100)
    print_fewest(console, request, [(found, found)])
    assert console.file.getvalue().count("the time limit ended the search at 1 GPU") == 2
    assert fewest_to_json(request, [(found, found)])["machines"][0]["cut_at_gpus"] == 1
    assert fewest(asked(global_batch=8)).cut_at_gpus == 0


def test_fewer_gpus_do_with_the_optimizer_in_host_memory():
    request = in_host_memory(asked("llama3_8b", global_batch=8, recompute="full"))
    found = fewest(request)
    assert found.first is not None
    assert found.first.ranked.layout.gpus == 1
    assert found.first.ranked.cost.heaviest.host_bytes == pytest.approx(16 * 8.03e9, rel=0.01)
    offloaded = in_host_memory(asked())
    pair = priced(offloaded, tp=2, dp=1)
    assert host_bytes_of_node(offloaded, pair) == 2 * pair.cost.heaviest.host_bytes > 0.0


def test_hosts_must_hold_the_optimizer_that_is_put_there():
    request = in_host_memory(asked("llama3_8b", global_batch=8, recompute="full"))
    island = request.cluster.islands[0]
    optimizer = (
        16 * parameter_count(request.model).total
    )  # fp32 parameters, both moments, and the gradient it steps with

    def on_hosts_of(memory_bytes):
        host = replace(island.node.host, memory_bytes=memory_bytes)
        node = replace(island.node, host=host)
        return fewest(replace(request, cluster=replace(request.cluster, islands=(replace(island, node=node),))))

    assert on_hosts_of(1.05 * optimizer).first.ranked.layout.gpus == 1
    small = on_hosts_of(0.6 * optimizer)
    assert small.first.request.cluster.nodes == 2
    assert small.below.host_lacks
    assert small.below.decides == "host"
    use, layout = small.first.ranked.cost.heaviest, small.first.ranked.layout
    assert use.host_bytes * min(8, layout.gpus) <= 0.6 * optimizer


def test_one_degree_over_its_values():
    rows = compare(asked(fixed=("pp=1", "tp=2")), "cp")
    assert [row.value for row in rows] == [1, 2, 4, 8]
    assert [row.ranked is None for row in rows] == [False, False, False, True]
    assert rows[3].why_not
    assert all(row.ranked.layout.first.cp == row.value for row in rows if row.ranked)


def test_lengths_are_padded_for_context_parallelism():
    request = asked(seq=1001, fixed=("tp=2",))
    assert padded_seq(request, 1) == 1002
    assert padded_seq(request, 4) == 1008
    of_heads = asked(seq=1001, fixed=("tp=1",), framework="deepspeed")
    assert [padded_seq(of_heads, cp) for cp in (1, 4)] == [1001, 1004]


@pytest.mark.deep
def test_a_zero_stage_is_shown_where_it_shards():
    request = asked("qwen3_14b", "l40s-8:2", global_batch=64, seq=4096, fixed=("tp=2", "cp=1", "micro_batch=1"))
    assert plan(replace(request, top=1, fixed=(*request.fixed, ("zero", 3)))).layouts[0].layout.first.zero_group == 1
    row = compare(request, "zero")[3]
    assert row.ranked.layout.first.zero_group > 1
    assert row.gathered_bytes > 0


@pytest.mark.parametrize(
    ("framework", "pp", "zero"),
    [("megatron", 1, 1), ("deepspeed", 2, 1), ("torchtitan", 1, 3), ("torchtitan", 2, 2), ("galvatron", 1, 0)],
)
def test_an_estimate_without_a_zero_stage_has_the_frameworks_own(framework, pp, zero):
    request = asked(framework=framework)
    assert layout_of(request, ExplicitLayout(pp=pp)).first.zero == zero
    assert layout_of(request, ExplicitLayout(pp=pp, zero=2)).first.zero == 2


def test_a_degree_that_is_pinned_or_unknown_is_refused():
    with pytest.raises(InputError, match="--by cp and --fix cp=2"):
        compare(asked(fixed=("cp=2",)), "cp")
    with pytest.raises(InputError, match="tp, pp, cp"):
        compare(asked(), "heads")


def test_zero_3_gathers_the_weights_twice_a_micro_batch():
    request = asked()
    whole = 2 * 2 * 1.236e9  # bf16, forward and backward
    assert gathered_bytes(request, priced(request, zero=3)) == pytest.approx(whole, rel=0.05)
    assert gathered_bytes(request, priced(request, zero=1)) == 0.0


def test_logits_are_tokens_times_the_columns_of_a_rank():
    request = asked(seq=9216)
    tensor, at_peak = logits_of(request, layout_of(request, ExplicitLayout(tp=2)))
    assert tensor == pytest.approx(9216 * 128256 / 2 * 2)
    assert at_peak > 2 * tensor
    told = layout_to_json(priced(request, tp=2), request)
    assert told["memory"]["logits_tensor_gib"] == pytest.approx(tensor / 2**30)
    assert told["peak_flops_per_s"] == pytest.approx(989e12, rel=0.01)


def test_an_optimizer_in_the_host_takes_transfers_and_processors():
    request = asked()
    node = cluster("dgx-h100:1").islands[0].node
    one = host_optimizer_step_s(1e9, request.job, node)
    assert one > node.gpus * 1e9 / HOST_ADAM_PER_S
    offloaded = in_host_memory(request)
    assert priced(offloaded).cost.step.total_s > priced(request).cost.step.total_s


def test_remedies_name_the_host_memory_of_an_offloaded_optimizer():
    request = asked("llama3_8b")
    ranked = priced(request)
    found = next(r for r in remedies(request, ranked.layout, ranked.cost).saving if "host memory" in r.change)
    assert found.host_bytes_per_node == pytest.approx(16 * 8.03e9, rel=0.01)
    assert found.lost_s > 0.0


def test_what_a_framework_refuses_beside_a_pipeline():
    request = asked("qwen3_30b_a3b", "dgx-h100:2")
    layout = priced(request, pp=2, ep=8).layout
    rules = {(found.saving, found.rule) for found in refused_savings(request, layout)}
    assert ("activations of a layer in host memory", "megatron-offload-pp") in rules
    assert any("full recompute with expert exchange" in saving for saving, _ in rules)
    deepspeed = replace(asked(framework="deepspeed"), cluster=cluster("dgx-h100:1"))
    pipeline = priced(deepspeed, pp=2).layout
    assert {"ZeRO-2", "ZeRO-3"} <= {found.saving for found in refused_savings(deepspeed, pipeline)}


def test_other_circumstances_are_slower_or_faster_as_they_must():
    request = asked("qwen3_30b_a3b", "dgx-h100:2", seq=4096)
    ranked = priced(request, pp=2, ep=8)
    found = {item.words: item.step_s for item in what_ifs(request, ranked)}
    now = ranked.cost.step.total_s
    assert found[f"dispatcher {Dispatcher.HYBRIDEP}"] < now
    bias, loss, unbalanced = (step_s for words, step_s in found.items() if words.startswith("router"))
    assert now < bias < loss < unbalanced
    assert now <= found["GPUs capped at 560 W (80%)"] <= found["GPUs capped at 420 W (60%)"]


def test_one_slow_gpu_of_a_busy_layout_costs_at_most_what_it_is_slower():
    request = asked("llama3_8b", seq=8192)
    ranked = priced(request, tp=4, pp=2, micro_batch=1)
    slower = next(item for item in what_ifs(request, ranked) if item.words.endswith("10 % slower"))
    assert 1.02 < slower.step_s / ranked.cost.step.total_s < 1.12


def test_the_commands_print_and_write(tmp_path):
    file = tmp_path / "x.json"
    asked_for = ("--global-batch", "8", "--seq", "2048", "--fix", "pp=1", "--fix", "cp=1", "--json", str(file))
    words = ("llama32_1b", "dgx-h100", "dgx-a100:1", *asked_for)
    result = RUN.invoke(app, ["fewest", *words])
    assert result.exit_code == 0, result.output
    assert "The fewest GPUs that hold it" in result.output
    told = json.loads(file.read_text())
    assert [row["machine"] for row in told["machines"]] == ["dgx-h100", "dgx-a100"]
    words = ("llama32_1b", "dgx-h100:1", "--by", "zero", *asked_for)
    result = RUN.invoke(app, ["compare", *words])
    assert result.exit_code == 0, result.output
    assert "weights that a GPU receives" in result.output
    assert [row["value"] for row in json.loads(file.read_text())["values"]] == [0, 1, 2, 3]


def test_from_outside_groups_are_compared_with_all_ranks(tmp_path):
    file = tmp_path / "x.json"
    words = ("llama32_1b", "dgx-h100:2", "--by", "shard_group", "--global-batch", "16", "--seq", "2048")
    more = ("--framework", "torchtitan", "--fix", "pp=1", "--fix", "tp=1", "--fix", "cp=1", "--json", str(file))
    result = RUN.invoke(app, ["compare", *words, *more])
    assert result.exit_code == 0, result.output
    assert "sharded over 4 ranks" in " ".join(result.output.split())
    rows = json.loads(file.read_text())["values"]
    assert [row["value"] for row in rows] == [2, 4, 8, 16]
    assert [row["layout"]["shard_group"] for row in rows] == [2, 4, 8, 0]


def test_from_outside_a_loss_and_adapters_are_asked_for_and_said(tmp_path):
    file = tmp_path / "x.json"
    asked_for = ("--global-batch", "8", "--seq", "2048", "--framework", "none", "--loss", "liger", "--lora-rank", "8")
    for words in (("fewest", "llama32_1b", "dgx-h100"), ("compare", "llama32_1b", "dgx-h100:1", "--by", "tp")):
        result = RUN.invoke(app, [*words, *asked_for, "--fix", "pp=1", "--fix", "cp=1", "--json", str(file)])
        assert result.exit_code == 0, result.output
        assert "adapters of rank 8 beside attn+mlp are trained" in " ".join(result.output.split())
        told = json.loads(file.read_text())["request"]
        assert (told["loss"], told["lora_rank"]) == ("liger", 8)


def test_as_many_sizes_are_tried_with_adapters_as_without():
    """What a long sequence needs are activations: 141 GiB of frozen weights say nothing of how many nodes hold it."""
    more = {"framework": "bridge", "global_batch": 8, "seq": 1 << 20, "lora_rank": 16}
    pinned = ("tp=2", "pp=1", "cp=16", "zero=3")
    found = fewest(asked("llama31_70b", recompute="full", fixed=pinned, **more))
    assert found.first is not None
    assert found.first.ranked.layout.gpus == 32


def test_an_estimate_that_does_not_fit_says_what_to_change():
    words = ("llama3_8b", "dgx-h100:1", "--global-batch", "16", "--seq", "8192")
    result = RUN.invoke(app, ["estimate", *words])
    assert "To save memory, in the order of time lost for each GiB" in result.output
    assert "one tensor of 1.96 GiB" in result.output
    assert priced(asked("llama3_8b", seq=8192)).cost.heaviest.verdict is Verdict.OOM

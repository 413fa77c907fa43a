"""Reports as JSON: written, read back, and refused when they were changed."""

import json
from dataclasses import replace
from pathlib import Path

import plan_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.layout import RankOrder, Strategy
from costmodels.placement import first_rank, ranks_of_stages
from costmodels.results import Verdict, heaviest
from costmodels.workload.counts import parameter_count
from hardware.errors import InputError
from planner.plan_report import PlanReport, RankedLayout
from planner.question import Question, request_of
from planner.report.json_reader import read_report
from planner.report.json_report import MOST_PLACES, places, report_to_json
from planner.report.json_text import json_text
from planner.report.launch import launch_of
from planner.report.target import Target
from planner.request import PlanRequest

CONTRACT = {
    "rank", "tp", "pp", "cp", "ep", "etp", "dp", "vpp", "zero", "micro_batch", "num_microbatches", "schedule",
    "sequence_parallel", "recompute", "layers_per_stage", "stages", "step_time_s", "tokens_per_s",
    "tokens_per_s_per_gpu", "mfu", "breakdown", "memory", "power", "placement", "evidence",
}  # fmt: skip


def written(report: PlanReport, folder: Path) -> Path:
    path = folder / "plan.json"
    path.write_text(json_text(report_to_json(report)))
    return path


@pytest.mark.parametrize(
    "report", [samples.report(), samples.report(proven=False), samples.infeasible_report(), samples.placed_report()]
)
def test_a_report_reads_back_as_it_was(report, tmp_path):
    assert read_report(written(report, tmp_path)) == report


def test_a_report_of_a_trillion_parameters_is_read_back(tmp_path):
    request = request_of(Question(model="kimi_k2", cluster="dgx-h100:8", global_batch=128, seq=4096))
    report = replace(samples.infeasible_report(), request=request)
    assert parameter_count(request.model).total > 10**12
    assert read_report(written(report, tmp_path)).request == request


def test_unconstrained_time_reads_back(tmp_path):
    report = replace(samples.report(), unconstrained_s=8.5)
    assert read_report(written(report, tmp_path)).unconstrained_s == 8.5


def test_fields_of_the_contract():
    data = json.loads(json_text(report_to_json(samples.report())))
    assert data["schema"] == 1
    assert {"request", "layouts", "search", "rejected"} <= set(data)
    assert {"enumerated", "pruned", "solved", "lower_bound_s", "gap", "proven_optimal", "wall_s"} <= set(data["search"])
    for rank, layout in enumerate(data["layouts"], start=1):
        assert set(layout) >= CONTRACT
        assert layout["rank"] == rank
        assert sum(layout["breakdown"].values()) == layout["step_time_s"]
        assert {"mesh", "strategies", "time_s", "memory_gib"} <= set(layout["stages"][0])
        assert {"heaviest_rank", "total_gib", "usable_gib", "verdict", "components"} <= set(layout["memory"])
        assert layout["memory"]["total_gib"] == pytest.approx(sum(layout["memory"]["components"].values()))
        assert {"gpu_w", "clock_mhz", "limited_by", "energy_j_per_token", "max_temp_c"} <= set(layout["power"])
        assert sum(map(sum, layout["layers_per_stage"])) == 80
    assert data["layouts"][0]["layers_per_stage"] == [[5, 5]] * 8
    assert data["layouts"][0]["memory"]["total_gib"] == 61.25
    assert data["layouts"][0]["power"]["clock_mhz"] == 1755.0


def test_the_fullest_gpu_is_the_one_with_the_largest_share_of_its_own_memory_in_use():
    """A small card with few bytes left may be emptier than a large one with many."""
    large = replace(samples.memory_use(0, 90.0, Verdict.RISKY), usable_bytes=95.0 * samples.GIB)
    small = replace(samples.memory_use(1, 41.0, Verdict.FITS), usable_bytes=44.0 * samples.GIB)
    assert heaviest((large, small)).stage == 0
    assert heaviest((large, replace(small, usable_bytes=42.0 * samples.GIB))).stage == 1


def test_the_heaviest_rank_is_the_first_of_its_stage():
    report = samples.report()
    light = replace(report.layouts[1].cost.memory[0], components=(("weights", 1.0),))
    cost = replace(report.layouts[1].cost, memory=(light, *report.layouts[1].cost.memory[1:]))
    data = report_to_json(replace(report, layouts=(replace(report.layouts[1], cost=cost),)))
    assert data["layouts"][0]["memory"]["heaviest_stage"] == 1
    assert data["layouts"][0]["memory"]["heaviest_rank"] == 16


def test_the_heaviest_rank_counts_in_the_order_of_ranks():
    strategy = Strategy(tp=2, cp=2, dp=4)
    usual = samples.layout(strategy, ((20,),) * 4)
    turned = replace(usual, rank_order=RankOrder.PP_INSIDE)
    for of in (usual, turned):
        stages = ranks_of_stages(of, 0).tolist()
        assert [first_rank(of, stage) for stage in range(4)] == [stages.index(stage) for stage in range(4)]
    assert [first_rank(turned, stage) for stage in range(4)] == [0, 4, 8, 12]


TWO_KINDS = (
    'inter_island_gbit_per_s = 100\n[[island]]\nnode = "dgx-a100"\nnodes = 2\n[[island]]\nnode = "{}"\nnodes = 1\n'
)


def on_islands(path: Path, other: str, islands: tuple[int, ...]) -> tuple[PlanRequest, RankedLayout]:
    path.write_text(TWO_KINDS.format(other))
    request = request_of(Question(model="llama3_70b", cluster=str(path), global_batch=128, seq=8192))
    layout = samples.layout(Strategy(dp=4), ((40,),) * len(islands))
    stages = tuple(replace(stage, island=island) for stage, island in zip(layout.stages, islands, strict=True))
    return request, samples.ranked(replace(layout, stages=stages), 1.0, 10.0)


@pytest.mark.parametrize("other", ["dgx-h100", "a10g-4", "gb200-nvl72"])
@pytest.mark.parametrize(
    ("islands", "hosts"),
    [
        ((0, 0), ["node0"] * 8),
        ((1, 0), ["node2"] * 4 + ["node0"] * 4),
        ((0, 1), ["node0"] * 4 + ["node2"] * 4),
    ],
)
def test_ranks_in_order_lie_on_the_islands_of_their_stages(other, islands, hosts, tmp_path):
    request, ranked = on_islands(tmp_path / "lab.toml", other, islands)
    written_out = places(ranked, request.cluster)
    assert [place.host for place in written_out] == hosts
    assert [place.rank for place in written_out] == list(range(8))
    assert len({(place.host, place.gpu) for place in written_out}) == 8
    report = replace(samples.report(), request=request, layouts=(ranked,))
    assert read_report(written(report, tmp_path)).layouts[0].placement == ()


def test_an_export_starts_the_nodes_of_the_island(tmp_path):
    request, ranked = on_islands(tmp_path / "lab.toml", "dgx-h100", (1, 1))
    files = launch_of(request, ranked, Target(format="megatron")).files
    text = "".join(files.values())
    assert "node2" in text
    assert "node0" not in text


def test_identity_placement_is_written_out_up_to_a_limit():
    ranked = samples.layouts()[0]
    cluster = samples.request().cluster
    found = places(ranked, cluster)
    assert [(place.rank, place.host, place.gpu) for place in (found[0], found[9])] == [(0, "node0", 0), (9, "node1", 1)]
    assert len(found) == 64 <= MOST_PLACES
    large = samples.ranked(samples.layout(samples.Strategy(dp=8192), ((80,),), batch=8192), 1.0, 10.0)
    assert places(large, cluster) == ()


def broken(data: dict, change) -> dict:
    copy = json.loads(json.dumps(data))
    change(copy)
    return copy


def _layers(data):
    data["layouts"][0]["layers_per_stage"][0] = [5, 6]


def _schedule(data):
    data["layouts"][0]["schedule"] = "2f2b"


def _step(data):
    data["layouts"][0]["breakdown"]["compute_s"] = "fast"


def _schema(data):
    data["schema"] = 2


def _model(data):
    data["request"]["model"] = "llama3_7O b"


def _changed(data):
    data["request"]["resolved"]["layers"] = 81


def _no_search(data):
    del data["search"]


def _degree(data):
    data["layouts"][0]["stages"][0]["strategies"][0]["tp"] = 0


def _nan(data):
    data["layouts"][0]["mfu"] = float("nan")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (_layers, "strategies"),
        (_schedule, "schedule"),
        (_step, "compute_s"),
        (_schema, "schema"),
        (_model, "nearest"),
        (_changed, "changed since"),
        (_no_search, "search"),
        (_degree, "strategies[0]: tp"),
        (_nan, "mfu"),
    ],
)
def test_a_wrong_report_is_refused_with_file_and_field(change, place, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(broken(report_to_json(samples.report()), change)))
    with pytest.raises(InputError) as error:
        read_report(path)
    assert place in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}', "\x00", "[" * 100_000])
def test_what_is_no_report_is_refused(text, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"plan\.json"):
        read_report(path)


def test_a_missing_report_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_report(tmp_path / "none.json")


def test_files_of_the_question_are_found_beside_the_report(tmp_path, monkeypatch):
    (tmp_path / "lab.toml").write_text('name = "lab"\n[[island]]\nnode = "dgx-h100"\nnodes = 8\n')
    report = samples.report()
    words = (("model", "llama3_70b"), ("cluster", "lab.toml"), ("precision", "bf16"))
    path = written(replace(report, request=replace(report.request, words=words)), tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_report(path).request.cluster.name == "lab"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_text_is_json(value):
    assert json.loads(json_text(value)) == value


@pytest.mark.parametrize("value", [float("inf"), float("nan"), [float("inf")], {"a": [[float("-inf")]]}])
def test_json_text_refuses_what_json_cannot_say(value):
    with pytest.raises(ValueError, match=r"JSON|compliant"):
        json_text(value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pp",), 5),
        (("tp",), 64),
        (("vpp",), 7),
        (("num_microbatches",), 3),
        (("gpus",), 9),
        (("sequence_parallel",), "yes"),
        (("stages", 0, "layers"), 1),
        (("stages", 0, "mesh", "dp"), 99),
    ],
)
def test_degrees_that_are_not_those_of_the_stages_are_refused(tmp_path, path, value):
    data = json.loads(json_text(report_to_json(samples.report())))
    place = data["layouts"][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file = tmp_path / "edited.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=str(path[-1])):
        read_report(file)

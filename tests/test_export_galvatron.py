"""Galvatron exports: a strategy for every layer, read back; known values; refusals; files of others."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Granularity, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.counts import parameter_count
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.folder import export_files, write_folder
from planner.export.galvatron import CONFIG, export_galvatron
from planner.export.galvatron_model import size_overrides
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.ingest.galvatron import GalvatronLaunch, layout_of, model_of, parse_galvatron
from planner.ingest.plain_layout import joined, same_launch, uniform_stages
from planner.launches.check import read_launch
from planner.question import LaunchQuestion
from planner.request import Framework
from planner.rules import check_layout, facts_of

DENSE, SPARSE = "llama3_8b", "mixtral_8x22b"


def job(batch: int = 64, seq: int = 4096, recipe: str = "bf16") -> TrainingJob:
    numbers = precision(recipe, framework="galvatron")
    return TrainingJob(global_batch=batch, seq=seq, precision=numbers, software=software("galvatron"))


def plan(grid: Strategy, split, *, rounds: int = 4, batch: int = 64) -> Layout:
    stages = uniform_stages([(count,) for count in split], grid)
    return Layout(stages=stages, micro_batch=batch // (rounds * grid.dp), num_microbatches=rounds)


def export(name: str, layout: Layout, **changes):
    site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
    return export_galvatron(Planned(model=model(name), job=job(**changes), layout=layout, site=site))


def config_of(exported) -> dict:
    return json.loads(dict(exported.files)[CONFIG])


@st.composite
def plans(draw):
    """Layers with grids of their own on equally many GPUs a stage."""
    name = draw(st.sampled_from([DENSE, SPARSE]))
    spec, gpus, pp = model(name), draw(st.sampled_from([4, 8])), draw(st.sampled_from([1, 2, 4]))
    experts = facts_of(spec).experts > 0
    plainest = draw(st.sampled_from([0, 2]))
    parallel = draw(st.booleans())
    choices = []
    for _ in range(draw(st.integers(1, 3))):
        tp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2]))
        grid = Strategy(
            tp=tp,
            cp=cp,
            dp=max(1, gpus // (tp * cp)),
            ep=draw(st.sampled_from([1, 2, 4])) if experts else 1,
            sequence_parallel=parallel and tp > 1,
            zero=draw(st.sampled_from([plainest, 3])),
            recompute=draw(st.sampled_from([Recompute(), FULL_RECOMPUTE])),
        )
        choices.append(grid)
    assume(len({grid.gpus for grid in choices}) == 1)
    counts = [spec.layers // pp + draw(st.integers(0, 2)) for _ in range(pp - 1)]
    counts.append(spec.layers - sum(counts))
    stages = []
    for count in counts:
        runs = joined((draw(st.sampled_from(choices)), size) for size in (count // 2, count - count // 2))
        stages.append(Stage(layers_per_chunk=(count,), strategies=runs))
    first = stages[0].strategies[0].strategy
    schedule = draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE]))
    return name, Layout(stages=tuple(stages), micro_batch=2, num_microbatches=64 // (2 * first.dp), schedule=schedule)


@given(drawn=plans())
@settings(max_examples=80, suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
def test_an_export_reads_back_as_the_plan(drawn):
    name, layout = drawn
    spec = model(name)
    assume(not check_layout(layout, spec, job(), framework=Framework.GALVATRON))
    exported = export(name, layout)
    read = parse_galvatron(dict(exported.files)[CONFIG], exported.arguments, world=layout.gpus)
    assert not read.unread
    assert same_launch(layout_of(read, facts_of(spec)), layout, experts=facts_of(spec).experts > 0)


def test_the_lists_have_one_number_a_layer():
    one = Strategy(tp=2, dp=4, sequence_parallel=True, zero=3, recompute=FULL_RECOMPUTE)
    other = Strategy(tp=4, dp=2, sequence_parallel=True, zero=2)
    runs = (StrategyRun(strategy=one, count=2), StrategyRun(strategy=other, count=14))
    first = Stage(layers_per_chunk=(16,), strategies=runs)
    last = uniform_stages([(16,)], other)[0]
    exported = export(DENSE, Layout(stages=(first, last), micro_batch=4, num_microbatches=4))
    config = config_of(exported)
    assert config["tp_sizes_enc"] == ",".join(["2"] * 2 + ["4"] * 30)
    assert config["dp_types_enc"] == config["checkpoint"] == ",".join(["1"] * 2 + ["0"] * 30)
    assert (config["pp_deg"], config["pp_division"], config["chunks"], config["global_bsz"]) == (2, "16,16", 4, 64)
    assert (config["default_dp_type"], config["pipeline_type"], config["vtp"]) == ("zero2", "pipedream_flush", 2)
    assert "runtime.train.sequence_parallel=true" in exported.arguments
    assert "first layer" in " ".join(exported.notes)
    script = export_files(exported, plan(one, (32,)), "test")["launch.sh"]
    assert '"runtime.parallel.galvatron_config_path=$here/galvatron_config.json"' in script


@pytest.mark.parametrize(
    ("layout", "part"),
    [
        (plan(Strategy(dp=4, zero=1), (32,)), "ZeRO stage 1 has no option"),
        (plan(Strategy(dp=4, zero=3, shard_group=2), (32,)), "groups of 2 of 4 ranks"),
        (replace(plan(Strategy(dp=4), (16, 16)), schedule=Schedule.ZB_H1), "schedule zb-h1"),
        (
            plan(Strategy(dp=4, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",))), (32,)),
            "recompute of named modules",
        ),
        (
            replace(
                plan(Strategy(dp=4), (16, 16)),
                stages=(*uniform_stages([(16,)], Strategy(dp=4)), *uniform_stages([(16,)], Strategy(dp=4, zero=2))),
            ),
            "ZeRO stages [0, 2] among the layers",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(layout, part):
    with pytest.raises(InputError) as error:
        export(DENSE, layout)
    assert part in str(error.value)


def test_other_precisions_are_refused():
    with pytest.raises(InputError, match="precision fp8"):
        export(DENSE, plan(Strategy(dp=2), (32,)), recipe="fp8")


# ------------------------------------------------------------------------------------------------------ reading others
def other(**changes) -> str:
    ones, zeros = ",".join(["1"] * 32), ",".join(["0"] * 32)
    config = {"pp_deg": 1, "tp_sizes_enc": ones, "tp_consecutive_flags": ones, "dp_types_enc": ones, "global_bsz": 16}
    config |= {"use_sp": zeros, "checkpoint": ",".join(["1"] * 20 + ["0"] * 12), "chunks": 1, "pp_division": "32"}
    config |= {"pipeline_type": "pipedream_flush", "default_dp_type": "zero2", "vtp": 2, "vsp": 1, "embed_sdp": 1}
    return json.dumps(config | changes)


def read(text: str, *overrides: str, world: int = 8) -> Layout:
    return layout_of(parse_galvatron(text, overrides, world=world), facts_of(model(DENSE)))


def test_a_plan_of_galvatrons_own_search_is_read():
    """The form of galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json: ZeRO 3, 20 layers recomputed."""
    layout = read(other())
    assert [run.count for run in layout.stages[0].strategies] == [20, 12]
    assert (layout.first.dp, layout.first.zero, layout.micro_batch) == (8, 3, 2)
    assert layout.first.recompute == FULL_RECOMPUTE


def test_ulysses_is_context_parallelism():
    config = other(tp_sizes_enc=",".join(["4"] * 32), use_sp=",".join(["1"] * 32))
    layout = read(config, "runtime.train.seq_length=4096")
    assert (layout.first.tp, layout.first.cp, layout.first.dp) == (1, 4, 2)


def test_without_a_division_the_last_stage_takes_the_rest():
    config = json.loads(other(pp_deg=3, chunks=4, global_bsz=32))
    del config["pp_division"]
    assert read(json.dumps(config), world=12).layers_per_stage == ((10,), (10,), (12,))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not JSON"),
        ("[]", "list instead of an object"),
        ("{}", "pp_deg, tp_sizes_enc"),
        (other(pp_deg=0), "pp_deg: 0"),
        (other(tp_sizes_enc="1,1"), "names 2 layers, the model has 32"),
        (other(checkpoint="1,0"), "2 numbers for 32 layers"),
        (other(dp_types_enc=",".join(["2"] * 32)), "0 or 1 for each layer"),
        (other(tp_sizes_enc=",".join(["3"] * 32)), "does not divide the 8 GPUs"),
        (other(pp_division="30"), "sum to 32 layers"),
        (other(pipeline_type="zb"), "pipeline_type 'zb'"),
        (other(default_dp_type="zero1"), "default_dp_type 'zero1'"),
        (other(global_bsz=12), "global_bsz 12 does not divide"),
        (other(use_sp="a"), "whole numbers joined by commas"),
    ],
)
def test_mistakes_are_named(text, part):
    with pytest.raises(InputError) as error:
        read(text)
    assert part in str(error.value)


def test_keys_that_are_not_read_are_named():
    assert parse_galvatron(other(chunk=3), world=8).unread == ("chunk (did you mean chunks?)",)
    with pytest.raises(InputError, match="name=value"):
        parse_galvatron(other(), ["fast"], world=8)


def test_an_exported_launch_is_judged_with_the_model_that_it_states_or_asks_for_it(tmp_path):
    layout = plan(Strategy(tp=2, dp=4, sequence_parallel=True, zero=2), (32,))
    folder = tmp_path / "launch"
    write_folder(folder, export_files(export(DENSE, layout), layout, "test"))
    asked = LaunchQuestion(framework="galvatron", file=folder / "launch.sh")
    for judged in (read_launch(asked), read_launch(replace(asked, model=DENSE))):
        assert judged.legal, judged.violations
        assert judged.layout == layout
    script = folder / "launch.sh"
    script.write_text(script.read_text().replace("runtime.model.hidden_size=4096", ""))
    with pytest.raises(InputError, match=r"states no model.*--model MODEL"):
        read_launch(asked)


@pytest.mark.parametrize("name", ["llama3_8b", "qwen25_7b", "qwen3_0_6b", "mixtral_8x7b", "qwen3_30b_a3b"])
def test_sizes_of_a_model_are_stated_and_read_back(name):
    words = [f"runtime.model.num_layers={model(name).layers}", *size_overrides(model(name))]
    told = dict(word.split("=", 1) for word in words)
    built = model_of(GalvatronLaunch(world=1, config={}, overrides=told, unread=()))
    assert built is not None
    assert list(built.layer_kinds()) == list(model(name).layer_kinds())
    assert parameter_count(built) == parameter_count(model(name))


@pytest.mark.parametrize("name", ["gpt_oss_20b", "deepseek_v2_lite", "qwen3_next_80b_a3b", "falcon_40b"])
def test_sizes_that_have_no_key_are_left_to_the_model_file(name):
    assert size_overrides(model(name)) == ()

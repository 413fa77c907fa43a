"""Layers of unlike sizes (Llama-Nemotron): their file for Megatron-LM, read back; what Megatron-LM refuses of it."""

import json
import random
import shlex

import pytest

from costmodels.job import TrainingJob
from costmodels.layout import Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.counts import parameter_count
from costmodels.workload.huggingface.config import from_config
from hardware.errors import InputError
from planner.export.bridge import export_bridge
from planner.export.folder import export_files, write_folder
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.export.megatron import export_megatron
from planner.export.megatron_layers import LAYERS_FILE
from planner.export.nemo import export_nemo
from planner.ingest.megatron.arguments import judge, layout_of, parse_megatron
from planner.ingest.megatron.layers_file import PATH, TEXT
from planner.ingest.megatron.model import model_of
from planner.ingest.plain_layout import same_launch, uniform_stages
from planner.launches.check import read_launch
from planner.planning import plan
from planner.question import LaunchQuestion, Question, request_of

SCALED = {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
WIDTHS = (0, 0.5, 1.3125, 2.625, 5.25)


def block(group=8, mult=2.625):
    """One entry as Llama-Nemotron's configurations have it; 0: without the part."""
    attention = {"n_heads_in_group": group or None, "no_op": not group, "replace_with_linear": False}
    return {"attention": attention, "ffn": {"ffn_mult": mult or None, "no_op": not mult, "replace_with_linear": False}}


def config(blocks, **changes):
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": len(blocks), "vocab_size": 32000}
    rest = {"hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-5, **SCALED}
    return {"model_type": "nemotron-nas", "block_configs": blocks, **sizes, **rest, **changes}


def searched(blocks, **changes):
    return from_config(config(blocks, **changes), name="searched", where="test")


def drawn(seed, layers=12):
    """Random blocks; the first has both parts."""
    rng = random.Random(seed)
    return [block(), *(block(rng.choice((0, 8)), rng.choice(WIDTHS)) for _ in range(layers - 1))]


def planned(spec, split, **degrees):
    stages = uniform_stages(split, Strategy(**{"dp": 2, "zero": 1, **degrees}))
    layout_chunks = len(split[0])
    schedule = Schedule.INTERLEAVED if layout_chunks > 1 else Schedule.ONE_F_ONE_B
    tools = software("megatron")
    job = TrainingJob(global_batch=32, seq=2048, precision=precision("bf16", framework="megatron"), software=tools)
    layout = Layout(stages=stages, micro_batch=1, num_microbatches=16, schedule=schedule)
    site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
    return Planned(model=spec, job=job, layout=layout, site=site)


def with_file(exported):
    """Arguments with those that the program adds, and the text of the file in its place."""
    return [*exported.arguments, PATH, LAYERS_FILE, TEXT, dict(exported.files)[LAYERS_FILE]]


def parts(spec):
    return [(kind.mixer, kind.ffn) for kind in spec.layer_kinds()]


@pytest.mark.parametrize("seed", range(12))
def test_an_export_reads_back_as_the_plan_and_its_model(seed):
    spec = searched(drawn(seed))
    count = spec.layers
    split = [(count,)] if seed % 3 == 0 else [(count // 2 + seed % 2,), (count - count // 2 - seed % 2,)]
    given = planned(spec, split, tp=1 + seed % 2, sequence_parallel=seed % 2 > 0)
    launch = parse_megatron(with_file(export_megatron(given)), world=given.layout.gpus)
    assert same_launch(layout_of(launch), given.layout, experts=False)
    assert parts(model_of(launch.arguments)) == parts(spec)


def test_the_file_builds_the_layers_that_megatron_core_built():
    """Parameters of each kind of layer of Super-49B, counted on the modules that megatron-core 0.19.2 builds of it."""
    built = {
        (8, 5.25): 855654400,
        (8, 2.625): 503332864,
        (0, 5.25): 704651264,
        (0, 3.28125): 440410112,
        (0, 2.625): 352329728,
        (0, 1.3125): 176168960,
        (0, 1.0): 138420224,
        (0, 0.5): 69214208,
    }
    spec = searched([block(*kind) for kind in built], hidden_size=8192, num_attention_heads=64)
    assert [number for _, number, _ in parameter_count(spec).per_kind] == list(built.values())


def test_a_folder_is_checked_with_the_file_beside_its_script(tmp_path):
    spec = searched(drawn(5))
    given = planned(spec, [(spec.layers - 3,), (3,)])
    exported = export_megatron(given)
    write_folder(tmp_path / "plan", export_files(exported, given.layout, "test"))
    judged = read_launch(LaunchQuestion(framework="megatron", file=tmp_path / "plan" / "launch.sh"))
    assert (judged.legal, judged.accepted) == (True, True)
    assert same_launch(judged.layout, given.layout, experts=False)
    assert parts(judged.model) == parts(spec)
    script = (tmp_path / "plan" / "launch.sh").read_text()
    assert f'"$TRAIN_SCRIPT" {PATH} "$here/{LAYERS_FILE}"' in script


def test_a_users_file_with_layers_that_do_nothing(tmp_path):
    """Megatron-LM counts them on a stage; they cost nothing, so the layout is without them."""
    spec = searched([block(), block(), block(0), block()])
    words = list(export_megatron(planned(spec, [(2,), (2,)])).arguments)
    words[words.index("--num-layers") + 1] = "6"
    (tmp_path / "nas.json").write_text(
        json.dumps(config([block(), block(0, 0), block(), block(0), block(0, 0), block()]))
    )
    (tmp_path / "arguments.txt").write_text(shlex.join([*words, PATH, "nas.json"]))
    judged = read_launch(LaunchQuestion(framework="megatron", file=tmp_path / "arguments.txt", world=4))
    assert judged.legal, judged.violations
    assert (judged.built, judged.layout.layers_per_stage) == (((3,), (3,)), ((2,), (2,)))
    assert "2 layers have neither attention nor a feed-forward part and are left out" in judged.notes
    assert parts(judged.model) == parts(spec)


def test_megatrons_own_words_in_the_file_win():
    own = {
        "attention": {"n_heads_in_group": 8, "num_query_groups": 2},
        "mlp": {"ffn_mult": 1.0, "ffn_hidden_size": 768},
    }
    mixer, ffn = parts(searched([block(), own]))[1]
    assert (mixer.kv_heads, ffn.hidden) == (2, 768)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (searched([block(8), block(4)]), "2 different kinds of attention"),
        (searched([block(), block(0)], rope_scaling=None), "without Llama 3's scaling"),
        (searched([block(), block(0)], hidden_act="gelu"), "the gated activation gelu"),
    ],
)
def test_what_the_file_cannot_say_is_refused_by_name(spec, part):
    with pytest.raises(InputError, match=part):
        export_megatron(planned(spec, [(2,)]))


@pytest.mark.parametrize("export", [export_megatron, export_bridge, export_nemo])
def test_virtual_stages_of_unlike_layers_are_refused(export):
    """megatron-core 0.19.2 stops with "vp_stage must be provided if virtual pipeline model parallel size is set"."""
    spec = searched([block(), block(0)] * 4)
    with pytest.raises(InputError, match="layers of unlike sizes with 2 virtual stages"):
        export(planned(spec, [(2, 2), (2, 2)]))
    assert export(planned(spec, [(3,), (5,)])).arguments


@pytest.mark.deep
@pytest.mark.parametrize("framework", ["megatron", "bridge", "nemo"])
def test_a_search_keeps_to_one_chunk_a_stage(framework, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config([block(), block(0)] * 8)))
    words = {"model": str(tmp_path / "config.json"), "cluster": "dgx-h100:1", "global_batch": 32, "seq": 2048}
    report = plan(request_of(Question(**words, framework=framework, fixed=("pp=2",), top=5)))
    assert {ranked.layout.vpp for ranked in report.layouts} == {1}
    with pytest.raises(InputError, match="no virtual stages of layers of unlike sizes"):
        plan(request_of(Question(**words, framework=framework, fixed=("pp=2", "vpp=2"))))


def test_a_file_that_is_not_there_leaves_the_split_to_judge(tmp_path):
    words = [*export_megatron(planned(searched([block(), block(0)]), [(1,), (1,)])).arguments, PATH, "gone.json"]
    (tmp_path / "arguments.txt").write_text(shlex.join(words))
    judged = read_launch(LaunchQuestion(framework="megatron", file=tmp_path / "arguments.txt", world=4))
    assert (judged.legal, judged.built, judged.model) == (True, ((1,), (1,)), None)
    assert any("layers of unlike sizes" in note for note in judged.notes)


def test_what_differs_from_the_file_is_named():
    words = with_file(export_megatron(planned(searched([block(), block(0)]), [(2,)])))
    words[words.index("--rotary-base") + 1] = "10000"
    words.remove("--use-rope-scaling")
    (violation,) = judge(parse_megatron(words, world=2)).violations
    assert violation.message.startswith("--use-rope-scaling, --rotary-base: otherwise than the file")

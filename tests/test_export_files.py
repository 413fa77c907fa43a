"""Layouts as JSON and exports as folders: they read back, errors are told, nothing is written half."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.job import TrainingJob
from costmodels.layout import Granularity, Layout, RankOrder, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export import folder
from planner.export.folder import export_files, write_folder
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.export.layout_json import layout_to_dict, read_layout, write_layout
from planner.export.megatron import export_megatron
from planner.plan_report import RankPlace

DEGREE = st.sampled_from([1, 2, 3, 4, 8, 16])
STRATEGY = st.builds(
    Strategy,
    **dict.fromkeys(("tp", "cp", "dp", "ep", "etp"), DEGREE),
    zero=st.integers(0, 3),
    shard_group=st.sampled_from([0, 4]),
    sequence_parallel=st.booleans(),
    recompute=st.builds(
        Recompute,
        granularity=st.sampled_from(list(Granularity)),
        modules=st.sampled_from([(), ("core_attn",), ("moe_act", "layernorm")]),
    ),
)


@st.composite
def layouts(draw):
    vpp = draw(st.integers(1, 3))
    stages = []
    for _ in range(draw(st.integers(1, 4))):
        runs = tuple(
            StrategyRun(strategy=draw(STRATEGY), count=draw(st.integers(0, 9))) for _ in range(draw(st.integers(1, 3)))
        )
        total = sum(run.count for run in runs)
        cuts = sorted(draw(st.lists(st.integers(0, total), min_size=vpp - 1, max_size=vpp - 1)))
        chunks = tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))
        stages.append(Stage(layers_per_chunk=chunks, strategies=runs, island=draw(st.integers(0, 2))))
    return Layout(
        stages=tuple(stages),
        micro_batch=draw(st.integers(1, 8)),
        num_microbatches=draw(st.integers(1, 512)),
        schedule=draw(st.sampled_from(list(Schedule))),
        rank_order=draw(st.sampled_from(list(RankOrder))),
    )


@given(layout=layouts())
def test_json_reads_back(layout):
    assert read_layout(write_layout(layout)) == layout


def sample() -> Layout:
    grid = Strategy(tp=2, dp=4, zero=1, sequence_parallel=True)
    stages = tuple(
        Stage(layers_per_chunk=(count,), strategies=(StrategyRun(strategy=grid, count=count),)) for count in (17, 15)
    )
    return Layout(stages=stages, micro_batch=1, num_microbatches=16)


def damaged(path: tuple, value: object) -> str:
    content = layout_to_dict(sample())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "list instead of an object"),
        (damaged(("schema",), 9), "schema 9"),
        (damaged(("stages",), []), "no stages"),
        (damaged(("stages",), 3), "missing or no list"),
        (damaged(("schedule",), "fast"), "'fast'; allowed: gpipe, 1f1b"),
        (damaged(("micro_batch",), 0), "micro_batch: 0; allowed: a whole number from 1"),
        (damaged(("micro_batch",), True), "micro_batch: True"),
        (damaged(("stages", 0, "layers_per_chunk"), [16, 1]), "different numbers of chunks"),
        (damaged(("stages", 1, "layers_per_chunk"), [16]), "stages[1]: strategies for 15 layers, chunks of 16"),
        (damaged(("stages", 1, "strategies", 0, "tp"), "4"), "stages[1]: strategies[0]: tp: '4'"),
        (damaged(("stages", 1, "strategies", 0, "zero"), 4), "ZeRO stage 4"),
        (damaged(("stages", 1, "strategies", 0, "sequence_parallel"), 1), "sequence_parallel: 1"),
        (damaged(("stages", 1, "strategies", 0, "recompute"), None), "NoneType instead of an object"),
        (damaged(("stages", 1, "strategies", 0, "recompute", "modules"), [1]), "names of modules"),
    ],
)
def test_json_errors_name_the_field(text, message):
    with pytest.raises(InputError) as error:
        read_layout(text, "plan.json")
    assert message in str(error.value)
    assert str(error.value).startswith("plan.json")


def export(placement=()):
    tools = software("megatron")
    job = TrainingJob(global_batch=64, seq=4096, precision=precision("bf16"), software=tools)
    site = Site(hosts=("alpha", "beta"), gpus_per_node=8)
    return export_megatron(Planned(model=model("llama3_8b"), job=job, layout=sample(), site=site, placement=placement))


def permuted() -> list[RankPlace]:
    return [
        RankPlace(rank=node * 8 + local, host=host, gpu=7 - local)
        for node, host in enumerate(("beta", "alpha"))
        for local in range(8)
    ]


def test_a_folder_appears_whole(tmp_path):
    target = tmp_path / "plan"
    write_folder(target, export_files(export(), sample(), "llama3_8b on 16 GPUs"))
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md",
        "arguments.txt",
        "launch.sh",
        "layout.json",
        "nodes.tsv",
        "ranks.tsv",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    assert os.access(target / "launch.sh", os.X_OK)
    assert read_layout((target / "layout.json").read_text()) == sample()
    assert (target / "ranks.tsv").read_text().splitlines()[9].split("\t")[:4] == ["8", "beta", "0", "0"]


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    def full_disk(_source, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.os, "replace", full_disk)
    with pytest.raises(InputError, match="No space left"):
        write_folder(tmp_path / "plan", {"a.txt": "text"})
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_left_alone(tmp_path):
    target = tmp_path / "plan"
    target.mkdir()
    (target / "notes").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        write_folder(target, {"a.txt": "text"})
    assert [path.name for path in target.iterdir()] == ["notes"]
    with pytest.raises(InputError, match="is no folder"):
        write_folder(tmp_path / "missing" / "plan", {"a.txt": "text"})
    (target / "notes").unlink()
    write_folder(target, {"a.txt": "text"})
    assert (target / "a.txt").read_text() == "text"


def test_a_link_leads_to_the_folder(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    link = tmp_path / "link"
    link.symlink_to("empty")
    write_folder(link, {"a.txt": "text"})
    assert link.is_symlink()
    assert (tmp_path / "empty" / "a.txt").read_text() == "text"
    with pytest.raises(InputError, match="link exists"):
        write_folder(link, {"a.txt": "text"})
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputError, match="dangling is a link that leads nowhere"):
        write_folder(tmp_path / "dangling", {"a.txt": "text"})
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(InputError, match="circle"):
        write_folder(tmp_path / "circle", {"a.txt": "text"})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="is the current folder"):
        write_folder(Path(), {"a.txt": "text"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "dangling", "empty", "here", "link"]


@pytest.mark.skipif(shutil.which("bash") is None or shutil.which("awk") is None, reason="needs bash and awk")
@pytest.mark.parametrize("found_by", ["number", "name"])
def test_the_script_starts_torchrun_with_the_plan(tmp_path, found_by):
    plan = export(permuted())
    write_folder(tmp_path / "plan", export_files(plan, sample(), "test"))
    tools = tmp_path / "bin"
    tools.mkdir()
    show = '#!/bin/sh\nprintf "%s\\n" "$CUDA_VISIBLE_DEVICES" "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n'
    for name, text in (("torchrun", show), ("hostname", "#!/bin/sh\necho alpha.cluster.example\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "TRAIN_SCRIPT": "pretrain_gpt.py", "USER_ARGS": "--lr 1e-3"}
    if found_by == "number":
        environment["NODE_RANK"] = "1"
    done = subprocess.run(
        [str(tmp_path / "plan" / "launch.sh"), "--save", "here"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    visible, connections, *words = done.stdout.splitlines()
    assert (visible, connections) == ("7,6,5,4,3,2,1,0", "1")
    assert words[: words.index("pretrain_gpt.py")] == [
        *("--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "8"),
        *("--master-addr", "beta", "--master-port", "29500"),
    ]
    assert tuple(words[words.index("pretrain_gpt.py") + 1 :]) == (*plan.arguments, "--lr", "1e-3", "--save", "here")


def test_a_script_without_a_training_script_says_so(tmp_path):
    write_folder(tmp_path / "plan", export_files(export(), sample(), "test"))
    done = subprocess.run(
        [str(tmp_path / "plan" / "launch.sh")], env={"PATH": os.environ["PATH"]}, capture_output=True, check=False
    )
    assert done.returncode
    assert b"set TRAIN_SCRIPT" in done.stderr

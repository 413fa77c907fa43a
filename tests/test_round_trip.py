"""What a search finds for a framework can be exported, and ``plan check`` finds the same layout in it, and legal."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardware.errors import InputError
from planner.export.folder import write_folder
from planner.ingest.plain_layout import same_launch
from planner.launches.check import read_launch
from planner.planning import plan
from planner.question import LaunchQuestion, Question, request_of
from planner.report.launch import launch_of
from planner.report.target import Target
from planner.request import Framework
from planner.rules import facts_of

DENSE, SPARSE, LATENT = "llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite"
FRAMEWORKS = [framework for framework in Framework if framework is not Framework.NONE]
PINS = ((), ("pp=4",), ("tp=2",), ("pp=2", "vpp=2"), ("cp=2",), ("zero=2",), ("zero=0",), ("pp=3",))
QUICK = (
    (Framework.MEGATRON, LATENT, ("pp=2", "vpp=2", "micro_batch=1", "cp=1")),
    (Framework.BRIDGE, SPARSE, ("tp=2", "micro_batch=1", "cp=1", "pp=1")),
    (Framework.NEMO, DENSE, ("pp=4", "micro_batch=1")),
    (Framework.TORCHTITAN, DENSE, ("cp=2", "micro_batch=1")),
    (Framework.DEEPSPEED, DENSE, ("zero=2",)),
    (Framework.GALVATRON, DENSE, ("tp=2", "pp=2")),
)


def layouts(words: dict, framework: Framework):
    """The first layouts of a request; none when nothing fits or the pins do not go together."""
    try:
        report = plan(request_of(Question(**words, framework=framework.value)))
    except InputError:
        return None, ()
    return report.request, report.layouts


def checked(request, ranked, folder):
    """The launch of a layout written into a folder and read back from there."""
    framework, model = request.framework, request.model
    write_folder(folder, dict(launch_of(request, ranked, Target(format=framework.value)).files))
    own_file = framework is Framework.GALVATRON
    question = LaunchQuestion(
        framework=framework.value,
        file=folder / ("galvatron_config.json" if own_file else "launch.sh"),
        world=ranked.layout.gpus if own_file else 0,
        model="" if framework is Framework.MEGATRON else model.name,
    )
    return read_launch(question)


def check_found(framework: Framework, words: dict, folder) -> int:
    """Hold the first layouts of a request against what is read back of their launches; how many there are."""
    request, found = layouts({**words, "top": 3}, framework)
    for ranked in found:
        judged = checked(request, ranked, folder.mktemp("launch") / "plan")
        assert judged.legal, judged.violations
        assert judged.layout is not None
        assert same_launch(judged.layout, ranked.layout, experts=facts_of(request.model).experts > 0)
    return len(found)


@pytest.mark.parametrize(("framework", "model", "fixed"), QUICK)
def test_a_found_plan_is_exported_and_checks_as_itself(framework, model, fixed, tmp_path_factory):
    words = {"model": model, "cluster": "dgx-h100:1", "global_batch": 32, "seq": 2048, "fixed": fixed}
    assert check_found(framework, words, tmp_path_factory)


@pytest.mark.deep
@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(
    model=st.sampled_from([DENSE, SPARSE, LATENT]),
    cluster=st.sampled_from(["dgx-h100:1", "dgx-a100:2", "gb200-nvl72:1"]),
    global_batch=st.sampled_from([32, 48, 64]),
    seq=st.sampled_from([2048, 4096]),
    fixed=st.sampled_from(PINS),
)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_found_plan_is_exported_and_checks_as_itself(framework, tmp_path_factory, **words):
    check_found(framework, words, tmp_path_factory)


@pytest.mark.parametrize("framework", ["bridge", "nemo"])
def test_a_plan_without_sharded_optimizer_stays_without_one(framework, tmp_path):
    words = {"model": DENSE, "cluster": "dgx-h100:1", "global_batch": 32, "seq": 2048, "fixed": ("tp=4", "zero=0")}
    request, found = layouts(words, Framework(framework))
    judged = checked(request, found[0], tmp_path / "plan")
    assert found[0].layout.first.dp * found[0].layout.first.cp > 1
    assert judged.layout.first.zero == 0


def test_positions_follow_the_sequence_where_the_framework_builds_them_so(tmp_path):
    """Megatron-Bridge and NeMo build as many positions as the sequence has tokens."""
    words = {"model": "gpt3_1_3b", "cluster": "dgx-h100:1", "global_batch": 32, "seq": 4096, "top": 1}
    request, found = layouts(words, Framework.BRIDGE)
    assert request.job.seq > request.model.learned_positions
    assert checked(request, found[0], tmp_path / "plan").legal

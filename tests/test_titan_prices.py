"""Launches of torchtitan are priced as they run: compiled or not, and with the parameters' own format."""

import pytest
from launch_words import priced_launch

from costmodels.precision import precision
from costmodels.software import RunText, software_for
from hardware.errors import InputError
from planner.evidence.measured import parse_run
from planner.evidence.validate import predict
from planner.export.launch import Planned, Site
from planner.export.torchtitan import export_torchtitan
from planner.ingest.torchtitan.command_line import read_torchtitan
from planner.ingest.torchtitan.switches import priced_as
from planner.launches.check import read_launch
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate
from planner.question import LaunchQuestion, Question, request_of

BATCH = ("--training.local_batch_size", "1", "--training.seq_len", "8192")


def launch(*arguments, cluster=""):
    asked = LaunchQuestion(
        framework="torchtitan", world=8, model="llama3_8b", cluster=cluster, arguments=(*BATCH, *arguments)
    )
    return priced_launch(asked) if cluster else read_launch(asked)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((), "torchtitan-eager"),
        (("--compile.enable",), ""),
        (("--compile.enable", "--compile.components", "loss"), "torchtitan-eager"),
        (("--compile.enable", "--compile.enable_async_tensor_parallel"), "torchtitan-async-tp"),
        (("--config", "deepseek_v3_16b"), "torchtitan-eager"),  # compiles its loss alone
    ],
)
def test_software_of_a_launch(arguments, name):
    assert priced_as(read_torchtitan((*BATCH, *arguments), world=8)) == name


def test_a_launch_that_does_not_compile_is_slower_and_says_so():
    plain, compiled = (launch(*more, cluster="dgx-h100") for more in ((), ("--compile.enable",)))
    assert plain.ranked.cost.step.total_s > 1.05 * compiled.ranked.cost.step.total_s
    assert "--compile.enable compiles it" in plain.judged.notes[0]
    assert not any("compile" in note for note in compiled.judged.notes)


def test_a_row_may_say_that_it_does_not_compile():
    assert not software_for(RunText(framework="torchtitan", notes="torch.compile off")).software.compiled


def test_parameters_of_16_bits_need_eight_bytes():
    judged = launch("--training.dtype", "bfloat16")
    recipe = precision("pure bf16")
    assert (judged.precision, judged.optimizer_bytes) == (recipe.name, recipe.moment_bytes) == ("bf16-pure", 4.0)
    assert recipe.weight_bytes + recipe.gradient_bytes + recipe.master_bytes + recipe.moment_bytes == 8.0
    assert launch().optimizer_bytes == 8.0


def test_a_plan_with_parameters_of_16_bits_reads_back():
    held = {}
    for recipe in ("bf16", "bf16-pure"):
        request = request_of(Question(model="llama3_8b", cluster="dgx-h100:1", seq=8192, global_batch=8,
                                      framework="torchtitan", precision=recipe, fixed=("zero=3",)))  # fmt: skip
        layout = layout_of(request, ExplicitLayout(zero=3))
        held[recipe] = dict(estimate(request, layout).cost.heaviest.components)["optimizer"]
        site = Site(hosts=("host0",), gpus_per_node=8)
        words = export_torchtitan(Planned(model=request.model, job=request.job, layout=layout, site=site)).arguments
        assert read_launch(LaunchQuestion(framework="torchtitan", world=8, arguments=words)).precision == recipe
    assert held["bf16-pure"] == pytest.approx(held["bf16"] / 2.0)


def test_frameworks_that_keep_masters_refuse_it():
    with pytest.raises(InputError, match="allowed: torchtitan, none"):
        request_of(Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=8192, precision="bf16-pure"))


@pytest.mark.parametrize(
    ("model", "setting", "measured_s"),
    [
        ("llama3_70b", {"n_gpus": "256", "dp": "32", "micro_batch_size": "16", "recompute": "full"}, (27.4, 25.1)),
        ("llama3_8b", {"n_gpus": "64", "dp": "8", "micro_batch_size": "12", "recompute": "selective"}, (2.81, 2.56)),
    ],
)
def test_asynchronous_tensor_parallelism_spares_the_copies_around_exchanges(model, setting, measured_s):
    """pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md; no constant is fitted to the copies."""
    found_s = []
    for notes in ("vanilla TP; torch.compile", "async TP; torch.compile"):
        row = {"id": notes, "framework": "torchtitan", "model": model, "hardware": "H100-96GB(500W)", "notes": notes}
        row |= {"tp": "8", "pp": "1", "seq_len": "8192", "zero": "3", "precision": "bf16", "sequence_parallel": "1"}
        row |= {"global_batch_size": str(int(setting["dp"]) * int(setting["micro_batch_size"])), **setting}
        found_s.append(predict(parse_run({**row, "gpus_per_node": "8"})).step_time_s)
    assert found_s == pytest.approx(measured_s, rel=0.05)
    assert found_s[0] - found_s[1] == pytest.approx(measured_s[0] - measured_s[1], rel=0.35)

"""What a user states of the software of a job: older releases, switches, and what is refused."""

from dataclasses import replace

import pytest

from costmodels.job import Dispatcher
from costmodels.software import software
from costmodels.software_words import STATED
from hardware.errors import InputError
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.layouts.request_notes import request_notes
from planner.planning import estimate
from planner.question import Question, question_from, question_of, request_of

DENSE = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=16, seq=8192)
MOE = Question(model="mixtral_8x7b", cluster="dgx-h100:2", global_batch=128, seq=2048)


def asked(question, *words, **changes):
    return request_of(replace(question, software=words, **changes))


def step_s(request, **degrees):
    return estimate(request, layout_of(request, ExplicitLayout(**degrees))).cost.step.total_s


def test_a_release_is_stated_by_its_preset():
    """Megatron-LM of 2022 has no fused attention and reduces gradients when all are there."""
    tools = asked(DENSE, "Megatron_2022").job.software
    assert tools == software("megatron-2022")
    assert step_s(asked(DENSE, "megatron-2022"), tp=2) > 1.2 * step_s(asked(DENSE), tp=2)


def test_software_that_keeps_other_states_has_its_own_recipe():
    """FSDP keeps the parameters in 32 bits and reduces gradients in them; other frameworks' presets go with none."""
    assert asked(DENSE, "automodel", framework="none").job.precision.name == "bf16-fsdp"
    assert asked(DENSE, framework="none").job.precision.name == "bf16"


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("grad-overlap=off", "grad_overlap", False),
        ("expert_overlap=on", "expert_overlap", True),
        ("graphed-experts=off", "graphed_experts", False),
        ("sync-each-batch=off", "sync_each_batch", False),
        ("dispatcher=DeepEP", "dispatcher", Dispatcher.DEEPEP),
        ("gradient_bytes=2", "gradient_bytes", 2.0),
        ("routing_imbalance=1.4", "routing_imbalance", 1.4),
        ("optimizer_offload_share=0.25", "optimizer_offload_share", 0.25),
    ],
)
def test_a_switch_changes_its_field_alone(word, field, value):
    assert asked(MOE, word).job.software == replace(asked(MOE).job.software, **{field: value})


def test_graphs_of_attention_alone_leave_the_experts_to_the_host():
    """Qwen3-30B on eight B200 in mxfp8 took 9.75 s with them (R0560), and is 8 s with whole iterations captured."""
    recipe = Question(
        model="qwen3_30b_a3b", cluster="dgx-b200:1", global_batch=512, seq=4096, framework="bridge", precision="mxfp8"
    )
    words = ("dispatcher=hybridep", "cuda_graphs=on")
    whole, parts = (
        step_s(asked(recipe, *words, *more), ep=8, micro_batch=4) for more in ((), ("graphed_experts=off",))
    )
    assert parts == pytest.approx(9.75, rel=0.05)
    assert whole < 0.87 * parts


@pytest.mark.parametrize(
    ("question", "words", "remark"),
    [
        (MOE, ("graphed_experts=off",), "graphed_experts changes nothing without CUDA graphs"),
        (MOE, ("graphed_experts=off", "cuda_graphs=on"), ""),
        (DENSE, ("graphed_experts=off",), "has no experts, graphed_experts changes nothing"),
        (DENSE, ("graphed_experts=off", "cuda_graphs=on"), "has no experts, graphed_experts changes nothing"),
    ],
)
def test_graphs_of_experts_without_graphs_or_experts_are_remarked(question, words, remark):
    notes = [note for note in request_notes(asked(question, *words)) if "changes nothing" in note]
    assert len(notes) == bool(remark)
    assert remark in "".join(notes)


def test_the_optimizers_states_are_the_jobs():
    """Adam in 8 bits: two bytes a parameter."""
    assert asked(DENSE, "optimizer_bytes=2").job == replace(asked(DENSE).job, optimizer_bytes=2.0)


def test_without_a_compiler_kernels_are_pytorchs_own():
    """As torchtitan's first tables ran; with it again, as its later ones."""
    eager = asked(DENSE, "compiled=off", framework="torchtitan").job.software
    first = software("torchtitan-eager")
    names = ("compiled", "fused_kernels", "fused_norms", "scripted")
    assert [getattr(eager, name) for name in names] == [getattr(first, name) for name in names]
    assert not asked(DENSE, "torchtitan-eager", "compiled=on", framework="torchtitan").job.software.scripted


def test_later_words_count_and_all_survive_their_request():
    words = ("megatron-2023", "grad_overlap=off", "grad_overlap=on")
    question = replace(DENSE, software=words)
    assert request_of(question).job.software == replace(software("megatron-2023"), grad_overlap=True)
    assert question_of(request_of(question)) == question
    data = {"model": "llama3_8b", "cluster": "dgx-h100:1", "global_batch": 16, "seq": 8192, "software": list(words)}
    assert question_from(data, "here") == question


def test_a_release_undoes_no_switch_wherever_it_stands():
    behind = asked(DENSE, "gradient_bytes=2", "optimizer_bytes=2", "megatron-2023").job
    assert behind == asked(DENSE, "megatron-2023", "gradient_bytes=2", "optimizer_bytes=2").job
    assert behind.software.gradient_bytes == 2.0


def test_switches_of_experts_are_remarked_where_a_model_has_none():
    told = "llama3_8b has no experts, dispatcher, routing_imbalance changes nothing"
    words = ("dispatcher=deepep", "compiled=on", "routing_imbalance=2")
    assert told in request_notes(asked(DENSE, *words))
    assert not [note for note in request_notes(asked(MOE, *words)) if "no experts" in note]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("megatron-2019",), "megatron-2021"),
        (("torchtitan",), "is of torchtitan, not of megatron"),
        (("compilde=off",), "compiled"),
        (("compiled=maybe",), "on, off"),
        (("dispatcher=nccl",), "alltoall, allgather, deepep, hybridep"),
        (("routing_imbalance=0.5",), "from 1 to 64"),
        (("routing_imbalance=nan",), "from 1 to 64"),
        (("gradient_bytes=two",), "from 1 to 8"),
        (("=on",), "is not known"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_is_allowed(words, told):
    with pytest.raises(InputError, match="--software") as error:
        asked(DENSE, *words)
    assert told in str(error.value)


def test_every_switch_is_a_field():
    fields = {*vars(asked(DENSE).job.software), "optimizer_bytes"}
    assert set(STATED) <= fields

"""Losses that are computed with the output matrix: published kernels' times and memory, launches, exports."""

from dataclasses import replace

import numpy as np
import pytest
from one_op import op_times

from costmodels.compute import default_efficiency
from costmodels.job import Software, TrainingJob
from costmodels.layout import Strategy
from costmodels.memory import logits_bytes
from costmodels.memory.layer import head_memory
from costmodels.precision import precision
from costmodels.software import RunText, software, software_for
from costmodels.table import StrategyTable, table_of
from costmodels.workload.architecture import Architecture
from costmodels.workload.layers import head_ops
from costmodels.workload.linear_loss import LinearLoss, linear_loss
from costmodels.workload.model import ModelSpec
from hardware.catalog import accelerator
from hardware.errors import InputError
from planner.choices import Loss
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.launches.check import check_launch, job_of_launch, read_launch
from planner.layouts.build import uniform_layout
from planner.layouts.request_notes import request_notes
from planner.losses import loss_of, said_loss, with_loss
from planner.question import LaunchQuestion, Question, job_of, question_of, request_of
from planner.report.launch import EXPORTERS
from planner.request import Framework
from planner.rules.mask import legal_mask
from planner.rules.verdict import broken_rules

MIB = 2.0**20
LLAMA = Architecture(layers=1, hidden=4096, vocab=128256, heads=32, kv_heads=8, ffn=14336).build("llama")
PLAIN = Software(name="", framework="", gradient_bytes=1.0)
LIGER_0_4_2 = replace(
    linear_loss("liger"), logit_bytes=8.0, logit_traffic_bytes=28.0, weight_bytes=2.0, weight_pass_bytes=2.0
)
"""Before 0.6.2: a chunk's logits pass fp32 and are scaled in kernels of their own, the product is added as it is
written (ops/fused_linear_cross_entropy.py, tag v0.4.2)."""
LIGER_RUNS = {4096: (121.43, 4245.55), 8192: (166.71, 4466.97), 16384: (277.12, 4910.44), 32768: (511.06, 5794.63)}
"""Tokens: forward and backward [ms], peak [MiB]. linkedin/Liger-Kernel benchmark/data/all_benchmark_data.csv,
fused_linear_cross_entropy on A100-SXM4-80GB, version 0.4.2, width 4096, vocabulary 128256."""
TITAN = ("--module", "llama3", "--config", "llama3_8b")


def one(micro_batch: int = 1, **strategy: int) -> StrategyTable:
    return table_of([Strategy(**strategy)], pp=[1], micro_batch=[micro_batch])


def job(tokens: int, loss: LinearLoss | None, **software_fields: object) -> TrainingJob:
    used = replace(PLAIN, linear_loss=loss, **software_fields)  # type: ignore[arg-type]
    return TrainingJob(global_batch=1, seq=tokens, precision=precision("bf16"), software=used)


def head_ms(tokens: int, loss: LinearLoss | None, model: ModelSpec = LLAMA, part: str = "a100-sxm-80gb") -> float:
    """Product and loss, forward and backward, without the norm."""
    asked = job(tokens, loss)
    total = 0.0
    for op in head_ops(model, linear_loss=loss)[1:]:
        times = op_times(op, asked, one(), accelerator(part), efficiency=default_efficiency())
        total += float((times.forward_s + times.backward_s)[0])
    return 1e3 * total


def head_bytes(tokens: int, loss: LinearLoss | None, model: ModelSpec = LLAMA) -> float:
    memory = head_memory(model, job(tokens, loss), one())
    return float((memory.kept + memory.working)[0])


@pytest.mark.parametrize("tokens", LIGER_RUNS)
def test_liger_takes_what_its_benchmark_took(tokens):
    assert head_ms(tokens, LIGER_0_4_2) == pytest.approx(LIGER_RUNS[tokens][0], rel=0.07)


def test_liger_holds_a_token_as_its_benchmark_did():
    """The input of the norm, 8,192 bytes a token, is not in the benchmark."""
    low, high = min(LIGER_RUNS), max(LIGER_RUNS)
    published = (LIGER_RUNS[high][1] - LIGER_RUNS[low][1]) * MIB / (high - low)
    ours = (head_bytes(high, LIGER_0_4_2) - head_bytes(low, LIGER_0_4_2)) / (high - low) - 2 * 4096
    assert ours == pytest.approx(published, rel=0.001)


def test_cut_cross_entropy_takes_what_was_measured():
    """github.com/huggingface/trl pull 6858: 92.55 and 23.18 ms for 16384 and 4096 tokens, width 2048, on an H100."""
    model = Architecture(layers=1, hidden=2048, vocab=248320, heads=16, ffn=4096).build("wide vocabulary")
    for tokens, measured_ms in ((16384, 92.55), (4096, 23.18)):
        assert head_ms(tokens, linear_loss("cut"), model, "h100-sxm-80gb") == pytest.approx(measured_ms, rel=0.06)


def test_a_product_that_runs_again_takes_a_third_more():
    once, again = (replace(linear_loss("cut"), recomputed=recomputed) for recomputed in (False, True))
    assert head_ms(32768, again) == pytest.approx(4.0 / 3.0 * head_ms(32768, once), rel=0.05)


def test_liger_cuts_as_many_chunks_as_widths():
    """Llama 3: 32 widths in the vocabulary; 128 tokens a chunk of 4096, as the kernel's own comment counts."""
    parts = linear_loss("liger").token_parts(np.array([4096.0, 100.0, 1.0]), 128256.0, 4096)
    assert parts.tolist() == [32.0, 25.0, 1.0]


def test_logits_fall_to_a_chunk():
    whole, chunked = (logits_bytes(LLAMA, job(8192, loss), one()) for loss in (None, linear_loss("chunked")))
    assert [float((all_of / part)[0]) for all_of, part in zip(whole, chunked, strict=True)] == [8.0, 8.0]
    assert float(logits_bytes(LLAMA, job(8192, linear_loss("linear")), one(tp=2))[0][0]) == 2.0 * 8192 * 64128 / 21


def test_whole_logits_are_those_of_no_chunks():
    """One chunk of the framework's own kernels holds what whole logits hold, beside the two gradients."""
    single = replace(linear_loss("chunked"), chunks=1, hidden_bytes=0.0, weight_bytes=0.0)
    assert head_bytes(8192, single) == pytest.approx(head_bytes(8192, None))


def test_an_unknown_loss_is_named():
    with pytest.raises(InputError, match="allowed: chunked, liger, linear, cut"):
        linear_loss("ligor")
    with pytest.raises(
        InputError, match="--loss liger with framework megatron; allowed: default, whole, fused, linear"
    ):
        loss_of("liger", Framework.MEGATRON)


def test_every_choice_is_told_back():
    for loss in Loss:
        if loss is not Loss.DEFAULT:
            assert said_loss(with_loss(PLAIN, loss)) is loss


def test_a_question_keeps_its_loss():
    asked = Question(model="llama32_1b", cluster="dgx-h100:1", global_batch=8, seq=4096, framework="torchtitan")
    for word in ("default", "whole"):
        request = request_of(replace(asked, loss=word))
        assert question_of(request).loss == word
        assert (request.job.software.linear_loss is None) == (word == "whole")


def test_measured_runs_with_liger_are_priced_with_it():
    found = software_for(RunText(framework="TRL", notes="Liger kernels")).software
    assert found.linear_loss == linear_loss("liger")
    assert found.fused_norms
    assert found.fused_kernels


def test_a_plan_with_ligers_loss_has_its_other_kernels():
    modules = software("deepspeed-modules")
    assert not modules.fused_norms
    asked = with_loss(modules, Loss.LIGER)
    assert asked.fused_norms
    assert asked.fused_kernels
    assert not with_loss(modules, Loss.CUT).fused_kernels  # Axolotl's cut_cross_entropy is the loss alone
    assert software("torchtitan").linear_loss is None  # its measured runs are older


def launch(framework: str, *words: str, model: str = "") -> LaunchQuestion:
    return LaunchQuestion(framework=framework, world=8, arguments=words, model=model)


def loss_read(question: LaunchQuestion) -> LinearLoss | None:
    judged = read_launch(question)
    assert judged.legal
    assert judged.proposal is not None
    return job_of_launch(judged, judged.proposal).software.linear_loss


def test_torchtitan_says_how_many_chunks():
    uncaptured = "--training.disable_cuda_graphs"
    assert loss_read(launch("torchtitan", *TITAN, uncaptured)) == linear_loss("chunked")
    four = loss_read(launch("torchtitan", *TITAN, uncaptured, "--loss.num-chunks", "4"))
    assert four is not None
    assert four.chunks == 4
    assert loss_read(launch("torchtitan", *TITAN, uncaptured, "--loss.num_chunks=1")) is None
    assert loss_read(launch("torchtitan", "--model.name", "llama3", "--model.flavor", "8B")) is None


def test_chunks_that_do_not_divide_the_sequence_are_refused():
    judged = check_launch(launch("torchtitan", *TITAN, "--loss.num_chunks", "6")).judged
    assert [violation.rule for violation in judged.violations] == ["torchtitan-loss-chunks"]
    assert "--loss.num_chunks 2" in judged.violations[0].message


CP = (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("loss", ["default", "whole"])
@pytest.mark.parametrize("seq", [8192, 8224, 4104, 100])
def test_a_search_keeps_layouts_whose_tokens_divide_into_the_chunks(seq, loss):
    """The rank's own part of the sequence in 8 parts (torchtitan: ``torch._check``); tp does not divide it."""
    asked = Question(model="llama3_8b", cluster="dgx-h100:4", global_batch=32, seq=seq, framework="torchtitan")
    request = request_of(replace(asked, loss=loss))
    grids = [Strategy(cp=cp, tp=2, dp=1, zero=3, sequence_parallel=seq % (2 * cp) == 0) for cp in CP]
    table = table_of(grids, pp=[1] * len(CP), micro_batch=[1] * len(CP))
    refused = dict(legal_mask(Framework.TORCHTITAN, table, request.model, request.job).counts)
    whole = [cp for cp in CP if seq % (2 * cp) == 0 or cp == 1]  # the others break the rule on pieces of a sequence
    uneven = [cp for cp in whole if seq // cp % 8] if loss == "default" else []
    assert refused.get("torchtitan-loss-chunks", 0) == len(uneven)
    for cp, grid in zip(CP, grids, strict=True):
        layout = uniform_layout(grid, [(32,)], micro_batch=1, num_microbatches=32)
        rules = [violation.rule for violation in broken_rules(layout, request)]
        assert ("torchtitan-loss-chunks" in rules) == (loss == "default" and seq // cp % 8 > 0)


@pytest.mark.parametrize(
    ("framework", "loss", "told"),
    [
        ("torchtitan", "default", ""),
        ("torchtitan", "chunked", ""),
        ("torchtitan", "whole", "whole, on all logits of a micro-batch; plans for torchtitan usually have chunked"),
        ("deepspeed", "liger", "liger, part by part with the output matrix; plans for deepspeed usually have whole"),
        ("none", "fused", "fused, on all logits of a micro-batch, by one kernel; plans usually have whole"),
        ("bridge", "fused", ""),
    ],
)
def test_an_answer_says_a_loss_that_is_not_the_usual_one(framework, loss, told):
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=4096, framework=framework, loss=loss)
    notes = [note for note in request_notes(request_of(asked)) if note.startswith("loss as stated")]
    assert notes == ([f"loss as stated: {told}"] if told else [])


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--use_liger_kernel", "true"), "liger"),
        (("--enable_liger_kernel", "True"), "liger"),
        (("--use_liger_kernel", "false"), ""),
        (("--cut_cross_entropy", "true"), "cut"),
        ((), ""),
    ],
)
def test_trainers_on_deepspeed_say_their_loss(tmp_path, words, name):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}')
    found = loss_read(replace(launch("deepspeed", *words, model="llama3_8b"), file=tmp_path / "ds.json"))
    assert (found.name if found else "") == name


def test_megatron_says_whose_fused_loss():
    sizes = ("--num-layers", "4", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "512")
    common = (*sizes, "--max-position-embeddings", "512", "--micro-batch-size", "1", "--bf16", "--vocab-size", "1024")
    fused = "--cross-entropy-loss-fusion"
    for words, wanted in (
        ((), False),
        ((fused,), False),
        ((fused, "--cross-entropy-fusion-impl", "te"), True),
    ):
        judged = read_launch(replace(launch("megatron", *common, *words), version="0.17"))
        assert judged.proposal is not None
        assert job_of_launch(judged, judged.proposal).software.fused_loss is wanted


def test_exports_say_the_loss_or_refuse_it():
    model = request_of(Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=4096)).model
    layout = uniform_layout(Strategy(dp=8, zero=3), [(32,)], micro_batch=1, num_microbatches=1)
    site = Site(hosts=("one",), gpus_per_node=8)

    def words(framework: Framework, loss: Loss, seq: int = 4096) -> tuple[str, ...]:
        asked = job_of(framework, "bf16", global_batch=8, seq=seq)
        asked = replace(asked, software=with_loss(asked.software, loss))
        return EXPORTERS[framework.value](Planned(model=model, job=asked, layout=layout, site=site)).arguments

    for loss, chunks in ((Loss.DEFAULT, "8"), (Loss.WHOLE, "1")):
        said = words(Framework.TORCHTITAN, loss)
        assert said[said.index("--loss.num_chunks") + 1] == chunks
    with pytest.raises(InputError, match="4100 tokens of a sequence do not divide into the 8 chunks"):
        words(Framework.TORCHTITAN, Loss.DEFAULT, seq=4100)
    for framework in (Framework.MEGATRON, Framework.BRIDGE, Framework.NEMO, Framework.DEEPSPEED, Framework.GALVATRON):
        with pytest.raises(
            InputError, match=r"loss (linear|liger) cannot be said to .*; allowed: a plan with --loss whole"
        ):
            words(framework, Loss.LIGER if framework is Framework.DEEPSPEED else Loss.LINEAR)


def test_a_loss_that_the_software_states_is_no_other():
    asked = Question(model="llama32_1b", cluster="dgx-h100:1", global_batch=8, seq=4096, software=("fused_loss=on",))
    request = request_of(asked)
    assert request.job.software.fused_loss
    assert question_of(request) == asked


def test_a_fused_loss_that_is_stated_is_on_whole_logits_and_no_second_loss_stands_beside_it():
    """torchtitan chunks its loss; fused and chunked at once was priced below either."""
    asked = Question(
        model="llama32_1b",
        cluster="dgx-h100:1",
        global_batch=8,
        seq=4096,
        framework="torchtitan",
        software=("fused_loss=on",),
    )
    request = request_of(asked)
    assert said_loss(request.job.software) is Loss.FUSED
    assert question_of(request) == asked
    with pytest.raises(InputError, match=r"--loss whole and --software fused_loss: both state .*; allowed: one of"):
        request_of(replace(asked, loss="whole"))


@pytest.mark.parametrize(
    ("framework", "loss", "told"),
    [
        ("megatron", "fused", "take --loss whole, an export with --framework-version 0.17, or --framework bridge"),
        ("megatron", "linear", "no release of Megatron-LM has the loss linear: take --loss whole"),
        ("megatron", "whole", ""),
        ("bridge", "fused", ""),
        ("none", "fused", ""),
    ],
)
def test_an_answer_says_that_todays_framework_refuses_a_loss_and_what_it_takes(framework, loss, told):
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=4096, framework=framework, loss=loss)
    notes = [note for note in request_notes(request_of(asked)) if "take --loss whole" in note]
    assert len(notes) == bool(told)
    assert all(note.endswith(told) for note in notes)

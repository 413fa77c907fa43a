"""An encoder with a decoder that attends to it (T5, BART): products, what is kept, which layouts and who runs it."""

import pytest

from costmodels.exchange.volumes import tensor_widths
from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import flops_per_token, parameter_count
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import LayerKind, ModelSpec
from costmodels.workload.op import kept
from costmodels.workload.presets import model
from hardware.catalog import cluster
from hardware.errors import InputError
from planner.export.megatron_model import model_arguments
from planner.export.plan_checks import other_mixers
from planner.planning import plan
from planner.question import job_of
from planner.request import Framework, PlanRequest
from planner.rules.proposal import Proposal, facts_of
from planner.rules.verdict import check

WIDTH, HEADS, DIM, FFN, VOCAB, SEQ = 64, 4, 24, 96, 512, 32
SIZES = {"d_model": WIDTH, "num_heads": HEADS, "d_kv": DIM, "d_ff": FFN, "vocab_size": VOCAB}


def build(**fields: object) -> ModelSpec:
    config = {"model_type": "t5", **SIZES, "num_layers": 2, "num_decoder_layers": 3, **fields}
    return from_config(config, name="x", where="config.json")


def test_products_of_both_stacks() -> None:
    """The encoder and attention to it see whole matrices of scores, the decoder's own attention half of one."""
    projections = 2 * 4 * WIDTH * HEADS * DIM
    scores = 2 * 2 * HEADS * DIM * SEQ
    ffn = 2 * 2 * WIDTH * FFN
    encoder, decoder = projections + scores + ffn, 2 * projections + scores / 2 + scores + ffn
    assert flops_per_token(build(), SEQ) == pytest.approx(3 * (2 * encoder + 3 * decoder + 2 * WIDTH * VOCAB))


def test_output_of_the_encoder_is_kept_once() -> None:
    stacks = build()
    kinds = [kind for kind in stacks.layer_kinds() if isinstance(kind, LayerKind)]
    outputs = [op for kind in kinds for op in layer_ops(kind, stacks) if op.name == "encoder_output"]
    assert [kept(op).elements_per_token for op in outputs] == [WIDTH]
    reads = [op for kind in kinds for op in layer_ops(kind, stacks) if op.name == "cross_kv"]
    assert [(kept(op).elements_per_token, kept(op).shared_input_elements_per_token) for op in reads] == [(0, WIDTH)] * 3
    assert tensor_widths(kinds[-1], WIDTH).gathers == (WIDTH,) * 4  # attention, its input and the encoder's, ffn


def test_biases_of_positions_stand_in_the_first_layers_or_in_all() -> None:
    names = [kind.name for kind in build().layer_kinds()]
    assert names[:3] == ["first encoder+dense", "last encoder+dense", "first decoder+dense"]
    assert names[3:] == ["decoder+dense", "decoder+dense"]
    total = {kind: parameter_count(build(model_type=kind, feed_forward_proj="relu")).total for kind in ("t5", "umt5")}
    assert total["umt5"] - total["t5"] == 3 * 32 * HEADS  # three layers more have the 32 buckets


def test_pipelines_and_context_parallelism_are_refused() -> None:
    facts = facts_of(build())
    assert facts.encoder_layers == 2

    def broken(**degrees: int) -> list[str]:
        found = Proposal(world=8, global_batch=8, micro_batch=1, seq=SEQ, model=facts, **degrees)
        return [violation.rule for violation in check(found, Framework.NONE)]

    assert broken(tp=2) == []
    assert broken(pp=2) == ["encoder-pp"]
    assert broken(cp=2) == ["encoder-cp"]


def test_a_plan_has_one_stage() -> None:
    """T5 on four GPUs: no layout with a pipeline or context parallelism is offered."""
    job = job_of(Framework.NONE, "bf16", global_batch=4, seq=128)
    request = PlanRequest(model=model("t5_small"), cluster=cluster("hgx-a100-4:1"), job=job, framework=Framework.NONE)
    found = plan(request)
    layouts = [ranked.layout for ranked in found.layouts]
    assert layouts
    assert {(layout.pp, layout.first.cp) for layout in layouts} == {(1, 1)}


def test_exports_name_the_decoder() -> None:
    part = "a decoder that attends to an encoder"
    assert other_mixers(build()) == (part,)
    with pytest.raises(InputError, match=f"Megatron-LM has no flag for {part}"):
        model_arguments(build(), 512)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bart", "decoder_ffn_dim": 64}, "decoder_ffn_dim: 64 .*encoder_ffn_dim = 4096"),
        ({"model_type": "longt5", "encoder_attention_type": "transient-global"}, "summaries of blocks"),
        ({"model_type": "switch_transformers", "num_sparse_decoder_layers": 13}, "num_sparse_decoder_layers: 13"),
    ],
)
def test_other_stacks_are_refused_by_what_they_have(config: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_config(config, name="x", where="config.json")


def test_an_encoder_leaves_layers_for_its_decoder() -> None:
    facts = Architecture(layers=2, hidden=64, vocab=64, heads=4, ffn=64, encoder_layers=2)
    with pytest.raises(InputError, match=r"encoder_layers: 2 of 2; .*a decoder attends"):
        facts.build("x")

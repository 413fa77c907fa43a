"""Mamba-1 (Jamba), Mamba-2 beside attention (Falcon-H1), lightning attention (MiniMax): sizes, products, refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.exchange.volumes import context_widths, tensor_widths
from costmodels.workload.counts import flops_per_token, parameter_count
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import Attention, LayerKind, ModelSpec, SelectiveScan, SideBySide, StateSpace
from costmodels.workload.op import Split, kept
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.deepspeed_model import left_open
from planner.export.megatron_model import model_arguments
from planner.export.plan_checks import other_mixers
from planner.layouts.grids import attention_heads
from planner.rules.proposal import facts_of

SMALL: list[dict[str, Any]] = json.loads((Path(__file__).parent / "reference" / "huggingface_small.json").read_text())[
    "models"
]
WIDTHS = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SEQ = 32
ATTENTION = 2 * 64 * (4 + 2 + 2 + 4) * 16 + 2 * 4 * 2 * 16 * SEQ / 2  # four projections; scores and values, half masked
DENSE = 2 * 3 * 64 * 96
HEAD = 2 * 64 * 512


def build(model_type: str, **fields: object) -> ModelSpec:
    return from_config({"model_type": model_type, **WIDTHS, **fields}, name="x", where="config.json")


@pytest.mark.parametrize(
    "number", range(len(SMALL)), ids=lambda number: f"{SMALL[number]['config']['model_type']}-{number}"
)
def test_parameters_are_those_of_the_class(number: int) -> None:
    built = from_config(SMALL[number]["config"], name="x", where="config.json")
    assert parameter_count(built).total == SMALL[number]["parameters"]


def test_products_of_jamba() -> None:
    inner, rank, state = 128, 4, 16
    mamba = 2 * (64 * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * 64) + 7 * inner * state
    jamba = build("jamba", num_experts=4, num_experts_per_tok=2)
    forward = 7 * mamba + ATTENTION + 4 * DENSE + 4 * 2 * DENSE + HEAD
    assert flops_per_token(jamba, SEQ) == pytest.approx(3 * forward)
    assert [kind.name for kind in jamba.layer_kinds()][3:6] == ["mamba1+moe", "attention+dense", "mamba1+moe"]


def test_products_of_falcon_h1() -> None:
    inner, state, heads = 96, 16, 6
    falcon = build("falcon_h1", mamba_d_ssm=inner, mamba_n_heads=heads, mamba_d_state=state)
    mamba = 2 * (64 * (2 * inner + 2 * state + heads) + inner * 64) + 7 * inner * state
    assert flops_per_token(falcon, SEQ) == pytest.approx(3 * (8 * (ATTENTION + mamba + DENSE) + HEAD))


def test_products_of_minimax() -> None:
    lightning = 2 * 64 * 4 * 64 + 2 * 64 * 64 + 4 * 4 * 16**2
    minimax = build("minimax", num_local_experts=4, num_experts_per_tok=2)
    assert flops_per_token(minimax, SEQ) == pytest.approx(3 * (4 * lightning + 4 * ATTENTION + 8 * 2 * DENSE + HEAD))


def test_products_of_lfm2() -> None:
    """A short convolution is two products: three times the width, and back."""
    lfm = build("lfm2", layer_types=["conv", "full_attention"] * 4, block_auto_adjust_ff_dim=False)
    convolution = 2 * (64 * 3 * 64 + 64 * 64)
    assert flops_per_token(lfm, SEQ) == pytest.approx(3 * (4 * convolution + 4 * ATTENTION + 8 * DENSE + HEAD))
    assert "short convolutions" in left_open(lfm)
    with pytest.raises(InputError, match="Megatron-LM has no flag for short convolutions"):
        model_arguments(lfm, SEQ)


def test_products_of_ring_linear() -> None:
    """Lightning attention in four layers of five; what is left behind the last group is full."""
    sizes = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "num_shared_experts": 1}
    ring = build("bailing_moe_linear", **sizes, layer_group_size=5, first_k_dense_replace=8, num_hidden_layers=8)
    lightning = 2 * 64 * 4 * 64 + 2 * 64 * 64 + 4 * 4 * 16**2
    assert [kind.name[:4] for kind in ring.layer_kinds()] == ["ligh"] * 4 + ["atte"] * 4
    assert flops_per_token(ring, SEQ) == pytest.approx(3 * (4 * lightning + 4 * ATTENTION + 8 * DENSE + HEAD))


def test_products_of_gemma_3n() -> None:
    """Beside a block: a low-rank product, a gated embedding of the layer's own, and matrices of the other streams."""
    sizes = {"head_dim": 16, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
    gemma = build("gemma3n_text", **sizes, vocab_size_per_layer_input=480)
    layer = ATTENTION + DENSE + 2 * 2 * 64 * 4 + 2 * 2 * 64 * 8
    ends = 2 * 64 * 8 * 8 + 2 * 2 * 3 * 64 * 64 + HEAD  # the layers' embeddings are products of the embedding too
    assert flops_per_token(gemma, SEQ) == pytest.approx(3 * (8 * layer + ends))
    assert gemma.residual == 4 * 64
    with pytest.raises(InputError, match=r"Megatron-LM has no flag for residual streams that one of them corrects"):
        model_arguments(gemma, SEQ)
    with pytest.raises(InputError, match="intermediate_size"):
        build("gemma3n_text", **sizes, intermediate_size=[96] * 7 + [64])


def test_presets_of_gemma_3n_have_every_parameter() -> None:
    """Gemma3nForCausalLM of Transformers 5.24.0 on the meta device, with the sizes of both models."""
    assert parameter_count(model("gemma3n_e4b")).total == 6_835_235_568
    assert parameter_count(model("gemma3n_e2b")).total == 4_435_182_688


def test_windowed_layers_may_have_other_heads() -> None:
    types = ["full_attention", *["sliding_attention"] * 3] * 2
    sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "share_expert_dim": 32}
    step = build("step3p5", **sizes, head_dim=16, layer_types=types, sliding_window=16, num_sliding_attention_heads=6)
    heads = [kind.mixer.heads for kind in step.layer_kinds() if isinstance(kind.mixer, Attention)]
    assert heads == [4, 6, 6, 6] * 2
    assert attention_heads(step) == 2  # divisor of both


def test_experts_of_switch_transformers_stand_in_the_second_layer_of_a_period() -> None:
    """Sizes of google/switch-base-128: the class counts 7.4 billion parameters."""
    sizes = {"num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "num_experts": 128, "d_ff": 3072}
    base = from_config({"model_type": "switch_transformers", **sizes}, name="x", where="config.json")
    experts = [index for index, kind in enumerate(base.layer_kinds()) if kind.name.endswith("moe")]
    assert experts == [*range(1, 12, 2), *range(13, 24, 2)]
    assert parameter_count(base).total == 7_415_217_408


LATENT = {"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
ROUTED = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


def test_products_of_kimi_linear() -> None:
    """A state of keys times values decays, is corrected, takes a product and is read; gates come through a latent."""
    kimi = build("kimi_linear", **LATENT, **ROUTED, num_experts=8, linear_num_heads=4, linear_head_dim=16)
    projections = 2 * 64 * (3 * 64 + 4) + 2 * 2 * (64 * 16 + 16 * 64) + 2 * 64 * 64
    delta = projections + 2 * 4 * 3 * 64 + 8 * 4 * 16 * 16
    latent = 2 * (64 * 4 * 24 + 64 * (24 + 8) + 24 * 4 * (16 + 12) + 4 * 12 * 64) + 2 * 4 * (24 + 12) * SEQ / 2
    experts = 2 * 3 * 64 * 32 * (2 + 1)
    assert [kind.name[:5] for kind in kimi.layer_kinds()].count("delta") == 7
    assert flops_per_token(kimi, SEQ) == pytest.approx(3 * (7 * delta + latent + DENSE + 7 * experts + HEAD))


def test_a_layer_of_longcat_stands_as_two_and_its_idle_experts_cost_a_score() -> None:
    sizes = {"ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "n_routed_experts": 8, "moe_topk": 3}
    words = {
        **LATENT,
        **sizes,
        "q_lora_rank": 20,
        "num_layers": 2,
        "num_hidden_layers": None,
        "intermediate_size": None,
    }
    plain, idle = (build("longcat_flash", **words, zero_expert_num=number) for number in (0, 4))
    assert [kind.name for kind in idle.layer_kinds()] == ["attention+moe", "attention+dense"] * 2
    assert parameter_count(idle).total - parameter_count(plain).total == 2 * 4 * 64  # rows of two routers
    assert flops_per_token(plain, SEQ) - flops_per_token(idle, SEQ) == pytest.approx(3 * 2 * 2 * 3 * 64 * 32)  # 2 of 3
    assert ["experts that compute nothing" in left_open(built) for built in (plain, idle)] == [False, True]


def test_listed_layers_of_mimo_are_those_of_its_class() -> None:
    sizes = {**ROUTED, "n_routed_experts": 8, "head_dim": 24, "v_head_dim": 16, "sliding_window": 16}
    numbered = build(
        "mimo_v2_flash",
        **sizes,
        swa_num_key_value_heads=4,
        hybrid_layer_pattern=[0, 1, 1, 1, 1, 0, 1, 1],
        moe_layer_freq=[0, 1, 1, 1, 1, 1, 1, 1],
    )
    assert numbered.runs == build("mimo_v2_flash", **sizes).runs
    full, windowed = (kind.mixer for kind in (numbered.kinds()[0], numbered.kinds()[1]) if isinstance(kind, LayerKind))
    assert isinstance(full, Attention)
    assert isinstance(windowed, Attention)
    assert (full.kv_heads, full.sinks, windowed.kv_heads, windowed.sinks) == (2, False, 4, True)


def test_minimax_m3_attends_to_the_blocks_that_its_indexer_chooses() -> None:
    """Queries of 4 heads and one key for all, a norm on each, no weights: blocks of 4 keys in sparse layers."""
    freq = {"sparse_attention_freq": [0, 0, 0, 1, 1, 1, 1, 1]}
    table = {
        **freq,
        "sparse_index_dim": 8,
        "sparse_num_index_heads": 4,
        "sparse_block_size": 4,
        "sparse_topk_blocks": 2,
    }
    words = {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "shared_intermediate_size": 96}
    listed = {"moe_layer_freq": freq["sparse_attention_freq"], "dense_intermediate_size": 128}
    sparse = build("minimax_m3", **words, **listed, sparse_attention_config=table)
    plain = build("minimax_m3", **words, **listed)
    assert parameter_count(sparse).total - parameter_count(plain).total == 5 * (64 * 5 * 8 + 2 * 8)
    assert [run.kind.name for run in sparse.runs] == ["attention+dense", "indexed+moe"]
    windows = [kind.mixer.window for kind in sparse.kinds() if isinstance(kind, LayerKind) and kind.mixer]
    assert windows == [0, 8]


def test_step_3_is_its_preset() -> None:
    step = {
        "model_type": "step3_text",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "vocab_size": 128815,
        "moe_layers_enum": ",".join(map(str, range(4, 60))),
        "num_attention_heads": 64,
        "num_attention_groups": 1,
        "head_dim": 256,
        "share_q_dim": 2048,
        "moe_num_experts": 48,
        "moe_top_k": 3,
        "moe_intermediate_size": 5120,
        "share_expert_dim": 5120,
    }
    read = from_config({"model_type": "step3_vl", "text_config": step}, name="x", where="config.json")
    assert read.runs == model("step3_321b").runs


def test_ling_is_its_preset() -> None:
    ling = {
        "model_type": "bailing_moe_v2",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 20,
        "vocab_size": 157184,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 256,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 1,
    }
    assert from_config(ling, name="x", where="config.json").runs == model("ling_mini_16b").runs


def test_old_and_new_files_of_minimax_state_the_same_layers() -> None:
    listed = build("minimax_text_01", attn_type_list=[0] * 7 + [1], num_local_experts=4, num_experts_per_tok=2)
    typed = build(
        "minimax", layer_types=["linear_attention"] * 7 + ["full_attention"], num_local_experts=4, num_experts_per_tok=2
    )
    assert listed.runs == typed.runs
    assert [run.count for run in listed.runs] == [7, 1]


def test_mixers_side_by_side_keep_one_input_and_share_its_gather() -> None:
    falcon = build("falcon_h1", mamba_d_ssm=96, mamba_n_heads=6)
    kind = next(falcon.layer_kinds())
    assert isinstance(kind, LayerKind)
    assert isinstance(kind.mixer, SideBySide)
    assert tensor_widths(kind, 64).gathers == (64, 64)  # one for the mixers, one for the feed-forward part
    inputs = [op for op in layer_ops(kind, falcon) if op.name in ("qkv", "in_proj")]
    assert [kept(op).elements_per_token for op in inputs] == [64.0, 0.0]
    both, attention, state = (context_widths(mixers) for mixers in (kind.mixers, kind.mixers[:1], kind.mixers[1:]))
    assert both.before == attention.before + state.before
    assert not both.ring
    assert attention.ring
    facts = facts_of(falcon)
    assert (facts.heads, facts.kv_heads, facts.state_heads, facts.state_groups) == (4, 2, 6, 1)
    assert attention_heads(falcon) == 4


def test_a_layer_side_by_side_has_the_parameters_of_both_mixers() -> None:
    beside = build("falcon_h1", mamba_d_ssm=96, mamba_n_heads=6, mamba_rms_norm=True)
    kind = next(beside.layer_kinds())
    assert isinstance(kind, LayerKind)
    alone = []
    for mixer in kind.mixers:
        assert isinstance(mixer, Attention | StateSpace)
        inner = mixer.heads * mixer.head_dim if isinstance(mixer, StateSpace) else 0
        ops = layer_ops(replace(kind, mixer=mixer, norm_parameters=2 * 64 + inner), beside)
        alone.append(sum(op.parameters for op in ops))
    shared = 2 * 64 + 3 * 64 * 96  # norms and feed-forward part
    assert sum(op.parameters for op in layer_ops(kind, beside)) == sum(alone) - shared


def test_all_channels_of_mamba_1_are_reduced_over_tp() -> None:
    kind = next(build("jamba", num_experts=1).layer_kinds())
    assert isinstance(kind, LayerKind)
    assert isinstance(kind.mixer, SelectiveScan)
    assert tensor_widths(kind, 64).reductions == (4 + 2 * 16, 64, 64)
    split = {op.name: op.split for op in layer_ops(kind, build("jamba", num_experts=1))}
    assert (split["x_proj"], split["dt_proj"], split["scan"]) == (Split.ROW, Split.COLUMN, Split.HEADS)


def test_scans_write_no_scores() -> None:
    jamba = build("jamba", num_experts=1)
    for kind in jamba.kinds():
        ops = layer_ops(kind, jamba, flash_attention=False)
        scores = sum(kept(op).elements_per_score for op in ops)
        assert np.isclose(scores, 1.0 if "attention" in kind.name else 0.0)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("jamba_v0_1", "Mamba-1"),
        ("mamba_2_8b", "Mamba-1"),
        ("falcon_h1_34b", "attention and Mamba-2 side by side in a layer"),
        ("minimax_text_01", "lightning attention"),
        ("kimi_linear_48b_a3b", "a delta rule with a decay for every channel"),
    ],
)
def test_frameworks_are_told_which_part_they_lack(name: str, part: str) -> None:
    built = model(name)
    assert other_mixers(built) == (part,)
    assert part in left_open(built)
    with pytest.raises(InputError, match=f"Megatron-LM has no flag for {part}"):
        model_arguments(built, 4096)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "jamba", "attn_layer_offset": 8}, "attn_layer_offset: 8 is not accepted.*0 to 7"),
        ({"model_type": "falcon_h1", "mamba_n_heads": 7}, "mamba_n_heads: 7 .*mamba_d_ssm = 1024"),
        ({"model_type": "falcon_h1", "projectors_bias": True}, "projectors_bias: True .*mamba_proj_bias"),
        ({"model_type": "minimax", "attn_type_list": [0, 1]}, "attn_type_list: '2 entries'.*num_hidden_layers = 8"),
        ({"model_type": "minimax", "layer_types": ["lightning"]}, "layer_types: 'lightning'.*linear_attention"),
        ({"model_type": "minimax", "shared_intermediate_size": 64}, "shared_intermediate_size: 64.*no shared expert"),
        ({"model_type": "mamba", "time_step_rank": 0}, "time_step_rank: 0"),
        (
            {
                "model_type": "kimi_linear",
                "mla_use_output_gate": True,
                "linear_attn_config": {"use_full_rank_gate": True},
            },
            "use_full_rank_gate, mla_use_output_gate add parameters",
        ),
        ({"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [9]}}, "full_attn_layers: 9.*1 to 8"),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 2]}, "hybrid_layer_pattern: 2 .*0, 1"),
        ({"model_type": "mimo_v2_flash", "head_dim": 24, "swa_head_dim": 16}, "swa_head_dim: 16 .*head_dim = 24"),
        ({"model_type": "mimo_v2_flash", "add_full_attention_sink_bias": True}, "add_full_attention_sink_bias: True"),
        ({"model_type": "hy_v3", "mlp_layer_types": ["sparse", "none"]}, "mlp_layer_types: 'none' .*dense, sparse"),
        (
            {"model_type": "step3_text", "moe_layers_enum": "1,x", "share_q_dim": 8, "moe_num_experts": 2},
            "moe_layers_enum: .*list of whole numbers",
        ),
        (
            {"model_type": "step3_text", "moe_layers_enum": "1,8", "share_q_dim": 8, "moe_num_experts": 2},
            "moe_layers_enum: 8 .*0 to 7",
        ),
        (
            {"model_type": "step3p5", "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 3}},
            "num_attention_groups: 3 is not accepted; allowed: 2",
        ),
        (
            {"model_type": "laguna", "head_dim": 16, "num_attention_heads_per_layer": [4, 8] * 4},
            "num_attention_heads_per_layer.*one number of heads for full layers",
        ),
        ({"model_type": "lfm2", "full_attn_idxs": [9]}, "full_attn_idxs: 9 is not accepted; allowed: 0 to 7"),
        ({"model_type": "mpt", "attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
        ({"model_type": "mpt", "expansion_ratio": 2}, "expansion_ratio: 2 is not accepted; allowed: 4"),
        ({"model_type": "gpt_neo", "attention_types": [["global"], 3]}, "attention_types"),
        ({"model_type": "longt5", "encoder_attention_type": "transient-global"}, "summaries of blocks"),
        (
            {"model_type": "gemma4_unified_text", "per_layer_config": {"1": {"head_dim": 8}, "2": {"head_dim": 4}}},
            "2 values",
        ),
        ({"model_type": "afmoe", "attention_bias": True, "num_experts": 4}, "attention_bias: True .*false"),
        ({"model_type": "aria_text", "mlp_bias": True}, "mlp_bias: True .*false: biases of shared experts"),
        ({"model_type": "ernie4_5_moe", "use_bias": True}, "use_bias: True .*false"),
        ({"model_type": "deepseek_v4", "mlp_bias": True}, "mlp_bias: True .*false"),
        ({"model_type": "solar_open", "mlp_bias": True}, "mlp_bias: True .*false"),
        ({"model_type": "nemotron_h", "mlp_bias": True, "layers_block_type": ["moe"] * 8}, "mlp_bias: True .*false"),
    ],
)
def test_mistakes_name_the_field(config: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_config({**WIDTHS, **config}, name="x", where="config.json")


def test_a_gate_of_laguna_that_is_not_by_head_is_by_element() -> None:
    config = next(entry["config"] for entry in SMALL if entry["config"]["model_type"] == "laguna")
    built = from_config({**config, "gating": False}, name="x", where="config.json")
    assert parameter_count(built).total == 243_136

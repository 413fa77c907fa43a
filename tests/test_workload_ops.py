"""Ops of layers: kept activations in closed form, shapes, parameters, recompute."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import attended_keys, forward_flops, owned_parameters
from costmodels.workload.kernels import Softmax
from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops, padded_vocab
from costmodels.workload.model import LayerKind, ModelSpec, OpaqueLayer
from costmodels.workload.op import SUBMODULES, Op, OpKind, Split, kept, runs_again
from costmodels.workload.presets import model, names

BF16 = 2.0
MODULES = ("core_attn", "attn", "layernorm", "mlp", "mlp_act", "moe", "moe_act", "shared_experts", "mla_up_proj")


def gpt(hidden: int = 12288, heads: int = 96) -> ModelSpec:
    facts = Architecture(
        layers=96,
        hidden=hidden,
        vocab=51200,
        heads=heads,
        ffn=4 * hidden,
        gated=False,
        norm="layer",
        ffn_bias=True,
        qkv_bias=True,
        out_bias=True,
        rotary=False,
        tied=True,
        learned_positions=2048,
    )
    return facts.build("gpt")


def layer(spec: ModelSpec, index: int = 0) -> LayerKind:
    kind = spec.kinds()[index]
    assert isinstance(kind, LayerKind)
    return kind


def kept_bytes(ops: tuple[Op, ...], seq: int, modules: tuple[str, ...] = (), *, tp: int = 1, sp: bool = False) -> float:
    """Bytes per token that one rank keeps of a dense layer."""
    total = 0.0
    for op in ops:
        what = kept(op, modules)
        scores = op.heads * seq
        size = what.elements_per_token * BF16 + what.bytes_per_token
        size += scores * (what.elements_per_score * BF16 + what.bytes_per_score)
        split = op.saved_split or op.split
        total += size / (tp if split is not Split.SEQUENCE or sp else 1)
    return total


@pytest.mark.parametrize(("hidden", "heads", "seq"), [(12288, 96, 2048), (6144, 64, 2048), (1024, 16, 512)])
def test_gpt_layer_keeps_what_korthikanti_counts(hidden: int, heads: int, seq: int) -> None:
    spec = gpt(hidden, heads)
    ops = layer_ops(layer(spec), spec, flash_attention=False, dropout=True)
    assert kept_bytes(ops, seq) == 34 * hidden + 5 * heads * seq
    assert kept_bytes(ops, seq, ("core_attn",)) == 34 * hidden


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_and_sequence_parallelism_divide_as_korthikanti_counts(tp: int) -> None:
    spec, seq = gpt(), 2048
    hidden, heads = spec.hidden, 96
    ops = layer_ops(layer(spec), spec, flash_attention=False, dropout=True)
    tensor_only = hidden * (10 + 24 / tp + 5 * heads * seq / (hidden * tp))
    assert kept_bytes(ops, seq, tp=tp) == pytest.approx(tensor_only)
    assert kept_bytes(ops, seq, tp=tp, sp=True) == pytest.approx(hidden / tp * (34 + 5 * heads * seq / hidden))


def test_fused_attention_keeps_its_output_and_one_statistic_per_head_instead_of_the_matrix() -> None:
    spec = gpt()
    ops = layer_ops(layer(spec), spec)
    assert kept_bytes(ops, 2048) == 32 * spec.hidden + 4 * 96  # 34 less two masks
    assert kept_bytes(ops, 2048) == kept_bytes(ops, 65536)
    assert kept_bytes(ops, 2048, ("core_attn",)) == 32 * spec.hidden


@pytest.mark.parametrize(
    ("softmax", "moved", "kept"),
    [
        (Softmax.FUSED, 4, 1),
        (Softmax.SEPARATE, 6, 1),
        (Softmax.SEPARATE_TWICE_MASKED, 8, 1),
        (Softmax.SEPARATE_FP32, 16, 3),
    ],
)
def test_each_kernel_of_a_separate_softmax_moves_its_matrix(softmax: Softmax, moved: int, kept: int) -> None:
    """By hand, in elements of two bytes: written and read by the products, and the passes of every kernel between."""
    spec, seq, heads = gpt(), 2048, 96
    core = next(op for op in layer_ops(layer(spec), spec, flash_attention=False, softmax=softmax) if op.heads)
    assert core.traffic_elements_per_score == moved
    assert kept_bytes([core], seq) == BF16 * kept * heads * seq
    assert kept_bytes([core], seq, ("core_attn",)) == 0


def test_llama_layer_keeps_both_projections_and_their_product() -> None:
    spec = model("llama3-70b")
    ops = layer_ops(layer(spec), spec)
    hidden, ffn, heads, groups, dim = 8192, 28672, 64, 8, 128
    elements = 4 * hidden + heads * dim + 2 * groups * dim + heads * dim + 2 * ffn + ffn
    assert kept_bytes(ops, 8192) == BF16 * elements + 4 * heads
    assert kept_bytes(ops, 8192, ("layernorm",)) == BF16 * (elements - 2 * hidden) + 4 * heads
    assert kept_bytes(ops, 8192, ("mlp",)) == BF16 * (elements - 3 * ffn) + 4 * heads


def test_separate_kernels_keep_and_move_more() -> None:
    spec = model("llama3-8b")
    fused, plain = (layer_ops(layer(spec), spec, fused_kernels=flag) for flag in (True, False))
    assert [op.name for op in fused] == [op.name for op in plain]
    assert kept_bytes(plain, 4096) - kept_bytes(fused, 4096) == BF16 * 14336 + 2 * 4 * 4096  # gate, fp32 norm inputs
    moved = [sum(op.traffic_elements_per_token for op in ops) for ops in (fused, plain)]
    assert moved[1] > 2 * moved[0]


def test_query_norm_gate_and_sinks() -> None:
    facts = Architecture(layers=1, hidden=1024, vocab=32000, heads=16, kv_heads=4, head_dim=64, ffn=4096)
    base = facts.build("plain")
    rich = replace(facts, qk_norm=True, output_gate=True, sinks=True).build("rich")
    plain_ops, rich_ops = (layer_ops(layer(spec), spec) for spec in (base, rich))
    grown = kept_bytes(rich_ops, 1024) - kept_bytes(plain_ops, 1024)
    # inputs of the query and key norms with their fp32 statistics; the gate and the gated output
    assert grown == BF16 * (20 * 64) + 4 * 20 + BF16 * (2 * 16 * 64)
    assert owned_parameters(rich_ops) - owned_parameters(plain_ops) == 2 * 64 + 1024 * 16 * 64 + 16


def test_a_low_precision_recipe_keeps_a_second_copy_of_shared_inputs() -> None:
    spec = model("llama3-8b")
    shared = {op.name: op.shared_input_elements_per_token for op in layer_ops(layer(spec), spec)}
    assert {name for name, size in shared.items() if size} == {"proj"}
    moe = model("deepseek-v3")
    shared = {op.name: op.shared_input_elements_per_token for op in layer_ops(layer(moe, 1), moe)}
    assert {name for name, size in shared.items() if size} == {"kv_down", "proj", "shared_fc1"}


def test_latent_attention_projects_down_replicated_and_up_by_columns() -> None:
    spec = model("deepseek-v3")
    ops = {op.name: op for op in layer_ops(layer(spec), spec)}
    assert (ops["q_down"].k, ops["q_down"].n, ops["q_down"].split) == (7168, 1536, Split.SEQUENCE)
    assert (ops["kv_down"].k, ops["kv_down"].n, ops["kv_down"].split) == (7168, 576, Split.SEQUENCE)
    assert (ops["q_up"].k, ops["q_up"].n, ops["q_up"].split) == (1536, 128 * 192, Split.COLUMN)
    assert (ops["kv_up"].k, ops["kv_up"].n, ops["kv_up"].split) == (512, 128 * 256, Split.COLUMN)
    core = ops["core_attention"]
    assert (core.heads, core.kv_heads, core.qk_dim, core.v_dim) == (128, 128, 192, 128)
    up = ("mla_up_proj",)
    assert kept(ops["rotary"]).elements_per_token == 128 * (192 + 192 + 128)
    assert kept(ops["rotary"], up).elements_per_token == 0
    assert [name for name, op in ops.items() if runs_again(op, up)] == ["q_up", "kv_up", "rotary"]


def test_latent_attention_without_query_rank_reads_the_width() -> None:
    spec = model("deepseek-v2-lite")
    ops = {op.name: op for op in layer_ops(layer(spec), spec)}
    assert "q_down" not in ops
    assert (ops["q_proj"].k, ops["q_proj"].n) == (2048, 16 * 192)
    assert ops["q_proj"].saved_elements_per_token == 0  # kv_down keeps the same input
    assert ops["kv_down"].saved_elements_per_token == 2048


def test_experts_keep_routed_inputs_per_copy() -> None:
    spec = model("mixtral-8x7b")
    ops = {op.name: op for op in layer_ops(layer(spec), spec)}
    assert ops["expert_fc1"].saved_elements_per_token == 4096
    assert ops["expert_activation"].saved_elements_per_token == 2 * 14336
    assert ops["expert_fc2"].saved_elements_per_token == 14336
    assert ops["router"].saved_elements_per_token == 4096
    assert ops["expert_fc1"].parameters == 8 * 2 * 4096 * 14336
    for name in ("dispatch", "expert_fc1", "expert_activation", "expert_fc2", "combine"):
        assert (ops[name].experts, ops[name].top_k) == (8, 2)
    assert kept(ops["expert_fc2"], ("moe_act",)).elements_per_token == 0
    assert kept(ops["expert_activation"], ("moe_act",)).elements_per_token > 0
    assert kept(ops["router"], ("moe",)).elements_per_token == 4096  # the recomputed part's own input stays


def test_latent_experts_run_at_the_latent_width() -> None:
    spec = model("nemotron3-super")
    kinds = {kind.name: kind for kind in spec.kinds()}
    ops = {op.name: op for op in layer_ops(kinds["moe"], spec)}
    assert (ops["latent_down"].k, ops["latent_down"].n) == (4096, 1024)
    assert (ops["expert_fc1"].k, ops["expert_fc1"].n) == (1024, 2688)
    assert (ops["latent_up"].k, ops["latent_up"].n) == (1024, 4096)
    assert (ops["shared_fc1"].k, ops["shared_fc1"].n) == (4096, 5376)
    assert set(kinds) == {"mamba", "attention", "moe"}


def test_mamba_and_delta_parameters() -> None:
    nano = model("nemotron3-nano")
    mamba = next(kind for kind in nano.kinds() if kind.name == "mamba")
    inner, conv, heads, hidden = 4096, 4096 + 2 * 8 * 128, 64, 2688
    expected = hidden * (inner + conv + heads) + 5 * conv + 3 * heads + inner + inner * hidden + hidden
    assert owned_parameters(layer_ops(mamba, nano)) == expected
    spec = model("qwen3-next-80b-a3b")
    delta = {op.name: op for op in layer_ops(layer(spec), spec)}
    keys, values = 16 * 128, 32 * 128
    assert delta["in_proj"].n == 2 * keys + 2 * values + 2 * 32
    assert delta["scan"].kind is OpKind.SCAN
    assert delta["scan"].flops_per_token == 8 * 32 * 128**2 + 2 * 4 * (2 * keys + values)


def test_parallel_blocks_share_norm_and_residual() -> None:
    one_norm, two_norms = model("phi-2"), model("gpt-neox-20b")
    assert [op.name for op in layer_ops(layer(one_norm), one_norm)].count("ffn_norm") == 0
    fc1 = next(op for op in layer_ops(layer(one_norm), one_norm) if op.name == "fc1")
    assert (fc1.saved_elements_per_token, fc1.shared_input_elements_per_token) == (0, 2560)
    ops = {op.name: op for op in layer_ops(layer(two_norms), two_norms)}
    assert ops["ffn_norm"].saved_elements_per_token == 0
    assert "mixer_residual" not in ops


def test_norms_after_the_parts() -> None:
    spec = model("gemma2-9b")
    ops = [op.name for op in layer_ops(layer(spec), spec)]
    assert [name for name in ops if "norm" in name] == ["mixer_norm", "mixer_post_norm", "ffn_norm", "ffn_post_norm"]


def test_windows_reach_the_op() -> None:
    spec = model("gpt-oss-20b")
    windows = [next(op.window for op in layer_ops(kind, spec) if op.kind is OpKind.ATTENTION) for kind in spec.kinds()]
    assert windows == [128, 0]


def test_opaque_layer_is_one_op_per_sample() -> None:
    opaque = OpaqueLayer(
        name="conv",
        forward_flops_per_sample=3e9,
        parameters=1000,
        activation_bytes_per_sample=5e6,
        output_bytes_per_sample=1e6,
        shardable=("tp",),
    )
    spec = model("wide-resnet-250m")
    (op,) = layer_ops(opaque, spec)
    assert (op.kind, op.split, op.flops_per_token, op.parameters) == (OpKind.OPAQUE, Split.TENSOR, 3e9, 1000)
    assert (op.saved_bytes_per_token, op.traffic_bytes_per_token) == (5e6, 6e6)
    (whole,) = layer_ops(replace(opaque, shardable=(), forward_bytes_per_sample=9e6), spec)
    assert (whole.split, whole.traffic_bytes_per_token) == (Split.REPLICATED, 9e6)
    assert embedding_ops(spec) == head_ops(spec) == mtp_ops(spec) == ()


def test_head_and_embedding() -> None:
    spec = model("llama3-8b")
    ops = {op.name: op for op in (*embedding_ops(spec), *head_ops(spec))}
    assert ops["embedding"].parameters == ops["logits"].parameters == 128256 * 4096
    assert not ops["logits"].low_precision
    assert ops["loss"].saved_bytes_per_token == 4 * 128256
    fused = {op.name: op for op in head_ops(spec, fused_loss=True)}
    assert (fused["loss"].saved_bytes_per_token, fused["loss"].saved_elements_per_token) == (0, 128256)
    tied = model("llama3.2-1b")
    assert {op.name: op.parameters for op in head_ops(tied)} == {"final_norm": 2048, "logits": 0, "loss": 0}
    padded = head_ops(spec, vocab=padded_vocab(spec, 8))
    assert padded[1].n == 129024 == padded_vocab(spec, 8)


def test_mtp_owns_its_layer_and_projection_but_no_vocabulary() -> None:
    spec = model("deepseek-v3")
    last = layer_ops(layer(spec, 1), spec)
    assert owned_parameters(mtp_ops(spec)) == owned_parameters(last) + 2 * 7168**2 + 3 * 7168
    assert sum(op.name == "logits" for op in mtp_ops(spec)) == 1
    assert mtp_ops(model("llama3-8b")) == ()


def test_attended_keys() -> None:
    assert attended_keys(4096, 0, causal=True) == 2048
    assert attended_keys(4096, 0, causal=False) == 4096
    assert attended_keys(4096, 128, causal=True) == 128 - 128**2 / 8192
    assert attended_keys(4096, 128, causal=False) == 128
    assert attended_keys(64, 128, causal=True) == 32


@settings(deadline=None, max_examples=40)
@given(
    heads=st.sampled_from([8, 16, 32]),
    groups=st.sampled_from([1, 2, 8]),
    dim=st.sampled_from([64, 128]),
    ffn=st.integers(256, 8192),
    gated=st.booleans(),
    bias=st.booleans(),
)
def test_parameters_and_flops_in_closed_form(
    *, heads: int, groups: int, dim: int, ffn: int, gated: bool, bias: bool
) -> None:
    hidden = 1024
    facts = Architecture(
        layers=3,
        hidden=hidden,
        vocab=32000,
        heads=heads,
        kv_heads=groups,
        head_dim=dim,
        ffn=ffn,
        gated=gated,
        ffn_bias=bias,
        qkv_bias=bias,
        out_bias=bias,
    )
    spec = facts.build("any")
    ops = layer_ops(layer(spec), spec)
    columns = (heads + 2 * groups) * dim
    wide = (2 if gated else 1) * ffn
    products = hidden * columns + heads * dim * hidden + hidden * wide + ffn * hidden
    biases = columns + hidden + wide + hidden if bias else 0
    assert owned_parameters(ops) == products + biases + 2 * hidden
    flops = sum(forward_flops(op, 2048) for op in ops)
    assert flops == pytest.approx(2 * products + 2 * 2048 * heads * dim)


@pytest.mark.parametrize("name", names())
def test_every_preset_has_sound_ops(name: str) -> None:
    spec = model(name)
    for kind in spec.kinds():
        for flags in ({}, {"flash_attention": False, "dropout": True, "fused_kernels": False}):
            ops = layer_ops(kind, spec, **flags)
            assert len({op.name for op in ops}) == len(ops)
            for op in ops:
                assert min(op.parameters, op.saved_elements_per_token, op.saved_bytes_per_token) >= 0
                assert op.top_k <= op.experts or not op.experts
                if op.kind in {OpKind.GEMM, OpKind.GROUPED_GEMM}:
                    assert min(op.k, op.n) > 0


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(["llama3-8b", "deepseek-v3", "mixtral-8x7b", "qwen3-next-80b-a3b", "gpt3-175b"]),
    some=st.sets(st.sampled_from(MODULES)),
    more=st.sets(st.sampled_from(MODULES)),
)
def test_recomputing_more_keeps_no_more_and_runs_no_less(name: str, some: set[str], more: set[str]) -> None:
    spec = model(name)
    for kind in spec.kinds():
        for op in layer_ops(kind, spec, flash_attention=False, dropout=True):
            few, many = kept(op, tuple(some)), kept(op, tuple(some | more))
            for field in ("elements_per_token", "bytes_per_token", "elements_per_score", "bytes_per_score"):
                assert getattr(many, field) <= getattr(few, field)
            assert runs_again(op, tuple(some | more)) >= runs_again(op, tuple(some))


def test_inner_modules_run_again_with_the_outer_one() -> None:
    for outer, inner in SUBMODULES.items():
        for name in inner:
            op = Op(name="x", module=name, kind=OpKind.MEMORY, split=Split.TENSOR)
            assert runs_again(op, (outer,))
            assert runs_again(op, (name,))
            assert not runs_again(replace(op, module="residual"), (outer,))

"""Parameters and FLOPs against published counts and against models that Megatron-LM built."""

import csv
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import flops_per_token, forward_flops, parameter_count
from costmodels.workload.layers import embedding_ops, head_ops, layer_ops, mtp_ops, padded_vocab
from costmodels.workload.model import ModelSpec
from costmodels.workload.op import Op, Split
from costmodels.workload.presets import model, proxy

REFERENCE = Path(__file__).parent / "reference"
# Published formulas leave out biases, norms and learned positions, which weigh more the smaller the model.
SMALL = {"gpt3_126m": 0.016}
WINDOWED = {"gpt_oss_120b": 0.05, "gpt_oss_20b": 0.05}  # the published count gives windowed layers the whole sequence

PUBLISHED = {  # Hugging Face parameter counts (safetensors index or model card)
    "bloom_176b": 176_247_271_424,
    "deepseek_moe_16b": 16_375_728_128,
    "deepseek_v2": 235_741_434_880,
    "deepseek_v2_lite": 15_706_484_224,
    "exaone4_1_2b": 1_279_391_488,
    "falcon_40b": 41_303_293_952,
    "gemma2_27b": 27_227_128_320,
    "gemma2_9b": 9_241_705_984,
    "gemma_2b": 2_506_172_416,
    "gemma_7b": 8_537_680_896,
    "gpt2_large": 774_030_080,
    "gpt2_medium": 354_823_168,
    "gpt2_xl": 1_557_611_200,
    "gpt_neox_20b": 20_554_567_680,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama2_7b": 6_738_415_616,
    "llama32_1b": 1_235_814_400,
    "llama32_3b": 3_212_749_824,
    "llama3_70b": 70_553_706_496,
    "llama3_8b": 8_030_261_248,
    "llama_65b": 65_285_660_672,
    "mistral_7b_v0_1": 7_241_732_096,
    "nemotron3_nano_4b": 3_973_556_832,
    "nemotron_nano_12b_v2": 12_310_001_152,
    "nemotron_nano_9b_v2": 8_888_227_328,
    "nemotronh_47b": 46_791_554_816,
    "nemotronh_8b": 8_100_852_736,
    "olmoe_7b": 6_919_161_856,
    "opt_13b": 12_853_473_280,
    "opt_30b": 29_974_540_288,
    "opt_6_7b": 6_658_473_984,
    "phi_3_mini": 3_821_079_552,
    "qwen15_moe_a2_7b": 14_315_784_192,
    "qwen25_0_5b": 494_032_768,
    "qwen25_1_5b": 1_543_714_304,
    "qwen25_3b": 3_085_938_688,
    "qwen25_72b": 72_706_203_648,
    "qwen35_27b": 26_895_998_464,
    "qwen35_35b_a3b": 34_660_610_688,
    "qwen35_397b_a17b": 396_346_350_336,
    "qwen35_9b": 8_953_803_264,
    "qwen3_0_6b": 596_049_920,
    "qwen3_14b": 14_768_307_200,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_next_80b_a3b": 79_674_391_296,
}


def rows() -> list[dict[str, str]]:
    with (REFERENCE / "model_counts.csv").open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def cases() -> list[dict]:
    with (REFERENCE / "megatron_ranks.toml").open("rb") as file:
        return tomllib.load(file)["case"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["model"])
def test_published_parameters_and_flops(row: dict[str, str]) -> None:
    spec, seq = model(row["model"]), int(row["seq"])
    count = parameter_count(spec)
    tolerance = SMALL.get(row["model"], 0.0035)
    assert count.total / 1e9 == pytest.approx(float(row["parameters_b"]), rel=tolerance)
    assert count.active / 1e9 == pytest.approx(float(row["active_parameters_b"]), rel=tolerance)
    causal, full = (flops_per_token(spec, seq, causal=flag) / 1e9 for flag in (True, False))
    tolerance = WINDOWED.get(row["model"], 0.0005)
    assert causal == pytest.approx(float(row["gflop_causal"]), rel=tolerance)
    assert full == pytest.approx(float(row["gflop_full"]), rel=2 * tolerance)


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_explain_the_difference_from_the_published_count(name: str) -> None:
    row = next(row for row in rows() if row["model"] == name)
    spec, seq = model(name), int(row["seq"])
    attention = 3 * 2 * 64 * (64 + 64)  # forward and backward, per key
    difference = spec.layers / 2 * attention * (seq / 2 - (128 - 128**2 / (2 * seq)))
    published = float(row["gflop_causal"]) * 1e9
    assert flops_per_token(spec, seq) + difference == pytest.approx(published, rel=1e-4)


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_equal_hugging_face(name: str, parameters: int) -> None:
    assert parameter_count(model(name)).total == parameters


def test_glm52_fills_its_published_checkpoint() -> None:
    """The tensors of zai-org/GLM-5.2: two bytes a parameter, and fp32 biases of 256 experts in 76 routers."""
    count = parameter_count(model("glm5.2"))
    assert 2 * (count.total + count.mtp) + 4 * 256 * 76 == 1_506_659_919_872


def test_an_indexer_is_repeated_on_every_tensor_parallel_rank_and_counts_its_scores() -> None:
    spec = model("glm5.2")
    indexed, shared = (
        next(kind for kind in spec.kinds() if kind.name == name) for name in ("indexed+moe", "window+moe")
    )
    extra = [op for op in layer_ops(indexed, spec) if op.name.startswith("index")]
    assert {op.split for op in extra} == {Split.REPLICATED}
    scores = next(op for op in extra if op.name == "index_scores")
    assert forward_flops(scores, 8192) == 2 * 32 * 128 * 8192 / 2  # a product of 32 heads with half of the keys
    attention = next(op for op in layer_ops(indexed, spec) if op.name == "core_attention")
    assert forward_flops(attention, 8192) == 2 * 64 * 512 * (2048 - 2048**2 / (2 * 8192))  # 2048 keys, fewer at first
    without = sum(op.parameters for op in layer_ops(shared, spec))
    assert sum(op.parameters for op in layer_ops(indexed, spec)) - without == 2048 * 4096 + 6144 * (128 + 32) + 256


@pytest.mark.parametrize(
    ("name", "parameters", "tolerance"),
    [
        # Alpa's count leaves out biases and positions: 0.15 % of the smallest
        ("gshard_moe_380m", 0.3835e9, 2e-3),
        ("gshard_moe_690m", 0.6857e9, 2e-3),
        ("gshard_moe_1_3b", 1.3468e9, 2e-3),
        ("gshard_moe_10b", 10.1696e9, 2e-3),
        ("gshard_moe_27b", 26.6481e9, 2e-3),
        ("gshard_moe_70b", 70.4152e9, 2e-3),
        ("wide_resnet_1b", 1.0057e9, 1e-4),
        ("wide_resnet_2b", 1.965e9, 1e-4),
        ("wide_resnet_6.8b", 6.7277e9, 1e-4),
        ("nemotron3_ultra", 550e9, 0.005),
        ("deepseek_v4_flash", 284e9, 0.005),
    ],
)
def test_parameters_that_papers_state(name: str, parameters: float, tolerance: float) -> None:
    assert parameter_count(model(name)).total == pytest.approx(parameters, rel=tolerance)


def test_active_parameters_and_flops_of_assumed_architectures() -> None:
    ultra, flash = model("nemotron3-ultra"), model("deepseek-v4-flash")
    assert parameter_count(ultra).active == pytest.approx(55e9, rel=0.02)
    of_flash = parameter_count(flash)
    assert of_flash.active - of_flash.embedding == pytest.approx(13e9, rel=0.03)  # looked-up rows are no products
    # published FLOP/s per GPU over published tokens/s per GPU, Megatron-Bridge performance summary 26.08
    assert flops_per_token(ultra, 8192) == pytest.approx(360.6e9, rel=0.01)
    assert flops_per_token(flash, 4096) == pytest.approx(90.9e9, rel=0.006)


def test_deepseek_v4_has_every_parameter_and_product():
    pro, flash = model("deepseek-v4-pro"), model("deepseek-v4-flash")
    # DeepseekV4ForCausalLM of Transformers 5.12.1 on the meta device, with both models' sizes
    assert parameter_count(flash).total == 284_332_230_231
    assert parameter_count(pro).total == 1_572_997_179_491
    with_prediction = parameter_count(flash).total + parameter_count(flash).mtp
    assert with_prediction == 290_942_278_866  # pytorch/torchtitan pull request 4441, one prediction layer
    # NVIDIA/Megatron-LM pull request 5142: 949.5 TFLOP/s on each of 256 GPUs, 4096 sequences of 4096 in 22.26 s
    assert flops_per_token(pro, 4096) == pytest.approx(949.5e12 * 256 * 22.26 / 4096**2, rel=0.002)


def rank_parameters(ops: list[Op], case: dict) -> tuple[float, float]:
    """Parameters of a rank: dense, and of experts."""
    tp, ep, etp = case["tp"], case.get("ep", 1), case.get("etp", 1)
    divided = {Split.COLUMN, Split.ROW, Split.HEADS, Split.TENSOR}
    routed = {Split.EXPERT_COLUMN, Split.EXPERT_ROW}
    dense = sum(op.parameters / (tp if op.split in divided else 1) for op in ops if op.split not in routed)
    return dense, sum(op.parameters / (ep * etp) for op in ops if op.split in routed)


def stage_ops(spec: ModelSpec, stage: dict, vocab: int) -> list[Op]:
    ops: list[Op] = []
    kinds = list(spec.layer_kinds())
    for kind in kinds[slice(*stage["layers"])]:
        ops += layer_ops(kind, spec)
    if stage.get("embedding") or stage.get("mtp"):  # the stage of multi-token prediction holds the table again
        ops += embedding_ops(spec, vocab=vocab)
    if stage.get("head"):
        ops += head_ops(spec, vocab=vocab)
    return ops + (list(mtp_ops(spec)) if stage.get("mtp") else [])


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_ranks_own_what_megatron_builds(case: dict) -> None:
    spec = model(case["model"])
    spec = replace(spec, vocab=case.get("vocab", spec.vocab))
    vocab = padded_vocab(spec, case["tp"])
    for stage in case["stages"]:
        dense, expert = rank_parameters(stage_ops(spec, stage, vocab), case)
        assert (dense, expert) == (stage["dense"], stage.get("expert", 0))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_flops_of_a_batch_equal_megatrons(case: dict) -> None:
    spec = model(case["model"])
    spec = replace(spec, vocab=case.get("vocab", spec.vocab))
    flops = flops_per_token(spec, case["seq"], padded_vocab_tp=case["tp"]) * case["seq"] * case["global_batch"]
    # latent attention: Megatron-LM adds the norms of the latents, 4e-6 of the total
    assert flops == pytest.approx(case["flops"], rel=1e-5 if "deepseek" in case["model"] else 1e-12)


def test_twelve_layers_h_squared() -> None:
    hidden, layers = 4096, 32
    facts = Architecture(
        layers=layers, hidden=hidden, vocab=51200, heads=32, ffn=4 * hidden, gated=False, norm="layer", tied=True
    )
    spec = facts.build("gpt")
    count = parameter_count(spec)
    assert count.total == 12 * layers * hidden**2 + 51200 * hidden + (2 * layers + 1) * 2 * hidden
    seq = 2048  # Narayanan et al., arXiv 2104.04473, equation 3 without recompute
    narayanan = 72 * layers * hidden**2 * (1 + seq / (6 * hidden) + 51200 / (12 * hidden * layers))
    assert flops_per_token(spec, seq, causal=False) == pytest.approx(narayanan)


def test_count_adds_up_and_padding_grows_both_ends() -> None:
    spec = model("gpt2")
    count = parameter_count(spec)
    assert count.total == count.embedding + count.head + sum(per * layers for _, per, layers in count.per_kind)
    padded = parameter_count(spec, padded_vocab_tp=8)
    assert padded.total - count.total == (51200 - 50257) * 768
    untied = model("llama3-8b")
    grown = parameter_count(untied, padded_vocab_tp=8).total - parameter_count(untied).total
    assert grown == 2 * (129024 - 128256) * 4096


def test_frozen_weights_have_no_gradients() -> None:
    """Beside adapters a token takes four FLOPs a weight in place of six (NeMo's figures of LoRA), scores as many."""
    spec = model("llama3-8b")
    trained, frozen = (flops_per_token(spec, 4096, frozen=flag) for flag in (False, True))
    weights = parameter_count(spec).total - parameter_count(spec).embedding - 65 * 4096  # norms
    assert trained - frozen == pytest.approx(2 * weights)
    assert frozen == pytest.approx(4 * weights + 3 * 32 * 2 * 32 * 2 * 128 * 2048)


def test_backward_and_router_and_recompute_conventions() -> None:
    spec = model("mixtral-8x7b")
    without, with_router = (flops_per_token(spec, 4096, router=flag) for flag in (False, True))
    assert with_router - without == 3 * 2 * 32 * 4096 * 8
    bert = model("bert-large")
    assert flops_per_token(bert, 512) == flops_per_token(bert, 512, causal=False)


def test_fewer_layers_count_fewer_parameters() -> None:
    whole, part = model("deepseek-v3"), proxy(model("deepseek-v3"), 7)
    counts = parameter_count(whole), parameter_count(part)
    dense, moe = counts[0].per_kind
    assert counts[1].per_kind == ((dense[0], dense[1], 3), (moe[0], moe[1], 4))
    assert counts[0].total - counts[1].total == 54 * moe[1]

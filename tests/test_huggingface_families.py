"""Families of Hugging Face configurations against the sizes on the model cards, and wrappers of language models."""

import json
from pathlib import Path

import pytest

from costmodels.workload.counts import parameter_count
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.model import Attention, LayerKind
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.megatron_model import model_arguments

CARDS = json.loads((Path(__file__).parent / "reference" / "huggingface_families.json").read_text())["models"]
ROUNDING = 0.006  # cards give two or three digits
ACTIVE_ROUNDING = 0.04  # cards give whole billions


def build(config: dict[str, object]):
    return from_config(config, name="x", where="config.json")


@pytest.mark.parametrize("name", CARDS)
def test_size_is_that_of_the_model_card(name: str) -> None:
    count = parameter_count(build(CARDS[name]["config"]))
    assert count.total / 1e9 == pytest.approx(CARDS[name]["billion"], rel=ROUNDING)
    if "active_billion" in CARDS[name]:
        assert count.active / 1e9 == pytest.approx(CARDS[name]["active_billion"], rel=ACTIVE_ROUNDING)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Step-3.5-Flash", "step35_flash_197b"),
        ("LFM2-1.2B", "lfm2_1_2b"),
        ("LFM2-8B-A1B", "lfm2_8b_a1b"),
        ("Ring-mini-linear-2.0", "ring_mini_linear_16b"),
        ("Ring-flash-linear-2.0", "ring_flash_linear_104b"),
        ("Trinity-Mini", "trinity_mini_26b"),
        ("dots.llm1", "dots_llm1_142b"),
        ("c4ai-command-a-03-2025", "command_a_111b"),
    ],
)
def test_layers_of_a_preset_are_those_of_its_configuration(name: str, preset: str) -> None:
    assert model(preset).runs == build(CARDS[name]["config"]).runs


def test_gptj_and_command_r_plus_have_every_parameter() -> None:
    # GPT-J: 28 layers of 4 d^2 + 8 d^2 (no attention bias), d + 4d biases and one norm; head and its bias; final norm
    layer = 4 * 4096**2 + 2 * 4096 * 16384 + 4096 + 16384 + 2 * 4096
    assert parameter_count(build(CARDS["gpt-j-6b"]["config"])).total == (
        28 * layer + 2 * 50400 * 4096 + 50400 + 2 * 4096
    )
    # Command R+: one norm without bias, norms of 96 + 8 heads with weights of their own, embedding and head one matrix
    layer = 12288 * 12288 * 2 + 2 * 12288 * 1024 + 3 * 12288 * 33792 + 12288 + 104 * 128
    assert parameter_count(build(CARDS["c4ai-command-r-plus"]["config"])).total == 64 * layer + 256000 * 12288 + 12288


def windows(config: dict[str, object]) -> list[int]:
    kinds = list(build(config).layer_kinds())
    return [
        kind.mixer.window if isinstance(kind, LayerKind) and isinstance(kind.mixer, Attention) else -1 for kind in kinds
    ]


def test_command_a_attends_fully_in_every_fourth_layer() -> None:
    assert windows(CARDS["c4ai-command-a-03-2025"]["config"]) == [4096, 4096, 4096, 0] * 16


def test_ernie_has_experts_from_its_first_sparse_layer_on() -> None:
    kinds = [kind.name for kind in build(CARDS["ERNIE-4.5-300B-A47B"]["config"]).layer_kinds()]
    assert kinds == ["attention+dense"] * 3 + ["attention+moe"] * 51


def test_rotary_base_is_found_where_the_family_keeps_it() -> None:
    assert build(CARDS["dbrx-base"]["config"]).known_details.rope_theta == 500000.0
    glm = build({**CARDS["glm-4-9b"]["config"], "rope_ratio": 500}).known_details
    assert (glm.rope_theta, glm.rope_fraction) == (5_000_000.0, 0.5)


def test_lists_of_hunyuan_must_repeat_one_value() -> None:
    config = {**CARDS["Hunyuan-A13B"]["config"], "moe_topk": [8, 4]}
    with pytest.raises(InputError, match=r"moe_topk: \(8, 4\) is not accepted; allowed: one value for all layers"):
        build(config)
    with pytest.raises(InputError, match="moe_topk"):
        build({**config, "moe_topk": []})


def test_any_wrapper_shows_the_language_model_that_it_names() -> None:
    inner = {**CARDS["SmolLM3-3B"]["config"]}
    wrapped = build({"model_type": "llava", "text_config": inner, "vision_config": {"hidden_size": 1152}})
    assert parameter_count(wrapped).total == parameter_count(build(inner)).total
    assert "vision_config" in wrapped.notes[0]
    assert wrapped.tower is None
    with pytest.raises(InputError, match="text_config: model_type: missing"):
        build({"model_type": "llava", "text_config": {"hidden_size": 64}})


def test_unknown_family_says_what_to_do_instead() -> None:
    with pytest.raises(InputError, match=r"'jambo' is not known.*as a TOML file.*docs/models\.md"):
        build({"model_type": "jambo"})


@pytest.mark.parametrize(
    ("model_type", "why"),
    [("zamba2", "several layers share"), ("bert", "masked tokens"), ("deci", "unlike widths")],
)
def test_families_without_a_form_are_refused_with_the_reason(model_type: str, why: str) -> None:
    with pytest.raises(InputError, match=f"{model_type}.*{why}.*by their totals"):
        build({"model_type": model_type})


def test_dbrx_has_every_parameter() -> None:
    # 40 layers: q and o of 6144, k and v of 1024; 16 experts of three matrices; router; two norms; both embeddings
    layer = 2 * 6144**2 + 2 * 6144 * 1024 + 16 * 3 * 6144 * 10752 + 16 * 6144 + 2 * 6144
    assert parameter_count(build(CARDS["dbrx-base"]["config"])).total == 40 * layer + 2 * 100352 * 6144 + 6144


def test_layers_that_borrow_keys_have_none_of_their_own() -> None:
    borrowing = build(CARDS["Hunyuan-Large"]["config"])
    own = build({**CARDS["Hunyuan-Large"]["config"], "use_cla": False})
    keys_and_values, key_norm = 2 * 6400 * 8 * 80, 80
    assert parameter_count(own).total - parameter_count(borrowing).total == 32 * (keys_and_values + key_norm)
    with pytest.raises(InputError, match="2 different kinds of attention"):
        model_arguments(borrowing, 4096)


def test_every_layer_of_gemma_4_may_have_an_embedding_of_its_own() -> None:
    config = json.loads((Path(__file__).parent / "reference" / "huggingface_configs.json").read_text())
    small = build(config["models"]["gemma-4-E4B"]["config"])
    plain = build({**config["models"]["gemma-4-E4B"]["config"], "hidden_size_per_layer_input": 0})
    table, projection = 262144 * 42 * 256, 2560 * 42 * 256 + 256
    layers = 42 * (2 * 2560 * 256 + 2560)
    assert parameter_count(small).total - parameter_count(plain).total == table + projection + layers
    assert small.side_width == 42 * 256
    with pytest.raises(InputError, match="two widths"):
        build({**config["models"]["gemma-4-E4B"]["config"], "use_double_wide_mlp": True})


# Heads in a group of keys (0: no attention), multiple of the width, layers in a row: block_configs of
# nvidia/Llama-3_3-Nemotron-Super-49B-v1 and Llama-3_1-Nemotron-Ultra-253B-v1, as NeMo has them
# (collections/llm/gpt/model/llama_nemotron_config.py)
SUPER = (
    "8 2.625 1; 8 5.25 5; 0 2.625 2; 8 5.25 3; 0 3.28125 1; 8 5.25 30; 0 1.3125 1; 0 2.625 2; 0 1.3125 1; 0 5.25 1; "
    "0 1.3125 1; 0 2.625 1; 0 1.3125 3; 8 5.25 1; 0 1.3125 1; 0 1.0 2; 0 1.3125 1; 0 1.0 3; 0 1.3125 2; 0 0.5 2; "
    "0 1.0 2; 0 0.5 2; 0 1.0 1; 0 0.5 2; 8 5.25 9"
)
ULTRA = (
    "16 0.4875 1; 16 0.975 1; 16 1.4625 6; 16 1.95 1; 0 0 4; 16 1.95 3; 16 4.875 2; 0 0 6; 16 4.875 3; 0 0 5; "
    "16 4.875 3; 16 2.4375 1; 0 0 3; 16 1.95 3; 0 1.95 1; 16 4.875 1; 0 4.875 1; 0 0 5; 16 4.875 4; 0 0 5; 16 4.875 4; "
    "0 0 5; 16 4.875 4; 0 0 5; 16 4.875 4; 0 0 5; 16 4.875 1; 16 3.4125 3; 0 0 2; 16 2.925 1; 16 2.4375 3; 0 2.4375 2; "
    "16 2.4375 1; 0 0 1; 0 2.4375 7; 16 2.4375 1; 0 0 5; 16 2.925 1; 16 4.875 1; 0 4.875 1; 16 4.875 1; 0 0 8; "
    "0 36.5625 1; 0 0 8; 0 39.0 1; 0 0 8; 0 31.40625 1; 0 0 5; 0 27.5625 1; 0 1.95 1; 16 1.95 1; 16 2.4375 1; 0 0 1; "
    "16 2.4375 2; 16 3.4125 1; 16 4.875 4; 16 2.4375 1"
)


def searched(rows: str, hidden: int, heads: int) -> dict[str, object]:
    """A configuration of Llama-Nemotron whose blocks are told row by row."""
    blocks = []
    for row in rows.split(";"):
        group, multiple, count = (float(word) for word in row.split())
        attention = {"n_heads_in_group": int(group) or None, "no_op": not group, "replace_with_linear": False}
        ffn = {"ffn_mult": multiple or None, "no_op": not multiple, "replace_with_linear": False}
        blocks += [{"attention": attention, "ffn": ffn}] * int(count)
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": len(blocks)}
    return {
        "model_type": "nemotron-nas",
        "vocab_size": 128256,
        "block_configs": blocks,
        "intermediate_size": None,
        **sizes,
    }


@pytest.mark.parametrize(
    ("rows", "hidden", "heads", "billion"), [(SUPER, 8192, 64, 49.867145216), (ULTRA, 16384, 128, 253.4)]
)
def test_layers_found_by_architecture_search_have_every_parameter(rows, hidden, heads, billion):
    """The cards say 49.9 and 253 billion; the tensors of Super are counted."""
    found = parameter_count(build(searched(rows, hidden, heads))).total
    assert found / 1e9 == pytest.approx(billion, rel=1e-9 if rows == SUPER else 1e-3)


def test_layers_without_a_part_are_left_out_and_said():
    spec = build(searched(ULTRA, 16384, 128))
    assert (spec.layers, len(spec.kinds())) == (81, 15)
    assert spec.notes == ("81 layers have neither attention nor a feed-forward part and are left out",)
    linear = searched("8 2.625 2", 8192, 64)
    linear["block_configs"] = [{"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.0}}]
    with pytest.raises(InputError, match="a part that is one product is not modelled"):
        build(linear)

"""What a config.json leaves out is what its class has: the same model, stripped or whole, for every family."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.workload.counts import parameter_count
from costmodels.workload.huggingface.config import FAMILIES, class_defaults, from_config
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError

WHOLE: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "reference" / "huggingface_classes.json").read_text()
)["configs"]
CARDS: dict[str, dict[str, Any]] = {
    f"{source}: {name}": entry["config"]
    for source in ("huggingface_configs", "huggingface_families")
    for name, entry in json.loads((Path(__file__).parent / "reference" / f"{source}.json").read_text())[
        "models"
    ].items()
}
OWN_CODE = {
    "arctic",
    "baichuan",
    "bailing_moe",
    "bailing_moe_linear",
    "bailing_moe_v2",
    "chatglm",
    "grok-1",
    "hunyuan",
    "internlm2",
    "kimi_k2",
    "mimo",
    "minimax_m1",
    "minimax_m3",
    "minimax_text_01",
    "nemotron-nas",
    "step3_text",
    "xverse",
}


def build(config: dict[str, Any]) -> ModelSpec:
    return replace(from_config(config, name="x", where="config.json"), notes=())


def stripped(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as a library writes it that leaves defaults out."""
    defaults = class_defaults().get(config["model_type"], {})
    return {name: value for name, value in config.items() if name not in defaults or value != defaults[name]}


def test_every_family_has_defaults_but_those_with_code_of_their_own():
    assert set(FAMILIES) - set(class_defaults()) == OWN_CODE
    assert set(class_defaults()) == set(WHOLE)


NOT_OF_THE_CLASS = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},  # its 96 heads do not divide its width
    "glm4v_moe_text": {"head_dim": 128},
}
NO_PATTERN = "nemotron_h"  # a class of four layers, which every file states otherwise


@pytest.mark.parametrize("model_type", sorted({*WHOLE} - {NO_PATTERN}))
def test_a_configuration_of_nothing_but_its_type_is_that_of_the_class(model_type):
    """A whole configuration has the sizes too that the class computes from others."""
    own = NOT_OF_THE_CLASS.get(model_type, {})
    assert build({"model_type": model_type, **own}) == build({**WHOLE[model_type], **own})


def test_a_hybrid_must_state_its_pattern():
    stated = {name: WHOLE[NO_PATTERN][name] for name in ("model_type", "layers_block_type")}
    assert build(stated) == build(WHOLE[NO_PATTERN])
    with pytest.raises(InputError, match="hybrid_override_pattern: missing"):
        build({"model_type": NO_PATTERN})


@pytest.mark.parametrize("name", CARDS)
def test_a_published_configuration_without_its_defaults_is_the_same_model(name):
    config = CARDS[name]
    less = {**stripped(config), **({"text_config": stripped(config["text_config"])} if "text_config" in config else {})}
    assert build(less) == build(config)


def test_null_is_stated_and_no_default_takes_its_place():
    mistral = {"model_type": "mistral"}
    kind = next(iter(build(mistral).layer_kinds()))
    assert (kind.mixer.window, kind.mixer.kv_heads) == (4096, 8)
    assert next(iter(build({**mistral, "sliding_window": None}).layer_kinds())).mixer.window == 0


def test_another_word_for_a_field_is_the_field():
    wide = build({"model_type": "gpt2", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24})
    assert (wide.hidden, wide.layers) == (1024, 24)
    assert parameter_count(wide).total == 354_823_168  # GPT-2 medium


def test_sizes_that_are_not_stated_are_told():
    built = from_config({"model_type": "llama", "vocab_size": 128256}, name="x", where="config.json")
    told = next(note for note in built.notes if note.startswith("not stated"))
    assert "hidden_size 4096" in told
    assert "vocab_size" not in told


def test_routers_of_deepseek_v3_score_by_sigmoid_where_the_class_has_no_word_for_it():
    assert build({"model_type": "deepseek_v3"}).known_details.router_score == "sigmoid"


PARTS = {
    "M": {"ssm_state_size", "mamba_num_heads", "n_groups"},
    "*": {"num_attention_heads", "num_key_value_heads"},
    "-": {"intermediate_size"},
    "E": {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"},
}


@pytest.mark.parametrize("pattern", ["M-M*-", "M-M-", "*-*-", "MEM*E", "M*"])
def test_defaults_of_parts_that_a_model_lacks_are_not_told(pattern):
    built = from_config({"model_type": "nemotron_h", "hybrid_override_pattern": pattern}, name="x", where="config.json")
    told = {item.split()[0] for item in built.notes[-1].partition("nemotron_h: ")[2].split(", ")}
    assert told == {"vocab_size", "hidden_size"}.union(*(PARTS[letter] for letter in pattern))


def test_a_dense_width_that_no_layer_has_is_not_told():
    built = from_config({"model_type": "qwen3_moe"}, name="x", where="config.json")
    assert " intermediate_size" not in built.notes[-1]
    assert "moe_intermediate_size 768" in built.notes[-1]
    dense = from_config({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, name="x", where="config.json")
    assert " intermediate_size 6144" in dense.notes[-1]

"""Hugging Face configurations against parameter counts of the real models, and the errors of wrong files."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.workload.counts import flops_per_token, parameter_count
from costmodels.workload.huggingface.config import FAMILIES, from_config
from costmodels.workload.model import Attention, LayerKind, MoeFfn
from costmodels.workload.presets import model
from hardware.errors import InputError

REFERENCE = Path(__file__).parent / "reference" / "huggingface_configs.json"
KNOWN = json.loads(REFERENCE.read_text())["models"]
# Megatron-LM builds another number of norms (or biases) for these; the count of the model itself is matched instead.
OTHER_NORMS = {"MiniMax-M2.5", "gemma-3-1b-pt", "phi-2", "falcon-7b", "gpt-oss-120b", "gpt-oss-20b"}
# Megatron-LM's FLOPs: windows count as whole sequences; gpt-oss has a gate that it does not count.
OTHER_FLOPS = {"gemma-3-1b-pt", "gpt-oss-120b", "gpt-oss-20b"}

SPARSE = {**KNOWN["GLM-5.2"]["config"], "num_hidden_layers": 4}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "vocab_size": 32000,
}


def build(**changes: object):
    config = {**LLAMA, **changes}
    return from_config({key: value for key, value in config.items() if value is not ...}, name="x", where="config.json")


@pytest.mark.parametrize("name", [name for name in KNOWN if "parameters" in KNOWN[name]])
def test_parameters_equal_transformers(name: str) -> None:
    spec = from_config(KNOWN[name]["config"], name=name, where=name)
    assert parameter_count(spec).total == KNOWN[name]["parameters"]


@pytest.mark.parametrize("name", [name for name in KNOWN if "megatron_parameters" in KNOWN[name]])
def test_parameters_equal_megatron_with_multi_token_prediction(name: str) -> None:
    count = parameter_count(from_config(KNOWN[name]["config"], name=name, where=name))
    difference = abs(count.total + count.mtp - KNOWN[name]["megatron_parameters"])
    assert difference == 0 or (name in OTHER_NORMS and difference < 1e-3 * count.total)


@pytest.mark.parametrize("name", [name for name in KNOWN if "seq" in KNOWN[name] and name not in OTHER_FLOPS])
def test_flops_equal_megatron(name: str) -> None:
    spec, seq = from_config(KNOWN[name]["config"], name=name, where=name), KNOWN[name]["seq"]
    # Megatron-LM counts the norms of latents and of multi-token prediction, under 5e-6 of the total
    assert flops_per_token(spec, seq) * seq == pytest.approx(KNOWN[name]["megatron_flops_per_sample"], rel=5e-6)


def test_nemotron_nano_has_its_published_size() -> None:
    spec = from_config(KNOWN["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]["config"], name="nano", where="nano")
    assert parameter_count(spec).total == parameter_count(model("nemotron3-nano")).total == 31_577_937_344


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (
            {
                "model_type": "falcon",
                "num_hidden_layers": 60,
                "hidden_size": 8192,
                "num_attention_heads": 128,
                "num_kv_heads": 8,
                "vocab_size": 65024,
                "new_decoder_architecture": True,
                "bias": False,
            },
            "falcon_40b",
        ),
        (
            {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880},
            "bloom_176b",
        ),
        (
            {
                "model_type": "opt",
                "num_hidden_layers": 40,
                "hidden_size": 5120,
                "ffn_dim": 20480,
                "num_attention_heads": 40,
                "vocab_size": 50272,
                "max_position_embeddings": 2048,
            },
            "opt_13b",
        ),
        (
            {
                "model_type": "gemma2",
                "num_hidden_layers": 42,
                "hidden_size": 3584,
                "intermediate_size": 14336,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "vocab_size": 256000,
            },
            "gemma2_9b",
        ),
        (
            {
                "model_type": "qwen2_moe",
                "num_hidden_layers": 24,
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "vocab_size": 151936,
            },
            "qwen15_moe_a2_7b",
        ),
        (
            {
                "model_type": "qwen3_next",
                "num_hidden_layers": 48,
                "hidden_size": 2048,
                "intermediate_size": 5120,
                "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "num_experts": 512,
                "num_experts_per_tok": 10,
                "vocab_size": 151936,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
            },
            "qwen3_next_80b_a3b",
        ),
        (
            {
                "model_type": "deepseek_v2",
                "num_hidden_layers": 27,
                "hidden_size": 2048,
                "intermediate_size": 10944,
                "moe_intermediate_size": 1408,
                "num_attention_heads": 16,
                "q_lora_rank": None,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "first_k_dense_replace": 1,
                "vocab_size": 102400,
            },
            "deepseek_v2_lite",
        ),
        (
            {
                "model_type": "llama4",
                "text_config": {
                    "model_type": "llama4_text",
                    "num_hidden_layers": 48,
                    "hidden_size": 5120,
                    "intermediate_size": 8192,
                    "intermediate_size_mlp": 16384,
                    "num_attention_heads": 40,
                    "num_key_value_heads": 8,
                    "num_local_experts": 128,
                    "interleave_moe_layer_step": 2,
                    "vocab_size": 202048,
                },
            },
            "llama4_maverick",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["model_type"],
)
def test_configurations_and_presets_agree(config: dict, preset: str) -> None:
    spec = from_config(config, name=preset, where="config.json")
    assert parameter_count(spec).total == parameter_count(model(preset)).total
    assert [run.count for run in spec.runs] == [run.count for run in model(preset).runs]


def test_windows_follow_layer_types() -> None:
    types = ["sliding_attention", "full_attention"]
    spec = from_config({**KNOWN["gpt-oss-20b"]["config"], "layer_types": types * 12}, name="x", where="x")
    kinds = [kind for kind in spec.layer_kinds() if isinstance(kind, LayerKind)]
    assert [kind.mixer.window for kind in kinds if isinstance(kind.mixer, Attention)][:3] == [128, 0, 128]


def test_qwen_windows_need_the_switch() -> None:
    qwen = {"model_type": "qwen2", "sliding_window": 512, "max_window_layers": 1, "num_key_value_heads": 16}
    off, on = build(**qwen), build(**qwen, use_sliding_window=True)
    assert [kind.mixer.window for kind in off.layer_kinds()] == [0, 0]
    assert [kind.mixer.window for kind in on.layer_kinds()] == [0, 512]


def test_sparse_step_and_dense_only_layers() -> None:
    moe = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    spec = build(**moe, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    assert [isinstance(kind.ffn, MoeFfn) for kind in spec.layer_kinds()] == [False, True, False, False, False, True]


def test_block_types_in_place_of_a_pattern() -> None:
    config = dict(KNOWN["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]["config"])
    letters = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    pattern = config.pop("hybrid_override_pattern")
    listed = from_config({**config, "layers_block_type": [letters[each] for each in pattern]}, name="x", where="x")
    direct = from_config({**config, "hybrid_override_pattern": pattern}, name="x", where="x")
    assert listed.runs == direct.runs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": ...}, r"config\.json: model_type: missing; allowed: a text"),
        (
            {"model_type": "llama9"},
            r"config\.json: model_type: 'llama9' is not known; nearest known: 'llama'; allow",
        ),
        ({"model_type": "LLAMA"}, r"'LLAMA' is not known; nearest known: 'llama'; allow"),
        ({"model_type": "rembert"}, r"'rembert' is not known.*allowed: afmoe, .*qwen3_next"),
        (
            {"model_type": "xverse", "hidden_size": ...},
            r"config\.json: hidden_size: missing; allowed: a whole",
        ),
        ({"hidden_size": "1024"}, r"config\.json: hidden_size: '1024' is not accepted"),
        ({"hidden_size": 0}, r"hidden_size: 0 is not accepted; allowed: a whole number from 1"),
        ({"hidden_size": 1e30}, r"hidden_size: .* is not accepted"),
        ({"num_hidden_layers": 2.5}, r"num_hidden_layers: 2\.5 is not accepted"),
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers: 1000000000 is not accepted; allowed: 1 to 10000"),
        (
            {"num_attention_heads": 24},
            r"num_attention_heads: hidden_size 1024 is not a multiple of num_attention",
        ),
        (
            {"num_key_value_heads": 3},
            r"num_key_value_heads: num_attention_heads 16 is not a multiple of num_key",
        ),
        ({"tie_word_embeddings": "no"}, r"tie_word_embeddings: 'no' is not accepted; allowed: true or false"),
        ({"model_type": "arctic"}, r"num_local_experts: missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9},
            r"num_experts_per_tok: num_experts_per_tok 9 exceeds num_local_experts 8",
        ),
        ({"model_type": "kimi_k2"}, r"qk_nope_head_dim: missing"),
        ({"model_type": "gemma3", "text_config": 3}, r"text_config: 3 is not accepted; allowed: a table of fields"),
        (
            {"model_type": "qwen3", "layer_types": ["strange", "full_attention"]},
            r"layer_types: 'strange' is not accepted; allowed: full_attention",
        ),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention"]},
            r"layer_types: '1 entries' is not accepted; allowed: num_hidden_layers = 2",
        ),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": "MX"},
            r"hybrid_override_pattern: 'X' is not accepted; allowed: a letter for each layer of M \* - E",
        ),
        (
            {"model_type": "opt", "ffn_dim": 4096, "max_position_embeddings": 2048, "word_embed_proj_dim": 512},
            r"word_embed_proj_dim: 512 differs from hidden_size 1024",
        ),
    ],
)
def test_wrong_fields_are_named(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**changes)


def test_folders_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert model(str(folder)).name == model(str(folder / "config.json")).name == "my-llama"
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    assert model(str(tmp_path / "other.json")).name == "other"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"bad\.json: not JSON \(Expecting property name"),
        (b"[1]", r"bad\.json: holds no JSON object; allowed: a Hugging Face config\.json"),
        (b"\xff\xfe", r"bad\.json: not UTF-8 text \(UTF-16\)"),
        (b"[" * 100_000, r"bad\.json: not JSON \("),
        (b" " * (4 * 1024 * 1024 + 1), r"bad\.json: has more than 4194304 bytes; allowed: up to 4194304 bytes"),
    ],
    ids=["cut", "list", "bytes", "deep", "big"],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        model(str(path))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("abc", "layer_types: 'abc' is not accepted; allowed: a list of texts"),
        (["full_attention"], "'1 entries' is not accepted; allowed: num_hidden_layers = 2 entries"),
        ([], "'0 entries' is not accepted"),
        (["full_attention", "mamba"], "'mamba' is not accepted; allowed: full_attention"),
    ],
)
def test_layer_types_are_checked_in_every_family(types: object, message: str) -> None:
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "gpt_neox", "nemotron"):
        with pytest.raises(InputError, match=message):
            build(model_type=family, layer_types=types)


def test_layer_types_are_read_where_a_family_has_no_pattern_of_its_own() -> None:
    spec = build(model_type="mistral", sliding_window=512, layer_types=["sliding_attention", "full_attention"])
    assert [kind.mixer.window for kind in spec.kinds() if isinstance(kind, LayerKind) and kind.mixer] == [512, 0]
    with pytest.raises(InputError, match="allowed: a list of texts"):
        from_config({"model_type": "falcon", "layer_types": "abc"}, name="x", where="x")


SCALARS = st.none() | st.booleans() | st.integers(-5, 10**13) | st.floats(allow_nan=True) | st.text(max_size=5)


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    field=st.sampled_from(sorted({key for known in KNOWN.values() for key in known["config"]})),
    value=SCALARS | st.lists(SCALARS, max_size=3),
)
def test_no_value_of_a_field_escapes_as_another_error(family: str, field: str, value: object) -> None:
    base = next((k["config"] for k in KNOWN.values() if k["config"]["model_type"] == family), LLAMA)
    config = {**base, "num_hidden_layers": 2, "model_type": family, field: value}
    try:
        spec = from_config(config, name="x", where="config.json")
    except InputError as error:
        message = str(error)
        assert message.startswith("config.json")
        return
    assert parameter_count(spec).total > 0


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"indexer_types": ["full", "shared", "shared", "full"]}, "iwwi"),
        ({"index_topk_pattern": "FSSF"}, "iwwi"),
        ({"index_topk_freq": 1}, "iiii"),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, "iwiw"),
        ({}, "iiiw"),
    ],
)
def test_which_layers_have_an_indexer(changes: dict[str, object], kinds: str) -> None:
    spec = from_config({**SPARSE, **changes}, name="x", where="config.json")
    mixers = [kind.mixer for kind in spec.layer_kinds() if isinstance(kind, LayerKind)]
    assert "".join("i" if isinstance(m, Attention) and m.index_heads else "w" for m in mixers) == kinds


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"indexer_types": ["full", "none", "full", "full"]}, "indexer_types: 'none' is not accepted"),
        ({"index_topk_pattern": "FS"}, "index_topk_pattern: '2 entries' is not accepted"),
        ({"index_topk": 0}, "index_topk: 0 is not accepted"),
    ],
)
def test_wrong_indexers_are_refused(changes: dict[str, object], part: str) -> None:
    with pytest.raises(InputError) as error:
        from_config({**SPARSE, **changes}, name="x", where="config.json")
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 512, "sliding_window_pattern": "LLG"}, [512, 512, 0, 0]),
        ({"sliding_window": 512, "sliding_window_pattern": 2}, [512, 0, 512, 0]),
        ({"sliding_window": 512}, [512, 512, 512, 0]),
        ({"sliding_window": None, "sliding_window_pattern": 2}, [0, 0, 0, 0]),
    ],
)
def test_windows_of_exaone(changes: dict[str, object], windows: list[int]) -> None:
    config = {**KNOWN["EXAONE-4.0-32B"]["config"], "num_hidden_layers": 4, **changes}
    spec = from_config(config, name="x", where="config.json")
    assert [kind.mixer.window for kind in spec.layer_kinds() if isinstance(kind, LayerKind)] == windows


def test_a_wrong_pattern_of_exaone_is_refused() -> None:
    config = {**KNOWN["EXAONE-4.0-32B"]["config"], "sliding_window_pattern": "LX"}
    with pytest.raises(InputError, match="letters L and G"):
        from_config(config, name="x", where="config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 24, "num_key_value_heads": 24},
            "num_attention_heads: hidden_size 1024 is not a multiple of num_attention_heads 24",
        ),
        (
            {"num_key_value_heads": 5},
            "num_key_value_heads: num_attention_heads 16 is not a multiple of num_key_value_heads",
        ),
        ({"model_type": "rembert"}, "another model as a TOML file of a transformer or of layers"),
    ],
)
def test_errors_speak_the_words_of_the_configuration(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        build(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("M-M*", "hybrid_override_pattern: '4 layers' is not accepted; allowed: as many as num_hidden_layers = 56"),
        ("MX", "hybrid_override_pattern: 'X' is not accepted; allowed: a letter for each layer of M * - E"),
    ],
)
def test_wrong_hybrid_patterns_say_what_is_wrong(pattern: str, message: str) -> None:
    config = {**KNOWN["NVIDIA-Nemotron-Nano-9B-v2"]["config"], "hybrid_override_pattern": pattern}
    with pytest.raises(InputError) as error:
        from_config(config, name="x", where="config.json")
    assert message in str(error.value)


def test_fields_at_the_defaults_of_their_class_are_filled_in_and_named():
    """The published configuration of Gemma 3 27B leaves out the vocabulary; the sizes are those of its checkpoint.

    Embedding 262208 x 5376, 62 layers of q, k, v, o (32 and 16 heads of 128), three projections of 21504, four norms
    and two of 128, a final norm.
    """
    text = {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    }
    built = from_config({"model_type": "gemma3", "text_config": text}, name="x", where="config.json")
    layer = 5376 * 128 * (32 + 16 + 16 + 32) + 3 * 5376 * 21504 + 4 * 5376 + 2 * 128
    assert parameter_count(built).total == 262208 * 5376 + 62 * layer + 5376
    assert built.max_positions == 131072
    assert any(note.startswith("not stated, so the defaults of gemma3_text: vocab_size 262208") for note in built.notes)
    whole = from_config({**text, "vocab_size": 1000}, name="x", where="config.json")
    assert whole.vocab == 1000
    assert not any("vocab_size" in note for note in whole.notes)


def test_a_tower_beside_a_model_is_said_to_be_left_out():
    assert any("vision_config" in note for note in build(vision_config={"depth": 32}).notes)
    assert build().notes == ()

"""Presets, proxies, TOML models, models of measured runs, and what the catalog shows of them."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.workload.architecture import Architecture
from costmodels.workload.counts import flops_per_token, parameter_count
from costmodels.workload.describe import to_dict
from costmodels.workload.model import Attention, AttentionKind, DenseFfn, LayerKind, MoeFfn, OpaqueLayer
from costmodels.workload.presets import architecture, find, is_opaque, model, names, normalise, proxy
from costmodels.workload.stated import StatedArchitecture, model_from_architecture
from hardware.errors import InputError

EXAMPLES = Path(__file__).parents[1] / "examples" / "models"


def kind(spec, index: int = 0) -> LayerKind:
    found = spec.kinds()[index]
    assert isinstance(found, LayerKind)
    return found


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama3.1-405b", "llama31_405b"),
        ("LLaMA-3.1-405B", "llama31_405b"),
        ("Llama31 405B", "llama31_405b"),
        ("llama3-405b", "llama31_405b"),
        ("DeepSeek-R1", "deepseek_v3"),
        ("Qwen2.5-0.5B", "qwen25_0_5b"),
        ("OPT-1.3B", "opt_1_3b"),
        ("opt1.3b", "opt_1_3b"),
        ("OPT-13B", "opt_13b"),
        ("opt13b", "opt_13b"),
        ("gpt3-1.3b", "gpt3_1_3b"),
        ("GPT3-13B", "gpt3_13b"),
        ("mlm21-gpt-1.7b", "mlm21_gpt_1.7b"),
        ("Wide-ResNet-6.8B", "wide_resnet_6.8b"),
    ],
)
def test_spelling_does_not_matter(written: str, name: str) -> None:
    assert model(written).name == name


@pytest.mark.parametrize("name", names())
def test_every_preset_builds_with_a_source(name: str) -> None:
    spec = model(name)
    assert spec.name == name
    assert spec.sources
    assert spec.layers == sum(1 for _ in spec.layer_kinds())
    assert model(name.upper().replace("_", "-")).name == name


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"'lama3-70b' is not known; nearest: llama3_70b.*config\.json, or a TOML file"
    ):
        model("lama3-70b")
    assert find("no such model") is None
    assert architecture("wide-resnet-1b") is None


@given(st.text(max_size=20))
def test_any_text_is_a_preset_or_an_input_error(text: str) -> None:
    with suppress(InputError):
        assert model(text).layers > 0
    assert normalise(normalise(text)) == normalise(text)


def test_patterns() -> None:
    deepseek = model("deepseek-v3")
    assert [run.count for run in deepseek.runs] == [3, 58]
    assert isinstance(kind(deepseek).ffn, DenseFfn)
    assert isinstance(kind(deepseek, 1).ffn, MoeFfn)
    maverick = [isinstance(each.ffn, MoeFfn) for each in model("llama4-maverick").layer_kinds()]
    assert maverick == [False, True] * 24
    gemma = [each.mixer.window for each in model("gemma3-1b").layer_kinds()]
    assert gemma == ([512] * 5 + [0]) * 4 + [512] * 2
    nano = [each.name for each in model("nemotron3-nano").layer_kinds()]
    assert nano[:6] == ["mamba", "moe", "mamba", "moe", "mamba", "attention"]


def test_proxy_keeps_the_order_of_kinds() -> None:
    whole = model("deepseek-v3")
    part = proxy(whole, 5)
    assert [run.count for run in part.runs] == [3, 2]
    assert list(part.layer_kinds()) == list(whole.layer_kinds())[:5]
    assert part.mtp_layers == whole.mtp_layers
    assert proxy(whole, 61) is whole
    assert [each.name for each in proxy(model("nemotron3-nano"), 6).layer_kinds()][-1] == "attention"
    with pytest.raises(InputError, match="cannot have 62 layers; allowed: 1 to 61"):
        proxy(whole, 62)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"hidden": 0}, r"x: hidden: hidden is 0; every model needs it; allowed: a positive whole number"),
        ({"layers": 10**9}, r"x: layers: 1000000000 layers; allowed: 1 to 10000"),
        ({"heads": 0}, r"x: heads: heads is 0; a layer has attention"),
        ({"heads": 24}, r"hidden 1024 is not a multiple of heads 24; allowed: a multiple, or head_dim stated"),
        ({"kv_heads": 3}, r"heads 16 is not a multiple of kv_heads 3; allowed: a divisor of heads"),
        ({"ffn": 0}, r"ffn is 0; a layer has a dense feed-forward part"),
        ({"norm": "batch"}, r"norm 'batch' is not known; allowed: rms, layer"),
        ({"mixer_pattern": "wf"}, r"window is 0; a layer has windowed attention"),
        ({"mixer_pattern": "fx"}, r"mixer_pattern 'fx' has the letter 'x'; allowed: f w i c h l"),
        ({"mixer_pattern": "i", "window": 64}, r"index_heads is 0; a layer has attention with an indexer"),
        ({"mixer_pattern": "l"}, r"linear_key_heads is 0; a layer has linear attention"),
        ({"ffn_pattern": "de"}, r"experts is 0; a layer has experts"),
        ({"experts": 4, "top_k": 5}, r"top_k 5 exceeds experts 4; allowed: 1 to experts"),
        ({"hybrid_pattern": "M*"}, r"mamba_heads is 0; a layer is a Mamba-2 mixer"),
    ],
)
def test_architectures_that_do_not_add_up(facts: dict, message: str) -> None:
    base = {"layers": 2, "hidden": 1024, "vocab": 1000, "heads": 16, "ffn": 4096}
    with pytest.raises(InputError, match=message):
        Architecture(**{**base, **facts}).build("x")


def test_examples_are_models() -> None:
    moe = model(str(EXAMPLES / "transformer.toml"))
    assert (moe.name, moe.layers, [run.count for run in moe.runs]) == ("example-moe-16x3b", 32, [1, 31])
    windows = model(str(EXAMPLES / "windows.toml"))
    assert [each.mixer.window for each in windows.layer_kinds()][:4] == [1024, 1024, 1024, 0]
    listed, preset = model(str(EXAMPLES / "wide_resnet.toml")), model("wide-resnet-250m")
    assert parameter_count(listed).total == parameter_count(preset).total
    assert flops_per_token(listed, 1) == pytest.approx(flops_per_token(preset, 1), rel=1e-6)
    assert is_opaque(listed)
    assert not is_opaque(moe)


LAYER = """
[[layer]]
name = "conv"
forward_gflops_per_sample = 1.5
parameters = 1000
activation_mb_per_sample = 4
output_mb_per_sample = 1
"""
TRANSFORMER = "[transformer]\nlayers = 2\nhidden = 64\nvocab = 100\nheads = 4\nffn = 256\n"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_layer_list_reads_units_and_counts(tmp_path: Path) -> None:
    extra = 'count = 3\nshardable = ["tp", "cp"]\ntp_exchange_mb_per_sample = 0.5\nforward_mb_per_sample = 9\n'
    spec = model(written(tmp_path, f'name = "mine"\ntokens_per_sample = 4\n{LAYER}{extra}'))
    (layer,) = spec.kinds()
    assert layer == OpaqueLayer(
        name="conv",
        forward_flops_per_sample=1.5e9,
        parameters=1000,
        activation_bytes_per_sample=4e6,
        output_bytes_per_sample=1e6,
        shardable=("tp", "cp"),
        tp_exchange_bytes_per_sample=0.5e6,
        forward_bytes_per_sample=9e6,
    )
    assert (spec.name, spec.layers, spec.fixed_seq) == ("mine", 3, 4)
    assert to_dict(spec)["flops_per_token"] == 3 * 3 * 1.5e9 / 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", r"mine\.toml: not TOML"),
        ('name = "x\\ny"\n' + TRANSFORMER, r"mine\.toml: name: 'x\\ny' is not accepted; allowed: a text of one line"),
        ('name = " "\n' + TRANSFORMER, r"name: ' ' is not accepted; allowed: a text of one line that can be printed"),
        ('name = "x"\n', r"mine\.toml: needs one of \[transformer\] and \[\[layer\]\]"),
        (TRANSFORMER + LAYER, r"needs one of"),
        ('nam = "x"\n' + TRANSFORMER, r"mine\.toml: unknown field 'nam' \(did you mean 'name'\?\)"),
        (TRANSFORMER + "layer_count = 3\n", r"mine\.toml: transformer: unknown field 'layer_count'"),
        (TRANSFORMER.replace("layers = 2\n", ""), r"transformer: layers: missing; allowed: a whole number from 1"),
        (TRANSFORMER.replace("64", '"64"'), r"transformer: hidden: '64' is not accepted; allowed: a whole number"),
        (TRANSFORMER.replace("64", "-64"), r"transformer: hidden: -64 is not accepted"),
        (TRANSFORMER.replace("64", "true"), r"transformer: hidden: True is not accepted"),
        (TRANSFORMER + "gated = 1\n", r"transformer: gated: 1 is not accepted; allowed: true or false"),
        (TRANSFORMER + "norm = 3\n", r"transformer: norm: 3 is not accepted; allowed: a text"),
        ("layer = []\n", r"layer: \[\] is not accepted; allowed: one or more \[\[layer\]\] tables"),
        (LAYER.replace("parameters = 1000\n", ""), r"layer\[0\]: parameters: missing"),
        (LAYER.replace("1.5", "-1.5"), r"forward_gflops_per_sample: -1\.5 is not accepted; allowed: a number, not neg"),
        (LAYER.replace("1.5", "nan"), r"forward_gflops_per_sample: nan is not accepted"),
        (LAYER + 'shardable = ["pp"]\n', r"shardable: 'pp' is not accepted; allowed: tp, cp, ep"),
        (LAYER + 'shardable = "tp"\n', r"shardable: 'tp' is not accepted; allowed: a list of texts"),
        (LAYER + "count = 0\n", r"count: 0 is not accepted; allowed: a whole number from 1"),
        (LAYER + "count = 1000000\n", r"count: 1000000 is not accepted; allowed: 1 to 10000"),
        (LAYER + LAYER.replace("1000", "2000"), r"layer\[1\]: name: 'conv' names two unlike layers"),
    ],
)
def test_wrong_files_name_the_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(written(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.toml: cannot be read \(No such file"):
        model(str(tmp_path / "gone.toml"))
    big = tmp_path / "big.toml"
    big.write_text("#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(InputError, match="allowed: up to 4194304 bytes"):
        model(str(big))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8 text"):
        model(str(binary))


def test_stated_names_that_are_presets() -> None:
    whole = model_from_architecture(StatedArchitecture(name="Llama3-70B"))
    assert whole == model("llama3-70b")
    assert model_from_architecture(StatedArchitecture(name="LLaMA-30B (as named)")).name == "llama_30b"
    assert model_from_architecture(StatedArchitecture(name="Llama-2-70B LoRA fine-tune")).name == "llama2_70b"
    with pytest.raises(InputError, match="'GPT2-18B' is not known"):
        model_from_architecture(StatedArchitecture(name="GPT2-18B"))
    with pytest.raises(InputError, match="states no hidden size; allowed: a preset, or layers and hidden size"):
        model_from_architecture(StatedArchitecture(name="Odd", layers=4))
    with pytest.raises(InputError, match="states no layers"):
        model_from_architecture(StatedArchitecture(name="Odd", hidden=4096))


def test_stated_numbers_go_over_the_preset() -> None:
    experts = StatedArchitecture(
        name="Mixtral-8x22B-G8T8",
        layers=56,
        hidden=6144,
        ffn=2048,
        heads=48,
        kv_heads=8,
        vocab=32768,
        experts=64,
        top_k=8,
    )
    spec = model_from_architecture(experts)
    ffn = kind(spec).ffn
    assert isinstance(ffn, MoeFfn)
    assert (ffn.experts, ffn.top_k, ffn.hidden, spec.vocab) == (64, 8, 2048, 32768)
    kept = model_from_architecture(StatedArchitecture(name="Qwen3-30B-A3B", layers=48, hidden=2048, ffn=768, heads=32))
    assert parameter_count(kept).total == parameter_count(model("qwen3-30b-a3b")).total
    other = model_from_architecture(StatedArchitecture(name="GPT-2 350M-class", layers=24, hidden=1024, ffn=4096))
    assert parameter_count(other).total == pytest.approx(355e6, rel=0.01)  # not GPT-2 of width 768


def test_stated_truncations_keep_one_dense_layer() -> None:
    v3 = model_from_architecture(
        StatedArchitecture(name="deepseekv3 truncated to 4 layers", layers=4, hidden=7168, ffn=18432, heads=128)
    )
    assert [run.count for run in v3.runs] == [1, 3]
    assert v3.mtp_layers == 0
    mixer = kind(v3).mixer
    assert isinstance(mixer, Attention)
    assert mixer.kind is AttentionKind.LATENT
    dense = model_from_architecture(StatedArchitecture(name="llama3-70b truncated to 12 layers", hidden=8192))
    assert dense.layers == 12


@pytest.mark.parametrize(
    ("stated", "gated", "tied", "parameters"),
    [
        (
            {"name": "GPT 1.7B", "layers": 24, "hidden": 2304, "ffn": 9216, "heads": 24, "vocab": 51200},
            False,
            True,
            1.65e9,
        ),
        ({"name": "Llama-like 3.57B", "layers": 28, "hidden": 3072, "ffn": 8192, "heads": 32}, True, False, 3.36e9),
        (
            {
                "name": "Llama-like 3.57B",
                "layers": 28,
                "hidden": 3072,
                "ffn": 8192,
                "heads": 32,
                "vocab": 131072,
                "parameters": 3.57e9,
            },
            True,
            True,
            3.57e9,
        ),
        (
            {
                "name": "Llama-like 8.86B",
                "layers": 32,
                "hidden": 4096,
                "ffn": 14336,
                "heads": 32,
                "vocab": 131072,
                "parameters": 8.86e9,
            },
            True,
            False,
            8.86e9,
        ),
        ({"name": "unnamed", "layers": 2, "hidden": 1024, "ffn": 2816}, True, False, 0.0),
        ({"name": "unnamed", "layers": 2, "hidden": 1024, "ffn": 4096}, False, True, 0.0),
        ({"name": "GPT (BLOOM tuning)", "hidden": 14336, "heads": 64, "parameters": 181e9}, False, True, 181e9),
    ],
)
def test_rules_for_what_a_run_leaves_open(stated: dict, gated: bool, tied: bool, parameters: float) -> None:
    spec = model_from_architecture(StatedArchitecture(**stated))
    ffn = kind(spec).ffn
    assert isinstance(ffn, DenseFfn)
    assert (ffn.gated, spec.tied_embeddings) == (gated, tied)
    assert spec.notes
    if parameters:
        assert parameter_count(spec).total == pytest.approx(parameters, rel=0.01)


def test_stated_vocabulary_and_heads() -> None:
    aleph = StatedArchitecture(name="LLAMA-13B (128k vocab)", layers=40, hidden=5120, ffn=13824, heads=40, seq=2048)
    assert model_from_architecture(aleph).vocab == 128000
    plain = model_from_architecture(StatedArchitecture(name="x 128k vocab", layers=1, hidden=4096))
    assert plain.vocab == 128000
    mixer = kind(plain).mixer
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.qk_dim) == (32, 128)
    narrow = kind(model_from_architecture(StatedArchitecture(name="x", layers=1, hidden=1024))).mixer
    assert isinstance(narrow, Attention)
    assert narrow.qk_dim == 64


def test_catalog_view_is_json() -> None:
    view = to_dict(model("deepseek-v3"))
    assert json.loads(json.dumps(view)) == view
    assert view["parameters"] == 671_026_404_352
    assert view["layers"] == 61
    assert view["mtp_parameters"] == 11_610_067_968
    assert view["flops_per_token"] == flops_per_token(model("deepseek-v3"), 4096)
    assert to_dict(model("gpt2"))["seq"] == 1024
    assert to_dict(model("llama3-8b"), seq=8192)["flops_per_token"] == pytest.approx(51.47e9, rel=1e-4)
    per_image = to_dict(model("wide-resnet-250m"))
    assert "per sample" in str(per_image["flops_convention"])


def test_loading_one_preset_imports_nothing_heavy() -> None:
    code = (
        "from costmodels.workload.presets import model; model('llama3-70b'); import sys; print('numpy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

"""Spellings of models' names, and where their presets stand."""

import tomllib
from pathlib import Path

import pytest

from costmodels.workload import preset_table
from costmodels.workload.presets import beginning, find, model
from hardware.errors import InputError

AS_TABLES_WRITE = {
    "Llama 3.1 405B": "llama31_405b",
    "LLAMA3.1-405B": "llama31_405b",
    "meta-llama/Meta-Llama-3-70B": "llama3_70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_8b",
    "Qwen3 30B-A3B": "qwen3_30b_a3b",
    "Qwen3-235B-A22B-Instruct-2507": "qwen3_235b_a22b",
    "qwen25_1p5b": "qwen25_1_5b",
    "GPT-OSS 120B": "gpt_oss_120b",
    "Nemotron-4-340B": "nemotron4_340b",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": "nemotron3_super",
    "GPT-3 175B": "gpt3_175b",
    "GPT3-175B": "gpt3_175b",
    "gpt3 1-3b": "gpt3_1_3b",
    "Mixtral-8x22B-v0.1": "mixtral_8x22b",
    "Mixtral-8x7B-Instruct-v0.1": "mixtral_8x7b",
    "Mistral-7B-v0.1": "mistral_7b_v0_1",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek_v3",
    "google/gemma-2-9b-it": "gemma2_9b",
    "zai-org/GLM-4.5-FP8": "glm45",
    "kimi_k2_1t": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "glm45_355b": "glm45",
    "THUDM/glm-4-9b-chat": "glm4_9b",
    "qwen3_235b": "qwen3_235b_a22b",
    "qwen2_500m": "qwen25_0_5b",
    "Qwen3.5-397B-A17B": "qwen35_397b_a17b",
    "qwen35_vl_397b_a17b": "qwen35_397b_a17b",
    "Qwen/Qwen3-VL-30B-A3B-Instruct": "qwen3_vl_30b_a3b",
    "qwen1.5 72B-Chat": "qwen15_72b",
    "Baichuan2-13B-Chat": "baichuan2_13b",
    "chatglm3-6b": "chatglm3_6b",
    "bert_110m": "bert_base",
    "BERT-Large": "bert_large",
    "Mistral-Nemo-12B": "mistral_nemo_12b",
    "mistralai/Mistral-Small-24B-Base-2501": "mistral_small_24b",
    "Mistral-Large-Instruct-2407": "mistral_large_123b",
    "databricks/dbrx-instruct": "dbrx_132b",
    "01-ai/Yi-1.5-9B": "yi_9b",
    "c4ai-command-r-plus": "command_r_plus_104b",
    "ibm-granite/granite-3.1-8b-instruct": "granite3_8b",
    "bigscience/bloom-7b1": "bloom_7_1b",
    "tiiuae/falcon-180B-chat": "falcon_180b",
    "allenai/OLMo-2-1124-7B": "olmo2_7b",
    "vicuna-7b-v1.5": "llama2_7b",
    "Llama-3.3-70B-Instruct": "llama3_70b",
    "GPT-39.1B": "mlm21_gpt_39b",
    "GPT 1008B": "mlm21_gpt_1t",
    "MT-NLG 530B": "mlm21_gpt_530b",
    "Turing-NLG-17B": "turing_nlg_17b",
    "GPT-13B": "gpt3_13b",
}


@pytest.mark.parametrize(("written", "name"), AS_TABLES_WRITE.items())
def test_names_as_tables_write_them(written: str, name: str) -> None:
    found = find(written)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "written",
    [
        "GPT2-30B",
        "GPT3 30B",
        "Wide-ResNet-1.3B",
        "llama3-80b",
        "gpt-neo-27b",
        "GPT 1.7B",
        "qwen3-2.35b-a22b",
        "opt 17.5b",
        "v0.1",
    ],
)
def test_another_size_is_another_model(written: str) -> None:
    assert find(written) is None
    with pytest.raises(InputError, match="is not known"):
        model(written)


def test_a_name_of_two_papers_is_answered_with_both() -> None:
    with pytest.raises(InputError, match=r"nearest: mlm21_gpt_1\.7b, mlm_gpt_1\.7b"):
        model("GPT 1.7B")


def test_every_spelling_stands_in_the_file_that_its_beginning_names() -> None:
    for file in preset_table._index().files:
        for spelling, entry in preset_table._table(file).entries.items():
            assert preset_table.file_of(spelling) == file, spelling
            assert preset_table.exact(spelling) is entry


def test_no_spelling_means_two_presets() -> None:
    meant: dict[str, str] = {}
    for entry in preset_table.entries():
        for spelling in (entry.name, *entry.aliases):
            key = preset_table._separated(spelling)
            assert meant.setdefault(key, entry.name) == entry.name


def test_recipes_of_megatron_bridge_begin_with_presets() -> None:
    recipes = tomllib.loads((Path(__file__).parent / "reference" / "bridge_recipes.toml").read_text())["recipe"]
    assert {recipe["name"]: recipe["model"] for recipe in recipes} == {
        recipe["name"]: spec.name for recipe in recipes if (spec := beginning(recipe["name"]))
    }


def test_one_preset_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = preset_table._read
    monkeypatch.setattr(preset_table, "_read", lambda file: (read.append(file), original(file))[1])
    for cached in (preset_table._index, preset_table._table, find):
        cached.cache_clear()
    assert find("Llama-3.1-70B") is not None
    assert find("no such model") is None
    assert read == ["index", "llama"]


def test_a_folder_comes_before_a_preset_of_its_name(tmp_path) -> None:
    folder = tmp_path / "llama3_8b"
    folder.mkdir()
    with pytest.raises(InputError, match="the folder has no config"):
        model(str(folder))

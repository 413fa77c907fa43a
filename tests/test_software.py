"""Software presets: which one a run gets, what its own remarks change, and the facts of eras."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodels.software
from costmodels.job import Dispatcher, Software
from costmodels.precision import precision
from costmodels.software import RunText, names, software, software_for
from costmodels.workload.kernels import Softmax
from hardware.errors import InputError

TABLES = tomllib.loads(Path(costmodels.software.__file__).with_suffix(".toml").read_text())


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (RunText(framework="megatron-bridge", version="25.11"), "megatron-bridge"),
        (RunText(framework="megatron-bridge", version="26.04"), "megatron-bridge-26"),
        (RunText(framework="nemo-1 (launcher)", version="24.09/24.12"), "nemo-1"),
        (RunText(framework="nemo-2", version="25.07", precision="mxfp8"), "nemo-2"),
        (RunText(framework="nemo-2", version="v25.05", precision="bf16"), "nemo-2-bf16"),
        (RunText(framework="megatron-lm (core)", version="2026-05"), "megatron"),
        (RunText(framework="megatron-lm", version="2022-05"), "megatron-2022"),
        (RunText(framework="Megatron-LM 2021"), "megatron-2021"),
        (RunText(framework="Megatron-LM", source="github:alpa-projects/alpa:osdi22_artifact"), "megatron-2021"),
        (RunText(framework="Megatron-LM", source="arXiv 2205.05198 Table 5"), "megatron-2022"),
        (RunText(framework="Megatron-LM", date="2022-11-30"), "megatron-2022"),
        (RunText(framework="Megatron-LM", date="2023-05"), "megatron-2023"),
        (RunText(framework="Megatron-LM", date="2024-01"), "megatron"),
        (RunText(framework="Megatron-DeepSpeed (PyTorch 2.0.1)"), "deepspeed"),
        (RunText(framework="DeepSpeed Megatron-LM-v1.1.5-3D"), "deepspeed-2020"),
        (RunText(framework="Megatron-DeepSpeed new (SP+flash)"), "deepspeed-flash"),
        (RunText(framework="Aleph Alpha scaling (PyTorch/DeepSpeed)"), "aleph-alpha"),
        (RunText(framework="DeepSpeed ZeRO-3"), "deepspeed-zero"),
        (RunText(framework="ds-ulysses"), "deepspeed-ulysses"),
        (RunText(framework="torchtitan", version="2025-06"), "torchtitan"),
        (RunText(framework="fms-fsdp (FSDP1, compile)"), "fsdp-compiled"),
        (RunText(framework="llm-foundry/composer FSDP"), "composer"),
        (RunText(framework="automodel (PyTorch FSDP2)"), "automodel"),
        (RunText(framework="nanotron v0.5"), "nanotron"),
        (RunText(framework="nanotron v0.5", gpus="512", tp="4", pp="8"), "nanotron"),
        (RunText(framework="nanotron v0.5", source="ultrascale-0001", gpus="256", tp="4", pp="8"), "nanotron"),
        (RunText(framework="nanotron v0.5", source="ultrascale-0001", gpus="512", tp="32", pp="1"), "nanotron"),
        (RunText(framework="nanotron v0.5", source="ultrascale-0001", gpus="512", tp="4", pp="8"), "nanotron-polling"),
        (RunText(framework="nanotron v0.5", source="ultrascale-0001", gpus="64", tp="32", pp="16"), "nanotron-polling"),
        (RunText(framework="InternEvo"), "internevo"),
        (RunText(framework="Alpa 0.1.5 (searched)"), "alpa"),
        (RunText(framework="maxtext (JAX)"), "maxtext"),
        (RunText(framework="MaxText", hardware="H100"), "maxtext"),
        (RunText(framework="MaxText", hardware="tpu-v5p"), "maxtext-tpu"),
        (RunText(framework="Levanter", hardware="TPU v4"), "maxtext-tpu"),
        (RunText(framework="prime-rl"), "prime-rl"),
        (RunText(framework="torchtitan", version="2025-06", notes="async TP, bf16"), "torchtitan-async-tp"),
        (RunText(framework="torchtitan", source="asyncTP_llama3_h100.md", notes="vanilla TP, compile"), "torchtitan"),
        (RunText(framework="Galvatron"), "galvatron"),
        (RunText(framework="Merak"), "merak"),
        (RunText(framework="NVIDIA NeMo Framework Release 25.09", source="github:mlcommons/training"), "mlperf-nvidia"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.framework,
)
def test_framework_and_era_choose_the_preset(run: RunText, name: str) -> None:
    match = software_for(run)
    assert match.software.name == name
    assert match.reason.startswith(f"{name} (")


def test_unknown_frameworks_fall_back_and_say_so() -> None:
    match = software_for(RunText(framework="Brand-New-Stack 1.0"))
    assert match.software == software("generic")
    assert match.reason == "no rule for framework 'Brand-New-Stack 1.0': generic"


@pytest.mark.parametrize(
    ("run", "field", "value"),
    [
        (RunText(framework="nemo-1", overlap="dp: on; tp: ub_tp_comm_overlap off in yaml"), "tp_overlap", False),
        (RunText(framework="megatron-bridge", overlap="tp: tp_comm_overlap (userbuffers)"), "tp_overlap", True),
        (RunText(framework="megatron-bridge", overlap="ep: overlap_moe_expert_parallel_comm"), "expert_overlap", True),
        (RunText(framework="megatron-bridge", overlap="dp: overlap_grad_reduce disabled"), "grad_overlap", False),
        (RunText(framework="megatron-bridge", cuda_graphs="full_iteration:"), "cuda_graphs", True),
        (RunText(framework="megatron-bridge", cuda_graphs="transformer_engine:attn"), "cuda_graphs", True),
        (RunText(framework="megatron-bridge", cuda_graphs="none"), "cuda_graphs", False),
        (RunText(framework="megatron-bridge", dispatcher="hybridep"), "dispatcher", Dispatcher.HYBRIDEP),
        (RunText(framework="megatron-bridge", dispatcher="deepep"), "dispatcher", Dispatcher.DEEPEP),
        (RunText(framework="megatron-bridge", routing="token-drop"), "capacity_factor", 1.0),
        (RunText(framework="Aleph Alpha scaling", notes="kernel: torch; trial 1"), "flash_attention", False),
        (RunText(framework="Aleph Alpha scaling", notes="kernel: torch; trial 1"), "softmax", Softmax.SEPARATE_FP32),
        (RunText(framework="Aleph Alpha scaling", notes="kernel: flash_attention2; trial 1"), "fused_norms", False),
        (RunText(framework="Aleph Alpha scaling", notes="kernel: flash_attention2 + RMS kernel"), "fused_norms", True),
        (RunText(framework="Mist", notes="flash_attn=True"), "flash_attention", True),
        (RunText(framework="torchtitan", version="2024-12", notes="FSDP; seq 8192"), "compiled", False),
        (RunText(framework="megatron-bridge", routing="dropless, unforced"), "routing_imbalance", 1.4),
        (RunText(framework="megatron-bridge", cuda_graphs="full_iteration"), "expert_overlap", True),
        (RunText(framework="Megatron-LM (TE 2.11)", notes="cross-entropy fusion (cef)"), "fused_loss", True),
        (RunText(framework="flash-attn repo training; attention=none"), "flash_attention", False),
        (RunText(framework="Megatron core_v0.6.0, TE, FA2"), "loss_bytes_per_logit", 10.0),
        (RunText(framework="Megatron core_v0.6.0, TE, FA2"), "late_frees", "passes"),
        (RunText(framework="Megatron core_v0.6.0, TE, FA2"), "attention_kernel", "fa2"),
        (RunText(framework="Megatron-LM Jan 2024"), "attention_kernel", "fa2"),
        (RunText(framework="Megatron-LM", source="github:MooreThreads/SimuMax:docs"), "grad_overlap", False),
        (RunText(framework="Megatron-LM", source="github:MooreThreads/SimuMax:docs"), "cp_comm", "a2a"),
        (RunText(framework="Megatron-DeepSpeed", source="OpenLLM-France/Lucie-Training"), "blocking_launches", True),
        (RunText(framework="PaddleNLP", source="FlagPerf:training/nvidia/llama1_7B-paddle"), "fused_norms", False),
        (
            RunText(
                framework="NVIDIA NeMo Framework Release", source="mlcommons/training_results_v4.0 llama2_70b_lora"
            ),
            "cuda_graphs",
            False,
        ),
        (RunText(framework="Megatron-DeepSpeed", source="tr11-176B-ml", gpus="384"), "blocking_launches", True),
        (RunText(framework="Megatron-LM@8aa4619"), "scatter_gather", False),
        (RunText(framework="torchtune", notes="torch.compile, packed"), "compiled", True),
        (RunText(framework="torchtitan", notes="torch.compile off"), "compiled", False),
        (RunText(framework="prime-rl", notes="FA3"), "attention_kernel", "cudnn"),
        (RunText(framework="lit-gpt", notes="fused norms, fused SwiGLU"), "fused_norms", True),
        (RunText(framework="lit-gpt", notes="fused norms, fused SwiGLU"), "fused_kernels", True),
        (RunText(framework="nanoGPT", notes="no FlashAttention"), "flash_attention", False),
        (RunText(framework="Megatron-LM Jan 2021 (before interleaving)"), "scatter_gather", False),
    ],
)
def test_a_runs_remarks_go_over_the_preset(run: RunText, field: str, value: object) -> None:
    match = software_for(run)
    assert getattr(match.software, field) == value
    assert f"{field} = " in match.reason


def test_small_jobs_of_a_study_did_not_hang_and_launch_freely() -> None:
    run = RunText(framework="Megatron-DeepSpeed", source="tr11-176B-ml", gpus="80")
    assert not software_for(run).software.blocking_launches


def test_launchers_that_avoid_late_frees() -> None:
    for framework in ("megatron-bridge", "nemo-1 (launcher)", "NVIDIA NeMo Framework Release 24.04"):
        assert not software_for(RunText(framework=framework)).software.late_frees
    assert not software("megatron").late_frees  # plans run today's PyTorch


def test_late_frees_end_with_pytorch_2_8() -> None:
    for framework in ("Megatron-LM", "ms-swift megatron", "nanotron"):
        before, after = (software_for(RunText(framework=framework, date=date)) for date in ("2025-07-31", "2025-08-06"))
        assert before.software.late_frees
        assert not after.software.late_frees


def test_facts_of_eras() -> None:
    for name in ("megatron-2021", "megatron-2022", "deepspeed", "alpa", "oneflow"):
        assert not software(name).flash_attention
    assert software("megatron-2023").flash_attention
    assert not software("megatron-2023").grad_overlap
    assert software("megatron").grad_overlap
    assert not software("megatron-kwai").grad_overlap  # its scripts leave the overlap flags out
    assert not software("internevo").param_overlap
    assert software("internevo").grad_overlap
    assert software("paddle").scripted  # dynamic graphs
    assert software_for(RunText(framework="Megatron-LM@e156d2f")).software.scatter_gather  # since April 2021
    assert software("megatron-2021").dropout
    assert not software("megatron-bridge").dropout
    assert precision("bf16", framework=software("torchtitan").framework).name == "bf16-fsdp"
    assert precision("fp16", framework=software("deepspeed-zero").framework).name == "fp16-deepspeed"


@pytest.mark.parametrize("name", names())
def test_every_preset_names_its_source(name: str) -> None:
    preset = software(name)
    assert preset.name == name
    assert preset.framework
    assert preset.source


def test_rules_and_hints_are_sound() -> None:
    columns = {field.name for field in fields(RunText)}
    for rule in TABLES["rules"]:
        assert rule["preset"] in names()
        assert set(rule) - {"preset", "before"} <= columns
        assert "framework" in rule
        for pattern in (value for key, value in rule.items() if key not in {"preset", "before"}):
            assert re.compile(pattern)
            assert pattern == pattern.lower()
    known = {field.name for field in fields(Software)}
    for hint in TABLES["hints"]:
        assert hint["column"] in columns
        assert set(hint["set"]) <= known
        assert re.compile(hint["pattern"])


def test_every_rule_and_preset_can_be_reached() -> None:
    used = {rule["preset"] for rule in TABLES["rules"]} | {"generic"}
    assert used == set(names())


@pytest.mark.parametrize(("written", "name"), [("Megatron Bridge", "megatron-bridge"), ("NANOTRON", "nanotron")])
def test_names_ignore_case_and_marks(written: str, name: str) -> None:
    assert software(written).name == name


def test_unknown_presets() -> None:
    with pytest.raises(
        InputError, match=r"software 'megatorn' is not known; nearest: 'megatron'; allowed: generic, me"
    ):
        software("megatorn")


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_gets_software(framework: str, notes: str) -> None:
    match = software_for(RunText(framework=framework, notes=notes))
    assert match.software.name in names()
    assert match.reason


def test_gradients_of_recipes_are_wider_than_those_of_benchmarks():
    usual = software_for(RunText(framework="Megatron-Bridge")).software
    stated = software_for(RunText(framework="Megatron-Bridge", notes="grad_reduce_in_fp32")).software
    assert (usual.gradient_bytes, stated.gradient_bytes) == (2.0, 4.0)


def test_hugging_faces_loss_is_the_same_whoever_shards_the_model():
    assert software("fsdp-modules").loss_bytes_per_logit == software("deepspeed-modules").loss_bytes_per_logit == 12.0


def test_recompute_that_is_not_reentrant_ends_early_unless_it_is_told_not_to():
    assert software("automodel").stops_recompute
    assert software_for(RunText(framework="torchtitan", version="2024-04b")).software.stops_recompute
    assert not software("torchtitan-eager").stops_recompute  # early_stop is false since 2025-08

"""Settings of accelerate against what its own plugins make of them, alone, beside a trainer's command, and by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware.errors import InputError
from planner.ingest.judged import JudgedLaunch
from planner.ingest.trainers.accelerate_settings import accelerate_table
from planner.launches.check import check_launch, job_of_launch, read_launch
from planner.question import LaunchQuestion
from planner.request import Framework

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "reference" / "accelerate_settings.json").read_text()
)["cases"]
STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "_HYBRID_SHARD_ZERO2": 2}
TRAINER = [
    "--model_name_or_path",
    "meta-llama/Meta-Llama-3-8B",
    "--per_device_train_batch_size",
    "2",
    "--max_length",
    "4096",
]
DEEPSPEED = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}
FSDP2 = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_processes": 8,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}


def checked(
    folder: Path, settings: dict[str, Any], *words: str, framework: str = "deepspeed", **more: Any
) -> JudgedLaunch:
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    (folder / "ds.json").write_text(json.dumps(DEEPSPEED))
    question = LaunchQuestion(framework=framework, file=file, arguments=(*TRAINER, *words), **more)
    return read_launch(question)


def told(settings: dict[str, Any]) -> str:
    sections = [settings.get(name, {}) for name in ("fsdp_config", "deepspeed_config", "parallelism_config")]
    words = [f"{name}={value}" for section in sections for name, value in section.items()]
    return ",".join([settings["distributed_type"], *words])


@pytest.mark.parametrize("case", CASES, ids=lambda case: told(case["settings"]))
def test_settings_are_what_the_plugins_make_of_them(case: dict[str, Any], tmp_path: Path) -> None:
    settings, real = case["settings"], case["real"]
    judged = checked(tmp_path, settings)
    if "refused" in real:
        assert not judged.legal
        assert not judged.accepted
        return
    assert judged.legal, judged.violations
    assert judged.layout is not None
    first, world = judged.layout.first, real["processes"]
    assert judged.world == world
    if "stage" in real:
        assert first.zero == real["stage"]
        places = (judged.optimizer_offload, judged.state_offload)
        assert places == (real["optimizer"] != "none" and real["param"] == "none", real["param"] != "none")
        assert judged.layout.num_microbatches == (1 if real["steps"] == "auto" else real["steps"])
        return
    assert (str(first.recompute) == "full", judged.state_offload) == (real["checkpointing"], real["offload"])
    sizes = real.get("sizes", {"dp_replicate": 1, "dp_shard": world, "tp": 1, "cp": 1})
    assert (first.tp, first.cp) == (sizes["tp"], sizes["cp"])
    assert first.dp == sizes["dp_replicate"] * sizes["dp_shard"]
    sharded = sizes["dp_shard"] * sizes["cp"]
    stage = STAGES[real["strategy"]] if real["strategy"] else 3 if real["reshard"] else 2
    assert first.zero == (stage if sharded > 1 else 0)
    machines = settings.get("num_machines", 1) if "HYBRID" in (real["strategy"] or "") else 1
    assert first.zero_group == (sharded // machines if first.zero else world // first.tp)


def test_settings_beside_a_command_and_options_that_win_over_them(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fsdp.yaml").write_text(yaml.safe_dump(FSDP2))
    script = tmp_path / "run.sh"

    def read(options: str) -> JudgedLaunch:
        script.write_text(f"accelerate launch --config_file configs/fsdp.yaml {options} train.py {' '.join(TRAINER)}\n")
        return read_launch(LaunchQuestion(framework="deepspeed", file=script))

    plain = read("")
    assert plain.layout is not None
    assert (plain.title, plain.world, plain.layout.first.zero, plain.precision) == ("accelerate, FSDP 2", 8, 3, "bf16")
    assert plain.model is not None
    assert plain.model.name == "llama3_8b"
    other = read("--num_processes 16 --fsdp_reshard_after_forward false --mixed_precision=no")
    assert other.layout is not None
    assert (other.world, other.layout.first.zero, other.precision) == (16, 2, "fp32")
    third = read("--use_deepspeed --zero_stage 1")
    assert third.layout is not None
    assert (third.title, third.layout.first.zero) == ("DeepSpeed 0.19 by accelerate", 1)


def test_fsdp_is_priced_as_fsdp_with_shards_of_fp32(tmp_path: Path) -> None:
    judged = checked(tmp_path, FSDP2)
    assert judged.proposal is not None
    job = job_of_launch(judged, judged.proposal)
    assert judged.framework is Framework.TORCHTITAN  # whose recipes keep fp32 shards too
    assert job.software.reduce_bytes == 2.0  # reduce_dtype is param_dtype (set_mixed_precision of its plugin)
    assert not job.software.fused_kernels
    report = check_launch(
        LaunchQuestion(framework="deepspeed", file=tmp_path / "settings.yaml", arguments=TRAINER, cluster="dgx-h100")
    )
    assert report.ranked is not None


SYNC = '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}'


@pytest.mark.parametrize(
    ("version", "words", "each"),
    [
        (2, (), False),
        (1, (), False),
        (2, ("--accelerator_config", SYNC), True),
        (2, ("--accelerator_config", "sync.json"), True),
        (2, ("--accelerator_config.gradient_accumulation_kwargs.sync_each_batch=true",), True),
        (2, ("--accelerator_config", SYNC.replace("true", "false")), False),
    ],
)
def test_gradients_of_fsdp_wait_for_the_last_micro_batch_unless_each_is_synchronised(
    tmp_path: Path, version: int, words: tuple[str, ...], each: bool
) -> None:
    """As accelerate's ``accumulate`` and the Trainer's loop do: ``no_sync`` for all micro-batches but the last."""
    (tmp_path / "sync.json").write_text(SYNC)
    (tmp_path / "fsdp.yaml").write_text(yaml.safe_dump({**FSDP2, "fsdp_config": {"fsdp_version": version}}))
    script = tmp_path / "run.sh"
    line = " ".join(f"'{word}'" for word in (*TRAINER, "--gradient_accumulation_steps", "4", *words))
    script.write_text(f"accelerate launch --config_file fsdp.yaml train.py {line}\n")
    judged = read_launch(LaunchQuestion(framework="deepspeed", file=script))
    assert judged.proposal is not None
    assert job_of_launch(judged, judged.proposal).software.sync_each_batch is each
    assert any("sync_each_batch" in note for note in judged.notes) is not each
    assert not any("accelerator" in name for name in judged.unknown)


def test_products_in_fp32_reduce_gradients_in_fp32(tmp_path: Path) -> None:
    judged = checked(tmp_path, {**FSDP2, "mixed_precision": "no"})
    assert judged.proposal is not None
    assert job_of_launch(judged, judged.proposal).software.reduce_bytes == 4.0


def test_a_configuration_of_accelerate_may_leave_the_prefix_of_fsdp_out(tmp_path: Path) -> None:
    judged = checked(tmp_path, {**FSDP2, "fsdp_config": {"version": 2, "reshard_after_forward": False}})
    assert judged.layout is not None
    assert (judged.layout.first.zero, judged.unknown) == (2, ())
    assert any("no wrapping policy" in note for note in judged.notes)


def test_keys_that_accelerate_ignores_are_named_and_those_that_it_refuses_refused(tmp_path: Path) -> None:
    settings = {**FSDP2, "fsdp_config": {"fsdp_version": 2, "fsdp_shard": 1}, "parallelism_config": {"tp_size": 2}}
    judged = checked(tmp_path, settings)
    assert judged.unknown == ("fsdp_config.fsdp_shard", "parallelism_config.tp_size")
    refused = checked(tmp_path, {**FSDP2, "num_process": 4})
    assert [violation.message for violation in refused.violations] == [
        "accelerate refuses the key num_process (did you mean num_processes?)"
    ]


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        (
            {"fsdp_config": {"fsdp_version": 2, "fsdp_activation_checkpointing": True}},
            ("--gradient_checkpointing",),
            "the Trainer refuses both",
        ),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"gradient_accumulation_steps": 1}},
            ("--gradient_accumulation_steps", "4"),
            "gradient_accumulation_steps 1 in the settings of accelerate, 4 in the Trainer's options",
        ),
        ({"mixed_precision": "half"}, (), "mixed_precision half; allowed: no, fp16, bf16, fp8"),
        (
            {"parallelism_config": {"parallelism_config_tp_size": "two"}},
            (),
            "parallelism_config_tp_size 'two'; allowed",
        ),
    ],
)
def test_what_the_trainer_refuses_with_it(
    settings: dict[str, Any], words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    judged = checked(tmp_path, {**FSDP2, **settings}, *words)
    assert any(message in violation.message for violation in judged.violations), judged.violations


def test_settings_of_trl_by_name(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    stages = {"fsdp1": 3, "fsdp2": 3, "multi_gpu": 0, "zero1": 1, "zero2": 2, "zero3": 3}
    assert set(stages) == set(accelerate_table()["trl"])
    for name, stage in stages.items():
        script.write_text(f"trl sft --accelerate_config {name} --num_processes 4 {' '.join(TRAINER)}\n")
        judged = read_launch(LaunchQuestion(framework="deepspeed", file=script))
        assert judged.layout is not None, (name, judged.violations)
        assert (judged.world, judged.layout.first.zero, str(judged.layout.first.recompute)) == (4, stage, "full")
    script.write_text(f"trl sft --accelerate_config nowhere.yaml {' '.join(TRAINER)}\n")
    with pytest.raises(InputError, match=r"nowhere\.yaml is not found.*distributed_type"):
        read_launch(LaunchQuestion(framework="deepspeed", file=script))


MEGATRON = {
    "distributed_type": "MEGATRON_LM",
    "mixed_precision": "bf16",
    "num_processes": 16,
    "megatron_lm_config": {
        "megatron_lm_tp_degree": 2,
        "megatron_lm_pp_degree": 2,
        "megatron_lm_num_micro_batches": 8,
        "megatron_lm_sequence_parallelism": True,
        "megatron_lm_use_distributed_optimizer": True,
    },
}


def test_the_plugin_of_megatron_is_read_with_its_own_defaults(tmp_path: Path) -> None:
    """A context parallelism of 2, whole recompute: ``MegatronLMPlugin`` where the settings say nothing."""
    judged = checked(tmp_path, MEGATRON, framework="megatron")
    assert judged.legal, judged.violations
    assert judged.layout is not None
    first = judged.layout.first
    assert (first.tp, judged.layout.pp, first.cp, first.dp, first.zero) == (2, 2, 2, 2, 1)
    assert (judged.layout.micro_batch, judged.layout.num_microbatches, str(first.recompute)) == (2, 8, "full")
    assert "context_parallel_size 2" in judged.notes[-1]
    bare = read_launch(
        LaunchQuestion(framework="megatron", file=tmp_path / "settings.yaml", arguments=TRAINER[:4], model="gpt3_175b")
    )
    assert bare.proposal is not None
    assert f"{bare.proposal.seq} tokens are assumed" in bare.notes[-1]
    assert bare.proposal.seq == 2048  # the positions of the model
    one = {**MEGATRON["megatron_lm_config"], "megatron_lm_context_parallel_size": 1}
    assert checked(tmp_path, {**MEGATRON, "megatron_lm_config": one}, framework="megatron").layout.first.dp == 4


@pytest.mark.parametrize(
    ("settings", "framework", "right"), [(MEGATRON, "deepspeed", "megatron"), (FSDP2, "nemo", "deepspeed")]
)
def test_another_framework_is_named(settings: dict[str, Any], framework: str, right: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=f"settings of accelerate that {framework} does not read; allowed: --framework {right}"
    ):
        checked(tmp_path, settings, framework=framework)


@pytest.mark.parametrize("kind", ["XLA", "fsdp", "megatron_lm"])
def test_kinds_without_a_reader_are_refused(kind: str, tmp_path: Path) -> None:
    """As accelerate refuses those in small letters (``ClusterConfig``: not a valid ``DistributedType``)."""
    with pytest.raises(InputError, match=f"distributed_type {kind} has no reader here; allowed: DEEPSPEED, FSDP"):
        checked(tmp_path, {**FSDP2, "distributed_type": kind})


def test_an_illegal_launch_of_a_plugin_has_no_degrees_to_change(tmp_path: Path) -> None:
    """What is near is sought by the rules of a version, which FSDP's and DDP's settings have none of."""
    file = tmp_path / "settings.yaml"
    file.write_text('distributed_type: "NO"\nmixed_precision: bf16\n')
    report = check_launch(LaunchQuestion(framework="deepspeed", file=file, world=8, model="llama3_8b"))
    assert not report.judged.legal
    assert report.near == ()


@pytest.mark.parametrize("config", ["--config recipe.yaml", "--config=recipe.yaml"])
def test_settings_that_a_script_of_trl_is_given_as_its_configuration_are_read(tmp_path, config):
    """They were not read, so that no model was known."""
    (tmp_path / "zero3.yaml").write_text(yaml.safe_dump(FSDP2), encoding="utf-8")
    settings = {"model_name_or_path": "Qwen/Qwen2.5-7B", "max_length": 8192, "per_device_train_batch_size": 2}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    script = tmp_path / "run.sh"
    line = f"accelerate launch --config_file zero3.yaml src/sft.py {config} --per_device_train_batch_size 1\n"
    script.write_text(line, encoding="utf-8")
    found = read_launch(LaunchQuestion(framework="deepspeed", file=script))
    assert found.legal
    assert found.model.name == "qwen25_7b"
    assert (found.proposal.seq, found.proposal.micro_batch, found.world) == (8192, 1, 8)

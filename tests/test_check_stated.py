"""Launches of torchtitan and DeepSpeed judged as the packages themselves do: defaults, refusals, what has no price.

Expectations are what torchtitan 0.3.0 and 0.2.2 and DeepSpeed 0.19.8 did with the same words.
"""

import json
from dataclasses import replace

import pytest
from launch_words import priced_launch

from hardware.errors import InputError
from planner.ingest.judged import JudgedLaunch
from planner.launches.check import check_launch, read_launch, request_of_launch
from planner.question import LaunchQuestion

UNCAPTURED = "--training.disable_cuda_graphs"


def titan(config: str, *words: str, world: int = 8, module: str = "llama3") -> JudgedLaunch:
    arguments = ("--module", module, "--config", config, *words)
    return read_launch(LaunchQuestion(framework="torchtitan", arguments=arguments, world=world))


def deepspeed(tmp_path, config: dict, *words: str, world: int = 8, model: str = "llama3_8b") -> LaunchQuestion:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, **config}))
    return LaunchQuestion(framework="deepspeed", file=file, world=world, model=model, arguments=words)


def broken(judged: JudgedLaunch) -> set[str]:
    return {violation.rule for violation in judged.violations}


# --------------------------------------------------------------------------------------------------------- torchtitan
def test_a_configuration_brings_its_own_degrees_and_batch():
    judged = titan("llama3_70b", world=16)
    grid = judged.layout.first
    assert (grid.tp, grid.dp, judged.layout.micro_batch, judged.proposal.seq) == (8, 2, 8, 8192)
    assert grid.recompute.granularity == "full"
    assert titan("llama3_8b").layout.micro_batch == 1
    assert titan("llama3_70b", "--parallelism.tensor-parallel-degree", "2", world=16).layout.first.tp == 2
    sparse = titan("deepseek_v3_16b", module="deepseek_v3")
    assert (sparse.layout.first.ep, sparse.legal) == (8, True)  # it turns CUDA graphs off itself
    assert titan("llama3_405b", world=8).precision == "fp8-cs"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("activation-checkpoint:full", "--compile.enable"), ["--compile.enable"]),
        (("activation-checkpoint:none", "--metrics.log_freq", "5"), ["--metrics.log_freq"]),
        (("activation-checkpoint:full", "activation-checkpoint:none"), ["activation-checkpoint:none"]),
        (("activation-checkpoint:full", "--activation_checkpoint.preserve_rng_state"), []),
        (("--compile.enable", "activation-checkpoint:full"), []),
    ],
)
def test_options_behind_the_subcommand_of_checkpointing_are_not_torchtitans(words, refused):
    """Its parser reads them as the subcommand's; they were taken wherever they stood."""
    judged = titan("llama3_8b", UNCAPTURED, *words)
    found = [one for one in judged.violations if one.rule == "torchtitan-unknown-behind"]
    assert [one.values["argument"] for one in found] == refused
    assert judged.accepted == (not refused)


@pytest.mark.parametrize(
    ("words", "rule", "mended"),
    [
        (("--parallelism.pipeline_parallel_degree", "2"), "torchtitan-cuda-graphs", "disable_cuda_graphs 0 -> 1"),
        (("--compile.enable_async_tensor_parallel",), "torchtitan-compiled", "compile 0 -> 1"),
        (("activation-checkpoint:memory-budget",), "torchtitan-compiled", "compile 0 -> 1"),
    ],
)
def test_switches_that_exclude_each_other_are_refused_and_mended(words, rule, mended):
    arguments = ("--module", "llama3", "--config", "llama3_8b", "--training.local_batch_size", "8", *words)
    report = check_launch(LaunchQuestion(framework="torchtitan", arguments=arguments, world=8))
    assert broken(report.judged) == {rule}
    assert str(report.near[0].neighbour) == mended


def test_the_last_of_a_switch_and_its_opposite_counts():
    words = ("--parallelism.pipeline-parallel-degree=2", UNCAPTURED, "--training.local_batch_size=8")
    assert titan("llama3_8b", *words).legal
    assert broken(titan("llama3_8b", *words, "--training.no-disable-cuda-graphs")) == {"torchtitan-cuda-graphs"}


@pytest.mark.parametrize(
    ("schedule", "local", "wrong"),
    [
        ("InterleavedZeroBubble", 8, ()),
        ("LoopedBFS", 3, ()),
        ("InterleavedZeroBubble", 9, ("torchtitan-rounds",)),
        ("ZBVZeroBubble", 9, ()),
        ("DualPipeV", 8, ()),
        ("DualPipeV", 4, ("torchtitan-launch",)),
        ("PipelineScheduleMulti", 8, ("torchtitan-launch",)),
    ],
)
def test_schedules_are_legal_where_pytorch_takes_them_and_priced(schedule, local, wrong):
    degrees = ("--parallelism.pipeline_parallel_degree", "4", "--training.local_batch_size", str(local), UNCAPTURED)
    words = (*degrees, "--parallelism.pipeline_parallel_schedule", schedule)
    judged = titan("llama3_8b", *words, "activation-checkpoint:full")
    assert broken(judged) == set(wrong)
    assert (judged.layout is None) == bool(wrong)
    if judged.layout is not None:
        assert schedule.lower().startswith(judged.layout.schedule.value)


@pytest.mark.parametrize(
    ("schedule", "alike"),
    [
        ("Interleaved1F1B", "1f1b"),
        ("InterleavedZeroBubble", "zb-h1"),
        ("LoopedBFS", "gpipe"),
        ("1F1B", "1f1b"),
        ("ZBVZeroBubble", ""),
        ("DualPipeV", ""),
    ],
)
def test_modules_may_be_listed_as_one_position_a_stage_under_schedules_of_several(schedule, alike):
    parts = ("tok_embeddings," + ",".join(f"layers.{i}" for i in range(18)),)
    parts += (",".join(f"layers.{i}" for i in range(18, 32)) + ",norm,lm_head",)
    degrees = ("--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "8", UNCAPTURED)
    named = ("--parallelism.pipeline_parallel_schedule", schedule, "--parallelism.module_fqns_per_model_part", *parts)
    judged = titan("llama3_8b", *degrees, *named, "activation-checkpoint:full")
    assert judged.legal == bool(alike)
    if judged.layout is not None:
        assert judged.layout.layers_per_stage == ((18,), (14,))
        assert judged.layout.schedule == alike


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "InterleavedZeroBubble", "DualPipeV", "Interleaved1F1B"])
def test_a_split_backward_pass_goes_neither_with_a_compiled_model_nor_with_selective_checkpointing(schedule):
    """torchtitan's own tests of ZBVZeroBubble checkpoint in full, without torch.compile."""
    degrees = ("--parallelism.pipeline_parallel_degree", "4", "--training.local_batch_size", "8", UNCAPTURED)
    words = (*degrees, "--parallelism.pipeline_parallel_schedule", schedule)
    splits = schedule != "Interleaved1F1B"
    full, selective = "activation-checkpoint:full", "activation-checkpoint:selective"
    assert broken(titan("llama3_8b", *words, full)) == set()
    compiled = broken(titan("llama3_8b", *words, "--compile.enable", full))
    assert compiled == ({"torchtitan-split-compiled"} if splits else set())
    assert broken(titan("llama3_8b", *words, selective)) == ({"torchtitan-split-recompute"} if splits else set())


def test_pipelines_that_run_more_than_once_a_step_are_legal():
    words = ("--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "4", UNCAPTURED)
    judged = titan("llama3_8b", *words, "--training.global_batch_size", "32")
    assert judged.legal
    assert judged.layout is None
    assert "2 times a step" in judged.notes[-1]


def test_experts_over_tp_alone_are_sharded():
    """One replica of tp 4 whose experts lie on ep 2: their weights are sharded over the 2 ranks that hold the same."""
    words = ("--parallelism.tensor_parallel_degree", "4", "--parallelism.expert_parallel_degree", "2", UNCAPTURED)
    assert titan("gpt_oss_20b", *words, world=4, module="gpt_oss").layout.first.zero == 3


def test_unknown_options_of_sections_that_are_not_judged_are_named():
    judged = titan("llama3_8b", "--optimizer.lr", "1e-4", "--metrics.log_frq", "5", "--metrics.log-freq", "5")
    assert judged.unknown == ("--optimizer.lr", "--metrics.log_frq")
    assert "did you mean --metrics.log_freq?" in judged.violations[1].message
    assert judged.unjudged == ("--metrics.log_freq",)


def test_degrees_are_judged_beside_options_that_are_not_known():
    judged = titan("llama3_8b", "--parallelism.tensor_parallel_degree", "3", "--trainig.steps", "5")
    told = [violation.rule for violation in judged.violations]
    assert told[0] == "torchtitan-unknown-option"
    assert {"world-grid", "heads-tp", "kv-heads-tp-divide"} <= set(told[1:])


@pytest.mark.parametrize(("first", "last", "legal"), [(1, 1, True), (7, 1, False), (0, 0, True), (1, 9, False)])
def test_ends_count_no_more_than_a_position_has(first, last, legal):
    words = (
        *("--parallelism.pipeline_parallel_degree", "8", "--training.local_batch_size", "8", UNCAPTURED),
        *("--parallelism.pipeline_parallel_first_stage_less_layers", str(first)),
        *("--parallelism.pipeline_parallel_last_stage_less_layers", str(last)),
    )
    assert titan("llama3_8b", *words).legal == legal


def test_a_toml_of_0_2_is_judged_as_0_2(tmp_path):
    """Its model brings no settings, it has options of its own, and experts may keep tp beside ep."""
    file = tmp_path / "train.toml"
    file.write_text(
        '[model]\nname = "deepseek_v3"\nflavor = "16B"\n[training]\ndataset = "c4"\nseq_len = 4096\n'
        "[parallelism]\ntensor_parallel_degree = 2\nexpert_parallel_degree = 4\nexpert_tensor_parallel_degree = 2\n"
        "disable_loss_parallel = true\nenable_async_tensor_parallel = true\n[compile]\nenable = true\n"
    )
    judged = read_launch(LaunchQuestion(framework="torchtitan", file=file, world=8))
    assert judged.legal, judged.violations
    assert judged.title == "torchtitan 0.2"
    grid = judged.layout.first
    assert (grid.tp, grid.ep, grid.etp, judged.layout.micro_batch) == (2, 4, 2, 8)


def test_a_launch_without_a_model_names_what_is_misspelt_too():
    asked = LaunchQuestion(framework="torchtitan", arguments=("--parallelism.tensor_parallel_degre", "2"), world=8)
    with pytest.raises(InputError, match=r"names no model; .*did you mean --parallelism\.tensor_parallel_degree\?"):
        read_launch(asked)


# ---------------------------------------------------------------------------------------------------------- DeepSpeed
@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"amp": {"enabled": True}}, "amp was removed"),
        ({"curriculum_learning": {}}, "curriculum_learning was removed"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "mics_shard_size was removed"),
        ({"zero_optimization": {"stage": 2, "overlapcomm": True}}, "did you mean overlap_comm?"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"}}, "a whole number from 1"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}}, "none, cpu, nvme"),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, "ratio 0.5"),
        ({"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "cpu"}}}, "beside"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": 1}}, "both enabled"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "ZeRO stage 0"),
        ({"fp16": {"enabled": True, "loss_scale_window": 0}}, "loss_scale_window 0"),
        ({"fp16": {"enabled": True, "loss_scale_window": True}}, "loss_scale_window True; allowed: a whole number"),
        ({"fp16": {"enabled": True, "loss_scale": False}}, "loss_scale False; allowed: a number from 0"),
        ({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}}, "with ZeRO stage 3"),
        ({"communication_data_type": "fp8"}, "fp16, bf16, fp32"),
        ({"optimizer": "adam"}, "str instead of an object"),
    ],
)
def test_what_deepspeed_refuses_is_refused(tmp_path, config, part):
    judged = read_launch(deepspeed(tmp_path, config))
    assert not judged.accepted
    assert part in " ".join(violation.message for violation in judged.violations)


@pytest.mark.parametrize(
    ("config", "zero", "precision"),
    [
        ({"zero_optimization": {"stage": "auto"}, "bf16": {"enabled": "auto"}}, 0, "fp32"),
        ({"zero_optimization": {"stage": "2"}, "bf16": {"enabled": "yes"}}, 2, "bf16"),
        ({"zero_optimization": True, "bfloat16": {"enabled": True}}, 1, "bf16"),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}, "fp16": {"enabled": 1}}, 3, "fp16"),
    ],
)
def test_values_are_taken_as_deepspeed_takes_them(tmp_path, config, zero, precision):
    judged = read_launch(deepspeed(tmp_path, config))
    assert judged.legal, judged.violations
    assert (judged.layout.first.zero, judged.precision) == (zero, precision)


def test_an_offloaded_optimizer_and_wide_gradients_have_their_price(tmp_path):
    section = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    config = {"zero_optimization": section, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    judged = read_launch(deepspeed(tmp_path, config))
    software = request_of_launch(judged, "dgx-h100:1").job.software
    assert (software.optimizer_offload, software.gradient_bytes) == (True, 4.0)
    assert not read_launch(deepspeed(tmp_path, {"zero_optimization": {"stage": 2}})).optimizer_offload


@pytest.mark.parametrize(
    ("stage", "told", "version", "cast", "gradient_bytes"),
    [
        (1, "fp32", "0.19", True, 6.0),  # BF16_Optimizer: fp32 sums beside the gradients of a micro-batch
        (1, "", "0.19", False, 2.0),
        (1, "bf16", "0.19", False, 2.0),
        (2, "fp32", "0.19", False, 4.0),
        (0, "", "0.19", False, 2.0),
        (0, "", "0.17.5", True, 6.0),
        (0, "fp32", "0.17.5", True, 6.0),
        (0, "bf16", "0.17.5", False, 2.0),
    ],
)
def test_gradients_in_bf16_are_cast_where_deepspeed_sums_copies(tmp_path, stage, told, version, cast, gradient_bytes):
    config = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}
    question = deepspeed(tmp_path, config | ({"data_types": {"grad_accum_dtype": told}} if told else {}))
    judged = read_launch(replace(question, version=version))
    software = request_of_launch(judged, "dgx-h100:1").job.software
    assert judged.legal, judged.violations
    assert (software.cast_gradients, software.gradient_bytes) == (cast, gradient_bytes)


def test_an_offloaded_optimizer_sums_no_copies(tmp_path):
    section = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    config = {"zero_optimization": section, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    judged = read_launch(deepspeed(tmp_path, config))
    assert not request_of_launch(judged, "dgx-h100:1").job.software.cast_gradients


@pytest.mark.parametrize(
    ("half", "told", "version", "legal"),
    [
        ("bf16", "fp32", "0.19", False),
        ("bf16", "fp32", "0.17.5", True),
        ("bf16", "bf16", "0.19", True),
        ("fp16", "float16", "0.19", True),
        ("none", "bf16", "0.19", False),
    ],
)
def test_sums_without_zero_are_in_the_format_of_products(tmp_path, half, told, version, legal):
    config = {half: {"enabled": True}} if half != "none" else {}
    question = deepspeed(tmp_path, {**config, "data_types": {"grad_accum_dtype": told}})
    judged = read_launch(replace(question, version=version))
    assert judged.legal == legal, judged.violations
    assert legal or "grad_accum_dtype" in judged.violations[0].message


def test_degrees_of_the_configuration_itself(tmp_path):
    judged = read_launch(deepspeed(tmp_path, {"sequence_parallel_size": 4, "train_batch_size": 2}))
    assert (judged.layout.first.cp, judged.layout.first.dp) == (4, 2)
    judged = read_launch(deepspeed(tmp_path, {"tensor_parallel": {"autotp_size": 2}}))
    assert (judged.layout.first.tp, judged.layout.first.dp) == (2, 4)


@pytest.mark.parametrize(("model", "split"), [("llama3_8b", (10, 11, 11)), ("gpt2_xl", (16, 17, 15))])
def test_embeddings_count_as_layers_and_tied_heads_too(tmp_path, model, split):
    words = ("--pipeline-model-parallel-size", "3", "--pp-partition-method", "type:transformer|embedding")
    judged = read_launch(deepspeed(tmp_path, {}, *words, world=3, model=model))
    assert judged.built == tuple((count,) for count in split)


def test_a_cut_that_depends_on_the_program_is_legal_without_a_price(tmp_path):
    words = ("--pipeline-model-parallel-size", "2", "--pp-partition-method", "uniform")
    question = deepspeed(tmp_path, {}, *words)
    report = check_launch(replace(question, cluster="dgx-h100:1"))
    assert (report.judged.legal, report.ranked) == (True, None)
    assert "no price" in " ".join(report.judged.notes)


def test_a_launch_without_a_sequence_says_which_is_assumed(tmp_path):
    judged = read_launch(deepspeed(tmp_path, {}))
    assert judged.proposal.seq == 4096  # not the 131,072 positions that the model has
    assert "4096 tokens are assumed; --seq-length states it" in judged.notes[0]
    stated = read_launch(deepspeed(tmp_path, {}, "--seq-length", "8192"))
    assert stated.proposal.seq == 8192
    assert not any("assumed" in note for note in stated.notes)
    assert read_launch(deepspeed(tmp_path, {}, model="gpt2_xl")).proposal.seq == 1024


def test_overrides_on_one_line_are_overrides(tmp_path):
    file = tmp_path / "overrides.txt"
    file.write_text("trainer.num_nodes=2 trainer.devices=8 trainer.strategy.tensor_model_parallel_size=8\n")
    judged = read_launch(LaunchQuestion(framework="nemo", file=file, model="llama3_8b"))
    assert (judged.world, judged.layout.first.tp) == (16, 8)


# ---------------------------------------------------------------------------------------------------------- Galvatron
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, ""),
        ({"chunks": 3}, "no price"),  # a replica's samples in chunks of two sizes
        ({"global_bsz": 8}, "16 replicas"),  # the vocabulary has tp 1 where vtp is left out
        ({"global_bsz": 8, "vtp": 4}, ""),
        ({"chunks": 3, "pp_division": "16,15"}, "pp_division"),
    ],
)
def test_galvatron_asks_the_vocabulary_too(tmp_path, changes, part):
    """As check_hp_config and get_hybrid_parallel_configs_api of Hetu-Galvatron 2.4.1 do."""
    lists = {name: ",".join([value] * 32) for name, value in (("tp_sizes_enc", "4"), ("tp_consecutive_flags", "1"))}
    config = {"pp_deg": 2, **lists, "dp_types_enc": ",".join(["0"] * 32), "global_bsz": 32, "chunks": 2}
    file = tmp_path / "galvatron.json"
    file.write_text(json.dumps({**config, "default_dp_type": "zero2", **changes}))
    judged = read_launch(LaunchQuestion(framework="galvatron", file=file, world=32, model="llama3_8b"))
    told = " ".join((*judged.notes, *(violation.message for violation in judged.violations)))
    assert judged.legal == (part in ("", "no price")), judged.violations
    assert part in told


@pytest.mark.parametrize(
    ("words", "legal"),
    [
        (("--parallelism.expert_parallel_degree", "3"), False),
        (("--parallelism.expert_parallel_degree", "4"), True),
        (("--parallelism.expert_parallel_degree", "8", "--parallelism.data_parallel_replicate_degree", "2"), False),
    ],
)
def test_the_mesh_of_experts_is_made_of_dense_models_too(words, legal):
    """``_unflatten`` of torchtitan 0.3 raises: (pp, replicas, sharded // ep, ep) does not multiply out to the ranks."""
    found = broken(titan("llama3_8b", *words))
    assert ("torchtitan-ep-grid" not in found) == legal


@pytest.mark.parametrize(
    ("zero", "words", "beside"),
    [
        ({"stage": 2, "overlap_comm": True}, (), True),
        ({"stage": 2, "overlap_comm": False}, (), False),
        ({"stage": 1}, (), False),  # on by default in stage 3 alone
        ({"stage": 3}, (), True),
        ({"stage": 3, "overlap_comm": "auto"}, (), True),
        ({"stage": 3, "overlap_comm": False}, (), False),
        ({"stage": 1, "overlap_comm": True}, ("--pipeline-model-parallel-size", "2"), None),
        ({"stage": 0}, (), None),
    ],
)
def test_reductions_beside_the_backward_pass_are_priced_as_stated(tmp_path, zero, words, beside):
    judged = read_launch(deepspeed(tmp_path, {"zero_optimization": zero, "gradient_accumulation_steps": 2}, *words))
    assert judged.stated.fields.get("grad_overlap") is beside
    late = [note for note in judged.notes if "overlap_comm" in note]
    assert bool(late) is (beside is False)


def test_stated_overlap_changes_the_price_of_a_launch_on_deepspeed(tmp_path):
    times = {}
    for beside in (True, False):
        config = {"zero_optimization": {"stage": 1, "overlap_comm": beside}, "bf16": {"enabled": True}}
        question = replace(deepspeed(tmp_path, config, world=16), cluster="dgx-a100:2")
        times[beside] = priced_launch(question).ranked.cost.step.total_s
    assert times[True] < times[False]


def test_curricula_and_dropped_tokens_are_said_to_have_no_price(tmp_path):
    on = {"enabled": True}
    config = {
        "data_efficiency": {
            **on,
            "data_sampling": {**on, "curriculum_learning": on},
            "data_routing": {**on, "random_ltd": {"enabled": False}},
        }
    }
    notes = read_launch(deepspeed(tmp_path, config)).notes
    assert [note for note in notes if "the curriculum begins" in note]
    assert not [note for note in notes if "skip tokens" in note]


def test_beside_what_deepspeed_refuses_stand_degrees_that_do_not_fit(tmp_path):
    both = {"bf16": {"enabled": True}, "fp16": {"enabled": True}}
    judged = read_launch(deepspeed(tmp_path, both, "--tensor-model-parallel-size", "3"))
    assert {"deepspeed-value", "world-grid", "heads-tp"} <= broken(judged)
    wrong = read_launch(deepspeed(tmp_path, {"zero_optimization": {"stage": 9}}, "--tensor-model-parallel-size", "3"))
    assert {"deepspeed-value", "world-grid", "heads-tp"} <= broken(wrong)  # whatever the stage would be

"""Low-rank adapters: published counts, what a frozen model does without, launches, exports."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from one_op import op_times

import costmodels.workload.adapters
from costmodels.compute import default_efficiency
from costmodels.goodput import checkpoint_bytes
from costmodels.job import TrainingJob
from costmodels.layout import Strategy
from costmodels.memory.layer import embedding_memory, layer_memory
from costmodels.precision import precision
from costmodels.software import software
from costmodels.table import table_of
from costmodels.workload.adapters import adapter_parameters, target_modules
from costmodels.workload.counts import parameter_count
from costmodels.workload.huggingface.config import FAMILIES, from_config
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import DeltaNet
from costmodels.workload.presets import model, names
from hardware.catalog import accelerator
from hardware.errors import InputError
from planner.adapters import asked_adapters, said_targets, targets_of, with_adapters, without_adapters
from planner.export.hosts import Site
from planner.export.launch import Planned
from planner.ingest.adapters import of_overrides
from planner.ingest.launch_text import LaunchText
from planner.launches.check import job_of_launch, read_launch
from planner.layouts.build import uniform_layout
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.layouts.request_notes import request_notes
from planner.planning import estimate
from planner.question import LaunchQuestion, Question, job_of, question_of, request_of
from planner.report.launch import EXPORTERS
from planner.request import Framework
from planner.rules import broken_rules
from planner.sayable import EVERYTHING, TRAINER

LLAMA = model("llama3-8b")
ALONE = table_of([Strategy()], pp=[1], micro_batch=[1])


@pytest.mark.parametrize(
    ("name", "rank", "targets", "separate", "published"),
    [
        ("llama3-8b", 16, ("attn", "mlp"), True, 41_943_040),  # unsloth's notebook of Llama 3 8B prints it
        ("llama3-8b", 8, ("attn", "mlp"), True, 20_971_520),  # LLaMA-Factory: "trainable params" of its example
        ("llama2-70b", 16, ("attn",), False, 44_564_480),  # 80 layers of 16 (8192 + 10240 + 8192 + 8192)
    ],
)
def test_parameters_are_those_that_trainers_print(name, rank, targets, separate, published):
    assert adapter_parameters(model(name), rank, target_modules(targets), separate=separate) == published


SMALL = json.loads((Path(__file__).parent / "reference" / "huggingface_small.json").read_text())["models"]


@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: entry["config"]["model_type"])
def test_every_linear_module_of_a_class_has_an_adapter(entry):
    """Of rank 1: the inputs and outputs of every linear module of the class but head and routers."""
    built = from_config(entry["config"], name="x", where="config.json")
    modules = target_modules(("attn", "mlp", "mamba", "gdn"))
    assert adapter_parameters(built, 1, modules, separate=True) == entry["adapters"]


def of_layers(*layers: tuple[int, tuple[tuple[int, int], ...]]) -> int:
    """Parameters of adapters of rank 1: so many layers, each with modules of (inputs, outputs)."""
    return sum(count * sum(k + n for k, n in modules) for count, modules in layers)


def gated(hidden: int, ffn: int) -> tuple[tuple[int, int], ...]:
    return ((hidden, ffn), (hidden, ffn), (ffn, hidden))


def grouped(hidden: int, queries: int, *keys_and_values: int) -> tuple[tuple[int, int], ...]:
    return ((hidden, queries), *((hidden, width) for width in keys_and_values), (queries, hidden))


CLOSED_FORMS = {
    # 24 layers with keys and values of their own, of which 4 see the whole sequence with heads of 512; 18 have queries
    # alone (transformers models/gemma4/modeling_gemma4.py: no k_proj, no v_proj where keys and values are shared)
    "gemma4-e4b": of_layers(
        (20, grouped(2560, 2048, 512, 512)),
        (4, grouped(2560, 4096, 1024, 1024)),
        (15, grouped(2560, 2048)),
        (3, grouped(2560, 4096)),
        (42, gated(2560, 10240)),
    ),
    # every sixth layer has keys that are its values (v_proj is None); the dense part runs beside the experts
    "gemma4-26b-a4b": of_layers(
        (25, grouped(2816, 4096, 2048, 2048)), (5, grouped(2816, 8192, 1024)), (30, gated(2816, 2112))
    ),
    "gemma4-31b": of_layers(
        (50, grouped(5376, 8192, 4096, 4096)), (10, grouped(5376, 16384, 2048)), (60, gated(5376, 21504))
    ),
    # cross-layer attention: every second layer has queries alone; 80 heads of 80
    "hunyuan-large-389b": of_layers(
        (32, grouped(6400, 6400, 640, 640)), (32, grouped(6400, 6400)), (64, gated(6400, 18304))
    ),
    # queries through a latent of 2048, one key head and one value head of 256: q_proj, wq, k_proj, v_proj, o_proj
    "step3-321b": of_layers(
        (61, ((7168, 2048), (2048, 16384), (7168, 256), (7168, 256), (16384, 7168))),
        (5, gated(7168, 18432)),
        (56, gated(7168, 5120)),
    ),
    # 70 layers of lightning attention (qkv_proj, output_gate, out_proj), 10 of softmax attention; experts alone behind
    "minimax-text-01": of_layers(
        (70, ((6144, 3 * 8192), (6144, 8192), (8192, 6144))), (10, grouped(6144, 8192, 1024, 1024))
    ),
    # modules that join: query_key_value of 71 query heads, a key head and a value head; qkv_proj and gate_up_proj
    "falcon-7b": of_layers((32, ((4544, 4672), (4544, 4544), (4544, 18176), (18176, 4544)))),
    "phi-3-mini": of_layers((32, ((3072, 9216), (3072, 3072), (3072, 16384), (8192, 3072)))),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_every_module_of_hugging_face_has_one_adapter(name):
    assert (
        adapter_parameters(model(name), 16, target_modules(("attn", "mlp")), separate=True) == 16 * CLOSED_FORMS[name]
    )


def test_keys_that_are_values_have_one_adapter():
    """A user's count of PEFT's adapters of rank 64 beside all linear layers of Gemma 4 12B's language model."""
    layer = ["sliding_attention"] * 5 + ["full_attention"]
    config = {
        "model_type": "gemma4_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "layer_types": layer * 8,
        "sliding_window": 1024,
        "vocab_size": 262144,
    }
    spec = from_config(config, name="gemma-4-12b", where="config.json")
    assert adapter_parameters(spec, 64, target_modules(("attn", "mlp")), separate=True) == 262_275_072


@pytest.mark.parametrize(
    ("name", "inputs", "in_projection", "out_projection"),
    [
        ("qwen3-next-80b-a3b", 2, (2048, 12288 + 64), (4096, 2048)),  # in_proj_qkvz, in_proj_ba
        ("qwen35-27b", 4, (5120, 10240 + 6144 + 96), (6144, 5120)),  # in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
    ],
)
def test_projections_of_the_gated_delta_rule_are_modules_of_their_own(name, inputs, in_projection, out_projection):
    spec = model(name)
    layers = sum(run.count for run in spec.runs if isinstance(run.kind.mixer, DeltaNet))
    whole = of_layers((layers, (in_projection, out_projection)))
    assert adapter_parameters(spec, 1, ("gdn",)) == whole
    assert adapter_parameters(spec, 1, ("gdn",), separate=True) == whole + layers * (inputs - 1) * in_projection[0]


def test_families_with_joined_modules_are_families_of_models():
    path = Path(costmodels.workload.adapters.__file__).with_name("joined.toml")
    named = {family for entry in tomllib.loads(path.read_text())["joined"] for family in entry["families"]}
    assert named <= {model(name).family for name in names()} | set(FAMILIES)


def job(rank: int = 0, **fields: object) -> TrainingJob:
    base = TrainingJob(global_batch=8, seq=4096, precision=precision("bf16"), software=software("megatron-bridge"))
    asked = with_adapters(base, LLAMA, rank, ("attn", "mlp"), separate=False) if rank else base
    return replace(asked, **fields)  # type: ignore[arg-type]


def layer_s(asked: TrainingJob) -> tuple[float, float]:
    part = accelerator("h100-sxm-80gb")
    times = [
        op_times(op, asked, ALONE, part, efficiency=default_efficiency()) for op in layer_ops(LLAMA.kinds()[0], LLAMA)
    ]
    return sum(float(one.forward_s[0]) for one in times), sum(float(one.backward_s[0]) for one in times)


def test_frozen_weights_have_no_gradients():
    whole, adapted = (layer_memory(LLAMA.kinds()[0], LLAMA, job(rank), ALONE) for rank in (0, 16))
    assert adapted.weights[0] == pytest.approx(whole.weights[0])
    assert adapted.gradients[0] + adapted.optimizer[0] < 0.01 * (whole.gradients[0] + whole.optimizer[0])
    assert embedding_memory(LLAMA, job(16), ALONE).working[0] == 0.0
    trained = 0.01 * checkpoint_bytes(LLAMA, job())
    assert checkpoint_bytes(LLAMA, job(16)) < trained  # they are saved alone


@pytest.mark.parametrize(("reduced", "copied"), [(0.0, 0.0), (4.0, 4.0)])
def test_a_frozen_layer_gathers_no_gradient(reduced, copied):
    """Nor its copy where it is reduced in 32 bits, as Megatron-Bridge does not by itself."""
    sharded = table_of([Strategy(dp=8, zero=3)], pp=[1], micro_batch=[1])
    tools = replace(software("megatron-bridge"), reduce_bytes=reduced)
    jobs = (job(rank, software=tools) for rank in (0, 16))
    whole, adapted = (float(layer_memory(LLAMA.kinds()[0], LLAMA, one, sharded).gathered[0]) for one in jobs)
    layer = parameter_count(LLAMA).total / 32 * 0.8697  # of one layer: 218.1 million
    assert whole - adapted == pytest.approx(layer * (2.0 + copied), rel=0.01)


def test_adapters_add_thin_products_and_save_weight_gradients():
    full, frozen = layer_s(job()), layer_s(job(16, adapter_rank=0))
    adapted, wider = layer_s(job(16)), layer_s(job(512))
    assert frozen[0] == full[0]
    assert frozen[1] < 0.62 * full[1]  # one product of two, beside attention
    assert frozen[0] < adapted[0] < wider[0]
    assert frozen[1] < adapted[1] < wider[1]
    adapted_products = [op for op in layer_ops(LLAMA.kinds()[0], LLAMA) if op.module in ("attn", "mlp") and op.k]
    moved = sum(4096 * 2.0 * (op.k + 6 * op.n) for op in adapted_products)  # input; result written, scaled, added
    least_s = moved / accelerator("h100-sxm-80gb").memory_bytes_per_s
    assert least_s < adapted[0] - frozen[0] < 2.0 * least_s


def test_a_question_of_adapters():
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=4096, framework="bridge")
    asked = replace(asked, lora_rank=16, lora_targets="attn")
    request = request_of(asked)
    assert request.job.adapter_modules == ("attn", "mla_up_proj")
    assert question_of(request) == asked
    (note,) = (one for one in request_notes(request) if "adapters" in one)
    assert note.startswith("adapters of rank 16 beside attn are trained: 9.4 million parameters, 0.12 % of the model")
    assert without_adapters(request.job) == request_of(replace(asked, lora_rank=0, lora_targets="")).job


def test_a_schedule_that_has_virtual_chunks_is_named_where_it_asks_for_stages():
    request = request_of(Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=4096, framework="none"))
    with pytest.raises(
        InputError, match="--schedule zbv, which has 2 virtual chunks a stage, with --pp 1; allowed: --pp"
    ):
        layout_of(request, ExplicitLayout(schedule="zbv"))
    with pytest.raises(InputError, match=r"^--vpp 2 with --pp 1"):
        layout_of(request, ExplicitLayout(schedule="zbv", vpp=2))


def test_adapters_on_deepspeed_are_planned_for_who_has_them():
    """Megatron-DeepSpeed has none: a pipeline was the fastest layout, and no launch could say it."""
    asked = Question(model="llama3_8b", cluster="dgx-h100:1", global_batch=8, seq=4096, framework="deepspeed")
    assert request_of(asked).sayable is EVERYTHING
    request = request_of(replace(asked, lora_rank=16))
    assert request.sayable is TRAINER
    assert request_of(question_of(request)).sayable is TRAINER
    piped = layout_of(request, ExplicitLayout(pp=2))
    (found,) = broken_rules(piped, request)
    assert (found.rule, "no pipeline or expert parallelism" in found.message) == ("trainer-words", True)
    assert not broken_rules(layout_of(request, ExplicitLayout(zero=3)), request)
    with pytest.raises(InputError, match="--fix pp=2: Hugging Face's Trainer on DeepSpeed cannot be told so"):
        request_of(replace(asked, lora_rank=16, fixed=("pp=2",)))


def test_wrong_words_are_named():
    with pytest.raises(InputError, match=r"--lora-targets attn\+router: 'router'; allowed: attn, mlp, mamba, gdn"):
        targets_of("attn+router")
    with pytest.raises(InputError, match="--lora-rank with framework megatron; allowed: bridge, nemo, deepspeed, none"):
        asked_adapters(job(), LLAMA, Framework.MEGATRON, 16, "attn")
    with pytest.raises(InputError, match="--lora-rank 9999; allowed: 1 to 4096"):
        asked_adapters(job(), LLAMA, Framework.BRIDGE, 9999, "attn")
    with pytest.raises(InputError, match=r"has no products of gdn for adapters; allowed: attn, mlp$"):
        asked_adapters(job(), LLAMA, Framework.BRIDGE, 16, "gdn")
    with pytest.raises(InputError, match="--lora-targets attn without a rank; allowed: --lora-rank N with it"):
        asked_adapters(job(), LLAMA, Framework.BRIDGE, 0, "attn")


BRIDGE = ("model.tensor_model_parallel_size=2", "train.global_batch_size=8", "model.seq_length=4096")


@pytest.mark.parametrize(
    ("words", "rank", "targets"),
    [
        (("--recipe", "llama3_8b_peft_1gpu_h100_bf16_config", *BRIDGE), 8, "attn+mlp"),
        (("--recipe", "llama3_8b_pretrain_config", "--mode", "lora", "++peft.dim=8", *BRIDGE), 8, "attn+mlp"),
        (("--recipe", "llama3_8b_peft_config", "++peft.target_modules=[linear_qkv,linear_proj]", *BRIDGE), 8, "attn"),
        (("--recipe", "llama3_8b_peft_config", "--peft_scheme", "none", *BRIDGE), 0, ""),
        (("--recipe", "llama3_8b_pretrain_config", *BRIDGE), 0, ""),
    ],
)
def test_launches_of_megatron_bridge_say_their_adapters(words, rank, targets):
    judged = read_launch(LaunchQuestion(framework="bridge", world=8, arguments=words))
    assert judged.legal, judged.violations
    assert not [name for name in judged.unjudged if name.startswith("peft.")]
    assert judged.proposal is not None
    priced = job_of_launch(judged, judged.proposal)
    assert (priced.adapter_rank, said_targets(priced)) == (rank, targets)


@pytest.mark.parametrize(
    ("words", "rank", "targets"),
    [
        (("--finetuning_type", "lora", "--lora_rank", "64", "--lora_target", "all"), 64, "attn+mlp"),
        (("--finetuning_type", "lora", "--lora_target", "q_proj,v_proj"), 8, "attn"),
        (("--use_peft", "--lora_r", "32"), 32, "attn+mlp"),
        (("--train_type=lora", "--target_modules", "all-linear"), 8, "attn+mlp"),
        (("--finetuning_type", "full"), 0, ""),
        ((), 0, ""),
    ],
)
def test_trainers_on_deepspeed_say_their_adapters(tmp_path, words, rank, targets):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}')
    asked = LaunchQuestion(
        framework="deepspeed", world=8, arguments=words, model="llama3_8b", file=tmp_path / "ds.json"
    )
    judged = read_launch(asked)
    assert judged.proposal is not None
    priced = job_of_launch(judged, judged.proposal)
    assert not rank or not judged.unjudged  # a remark says them
    assert (priced.adapter_rank, said_targets(priced)) == (rank, targets)
    assert not rank or priced.trained_share == pytest.approx(
        adapter_parameters(LLAMA, rank, target_modules(tuple(targets.split("+"))), separate=True)
        / parameter_count(LLAMA).total
    )


def words_of(framework: Framework, name: str, targets: tuple[str, ...]) -> tuple[str, ...]:
    spec = model(name)
    layout = uniform_layout(Strategy(tp=2, dp=4, zero=1), [(spec.layers,)], micro_batch=1, num_microbatches=2)
    asked = with_adapters(job_of(framework, "bf16", global_batch=8, seq=4096), spec, 16, targets, separate=False)
    return EXPORTERS[framework.value](
        Planned(model=spec, job=asked, layout=layout, site=Site(hosts=("one",), gpus_per_node=8))
    ).arguments


def test_megatron_bridge_is_told_the_adapters():
    words = words_of(Framework.BRIDGE, "llama3-8b", ("attn", "mlp"))
    assert words[-2:] == (
        "++peft.dim=16",
        "++peft.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]",
    )
    read = of_overrides(LaunchText(arguments=words), Framework.BRIDGE)
    assert read is not None
    assert (read.rank, read.targets) == (16, ("attn", "mlp"))
    with pytest.raises(InputError, match="beside mlp would stand beside routed experts too"):
        words_of(Framework.BRIDGE, "mixtral-8x7b", ("attn", "mlp"))


@pytest.mark.parametrize(
    "framework",
    [Framework.MEGATRON, Framework.NEMO, Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.GALVATRON],
)
def test_others_refuse_adapters(framework):
    with pytest.raises(InputError, match="adapters of rank 16 cannot be said to"):
        words_of(framework, "llama3-8b", ("attn",))


@pytest.mark.parametrize(
    ("name", "seq", "step_s"),
    [("qwen15_1_8b", 1024, 1.1), ("qwen_7b", 512, 1.5), ("qwen_7b", 2048, 5.2), ("qwen_14b", 256, 1.6)],
)
def test_adapters_on_plain_modules_wait_for_the_host_as_long_as_they_ran(name, seq, step_s):
    """Eight micro-batches on one A100 with recompute: QwenLM/Qwen README.md, rows that nothing is fitted on."""
    request = request_of(
        Question(
            model=name,
            cluster="dgx-a100:1",
            global_batch=8,
            seq=seq,
            precision="bf16-pure",
            framework="none",
            lora_rank=64,
            software=("fsdp-modules",),
        )
    )
    ranked = estimate(request, layout_of(request, ExplicitLayout(pp=1, dp=1, zero=0, recompute="full")))
    assert ranked.cost.step.total_s == pytest.approx(step_s, rel=0.1)


def test_what_megatron_bridge_cannot_be_told_of_experts_is_not_searched_either():
    spec = model("mixtral-8x7b")
    asked = job_of(Framework.BRIDGE, "bf16", global_batch=8, seq=4096)
    with pytest.raises(InputError, match=r"mlp names the routed experts .* allowed: --lora-targets attn"):
        asked_adapters(asked, spec, Framework.BRIDGE, 16, "")
    assert asked_adapters(asked, spec, Framework.BRIDGE, 16, "attn").adapter_rank == 16
    assert asked_adapters(asked, spec, Framework.DEEPSPEED, 16, "").adapter_rank == 16

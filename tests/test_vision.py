"""Vision towers: their parameters against the classes, what images cost and keep, what is frozen, where they lie."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from costmodels.job import Images
from costmodels.layer_costs import price_parts
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Strategy
from costmodels.memory.parts import model_memory
from costmodels.pricing import Pricing
from costmodels.table import table_of
from costmodels.tower import tower_flops
from costmodels.workload.counts import parameter_count
from costmodels.workload.fields import Fields
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.huggingface.vision import TOWERS, tower_of
from costmodels.workload.presets import model
from costmodels.workload.tower import tower_parameters
from hardware.errors import InputError
from planner import Question, estimate, plan, request_of
from planner.cli import app
from planner.evidence.measured import parse_run
from planner.evidence.validate import predict
from planner.export.bridge import frozen_words
from planner.images import asked_images, of_its_length, said_freeze, said_images, usual_images
from planner.launches.check import job_of_launch, read_launch
from planner.launches.porting import port
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.question import LaunchQuestion, PortQuestion, question_of
from planner.report.porting_text import recipe_in
from planner.request import Framework
from planner.traffic.ledger import step_calls

TOWERS_OF_CLASSES = json.loads((Path(__file__).parent / "reference" / "vision_towers.json").read_text())["models"]
BY_CODE_OF_ITS_OWN = {"glm46v", "internvl_chat", "kimi_k25", "kimi_vl", "qwen3_5_moe"}
"""Types that the classes do not have, or that share one with a type that is tested."""
VL = model("qwen3_vl_8b")
SEQ = 4096
PATCHES = 4096
WIDTH, FFN, LAYERS, HEADS = 1152, 4304, 27, 16


def ask(**fields) -> Question:
    asked = {"model": "qwen3_vl_8b", "cluster": "dgx-h100:1", "global_batch": 16, "seq": SEQ, "framework": "bridge"}
    return Question(**{**asked, **fields})


def job(**images):
    base = request_of(ask(framework="megatron")).job
    return replace(base, images=Images(**{"count": 2, "tokens": 1024, **images}))


def memory_of(asked, **strategy):
    table = table_of([Strategy(**strategy)], pp=[1], micro_batch=[1])
    held = model_memory(VL, asked, table)
    return held.parts[held.embedding]


def without():
    return replace(job(), images=None)


@pytest.mark.parametrize("entry", TOWERS_OF_CLASSES, ids=lambda entry: entry["config"]["model_type"])
def test_parameters_of_towers_are_those_of_the_classes(entry):
    config = entry["config"]
    tower = tower_of(Fields(config, "config.json"), config["model_type"], entry["text_width"])
    assert tower_parameters(tower) == (entry["tower"], entry["projector"])


@pytest.mark.parametrize("name", ["depth", "num_hidden_layers"])
def test_a_tower_of_too_many_layers_is_refused(name):
    entry = next(one for one in TOWERS_OF_CLASSES if name in one["config"]["vision_config"])
    config = {**entry["config"], "vision_config": {**entry["config"]["vision_config"], name: 10**9}}
    with pytest.raises(InputError, match=f"{name}: 1000000000 is not accepted; allowed: 1 to 10000"):
        tower_of(Fields(config, "config.json"), config["model_type"], entry["text_width"])


def test_every_family_with_a_class_is_counted_against_it():
    tested = {entry["config"]["model_type"] for entry in TOWERS_OF_CLASSES}
    assert {name.partition(":")[0] for name in TOWERS} - tested == BY_CODE_OF_ITS_OWN


@pytest.mark.parametrize(
    ("name", "published"),  # safetensors totals of the model cards
    [
        ("qwen2_vl_7b", 8_291_375_616),
        ("qwen25_vl_3b", 3_754_622_976),
        ("qwen25_vl_7b", 8_292_166_656),
        ("qwen25_vl_32b", 33_452_718_336),
        ("qwen25_vl_72b", 73_410_777_344),
        ("qwen3_vl_4b", 4_437_815_808),
        ("qwen3_vl_8b", 8_767_123_696),
        ("qwen3_vl_30b_a3b", 31_070_754_032),
        ("gemma3_vl_4b", 4_300_079_472),
        ("gemma3_vl_12b", 12_187_325_040),
        ("gemma3_vl_27b", 27_432_406_640),
    ],
)
def test_presets_have_the_published_totals(name, published):
    assert parameter_count(model(name)).total == published


def test_a_configuration_is_read_with_its_tower_and_says_what_is_not_counted():
    text = {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 2}
    vision = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    told = {"vision_config": {**vision, "image_size": 448, "patch_size": 14, "qkv_bias": True}, "audio_config": {}}
    built = from_config({"model_type": "internvl_chat", "llm_config": text, **told}, name="x", where="config.json")
    assert (built.hidden, built.tower.image_tokens, built.tower.fixed) == (1024, 256, True)
    assert built.notes[0].startswith("the language model alone: audio_config of the configuration")
    other = from_config({"model_type": "llava_next_video", "text_config": text, **told}, name="x", where="config.json")
    assert other.tower is None
    assert "vision_config and audio_config" in other.notes[0]


def test_the_flops_of_images_are_those_of_the_closed_form():
    """Products of a layer 8 h^2 + 4 h f, scores 4 n h a patch; the mergers run once for four patches."""
    layer = PATCHES * (8 * WIDTH**2 + 4 * WIDTH * FFN + 4 * PATCHES * WIDTH)
    patches = PATCHES * 2 * (3 * 2 * 16**2) * WIDTH
    wide = 4 * WIDTH
    mergers = (PATCHES / 4) * 4 * 2 * (wide * wide + wide * VL.hidden)
    images = Images(count=3, tokens=1024)
    assert tower_flops(VL, images) == pytest.approx(3 * 3.0 * (LAYERS * layer + patches + mergers))
    bridge = 16_610_953_789_440  # Megatron-Bridge 0.6.2, vit_flops of one image: one merger, no patches
    assert tower_flops(VL, replace(images, count=1)) - 3.0 * (patches + mergers * 3 / 4) == pytest.approx(bridge)
    frozen = replace(images, trains_tower=False, trains_projector=False)
    assert tower_flops(VL, frozen) == pytest.approx(tower_flops(VL, images) / 3.0)
    assert tower_flops(VL, None) == 0.0


@pytest.mark.parametrize(("tower", "projector"), [(True, True), (False, True), (True, False), (False, False)])
def test_states_are_those_of_what_is_trained_and_weights_of_all(tower, projector):
    """Megatron-core's: 2 bytes a weight, 4 a gradient, 12 of the optimizer; whole on every tensor-parallel rank."""
    count = parameter_count(VL)
    trained = count.tower * tower + count.projector * projector
    alone, held = (
        memory_of(asked, tp=4, zero=0, sequence_parallel=True)
        for asked in (without(), job(trains_tower=tower, trains_projector=projector))
    )
    assert float(held.weights[0] - alone.weights[0]) == pytest.approx(2 * (count.tower + count.projector))
    assert float(held.gradients[0] - alone.gradients[0]) == pytest.approx(4 * trained)
    assert float(held.optimizer[0] - alone.optimizer[0]) == pytest.approx(12 * trained)


def test_a_divided_tower_has_a_share_on_every_rank():
    whole, divided = (memory_of(job(divided=one), tp=4, sequence_parallel=True) for one in (False, True))
    alone = memory_of(without(), tp=4, sequence_parallel=True)
    share = (divided.weights - alone.weights) / (whole.weights - alone.weights)
    assert 0.25 < float(share[0]) < 0.28  # norms, row biases, patches and the table of positions are whole


def test_zero_3_shards_a_tower_over_all_replicas():
    held, alone = (memory_of(asked, dp=8, zero=3) for asked in (job(), without()))
    count = parameter_count(VL)
    assert float((held.weights - alone.weights)[0]) == pytest.approx(2 * (count.tower + count.projector) / 8)


def test_recomputed_layers_keep_their_inputs_and_a_frozen_tower_nothing():
    kept = {
        name: float((memory_of(asked, recompute=how).kept - memory_of(without(), recompute=how).kept)[0])
        for name, asked, how in (
            ("full", job(), FULL_RECOMPUTE),
            ("own", job(recompute=FULL_RECOMPUTE), NO_RECOMPUTE),
            ("none", job(), NO_RECOMPUTE),
            ("frozen", job(trains_tower=False, trains_projector=False), NO_RECOMPUTE),
            ("projector", job(trains_tower=False), NO_RECOMPUTE),
            ("asks", job(trains_tower=False, trains_projector=False, asks_gradients=True), FULL_RECOMPUTE),
        )
    }
    inputs = 2 * LAYERS * PATCHES * WIDTH * 2  # two images, bf16
    pixels = 2 * PATCHES * 3 * 2 * 16**2 * 2
    merged = 2 * (PATCHES / 4) * 4 * 2 * (4 * WIDTH) * 2  # four mergers with the inputs of both products
    assert kept["full"] == pytest.approx(inputs + pixels + merged)
    assert kept["own"] == kept["full"]
    assert kept["projector"] == pytest.approx(merged)
    assert kept["frozen"] == 0.0
    assert kept["asks"] == pytest.approx(inputs + merged)  # gradients pass through, down to the first layer's input
    assert kept["none"] > 8 * kept["full"]


def test_time_is_paid_on_the_rows_of_the_embedding_and_twice_the_images_cost_twice():
    pricing = Pricing(model=VL, job=without(), island=request_of(ask()).cluster.islands[0])
    table = table_of([Strategy(dp=8)], pp=[1], micro_batch=[1])

    def seconds(images: Images | None) -> tuple[float, float]:
        costs = price_parts(replace(pricing, job=replace(pricing.job, images=images)), table)
        row = costs.index("embedding")
        others = [number for number in range(len(costs.names)) if number != row]
        assert costs.forward_s.shape[1] == len(costs.names)
        passes = (costs.forward_s[:, row].sum(), costs.backward_s[:, row].sum())
        assert np.isfinite(costs.forward_s[:, others]).all()
        return float(passes[0]), float(passes[1])

    alone, one, two = (
        np.array(seconds(images)) for images in (None, Images(count=4, tokens=1024), Images(count=8, tokens=1024))
    )
    assert (two - alone) == pytest.approx(2.0 * (one - alone), rel=0.1)
    assert 1.7 < (one - alone)[1] / (one - alone)[0] < 2.6  # both gradients against one product
    frozen = np.array(seconds(Images(count=4, tokens=1024, trains_tower=False, trains_projector=False)))
    assert (frozen - alone)[1] == pytest.approx(0.0, abs=1e-5)  # the clock differs with the mix of work
    whole = Images(count=4, tokens=1024, recompute=FULL_RECOMPUTE, asks_gradients=True)
    frozen = replace(whole, trains_tower=False, trains_projector=False)
    trained, passed = (np.array(seconds(images))[1] - alone[1] for images in (whole, frozen))
    without_recompute = np.array(seconds(replace(frozen, recompute=NO_RECOMPUTE)))
    assert (without_recompute - alone)[1] == pytest.approx(0.0, abs=1e-5)
    assert 0.6 * trained < passed < 0.95 * trained  # no products for weights; all else is the same
    text = np.array(seconds(Images(count=0, tokens=1024)))
    assert (text - alone) == pytest.approx(np.zeros(2), abs=1e-5)


def test_the_ledger_lists_what_gathers_a_tower():
    """ZeRO-3 on eight GPUs: 16-bit weights of its layers, 7/8 of them from others, in both passes of a micro-batch."""
    request = request_of(ask(framework="deepspeed", fixed=("zero=3", "tp=1", "pp=1", "cp=1"), recompute="none"))
    layout = plan(request).layouts[0].layout
    sent = []
    for images in (request.job.images, None):
        one = Pricing(model=VL, job=replace(request.job, images=images), island=request.cluster.islands[0])
        gathers = [call for call in step_calls(one, layout, 0) if call.collective == "all_gather"]
        sent.append(sum(call.count * call.sent_bytes for call in gathers))
    layers = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * FFN + 9 * WIDTH + FFN)  # with biases and norms
    assert sent[0] - sent[1] == pytest.approx(2 * layout.num_microbatches * 2 * layers * 7 / 8, rel=1e-6)


def test_a_trained_tower_takes_layers_from_the_first_stage():
    """A tower as dear as several layers: the even split leaves the first stage the slowest."""
    asked = ask(
        cluster="dgx-h100:2", fixed=("pp=4", "vpp=1", "cp=1", "micro_batch=1"), global_batch=64, images="3x1024"
    )
    first = {}
    for images in ("3x1024", "0"):
        best = plan(request_of(replace(asked, images=images))).layouts[0].layout
        first[images] = [sum(stage.layers_per_chunk) for stage in best.stages]
    assert first["3x1024"][0] < first["0"][0]
    assert sum(first["3x1024"]) == sum(first["0"]) == VL.layers


@pytest.mark.parametrize(
    ("words", "found"),
    [("", (2, 1024)), ("3x700", (3, 700)), ("2048", (2, 1024)), ("500", (1, 500)), ("0", (0, 1024))],
)
def test_images_in_words_are_those_of_the_job_and_come_back(words, found):
    request = request_of(ask(images=words))
    assert (request.job.images.count, request.job.images.tokens) == found
    assert request_of(question_of(request)).job == request.job


def test_what_is_frozen_comes_back_in_words():
    for words in ("tower", "projector", "tower+projector", "none"):
        request = request_of(ask(freeze=words))
        assert said_freeze(request.job) == ("" if words == "none" else words)
        assert request_of(question_of(request)).job == request.job
    adapted = request_of(ask(lora_rank=16))
    assert not any((adapted.job.images.trains_tower, adapted.job.images.trains_projector))
    assert said_freeze(adapted.job) == said_images(adapted.job, VL) == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": "qwen3_8b", "images": "2"}, "qwen3_8b has no vision tower"),
        ({"model": "qwen3_8b", "freeze": "tower"}, "--freeze tower: qwen3_8b has no vision tower"),
        ({"images": "many"}, "--images many; allowed: TOKENS"),
        ({"images": "4097"}, "4,097 tokens of images in sequences of 4,096"),
        ({"images": "5x1024"}, "5,120 tokens of images in sequences of 4,096"),
        ({"freeze": "eyes"}, "--freeze eyes: 'eyes'; allowed: none, tower, projector"),
        ({"freeze": "tower", "lora_rank": 8}, "a trained tower beside them is not priced"),
    ],
)
def test_words_that_say_no_images_are_refused(fields, told):
    with pytest.raises(InputError, match=told):
        request_of(ask(**fields))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    file = tmp_path_factory.mktemp("reports") / "seen.json"
    words = "estimate qwen3_vl_8b dgx-h100:1 --framework bridge --global-batch 16 --seq 4096"
    told = CliRunner().invoke(app, [*words.split(), "--images", "3x512", "--freeze", "tower", "--json", str(file)])
    assert told.exit_code == 0, told.output
    return file


@pytest.mark.parametrize(
    ("asked", "images", "freeze"),
    [
        ({}, "3x512", "tower"),
        ({"images": "2x600"}, "2x600", "tower"),
        ({"freeze": "none"}, "3x512", ""),
        ({"precision": "fp8-cs"}, "3x512", "tower"),
        ({"framework": "deepspeed"}, "3x512", "tower"),
        ({"seq": 1024}, "", "tower"),
        ({"lora_rank": 8}, "3x512", ""),
    ],
)
def test_a_report_that_is_carried_keeps_what_no_option_says_of_its_images(seen, asked, images, freeze):
    words = {"model": "", "precision": "", "framework": "", "global_batch": 0, "seq": 0, "top": 1, "time_limit_s": 1.0}
    question = PortQuestion(
        file=seen, asked=Question(**{**words, "cluster": "dgx-h100:1", "fixed": ("pp=1", "cp=1"), **asked})
    )
    job = port(recipe_in(question), question).report.request.job
    assert (said_images(job, VL), said_freeze(job)) == (images, freeze)
    assert job.images.divided == (asked.get("framework") != "deepspeed")
    assert job.images.trains_projector == (not asked.get("lora_rank"))


def test_images_that_were_assumed_are_those_of_the_new_length():
    base = request_of(ask()).job
    longer = replace(base, seq=4 * base.seq)
    grown = of_its_length(longer, VL, base.seq)
    assert (grown.images.count, grown.images.tokens) == usual_images(VL.tower, longer.seq)
    assert grown.images.all_tokens > base.images.all_tokens
    stated = replace(longer, images=replace(base.images, count=3, tokens=128))
    assert of_its_length(stated, VL, base.seq) == stated


def test_images_of_one_size_are_counted_whole():
    vision = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = {"model_type": "internvl", "vision_config": {**vision, "attention_bias": True}}
    tower = tower_of(Fields(config, "x"), "internvl", 1024)
    assert usual_images(tower, 4096) == (8, 256)
    tiled = replace(model("qwen3_8b"), tower=tower)
    base = request_of(ask(model="qwen3_8b")).job
    asked = asked_images(base, tiled, Framework.DEEPSPEED, "1000", "")
    assert (asked.images.count, asked.images.tokens) == (4, 256)
    with pytest.raises(InputError, match="its images have 256 tokens each"):
        asked_images(base, tiled, Framework.DEEPSPEED, "2x300", "")


def test_frameworks_run_a_tower_as_their_modules_do():
    """Megatron-Bridge divides Qwen3-VL's and holds Qwen2.5-VL's whole, without recompute; trainers checkpoint all."""
    found = {
        (name, framework): request_of(ask(model=name, framework=framework)).job.images
        for name in ("qwen3_vl_8b", "qwen25_vl_7b")
        for framework in ("bridge", "deepspeed")
    }
    assert found["qwen3_vl_8b", "bridge"].divided
    assert found["qwen3_vl_8b", "bridge"].recompute is None
    assert not found["qwen25_vl_7b", "bridge"].divided
    assert found["qwen25_vl_7b", "bridge"].recompute == NO_RECOMPUTE
    by_flags = request_of(ask(framework="megatron")).job.images  # as ms-swift runs it
    assert (by_flags.divided, by_flags.recompute) == (False, FULL_RECOMPUTE)
    assert not found["qwen3_vl_8b", "deepspeed"].divided
    assert found["qwen25_vl_7b", "deepspeed"].recompute is None


SWIFT = "megatron sft --model Qwen/Qwen3-VL-8B-Instruct --tensor_model_parallel_size 4 --sequence_parallel true"
LLAMA_FACTORY = "llamafactory-cli train --bf16 true --model_name_or_path Qwen/Qwen3-VL-8B-Instruct --stage sft"
QWEN = "deepspeed train_qwen.py --bf16 --model_name_or_path Qwen/Qwen3-VL-8B-Instruct --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("framework", "command", "trained", "tokens"),
    [
        ("megatron", SWIFT, (False, False), 1024),
        ("megatron", f"{SWIFT} --freeze_vit false", (True, False), 1024),
        ("megatron", f"IMAGE_MAX_TOKEN_NUM=512 {SWIFT} --freeze_aligner false", (False, True), 512),
        ("deepspeed", f"{LLAMA_FACTORY} --deepspeed ds.json", (False, False), 1024),
        ("deepspeed", f"{LLAMA_FACTORY} --deepspeed ds.json --freeze_vision_tower false", (True, False), 1024),
        ("deepspeed", f"{QWEN} --deepspeed ds.json --tune_mm_vision False --max_pixels 262144", (False, True), 256),
        ("deepspeed", f"{QWEN} --deepspeed ds.json", (True, True), 1024),
    ],
)
def test_launches_say_what_they_freeze(tmp_path, framework, command, trained, tokens):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}))
    script = tmp_path / "train.sh"
    script.write_text(f"NPROC_PER_NODE=8 {command}\n")
    judged = read_launch(LaunchQuestion(framework=framework, file=script, world=8))
    images = job_of_launch(judged, judged.proposal).images
    assert (images.trains_tower, images.trains_projector) == trained
    assert images.tokens == tokens
    assert not images.divided  # both hold Hugging Face's modules
    assert any("vision tower" in note for note in judged.notes)


def test_what_cannot_be_read_of_a_tower_is_told_and_what_is_read_is_not_called_unjudged():
    words = ("model.freeze_vision_model=perhaps", "model.freeze_vision_projection=True", "train.global_batch_size=16")
    question = LaunchQuestion(framework="bridge", arguments=words, world=8, model="qwen3_vl_8b")
    judged = read_launch(question)
    assert (judged.images.trains_tower, judged.images.trains_projector) == (True, False)
    assert "model.freeze_vision_model perhaps is neither true nor false: it is left out" in judged.notes
    assert judged.unjudged == ()


def test_recipes_on_mock_data_train_the_projector_alone():
    for recipe, trains in (
        ("qwen3_vl_8b_pretrain_4gpu_h100_bf16_mock_config", False),
        ("qwen3_vl_8b_sft_config", True),
    ):
        words = ("--recipe", recipe, "train.global_batch_size=16")
        judged = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=8))
        assert (judged.images.trains_tower, judged.images.trains_projector) == (trains, True)
        assert any("language model is frozen" in note for note in judged.notes) != trains


def test_heads_of_a_divided_tower_limit_tp():
    """Qwen3-VL-32B has 64 heads, its tower 16."""
    words = ("model.tensor_model_parallel_size=32", "train.global_batch_size=16", "model.sequence_parallel=true")
    told = {"framework": "bridge", "arguments": words, "world": 32}
    refused = read_launch(LaunchQuestion(model="qwen3_vl_32b", **told)).violations
    assert any("16 heads of the vision tower do not divide by tp 32" in violation.message for violation in refused)
    alone = read_launch(LaunchQuestion(model="qwen3_32b", **told)).violations
    assert not any("vision tower" in violation.message for violation in alone)


def test_checkpointing_of_ms_swift_asks_a_frozen_tower_for_gradients(tmp_path):
    """``enable_input_require_grads`` of the tower, with ``vit_gradient_checkpointing`` alone, which is on as usual."""
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    script = tmp_path / "train.sh"
    on_deepspeed = "swift sft --model Qwen/Qwen3-VL-8B-Instruct --tuner_type full --deepspeed ds.json"
    for framework, command in (("megatron", SWIFT), ("deepspeed", on_deepspeed)):
        for words, asks in (("", True), (" --vit_gradient_checkpointing false", False)):
            script.write_text(f"NPROC_PER_NODE=8 {command}{words}\n")
            judged = read_launch(LaunchQuestion(framework=framework, file=script, world=8))
            assert judged.images.asks_gradients == asks
            assert any("a backward pass runs through the frozen tower" in note for note in judged.notes) == asks


def test_a_frozen_language_model_is_said_to_be_priced_as_trained(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(f"NPROC_PER_NODE=8 {SWIFT} --freeze_llm true\n")
    judged = read_launch(LaunchQuestion(framework="megatron", file=script, world=8))
    assert "the language model is frozen, which has no price here: it is priced as trained" in judged.notes


def test_a_launch_of_a_model_whose_tower_is_not_counted_says_so():
    words = ("model.tensor_model_parallel_size=2", "train.global_batch_size=8")
    told = {"framework": "bridge", "arguments": words, "world": 8}
    for name, said in (("gemma3_12b", 1), ("qwen35_35b_a3b", 1), ("llama3_8b", 0)):
        judged = read_launch(LaunchQuestion(model=name, **told))
        assert len([note for note in judged.notes if note.startswith("the language model only")]) == said


def test_a_tower_trained_beside_adapters_is_said_to_be_priced_frozen(tmp_path):
    script = tmp_path / "train.sh"
    for words, said in (("", False), (" --freeze_aligner false", True)):
        script.write_text(f"NPROC_PER_NODE=8 {SWIFT} --train_type lora{words}\n")
        judged = read_launch(LaunchQuestion(framework="megatron", file=script, world=8))
        assert not judged.images.trains_projector
        assert any("trained beside adapters has no price" in note for note in judged.notes) == said


def test_overrides_of_bridge_freeze_what_the_plan_does():
    asked = request_of(ask(freeze="tower")).job
    assert frozen_words(asked) == ("model.freeze_vision_model=true", "model.freeze_vision_projection=false")
    assert frozen_words(replace(asked, images=None)) == ()
    words = ("model.tensor_model_parallel_size=2", *frozen_words(asked), "train.global_batch_size=16")
    judged = read_launch(LaunchQuestion(framework="bridge", arguments=words, world=8, model="qwen3_vl_8b"))
    assert (judged.images.trains_tower, judged.images.trains_projector, judged.images.divided) == (False, True, True)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("framework", ["megatron", "bridge", "nemo"])
def test_a_run_with_images_holds_what_a_plan_of_it_holds(framework: str, recompute: str):
    """Both ways to a peak agree: the row of a table of runs, of today's PyTorch, and the layout as it is asked."""
    asked = ask(framework=framework, images="1x1024", freeze="tower+projector")
    row = {
        "id": "seen-1",
        "source": "own",
        "framework": {"megatron": "Megatron-LM", "bridge": "Megatron-Bridge", "nemo": "NeMo"}[framework],
        "date": "2026-03-01",
        "model": asked.model,
        "hardware": "H100-SXM-80GB",
        "precision": "bf16",
        "recompute": recompute,
        "images": asked.images,
        "freeze": asked.freeze,
    }
    sizes = {"n_gpus": 8, "seq_len": SEQ, "global_batch_size": 16, "micro_batch_size": 1, "tp": 2, "pp": 1, "zero": 1}
    run = parse_run(row | {name: str(size) for name, size in sizes.items()})
    request = request_of(asked)
    priced = estimate(request, layout_of(request, ExplicitLayout(tp=2, zero=1, recompute=recompute)))
    predicted = predict(run)
    assert predicted.cost is not None, predicted.skipped
    assert predicted.cost.heaviest.components == priced.cost.heaviest.components


def test_a_checked_launch_has_the_images_that_its_user_states():
    words = ("model.tensor_model_parallel_size=1", "dataset.seq_length=4096", "train.global_batch_size=8")
    asked = LaunchQuestion(framework="bridge", arguments=words, world=8, model="qwen25_vl_7b", images="2x500")
    images = read_launch(asked).images
    assert (images.count, images.tokens) == (2, 500)
    with pytest.raises(InputError, match="--images 2x500: llama3_8b has no vision tower"):
        read_launch(replace(asked, model="llama3_8b"))

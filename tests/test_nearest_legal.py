"""What is named as nearest legal is legal when it is written into the launch, and mends what is wrong."""

import json

import pytest
from megatron_reference import TABLE, launch_of, words_of

from planner.ingest.megatron.arguments import judge, parse_megatron
from planner.launches.check import check_launch
from planner.question import LaunchQuestion
from planner.request import Framework
from planner.rules import ModelFacts, Proposal, check, nearest_legal

FLAGS = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "micro_batch": "--micro-batch-size",
    "global_batch": "--global-batch-size",
    "microbatch_group": "--microbatch-group-size-per-virtual-pipeline-stage",
}
SIZES = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 "
    "--use-distributed-optimizer --untie-embeddings-and-output-weights"
)
GROUPED = (
    f"{SIZES} --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 4 "
    "--num-virtual-stages-per-pipeline-rank 4"
)


def written(words: list[str], changes) -> list[str]:
    """The launch with what changes behind it."""
    more: list[str] = []
    for name, _, new in changes:
        if name == "sequence_parallel":
            words = [word for word in words if word != "--sequence-parallel"]
            more += ["--sequence-parallel"] if new else []
        elif name != "world":
            more += [FLAGS[name], str(new)]
    return [*words, *more]


def test_what_is_near_is_legal_when_it_is_written():
    judged = 0
    for case in TABLE["case"]:
        words = " ".join((TABLE["models"][case["model"]], TABLE["common"], case["args"])).split()
        if not case["rules"]:
            continue
        launch = parse_megatron(words, world=case["world"], version=case.get("core"))
        if launch.faults:
            continue
        for near in nearest_legal(launch.proposal, Framework.MEGATRON, version=case.get("core")):
            assert check(near.proposal, Framework.MEGATRON, case.get("core")) == ()
            if near.split or any(name == "vpp" for name, *_ in near.changes):
                continue
            again = parse_megatron(written(words, near.changes), world=near.proposal.world, version=case.get("core"))
            assert judge(again).legal, (case["name"], str(near), judge(again).violations)
            judged += 1
    assert judged > 20


@pytest.mark.parametrize(
    ("group", "rule", "first"),
    [
        (5, "megatron-group-rest", "microbatch_group 5 -> 4"),
        (17, "megatron-group-high", "microbatch_group 17 -> 16"),
        (3, "megatron-group-low", "microbatch_group 3 -> 4"),
        (0, "megatron-group-low", "microbatch_group 0 -> 4"),
        (-1, "megatron-group-low", "microbatch_group -1 -> 4"),
    ],
)
def test_groups_of_micro_batches_are_from_the_stages_to_the_micro_batches(group, rule, first):
    launch = parse_megatron([*GROUPED.split(), FLAGS["microbatch_group"], str(group)], world=32)
    verdict = judge(launch)
    assert verdict.violations[0].rule == rule
    assert f"group {group} " in verdict.violations[0].message or f"group of {group}" in verdict.violations[0].message
    assert str(nearest_legal(launch.proposal, Framework.MEGATRON)[0]) == first


@pytest.mark.parametrize(("group", "legal"), [(None, True), (4, True), (8, True), (16, True), (6, True), (7, False)])
def test_groups_within_are_legal(group, legal):
    more = [] if group is None else [FLAGS["microbatch_group"], str(group)]
    assert judge(parse_megatron([*GROUPED.split(), *more], world=32)).legal == legal


def test_a_token_goes_to_at_most_all_experts():
    words = f"{SIZES} --num-experts 8 --expert-model-parallel-size 4 --disable-bias-linear --moe-router-topk".split()
    assert judge(parse_megatron([*words, "8"], world=32)).legal
    verdict = judge(parse_megatron([*words, "9"], world=32))
    assert [violation.rule for violation in verdict.violations] == ["experts-top-k"]
    assert "9 experts of 8" in verdict.violations[0].message


@pytest.mark.parametrize("framework", list(Framework))
def test_every_framework_has_the_rule_of_chosen_experts_and_names_nothing_that_leaves_it_broken(framework):
    facts = ModelFacts(layers=32, hidden=4096, heads=32, kv_heads=8, experts=8, top_k=9, expert_ffn=4096, vocab=32000)
    proposal = Proposal(world=32, tp=2, ep=3, global_batch=64, seq=4096, model=facts)
    assert "experts-top-k" in {violation.rule for violation in check(proposal, framework)}
    assert nearest_legal(proposal, framework) == ()


@pytest.mark.parametrize("model", ["llama3_8b", "qwen3_30b_a3b"])
@pytest.mark.parametrize(
    "words",
    [
        {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "local": 1},
        {"tensor_parallel_degree": 3, "local": 2},
        {"pipeline_parallel_degree": 4, "context_parallel_degree": 2, "local": 2, "global": 32},
        {"tensor_parallel_degree": 4, "pipeline_parallel_degree": 2, "data_parallel_shard_degree": 4, "local": 1},
        {"pipeline_parallel_degree": 5, "local": 5},
    ],
)
def test_what_is_near_a_launch_of_torchtitan_is_legal_when_it_is_written(words, model):
    names = {"local": "--training.local_batch_size", "global": "--training.global_batch_size"}
    short = {
        "tp": "tensor",
        "pp": "pipeline",
        "cp": "context",
        "ep": "expert",
        "local_batch_size": "local",
        "global_batch": "global",
    }
    flags = {names.get(name, f"--parallelism.{name}"): str(value) for name, value in words.items()}

    def asked(flags: dict[str, str], *switches: str):
        given = [word for flag in flags.items() for word in flag] + [*switches]
        question = LaunchQuestion(framework="torchtitan", model=model, world=64, arguments=tuple(given))
        return check_launch(question)

    report = asked(flags)
    assert not report.judged.legal
    for near in report.near:
        more = {}
        switches = [f"--training.{name}" for name, _, _ in near.neighbour.changes if name.startswith("disable")]
        for name, _, new in near.neighbour.changes:
            if f"--training.{name}" in switches:
                continue
            word = short.get(name, name)
            degree = f"--parallelism.{word}_parallel_degree"
            own = (
                f"--parallelism.{name}" if name != "micro_batch" else "--parallelism.pipeline_parallel_microbatch_size"
            )
            more[names[word] if word in names else degree if len(name) == 2 else own] = str(new)
        again = asked({**flags, **more}, *switches)
        assert again.judged.legal, (str(near.neighbour), again.judged.violations)


def test_a_pipeline_of_torchtitan_that_is_not_filled_is_mended_by_its_local_batch():
    words = (
        "--training.local_batch_size 1 --parallelism.pipeline_parallel_degree 2 --parallelism.tensor_parallel_degree 2"
    )
    report = check_launch(
        LaunchQuestion(framework="torchtitan", model="llama3_8b", world=64, arguments=tuple(words.split()))
    )
    assert str(report.near[0].neighbour) == "local_batch_size 1 -> 2; disable_cuda_graphs 0 -> 1"


GALVATRON = {"tp_consecutive_flags": ",".join("1" * 32), "dp_types_enc": ",".join("0" * 32), "default_dp_type": "zero2"}


TP_3 = {"pp_deg": 1, "tp_sizes_enc": ",".join("3" * 32), "global_bsz": 64, "chunks": 1}
STAGES = "trainer.strategy.pipeline_model_parallel_size=4 trainer.strategy.virtual_pipeline_model_parallel_size=3"
ZERO_3 = {"zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("launch", "config", "near"),
    [
        ("bridge llama3_8b 64 model.tensor_model_parallel_size=3", None, "tp 3 -> 4"),
        ("bridge llama3_8b 40 model.pipeline_model_parallel_size=5", None, "layers per stage 7,7,6x3"),
        ("bridge qwen3_30b_a3b 64 model.expert_model_parallel_size=6", None, "ep 6 -> 8"),
        ("nemo llama3_8b 64 trainer.strategy.tensor_model_parallel_size=3", None, "tp 3 -> 4"),
        (f"nemo llama3_8b 64 {STAGES}", None, "layers per stage 8x4 in 3 chunks"),
        ("deepspeed llama3_8b 64 --pipeline-model-parallel-size 4", ZERO_3, "pp 4 -> 1"),
        ("deepspeed mixtral_8x22b 16 --moe-expert-parallel-size 3", {}, "ep 3 -> 4"),
        ("galvatron llama3_8b 64", {**GALVATRON, **TP_3}, "tp 3 -> 4"),
    ],
)
def test_what_is_near_is_judged_as_the_launch_that_says_it(launch, config, near, tmp_path):
    framework, model, world, *words = launch.split()
    file = tmp_path / "config.json" if config is not None else None
    if file is not None:
        batch = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1} if framework == "deepspeed" else {}
        file.write_text(json.dumps({**batch, **config}))
    section = {"bridge": "train", "nemo": "data"}.get(framework)
    said = (*words, *((f"{section}.micro_batch_size=1", f"{section}.global_batch_size=64") if section else ()))
    question = LaunchQuestion(framework=framework, model=model, world=int(world), arguments=said, file=file)
    report = check_launch(question)
    assert not report.judged.legal
    assert str(report.near[0].neighbour) == near
    assert report.near[0].neighbour.proposal.world == int(world)


def test_nothing_is_named_near_a_launch_that_its_own_words_leave_broken():
    """A degree of the model that NeMo's strategy overwrites stays wrong whatever tp is."""
    words = (
        "trainer.strategy.tensor_model_parallel_size=3",
        "data.global_batch_size=64",
        "model.config.tensor_model_parallel_size=2",
    )
    report = check_launch(LaunchQuestion(framework="nemo", model="llama3_8b", world=64, arguments=words))
    assert not report.judged.legal
    assert report.near == ()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("more expert ranks than experts", "ep 16 -> 8"),
        ("80 layers over 6 stages", "layers per stage 14,14,13x4"),
        ("batch of 252 over 8 replicas", "global_batch 252 -> 256"),
        ("experts with tp and no sequence parallelism", "sequence_parallel 0 -> 1"),
        ("odd sequence over cp", "cp 8 -> 4"),
        ("virtual stages without a pipeline", "vpp 2 -> 1"),
    ],
)
def test_the_nearest_legal_proposal(name, first):
    assert str(nearest_legal(launch_of(name).proposal, Framework.MEGATRON)[0]) == first


def test_neighbours_are_legal_and_hold_every_layer():
    for case in TABLE["case"]:
        if not case["rules"] or "core" in case:
            continue
        proposal = parse_megatron(words_of(case), world=case["world"]).proposal
        for neighbour in nearest_legal(proposal, Framework.MEGATRON):
            assert check(neighbour.proposal, Framework.MEGATRON) == ()
            assert sum(map(sum, neighbour.layers_per_stage)) == proposal.model.layers


def test_what_no_degree_mends_has_no_neighbour():
    assert nearest_legal(launch_of("optimizer offload without its optimizer").proposal, Framework.MEGATRON) == ()
    assert nearest_legal(Proposal(world=8, tp=0), Framework.NONE) == ()


def test_near_a_launch_with_unknown_options_is_what_is_legal_without_them():
    words = [*SIZES.split(), "--tensor-model-parallel-size", "3", "--foo", "1", "--no-such-switch"]
    report = check_launch(LaunchQuestion(framework="megatron", arguments=tuple(words), world=8))
    assert report.judged.unknown == ("--foo", "--no-such-switch")
    assert report.near
    known = [*SIZES.split(), "--tensor-model-parallel-size", "3"]
    for one in report.near:
        changed = written(known, one.neighbour.changes)
        assert judge(parse_megatron(changed, world=one.neighbour.proposal.world)).legal
    alone = (*SIZES.split(), "--foo")
    assert check_launch(LaunchQuestion(framework="megatron", arguments=alone, world=8)).near == ()

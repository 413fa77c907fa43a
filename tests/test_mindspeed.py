"""Launches of MindSpeed-LLM."""

import pytest

from planner.launches.check import read_launch
from planner.question import LaunchQuestion

SCRIPT = """NPUS_PER_NODE=16
NNODES=32
SAVE="your model save ckpt path"
MODEL="
    --use-fused-swiglu --use-fused-rmsnorm --tokenizer-type PretrainedFromHF --tokenizer-name-or-path x \\
    --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec --num-layers 64 --hidden-size 7168 \\
    --num-attention-heads 128 --ffn-hidden-size 18432 --swiglu --normalization RMSNorm --disable-bias-linear \\
    --position-embedding-type rope --untie-embeddings-and-output-weights --padded-vocab-size 129280 \\
    --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --n-shared-experts 1 --first-k-dense-replace 3 \\
    --moe-layer-freq 1 --moe-token-dispatcher-type alltoall_seq --save-interval 2000 \\
    --moe-router-load-balancing-type pai_megatron_aux_loss \\
    --moe-grouped-gemm --seq-length 4096 --max-position-embeddings 163840 --bf16 --micro-batch-size 1 \\
    --global-batch-size 15360 --use-distributed-optimizer --sequence-parallel --tensor-model-parallel-size 2 \\
    --expert-model-parallel-size 32 --expert-tensor-parallel-size 1 --pipeline-model-parallel-size 8
"
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py $MODEL --save $SAVE """


def judged(folder, more="", text=SCRIPT):
    file = folder / "run.sh"
    file.write_text(f"{text}{more}\n", encoding="utf-8")
    return read_launch(LaunchQuestion(framework="megatron", version=None, world=0, arguments=(), file=file, model=""))


def test_layers_that_do_nothing_are_not_built(tmp_path):
    """64 of which the last three do nothing, in 8 stages of 8."""
    found = judged(tmp_path, "--noop-layers 61,62,63")
    assert found.legal, found.violations
    assert found.world == 512
    assert [sum(stage) for stage in found.built] == [8, 8, 8, 8, 8, 8, 8, 5]
    assert found.model.layers == 61
    assert any("MindSpeed" in note for note in found.notes)


def test_they_may_be_in_the_middle_of_virtual_stages(tmp_path):
    found = judged(tmp_path, "--noop-layers 0,31,63 --num-layers-per-virtual-pipeline-stage 4")
    assert found.legal, found.violations
    assert found.built == ((3, 4), (4, 4), (4, 4), (4, 4), (4, 4), (4, 4), (4, 4), (3, 3))


def test_layers_of_each_stage_are_stated(tmp_path):
    found = judged(tmp_path, "--num-layer-list 7,7,7,8,8,8,8,8", SCRIPT.replace("--num-layers 64", "--num-layers 61"))
    assert found.legal, found.violations
    assert [sum(stage) for stage in found.built] == [7, 7, 7, 8, 8, 8, 8, 8]


def test_dense_and_shared_experts_are_those_of_megatron(tmp_path):
    found = judged(tmp_path, "--noop-layers 61,62,63")
    assert len(set(found.model.kinds())) == 2
    assert found.model.runs[0].count == 3
    facts = found.proposal.model
    assert (facts.experts, facts.top_k, facts.expert_ffn) == (256, 8, 2048)


@pytest.mark.parametrize(("algorithm", "told"), [("ulysses_cp_algo", True), ("megatron_cp_algo", False)])
def test_context_parallelism_of_another_kind_is_remarked(tmp_path, algorithm, told):
    found = judged(tmp_path, f"--context-parallel-size 2 --context-parallel-algo {algorithm}")
    assert found.legal, found.violations
    assert any("priced as a ring" in note for note in found.notes) is told


def test_its_adapters_are_read(tmp_path):
    found = judged(tmp_path, "--lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv linear_proj")
    assert (found.adapters.rank, found.adapters.targets) == (8, ("attn",))

"""Launches of slime and miles, and scripts whose sizes stand in a file that they source."""

import pytest

from hardware.errors import InputError
from planner.launches.check import read_launch
from planner.question import LaunchQuestion

MODEL = """MODEL_ARGS=(
   --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32 --group-query-attention
   --num-query-groups 8 --kv-channels 128 --normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm
   --position-embedding-type rope --vocab-size 151936
)
"""
HERE = 'SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
TRAIN = """ray job submit -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 4 --colocate \\
   ${MODEL_ARGS[@]} --hf-checkpoint /root/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8 \\
   --sglang-cuda-graph-bs 1 2 $(seq 16 8 256) --tensor-model-parallel-size 2 --sequence-parallel \\
   --use-dynamic-batch-size --max-tokens-per-gpu 4608 --context-parallel-size 2 --recompute-granularity full \\
   --recompute-method uniform --recompute-num-layers 1
"""


def judged(folder, text, model=MODEL, name="models/sizes.sh"):
    sizes = folder / "checkout" / "scripts" / name
    sizes.parent.mkdir(parents=True)
    sizes.write_text(model, encoding="utf-8")
    file = folder / "checkout" / "examples" / "deep" / "run.sh"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return read_launch(LaunchQuestion(framework="megatron", version=None, world=0, arguments=(), file=file, model=""))


@pytest.mark.parametrize(
    "line",
    [
        HERE + 'source "${SCRIPT_DIR}/../../scripts/models/sizes.sh"\n',
        '. "${ANYWHERE}/scripts/models/sizes.sh"\n',
        "source ../../scripts/models/sizes.sh\n",
    ],
)
def test_what_a_script_sources_from_its_checkout_is_read(tmp_path, line):
    found = judged(tmp_path, line + TRAIN)
    assert found.legal, found.violations
    assert (found.world, found.proposal.tp, found.proposal.cp, found.model.layers) == (8, 2, 2, 36)
    assert (found.proposal.global_batch, found.proposal.micro_batch, found.proposal.seq) == (256, 1, 9216)
    assert found.precision == "bf16"
    assert any("packed up to" in note for note in found.notes)
    assert found.unknown == ()


def test_scripts_of_the_machine_are_not_read(tmp_path):
    """An absolute name is another machine's; the model is that of the checkpoint then."""
    secret = tmp_path / "models" / "sizes.sh"
    secret.parent.mkdir()
    secret.write_text(MODEL.replace("36", "7"), encoding="utf-8")
    found = judged(tmp_path, f"source {secret}\n{TRAIN}")
    assert found.model.name == "qwen3_4b"
    assert found.legal


def test_scripts_that_source_each_other_end(tmp_path):
    found = judged(
        tmp_path, HERE + f'source "${{SCRIPT_DIR}}/../../scripts/models/sizes.sh"\n{TRAIN}', MODEL + ". ./sizes.sh\n"
    )
    assert found.model.layers == 36


def test_arms_of_which_one_runs_do_not_add_up(tmp_path):
    """Both number formats were read, and refused together."""
    arms = """if [ $1 = fp16 ]; then
    MODEL_ARGS+=(--fp16)
elif [ $1 = bf16 ]; then
    MODEL_ARGS+=(--bf16)
fi
case $2 in
    a) MODEL_ARGS+=(--untie-embeddings-and-output-weights); TP=1 ;;
    *) MODEL_ARGS+=(--make-vocab-size-divisible-by 64) ;;
esac
"""
    found = judged(tmp_path, MODEL + arms + TRAIN.replace("parallel-size 2 --seq", "parallel-size ${TP} --seq"))
    assert found.legal, found.violations
    assert found.precision == "bf16"
    assert found.model.tied_embeddings
    assert found.proposal.tp == 1


@pytest.mark.parametrize(
    "words",
    ["--use-dynamic-batch-size --max-tokens-per-gpu 0", "--actor-num-nodes x", "--rollout-batch-size 0"],
)
def test_counts_that_are_none_are_refused(tmp_path, words):
    name = words.rpartition(" ")[0].rpartition(" ")[2] or words.partition(" ")[0]
    file = tmp_path / "a.sh"
    file.write_text(f"python train.py --actor-num-gpus-per-node 8 --hf-checkpoint Qwen/Qwen3-4B {words}\n")
    with pytest.raises(InputError, match=f"{name} .*allowed: a whole number from 1"):
        read_launch(LaunchQuestion(file=file, framework="megatron"))

"""What PyTorch's allocator refuses of the variables that a launch exports; each asked of PyTorch 2.13."""

from pathlib import Path

import pytest

from planner.ingest.allocator import allocator_violations
from planner.ingest.judge import judge_launch
from planner.ingest.judged import LaunchInput
from planner.ingest.launch_text import read_launch_text
from planner.ingest.scripts.values import BLANK
from planner.request import Framework
from planner.rules.table import NEWEST

ONE = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --num-layers 8"
SIZES = "--hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
BATCH = "--micro-batch-size 1 --global-batch-size 8 --bf16"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("expandable_segments:True", ()),
        ("expandable_segments:true", ("True or False",)),
        ("expandable_segments:1", ("True or False",)),
        ("expandable_segments=True", ("KEY:VALUE",)),
        ("max_split_size_mb:20", ()),
        ("max_split_size_mb:19", ("20 or more",)),
        ("max_split_size_mb:128, expandable_segments:True", ()),
        ("max_split_size_mb:abc,expandable_segments:TRUE", ("20 or more", "True or False")),
        ("garbage_collection_threshold:0.8", ()),
        ("garbage_collection_threshold:1", ("between 0 and 1",)),
        ("roundup_power2_divisions:4", ()),
        ("roundup_power2_divisions:3", ("power of two",)),
        ("roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True", ()),
        ("pinned_use_background_threads:true", ("True or False",)),
        ("expandable_segments:True max_split_size_mb:128", ("True or False",)),
        ("backend:cudaMallocAsync", ()),
        (f"expandable_segments:{BLANK}", ()),
        ("", ()),
    ],
)
@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_settings_are_judged_as_pytorch_reads_them(name, text, refused):
    found = allocator_violations({name: text})
    assert len(found) == len(refused)
    for one, words in zip(found, refused, strict=True):
        assert one.message.startswith(f"{name}: '")
        assert words in one.message


def test_without_a_script_nothing_is_said():
    assert allocator_violations(None) == ()


@pytest.mark.parametrize(("value", "legal"), [("true", False), ("True", True)])
def test_a_launch_that_exports_a_refused_setting_is_not_legal(tmp_path: Path, value, legal):
    path = tmp_path / "run.sh"
    exported = f"export CUDA_DEVICE_MAX_CONNECTIONS=1\nexport PYTORCH_CUDA_ALLOC_CONF='expandable_segments:{value}'\n"
    path.write_text(f"{exported}{ONE} {SIZES} {BATCH}\n", encoding="utf-8")
    text = read_launch_text(path, ())
    given = LaunchInput(text=text, framework=Framework.MEGATRON, version=NEWEST["megatron"], world=8, model=None)
    judged = judge_launch(given)
    assert judged.legal is legal
    assert judged.accepted is legal

"""A list of layers has no embedding: the two-level search must not take its first layers for one."""

import pytest
from typer.testing import CliRunner

from planner import Question, plan, request_of
from planner.cli import app

LAYERS = """
name = "made-up"

[[layer]]
name = "wide"
count = 3
forward_gflops_per_sample = 10
parameters = 1000000
activation_mb_per_sample = 10
output_mb_per_sample = 1
"""
SECOND = """
[[layer]]
name = "narrow"
count = 2
forward_gflops_per_sample = 20
parameters = 9000000
activation_mb_per_sample = 5
output_mb_per_sample = 1
shardable = ["tp"]
"""


@pytest.mark.parametrize("framework", ["none", "galvatron"])
@pytest.mark.parametrize("text", [LAYERS, LAYERS + SECOND])
def test_every_layer_of_a_list_has_a_strategy(tmp_path, framework, text):
    path = tmp_path / "model.toml"
    path.write_text(text)
    asked = Question(model=str(path), cluster="dgx-h100:1", global_batch=32, framework=framework)
    for row in plan(request_of(asked)).layouts:
        for stage in row.layout.stages:
            assert sum(run.count for run in stage.strategies) == sum(stage.layers_per_chunk)


def test_a_list_of_layers_has_no_layout_string(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(LAYERS)
    words = ["search", str(path), "dgx-h100:1", "--global-batch", "32", "--fix", "pp=2", "--top", "1"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0
    assert "PP2" in found.stdout
    assert "--pipeline-model-parallel-layout" not in found.stdout

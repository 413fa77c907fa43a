"""Everything under examples/ is planned."""

from pathlib import Path

import pytest
from small_requests import fits

from planner import Question, plan, request_of
from planner.sweeps.sweep_file import read_sweep

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.deep
@pytest.mark.parametrize("path", sorted((EXAMPLES / "clusters").glob("*.toml")), ids=lambda path: path.stem)
def test_example_clusters_are_planned(path):
    asked = Question(model="llama32_1b", cluster=str(path), global_batch=64, seq=2048, top=3, recompute="none")
    report = plan(request_of(asked))
    assert report.layouts
    assert all(fits(ranked.cost) for ranked in report.layouts)


@pytest.mark.deep
@pytest.mark.parametrize("path", sorted((EXAMPLES / "models").glob("*.toml")), ids=lambda path: path.stem)
def test_example_models_are_planned(path):
    asked = Question(model=str(path), cluster="dgx-a100:1", global_batch=64, seq=2048, top=3)
    report = plan(request_of(asked))
    assert report.layouts
    assert all(ranked.layout.layers == report.request.model.layers for ranked in report.layouts)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_example_sweeps_are_read_and_their_requests_stand(path):
    questions = read_sweep(path).questions
    assert questions
    for question in questions:
        assert request_of(question).cluster.gpus > 0

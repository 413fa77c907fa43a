"""Recipes that Megatron-Bridge ships are legal, but for those whose fault is known, and fit their own machines."""

import tomllib
from pathlib import Path

import pytest

from costmodels.workload.presets import model
from planner.ingest.judge import judge_launch
from planner.ingest.judged import JudgedLaunch, LaunchInput
from planner.ingest.launch_text import LaunchText
from planner.launches.check import request_of_launch
from planner.planning import estimate
from planner.request import Framework

TABLE = Path(__file__).parent / "reference" / "bridge_recipes.toml"
RECIPES = tomllib.loads(TABLE.read_text(encoding="utf-8"))["recipe"]


def judged(recipe) -> JudgedLaunch:
    return judge_launch(
        LaunchInput(
            text=LaunchText(arguments=tuple(recipe["overrides"])),
            framework=Framework.BRIDGE,
            version="0.6",
            world=recipe["gpus"],
            model=model(recipe["model"]),
        )
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["name"])
def test_a_recipe_gets_its_verdict(recipe):
    found = judged(recipe)
    assert [violation.rule for violation in found.violations] == recipe["broken"]
    assert found.unknown == ()
    if found.legal:
        assert sum(map(sum, found.built)) == found.model.layers
        request = request_of_launch(found, recipe["cluster"])
        use = estimate(request, found.layout).cost.heaviest
        assert (use.verdict.value == "oom") == (recipe["verdict"] == "oom")


def test_the_sample_holds_every_kind():
    assert len(RECIPES) >= 20
    assert len({recipe["model"] for recipe in RECIPES}) >= 10
    assert {recipe["cluster"] for recipe in RECIPES} >= {"dgx-h100", "dgx-b200", "gb200-nvl72", "vr200-nvl72"}

"""Parameter counts of presets against the published ones."""

import tomllib
from pathlib import Path

import pytest

from costmodels.workload.counts import parameter_count
from costmodels.workload.presets import model

TOTALS = tomllib.loads((Path(__file__).parent / "reference" / "preset_totals.toml").read_text())


def test_parameters_equal_the_published_checkpoints() -> None:
    counted = {name: parameter_count(model(name)).total for name in TOTALS["exact"]}
    assert counted == TOTALS["exact"]


def test_total_and_active_parameters_are_those_of_cards_and_papers() -> None:
    for name, (total, active) in TOTALS["rounded"].items():
        count = parameter_count(model(name))
        assert count.total / 1e9 == pytest.approx(total, rel=0.02), name
        # cards leave embeddings, head or shared experts out of active parameters more often than out of totals
        assert count.active / 1e9 == pytest.approx(active, rel=0.02 if total == active else 0.13), name

"""The number of fitted constants: counted in the files, and said by `plan validate`."""

import tomllib
from importlib import resources

from rich.console import Console

from costmodels.inventory import FILES, fitted_constants
from planner.report.validation import predictions_to_json, print_predictions


def count(model: str):
    return next(one for one in fitted_constants() if one.model == model)


def test_every_file_of_constants_is_counted():
    assert {one.model for one in fitted_constants()} == {model for model, _ in FILES}
    assert all(0 <= one.of_machines <= one.total for one in fitted_constants())


def test_compute_counts_the_pairs_whose_source_was_fitted():
    text = resources.files("costmodels").joinpath("efficiency.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    keys = {key for key, source in table["sources"].items() if "fitted" in source}
    shared = sum(key in keys for _, key in table["shared"].values())
    named = [value for row in table["generation"] for value in row.values()]
    inner = [pair for value in named if isinstance(value, dict) for pair in value.values()]
    pairs = [pair for pair in (*named, *inner) if isinstance(pair, list) and len(pair) == 2 and pair[1] in keys]
    assert (count("compute").total, count("compute").of_machines) == (shared + len(pairs), len(pairs))


def test_stated_values_count_once():
    text = resources.files("costmodels").joinpath("overlap.toml").read_text(encoding="utf-8")
    assert count("overlap").total == sum("fitted" in row["source"] for row in tomllib.loads(text).values())


def test_software_counts_the_numbers_that_it_lists_as_fitted():
    table = tomllib.loads(resources.files("costmodels").joinpath("software.toml").read_text(encoding="utf-8"))
    listed = [row.get("fitted", ()) for row in (*table["presets"].values(), *table["hints"])]
    assert count("software").total == sum(map(len, listed)) > 0


def test_validate_says_how_many_there_are(capsys):
    total = sum(one.total for one in fitted_constants())
    assert predictions_to_json(())["summary"]["fitted_constants"]["total"] == total
    print_predictions(Console(width=120), ())
    assert f"{total}, each with what it was fitted on" in capsys.readouterr().out

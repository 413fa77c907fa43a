"""The front page and the documents of the command line say what is so."""

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app
from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate
from planner.question import Question, request_of
from planner.sweeps.sweep_file import read_sweep

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = tuple(str(page.relative_to(ROOT)) for folder in (ROOT, ROOT / "docs") for page in sorted(folder.glob("*.md")))
RUN = CliRunner()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.deep
def test_the_first_command_prints_what_the_page_shows():
    command = re.search(r"<!-- output of: plan ([^>]*?) -->", README)
    first = next(line for line in README.splitlines() if "pip install . &&" in line)
    assert command is not None
    assert f"plan {command[1]}" in first
    result = RUN.invoke(app, shlex.split(command[1]), env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    shown = blocks(README, "text")[0].splitlines()
    printed = result.stdout.splitlines()
    assert printed[:2] == shown[:2]
    assert printed[3].split() == shown[3].split()
    headings = re.compile(r"^[A-Z][A-Za-z ]+")
    assert {headings.match(line)[0] for line in shown if headings.match(line)} >= {"Best", "How sure"}


def test_the_test_command_of_the_page_is_the_one_that_continuous_integration_runs():
    steps = re.search(r"^Tests[^`]*`([^`]*)`", README, re.MULTILINE)
    assert steps is not None
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("--quiet ", "")
    for step in steps[1].split(" && "):
        assert step.replace("python3 -m", '"$python" -m') in script


def test_commands_on_the_page_exist():
    names = set(re.findall(r"(?:`|/|^)plan ([a-z]+)", README, re.MULTILINE))
    assert names >= {"search", "estimate", "explain", "export", "check", "sweep", "validate", "catalog"}
    for name in names:
        assert RUN.invoke(app, [name, "--help"]).exit_code == 0, name


def test_python_on_the_page_runs():
    for code in blocks(README, "python"):
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 0, found.stderr
        assert float(found.stdout) > 0.0


def test_the_index_of_the_documents_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\(([\w-]+\.md)\)", index))


def test_the_glossary_has_every_component_of_memory():
    request = request_of(Question(model="mixtral_8x7b", cluster="dgx-h100:2", global_batch=64, seq=4096))
    use = estimate(request, layout_of(request, ExplicitLayout(tp=2, ep=8, zero=2))).cost.heaviest
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = {word.strip() for row in re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE) for word in row.split(",")}
    assert {name for name, _ in use.components} <= words


def test_names_of_the_python_interface_exist():
    """Rows of the page: a module in backticks, a colon, then names of it."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("## From Python")[1].split("##")[0]
    found = re.findall(r"`((?:planner|costmodels|hardware)[\w.]*)`: ((?:`\w+`(?:, with|,)? ?)+)", section)
    named = [(module, name) for module, names in found for name in re.findall(r"`(\w+)`", names)]
    assert len(named) > 15
    assert [(module, name) for module, name in named if not hasattr(import_module(module), name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("https://"):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_the_sweep_of_the_page_is_read(tmp_path):
    for number, text in enumerate(blocks((ROOT / "docs" / "command-line.md").read_text(encoding="utf-8"), "toml")):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        assert len(read_sweep(path).questions) == 16


@pytest.mark.parametrize("script", sorted((ROOT / "examples" / "scripts").glob("*.py")), ids=lambda path: path.stem)
def test_example_scripts_run(script):
    arguments = {"smallest_cluster": ["llama3_8b", "dgx-h100", "20000"]}.get(script.stem, [])
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    found = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout

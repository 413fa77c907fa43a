"""The page for a newcomer: its files load and its commands do what it says."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

pytestmark = pytest.mark.deep

PAGE = (Path(__file__).parent.parent / "docs" / "first-plan.md").read_text(encoding="utf-8")
FILES = {re.findall(r"# (\S+)", block)[0]: block for block in re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)}
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
NEED_RUNS = ("validate", "calibrate", "--profile")


def test_every_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    ran = [command for command in COMMANDS if not any(word in command for word in NEED_RUNS)]
    assert len(ran) == len(COMMANDS) - len(NEED_RUNS) == 6
    for command in ran:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cluster.toml", "launch", "mine.json", "model.toml", "plan.json",
    ]  # fmt: skip


def test_a_file_in_place_of_arguments_is_shown_its_option(tmp_path: Path) -> None:
    launch = tmp_path / "launch.sh"
    launch.write_text("torchrun pretrain_gpt.py --num-layers 2\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["check", str(launch)])
    assert result.exit_code == 2
    assert f"--args-file {launch}" in " ".join(result.output.replace("\n    ", " ").split())


def test_a_word_that_is_too_long_for_a_file_is_an_argument() -> None:
    result = CliRunner().invoke(app, ["check", "--framework", "megatron", "--cluster", "dgx-h100:1", "--", "x" * 300])
    assert result.exit_code == 3
    assert "belongs to no option" in " ".join(result.output.split())

"""Files that reports are written to: whole or not at all, never over what was read."""

import os
from pathlib import Path

import pytest

from hardware.errors import InputError
from planner.export.folder import write_folder
from planner.report import files
from planner.report.files import check_place, check_places, drop_parts, make_folder, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_replaces(tmp_path):
    path = tmp_path / "out.json"
    write_whole(path, "one\n")
    write_whole(path, "zwölf\n")
    assert path.read_bytes() == "zwölf\n".encode()
    assert names(tmp_path) == ["out.json"]


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "out", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out"
    write_whole(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.Path, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "out", "new")
    assert names(tmp_path) == []


def test_a_link_keeps_pointing(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_through(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert names(tmp_path) == ["pipe"]


def test_places_that_cannot_be_written_are_refused_before(tmp_path):
    with pytest.raises(InputError, match="folder"):
        check_place(tmp_path / "none" / "out")
    with pytest.raises(InputError, match="is a folder"):
        check_place(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        make_folder(tmp_path / "file" / "folder")


def test_a_place_below_a_removed_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match=r"x\.json: cannot be written: No such file"):
        check_places({"--json": Path("x.json")}, ["in.toml"])


def test_parts_of_killed_processes_are_dropped(tmp_path):
    (tmp_path / ".out.json.x1.part").write_text("half")
    (tmp_path / "out.json").write_text("whole")
    drop_parts(tmp_path)
    assert names(tmp_path) == ["out.json"]


def test_names_that_the_system_refuses_are_named(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    os.mkfifo(tmp_path / "unread")
    for name, why in (("a", "symbolic links"), ("n" * 300, "name too long"), ("unread", "No such device")):
        with pytest.raises(InputError, match=f"cannot be written: .*{why}"):
            write_whole(tmp_path / name, "text")
    for name, why in (("a", "leads nowhere"), ("n" * 300, "name too long")):
        with pytest.raises(InputError, match=why):
            write_folder(tmp_path / name, {"x": "text"})

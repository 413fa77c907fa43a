"""Writing an export into a folder: all files appear together, or none does."""

import os
import shutil
import tempfile
from pathlib import Path

from costmodels.layout import Layout
from hardware.errors import InputError
from planner.export.launch import Export
from planner.export.layout_json import write_layout
from planner.export.script import launch_script, nodes_table, page, rank_files, ranks_table


def export_files(export: Export, layout: Layout, title: str) -> dict[str, str]:
    """Names and texts of the files of an export."""
    return {
        "launch.sh": launch_script(export),
        **rank_files(export),
        "arguments.txt": export.argument_text + "\n",
        "nodes.tsv": nodes_table(export),
        "ranks.tsv": ranks_table(export),
        "layout.json": write_layout(layout),
        "README.md": page(export, title),
        **dict(export.files),
    }


def write_folder(folder: Path, texts: dict[str, str]) -> None:
    """Write files into a new folder.

    Parameters
    ----------
    folder : Path
        Must not exist, or be an empty folder or a link to one; its parent must exist.
    texts : dict of str to str
        File names and contents; names ending with ``.sh`` become executable.

    Raises
    ------
    InputError
        The folder holds something already, its parent is missing, or it cannot be written. Then nothing is left behind.
    """
    place = _place(folder)
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    except OSError as error:
        raise InputError(f"{place.parent} cannot be written: {error.strerror}", allowed="a writable folder") from None
    try:
        for name, text in texts.items():
            path = scratch / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        scratch.chmod(0o755)
        os.replace(scratch, place)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}", allowed="a writable folder") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _place(folder: Path) -> Path:
    """Where a new folder is to appear: as named, or where a link leads; InputError where none can."""
    try:
        if folder.is_symlink() and not folder.exists():
            raise InputError(
                f"{folder} is a link that leads nowhere", allowed="a new or empty folder, or a link to one"
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists", allowed="a new or empty folder")
        if folder.exists() and folder.samefile(Path()):
            raise InputError(f"{folder} is the current folder, which cannot be replaced", allowed="a new folder")
        if not folder.parent.is_dir():
            raise InputError(f"{folder.parent} is no folder", allowed="a folder inside an existing one")
        os.stat(folder)
    except FileNotFoundError:
        return folder  # the usual case: it is to be made
    except OSError as error:  # a name that is too long, links in a circle, a folder that may not be looked into
        raise InputError(f"{folder} cannot be written: {error.strerror}", allowed="a writable folder") from None
    return folder.resolve() if folder.is_symlink() else folder

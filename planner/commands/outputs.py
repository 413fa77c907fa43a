"""What a command leaves: its exit code, and the files that were asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.report.console import write_stdout
from planner.report.files import check_places, write_whole
from planner.report.json_text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.plan_report import PlanReport

DONE: Final = 0
INFEASIBLE: Final = 3
STDOUT: Final = "-"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Files to write besides the text; ``json`` may be ``-`` for standard output."""

    json: str | None = None
    html: Path | None = None
    trace: Path | None = None

    def check(self, *inputs: str) -> None:
        """Refuse places that cannot be written, or that are ``inputs`` as typed, before long work begins."""
        json_file = None if self.json in (None, STDOUT) else Path(str(self.json))
        places = {"--json": json_file, "--html": self.html, "--trace": self.trace}
        check_places({option: path for option, path in places.items() if path is not None}, inputs)

    def write_json(self, make: Callable[[], dict[str, object]]) -> list[str]:
        """Make and write JSON where it is wanted: it may take a while; return the file's name, if it is a file."""
        if self.json is None:
            return []
        if self.json == STDOUT:
            write_stdout(json_text(make()))
            return []
        write_whole(Path(self.json), json_text(make()))
        return [self.json]

    @property
    def json_on_stdout(self) -> bool:
        """Whether standard output belongs to JSON alone, and text to standard error."""
        return self.json == STDOUT

    def write_views(self, report: PlanReport) -> list[str]:
        """Write the page, and the trace of the best layout."""
        written = []
        if self.html is not None:
            from planner.report.html import html_text  # noqa: PLC0415

            write_whole(self.html, html_text(report))
            written.append(str(self.html))
        if self.trace is not None and report.layouts:
            from planner.report.trace import trace_text  # noqa: PLC0415

            write_whole(self.trace, trace_text(report.layouts[0], report.request_of(report.layouts[0])))
            written.append(str(self.trace))
        return written

"""What the memory model says of public reports: verdicts, moments of failure, measured peaks, states."""

import pytest
from memory_cases import Report, heaviest, peak_gib, reports, states_gb

from costmodels.results import Verdict

REPORTS = tuple(reports())


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_report(report: Report):
    uses = report.uses()
    use = heaviest(uses)
    assert use.verdict.value in report.layout["verdict"]
    if "gib" in report.layout:
        assert peak_gib(report, uses) == pytest.approx(report.layout["gib"], rel=report.get("tolerance"))
    if "moment" in report.layout:
        assert use.moment.value == report.layout["moment"]
    between = {
        "states": states_gb(use),
        "host_gb": use.host_bytes / 1e9,
        "logits_gib": report.logits_gib(),
    }
    for name, size in between.items():
        low, high = report.layout.get(name, (0.0, float("inf")))
        assert low <= size <= high, name


@pytest.mark.parametrize("report", [r for r in REPORTS if "below_first_gib" in r.layout], ids=lambda r: r.name)
def test_what_a_change_saves(report: Report):
    first = next(other for other in REPORTS if other.case is report.case)
    low, high = report.layout["below_first_gib"]
    assert low <= peak_gib(first, first.uses()) - peak_gib(report, report.uses()) <= high


def test_reports_of_failures_name_a_moment():
    for report in REPORTS:
        use = heaviest(report.uses())
        assert (use.verdict is Verdict.OOM) == (use.moment.value != "none"), report.name

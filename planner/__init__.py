"""What we choose: search, placement, legality, export and reports on top of the cost models.

The Python interface: ``planner.plan(request) -> PlanReport``, ``planner.estimate(request, layout) -> RankedLayout``,
and the values that they take and give. Everything is imported when it is first asked for, so that the command line
starts at once.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.plan_report import PlanReport, RankedLayout
    from planner.planning import estimate, plan
    from planner.question import Question, request_of
    from planner.request import PlanRequest

__all__ = ["PlanReport", "PlanRequest", "Question", "RankedLayout", "estimate", "plan", "request_of"]

_HOMES = (
    ("planner.planning", ("estimate", "plan")),
    ("planner.plan_report", ("PlanReport", "RankedLayout")),
    ("planner.question", ("Question", "request_of")),
    ("planner.request", ("PlanRequest",)),
)


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    import importlib  # noqa: PLC0415

    for module, names in _HOMES:
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'planner' has no attribute {name!r}")

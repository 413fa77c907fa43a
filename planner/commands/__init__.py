"""What each command does: from the user's words to an answer, its files, its text and its exit code.

Errors of the user are raised as :class:`hardware.errors.InputError`; the command line turns them into exit code 2.
A command is imported when it is first asked for: importing a file needs no search and no cost model.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardware.importers.assemble import Wishes
    from planner.calibrate.inputs import Inputs
    from planner.commands.launches import check, port
    from planner.commands.machines import catalog, import_nccl_tests, import_telemetry, import_topology
    from planner.commands.measurements import calibrate, validate
    from planner.commands.outputs import Outputs
    from planner.commands.questions import compare, estimate, fewest, search, sweep
    from planner.commands.reports import explain, export, rebalance, traffic
    from planner.layouts.explicit import ExplicitLayout
    from planner.question import LaunchQuestion, PortQuestion, Question
    from planner.report.target import Target
    from planner.request import pins

__all__ = [
    "ExplicitLayout",
    "Inputs",
    "LaunchQuestion",
    "Outputs",
    "PortQuestion",
    "Question",
    "Target",
    "Wishes",
    "calibrate",
    "catalog",
    "check",
    "compare",
    "estimate",
    "explain",
    "export",
    "fewest",
    "import_nccl_tests",
    "import_telemetry",
    "import_topology",
    "pins",
    "port",
    "rebalance",
    "search",
    "sweep",
    "traffic",
    "validate",
]

_HOMES = (
    ("hardware.importers.assemble", ("Wishes",)),
    ("planner.calibrate.inputs", ("Inputs",)),
    ("planner.commands.launches", ("check", "port")),
    ("planner.commands.machines", ("catalog", "import_nccl_tests", "import_telemetry", "import_topology")),
    ("planner.commands.measurements", ("calibrate", "validate")),
    ("planner.commands.outputs", ("Outputs",)),
    ("planner.commands.questions", ("compare", "estimate", "fewest", "search", "sweep")),
    ("planner.commands.reports", ("explain", "export", "rebalance", "traffic")),
    ("planner.layouts.explicit", ("ExplicitLayout",)),
    ("planner.question", ("LaunchQuestion", "PortQuestion", "Question")),
    ("planner.report.target", ("Target",)),
    ("planner.request", ("pins",)),
)


def __getattr__(name: str) -> Any:
    """Import a command or one of its nouns on first use (PEP 562)."""
    import importlib  # noqa: PLC0415

    for module, names in _HOMES:
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'planner.commands' has no attribute {name!r}")

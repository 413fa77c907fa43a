"""What each command does: from the user's words to an answer, its files, its text and its exit code.

Errors of the user are raised as :class:`hardware.errors.InputError`; the command line turns them into exit code 2.
"""

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

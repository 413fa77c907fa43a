"""What an export answers: arguments, environment, who runs where, and the text that starts it; all frozen values."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.workload.model import ModelSpec
from planner.export.hosts import NodeRow, RankRow, Site, node_rows, rank_rows
from planner.plan_report import RankPlace
from planner.request import Framework, Launcher

_OVERRIDE: Final = re.compile(r"\+{0,2}[A-Za-z_][\w.-]*[=:]")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan to be launched: what every exporter takes.

    Attributes
    ----------
    model, job : ModelSpec, TrainingJob
        What is trained.
    layout : Layout
        The plan.
    site : Site
        Hosts and GPUs, as many as the layout uses.
    placement : tuple of RankPlace
        Which GPU each rank gets; empty: in order.
    version : str, optional
        Of the framework; the newest known by default.
    launcher : Launcher
        What starts the processes.
    recipe : bool
        A recipe builds the model: what the version has no option for is the recipe's to say.
    """

    model: ModelSpec
    job: TrainingJob
    layout: Layout
    site: Site
    placement: tuple[RankPlace, ...] = ()
    version: str | None = None
    launcher: Launcher = Launcher.TORCHRUN
    recipe: bool = False

    @cached_property
    def nodes(self) -> tuple[NodeRow, ...]:
        """Hosts in node-rank order; see :func:`planner.export.hosts.node_rows`."""
        return node_rows(self.site, self.placement, self.launcher)

    @cached_property
    def ranks(self) -> tuple[RankRow, ...]:
        """Coordinates of every rank; see :func:`planner.export.hosts.rank_rows`."""
        return rank_rows(self.layout, self.nodes)


@dataclass(frozen=True, kw_only=True)
class Program:
    """What torchrun starts, or the Python of every rank.

    Attributes
    ----------
    target : str
        Words after torchrun's options or ``python``, as a shell reads them; ``$TRAIN_SCRIPT`` is the user's, ``$here``
        the folder.
    script : str
        What ``TRAIN_SCRIPT`` names, such as ``/path/to/Megatron-LM/pretrain_gpt.py``; empty when none is needed.
    user_words : str
        ``USER_ARGS`` when the user gives none.
    user_says : str
        What ``USER_ARGS`` is for.
    user_first : bool
        The user's words come before the plan's, because the plan's end with a subcommand.
    """

    target: str = '"$TRAIN_SCRIPT"'
    script: str = "/path/to/Megatron-LM/pretrain_gpt.py"
    user_words: str = "--mock-data --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 20"
    user_says: str = "data, tokenizer, learning rate, checkpoints"
    user_first: bool = False


@dataclass(frozen=True, kw_only=True)
class Export:
    """A launch in the words of one framework.

    Attributes
    ----------
    arguments : tuple of str
        Arguments of the training script, without those of the user (data, checkpoints, learning rate).
    environment : tuple of (str, str)
        Variables to set; an empty value means that the variable must not be set.
    nodes, ranks : tuple
        Who runs where.
    notes : tuple of str
        What the user should know: settings left out, defaults that stand in.
    program : Program
        What is started.
    files : tuple of (str, str)
        Names and texts of files that the launch needs besides.
    launcher : Launcher
        What starts the processes.
    """

    framework: Framework
    version: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    nodes: tuple[NodeRow, ...]
    ranks: tuple[RankRow, ...]
    notes: tuple[str, ...] = ()
    program: Program = Program()
    files: tuple[tuple[str, str], ...] = ()
    launcher: Launcher = Launcher.TORCHRUN

    @property
    def argument_text(self) -> str:
        """Arguments as a shell would need them, one option a line."""
        return join_options(self.arguments)


def join_options(arguments: Sequence[str]) -> str:
    """Quote arguments for a shell and write one option with its values, ``key=value`` or subcommand a line."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or _OVERRIDE.match(argument) or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(argument))
    return "\n".join(" ".join(line) for line in lines)

"""What every reader of launches gives: the same facts, whatever the framework."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Images
from costmodels.layout import Layout
from costmodels.workload.model import ModelSpec
from planner.choices import Loss
from planner.ingest.adapters import Adapters
from planner.ingest.launch_text import LaunchText
from planner.ingest.megatron.software_flags import StatedSoftware
from planner.ingest.options import Fault
from planner.request import Framework
from planner.rules.proposal import Proposal
from planner.rules.split import Layers
from planner.rules.table import Found
from planner.rules.verdict import Violation, accepted_at_launch
from planner.sayable import EVERYTHING, Sayable

ASSUMED_SEQ: Final = 4096
"""Tokens of a sequence of a launch that states none, unless its model has fewer positions."""
ACCELERATE: Final = "accelerate"
"""Who runs a launch of PyTorch's own sharding: no framework that plans are made for, and so none of its rules."""
SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Framework.MEGATRON: "Megatron-LM arguments.py, parse_args and validate_args",
        Framework.BRIDGE: "Megatron-Bridge training/utils/omegaconf_utils.py: unknown keys are refused",
        Framework.NEMO: "NeMo nemo_run command line and MegatronStrategy",
        Framework.TORCHTITAN: "torchtitan config/configs.py",
        Framework.DEEPSPEED: "DeepSpeed runtime/config.py",
        Framework.GALVATRON: "Galvatron core/runtime/hybrid_parallel_config.py",
        ACCELERATE: "accelerate utils/dataclasses.py and parallelism_config.py",
    }
)
"""Where each framework's own checks are written."""


@dataclass(frozen=True, kw_only=True)
class LaunchInput:
    """What a reader starts from.

    Attributes
    ----------
    text : LaunchText
        The launch.
    framework, version : Framework, str
        Whose launch; the version is resolved.
    world : int
        GPUs.
    model : ModelSpec or None
        The model that the user names; None: the one that the launch builds or names.
    """

    text: LaunchText
    framework: Framework
    version: str
    world: int
    model: ModelSpec | None


@dataclass(frozen=True, kw_only=True)
class JudgedLaunch:
    """A launch of any framework, read and judged.

    Attributes
    ----------
    title : str
        Framework and version in words.
    world : int
        GPUs.
    violations : tuple of Violation
        What is wrong; arguments that are not understood come first.
    accepted : bool
        The framework's own checks would let it start.
    proposal : Proposal or None
        What the rules judged; None when the arguments do not state it.
    built : tuple of tuples of int, or None
        Layers of each stage and virtual chunk; None when the framework refuses before it counts them.
    layout : Layout or None
        The launch as a layout; None when it would not start or the model is not known.
    model : ModelSpec or None
        The model, where the launch builds or names one.
    precision : str
        Training recipe.
    gradient_bytes, optimizer_bytes : float
        Per parameter, as the launch states them: the summed gradients (0.0: as the framework is priced) and the
        optimizer's states beside master weights.
    optimizer : str
        Its kind, such as ``adam`` or ``muon``.
    optimizer_offload, state_offload : bool
        The optimizer's states, or all states, lie in host memory.
    optimizer_offload_share : float
        Of the optimizer's states, where they lie there.
    inputs_offload : bool
        The inputs of layers that recompute in full lie there.
    sync_each_batch : bool
        Sharded gradients are reduced with every micro-batch, where its software would let them wait for the last.
    loss, loss_chunks : Loss, int
        How the launch computes its cross-entropy, as far as it says, and in how many chunks; 0: as many as usual.
    adapters : Adapters or None
        What it trains in the place of its model.
    images : Images or None
        What its sequences are taken to have, where its model has a vision tower, and what of that is trained.
    software : str
        Preset of :mod:`costmodels.software` that the launch is priced as; empty: that of its framework.
    stated : StatedSoftware
        What it says of its software by switches of its own.
    sayable : Sayable
        What the launcher can be told, where that is less than the framework's rules allow.
    wide_weights : bool
        Weights stay in 16 bits where the recipe has them in the format of products (no ``--fp8-param-gather``).
    unknown : tuple of str
        Arguments that the framework does not know.
    unjudged : tuple of str
        Arguments that are known to say nothing about a layout.
    notes : tuple of str
        What was assumed.
    """

    title: str
    framework: Framework
    version: str
    world: int
    violations: tuple[Violation, ...]
    accepted: bool
    proposal: Proposal | None
    built: Layers | None
    layout: Layout | None
    model: ModelSpec | None
    precision: str
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 8.0
    optimizer: str = "adam"
    optimizer_offload: bool = False
    optimizer_offload_share: float = 1.0
    state_offload: bool = False
    inputs_offload: bool = False
    sync_each_batch: bool = False
    loss: Loss = Loss.DEFAULT
    loss_chunks: int = 0
    adapters: Adapters | None = None
    images: Images | None = None
    software: str = ""
    stated: StatedSoftware = field(default_factory=StatedSoftware)
    sayable: Sayable = EVERYTHING
    wide_weights: bool = False
    unknown: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


def no_layout_rule(runs: str) -> str:
    """Name of the rule that a launch breaks which states no layout, such as one whose batch does not multiply out."""
    return f"{runs}-launch"


def assumed_seq(model: ModelSpec | None) -> int:
    """Tokens of a sequence of a launch that states none: a usual length, or all positions of a model with fewer."""
    return min((model.max_positions if model else 0) or ASSUMED_SEQ, ASSUMED_SEQ)


def fault_violations(faults: Sequence[Fault], source: str) -> tuple[Violation, ...]:
    """Arguments that a parser refuses, as violations."""
    return tuple(
        Violation(
            rule=fault.rule,
            message=fault.message,
            values={"argument": fault.argument},
            found=Found.NEVER if "without a word" in fault.message else fault.found,
            source=source,
        )
        for fault in faults
    )


def with_violations(judged: JudgedLaunch, found: Sequence[Violation]) -> JudgedLaunch:
    """The answer with violations that no rule on degrees states."""
    if not found:
        return judged
    violations = (*judged.violations, *found)
    accepted = accepted_at_launch(violations)
    built, layout = (judged.built, judged.layout) if accepted else (None, None)
    return replace(judged, violations=violations, accepted=accepted, built=built, layout=layout)


def unknown_names(faults: Sequence[Fault]) -> tuple[str, ...]:
    """Names of arguments that are not known."""
    return tuple(fault.argument for fault in faults if fault.unknown)

"""What plan explain prints for a run that was measured: which part of the step most likely holds the difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from costmodels.results import Evidence
from planner.advice.gap import REPEATS, Gap, Suspect
from planner.report.console import section, show
from planner.report.layout_text import labelled
from planner.report.left_out_text import OTHER_UNIT
from planner.report.tables import ruled_table
from planner.report.words import interval, percent, seconds

CLEAR: Final = 0.5  # the share of the difference from which on one part is named alone
LEAST_SHARE: Final = 0.02  # parts below it are left out


@dataclass(frozen=True, kw_only=True)
class _Words:
    """Name of a group of parts, and what to look at on the machine."""

    name: str
    look: str


_WORDS: Final[Mapping[str, _Words]] = MappingProxyType(
    {
        "products": _Words(
            name="matrix products and attention",
            look="clocks and limits under load (nvidia-smi -q -d CLOCK,POWER,PERFORMANCE), the attention kernel, "
            "fp8 really on, sizes that tiles divide",
        ),
        "memory": _Words(
            name="memory-bound ops and optimizer",
            look="fused norms, activations, rotary embedding, loss and optimizer; memory clock; host offload",
        ),
        "host": _Words(
            name="the host, which starts kernels",
            look="processor governor and pinning, CUDA graphs, synchronisations and logging inside the step; a "
            "profile shows gaps between kernels",
        ),
        "tp": _Words(
            name="exchange of tensor and context parallel",
            look="overlap switches (--tp-comm-overlap), NVLink state (nvidia-smi nvlink -s), the all-reduce rate "
            "inside a node with nccl-tests",
        ),
        "experts": _Words(
            name="exchange of experts",
            look="balance of the routing, the token dispatcher, the all-to-all rate with nccl-tests",
        ),
        "states": _Words(
            name="gradients and weights over data parallel ranks",
            look="overlap switches (--overlap-grad-reduce, --overlap-param-gather), the all-reduce rate between nodes "
            "with nccl-tests, the network that NCCL names (NCCL_DEBUG=INFO: NET/IB, not NET/Socket), adapters per "
            "node in use, GPUDirect RDMA",
        ),
        "pipeline": _Words(
            name="pipeline bubble and uneven stages",
            look="layers of each stage as planned, time of each stage in a profile, sends overlapped with computing",
        ),
        "other": _Words(
            name="what no part stands for",
            look="data loading, checkpoints and evaluation inside the measured steps, one slow GPU or host, "
            "first steps before it is warm",
        ),
    }
)


def print_gap(console: Console, gap: Gap, evidence: Evidence, slow_device: float = 0.0) -> None:
    """Print which parts of a step most likely hold the difference to a measured one.

    Parameters
    ----------
    console : Console
        Where to.
    gap : Gap
        Of :func:`planner.advice.gap.explain_gap`.
    evidence : Evidence
        Of the prediction, for its interval.
    slow_device : float
        By how much one accelerator alone would have to be slower to hold the difference; 0.0: that is not told.
    """
    console.print()
    share = gap.value_s / gap.predicted_s
    way = "more" if gap.value_s > 0.0 else "less"
    title = (
        f"Measured {seconds(gap.measured_s)}: {seconds(abs(gap.value_s))} ({percent(abs(share))}) {way} than predicted"
    )
    if gap.impossible:
        text = (
            f"  No run is as fast: at the peak rate the model's FLOPs alone take {seconds(gap.peak_s)}. Look at the "
            "unit of the time (seconds of a step), the batch, the sequence, the model and the number of GPUs."
        )
        show(console, section(title, Text(text)))
        return
    if gap.measured_s > OTHER_UNIT * gap.predicted_s:
        text = (
            f"  {gap.measured_s / gap.predicted_s:,.0f} times the prediction is no matter of speed. Look at the unit "
            "of the time (seconds of a step, not milliseconds), the batch, the sequence, the model and how many GPUs."
        )
        show(console, section(title, Text(text)))
        return
    if not gap.suspects:
        text = f"  As near as runs of one layout repeat (within {percent(REPEATS, 0)}): nothing to look for."
        show(console, section(title, Text(text)))
        return
    inside = evidence.low_s <= gap.measured_s <= evidence.high_s
    said = "inside" if inside else "outside"
    sentence = f"It is {said} the interval of the prediction, {interval(evidence.low_s, evidence.high_s)}."
    alone = (Text(_slow_device(slow_device)),) if slow_device > 0.0 else ()
    show(console, section(title, Text(f"  {sentence}")), _table(gap.suspects), *_verdict(gap), *alone)


def _slow_device(slower: float) -> str:
    return (
        f"One GPU alone would hold it were it {percent(slower)} slower than its like: all ranks wait for the slowest. "
        "Time one small job on every node by itself; `plan import telemetry` reads what monitoring has on each GPU."
    )


def _table(suspects: Sequence[Suspect]) -> RenderableType:
    table = ruled_table()
    for number, name in enumerate(
        ("part of the step", "predicted", "usually errs by", "likely part", "alone it would be")
    ):
        table.add_column(name, justify="right" if 0 < number < 4 else "left", overflow="fold")
    for suspect in suspects:
        if suspect.share >= LEAST_SHARE:
            own = "" if suspect.group == "other" else seconds(suspect.predicted_s)
            row = (
                _WORDS[suspect.group].name,
                own,
                seconds(suspect.usual_s),
                percent(suspect.share, 0),
                _alone(suspect),
            )
            table.add_row(*row)
    return table


def _alone(suspect: Suspect) -> str:
    """Say how far off a part would have to be to hold all of the difference."""
    if suspect.needed <= 0.0:
        return "no"
    factor = suspect.needed
    return f"{factor:.2f} x slower" if factor >= 1.0 else f"{1.0 / factor:.2f} x faster"


def _verdict(gap: Gap) -> Sequence[RenderableType]:
    first, *others = gap.suspects
    if first.share >= CLEAR or not others:
        said, named = f"Most likely: {_WORDS[first.group].name}.", [first]
    else:
        second = others[0]
        said = f"No part stands out: {_WORDS[first.group].name} first, then {_WORDS[second.group].name}."
        named = [first, second]
    look = [(_WORDS[suspect.group].name, _WORDS[suspect.group].look) for suspect in named]
    then = Text("plan calibrate RUNS.csv -o PROFILE.toml fits the machine to runs like this one; --profile uses it.")
    return (section(said, labelled([("look at", text) for _, text in look])), then)

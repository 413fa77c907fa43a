"""``plan search``: a question from the words of the command line, or a start from what exists."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hardware.errors import InputError
from planner import choices
from planner.cli.leaving import leaving
from planner.cli.options import (
    ClusterOrNone,
    FrameworkOrNone,
    FreezeWords,
    GlobalBatchOrNone,
    ImagesWords,
    JsonOut,
    LauncherName,
    LoraRank,
    LoraTargets,
    LossName,
    MicroBatchOrAuto,
    ModelOrNone,
    Objective,
    OffloadName,
    Page,
    Pins,
    PowerCap,
    PrecisionOrNone,
    ProfileFile,
    RecomputeOrAuto,
    Seq,
    SoftwareStated,
    StartFile,
    StartRank,
    StartWorld,
    TelemetryFiles,
    Thermal,
    TimeLimit,
    Trace,
    Tries,
)

if TYPE_CHECKING:
    from planner.commands import Outputs, PortQuestion


_ALLOWED: Final = "plan search MODEL CLUSTER --global-batch N, or --from REPORT.json"


@leaving
def search(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    model: ModelOrNone = None,
    cluster: ClusterOrNone = None,
    global_batch: GlobalBatchOrNone = None,
    seq: Seq = None,
    precision: PrecisionOrNone = None,
    framework: FrameworkOrNone = None,
    objective: Objective = choices.Objective.TIME,
    micro_batch: MicroBatchOrAuto = "auto",
    recompute: RecomputeOrAuto = "auto",
    fix: Pins = None,
    top: Annotated[int, typer.Option("--top", help="Layouts to rank.", min=1, max=1000)] = 10,
    time_limit: TimeLimit = 60.0,
    software: SoftwareStated = None,
    offload: OffloadName = choices.Offload.NONE,
    tries: Tries = None,
    loss: LossName = choices.Loss.DEFAULT,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "",
    images: ImagesWords = "",
    freeze: FreezeWords = "",
    power_cap: PowerCap = 0.0,
    thermal: Thermal = False,
    launcher: LauncherName = choices.Launcher.TORCHRUN,
    profile: ProfileFile = "",
    telemetry: TelemetryFiles = None,
    start: StartFile = None,
    rank: StartRank = 1,
    world_size: StartWorld = None,
    json_out: JsonOut = None,
    html: Page = None,
    trace: Trace = None,
) -> int:
    """Find the best layouts of MODEL on CLUSTER."""
    from planner import commands  # noqa: PLC0415 - keeps help fast

    outputs = commands.Outputs(json=json_out, html=html, trace=trace)
    if start is None:
        _asks_enough(None not in (model, cluster, global_batch), world_size)
    wanted: dict[str, Any] = {"loss": loss.value, "lora_rank": lora_rank, "lora_targets": lora_targets}
    wanted |= {"images": images, "freeze": freeze, "profile": profile, "power_cap_w": power_cap, "thermal": thermal}
    wanted |= {"offload": offload.value, "top": top, "time_limit_s": time_limit, "objective": objective.value}
    question = commands.Question(
        **wanted,
        model=model or "",
        cluster=cluster or "",
        global_batch=global_batch or 0,
        seq=seq or 0,
        precision=precision or ("" if start else "bf16"),
        framework=framework.value if framework else ("" if start else choices.Framework.MEGATRON.value),
        recompute=recompute,
        fixed=commands.pins(fix or [], micro_batch),
        software=tuple(software or ()),
        tries=tuple(tries or ()),
        launcher=launcher.value,
        telemetry=tuple(map(str, telemetry or ())),
    )
    if start is not None:
        return _started(commands.PortQuestion(file=start, asked=question, rank=rank, world=world_size or 0), outputs)
    return commands.search(question, outputs)


def _asks_enough(whole: bool, world_size: int | None) -> None:
    """Refuse a search that lacks what it is about, or says how many GPUs a launch has that there is none of."""
    if not whole:
        raise InputError("MODEL, CLUSTER or --global-batch is missing", allowed=_ALLOWED)
    if world_size is not None:
        raise InputError("--world-size without --from: the CLUSTER has its GPUs", allowed="--from LAUNCH")


def _started(given: "PortQuestion", outputs: "Outputs") -> int:
    """Place a running report anew, or carry a recipe to the machine that is named last."""
    from planner import commands  # noqa: PLC0415

    asked = given.asked
    if asked.tries:
        raise InputError("--try with --from: a recipe is carried over as it is", allowed="one of them")
    if asked.telemetry or not (asked.model or asked.cluster):
        if given.world:
            raise InputError("--world-size without CLUSTER: a report has its GPUs", allowed="a launch and CLUSTER")
        return commands.rebalance(given.file, given.rank, asked, outputs)
    here = replace(asked, model=asked.model if asked.cluster else "", cluster=asked.cluster or asked.model)
    return commands.port(replace(given, asked=here), outputs)

"""``plan fewest`` and ``plan compare``: several searches side by side."""

from typing import Annotated

import typer

from planner import choices
from planner.cli.leaving import leaving
from planner.cli.options import (
    ClusterName,
    Framework,
    FreezeWords,
    GlobalBatch,
    ImagesWords,
    JsonOut,
    LoraRank,
    LoraTargets,
    LossName,
    MicroBatchOrAuto,
    Model,
    Pins,
    PrecisionName,
    RecomputeOrAuto,
    Seq,
    SoftwareStated,
    TimeLimit,
)


@leaving
def fewest(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    model: Model,
    clusters: Annotated[
        list[str], typer.Argument(metavar="MACHINE...", help="Kinds of nodes: presets such as dgx-h100, or TOML files.")
    ],
    global_batch: GlobalBatch,
    seq: Seq = None,
    precision: PrecisionName = "bf16",
    framework: Framework = choices.Framework.MEGATRON,
    software: SoftwareStated = None,
    loss: LossName = choices.Loss.DEFAULT,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "",
    images: ImagesWords = "",
    freeze: FreezeWords = "",
    recompute: RecomputeOrAuto = "auto",
    fix: Pins = None,
    time_limit: TimeLimit = 60.0,
    json_out: JsonOut = None,
) -> int:
    """Find the fewest GPUs of each kind of machine that hold a job, and what decides it."""
    from planner import commands  # noqa: PLC0415 - keeps help fast

    question = commands.Question(
        model=model,
        cluster="",
        global_batch=global_batch,
        seq=seq or 0,
        precision=precision,
        framework=framework.value,
        software=tuple(software or ()),
        loss=loss.value,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        images=images,
        freeze=freeze,
        recompute=recompute,
        fixed=commands.pins(fix or [], "auto"),
        time_limit_s=time_limit,
    )
    return commands.fewest(question, clusters, commands.Outputs(json=json_out))


@leaving
def compare(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    model: Model,
    cluster: ClusterName,
    by: Annotated[
        str, typer.Option("--by", help="Degree to vary: tp, pp, cp, ep, zero, shard_group, vpp or micro_batch.")
    ],
    global_batch: GlobalBatch,
    seq: Seq = None,
    precision: PrecisionName = "bf16",
    framework: Framework = choices.Framework.MEGATRON,
    software: SoftwareStated = None,
    loss: LossName = choices.Loss.DEFAULT,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "",
    images: ImagesWords = "",
    freeze: FreezeWords = "",
    micro_batch: MicroBatchOrAuto = "auto",
    recompute: RecomputeOrAuto = "auto",
    fix: Pins = None,
    time_limit: TimeLimit = 60.0,
    json_out: JsonOut = None,
) -> int:
    """Vary one degree and show the best layout with each value of it."""
    from planner import commands  # noqa: PLC0415

    question = commands.Question(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        seq=seq or 0,
        precision=precision,
        framework=framework.value,
        software=tuple(software or ()),
        loss=loss.value,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        images=images,
        freeze=freeze,
        recompute=recompute,
        fixed=commands.pins(fix or [], micro_batch),
        time_limit_s=time_limit,
    )
    return commands.compare(question, by, commands.Outputs(json=json_out))

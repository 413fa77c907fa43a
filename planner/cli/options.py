"""Arguments and options of the command line: their names, types, bounds and help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from planner import choices


class CheckedName(StrEnum):
    """Frameworks whose launches are read."""

    MEGATRON = "megatron"
    BRIDGE = "bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    GALVATRON = "galvatron"


class ExportName(StrEnum):
    """Formats that a plan is written in."""

    MEGATRON = "megatron"
    BRIDGE = "bridge"
    NEMO = "nemo"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    GALVATRON = "galvatron"
    JSON = "json"


Model = Annotated[str, typer.Argument(help="Preset (plan catalog models), Hugging Face config.json, or TOML file.")]
ClusterName = Annotated[
    str, typer.Argument(help="PRESET:NODES such as dgx-h100:8 (plan catalog clusters), or TOML file.")
]
ModelOrNone = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Preset, Hugging Face config.json, or TOML file.", show_default=False),
]
ClusterOrNone = Annotated[
    str | None,
    typer.Argument(metavar="CLUSTER", help="PRESET:NODES such as dgx-h100:8, or TOML file.", show_default=False),
]
GlobalBatchOrNone = Annotated[
    int | None, typer.Option("--global-batch", help="Sequences (or samples) per optimizer step.", min=1)
]
Objective = Annotated[choices.Objective, typer.Option("--objective", help="Rank by time, energy or cost.")]
MicroBatchOrAuto = Annotated[str, typer.Option("--micro-batch", help="Sequences per micro-batch, or auto.")]
RecomputeOrAuto = Annotated[str, typer.Option("--recompute", help="auto, none, selective[:module+module], full.")]
Pins = Annotated[list[str] | None, typer.Option("--fix", help="Pin a degree, such as --fix tp=4; repeatable.")]
TimeLimit = Annotated[float, typer.Option("--time-limit", help="Seconds that the search may take.", min=0.1)]
Page = Annotated[Path | None, typer.Option("--html", help="Write a report page to this file.")]
Trace = Annotated[Path | None, typer.Option("--trace", help="Write the best plan's pipeline as a Chrome trace.")]
TelemetryFiles = Annotated[
    list[Path] | None,
    typer.Option("--telemetry", help="Series of nvidia-smi, DCGM or rocm-smi of this cluster under load; repeatable."),
]
StartFile = Annotated[
    Path | None,
    typer.Option("--from", help="With CLUSTER: carry this launch or report there. Alone: place a running report anew."),
]
StartWorld = Annotated[
    int | None,
    typer.Option("--world-size", min=1, help="GPUs that the launch of --from ran on; default: as it says."),
]
StartRank = Annotated[int, typer.Option("--rank", min=1, help="Which layout of --from.")]
GlobalBatch = Annotated[int, typer.Option("--global-batch", help="Sequences (or samples) per optimizer step.", min=1)]
Seq = Annotated[
    int | None, typer.Option("--seq", help="Tokens per sequence; models without sequences need none.", min=1)
]
PRECISIONS: Final = "bf16, fp16, fp8, mxfp8, nvfp4, ..."
PrecisionName = Annotated[str, typer.Option("--precision", help=PRECISIONS)]
PrecisionOrNone = Annotated[
    str | None, typer.Option("--precision", help=PRECISIONS, show_default="bf16; with --from as the file says")
]
JsonOut = Annotated[str | None, typer.Option("--json", help="Write JSON to this file; - for standard output.")]
FRAMEWORKS: Final = "Who runs the plan; limits the search to what it can do."
Framework = Annotated[choices.Framework, typer.Option("--framework", help=FRAMEWORKS)]
FrameworkOrNone = Annotated[
    choices.Framework | None,
    typer.Option("--framework", help=FRAMEWORKS, show_default="megatron; with --from as the report says"),
]
PowerCap = Annotated[
    float, typer.Option("--power-cap", help="Power limit per GPU in watts; 0: the part's own.", min=0.0)
]
OffloadName = Annotated[
    choices.Offload,
    typer.Option(
        "--offload",
        help="In host memory: the optimizer's states, all states (needs ZeRO-3), inputs of layers (full recompute).",
    ),
]
SoftwareStated = Annotated[
    list[str] | None,
    typer.Option(
        "--software", help="What the run has unlike today's release: a preset, or compiled=off and such; repeatable."
    ),
]
Tries = Annotated[
    list[str] | None,
    typer.Option(
        "--try", help="Rank several together: schedule=all, cp_comm=p2p,a2a, or a --software switch; repeatable."
    ),
]
LoraRank = Annotated[
    int, typer.Option("--lora-rank", min=0, help="Train adapters of this rank beside the frozen model; 0: the model.")
]
LoraTargets = Annotated[
    str, typer.Option("--lora-targets", help="Beside attn, mlp, mamba, gdn, joined by +; default: attn+mlp.")
]
ImagesWords = Annotated[
    str,
    typer.Option(
        "--images", help="Of a sequence, for models that see: TOKENS, COUNTxTOKENS or 0; default: half of its tokens."
    ),
]
FreezeWords = Annotated[
    str, typer.Option("--freeze", help="Of a vision tower: tower, projector, joined by +, or none (the default).")
]
LossName = Annotated[
    choices.Loss,
    typer.Option("--loss", help="Cross-entropy on whole logits, or with the output matrix in parts; docs/memory.md."),
]
Thermal = Annotated[bool, typer.Option("--thermal", help="Price heat and place ranks by coolness.")]
LauncherName = Annotated[
    choices.Launcher,
    typer.Option("--launcher", help="What starts the ranks: srun and mpirun put any of them on any node."),
]
LauncherOrAsPlanned = Annotated[
    choices.Launcher | None, typer.Option("--launcher", help="What starts the ranks; default: as the search was asked.")
]
PlacementGiven = Annotated[
    str,
    typer.Option("--placement", help="best (by heat), in-order, or a JSON file with the places of the ranks."),
]
ProfileFile = Annotated[
    str, typer.Option("--profile", help="Profile of the machine (plan calibrate); default: published constants.")
]
TensorDegree = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share each layer.")]
ContextDegree = Annotated[int, typer.Option("--cp", min=1, help="GPUs that share each sequence.")]
ExpertDegree = Annotated[int, typer.Option("--ep", min=1, help="GPUs that share the experts of a layer.")]
MicroBatch = Annotated[int, typer.Option("--micro-batch", min=1, help="Sequences per micro-batch.")]
Stages = Annotated[
    int | None, typer.Option("--pp", min=1, help="Pipeline stages; default: those of --layers-per-stage, or 1.")
]
Chunks = Annotated[int | None, typer.Option("--vpp", min=1, help="Virtual chunks per stage.")]
ExpertTensor = Annotated[
    int | None, typer.Option("--etp", min=1, help="Tensor degree of experts; default: 1 when --ep is above 1, else tp.")
]
Replicas = Annotated[int | None, typer.Option("--dp", min=1, help="Replicas; default: what the other degrees leave.")]
LayersPerStage = Annotated[
    str | None,
    typer.Option("--layers-per-stage", help="Such as 21,21,19,19 or 10x8; virtual chunks 11/10,11/10,10/9."),
]
SequenceParallel = Annotated[
    bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel", help="Default: on when tp > 1.")
]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="1f1b, interleaved, gpipe, loopedbfs, zb-h1, zb-2p, interleavedzerobubble, zbv, dualpipev.",
    ),
]
ZeroStage = Annotated[
    int | None,
    typer.Option(
        "--zero", min=0, max=3, help="ZeRO stage; 3 is FSDP. Default: 1; torchtitan 3, 2 with pp; Galvatron 0."
    ),
]
ShardGroup = Annotated[
    int | None,
    typer.Option("--shard-group", min=1, help="Ranks that ZeRO shards over, such as those of a node; default: all."),
]
RankOrderName = Annotated[
    str | None, typer.Option("--rank-order", help="tp-cp-ep-dp-pp (default) or tp-cp-ep-pp-dp, fastest axis first.")
]
SomeRecompute = Annotated[
    str,
    typer.Option("--recompute", help="none, selective[:module+module], full, full:K (first K layers of a chunk)."),
]
Report = Annotated[
    Path, typer.Argument(metavar="REPORT.json", help="A report that search --json or estimate --json wrote.")
]
Rank = Annotated[int, typer.Option("--rank", min=1, help="Which of its layouts.")]

ClusterFile = Annotated[
    Path | None, typer.Option("-o", "--output", help="Cluster file to write; default: standard output.")
]
ImportAccelerator = Annotated[
    str, typer.Option("--accelerator", help="Name of the accelerator, where files leave it open.")
]

"""The command line ``plan``: parse, call, print, exit code. Nothing is decided here.

Heavy imports (solver, graph library, cost models) happen inside the commands, so that help appears at once.
Exit codes: 0 done; 2 the input is wrong; 3 nothing feasible; 130 interrupted.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from hardware.errors import InputError
from planner import choices
from planner.cli.comparing import compare, fewest
from planner.cli.imports import import_app
from planner.cli.leaving import INTERRUPTED, leaving, refused, stand_in_streams
from planner.cli.options import (
    CheckedName,
    Chunks,
    ClusterName,
    ContextDegree,
    ExpertDegree,
    ExpertTensor,
    ExportName,
    Framework,
    FreezeWords,
    GlobalBatch,
    ImagesWords,
    JsonOut,
    LauncherName,
    LauncherOrAsPlanned,
    LayersPerStage,
    LoraRank,
    LoraTargets,
    LossName,
    MicroBatch,
    Model,
    OffloadName,
    PlacementGiven,
    PowerCap,
    PrecisionName,
    ProfileFile,
    Rank,
    RankOrderName,
    Replicas,
    Report,
    ScheduleName,
    Seq,
    SequenceParallel,
    ShardGroup,
    SoftwareStated,
    SomeRecompute,
    Stages,
    TensorDegree,
    Thermal,
    ZeroStage,
)
from planner.cli.searching import search

app = typer.Typer(
    name="plan",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the fastest parallel layout for a training job on a cluster, and say how sure it is.",
)
catalog_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List what is known by name, or show one entry."
)
app.add_typer(catalog_app, name="catalog")
app.add_typer(import_app, name="import")
app.command("search")(search)
app.command("fewest")(fewest)
app.command("compare")(compare)


def _show_version(wanted: bool) -> None:
    if wanted:
        from planner.report.version import version as installed  # noqa: PLC0415

        typer.echo(f"plan {installed()}")
        raise typer.Exit


@app.callback()
def _plan(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and stop.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    del version  # its callback did the work


@app.command()
@leaving
def estimate(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    model: Model,
    cluster: ClusterName,
    global_batch: GlobalBatch,
    seq: Seq = None,
    precision: PrecisionName = "bf16",
    framework: Framework = choices.Framework.MEGATRON,
    tp: TensorDegree = 1,
    pp: Stages = None,
    cp: ContextDegree = 1,
    vpp: Chunks = None,
    ep: ExpertDegree = 1,
    etp: ExpertTensor = None,
    dp: Replicas = None,
    zero: ZeroStage = None,
    shard_group: ShardGroup = None,
    micro_batch: MicroBatch = 1,
    layers_per_stage: LayersPerStage = None,
    sequence_parallel: SequenceParallel = None,
    schedule: ScheduleName = None,
    rank_order: RankOrderName = None,
    recompute: SomeRecompute = "none",
    software: SoftwareStated = None,
    offload: OffloadName = choices.Offload.NONE,
    loss: LossName = choices.Loss.DEFAULT,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "",
    images: ImagesWords = "",
    freeze: FreezeWords = "",
    power_cap: PowerCap = 0.0,
    thermal: Thermal = False,
    launcher: LauncherName = choices.Launcher.TORCHRUN,
    placement: PlacementGiven = "best",
    profile: ProfileFile = "",
    json_out: JsonOut = None,
) -> int:
    """Price one explicit layout."""
    from planner import commands  # noqa: PLC0415

    asked: dict[str, Any] = {"model": model, "cluster": cluster, "global_batch": global_batch, "seq": seq or 0}
    asked |= {"precision": precision, "framework": framework.value, "recompute": recompute, "offload": offload.value}
    asked |= {"loss": loss.value, "lora_rank": lora_rank, "lora_targets": lora_targets, "thermal": thermal}
    asked |= {"images": images, "freeze": freeze, "profile": profile, "power_cap_w": power_cap}
    question = commands.Question(
        **asked,
        software=tuple(software or ()),
        launcher=launcher.value,
    )
    degrees: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "ep": ep, "etp": etp, "dp": dp}
    ways: dict[str, Any] = {"zero": zero, "shard_group": shard_group, "schedule": schedule, "rank_order": rank_order}
    explicit = commands.ExplicitLayout(
        **degrees,
        **ways,
        micro_batch=micro_batch,
        layers_per_stage=layers_per_stage,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
    )
    return commands.estimate(question, explicit, commands.Outputs(json=json_out), placement)


@app.command()
@leaving
def explain(
    report: Report,
    rank: Rank = 1,
    measured_s: Annotated[
        float | None,
        typer.Option("--measured-s", help="Seconds of a step that you measured: which part holds the difference?"),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", metavar="RUNS.csv", help="The same, as a row of measured runs.")
    ] = None,
    row: Annotated[
        str, typer.Option("--row", metavar="ID", help="Its row; default: the only one of this layout.")
    ] = "",
) -> int:
    """Show where time and memory of a layout go, and what to change."""
    from planner import commands  # noqa: PLC0415

    if measured is None:
        if row:
            raise InputError("--row without --measured", allowed="--measured RUNS.csv --row ID")
        return commands.explain(report, rank, measured_s)
    if measured_s is not None:
        raise InputError("--measured-s and --measured", allowed="one of them")
    return commands.explain(report, rank, measured=(measured, row))


@app.command()
@leaving
def traffic(
    report: Report,
    rank: Rank = 1,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Search smaller and larger clusters too: where do more GPUs stop helping?")
    ] = False,
    json_out: JsonOut = None,
) -> int:
    """Show what a layout sends over which link, and what a slower, faster or larger machine would change."""
    from planner import commands  # noqa: PLC0415

    return commands.traffic(report, rank, scaling=scaling, json_out=json_out)


@app.command()
@leaving
def export(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    report: Report,
    to: Annotated[ExportName, typer.Option("--to", help="Format.")],
    rank: Rank = 1,
    framework_version: Annotated[
        str | None, typer.Option("--framework-version", help="Such as 0.13; default: the newest known.")
    ] = None,
    hosts: Annotated[
        str | None, typer.Option("--hosts", help="Host names in order, a,b,c; default: node0,node1,...")
    ] = None,
    launcher: LauncherOrAsPlanned = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="New folder to write; default: print the arguments.")
    ] = None,
) -> int:
    """Write the launch arguments of a layout."""
    from planner import commands  # noqa: PLC0415

    names = tuple(name.strip() for name in (hosts or "").split(",") if name.strip())
    target = commands.Target(
        format=to.value, version=framework_version, hosts=names, launcher=launcher.value if launcher else ""
    )
    return commands.export(report, rank, target, output)


@app.command()
@leaving
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="Grid of models, clusters and jobs.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for results.csv and the reports.")],
    workers: Annotated[int, typer.Option("--workers", min=1, max=1024, help="Processes.")] = 1,
    scheduler: Annotated[
        str, typer.Option("--scheduler", help="Address of a Dask scheduler whose workers answer, tcp://host:8786.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Keep the points that are already there.")] = False,
) -> int:
    """Plan a grid of cluster designs and write a CSV."""
    from planner import commands  # noqa: PLC0415

    return commands.sweep(file, output, workers=workers, scheduler=scheduler, resume=resume)


@app.command()
@leaving
def check(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="Launch arguments, after two dashes.")
    ] = None,
    framework: Annotated[
        CheckedName | None,
        typer.Option("--framework", help="Whose rules count.", show_default="as the launch shows, else megatron"),
    ] = None,
    framework_version: Annotated[
        str | None, typer.Option("--framework-version", help="Such as 0.13; default: the newest known.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="GPUs of the job; default: as launch or cluster say.")
    ] = None,
    args_file: Annotated[
        Path | None, typer.Option("--args-file", help="Launch: arguments, shell script, YAML, TOML or JSON.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Its model, where the launch does not build one.")] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", help="Price it on this machine: PRESET, PRESET:NODES or TOML file.")
    ] = "",
    images: ImagesWords = "",
    json_out: JsonOut = None,
) -> int:
    """Judge a launch of your own: rules, layers of each stage, price, what is legal and faster near it."""
    from planner import commands  # noqa: PLC0415

    launch = commands.LaunchQuestion(
        framework=framework.value if framework else "",
        version=framework_version,
        world=world_size or 0,
        arguments=tuple(arguments or ()),
        file=args_file,
        model=model,
        cluster=cluster,
        images=images,
    )
    return commands.check(launch, json_out)


@app.command()
@leaving
def validate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS.csv...", help="Tables of measured runs.")],
    profile: ProfileFile = "",
    json_out: JsonOut = None,
) -> int:
    """Predict measured runs and print the errors."""
    from planner import commands  # noqa: PLC0415

    return commands.validate(runs, profile, json_out)


@app.command()
@leaving
def calibrate(
    output: Annotated[Path, typer.Option("-o", "--output", help="Profile to write, such as machine.toml.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUNS.csv...", help="Tables of runs on the machine; five rows do.")
    ] = None,
    nccl_tests: Annotated[
        list[Path] | None, typer.Option("--nccl-tests", help="Log of nccl-tests on the machine; repeatable.")
    ] = None,
    gemm: Annotated[
        list[Path] | None, typer.Option("--gemm", help="Table m, n, k, dtype, time_us of products; repeatable.")
    ] = None,
    accelerator: Annotated[
        str, typer.Option("--accelerator", help="Choose among the accelerators of the runs, or name it without runs.")
    ] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", help="PRESET:NODES or TOML file of the logs; default: the nodes of the runs.")
    ] = "",
) -> int:
    """Fit the profile of a machine to runs of yours, for --profile."""
    from planner import commands  # noqa: PLC0415

    inputs = commands.Inputs(
        runs=tuple(runs or ()),
        nccl_tests=tuple(nccl_tests or ()),
        products=tuple(gemm or ()),
        accelerator=accelerator,
        cluster=cluster,
    )
    return commands.calibrate(inputs, output)


def _catalog_command(kind: str) -> Callable[..., NoReturn]:
    @leaving
    def command(
        name: Annotated[str | None, typer.Argument(help="Name or file; default: list all.")] = None,
        json_out: JsonOut = None,
    ) -> int:
        from planner import commands  # noqa: PLC0415

        return commands.catalog(kind, name, json_out)

    return command


for _kind in ("models", "accelerators", "clusters"):
    catalog_app.command(_kind, help=f"Known {_kind}, or one of them.")(_catalog_command(_kind))


def main() -> None:
    """Run the command line."""
    stand_in_streams()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:  # help and versions are printed before any command runs
        sys.exit(refused(error))

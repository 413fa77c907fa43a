"""``plan import``: cluster files of what tools print."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.leaving import leaving
from planner.cli.options import ClusterFile, ImportAccelerator

import_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make a cluster file of what tools print about a machine."
)


@import_app.command("topology")
@leaving
def import_topology(  # noqa: PLR0913, PLR0917 - the flags are the command line's contract
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Topology files of one cluster.")],
    output: ClusterFile = None,
    accelerator: ImportAccelerator = "",
    node: Annotated[
        str, typer.Option("--node", help="Node type that lends what files leave open (plan catalog clusters).")
    ] = "",
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes; 0: as the files say.", min=0)] = 0,
    name: Annotated[str, typer.Option("--name", help="Name of the cluster; default: of the first file.")] = "",
    hosts: Annotated[
        str, typer.Option("--hosts", help="Only these hosts of the network, as a scheduler lists them: n[001-004,017].")
    ] = "",
) -> int:
    """Read topology files: nvidia-smi, rocm-smi, NCCL XML, SLURM, ibnetdiscover, ibstat, topograph, NetQ."""
    from planner import commands  # noqa: PLC0415

    wishes = commands.Wishes(accelerator=accelerator, node=node, nodes=nodes, name=name, hosts=hosts)
    return commands.import_topology(files, wishes, output)


@import_app.command("nccl-tests")
@leaving
def import_nccl_tests(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs of nccl-tests or rccl-tests.")],
    output: ClusterFile = None,
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="PRESET:NODES or TOML file that was measured; default: by the logs' devices."),
    ] = "",
    accelerator: ImportAccelerator = "",
) -> int:
    """Read measured collectives and set the rates of a cluster's links by them."""
    from planner import commands  # noqa: PLC0415

    return commands.import_nccl_tests(files, cluster, accelerator, output)


@import_app.command("telemetry")
@leaving
def import_telemetry(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Series taken while a job trains; one node each, or several."),
    ],
    output: ClusterFile = None,
    cluster: Annotated[
        str, typer.Option("--cluster", help="PRESET:NODES or TOML file that was watched; default: by the devices.")
    ] = "",
    accelerator: ImportAccelerator = "",
) -> int:
    """Read clocks, temperatures and draws: nvidia-smi --query-gpu, dcgmi dmon, dcgm-exporter, rocm-smi and amd-smi."""
    from planner import commands  # noqa: PLC0415

    return commands.import_telemetry(files, cluster, accelerator, output)

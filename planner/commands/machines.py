"""What is known by name, and cluster files of what tools print."""

from collections.abc import Sequence
from pathlib import Path

from hardware.importers.assemble import Wishes
from hardware.nouns import count
from planner.commands.outputs import DONE, Outputs
from planner.report.console import text_console, write_stdout
from planner.report.files import check_places, write_whole


def catalog(kind: str, name: str | None, json_out: str | None) -> int:
    """List a kind of entry, or show one."""
    from planner.report.catalog_json import catalog_entry, catalog_list  # noqa: PLC0415
    from planner.report.catalog_text import print_entry, print_list  # noqa: PLC0415

    outputs = Outputs(json=json_out)
    outputs.check(name or "")
    console = text_console(json_on_stdout=outputs.json_on_stdout)
    if name is None:
        outputs.write_json(lambda: catalog_list(kind))
        if json_out is None:
            print_list(console, kind)
        return DONE
    entry = catalog_entry(kind, name)
    outputs.write_json(lambda: entry)
    if json_out is None:
        print_entry(console, entry)
    return DONE


def import_topology(paths: Sequence[Path], wishes: Wishes, output: Path | None) -> int:
    """Turn topology files into a cluster file, and say what was assumed."""
    from hardware.importers.topology import import_topology as read_files  # noqa: PLC0415
    from planner.report.import_text import print_import  # noqa: PLC0415

    if output is not None:
        check_places({"-o": output}, map(str, paths))
    found = read_files(paths, wishes)
    _write_cluster(found.toml(), output)
    shape = " + ".join(f"{island.nodes} x {island.node.gpus}" for island in found.cluster.islands)
    print_import(f"{found.cluster.name}: {shape} GPUs", found.stated, found.assumed, output)
    return DONE


def import_nccl_tests(paths: Sequence[Path], cluster: str, accelerator: str, output: Path | None) -> int:
    """Set the link rates of a cluster by logs of nccl-tests and write it as a file."""
    from hardware.cluster_file import to_toml  # noqa: PLC0415
    from planner.calibrate.link_rates import calibrate  # noqa: PLC0415
    from planner.report.import_text import print_import, rate_lines  # noqa: PLC0415

    if output is not None:
        check_places({"-o": output}, [*map(str, paths), cluster])
    found = calibrate(paths, cluster, accelerator)
    rates = rate_lines(found.rates)
    head = "".join(f"# {line}\n" for line in ("Measured:", *rates, "Assumed:", *found.assumed) if line.isprintable())
    _write_cluster(f"{head}\n{to_toml(found.cluster)}", output)
    print_import(f"{found.cluster.name}: {count(found.cluster.gpus, 'GPU')}", rates, found.assumed, output)
    return DONE


def import_telemetry(paths: Sequence[Path], cluster: str, accelerator: str, output: Path | None) -> int:
    """Lay series of monitoring tools on a cluster and write it as a file."""
    from hardware.cluster_file import to_toml  # noqa: PLC0415
    from planner.devices.telemetry import measured_cluster  # noqa: PLC0415
    from planner.report.import_text import print_import  # noqa: PLC0415

    if output is not None:
        check_places({"-o": output}, [*map(str, paths), cluster])
    found = measured_cluster(paths, cluster, accelerator)
    lines = ("Measured under load:", *found.stated, "Assumed:", *found.assumed)
    head = "".join(f"# {line}\n" for line in lines if line.isprintable())
    _write_cluster(f"{head}\n{to_toml(found.cluster)}", output)
    print_import(f"{found.cluster.name}: {count(found.cluster.gpus, 'GPU')}", found.stated, found.assumed, output)
    return DONE


def _write_cluster(text: str, output: Path | None) -> None:
    if output is None:
        write_stdout(text)
    else:
        write_whole(output, text)

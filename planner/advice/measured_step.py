"""The step time that a row of measured runs states for a layout, once the row is that layout."""

from pathlib import Path

from costmodels.layout import Layout
from hardware.errors import InputError
from planner.evidence.measured import MeasuredRun, read_runs
from planner.nearest import nearest


def measured_step_s(path: Path, row: str, layout: Layout, seq: int) -> float:
    """Return the step time of a measured run.

    Parameters
    ----------
    path : Path
        CSV file, see :mod:`planner.evidence.measured`.
    row : str
        Id of its row; empty: the only row with the layout's degrees, batch and sequence.
    layout : Layout
        What the run must be.
    seq : int
        Tokens of its sequences.

    Raises
    ------
    InputError
        The file cannot be read, no row or several are the run, or the row is another layout or states no step time.
    """
    runs = {run.id: run for run in read_runs(path)}
    if row:
        found = runs.get(row)
        if found is None:
            raise InputError(
                f"--row {row!r} is not there{nearest(row, runs)}", allowed="an id of the table", where=str(path)
            )
        if found.skipped:
            raise InputError(f"row {row}: {found.skipped}", where=str(path))
        other = _differences(found, layout, seq)
        if other:
            raise InputError(
                f"row {row} is another run: {', '.join(other)}", allowed="a run of this layout", where=str(path)
            )
        return _seconds(found, path)
    like = [run for run in runs.values() if not _differences(run, layout, seq)]
    if len(like) != 1:
        listed = ", ".join(run.id for run in like[:5]) or "none"
        raise InputError(
            f"{len(like)} rows have the layout's degrees, batch and sequence ({listed})",
            allowed="--row ID",
            where=str(path),
        )
    return _seconds(like[0], path)


def _seconds(run: MeasuredRun, path: Path) -> float:
    if not run.step_time_s or run.status != "ok":
        raise InputError(
            f"row {run.id} states no step time of a run that ended well", allowed="step_time_s", where=str(path)
        )
    return run.step_time_s


def _differences(run: MeasuredRun, layout: Layout, seq: int) -> list[str]:
    """What a row states otherwise than the layout, in words; what tables seldom state is not compared."""
    if run.grid is None:
        return [run.skipped or "its layout is not complete"]
    first, stated = layout.first, run.grid
    pairs = (
        ("tp", stated.tp, first.tp),
        ("pp", stated.pp, layout.pp),
        ("cp", stated.cp, first.cp),
        ("ep", stated.ep, first.ep),
        ("dp", stated.dp, first.dp),
        ("micro_batch_size", stated.micro_batch, layout.micro_batch),
        ("global_batch_size", stated.global_batch, layout.micro_batch * layout.num_microbatches * first.dp),
        ("seq_len", stated.seq, seq),
    )
    return [f"{name} {said}, not {asked}" for name, said, asked in pairs if said != asked]

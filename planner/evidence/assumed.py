"""What the price of a measured run assumes because words of its row are not known, so that it is said."""

from costmodels.precision import is_recipe
from planner.evidence.measured import MeasuredRun
from planner.evidence.runs import software_of


def assumptions(run: MeasuredRun) -> tuple[str, ...]:
    """Say what a price of a run assumes.

    Parameters
    ----------
    run : MeasuredRun
        Of a table.

    Returns
    -------
    tuple of str
        A remark each on precision and framework, the same for equal words; empty where all is read or left out.
    """
    return (*_precision(run), *_framework(run))


def _precision(run: MeasuredRun) -> tuple[str, ...]:
    told = [run.text(name) for name in ("dtype", "precision") if run.text(name)]
    if not told or any(is_recipe(word) for word in told):
        return ()
    return (f"{' and '.join(map(repr, told))}: no precision that is known, priced as if none were stated",)


def _framework(run: MeasuredRun) -> tuple[str, ...]:
    match = software_of(run)
    if match.known:
        return ()
    told = run.text("framework")
    near = f" (nearest: {match.nearest})" if match.nearest else ""
    what = f"framework {told!r}: none that is known{near}" if told else "no framework is stated"
    return (f"{what}, priced as {match.software.name}: fused attention, overlapped data parallelism",)

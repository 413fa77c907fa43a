"""Splits of a model's layers over pipeline positions that need no search."""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from costmodels.pipeline.schedules import Schedule, positions
from costmodels.table import Floats, Ints


def even_positions(layers: int, positions: int) -> Ints:
    """Layers per pipeline position in model order, as even as frameworks make it.

    Equal where that divides. Else, where ``layers + 2`` (or ``layers + 1``) divides, the embedding and the head (or the
    head alone) count as a layer each, as Megatron-LM's ``--account-for-embedding-in-pipeline-split`` and
    ``...-loss-...`` do. Else the remainder goes to the earliest positions behind the first, as a layer beside the
    embedding would make the first stage the slowest.

    Returns
    -------
    ndarray of int
        Shape (positions,); sums to ``layers``.
    """
    for first, last in ((0, 0), (1, 1), (0, 1)):
        whole = layers + first + last
        if whole % positions == 0 and whole // positions >= max(first + (last if positions == 1 else 0), 1):
            out = np.full(positions, whole // positions, dtype=np.int64)
            out[0] -= first
            out[-1] -= last
            return out
    out = np.full(positions, layers // positions, dtype=np.int64)
    rest = layers % positions
    out[1 : 1 + rest] += 1
    return out


def between_lone_ends(layers: int, pp: int, positions: int) -> Ints:
    """Layers per position with none on the first and the last, shape (positions,).

    What the others cannot share equally goes to the earliest stages, as the last one has the head.
    """
    out = np.zeros(positions, dtype=np.int64)
    between = np.arange(1, positions - 1)
    out[between], rest = divmod(layers, len(between))
    out[between[np.argsort(between % pp, kind="stable")][:rest]] += 1
    return out


def leading_positions(layers: int, positions: int) -> Ints:
    """Layers per position where the remainder goes to the first ones, as DeepSpeed's uniform partition makes it."""
    out = np.full(positions, layers // positions, dtype=np.int64)
    out[: layers % positions] += 1
    return out


def even_chunks(layers: int, pp: int, vpp: int, schedule: Schedule | None = None) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage for an even split, shape (pp, vpp); without a schedule the usual one."""
    return by_stage([int(count) for count in even_positions(layers, pp * vpp)], pp, schedule)


def by_stage(flat: Sequence[int], pp: int, schedule: Schedule | None = None) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage, shape (pp, vpp), from those of every position in model order.

    Position is ``chunk * pp + stage`` but where the schedule places chunks in another way.
    """
    vpp = len(flat) // pp
    place = positions(schedule or (Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B), pp, vpp).tolist()
    return tuple(tuple(flat[position] for position in stage) for stage in place)


def balanced_positions(layer_s: Floats, first_s: Floats, last_s: Floats, positions: int) -> Ints:
    """Layers per position such that positions take about the same time.

    Boundaries lie where the running sum of times passes the even shares, rounded to the nearer layer; every position
    keeps at least one layer.

    Parameters
    ----------
    layer_s : ndarray
        Seconds of every layer in model order, shape (R, L).
    first_s, last_s : ndarray
        Seconds of what else the first and the last position hold, shape (R,).
    positions : int
        At most L.

    Returns
    -------
    ndarray of int
        Shape (R, positions); rows sum to L.
    """
    layers = layer_s.shape[1]
    upto = np.cumsum(layer_s, axis=1) + first_s[:, None]
    upto = np.concatenate([first_s[:, None], upto], axis=1)  # time of the first n layers with what lies before them
    total = upto[:, -1] + last_s
    cuts = np.zeros((len(layer_s), positions + 1), dtype=np.int64)
    cuts[:, -1] = layers
    for place in range(1, positions):
        target = total * place / positions
        cut = np.abs(upto - target[:, None]).argmin(axis=1)
        cuts[:, place] = np.clip(cut, cuts[:, place - 1] + 1, layers - (positions - place))
    return np.diff(cuts, axis=1)


def runs_of(values: Iterable[object]) -> str:
    """Return values with equal neighbours counted: ``10x8`` or ``21x2,19x2``; a pair or less is written out."""
    out: list[str] = []
    for value, group in groupby(values):
        times = sum(1 for _ in group)
        out += [f"{value}x{times}"] if times > 2 else [str(value)] * times
    return ",".join(out)

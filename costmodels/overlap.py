"""How much of a transfer stays visible when it runs beside compute."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodels.table import Floats
from hardware.package_table import package_table


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Constants of overlap; values, sources and ranges stand in ``overlap.toml``.

    ``window_share`` is the share of a compute window that hides a transfer (the rest is lost to shared multiprocessors
    and memory bandwidth); ``tp_chunks`` the pieces that a tensor-parallel exchange is cut into when it overlaps its
    GEMM; ``bucket_bytes`` the size of a gradient or weight bucket, of which the last (first) one can hide behind
    nothing; ``contention`` what a second of hidden transfer takes from the compute beside it (multiprocessors and
    memory bandwidth of its kernels), ``user_buffer_contention`` the same for exchanges that copy engines or a few
    multiprocessors move; ``step_exchange`` the time of a tensor-parallel exchange inside a step over its time alone,
    where layers are called op by op from Python and groups share links: ranks arrive apart, and groups meet on the
    links; ``step_exchange_own`` the same where every accelerator has links of its own; ``slice_s`` the
    host's time to cut one shard out of one tensor and to copy it back; ``poll_s`` what a transfer between stages takes
    longer where they look now and then whether it has arrived; ``turn_s`` the time of one host at a tensor-parallel
    exchange that the hosts of a group start one after the other; ``retry_s`` what a layer takes longer for a
    micro-batch where the allocator has to give back what it holds and to take it anew.
    """

    window_share: float
    tp_chunks: int
    bucket_bytes: float
    contention: float
    user_buffer_contention: float
    step_exchange: float
    step_exchange_own: float
    slice_s: float
    poll_s: float
    turn_s: float
    retry_s: float


@lru_cache(maxsize=1)
def default_overlap() -> Overlap:
    """Return the constants of ``overlap.toml``."""
    table = package_table("costmodels", "overlap.toml")
    return Overlap(
        window_share=float(table["window_share"]["value"]),
        tp_chunks=int(table["tp_chunks"]["value"]),
        bucket_bytes=float(table["bucket_bytes"]["value"]),
        contention=float(table["contention"]["value"]),
        user_buffer_contention=float(table["user_buffer_contention"]["value"]),
        step_exchange=float(table["step_exchange"]["value"]),
        step_exchange_own=float(table["step_exchange_own"]["value"]),
        slice_s=float(table["slice_s"]["value"]),
        poll_s=float(table["poll_s"]["value"]),
        turn_s=float(table["turn_s"]["value"]),
        retry_s=float(table["retry_s"]["value"]),
    )


def exposed_s(
    transfer_s: Floats,
    window_s: Floats | float,
    window_share: float,
    *,
    least_share: Floats | float = 0.0,
    contention: float = 0.0,
) -> Floats:
    """Seconds that a transfer adds to the compute beside it.

    Parameters
    ----------
    transfer_s, window_s : array
        The transfer alone, and the compute that may run beside it [s]; shapes broadcast.
    window_share : float
        Share of the window that can hide the transfer [1].
    least_share : array or float
        Share of the transfer that hides behind nothing: its first or last piece [1].
    contention : float
        What a hidden second costs the compute beside it [s/s], at most 1.

    Returns
    -------
    array
        ``v + contention (transfer - v)`` with ``v = max(transfer - window_share window, least_share transfer)`` [s].

    References
    ----------
    Chunked overlap: with k equal pieces all but one may hide, so the least share is 1 / k.
    """
    visible = np.maximum(transfer_s - window_share * window_s, least_share * transfer_s)
    return np.asarray(visible + contention * (transfer_s - visible))

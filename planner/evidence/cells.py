"""What the cells of a measured row may hold: values that no run can have are named, never dropped or priced."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from hardware.errors import InputError

MOST_NUMBER: Final = 1e15
"""No count, size or time of a run is larger; products of several of them are still numbers."""
LEAST_MEASURED: Final = 1e-9
"""No step is shorter [s] and no peak smaller [GB]."""
COLUMNS: Final = (
    *("id", "source", "source_version", "date", "framework", "model", "params_b", "layers", "hidden_size"),
    *("ffn_hidden_size", "heads", "kv_heads", "vocab", "experts", "topk", "hardware", "gpus_per_node", "n_gpus"),
    *("interconnect", "scaleout_gbps_per_node", "intra_node", "precision", "dtype", "seq_len", "global_batch_size"),
    *("micro_batch_size", "tp", "pp", "cp", "vpp", "ep", "etp", "dp", "zero", "fsdp", "sequence_parallel"),
    *("distributed_optimizer", "recompute", "schedule", "schedule_kind", "overlap", "cuda_graphs", "offload"),
    *("moe_dispatcher", "token_routing", "step_time_s", "peak_mem_gb", "mem_note", "mfu", "status", "notes"),
    *("images", "freeze"),
    "derived",
)
"""All columns that are understood; others are kept and not read."""
_UNSTATED: Final = frozenset({"", "-", "n/a", "na", "none"})
_NEAR: Final = 0.75  # of difflib: step_time_ms and step_time_s share 0.87, dtype and type 0.89, notes and nodes 0.8
_LEAST_NAME: Final = 6  # shorter names are near to too much


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Numbers that a column may hold, ends included, and that in words."""

    least: float
    words: str
    most: float = MOST_NUMBER
    whole: bool = False

    def holds(self, text: str) -> bool:
        """Whether a text is such a number."""
        try:
            value = float(text)
        except ValueError:
            return False
        return self.least <= value <= self.most and (not self.whole or value == int(value))


_COUNT: Final = _Range(least=1.0, words="a whole number from 1", whole=True)
_COUNT_OR_NONE: Final = _Range(least=0.0, words="a whole number from 1; blank or 0 where there is none", whole=True)
_SETTINGS: Final = MappingProxyType(
    {
        **dict.fromkeys(("n_gpus", "seq_len", "global_batch_size", "micro_batch_size", "tp", "pp", "dp"), _COUNT),
        **dict.fromkeys(("cp", "vpp", "ep", "etp", "gpus_per_node", "layers", "hidden_size"), _COUNT_OR_NONE),
        **dict.fromkeys(("ffn_hidden_size", "heads", "kv_heads", "vocab", "experts", "topk"), _COUNT_OR_NONE),
        "scaleout_gbps_per_node": _Range(least=0.0, words="Gb/s from 0"),
    }
)
_PEAK: Final = _Range(least=LEAST_MEASURED, words="GB above 0, without a unit")
_OF_RUNS: Final = MappingProxyType(
    {
        "ok": {
            "step_time_s": _Range(least=LEAST_MEASURED, words="seconds above 0, without a unit"),
            "peak_mem_gb": _PEAK,
            "mfu": _Range(least=0.0, most=100.0, words="percent from 0 to 100, without a unit"),
        },
        "memory_only": {"peak_mem_gb": _PEAK},
    }
)
"""Measured values by the status of the runs whose values count."""


def wrong_cell(row: Mapping[str, str], status: str) -> str | None:
    """Say which value no run can have: the column, the value and what is allowed; None where there is none.

    Parameters
    ----------
    row : mapping of str to str
        Cells by column.
    status : str
        How the run ended; measured values of runs that failed do not count, and may be anything.
    """
    for column, allowed in {**_SETTINGS, **_OF_RUNS.get(status, {})}.items():
        text = (row.get(column) or "").strip()
        if text.lower() not in _UNSTATED and not allowed.holds(text):
            return str(InputError(f"{text!r} is not accepted", allowed=allowed.words, where=column))
    zero = (row.get("zero") or "").strip().lower()
    if zero not in _UNSTATED and not re.fullmatch(r"[0-3](\.0*)?|offload", zero):
        return str(InputError(f"{zero!r} is not accepted", allowed="0, 1, 2, 3 or offload", where="zero"))
    return None


def unread_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Name columns that are not read and look like one that is read and absent: ``step_time_ms``.

    Parameters
    ----------
    names : iterable of str
        The header of a table.
    """
    stated = [name for name in names if name]
    absent = [name for name in COLUMNS if name not in stated and len(name) >= _LEAST_NAME]
    found = [(name, get_close_matches(name.strip().lower(), absent, n=1, cutoff=_NEAR)) for name in stated]
    return tuple(
        f"column {name!r} is not read; did you mean {near[0]}{_unit(near[0])}?"
        for name, near in found
        if near and name not in COLUMNS
    )


def _unit(column: str) -> str:
    return {"step_time_s": " (seconds)", "peak_mem_gb": " (GB)"}.get(column, "")

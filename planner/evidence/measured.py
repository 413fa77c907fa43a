"""Measured runs as tables state them: one CSV row becomes one frozen value, or a reason why it cannot be priced.

Understood columns: :data:`planner.evidence.cells.COLUMNS`. Blank means not stated.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Granularity, Recompute
from hardware.errors import InputError
from hardware.text_file import read_text_file
from planner.evidence.cells import MOST_NUMBER, wrong_cell
from planner.evidence.source_facts import source_facts

BYTES_PER_GIB: Final = 2.0**30
LEAST_MFU_PERCENT: Final = 5.0
"""Runs below it are troubled (a network fault, a cold start) and say nothing about a model."""
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
_NEEDED_COLUMNS: Final = ("id", "hardware", "n_gpus", "seq_len", "global_batch_size")
_OTHER_MARKS: Final = MappingProxyType(
    {";": "; semicolons stand between the names, not commas", "\t": "; tabs stand between the names, not commas"}
)
_MODULES: Final = MappingProxyType(
    {
        "core_attn": "core_attn",
        "mla_up_proj": "mla_up_proj",
        "layernorm": "layernorm",
        "norm": "layernorm",
        "moe_act": "moe_act",
        "act": "moe_act",
        "mlp_act": "mlp_act",
        "moe": "moe",
        "mlp": "mlp",
        "shared_experts": "shared_experts",
        "shared_expert": "shared_experts",
    }
)


@dataclass(frozen=True, kw_only=True)
class RunGrid:
    """Degrees and batch of a measured run, complete."""

    tp: int
    pp: int
    cp: int
    vpp: int
    ep: int
    etp: int
    dp: int
    micro_batch: int
    global_batch: int
    seq: int

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step per data-parallel replica."""
        return self.global_batch // (self.micro_batch * self.dp)


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One row. ``skipped`` says why a row states too little (or nonsense) to be priced; then ``grid`` is None.

    ``file`` is the name of its table.
    """

    id: str
    row: Mapping[str, str]
    grid: RunGrid | None
    zero: int
    shard_group: int
    recompute: Recompute
    step_time_s: float | None
    peak_mem_gib: float | None
    status: str
    skipped: str | None
    file: str = ""

    @property
    def place(self) -> str:
        """Where it stands: ``runs.csv: id``."""
        return f"{self.file}: {self.id}" if self.file else self.id

    @property
    def untimed(self) -> str:
        """Why its step time says nothing about a model; empty where it does."""
        if self.status != "ok":
            return f"status {self.status}"
        if not self.step_time_s:
            return "no step_time_s"
        share = self.number("mfu")
        if share is None or share >= LEAST_MFU_PERCENT:
            return ""
        hint = " (mfu is in percent: 40 for 40 %, not 0.4)" if share <= 1.0 else ""
        return f"mfu below {LEAST_MFU_PERCENT:g} %, as of a troubled run{hint}"

    @property
    def weighed(self) -> bool:
        """Whether it states the peak of a run that did not fail."""
        return bool(self.peak_mem_gib) and self.status in ("ok", "memory_only")

    def text(self, column: str) -> str:
        """Return a column's text, stripped; empty when absent."""
        return (self.row.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Return a column as a number, or None when blank or not a number."""
        return number(self.row, column)


def read_runs(path: Path) -> tuple[MeasuredRun, ...]:
    """Read a CSV of measured runs.

    Raises
    ------
    InputError
        The file is missing, too large, not UTF-8 CSV, lacks a needed column, repeats a column or an id, or a row has
        not as many cells as the header.
    """
    text = read_text_file(path, allowed="a CSV of measured runs", most_bytes=MAX_FILE_BYTES)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        _check_header(path, reader.fieldnames or ())
        return tuple(_unique(path, (replace(parse_run(row), file=path.name) for row in _whole_rows(path, reader))))
    except csv.Error as error:
        raise InputError(
            f"is not a CSV file ({error})", allowed="comma-separated text with a header", where=str(path)
        ) from error


def _check_header(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in _NEEDED_COLUMNS if name not in names]
    if missing:
        between = next((words for mark, words in _OTHER_MARKS.items() if len(names) == 1 and mark in names[0]), "")
        raise InputError(
            f"lacks the column {', '.join(missing)}{between}",
            allowed="a header with " + ", ".join(_NEEDED_COLUMNS),
            where=str(path),
        )
    twice = [name for name, number in Counter(names).items() if name and number > 1]
    if twice:
        raise InputError(
            f"the column {', '.join(twice)} stands twice", allowed="each column once", where=f"{path}: line 1"
        )


def _whole_rows(path: Path, reader: "csv.DictReader[str]") -> Iterator[Mapping[str, str]]:
    """Yield rows; one with a cell more or less than the header has values under wrong names."""
    columns = len(reader.fieldnames or ())
    for row in reader:
        more, less = len(row.get(reader.restkey) or ()), sum(cell is None for cell in row.values())
        if more or less:
            raise InputError(
                f"row {(row.get('id') or '').strip()!r} has {columns + more - less} cells and the header {columns}",
                allowed="as many cells as the header; blank where not stated",
                where=f"{path}: line {reader.line_num}",
            )
        yield row


def _unique(path: Path, runs: Iterator[MeasuredRun]) -> Iterator[MeasuredRun]:
    seen: set[str] = set()
    for line, run in enumerate(runs, start=2):
        if run.id in seen:
            raise InputError(f"the id {run.id!r} stands twice", allowed="one row per id", where=f"{path}: row {line}")
        seen.add(run.id)
        yield run


def number(row: Mapping[str, str], column: str) -> float | None:
    """Return a column as a number, or None where it is none that a run can have."""
    text = (row.get(column) or "").strip()
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= MOST_NUMBER else None


def parse_run(row: Mapping[str, str]) -> MeasuredRun:
    """Read one row with what is known of its source; never raises for what it says, but sets ``skipped``."""
    row = {**row, **source_facts(row.get("source") or "").columns}
    status = (row.get("status") or "ok").strip() or "ok"
    reason = wrong_cell(row, status)
    grid, reason = (None, reason) if reason else _grid(row)
    zero, shard_group = _zero(row)
    return MeasuredRun(
        id=(row.get("id") or "").strip(),
        row=row,
        grid=grid,
        zero=zero,
        shard_group=shard_group,
        recompute=parse_recompute(row.get("recompute") or ""),
        step_time_s=number(row, "step_time_s"),
        peak_mem_gib=_peak_gib(row),
        status=status,
        skipped=reason,
    )


def _peak_gib(row: Mapping[str, str]) -> float | None:
    """Return ``peak_mem_gb`` in GiB: sources count in GiB unless the row says that it holds 1e9 bytes.

    A row says so with ``GB=1e9`` in its notes, or with the published figure (``published 82.4 GiB``) in ``mem_note``.
    """
    peak = number(row, "peak_mem_gb")
    published = re.search(r"published ([0-9]{1,7}(?:\.[0-9]{1,7})?) GiB", row.get("mem_note") or "")
    if peak and published:
        return float(published.group(1))
    return peak * 1e9 / BYTES_PER_GIB if peak and "GB=1e9" in (row.get("notes") or "") else peak


def _grid(row: Mapping[str, str]) -> tuple[RunGrid | None, str | None]:
    def whole(column: str, default: int | None) -> int | None:
        value = number(row, column)
        return default if value is None or value < 1 or value != int(value) else int(value)

    gpus, seq, batch = whole("n_gpus", None), whole("seq_len", None), whole("global_batch_size", None)
    tp, pp, cp = whole("tp", None), whole("pp", None), whole("cp", 1)
    sizes = {"n_gpus": gpus, "seq_len": seq, "global_batch_size": batch}
    if gpus is None or seq is None or batch is None:
        return None, f"size not stated: {_lacking(sizes)}"
    if tp is None or pp is None or cp is None:
        return None, f"layout not stated: {_lacking({'tp': tp, 'pp': pp, 'cp': cp})}"
    dp = whole("dp", gpus // (tp * pp * cp))
    if not dp or tp * pp * cp * dp != gpus:
        product = f"tp {tp} x pp {pp} x cp {cp} x dp {dp}"
        return None, f"degrees do not multiply to the GPUs: {product} is {tp * pp * cp * (dp or 0)}, n_gpus {gpus}"
    micro = whole("micro_batch_size", None) or _only_micro_batch(batch // dp, row)
    if micro is None:
        return None, "micro-batch not stated"
    if batch % (micro * dp):
        return None, f"global batch {batch} is no multiple of micro-batch {micro} x dp {dp} = {micro * dp}"
    grid = RunGrid(
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=whole("vpp", 1) or 1,
        ep=whole("ep", 1) or 1,
        etp=whole("etp", 0) or 0,
        dp=dp,
        micro_batch=micro,
        global_batch=batch,
        seq=seq,
    )
    return grid, None


def _lacking(columns: Mapping[str, int | None]) -> str:
    return ", ".join(name for name, value in columns.items() if value is None)


def _only_micro_batch(batch_per_replica: int, row: Mapping[str, str]) -> int | None:
    """Return the micro-batch of a run that states none where its batch leaves but one: one sequence, or one pass."""
    if batch_per_replica <= 1:
        return 1
    return batch_per_replica if "grad accum 1)" in (row.get("schedule") or "") else None


def _zero(row: Mapping[str, str]) -> tuple[int, int]:
    """ZeRO stage and shard group (0: all data-parallel ranks). FSDP counts as stage 3."""
    fsdp = (row.get("fsdp") or "").strip().lower()
    group = re.search(r"group ([0-9]{1,9})\b", fsdp)
    if fsdp.startswith("1"):
        return 3, int(group.group(1)) if group else 0
    stage = number(row, "zero")
    if stage is not None:
        return min(3, max(0, int(stage))), _remarked_group(row)
    if (row.get("zero") or "").strip().lower() == "offload":
        return 2, 0
    return int(bool(re.match(r"(1|yes|true)\b", (row.get("distributed_optimizer") or "").strip().lower()))), 0


def _remarked_group(row: Mapping[str, str]) -> int:
    """Shard group of ``zero as stated: 1 (shard over 8 GPUs in node)`` or ``3 (hybrid shard within node)``."""
    remark = re.search(r"zero as stated: [^;]*?shard (?:over ([0-9]{1,9})\b|within node)", row.get("notes") or "")
    if remark is None:
        return 0
    return int(remark.group(1) or number(row, "gpus_per_node") or 0)


def parse_recompute(text: str) -> Recompute:
    """Read a recompute column: ``none``, ``full``, ``selective:module+module`` and free remarks behind them."""
    words = text.strip().lower()
    if words.startswith("full"):
        return FULL_RECOMPUTE
    if words.startswith("partial"):
        return FULL_RECOMPUTE
    if not words.startswith("selective"):
        return NO_RECOMPUTE
    named = re.match(r"selective:([a-z_+]+)", words)
    modules = tuple(dict.fromkeys(_MODULES[m] for m in named.group(1).split("+") if m in _MODULES)) if named else ()
    return Recompute(granularity=Granularity.SELECTIVE, modules=modules or ("core_attn",))

"""Sweeps: many questions answered side by side, one row each, resumable.

Every point leaves one JSON file in ``points/``: the report of its search, or the reason why it failed. The table
``results.csv`` is made of these files in the order of the sweep, so a sweep that was interrupted and resumed gives the
table that an undisturbed one gives.
"""

import csv
import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hardware.errors import InputError
from hardware.text_file import is_file
from planner.planning import plan
from planner.question import Question, request_of
from planner.report.files import drop_parts, make_folder, write_whole
from planner.report.json_report import SCHEMA, report_to_json
from planner.report.json_text import json_text
from planner.report.version import version
from planner.sweeps.workers import answers_of, ended_cleanly

SCHEDULER_PATIENCE_S: Final = 10
POINTS: Final = "points"
TABLE: Final = "results.csv"
COLUMNS: Final = (
    "model", "cluster", "global_batch", "seq", "precision", "framework", "objective", "power_cap_w",
    "software", "offload", "loss", "lora_rank", "lora_targets", "images", "freeze", "tries",
    "status", "reason", "gpus", "layout", "tp", "pp", "cp", "dp", "ep", "etp", "vpp", "zero", "shard_group",
    "micro_batch", "num_microbatches", "schedule", "recompute", "layers_per_stage", "step_time_s", "tokens_per_s",
    "tokens_per_s_per_gpu", "mfu", "bubble_share", "exposed_comm_share", "memory_gib", "usable_gib", "verdict",
    "gpu_w", "energy_j_per_token", "low_s", "high_s", "gap", "proven_optimal", "cut", "choices", "report",
)  # fmt: skip
_ASKED: Final = COLUMNS[: COLUMNS.index("status")]
_COPIED: Final = (
    "gpus", "tp", "pp", "cp", "dp", "ep", "etp", "vpp", "zero", "shard_group", "micro_batch", "num_microbatches",
    "schedule", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu",
)  # fmt: skip

Row = dict[str, object]
Data = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a sweep came to: rows in the order of its questions, and how many were kept from before."""

    rows: tuple[Row, ...]
    kept: int
    table: Path


def run_sweep(
    questions: Sequence[Question],
    folder: Path,
    *,
    workers: int = 1,
    scheduler: str = "",
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Answer questions and write their table.

    Parameters
    ----------
    questions : sequence of Question
        In the order of the rows.
    folder : Path
        Created if needed; holds ``results.csv`` and ``points/``.
    workers : int
        Processes; 1 works in this one.
    scheduler : str
        Address of a Dask scheduler whose workers answer instead; empty for none.
    resume : bool
        Keep the points that are there, if the same planner made them for the same question and files.
    progress : callable
        Told how many points are done, of how many, after each.

    Returns
    -------
    SweepResult

    Raises
    ------
    InputError
        The folder cannot be written or another sweep works in it, a worker died, or no scheduler answers.
    KeyboardInterrupt, SystemExit
        Interrupted, or ended by SIGTERM; finished points are kept, the table is not written, no worker is left.
    """
    make_folder(folder / POINTS)
    with _alone_in(folder / POINTS), ended_cleanly():
        return _run(questions, folder, (workers, scheduler, resume), progress)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder for one sweep, where its file system has locks: two would drop each other's unfinished files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            "another sweep works in this folder",
            allowed="another folder, or --resume when it is done",
            where=str(folder.parent),
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(descriptor)


def _run(
    questions: Sequence[Question],
    folder: Path,
    how: tuple[int, str, bool],
    progress: Callable[[int, int], None] | None,
) -> SweepResult:
    """Answer questions in a folder that no other sweep works in; parameters as of :func:`run_sweep`."""
    workers, scheduler, resume = how
    paths = [folder / POINTS / f"{_name(question)}.json" for question in questions]
    data: dict[int, Data] = {}
    if resume:
        for number, (question, path) in enumerate(zip(questions, paths, strict=True)):
            kept = _kept(question, path)
            if kept is not None:
                data[number] = kept
    before = len(data)
    todo = [number for number in range(len(questions)) if number not in data]
    jobs = [(questions[number], paths[number]) for number in todo]
    try:
        with closing(_scheduled(jobs, scheduler) if scheduler else _answers(jobs, workers)) as answers:
            for index, answer in answers:
                data[todo[index]] = answer
                if progress is not None:
                    progress(len(data), len(questions))
    finally:
        drop_parts(folder / POINTS)  # of workers that were stopped while they wrote
    rows = tuple(
        row_of(question, data[number], f"{POINTS}/{paths[number].name}") for number, question in enumerate(questions)
    )
    write_whole(folder / TABLE, table_text(rows))
    return SweepResult(rows=rows, kept=before, table=folder / TABLE)


def answer_point(question: Question, path: Path) -> Data:
    """Answer one question and leave its file."""
    return _left(path, answer_text(question))


def _left(path: Path, text: str) -> Data:
    write_whole(path, text)
    return _parsed(text)


def answer_text(question: Question) -> str:
    """Answer one question as the text of its file; a user's mistake becomes a reason, not an exception."""
    head = {"schema": SCHEMA, "planner": version(), "key": _key(question), "question": asdict(question)}
    try:
        data = {**head, **report_to_json(plan(request_of(question)))}
    except InputError as error:
        data = {**head, "error": str(error)}
    except Exception as error:  # one point's defect must not take the others with it
        if os.environ.get("PLAN_TRACEBACK"):
            raise
        data = {**head, "error": f"a defect of the planner: {type(error).__name__}: {error}"}
    return json_text(data)


def row_of(question: Question, data: Data, report: str) -> Row:
    """Return the row of one point.

    Parameters
    ----------
    question : Question
        What was asked.
    data : mapping
        The point's file.
    report : str
        Path of the point's file, seen from the table.

    Returns
    -------
    dict
        The columns of :data:`COLUMNS`; ``status`` is ``ok``, ``infeasible`` or ``error``. Equal for equal answers: how
        long the search took is left to the point's file.
    """
    row: Row = dict.fromkeys(COLUMNS, "")
    row.update({name: getattr(question, name) for name in _ASKED})
    row.update({"software": "; ".join(question.software), "tries": "; ".join(question.tries)})
    row["report"] = report
    if "error" in data:
        return {**row, "status": "error", "reason": data["error"]}
    row["cut"] = "; ".join(f"{number} {what}" for what, number in _table(_table(data, "search"), "cut").items())
    layouts = data["layouts"]
    if not isinstance(layouts, list) or not layouts:
        why = data.get("infeasible")
        reason = f"{why['constraint']}; nearest: {why['nearest_change']}" if isinstance(why, Mapping) else ""
        return {**row, "status": "infeasible", "reason": reason}
    best: Mapping[str, object] = layouts[0]
    memory, power, parts = _table(best, "memory"), _table(best, "power"), _table(best, "breakdown")
    search, evidence, step_s = _table(data, "search"), _table(best, "evidence"), float(str(best["step_time_s"]))
    return {
        **row,
        **{name: best[name] for name in _COPIED},
        "status": "ok",
        "choices": "; ".join(f"{name}={value}" for name, value in _table({"choices": {}, **best}, "choices").items()),
        "layout": best["name"],
        "recompute": _recompute(_table(best, "recompute")),
        "layers_per_stage": _layers(best["layers_per_stage"]),
        "bubble_share": float(str(parts["bubble_s"])) / step_s,
        "exposed_comm_share": float(str(parts["exposed_comm_s"])) / step_s,
        "memory_gib": memory["total_gib"],
        "usable_gib": memory["usable_gib"],
        "verdict": memory["verdict"],
        "gpu_w": power["gpu_w"],
        "energy_j_per_token": power["energy_j_per_token"],
        "low_s": evidence["low_s"],
        "high_s": evidence["high_s"],
        "gap": search["gap"],
        "proven_optimal": search["proven_optimal"],
    }


def table_text(rows: Sequence[Row]) -> str:
    """Return the table of a sweep as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _table(data: Data, name: str) -> Data:
    value = data[name]
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is no object", allowed="a point that plan sweep wrote")
    return value


def _recompute(data: Data) -> str:
    modules = data["modules"]
    names = "+".join(map(str, modules)) if isinstance(modules, list) else ""
    return f"{data['granularity']}:{names}" if names else str(data["granularity"])


def _layers(value: object) -> str:
    stages = value if isinstance(value, list) else []
    return ",".join("/".join(map(str, chunks)) for chunks in stages)


def _name(question: Question) -> str:
    """Return a file name that a person can read and that no other question has."""
    words = (question.model, question.cluster, f"b{question.global_batch}", f"s{question.seq}", question.precision)
    clean = "-".join(re.sub(r"[^a-z0-9.]+", "_", Path(word).name.lower()) for word in words)
    return f"{clean[:120]}-{hashlib.sha256(_canonical(question).encode()).hexdigest()[:10]}"


def _canonical(question: Question) -> str:
    return json.dumps(asdict(question), sort_keys=True)


def _key(question: Question) -> str:
    """Return a digest of the question and of the files that it names."""
    digest = hashlib.sha256(_canonical(question).encode())
    for text in (question.model, question.cluster, question.profile):
        path = Path(text)
        if path.suffix.lower() in (".toml", ".json") and is_file(path):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _parsed(text: str) -> Data:
    data: Data = json.loads(text)
    return data


def _kept(question: Question, path: Path) -> Data | None:
    """Return what a point's file says if the same planner wrote it for the same question, whole."""
    try:
        data = _parsed(path.read_text(encoding="utf-8"))
        same = data["key"] == _key(question) and data["planner"] == version()
        row_of(question, data, path.name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return data if same else None


def _answers(jobs: Sequence[tuple[Question, Path]], workers: int) -> Generator[tuple[int, Data], None, None]:
    if workers == 1 or len(jobs) < 2:
        return ((number, answer_point(*job)) for number, job in enumerate(jobs))
    return answers_of(answer_point, jobs, workers)


def _scheduled(jobs: Sequence[tuple[Question, Path]], address: str) -> Generator[tuple[int, Data], None, None]:
    """Answers of the workers of a Dask scheduler; files of models and clusters must be where they are here."""
    try:
        import distributed  # noqa: PLC0415 - an extra that only this needs
    except ImportError:
        raise InputError(
            "--scheduler needs the package distributed", allowed="pip install 'parallelism-planner[scheduler]'"
        ) from None
    try:
        client = distributed.Client(address, timeout=SCHEDULER_PATIENCE_S)
    except (OSError, ValueError) as error:
        raise InputError(
            f"--scheduler {address}: no scheduler answers ({error})",
            allowed="the address of a Dask scheduler, such as tcp://host:8786",
        ) from error
    futures = {client.submit(answer_text, question, pure=False): number for number, (question, _) in enumerate(jobs)}
    try:
        for future in distributed.as_completed(list(futures)):
            number = futures[future]
            yield number, _left(jobs[number][1], future.result())
    except (distributed.KilledWorker, OSError) as error:
        what = f"workers of the scheduler died ({error}); the points that were finished are kept"
        raise InputError(what, allowed="--resume, with workers that live") from error
    finally:
        client.cancel(list(futures))
        client.close()

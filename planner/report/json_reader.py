"""Saved reports read back, the inverse of :mod:`planner.report.json_report`; every field is checked."""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from costmodels.layout import Granularity, Layout, RankOrder, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.results import Evidence, LayoutCost, MemoryUse, Moment, PowerState, SlotState, StepTime, Verdict
from costmodels.workload.counts import parameter_count
from costmodels.workload.fields import Fields
from costmodels.workload.files import model_of_table
from hardware.errors import InputError
from hardware.text_file import read_json_file
from planner.placement.order import places_in_order
from planner.plan_report import Infeasibility, InOrder, PlanReport, RankedLayout, RankPlace, SearchProof
from planner.question import Question, question_from, request_of
from planner.report.json_report import HZ_PER_MHZ, SCHEMA, degrees_to_json
from planner.report.words import BYTES_PER_GIB
from planner.request import PlanRequest
from planner.variants import SCHEDULE, chose

MOST_BYTES: Final = 1 << 30
MOST_PARAMETERS: Final = 10**24  # the product of the widths and counts that models may have stays below
_FIELDS: Final = "model_fields"
_NO_SEARCH: Final = SearchProof(
    enumerated=0, pruned=(), solved=1, lower_bound_s=0.0, gap=0.0, proven_optimal=False, wall_s=0.0
)
_Member = TypeVar("_Member", bound=Enum)


def read_report(path: Path) -> PlanReport:
    """Read a report that ``plan search --json`` or ``plan estimate --json`` wrote.

    Parameters
    ----------
    path : Path
        The file; an estimate is a report of one layout. Models and clusters that are files themselves are looked for
        as typed, then beside the report.

    Returns
    -------
    PlanReport
        Equal to the one that was written, but for clocks rounded to the last bit.

    Raises
    ------
    InputError
        The file is missing, no JSON, of another schema, lacks a field, or its model or cluster has changed since.
    """
    data = read_json_file(path, allowed="a report that plan search --json wrote", most_bytes=MOST_BYTES)
    return report_from_json(data, str(path), path.parent)


def report_from_json(data: Mapping[str, object], where: str, folder: Path) -> PlanReport:
    """Read a report from plain data; parameters as :func:`read_report`."""
    top = Fields(data, where)
    schema = top.whole("schema")
    if schema != SCHEMA:
        raise InputError(f"schema {schema} is not known", allowed=f"schema {SCHEMA}", where=f"{where}: schema")
    request = _request(top.table("request"), folder)
    if "layout" in data and "layouts" not in data:
        estimate = _ranked(top.table("layout"), request)
        return PlanReport(request=request, layouts=(estimate,), search=_NO_SEARCH, notes=("an estimate, no search",))
    infeasible = top.table("infeasible") if top.has("infeasible") else None
    return PlanReport(
        request=request,
        layouts=tuple(_ranked(item, request) for item in _tables(top, "layouts")),
        search=_search(top.table("search")),
        rejected=_counts(top, "rejected"),
        infeasible=_infeasible(infeasible) if infeasible else None,
        unconstrained_s=top.number("unconstrained_s", default=0.0),
        notes=top.texts("notes"),
    )


def relocated(question: Question, folder: Path) -> Question:
    """Look for the files of a question beside ``folder`` where they are not at the path as typed."""

    def found(text: str) -> str:
        is_file = text.lower().endswith((".toml", ".json"))
        return beside(text) if is_file else text

    def beside(text: str) -> str:
        return str(folder / text) if not Path(text).exists() and (folder / text).exists() else text

    return replace(
        question,
        model=found(question.model),
        cluster=found(question.cluster),
        profile=found(question.profile),
        telemetry=tuple(beside(path) for path in question.telemetry),
    )


def _request(read: Fields, folder: Path) -> PlanRequest:
    values = {name: value for name, value in read.values.items() if name not in ("resolved", _FIELDS)}
    fixed = read.table("fixed")
    values["fixed"] = [f"{name}={fixed.whole(name)}" for name in fixed.values]
    question = relocated(question_from(values, read.where), folder)
    built = read.table(_FIELDS) if read.has(_FIELDS) else None
    model = model_of_table(built.values, question.model, where=built.where) if built else None
    try:
        request = request_of(question, model)
    except InputError as error:
        raise error.within(read.where) from None
    resolved = read.table("resolved")
    now = {
        "layers": request.model.layers,
        "parameters": parameter_count(request.model).total,
        "gpus": request.cluster.gpus,
    }
    for name, value in now.items():
        then = resolved.whole(name, most=MOST_PARAMETERS)
        if then != value:
            raise InputError(
                f"{then} {name} then, {value} now: {request.model.name} or {request.cluster.name} has changed since",
                allowed="the files as they were; else run plan search again",
                where=resolved.where,
            )
    return request


def _search(read: Fields) -> SearchProof:
    return SearchProof(
        enumerated=read.whole("enumerated"),
        pruned=_counts(read, "pruned"),
        solved=read.whole("solved"),
        lower_bound_s=read.number("lower_bound_s"),
        gap=read.signed("gap"),
        proven_optimal=read.flag("proven_optimal"),
        wall_s=read.number("wall_s"),
        cut=_counts(read, "cut") if "cut" in read.values else (),
        work_s=read.number("work_s") if "work_s" in read.values else 0.0,
        by_clock="by_clock" in read.values and read.flag("by_clock"),
    )


def _infeasible(read: Fields) -> Infeasibility:
    return Infeasibility(constraint=read.text("constraint"), nearest_change=read.text("nearest_change"))


def _ranked(read: Fields, request: PlanRequest) -> RankedLayout:
    layout = _layout(read)
    if layout.layers != request.model.layers:
        raise read.wrong("stages", f"{layout.layers} layers", f"the {request.model.layers} layers of the model")
    evidence = read.table("evidence")
    islands = len(request.cluster.islands)
    used = [0] * islands
    for stage in layout.stages:
        if stage.island >= islands:
            raise read.wrong("stages: mesh: island", stage.island, f"0 to {islands - 1}")
        used[stage.island] += stage.gpus
    for number, island in enumerate(request.cluster.islands):
        if used[number] > island.gpus:
            raise read.wrong("stages", f"{used[number]} GPUs of island {number}", f"up to its {island.gpus}")
    _check_summary(read, layout)
    samples = layout.first.dp * layout.micro_batch * layout.num_microbatches
    if samples != request.job.global_batch:
        allowed = f"as many as make the global batch of {request.job.global_batch} with micro_batch and dp"
        raise read.wrong("num_microbatches", layout.num_microbatches, allowed)
    return RankedLayout(
        layout=layout,
        cost=_cost(read),
        evidence=Evidence(
            label=evidence.text("label"),
            nearest=evidence.text("nearest"),
            low_s=evidence.number("low_s"),
            high_s=evidence.number("high_s"),
            low_peak_bytes=evidence.number("low_peak_gib", default=0.0) * BYTES_PER_GIB,
            high_peak_bytes=evidence.number("high_peak_gib", default=0.0) * BYTES_PER_GIB,
            profile=evidence.text("profile", default=""),
            unmeasured=evidence.text("unmeasured", default=""),
            few_runs=evidence.text("few_runs", default=""),
        ),
        why=read.text("why", default=""),
        choices=_choices(read, layout, request),
        placement=_placement(read, layout, request),
        in_order=_in_order(read.table("in_order")) if "in_order" in read.values else None,
    )


def _choices(read: Fields, layout: Layout, request: PlanRequest) -> tuple[tuple[str, str], ...]:
    """Read which of the ways that a search tried a layout is of."""
    if "choices" not in read.values:
        return ()
    told = read.table("choices")
    made = tuple((name, told.text(name)) for name in told.values)
    if not any(chose(variant.choices, made) for variant in request.variants):
        known = (", ".join(f"{name} {value}" for name, value in variant.choices) for variant in request.variants)
        raise read.wrong("choices", dict(made), "; or ".join(known) or "none: the request tries nothing")
    if dict(made).get(SCHEDULE, layout.schedule.value) != layout.schedule.value:
        raise told.wrong(SCHEDULE, dict(made)[SCHEDULE], layout.schedule.value)
    return made


def _check_summary(read: Fields, layout: Layout) -> None:
    """Refuse degrees beside the stages that are not those of the stages, which are what is priced and exported."""
    first = layout.first
    summary = {**degrees_to_json(layout, first), "gpus": layout.gpus, "sequence_parallel": first.sequence_parallel}
    places = [(read, summary)]
    for item, stage in zip(_tables(read, "stages"), layout.stages, strict=True):
        own = stage.strategies[0].strategy
        places.append((item.table("mesh"), {name: getattr(own, name) for name in ("tp", "cp", "dp", "ep", "etp")}))
        places.append((item, {"layers": stage.layers}))
    for place, values in places:
        for name, value in values.items():
            if name in place.values and place.values[name] != value:
                raise place.wrong(
                    name, place.values[name], f"{value}, as the stages have it; plan estimate prices others"
                )


def _placement(read: Fields, layout: Layout, request: PlanRequest) -> tuple[RankPlace, ...]:
    """Read the places; ranks in order come back as no places, as the search gives them."""
    places = tuple(
        RankPlace(rank=item.whole("rank"), host=item.text("host"), gpu=item.whole("gpu"))
        for item in _tables(read, "placement")
    )
    if places and [place.rank for place in places] != list(range(layout.gpus)):
        raise read.wrong("placement", f"{len(places)} ranks", f"each of 0 to {layout.gpus - 1} once, in order, or none")
    return () if places == places_in_order(layout, request.cluster) else places


def _layout(read: Fields) -> Layout:
    split = read.values.get("layers_per_stage")
    stages = _tables(read, "stages")
    if not isinstance(split, list) or len(split) != len(stages) or not stages:
        raise read.wrong("layers_per_stage", split, f"a list of counts for each of {len(stages)} stages, at least one")
    return Layout(
        stages=tuple(_stage(item, counts, read) for item, counts in zip(stages, split, strict=True)),
        micro_batch=read.whole("micro_batch", least=1),
        num_microbatches=read.whole("num_microbatches", least=1),
        schedule=_member(Schedule, read, "schedule"),
        rank_order=_member(RankOrder, read, "rank_order") if "rank_order" in read.values else RankOrder.DP_INSIDE,
        microbatch_group=read.whole("microbatch_group") if "microbatch_group" in read.values else 0,
    )


def _stage(read: Fields, counts: object, layout: Fields) -> Stage:
    if not isinstance(counts, list) or not counts or not all(type(item) is int and item >= 0 for item in counts):
        raise layout.wrong("layers_per_stage", counts, "a list of whole numbers from 0")
    runs = tuple(
        StrategyRun(strategy=_strategy(item), count=item.whole("layers")) for item in _tables(read, "strategies")
    )
    if not runs or sum(run.count for run in runs) != sum(counts):
        raise read.wrong("strategies", f"{sum(run.count for run in runs)} layers", f"{sum(counts)} layers in all")
    return Stage(layers_per_chunk=tuple(counts), strategies=runs, island=read.table("mesh").whole("island"))


def _strategy(read: Fields) -> Strategy:
    recompute = read.table("recompute")
    return Strategy(
        tp=read.whole("tp", least=1),
        cp=read.whole("cp", least=1),
        dp=read.whole("dp", least=1),
        ep=read.whole("ep", least=1),
        etp=read.whole("etp", least=1),
        sequence_parallel=read.flag("sequence_parallel"),
        zero=read.whole("zero"),
        shard_group=read.whole("shard_group"),
        recompute=Recompute(
            granularity=_member(Granularity, recompute, "granularity"), modules=recompute.texts("modules")
        ),
    )


def _cost(read: Fields) -> LayoutCost:
    parts, power = read.table("breakdown"), read.table("power")
    details = read.table("details_s")
    stages = _tables(read, "stages")
    return LayoutCost(
        step=StepTime(
            compute_s=parts.signed("compute_s"),
            exposed_comm_s=parts.signed("exposed_comm_s"),
            bubble_s=parts.signed("bubble_s"),
            sync_s=parts.signed("sync_s"),
            io_s=parts.signed("io_s"),
            details=tuple((name, details.signed(name)) for name in details.values),
        ),
        memory=tuple(_memory(item.table("memory"), stage) for stage, item in enumerate(stages)),
        power=PowerState(
            gpu_w=power.number("gpu_w"),
            peak_gpu_w=power.number("peak_gpu_w"),
            clock_hz=power.number("clock_mhz") * HZ_PER_MHZ,
            limited_by=power.text("limited_by"),
            energy_j_per_token=power.number("energy_j_per_token"),
            max_temp_c=power.signed("max_temp_c"),
            node_energy_j_per_token=power.number("node_energy_j_per_token", default=0.0),
            slots=tuple(_slot(item) for item in _tables(power, "slots")) if "slots" in power.values else (),
        ),
        stage_times_s=tuple(item.number("time_s") for item in stages),
        tokens_per_s=read.number("tokens_per_s"),
        mfu=read.number("mfu"),
    )


def _slot(read: Fields) -> SlotState:
    return SlotState(
        island=read.whole("island"),
        node=read.whole("node"),
        gpu=read.whole("gpu"),
        stage=read.whole("stage"),
        mean_w=read.number("mean_w"),
        busy_w=read.number("busy_w"),
        peak_w=read.number("peak_w"),
        clock_hz=read.number("clock_mhz") * HZ_PER_MHZ,
        temperature_c=read.signed("temperature_c"),
        peak_c=read.signed("peak_c"),
        limited_by=read.text("limited_by"),
    )


def _in_order(read: Fields) -> InOrder:
    return InOrder(
        step_time_s=read.number("step_time_s"),
        energy_j_per_token=read.number("energy_j_per_token"),
        gap_c=read.signed("gap_c"),
        max_temp_c=read.signed("max_temp_c"),
    )


def _memory(read: Fields, stage: int) -> MemoryUse:
    parts = read.table("components")
    return MemoryUse(
        stage=stage,
        components=tuple((name, parts.signed(name) * BYTES_PER_GIB) for name in parts.values),
        usable_bytes=read.number("usable_gib") * BYTES_PER_GIB,
        verdict=_member(Verdict, read, "verdict"),
        moment=_member(Moment, read, "moment"),
        host_bytes=read.number("host_gib") * BYTES_PER_GIB,
    )


def _tables(read: Fields, name: str) -> tuple[Fields, ...]:
    value = read.values.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise read.wrong(name, value, "a list of objects")
    return tuple(Fields(item, f"{read.where}: {name}[{number}]") for number, item in enumerate(value))


def _counts(read: Fields, name: str) -> tuple[tuple[str, int], ...]:
    table = read.table(name)
    return tuple((key, table.whole(key)) for key in table.values)


def _member(kind: type[_Member], read: Fields, name: str) -> _Member:
    text = read.text(name)
    known = {str(member.value): member for member in kind}
    if text not in known:
        raise read.wrong(name, text, ", ".join(known))
    return known[text]

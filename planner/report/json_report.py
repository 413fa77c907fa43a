"""A plan report as plain data, schema 1: the fields that scripts rely on. :mod:`planner.report.json_reader` reads it.

Times are seconds, memory GiB, power watts. Further fields may be added; none changes its meaning.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from costmodels.goodput import goodput
from costmodels.layout import Layout, Recompute, Stage, Strategy
from costmodels.placement import first_rank
from costmodels.results import Evidence, LayoutCost, MemoryUse, SlotState
from costmodels.workload.counts import parameter_count
from costmodels.workload.files import table_of_model
from costmodels.workload.presets import is_known
from hardware.cluster import Cluster
from planner.layouts.logits import logits_of
from planner.placement.order import places_in_order
from planner.plan_report import PlanReport, RankedLayout, RankPlace, SearchProof
from planner.question import question_of
from planner.report.traffic_json import traffic_to_json
from planner.report.version import version
from planner.report.words import gib, layout_text
from planner.request import PlanRequest
from planner.rules.verdict import Violation
from planner.search.objective import JOULES_PER_KWH, run_cost
from planner.traffic import traffic_of

SCHEMA: Final = 1
MOST_PLACES: Final = 4096
"""GPUs up to which ranks in order are written out; beyond, an empty list stands for them."""
HZ_PER_MHZ: Final = 1e6
TRILLION: Final = 1e12
SECONDS_PER_DAY: Final = 86400.0

_WHERE_SET: Final = ("fixed", "profile", "telemetry", "software", "tries", "trainer", "images", "freeze")
"""Fields that are written in a form of their own, or only where something is said."""

Json = dict[str, object]


def report_to_json(report: PlanReport) -> Json:
    """Return a report as plain data.

    Parameters
    ----------
    report : PlanReport
        Of a search.

    Returns
    -------
    dict
        Schema 1, ready for :func:`json.dumps`.
    """
    out: Json = {
        **heading(),
        "request": request_to_json(report.request),
        "layouts": [
            layout_to_json(ranked, report.request_of(ranked), rank)
            for rank, ranked in enumerate(report.layouts, start=1)
        ],
        "search": search_to_json(report.search),
        "rejected": dict(report.rejected),
        "notes": list(report.notes),
    }
    if report.unconstrained_s:
        out["unconstrained_s"] = report.unconstrained_s
    if (near := report.roomier) is not None:
        out["roomier"] = {"rank": near.rank, "slower": near.slower, "freed_gib": gib(near.freed_bytes)}
    if report.infeasible is not None:
        why = report.infeasible
        out["infeasible"] = {"constraint": why.constraint, "nearest_change": why.nearest_change}
    return out


def heading() -> Json:
    """Return what every answer begins with: the schema, and the planner that gave it."""
    return {"schema": SCHEMA, "planner": version()}


def estimate_to_json(ranked: RankedLayout, request: PlanRequest, broken: Sequence[Violation]) -> Json:
    """Return one priced layout with the rules that it breaks."""
    return {
        **heading(),
        "request": request_to_json(request),
        "layout": layout_to_json(ranked, request),
        "legal": not broken,
        "violations": violations_to_json(broken),
    }


def request_to_json(request: PlanRequest) -> Json:
    """Return a request: the user's words, and what they came to."""
    question = question_of(request)
    out: Json = {key: value for key, value in asdict(question).items() if key not in _WHERE_SET}
    out["fixed"] = dict(request.fixed)
    if question.telemetry:
        out["telemetry"] = list(question.telemetry)
    if question.software:
        out["software"] = list(question.software)
    if question.tries:
        out["tries"] = list(question.tries)
    said = {name: getattr(question, name) for name in ("trainer", "profile", "images", "freeze")}
    out |= {name: value for name, value in said.items() if value}
    if not is_known(question.model) and (table := table_of_model(request.model)):
        out["model_fields"] = table
    out["resolved"] = {
        "model": request.model.name,
        "layers": request.model.layers,
        "parameters": parameter_count(request.model).total,
        "cluster": request.cluster.name,
        "gpus": request.cluster.gpus,
        "nodes": request.cluster.nodes,
        "precision": request.job.precision.name,
        "software": request.job.software.name,
        **({"hosts": list(request.cluster.host_names)} if any(i.hosts for i in request.cluster.islands) else {}),
    }
    return out


def search_to_json(search: SearchProof) -> Json:
    """Return counts, bounds and proof."""
    return {
        "enumerated": search.enumerated,
        "pruned": dict(search.pruned),
        "solved": search.solved,
        "lower_bound_s": search.lower_bound_s,
        "gap": search.gap,
        "proven_optimal": search.proven_optimal,
        "wall_s": search.wall_s,
        "work_s": search.work_s,
        "by_clock": search.by_clock,
        "cut": dict(search.cut),
    }


def layout_to_json(ranked: RankedLayout, request: PlanRequest, rank: int = 1) -> Json:
    """Return one priced layout.

    Parameters
    ----------
    ranked : RankedLayout
        Layout, price, evidence.
    request : PlanRequest
        What was asked; its cluster gives the identity placement.
    rank : int
        Place in the ranking, from 1.

    Returns
    -------
    dict
        Degrees at the top are those of the first layer; ``stages`` holds every layer's.
    """
    layout, cost = ranked.layout, ranked.cost
    first = layout.first
    return {
        "rank": rank,
        "name": layout_text(layout),
        **degrees_to_json(layout, first),
        "sequence_parallel": first.sequence_parallel,
        "recompute": _recompute(layout),
        **({"choices": dict(ranked.choices)} if ranked.choices else {}),
        "gpus": layout.gpus,
        "layers_per_stage": [list(chunks) for chunks in layout.layers_per_stage],
        "stages": [_stage(number, layout, cost) for number in range(layout.pp)],
        **_throughput(layout, cost),
        "peak_flops_per_s": _peak_flops_per_s(request),
        "memory": _memory(layout, cost) | _logits(layout, request),
        "power": _power(cost),
        "per_trillion_tokens": _run(ranked, request),
        "goodput": _goodput(ranked, request),
        "placement": [asdict(place) for place in places(ranked, request.cluster)],
        **({"in_order": asdict(ranked.in_order)} if ranked.in_order else {}),
        "traffic": traffic_to_json(traffic_of(request, ranked)),
        "evidence": _evidence(ranked.evidence),
        "why": ranked.why,
    }


def _evidence(evidence: Evidence) -> Json:
    return {
        "label": evidence.label,
        "nearest": evidence.nearest,
        "low_s": evidence.low_s,
        "high_s": evidence.high_s,
        "low_peak_gib": gib(evidence.low_peak_bytes),
        "high_peak_gib": gib(evidence.high_peak_bytes),
        "profile": evidence.profile,
        "unmeasured": evidence.unmeasured,
        "few_runs": evidence.few_runs,
    }


def _peak_flops_per_s(request: PlanRequest) -> float:
    """The dense peak of one GPU that MFU is a share of; the highest where machines differ."""
    peaks = (island.node.accelerator.peak for island in request.cluster.islands)
    return max(float(getattr(peak, request.job.precision.gemm)) for peak in peaks)


def _logits(layout: Layout, request: PlanRequest) -> Json:
    tensor, at_peak = logits_of(request, layout)
    return {"logits_tensor_gib": gib(tensor), "logits_loss_gib": gib(at_peak)}


def _goodput(ranked: RankedLayout, request: PlanRequest) -> Json:
    """What failures and checkpoints leave of a long run."""
    found = goodput(request.model, request.job, request.cluster, ranked.layout.gpus)
    return {
        "share": found.share,
        "tokens_per_s": found.share * ranked.cost.tokens_per_s,
        "failure_interval_s": found.failure_interval_s,
        "checkpoint_gib": gib(found.checkpoint_bytes),
        "checkpoint_write_s": found.write_s,
        "checkpoint_interval_s": found.interval_s,
        "checkpoint_interval_steps": max(1, round(found.interval_s / ranked.cost.step.total_s)),
        "restart_s": found.restart_s,
        "storage_assumed": found.storage_assumed,
    }


def places(ranked: RankedLayout, cluster: Cluster) -> tuple[RankPlace, ...]:
    """Return where each rank runs; empty for more than :data:`MOST_PLACES` ranks in order."""
    if ranked.placement or ranked.layout.gpus > MOST_PLACES:
        return ranked.placement
    return places_in_order(ranked.layout, cluster)


def degrees_to_json(layout: Layout, first: Strategy) -> Json:
    """Return the degrees of a layout, those of its first layer where layers differ."""
    return {
        "tp": first.tp,
        "pp": layout.pp,
        "cp": first.cp,
        "ep": first.ep,
        "etp": first.etp,
        "dp": first.dp,
        "vpp": layout.vpp,
        "zero": first.zero,
        "shard_group": first.shard_group,
        "micro_batch": layout.micro_batch,
        "num_microbatches": layout.num_microbatches,
        "schedule": layout.schedule.value,
        "rank_order": layout.rank_order.value,
        "microbatch_group": layout.microbatch_group,
    }


def recompute_to_json(recompute: Recompute) -> Json:
    """Return what a layer recomputes."""
    return {"granularity": recompute.granularity.value, "modules": list(recompute.modules)}


def _recompute(layout: Layout) -> Json:
    """What the first layer recomputes, and how many layers do as it does."""
    first = layout.first.recompute
    layers = sum(run.count for stage in layout.stages for run in stage.strategies if run.strategy.recompute == first)
    return {**recompute_to_json(first), "layers": layers}


def _stage(number: int, layout: Layout, cost: LayoutCost) -> Json:
    stage: Stage = layout.stages[number]
    use = cost.memory[number]
    first = stage.strategies[0].strategy
    return {
        "mesh": {
            "gpus": stage.gpus,
            "island": stage.island,
            "tp": first.tp,
            "cp": first.cp,
            "dp": first.dp,
            "ep": first.ep,
            "etp": first.etp,
            "edp": first.edp,
        },
        "layers": stage.layers,
        "strategies": [{"layers": run.count, **strategy_to_json(run.strategy)} for run in stage.strategies],
        "time_s": cost.stage_times_s[number],
        "memory_gib": gib(use.total_bytes),
        "memory": memory_use_to_json(use),
    }


def strategy_to_json(strategy: Strategy) -> Json:
    """Return the strategy of a layer."""
    return {
        "tp": strategy.tp,
        "cp": strategy.cp,
        "dp": strategy.dp,
        "ep": strategy.ep,
        "etp": strategy.etp,
        "sequence_parallel": strategy.sequence_parallel,
        "zero": strategy.zero,
        "shard_group": strategy.shard_group,
        "recompute": recompute_to_json(strategy.recompute),
    }


def memory_use_to_json(use: MemoryUse) -> Json:
    """Return the memory of the heaviest rank of a stage."""
    return {
        "total_gib": gib(use.total_bytes),
        "usable_gib": gib(use.usable_bytes),
        "verdict": use.verdict.value,
        "moment": use.moment.value,
        "host_gib": gib(use.host_bytes),
        "components": {name: gib(size) for name, size in use.components},
    }


def _throughput(layout: Layout, cost: LayoutCost) -> Json:
    step = cost.step
    return {
        "step_time_s": step.total_s,
        "tokens_per_s": cost.tokens_per_s,
        "tokens_per_s_per_gpu": cost.tokens_per_s / layout.gpus,
        "mfu": cost.mfu,
        "breakdown": {
            "compute_s": step.compute_s,
            "exposed_comm_s": step.exposed_comm_s,
            "bubble_s": step.bubble_s,
            "sync_s": step.sync_s,
            "io_s": step.io_s,
        },
        "details_s": dict(step.details),
    }


def _memory(layout: Layout, cost: LayoutCost) -> Json:
    """Memory of the rank nearest to its own limit, named by the first rank of its stage."""
    heaviest = cost.heaviest
    rank = first_rank(layout, heaviest.stage)
    return {"heaviest_rank": rank, "heaviest_stage": heaviest.stage, **memory_use_to_json(heaviest)}


def _power(cost: LayoutCost) -> Json:
    power = cost.power
    return {
        "gpu_w": power.gpu_w,
        "peak_gpu_w": power.peak_gpu_w,
        "clock_mhz": power.clock_hz / HZ_PER_MHZ,
        "limited_by": power.limited_by,
        "energy_j_per_token": power.energy_j_per_token,
        "max_temp_c": power.max_temp_c,
        "gap_c": power.gap_c,
        "node_energy_j_per_token": power.node_energy_j_per_token,
        "slots": [_slot(slot) for slot in power.slots],
    }


def _run(ranked: RankedLayout, request: PlanRequest) -> Json:
    """What a trillion tokens (or samples) take, failures apart."""
    run = run_cost(request, ranked.layout, ranked.cost, TRILLION)
    return {
        "days": run.seconds / SECONDS_PER_DAY,
        "gpu_kwh": run.gpu_j / JOULES_PER_KWH,
        "building_kwh": run.building_j / JOULES_PER_KWH,
        "electricity_cost": run.electricity,
        "cost": run.money,
        "currency": request.cluster.currency,
    }


def _slot(slot: SlotState) -> Json:
    """One accelerator; ``node`` counts within its island."""
    state = asdict(slot)
    clock_hz = state.pop("clock_hz")
    return {**state, "clock_mhz": clock_hz / HZ_PER_MHZ}


def violations_to_json(violations: Sequence[Violation]) -> list[Json]:
    """Return broken rules as plain data."""
    return [
        {
            "rule": found.rule,
            "message": found.message,
            "values": dict(found.values),
            "found": found.found.value,
            "source": found.source,
        }
        for found in violations
    ]

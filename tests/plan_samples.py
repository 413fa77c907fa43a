"""Made-up plan reports: every number is chosen to be told apart in output, none comes from a cost model."""

from dataclasses import replace
from functools import cache

from costmodels.layout import FULL_RECOMPUTE, Granularity, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.results import Evidence, LayoutCost, MemoryUse, Moment, PowerState, StepTime, Verdict
from planner.plan_report import Infeasibility, PlanReport, RankedLayout, RankPlace, SearchProof
from planner.question import Question, request_of
from planner.request import PlanRequest

GIB = 2.0**30
USABLE_GIB = 79.0


@cache
def request(model: str = "llama3_70b", cluster: str = "dgx-h100:8", framework: str = "megatron") -> PlanRequest:
    return request_of(Question(model=model, cluster=cluster, global_batch=128, seq=8192, framework=framework))


def layout(strategy: Strategy, split: tuple[tuple[int, ...], ...], *, micro_batch: int = 1, batch: int = 128) -> Layout:
    vpp = len(split[0])
    return Layout(
        stages=tuple(
            Stage(layers_per_chunk=chunks, strategies=(StrategyRun(strategy=strategy, count=sum(chunks)),))
            for chunks in split
        ),
        micro_batch=micro_batch,
        num_microbatches=batch // (strategy.dp * micro_batch),
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
    )


def cost(of: Layout, step_s: float, heaviest_gib: float, verdict: Verdict = Verdict.FITS) -> LayoutCost:
    memory = tuple(memory_use(number, heaviest_gib - 0.5 * number, verdict) for number in range(of.pp))
    step = StepTime(
        compute_s=0.75 * step_s,
        exposed_comm_s=0.125 * step_s,
        bubble_s=0.109375 * step_s,
        sync_s=0.015625 * step_s,
        io_s=0.0,
        details=(
            ("gemm", 0.5 * step_s),
            ("attention", 0.125 * step_s),
            ("memory", 0.0625 * step_s),
            ("recompute", 0.03125 * step_s),
            ("tp", 0.0625 * step_s),
            ("cp", 0.0),
            ("ep", 0.0),
            ("weights", 0.0),
            ("gradient_reduction", 0.046875 * step_s),
            ("weight_gather", 0.015625 * step_s),
            ("optimizer", 0.03125 * step_s),
            ("send", 0.001 * step_s),
        ),
    )
    return LayoutCost(
        step=step,
        memory=memory,
        power=PowerState(
            gpu_w=612.0,
            peak_gpu_w=690.0,
            clock_hz=1.755e9,
            limited_by="power",
            energy_j_per_token=0.42,
            max_temp_c=0.0,
        ),
        stage_times_s=tuple(0.7 * step_s / of.num_microbatches - 1e-4 * number for number in range(of.pp)),
        tokens_per_s=128 * 8192 / step.total_s,
        mfu=4.375 / step_s,
    )


def memory_use(stage: int, total_gib: float, verdict: Verdict) -> MemoryUse:
    states = (("weights", 8.5 * GIB), ("gradients", 17.0 * GIB), ("optimizer", 12.75 * GIB))
    rest = total_gib * GIB - sum(size for _, size in states)
    return MemoryUse(
        stage=stage,
        components=(*states, ("activations", 0.75 * rest), ("reserve", 0.25 * rest)),
        usable_bytes=USABLE_GIB * GIB,
        verdict=verdict,
        moment=Moment.BACKWARD if verdict is Verdict.OOM else Moment.NONE,
    )


def ranked(of: Layout, step_s: float, heaviest_gib: float, why: str = "") -> RankedLayout:
    return RankedLayout(
        layout=of,
        cost=cost(of, step_s, heaviest_gib),
        evidence=Evidence(
            label="interpolated", nearest="llama3_70b on 64 H100", low_s=0.9 * step_s, high_s=1.1 * step_s
        ),
        why=why,
    )


def layouts() -> tuple[RankedLayout, ...]:
    dense = Strategy(tp=4, dp=2, sequence_parallel=True, zero=1)
    uneven = replace(dense, dp=4, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)))
    sharded = Strategy(tp=2, cp=2, dp=16, sequence_parallel=True, zero=3, recompute=FULL_RECOMPUTE)
    return (
        ranked(layout(dense, ((5, 5),) * 8), 8.75, 61.25),
        ranked(layout(uneven, ((21,), (21,), (19,), (19,))), 9.0, 70.5, "+2.9 %: bubble +0.2 s"),
        ranked(layout(sharded, ((80,),), micro_batch=2), 11.5, 55.0, "+27.8 %: exposed exchange +2.4 s"),
    )


def proof(*, proven: bool = True) -> SearchProof:
    return SearchProof(
        enumerated=12345,
        pruned=(("memory of the states alone", 2345), ("time lower bound", 9000)),
        solved=1000,
        lower_bound_s=8.75 if proven else 8.5,
        gap=0.0 if proven else 0.25 / 8.75,
        proven_optimal=proven,
        wall_s=2.25,
    )


def report(*, proven: bool = True) -> PlanReport:
    return PlanReport(
        request=request(),
        layouts=layouts(),
        search=proof(proven=proven),
        rejected=(("tp 16 does not divide 8 key-value heads", 321), ("cp 3 is odd", 7)),
        notes=("prices are those of the list",),
    )


def infeasible_report() -> PlanReport:
    return PlanReport(
        request=request(),
        layouts=(),
        search=SearchProof(
            enumerated=12, pruned=(), solved=0, lower_bound_s=0.0, gap=0.0, proven_optimal=False, wall_s=0.5
        ),
        infeasible=Infeasibility(
            constraint="memory: 91.3 GiB on the heaviest GPU, 79.0 GiB usable", nearest_change="16 GPUs instead of 8"
        ),
    )


def placed_report() -> PlanReport:
    base = report()
    swapped = tuple(RankPlace(rank=rank, host=f"node{rank // 8}", gpu=7 - rank % 8) for rank in range(64))
    return replace(base, layouts=(replace(base.layouts[0], placement=swapped), *base.layouts[1:]))

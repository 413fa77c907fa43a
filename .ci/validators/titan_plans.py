"""Exports many plans to torchtitan; its own command line, meshes and pipeline code must agree with the plan.

Layouts that the rules refuse are written as arguments without asking the rules, and torchtitan must refuse them too,
but for rules that it notices only when a model is built or a step runs, which needs GPUs.

Usage: titan_plans.py [--plans N] [--refused N] [--seed S]
"""

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, replace

import real
from megatron_plans import split_layers

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.model import ModelSpec
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.choices import Loss
from planner.export.hosts import RankRow, Site
from planner.export.launch import Export, Planned
from planner.export.torchtitan import export_torchtitan, launch_arguments
from planner.ingest.plain_layout import uniform_stages
from planner.ingest.torchtitan.command_line import CHUNKS, option_table
from planner.ingest.torchtitan.models import registry
from planner.losses import with_loss
from planner.request import Framework
from planner.rules import Found, check_layout, facts_of

MODELS = (
    "llama3_8b",
    "llama3_70b",
    "qwen3_0_6b",
    "qwen3_14b",
    "qwen3_32b",
    "qwen3_30b_a3b",
    "deepseek_v2_lite",
    "gpt_oss_20b",
    "gpt_oss_120b",
)
ATTEMPTS = 3000
MOST_GPUS = 512
AXES = {
    "pp": lambda row, _: (row.dp, row.cp, row.tp),
    "cp": lambda row, _: (row.pp, row.dp, row.tp),
    "tp": lambda row, _: (row.pp, row.dp, row.cp),
    "dp_replicate": lambda row, shard: (row.pp, row.dp % shard, row.cp, row.tp),
    "dp_shard": lambda row, shard: (row.pp, row.dp // shard, row.cp, row.tp),
    "ep": lambda row, _: (row.pp, row.edp, row.etp),
    "efsdp": lambda row, shard: (row.pp, row.dp // shard, row.ep),
}


def random_layout(rng: random.Random, spec: ModelSpec, batch: int) -> Layout:
    """One random layout; most are illegal."""
    tp, pp, cp = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 3, 4, 8)), rng.choice((1, 1, 2, 4))
    dp, vpp = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 1, 2, 3))
    experts = facts_of(spec).experts > 0
    ep = rng.choice((1, 2, 4, 8, 16)) if experts else 1
    zero = rng.choice((0, 2, 3, 3))
    group = dp * cp // rng.choice((1, 1, 2))
    grid = Strategy(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=ep,
        etp=tp if experts and ep == 1 else 1,
        sequence_parallel=tp > 1 and rng.random() < 0.8,
        zero=zero,
        shard_group=group if zero and group < dp * cp else 0,
        recompute=rng.choice((NO_RECOMPUTE, FULL_RECOMPUTE)),
    )
    vpp = vpp if pp > 1 else 1
    one = (Schedule.ONE_F_ONE_B, Schedule.GPIPE) if pp > 1 else (Schedule.ONE_F_ONE_B,)
    loops = (Schedule.INTERLEAVED, Schedule.LOOPED_BFS, Schedule.INTERLEAVED_ZB)
    vs = (Schedule.ZBV, Schedule.DUALPIPEV) if vpp == 2 else ()
    schedule = rng.choice((*loops, *vs) if vpp > 1 else one)
    micro = rng.choice((1, 1, 2, 4))
    return Layout(
        stages=uniform_stages(split_layers(rng, spec.layers, pp, vpp), grid),
        micro_batch=micro,
        num_microbatches=max(1, batch // (micro * dp)),
        schedule=schedule,
    )


def legal_export(rng: random.Random, name: str, most: int = MOST_GPUS) -> tuple[ModelSpec, Layout, Export]:
    """Draw a plan of at most so many GPUs that rules and exporter allow."""
    spec = model(name)
    for _ in range(ATTEMPTS):
        job = TrainingJob(
            global_batch=rng.choice((64, 128, 256)),
            seq=rng.choice((2048, 4096)),
            precision=precision(rng.choice(("bf16", "bf16", "fp32")), framework="torchtitan"),
            software=with_loss(
                replace(software("torchtitan"), compiled=rng.random() < 0.7, tp_overlap=rng.random() < 0.3),
                rng.choice((Loss.WHOLE, Loss.CHUNKED, Loss.CHUNKED)),
            ),
        )
        layout = random_layout(rng, spec, job.global_batch)
        if layout.gpus > most or check_layout(layout, spec, job, framework=Framework.TORCHTITAN):
            continue
        site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
        try:
            return spec, layout, export_torchtitan(Planned(model=spec, job=job, layout=layout, site=site))
        except InputError:
            continue
    raise SystemExit(f"no legal plan for {name} in {ATTEMPTS} attempts")


LATER = (Found.BUILD, Found.FORWARD, Found.NEVER)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A layout that the rules refuse, as arguments; ``late`` when no check before the model is built sees it."""

    name: str
    world: int
    words: tuple[str, ...]
    rules: tuple[str, ...]
    late: bool


def refused_launch(rng: random.Random, name: str) -> Refused | None:
    """Draw a layout that a rule refuses and that torchtitan has words for."""
    spec = model(name)
    for _ in range(ATTEMPTS):
        job = TrainingJob(
            global_batch=rng.choice((64, 96, 128)),
            seq=rng.choice((2048, 4096, 2050)),
            precision=precision("bf16", framework="torchtitan"),
            software=software("torchtitan"),
        )
        layout = random_layout(rng, spec, job.global_batch)
        broken = check_layout(layout, spec, job, framework=Framework.TORCHTITAN)
        if layout.gpus > MOST_GPUS or not broken:
            continue
        try:
            words = launch_arguments(spec, job, layout, layout.first)
        except InputError:
            continue
        rules = tuple(sorted({violation.rule for violation in broken}))
        late = all(violation.found in LATER for violation in broken)
        return Refused(name=name, world=layout.gpus, words=words, rules=rules, late=late)
    return None


def groups_of(export: Export, layout: Layout, rank: int) -> dict[str, list[int]]:
    """Ranks that share an axis with a rank, as the rank table states them."""
    grid = layout.first
    shard = (grid.shard_group or grid.dp * grid.cp) // grid.cp if grid.zero else 1
    own = export.ranks[rank]

    def group(key: object) -> list[int]:
        def place(row: RankRow) -> object:
            return key(row, shard)  # type: ignore[operator]

        return [row.rank for row in export.ranks if place(row) == place(own)]

    return {axis: group(key) for axis, key in AXES.items()}


def problem_of(plan: tuple[ModelSpec, Layout, Export], answer: dict[str, object], rank: int) -> str:
    """What differs between a plan and what torchtitan makes of it; empty when nothing does."""
    spec, layout, export = plan
    if not answer["accepted"]:
        return f"{answer['step']}: {answer['error']}"
    wanted = [list(chunks) for chunks in layout.layers_per_stage]
    if answer["layers"] != wanted:
        return f"layers {answer['layers']}, planned {wanted}"
    planned = {
        "microbatches": layout.num_microbatches,
        "chunks": int(export.arguments[export.arguments.index(CHUNKS) + 1]),
    }
    for what, number in planned.items():
        if answer[what] != number:
            return f"{answer[what]} {what}, planned {number}"
    built, facts = answer["model"], facts_of(spec)
    wrong = {name: size for name, size in built.items() if size != getattr(facts, name)}  # type: ignore[attr-defined]
    if wrong:
        return f"the configuration builds {wrong}"
    told = groups_of(export, layout, rank)
    for axis, ranks in answer["groups"].items():  # type: ignore[attr-defined]
        if sorted(ranks) != told[axis]:
            return f"axis {axis} of rank {rank}: {ranks}, the rank table says {told[axis]}"
    return ""


def main() -> int:
    """Export plans, ask torchtitan, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--refused", type=int, default=0, help="layouts that the rules refuse to ask besides")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    failures = 0
    known = {name: list(option_table()[name]) for name in ("training", "parallelism", "compile")}
    real_fields = json.loads(real.asked("titan_harness.py", "--fields"))
    if known != real_fields:
        failures += 1
        print(f"options differ: {known} and {real_fields}")
    plans = [legal_export(rng, MODELS[index % len(MODELS)]) for index in range(options.plans)]
    plans += [legal_export(rng, MODELS[0], most=1), legal_export(rng, MODELS[-1], most=1)]  # one GPU too
    ranks = [rng.randrange(layout.gpus) for _, layout, _ in plans]
    cases = [
        {"name": spec.name, "world_size": layout.gpus, "rank": rank, "args": list(export.arguments)}
        for (spec, layout, export), rank in zip(plans, ranks, strict=True)
    ]
    for plan, rank, answer in zip(plans, ranks, real.answers(cases, harness="titan_harness.py"), strict=True):
        problem = problem_of(plan, answer, rank)
        if problem:
            failures += 1
            print(f"{plan[0].name} on {plan[1].gpus} GPUs: {problem}\n{plan[2].argument_text}\n")
    drawn = [refused_launch(rng, MODELS[index % len(MODELS)]) for index in range(options.refused)]
    refused = [launch for launch in drawn if launch]
    cases = [{"name": one.name, "world_size": one.world, "rank": 0, "args": list(one.words)} for one in refused]
    lacking: Counter[str] = Counter()
    for one, answer in zip(refused, real.answers(cases, harness="titan_harness.py"), strict=True):
        if answer["accepted"] and one.late:
            lacking.update(one.rules)
        elif answer["accepted"]:
            failures += 1
            print(f"{one.name} on {one.world} GPUs: refused by {', '.join(one.rules)}, accepted: {' '.join(one.words)}")
    print(f"{len(refused)} layouts that the rules refuse; unseen before a model is built: {dict(lacking)}")
    distinct = len({plan[2].arguments for plan in plans})
    pipelines = sum(plan[1].pp > 1 for plan in plans)
    uneven = sum(len({count for stage in plan[1].layers_per_stage for count in stage}) > 1 for plan in plans)
    told = f"{len(plans)} plans of {len(MODELS)} models ({len(registry())} known), {distinct} different"
    print(f"{told}, {pipelines} pipelines, {uneven} uneven: {failures} refused or built otherwise")
    return int(failures > 0 or distinct < min(20, options.plans))


if __name__ == "__main__":
    sys.exit(main())

"""Exports random plans to Galvatron and as JSON: Galvatron's own reader and this project's must find the plan again.

Usage: galvatron_plans.py [--plans N] [--seed S]

Layers have grids of their own: tp, cp, ep and the experts' tp, ZeRO stages, recompute; stages hold unequal numbers of
layers. The neutral JSON is asked for layouts of every form, over islands and with virtual chunks too. Galvatron itself
is asked where GALVATRON_SOURCE names a checkout of 2.4.1, of which no package is published.
"""

import argparse
import os
import random
import sys
from dataclasses import replace

import real
from megatron_plans import MODELS as OF_MEGATRON
from megatron_plans import model_named, random_job, random_plan, split_layers

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, RankOrder, Stage, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.model import ModelSpec
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.galvatron import CONFIG, export_galvatron
from planner.export.hosts import Site
from planner.export.launch import Export, Planned
from planner.export.layout_json import read_layout, write_layout
from planner.ingest.plain_layout import has_replicas, joined
from planner.request import Framework
from planner.rules import check_layout, facts_of

MODELS = ("llama3_8b", "llama3_70b", "gpt3_175b", "mistral_7b", "qwen25_32b", "mixtral_8x22b", "qwen3_30b_a3b")
ATTEMPTS = 3000
MOST_GPUS = 512
Plan = tuple[ModelSpec, Layout, Export]


def random_grid(rng: random.Random, gpus: int, *, experts: bool, default: int, parallel: bool) -> Strategy:
    """One grid of a layer on the GPUs of a stage; many are illegal."""
    tp, cp = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2))
    return Strategy(
        tp=tp,
        cp=cp,
        dp=max(1, gpus // (tp * cp)),
        ep=rng.choice((1, 2, 4, 8)) if experts else 1,
        etp=rng.choice((1, 2)) if experts else 1,
        sequence_parallel=parallel and tp > 1,
        zero=rng.choice((default, 3)),
        recompute=rng.choice((NO_RECOMPUTE, FULL_RECOMPUTE)),
    )


def random_layout(rng: random.Random, spec: ModelSpec, batch: int) -> Layout | None:
    """One random layout whose layers have one to three grids; None when these take unlike numbers of GPUs."""
    gpus, pp = rng.choice((1, 4, 8, 16, 32)), rng.choice((1, 2, 3, 4, 8))
    shared = {"experts": facts_of(spec).experts > 0, "default": rng.choice((0, 2)), "parallel": rng.random() < 0.7}
    grids = [random_grid(rng, gpus, **shared) for _ in range(rng.randint(1, 3))]
    if len({grid.gpus for grid in grids}) > 1:
        return None
    stages = []
    for (count,) in split_layers(rng, spec.layers, pp, 1):
        cut = rng.randint(0, count)
        stages.append(
            Stage(layers_per_chunk=(count,), strategies=joined((rng.choice(grids), n) for n in (cut, count - cut)))
        )
    first = stages[0].strategies[0].strategy
    micro = rng.choice((1, 2, 4))
    return Layout(
        stages=tuple(stages),
        micro_batch=micro,
        num_microbatches=max(1, batch // (micro * first.dp)),
        schedule=rng.choice((Schedule.ONE_F_ONE_B, Schedule.GPIPE)),
    )


def legal_export(rng: random.Random, name: str) -> Plan:
    """Draw a plan that rules and exporter allow."""
    spec = model(name)
    for _ in range(ATTEMPTS):
        job = TrainingJob(
            global_batch=rng.choice((64, 128, 256)),
            seq=rng.choice((1024, 2048)),
            precision=precision(rng.choice(("bf16", "bf16", "fp16", "fp32")), framework="galvatron"),
            software=software("galvatron"),
        )
        layout = random_layout(rng, spec, job.global_batch)
        if layout is None or layout.gpus > MOST_GPUS:
            continue
        if check_layout(layout, spec, job, framework=Framework.GALVATRON):
            continue
        site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
        try:
            return spec, layout, export_galvatron(Planned(model=spec, job=job, layout=layout, site=site))
        except InputError:
            continue
    raise SystemExit(f"no legal plan for {name} in {ATTEMPTS} attempts")


def problem_of(plan: Plan, answer: dict[str, object]) -> str:
    """What differs between a plan and what Galvatron makes of it; empty when nothing does."""
    spec, layout, export = plan
    if not answer["accepted"]:
        return f"{answer['step']}: {answer['error']}"
    layers = [run.strategy for stage in layout.stages for run in stage.strategies for _ in range(run.count)]
    found: dict[str, object] = answer["plan"]  # type: ignore[assignment]
    default = {"ddp": 0, "zero2": 2, "zero3": 3}[str(found["default_dp_type"])]
    replicated = [has_replicas(layer, experts=facts_of(spec).experts > 0) for layer in layers]
    stages = [3 if sharded else default for sharded in found["dp_types_enc"]]  # type: ignore[attr-defined]
    wanted = {
        "tp_sizes_enc": [layer.tp for layer in layers],
        "cp_sizes_enc": [layer.cp for layer in layers],
        "checkpoint_flags_enc": [int(layer.recompute == FULL_RECOMPUTE) for layer in layers],
        "pp_division": [stage.layers for stage in layout.stages],
        "pp_deg": layout.pp,
        "pipeline_type": "gpipe" if layout.schedule is Schedule.GPIPE else "pipedream_flush",
        "is_moe_model": facts_of(spec).experts > 0,
    }
    if facts_of(spec).experts:
        wanted |= {"ep_sizes_enc": [layer.ep for layer in layers]}
        wanted |= {"tp_of_ep_sizes_enc": [layer.etp for layer in layers]}
    wrong = [f"{name} {found[name]}, planned {value}" for name, value in wanted.items() if found[name] != value]
    zero = [(got, layer.zero) for got, layer, several in zip(stages, layers, replicated, strict=True) if several]
    wrong += [f"ZeRO {got}, planned {told}" for got, told in sorted(set(zero)) if got != told]
    batch = layout.micro_batch * layout.num_microbatches * layout.first.dp
    counts = {"batch": batch, "chunks": layout.num_microbatches}
    wrong += [f"{name} {answer[name]}, planned {value}" for name, value in counts.items() if answer[name] != value]
    built: dict[str, int] = answer["model"]  # type: ignore[assignment]
    sizes = {"num_layers": spec.layers, "hidden_size": spec.hidden, "num_attention_heads": facts_of(spec).heads}
    said = [name for name in sizes if any(f".{name}=" in word for word in export.arguments)]
    return "; ".join([*wrong, *(f"{name} {built[name]}" for name in said if built[name] != sizes[name])])


def differing_json(rng: random.Random, count: int) -> int:
    """Layouts of any form that the neutral JSON does not give back."""
    differing = 0
    for index in range(count):
        spec = model_named(OF_MEGATRON[index % len(OF_MEGATRON)], rng)
        layout = random_plan(rng, spec, random_job(rng), odd=rng.random() < 0.5)
        stages = tuple(replace(stage, island=rng.choice((0, 0, 1, 2))) for stage in layout.stages)
        orders, schedules = list(RankOrder), list(Schedule)
        layout = replace(layout, stages=stages, rank_order=rng.choice(orders), schedule=rng.choice(schedules))
        layout = replace(layout, microbatch_group=rng.choice((0, layout.pp, 2 * layout.pp)))
        if read_layout(write_layout(layout)) != layout:
            differing += 1
            print(f"the neutral JSON of {layout} reads back otherwise")
    print(f"{count} layouts as neutral JSON: {differing} differ")
    return differing


def main() -> int:
    """Export plans, ask Galvatron where it is, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    plans = [legal_export(rng, MODELS[index % len(MODELS)]) for index in range(options.plans)]  # each is read back
    failures = differing_json(rng, options.plans)
    if os.environ.get("GALVATRON_SOURCE"):
        cases = [
            {
                "name": spec.name,
                "world_size": layout.gpus,
                "config": dict(export.files)[CONFIG],
                "overrides": list(export.arguments),
            }
            for spec, layout, export in plans
        ]
        for plan, answer in zip(plans, real.answers(cases, harness="galvatron_harness.py"), strict=True):
            problem = problem_of(plan, answer)
            if problem:
                failures += 1
                print(f"{plan[0].name} on {plan[1].gpus} GPUs: {problem}\n{plan[2].argument_text}\n")
    distinct = len({(plan[2].arguments, plan[2].files) for plan in plans})
    mixed = sum(len({run.strategy for stage in plan[1].stages for run in stage.strategies}) > 1 for plan in plans)
    asked = "read back and asked of Galvatron" if os.environ.get("GALVATRON_SOURCE") else "read back"
    print(f"{len(plans)} plans of {len(MODELS)} models {asked}, {distinct} different, {mixed} with several grids")
    print(f"{failures} differ")
    return int(failures > 0 or distinct < min(20, options.plans))


if __name__ == "__main__":
    sys.exit(main())

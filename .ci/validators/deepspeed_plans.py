"""Exports many plans to DeepSpeed; its own configuration, topology and partition must agree with the plan.

Usage: deepspeed_plans.py [--plans N] [--seed S]
"""

import argparse
import json
import random
import sys
from dataclasses import replace

import real

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Strategy
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.model import ModelSpec
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.deepspeed import CONFIG, export_deepspeed
from planner.export.hosts import Site
from planner.export.launch import Export, Planned
from planner.ingest.deepspeed.configuration import balanced_layers
from planner.ingest.plain_layout import uniform_stages
from planner.request import Framework
from planner.rules import check_layout, facts_of

MODELS = (
    "llama3_8b",
    "llama3_70b",
    "gpt3_175b",
    "gpt2_xl",
    "mistral_7b",
    "qwen25_32b",
    "mixtral_8x22b",
    "deepseek_v2_lite",
)
ATTEMPTS = 3000
MOST_GPUS = 512


def random_layout(rng: random.Random, spec: ModelSpec, batch: int) -> Layout:
    """One random layout; most are illegal."""
    tp, pp, cp = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 3, 4, 8)), rng.choice((1, 1, 1, 2, 4))
    dp = rng.choice((1, 2, 4, 8, 16))
    experts = facts_of(spec).experts > 0
    grid = Strategy(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=rng.choice((1, 2, 4, 8)) if experts else 1,
        etp=rng.choice((1, tp)) if experts else 1,
        sequence_parallel=tp > 1 and rng.random() < 0.5,
        zero=rng.choice((0, 1, 1, 2, 3)),
        recompute=rng.choice((NO_RECOMPUTE, FULL_RECOMPUTE)),
    )
    micro = rng.choice((1, 1, 2, 4))
    return Layout(
        stages=uniform_stages([(count,) for count in balanced_layers(spec.layers, pp)], grid),
        micro_batch=micro,
        num_microbatches=max(1, batch // (micro * dp)),
    )


def legal_export(rng: random.Random, name: str) -> tuple[ModelSpec, Layout, Export]:
    """Draw a plan that rules and exporter allow."""
    spec = model(name)
    for _ in range(ATTEMPTS):
        tools = replace(
            software("deepspeed-flash"), grad_overlap=rng.random() < 0.5, optimizer_offload=rng.random() < 0.2
        )
        job = TrainingJob(
            global_batch=rng.choice((64, 128, 256)),
            seq=rng.choice((1024, 2048)),
            precision=precision(rng.choice(("bf16", "bf16", "fp16", "fp32")), framework="deepspeed"),
            software=tools,
        )
        layout = random_layout(rng, spec, job.global_batch)
        if layout.gpus > MOST_GPUS or check_layout(layout, spec, job, framework=Framework.DEEPSPEED):
            continue
        site = Site(hosts=tuple(f"host{index}" for index in range(layout.gpus)), gpus_per_node=1)
        try:
            return spec, layout, export_deepspeed(Planned(model=spec, job=job, layout=layout, site=site))
        except InputError:
            continue
    raise SystemExit(f"no legal plan for {name} in {ATTEMPTS} attempts")


def groups_of(export: Export, axis: str) -> list[list[int]]:
    """Ranks that share all but one coordinate, as the rank table states them; sequence ranks count as data ranks."""
    others = {"pp": ("dp", "cp", "tp"), "dp": ("pp", "tp"), "tp": ("pp", "dp", "cp")}[axis]
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in export.ranks:
        groups.setdefault(tuple(getattr(row, other) for other in others), []).append(row.rank)
    return sorted(groups.values())


def problem_of(plan: tuple[ModelSpec, Layout, Export], answer: dict[str, object]) -> str:
    """What differs between a plan and what DeepSpeed makes of it; empty when nothing does."""
    _, layout, export = plan
    if not answer["accepted"]:
        return f"{answer['step']}: {answer['error']}"
    config = json.loads(dict(export.files)[CONFIG])
    grid = layout.first
    batch = [layout.micro_batch * layout.num_microbatches * grid.dp, layout.micro_batch, layout.num_microbatches]
    wanted = {
        "stage": grid.zero,
        "batch": batch,
        "precision": ["bf16" in config, "fp16" in config],
        "unread": [],
        "layers": [stage.layers for stage in layout.stages],
        "groups": {axis: groups_of(export, axis) for axis in ("pp", "dp", "tp")},
    }
    wrong = [f"{name} {answer[name]}, planned {value}" for name, value in wanted.items() if answer[name] != value]
    return "; ".join(wrong)


def case_of(spec: ModelSpec, layout: Layout, export: Export) -> dict[str, object]:
    """What the harness is asked; without a pipeline sequence ranks are data ranks of the topology."""
    grid, config = layout.first, json.loads(dict(export.files)[CONFIG])
    degrees = {"tp": grid.tp, "pp": layout.pp, "dp": grid.dp, "data": grid.dp * grid.cp}
    told = {"method": "type:transformer", "tied": spec.tied_embeddings}
    return {"name": spec.name, "config": config, "layers": layout.layers, **told, **degrees}


def main() -> int:
    """Export plans, ask DeepSpeed, and print what differs; then wrong batches, which it must refuse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    plans = [legal_export(rng, MODELS[index % len(MODELS)]) for index in range(options.plans)]
    cases = [case_of(*plan) for plan in plans]
    wrong = [{**case, "dp": int(str(case["dp"])) + 1} for case in cases[:5]]
    answers = real.answers([*cases, *wrong], harness="deepspeed_harness.py")
    failures = 0
    for plan, answer in zip(plans, answers, strict=False):
        problem = problem_of(plan, answer)
        if problem:
            failures += 1
            print(f"{plan[0].name} on {plan[1].gpus} GPUs: {problem}\n{plan[2].argument_text}\n")
    failures += sum(answer["accepted"] for answer in answers[len(plans) :])
    distinct = len({(plan[2].arguments, plan[2].files) for plan in plans})
    pipelines = sum(plan[1].pp > 1 for plan in plans)
    print(f"{len(plans)} plans of {len(MODELS)} models, {distinct} different, {pipelines} pipelines: {failures} differ")
    return int(failures > 0 or distinct < min(20, options.plans))


if __name__ == "__main__":
    sys.exit(main())

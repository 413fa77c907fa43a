"""Exports many plans; the real Megatron-LM parser must accept them and build the same layers and process groups.

Usage: megatron_plans.py [--plans N] [--seed S] [--core VERSION]

The plans are drawn over presets of several kinds (dense, grouped-query, experts, latent attention with multi-token
prediction), with uneven splits, virtual stages, expert grids, sharding stages, recompute and placements.
"""

import argparse
import random
import sys
from dataclasses import replace

import real

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, Granularity, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.software import software
from costmodels.workload.counts import owned_parameters
from costmodels.workload.huggingface.config import from_config
from costmodels.workload.layers import layer_ops
from costmodels.workload.model import LayerKind, ModelSpec, MoeFfn
from costmodels.workload.presets import model
from hardware.errors import InputError
from planner.export.hosts import Site
from planner.export.launch import Export, Planned
from planner.export.megatron import export_megatron
from planner.ingest.megatron.layers_file import PATH, TEXT
from planner.plan_report import RankPlace
from planner.request import Framework
from planner.rules import check_layout
from planner.rules.table import NEWEST

MODELS = (
    "llama3_8b",
    "llama3_70b",
    "llama31_405b",
    "gpt3_175b",
    "gpt2_xl",
    "mistral_7b",
    "qwen25_32b",
    "qwen3_14b",
    "nemotron4_15b",
    "mixtral_8x22b",
    "qwen3_30b_a3b",
    "qwen3_235b_a22b",
    "qwen3_next_80b_a3b",
    "qwen35_27b",
    "qwen15_moe_a2_7b",
    "deepseek_v2_lite",
    "deepseek_v3",
    "kimi_k2",
    "glm45_air",
    "minimax_m2",
    "gpt_oss_20b",
    "nemotronh_8b",
    "nemotronh_47b",
    "nemotron3_nano",
    "nemotron3_super",
    "unlike layers",
)
UNLIKE = MODELS[-1]
PRECISIONS = ("bf16", "bf16", "bf16", "fp8", "fp8-cs", "mxfp8", "nvfp4", "fp16")
USER = ["--lr", "1e-4", "--train-iters", "10", "--tokenizer-type", "NullTokenizer", "--mock-data"]
Plan = tuple[ModelSpec, TrainingJob, Layout]
ATTEMPTS = 3000  # random layouts tried for one legal one


def unlike_model(rng: random.Random) -> ModelSpec:
    """A random model as an architecture search leaves one: layers of other widths, or without one or both parts."""
    heads = rng.choice((16, 32, 64))
    group, kept = rng.choice((2, 4, 8)), rng.choice((1.0, 0.8, 0.5))
    blocks = []
    for _ in range(rng.randint(12, 80)):
        attends, width = rng.random() < kept, rng.choice((0, 0.5, 1.0, 1.3125, 2.625, 5.25))
        attention = {"n_heads_in_group": group if attends else None, "no_op": not attends}
        blocks.append({"attention": attention, "ffn": {"ffn_mult": width or None, "no_op": not width}})
    blocks[0] = {"attention": {"n_heads_in_group": group}, "ffn": {"ffn_mult": 2.625}}
    config = {
        "model_type": "nemotron-nas",
        "hidden_size": 128 * heads,
        "num_attention_heads": heads,
        "num_hidden_layers": len(blocks),
        "vocab_size": 128256,
        "tie_word_embeddings": rng.random() < 0.2,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": rng.choice((8.0, 16.0))},
        "block_configs": blocks,
    }
    return from_config(config, name=UNLIKE, where="random")


def model_named(name: str, rng: random.Random) -> ModelSpec:
    """A preset, or a random model of unlike layers."""
    return unlike_model(rng) if name == UNLIKE else model(name)


def split_layers(rng: random.Random, layers: int, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage and chunk: equal where they can be and chance says so, else uneven by a few."""
    positions = pp * vpp
    counts = [layers // positions + (index < layers % positions) for index in range(positions)]
    if rng.random() < 0.6:
        for _ in range(rng.randint(1, 2 * pp)):
            giver, taker = rng.randrange(positions), rng.randrange(positions)
            if counts[giver] > 0:
                counts[giver] -= 1
                counts[taker] += 1
    return tuple(tuple(counts[stage::pp]) for stage in range(pp))


def random_recompute(rng: random.Random, spec: ModelSpec) -> tuple[Recompute, int]:
    """What layers recompute, and how many first layers of a chunk when it is whole layers (0: all)."""
    moe = any(isinstance(kind, LayerKind) and isinstance(kind.ffn, MoeFfn) for kind in spec.kinds())
    modules = ["core_attn", "layernorm", *(["moe_act", "moe"] if moe else ["mlp"])]
    kind = rng.choice(("none", "none", "selective", "full", "first"))
    if kind == "none":
        return Recompute(), 0
    if kind == "selective":
        chosen = tuple(rng.sample(modules, rng.randint(1, 2)))
        return Recompute(granularity=Granularity.SELECTIVE, modules=chosen), 0
    return FULL_RECOMPUTE, rng.randint(1, 3) if kind == "first" else 0


def stage_of(chunks: tuple[int, ...], plain: Strategy, recompute: Recompute, first: int) -> Stage:
    """A stage whose layers recompute all, or the first of each chunk."""
    told = replace(plain, recompute=recompute)
    runs = []
    for count in chunks:
        whole = min(first, count) if first else count
        runs += [StrategyRun(strategy=told, count=whole), StrategyRun(strategy=plain, count=count - whole)]
    kept = tuple(run for run in runs if run.count) or (runs[0],)
    return Stage(layers_per_chunk=chunks, strategies=kept)


def random_plan(rng: random.Random, spec: ModelSpec, job: TrainingJob, *, odd: bool = False) -> Layout:
    """One random layout; most are illegal, and of the odd ones nearly all."""
    tp, pp, cp = rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4, 8, 16, 3)), rng.choice((1, 1, 2, 4))
    dp, vpp = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 1, 2, 3, 4))
    if odd:
        tp, cp, pp = rng.choice((tp, 3, 5, 6, 16, 32)), rng.choice((cp, cp, 3, 8, 16)), rng.choice((pp, pp, 5, 7, 12))
    moe = any(isinstance(kind, LayerKind) and isinstance(kind.ffn, MoeFfn) for kind in spec.kinds())
    plain = Strategy(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=rng.choice((1, 2, 4, 8, 16, 32, *((3, 5, 12, 24) if odd else ()))) if moe else 1,
        etp=rng.choice((1, tp)) if moe else 1,
        sequence_parallel=tp > 1 and ((moe and not odd) or rng.random() < 0.8),
        zero=rng.choice((0, 1, 1, 1, 1, 2, 3)),
    )
    ranks = dp * cp
    if plain.zero == 1 and ranks % 2 == 0 and rng.random() < 0.2:
        plain = replace(plain, shard_group=ranks // 2)
    recompute, first = random_recompute(rng, spec)
    micro = rng.choice((1, 1, 2, 4))
    vpp = vpp if pp > 1 else 1
    stages = tuple(stage_of(chunks, plain, recompute, first) for chunks in split_layers(rng, spec.layers, pp, vpp))
    return Layout(
        stages=stages,
        micro_batch=micro,
        num_microbatches=max(1, job.global_batch // (micro * dp)),
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
    )


def random_job(rng: random.Random) -> TrainingJob:
    """A batch, a sequence, a precision and what the software overlaps."""
    tools = replace(
        software("megatron"),
        grad_overlap=rng.random() < 0.7,
        param_overlap=rng.random() < 0.7,
        tp_overlap=rng.random() < 0.2,
        fused_loss=rng.random() < 0.3,
        gradient_bytes=rng.choice((0.0, 2.0)),
    )
    numbers = precision(rng.choice(PRECISIONS), framework="megatron")
    return TrainingJob(
        global_batch=rng.choice((64, 128, 256, 512)),
        seq=rng.choice((1024, 4096, 8192)),
        precision=numbers,
        software=tools,
    )


def legal_plan(rng: random.Random, name: str, core: str) -> Plan | None:
    """A random plan that the rules allow; None when none is found, as where a version knows no such model."""
    spec = model_named(name, rng)
    for _ in range(ATTEMPTS):
        job = random_job(rng)
        if core == NEWEST[Framework.MEGATRON]:  # its parser refuses the fused loss
            job = replace(job, software=replace(job.software, fused_loss=False))
        if spec.learned_positions and job.seq > spec.learned_positions:
            continue
        layout = random_plan(rng, spec, job)
        if layout.gpus <= 1024 and not check_layout(layout, spec, job, framework=Framework.MEGATRON, version=core):
            return spec, job, layout
    print(f"left out: no legal plan for {name} in {ATTEMPTS} attempts")
    return None


def export_of(rng: random.Random, plan: Plan, core: str) -> Export | None:
    """Export a plan, half of the time with nodes and GPUs permuted; None when this version cannot say it."""
    spec, job, layout = plan
    per_node = next(size for size in (8, 6, 4, 3, 2, 1) if layout.gpus % size == 0)
    site = Site(hosts=tuple(f"host{index:03}" for index in range(layout.gpus // per_node)), gpus_per_node=per_node)
    placement = []
    if rng.random() < 0.5:
        hosts = rng.sample(site.hosts, len(site.hosts))
        for node, host in enumerate(hosts):
            gpus = rng.sample(range(per_node), per_node)
            placement += [RankPlace(rank=node * per_node + i, host=host, gpu=gpu) for i, gpu in enumerate(gpus)]
    try:
        return export_megatron(
            Planned(model=spec, job=job, layout=layout, site=site, placement=placement, version=core)
        )
    except InputError as error:
        if core == NEWEST[Framework.MEGATRON]:
            raise
        print(f"left out: {error}")
        return None


def parameters_of(spec: ModelSpec, layout: Layout) -> list[list[int]]:
    """Parameters of every layer of unlike sizes on a rank of each stage: norms whole, the others over tp."""
    if not spec.unlike_layers:
        return []
    kinds, table = iter(spec.layer_kinds()), []
    for stage in layout.stages:
        row = []
        for _ in range(stage.layers):
            kind = next(kinds)
            whole = owned_parameters(layer_ops(kind, spec))
            row.append((whole - kind.norm_parameters) // layout.first.tp + kind.norm_parameters)
        table.append(row)
    return table


def words_of(export: Export) -> list[str]:
    """Arguments of an export with those that its program adds: the text of a file stands in the file's place."""
    return [*export.arguments, *file_words(export.files), *USER]


def file_words(files: tuple[tuple[str, str], ...]) -> list[str]:
    """Arguments that name the file of unlike layers, with its text."""
    return [word for name, text in files for word in (PATH, name, TEXT, text)]


def groups_of(export: Export) -> dict[str, list[list[int]]]:
    """Ranks that share all but one coordinate, by that coordinate, as the rank table states them."""
    axes = {"tp": ("pp", "dp", "cp"), "cp": ("pp", "dp", "tp"), "dp": ("pp", "cp", "tp"), "pp": ("dp", "cp", "tp")}
    if "--num-experts" in export.arguments:
        axes |= {"ep": ("pp", "edp", "etp"), "edp": ("pp", "ep", "etp")}
    found: dict[str, list[list[int]]] = {}
    for axis, others in axes.items():
        groups: dict[tuple[int, ...], list[int]] = {}
        for row in export.ranks:
            groups.setdefault(tuple(getattr(row, other) for other in others), []).append(row.rank)
        found[axis] = sorted(groups.values())
    return found


def main() -> int:
    """Export plans, ask the real parser, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=int, default=3 * len(MODELS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", default=NEWEST[Framework.MEGATRON])
    options = parser.parse_args()
    rng = random.Random(options.seed)
    drawn = [legal_plan(rng, MODELS[index % len(MODELS)], options.core) for index in range(options.plans)]
    tried = [(plan, export_of(rng, plan, options.core)) for plan in drawn if plan]
    plans = [plan for plan, export in tried if export]
    exports = [export for _, export in tried if export]
    cases = [
        {
            "name": plan[0].name,
            "world_size": plan[2].gpus,
            "args": words_of(export),
            "environment": {name: value for name, value in export.environment if value},
            "groups": True,
        }
        for plan, export in zip(plans, exports, strict=True)
    ]
    distinct = len({tuple(export.arguments) for export in exports})
    failures = 0
    for (spec, _, layout), export, answer in zip(plans, exports, real.answers(cases, build=True), strict=True):
        wanted = [list(chunks) for chunks in layout.layers_per_stage]
        problem = answer["error"] if not answer["accepted"] else ""
        if not problem and answer["layers"] != wanted:
            problem = f"layers {answer['layers']}, planned {wanted}"
        if not problem and answer["parameters"] != parameters_of(spec, layout):
            problem = f"parameters {answer['parameters']}, planned {parameters_of(spec, layout)}"
        if not problem and answer["groups"] != groups_of(export):
            problem = "process groups differ from the rank table"
        if problem:
            failures += 1
            print(f"{spec.name} on {layout.gpus} GPUs: {problem}\n{export.argument_text}\n")
    uneven = sum(len({count for stage in plan[2].layers_per_stage for count in stage}) > 1 for plan in plans)
    told = f"{len(plans)} plans of {len(MODELS)} models, {distinct} different, {uneven} uneven"
    print(f"{told}: {failures} refused or built otherwise")
    missing = options.core == NEWEST[Framework.MEGATRON] and len(plans) < options.plans
    return int(failures > 0 or missing or distinct < min(20, options.plans))


if __name__ == "__main__":
    sys.exit(main())

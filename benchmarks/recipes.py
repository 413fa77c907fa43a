"""Judge the recipes that Megatron-Bridge ships: legal, fits on its own machine, beside the planner's own best layout.

    python benchmarks/recipes.py RECIPES.json [--out docs/recipes.md] [--only TEXT] [--seconds 20] [--workers 2]

RECIPES.json holds, under ``recipes``, the settings of recipes as the package builds them: name, Hugging Face model,
degrees, batch, split, recompute, sharding. A recipe's name states its machine, GPUs and number format. Each is read as
the overrides that would set it, by the reader of ``plan check``; the recipe and the planner's layout are priced with
one model of Megatron-Bridge. What a reader must know of rows that stand out is in ``recipes_notes.toml``, with the
settings of some recipes that the file does not hold.
"""

import argparse
import ast
import json
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodels.pricing import Constants
from costmodels.results import LayoutCost, Verdict
from costmodels.workload import presets
from costmodels.workload.architecture import Architecture
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.ingest.bridge.mixed_precision import named_configurations, precision_override
from planner.ingest.judge import judge_launch, model_of_recipe
from planner.ingest.judged import JudgedLaunch, LaunchInput
from planner.ingest.launch_text import LaunchText
from planner.ingest.settings_files import layout_of_lists
from planner.launches.check import request_of_launch
from planner.planning import estimate, plan
from planner.report.words import gib, layout_text, recompute_text
from planner.request import Framework, PlanRequest
from planner.rules.table import NEWEST

MACHINES = {
    "h100": "dgx-h100",
    "b200": "dgx-b200",
    "b300": "dgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "vr200": "vr200-nvl72",
    "r100": "vr200-nvl72",
}
FORMATS = {
    "bf16": "bf16_mixed",
    "fp8cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "fp8mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
KEYS = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "sp": "model.sequence_parallel",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "vpp_group": "model.microbatch_group_size_per_vp_stage",
    "layout": "model.pipeline_model_parallel_layout",
    "first": "model.num_layers_in_first_pipeline_stage",
    "last": "model.num_layers_in_last_pipeline_stage",
    "acc_emb": "model.account_for_embedding_in_pipeline_split",
    "acc_loss": "model.account_for_loss_in_pipeline_split",
    "mbs": "train.micro_batch_size",
    "gbs": "train.global_batch_size",
    "seq": "model.seq_length",
    "dataset_seq": "dataset.seq_length",
    "recompute": "model.recompute_granularity",
    "recompute_method": "model.recompute_method",
    "recompute_layers": "model.recompute_num_layers",
    "recompute_modules": "model.recompute_modules",
    "distopt": "ddp.use_distributed_optimizer",
    "fsdp": "ddp.use_megatron_fsdp",
    "dispatcher": "model.moe_token_dispatcher_type",
    "ep_overlap": "model.overlap_moe_expert_parallel_comm",
    "cpu_offloading_num_layers": "model.cpu_offloading_num_layers",
    "offloading": "model.fine_grained_activation_offloading",
    "offload_modules": "model.offload_modules",
    "optimizer": "optimizer.optimizer",
    "moments": "optimizer.exp_avg_dtype",
    "second_moments": "optimizer.exp_avg_sq_dtype",
}
NAMED = re.compile(r"_(?P<gpus>\d+)gpu_(?P<machine>[a-z]+\d+)_(?P<format>[a-z0-9]+)")
COLUMNS = (
    "recipe",
    "layout",
    "mb",
    "recompute",
    "legal",
    "step s",
    "GiB",
    "verdict",
    "planner's own",
    "step s",
    "ratio",
)
COLUMNS += ("differences",)
LEVEL = 1.005  # closer prices are equal


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe: its name, its model, machine, GPUs, number format, and the overrides that set it."""

    name: str
    model: ModelSpec | None
    machine: str
    gpus: int
    overrides: tuple[str, ...]

    @property
    def cluster(self) -> str:
        """Catalogue name of its machine."""
        return MACHINES.get(self.machine, self.machine)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the planner says of a recipe; ``trouble`` says why it says nothing."""

    recipe: Recipe
    judged: JudgedLaunch | None = None
    cost: LayoutCost | None = None
    best: tuple[str, LayoutCost] | None = None
    differences: tuple[str, ...] = ()
    trouble: str = ""
    request: PlanRequest | None = field(default=None, compare=False, repr=False)

    @property
    def ratio(self) -> float:
        """Step time of the planner's own layout over that of the recipe; 0.0 when one is missing."""
        return self.best[1].step.total_s / self.cost.step.total_s if self.best and self.cost else 0.0


def overrides_of(row: Mapping[str, Any], number_format: str) -> tuple[str, ...]:
    """Overrides that set what a row states; settings that only mean something together are left out together."""
    words = []
    for name, key in KEYS.items():
        value = row.get(name)
        if value in (None, [], "None", ""):
            continue
        if name in ("etp", "ep", "dispatcher", "ep_overlap") and row.get("ep") in (None, 1) and name != "etp":
            continue
        if name == "vpp" and (row.get("layout") or value == 1):
            continue
        if name == "recompute_modules" and row.get("recompute") != "selective":
            continue
        words.append(f"{key}={_text(name, value)}")
    if row.get("fsdp"):
        words += ["checkpoint.ckpt_format=fsdp_dtensor", "model.gradient_accumulation_fusion=false"]
        words += ["ddp.data_parallel_sharding_strategy=optim_grads_params"]
    if row.get("moments"):
        words.append("optimizer.use_precision_aware_optimizer=true")
    named = str(row.get("mp") or "")
    return (*words, f"mixed_precision={named if named in named_configurations() else _built(number_format, row)}")


def _built(number_format: str, row: Mapping[str, Any]) -> str:
    """Mixed precision that a recipe builds itself: performance recipes sum gradients in bf16."""
    name = FORMATS.get(number_format, number_format)
    reduced = not row.get("fp32_gradients")
    return precision_override(name, bf16_gradients=reduced, wide_weights=False).partition("=")[2]


def _text(name: str, value: object) -> str:
    if name == "layout":
        stages = ast.literal_eval(value) if isinstance(value, str) and value.startswith("[") else value
        return layout_of_lists(stages) if isinstance(stages, list) else str(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(value)}]" if isinstance(value, list) else str(value)


def recipes_in(path: Path, notes: Mapping[str, Any]) -> Iterator[Recipe]:
    """Read the file of recipes, with the settings that the notes add."""
    for stated in json.loads(path.read_text(encoding="utf-8"))["recipes"]:
        name = str(stated["recipe"]).rpartition(".")[2]
        row = dict(stated)
        for entry in notes["setting"]:
            if re.search(entry["recipes"], name):
                row = {**{key: value for key, value in entry.items() if key != "recipes"}, **row}
        found = NAMED.search(name)
        machine = found["machine"] if found else next((m for m in MACHINES if f".{m}." in row["recipe"]), "h100")
        grid = [int(row[key] or 1) for key in ("tp", "pp", "cp", "ep", "etp")]
        least = max(grid[0] * grid[1] * grid[2], grid[1] * grid[3] * grid[4])
        yield Recipe(
            name=name,
            model=_model(row, name) or _stated_model(name, notes),
            machine=machine,
            gpus=int(found["gpus"]) if found else max(8, least),
            overrides=overrides_of(row, found["format"] if found else "bf16"),
        )


@lru_cache(maxsize=128)
def _named(name: str) -> ModelSpec | None:
    return presets.find(name)


def _model(row: Mapping[str, Any], name: str) -> ModelSpec | None:
    """The model: by its Hugging Face name or the recipe's own; None when its layers are not the recipe's."""
    found = (_named(str(row["hf"]).rpartition("/")[2]) if row.get("hf") else None) or model_of_recipe(name)
    layers = int(row.get("num_layers") or 0)
    stands_in = layers == 8  # the settings were read with a dummy of 8 layers where no configuration was at hand
    return found if found is None or stands_in or layers in (0, found.layers) else None


def _stated_model(name: str, notes: Mapping[str, Any]) -> ModelSpec | None:
    """The model that the notes state for a recipe that names none."""
    found = next((entry for entry in notes["model"] if re.search(entry["recipes"], name)), None)
    return Architecture(**found["transformer"]).build(name) if found else None


def judged_of(recipe: Recipe) -> JudgedLaunch:
    """Judge a recipe by the rules of Megatron-Bridge."""
    return judge_launch(
        LaunchInput(
            text=LaunchText(arguments=recipe.overrides),
            framework=Framework.BRIDGE,
            version=NEWEST[Framework.BRIDGE],
            world=recipe.gpus,
            model=recipe.model,
        )
    )


def answered(recipe: Recipe, found: dict[tuple[object, ...], Any], seconds: float) -> Answer:
    """Judge and price a recipe; ``found`` keeps the searches that other recipes share."""
    if recipe.model is None:
        return Answer(recipe=recipe, trouble="model not known by name")
    try:
        judged = judged_of(recipe)
        request = request_of_launch(judged, recipe.cluster)
    except InputError as error:
        return Answer(recipe=recipe, trouble=str(error))
    if judged.layout is None or request is None:
        return Answer(recipe=recipe, judged=judged)
    try:
        cost = estimate(request, judged.layout).cost
    except InputError as error:
        return Answer(recipe=recipe, judged=judged, trouble=str(error))
    answer = Answer(recipe=recipe, judged=judged, cost=cost, request=request)
    return _with_best(answer, request, found, seconds) if seconds else answer


def answered_all(recipes: Sequence[Recipe], seconds: float) -> list[Answer]:
    """Answer recipes that share searches."""
    found: dict[tuple[object, ...], Any] = {}
    return [answered(recipe, found, seconds) for recipe in recipes]


def _with_best(answer: Answer, request: PlanRequest, found: dict[tuple[object, ...], Any], seconds: float) -> Answer:
    risky = answer.cost is not None and answer.cost.heaviest.verdict is Verdict.RISKY
    key = (request.model.name, request.cluster.name, request.job, risky)
    if key not in found:
        try:
            limits = to_the_limit(Constants()) if risky else None
            found[key] = plan(replace(request, top=1, time_limit_s=seconds), limits).layouts[:1]
        except InputError:
            found[key] = ()
    if not found[key] or answer.judged is None or answer.judged.layout is None or answer.cost is None:
        return answer
    if request.cluster.gpus != answer.judged.world:
        return answer  # the search may use a whole node, the recipe does not
    best = found[key][0]
    mine, theirs = best.layout, answer.judged.layout
    differences = [
        f"{name} {old} -> {new}"
        for name, old, new in (
            ("layout", layout_text(theirs), layout_text(mine)),
            ("micro-batch", theirs.micro_batch, mine.micro_batch),
            ("chunks", theirs.vpp, mine.vpp),
            ("recompute", recompute_text(theirs), recompute_text(mine)),
            ("layers", theirs.layers_per_stage, mine.layers_per_stage),
        )
        if old != new and name != "layers"
    ]
    if not differences and theirs.layers_per_stage != mine.layers_per_stage:
        differences = ["other layers per stage"]
    return replace(answer, best=(layout_text(mine), best.cost), differences=tuple(differences))


def to_the_limit(constants: Constants) -> Constants:
    """Constants with which a search keeps what fits at all, as a recipe that is risky itself does."""
    return replace(constants, memory=replace(constants.memory, risky_share=1.0))


def page(answers: Sequence[Answer], notes: Mapping[str, Any]) -> str:
    """Write the page."""
    judged = [answer for answer in answers if answer.judged is not None]
    legal = [answer for answer in judged if answer.judged and answer.judged.legal]
    priced = [answer for answer in judged if answer.cost is not None]
    verdicts = Counter(answer.cost.heaviest.verdict.value for answer in priced if answer.cost)
    slower = [answer for answer in priced if answer.ratio > LEVEL and _fits(answer)]
    gains = sorted(answer.ratio for answer in priced if answer.ratio and _fits(answer))
    middle = f"{gains[len(gains) // 2]:.2f}" if gains else "-"
    lines = [
        "# Recipes of Megatron-Bridge",
        "",
        "`python benchmarks/recipes.py RECIPES.json --out docs/recipes.md` writes this page: every pre-training recipe",
        "that Megatron-Bridge 0.6.2 ships, judged by the planner's rules, priced on its own machine, and set beside",
        "the planner's own layout for the same model, machine, batch and number format. Both prices are predictions of",
        "one model; recipes were tuned on the machines, with kernels and overlaps that it knows only in part. Where a",
        "recipe is itself at the limit of memory (risky), the planner's own layout may be so too.",
        "",
        f"- {len(answers)} recipes; {len(judged)} judged, {len(answers) - len(judged)} not (their reasons are below).",
        f"- {len(legal)} of {len(judged)} are legal.",
        f"- On their own machines {verdicts['fits']} fit, {verdicts['risky']} are risky, {verdicts['oom']} do not fit.",
        f"- The planner's layout is at least as fast for {len(gains) - len(slower)} of {len(gains)} that fit.",
        f"- Its step takes {middle} of the recipe's (median).",
        "",
        *_note_lines(answers, notes),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
        *(_row(answer) for answer in sorted(answers, key=lambda answer: answer.recipe.name)),
    ]
    return "\n".join(lines) + "\n"


def _fits(answer: Answer) -> bool:
    return answer.cost is not None and answer.cost.heaviest.verdict is not Verdict.OOM


def _note_lines(answers: Sequence[Answer], notes: Mapping[str, Any]) -> list[str]:
    """What stands out, each with its reason; a row without a reason says so."""
    standing = []
    for answer in answers:
        what, kind = answer.trouble, ""
        if answer.judged is not None and not answer.judged.legal:
            what = "; ".join(violation.message for violation in answer.judged.violations)
        elif answer.cost is not None and not _fits(answer):
            use = answer.cost.heaviest
            what = f"does not fit: {gib(use.total_bytes):.1f} of {gib(use.usable_bytes):.1f} GiB on stage {use.stage}"
        elif answer.ratio > LEVEL and answer.cost is not None:
            kind = f"slower than a {answer.cost.heaviest.verdict.value} one"
            what = f"the planner's own layout is {100 * (answer.ratio - 1):.1f} % slower"
        if what:
            name = answer.recipe.name
            of_kind = (note for note in notes["note"] if note.get("kind", "") == kind)
            why = next((note["why"] for note in of_kind if re.search(note["recipes"], name)), "not explained")
            standing.append(f"- `{name}`: {what}. {why}")
    return ["## What stands out", "", *standing, "", "## All recipes"] if standing else ["## All recipes"]


def _row(answer: Answer) -> str:
    judged, cost = answer.judged, answer.cost
    cells = [answer.recipe.name.removesuffix("_config").replace("_pretrain", "")]
    if judged is None or judged.layout is None:
        cells += ["", "", "", "no" if judged else answer.trouble.split(";")[0], *[""] * 7]
        return f"| {' | '.join(cells)} |"
    layout = judged.layout
    cells += [layout_text(layout), str(layout.micro_batch), recompute_text(layout), "yes" if judged.legal else "no"]
    if cost is None:
        return f"| {' | '.join([*cells, *[''] * 7])} |"
    use = cost.heaviest
    cells += [
        f"{cost.step.total_s:.3f}",
        f"{gib(use.total_bytes):.0f} of {gib(use.usable_bytes):.0f}",
        use.verdict.value,
    ]
    if answer.best:
        name, best = answer.best
        cells += [name, f"{best.step.total_s:.3f}", f"{answer.ratio:.2f}", "; ".join(answer.differences) or "none"]
    return f"| {' | '.join([*cells, *[''] * (12 - len(cells))])} |"


def main() -> int:
    """Judge the recipes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="recipes whose names match this pattern")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of a search")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-search", action="store_true", help="judge and price only")
    options = parser.parse_args()
    notes = tomllib.loads(Path(__file__).with_name("recipes_notes.toml").read_text(encoding="utf-8"))
    chosen = [recipe for recipe in recipes_in(options.recipes, notes) if re.search(options.only, recipe.name)]
    groups: dict[tuple[object, ...], list[Recipe]] = {}
    for recipe in chosen:  # those that share a search go together
        groups.setdefault((recipe.model and recipe.model.name, recipe.cluster, recipe.gpus), []).append(recipe)
    seconds = 0.0 if options.no_search else options.seconds
    answers, started = [], time.monotonic()
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        for part in pool.map(answered_all, groups.values(), [seconds] * len(groups)):
            answers += part
            sys.stderr.write(f"{len(answers)} of {len(chosen)}, {time.monotonic() - started:.0f} s\n")
    text = page(answers, notes)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

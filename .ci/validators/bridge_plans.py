"""Random requests to Megatron-Bridge: its own override parser, validation and Megatron-core must agree with the rules.

Usage: bridge_plans.py [--requests N] [--seed S]

As megatron_requests.py, with overrides instead of arguments. Misspelt keys must be refused, and the fields by which
``plan check`` tells unknown keys must be those of the package.
"""

import json
import sys
import tomllib
from functools import partial
from pathlib import Path

import real
from megatron_requests import compared, differing_formats, drawn_requests, options_of, request_of

from costmodels.layout import Layout, Strategy
from costmodels.workload.model import ModelSpec
from planner.export.megatron_hybrid import is_hybrid, pattern_arguments
from planner.export.megatron_model import model_arguments
from planner.ingest.bridge.mixed_precision import named_configurations
from planner.ingest.plain_layout import uniform_stages
from planner.request import Framework
from planner.rules.table import CORE

ADAPTED = ("++peft.dim=16", "++peft.target_modules=[linear_qkv,linear_proj]")
FIELDS = Path(__file__).parents[2] / "planner" / "ingest" / "bridge" / "fields.toml"


def differing_fields() -> int:
    """Sections whose fields the project's table does not have."""
    known = {name: set(words.split()) for name, words in tomllib.loads(FIELDS.read_text(encoding="utf-8")).items()}
    real_fields = json.loads(real.asked("bridge_harness.py", "--fields"))
    lacking = {name: sorted(set(names) - known[name]) for name, names in real_fields.items()}
    lacking = {name: [word for word in words if not word.startswith("_")] for name, words in lacking.items()}
    wrong = {name: words for name, words in lacking.items() if words and name != "model"}  # other kinds of models too
    if wrong:
        print(f"fields that the table lacks: {wrong}")
    return len(wrong)


def recipe_words(spec: ModelSpec, seq: int) -> list[str]:
    """Megatron-LM's flags of the recipe's model; a hybrid's layers are not parted there."""
    words = list(model_arguments(spec, seq))
    if not is_hybrid(spec):
        return words
    whole = Layout(stages=uniform_stages([(spec.layers,)], Strategy()), micro_batch=1, num_microbatches=1)
    return [*words, *pattern_arguments(spec, whole, CORE[Framework.BRIDGE])]


def differing_names() -> int:
    """Named configurations of mixed precision that the project's table has otherwise."""
    asked = json.loads(real.asked("bridge_harness.py", "--named"))
    plain = {name: fields for name, fields in asked.items() if "-" not in name}
    known = named_configurations()
    wrong = [name for name in sorted({*plain, *known}) if plain.get(name) != known.get(name)]
    if wrong:
        print(f"configurations of mixed precision that differ: {', '.join(wrong)}")
    return len(wrong)


def main() -> int:
    """Ask the real package and print what differs."""
    options = options_of(__doc__, 50)
    requests = drawn_requests(options, partial(request_of, framework=Framework.BRIDGE))
    cases = [
        {
            "name": request.spec.name,
            "world_size": request.layout.gpus,
            "model": recipe_words(request.spec, request.job.seq),
            "overrides": list(request.words),
            "environment": request.environment,
        }
        for request in requests
    ]
    fine = [case for case, request in zip(cases, requests, strict=True) if not request.rules]
    adapted = [{**case, "adapted": True, "overrides": [*case["overrides"], *ADAPTED]} for case in fine[:3]]
    misspelt = [{**case, "overrides": [*case["overrides"], "model.context_paralel_size=2"]} for case in fine[:3]]
    answers = real.answers([*cases, *misspelt, *adapted], harness="bridge_harness.py")
    taken = sum(bool(answer["accepted"]) for answer in answers[len(cases) : -len(adapted)])
    if taken:
        print(f"{taken} launches with a misspelt key accepted")
    others = answers[-len(adapted) :]
    if any(answer.get("adapters") != {"dim": 16, "targets": ["linear_qkv", "linear_proj"]} for answer in others):
        print(f"adapters are built otherwise: {others}")
        taken += 1
    wrong = compared(requests, answers[: len(cases)], options.requests)
    wrong += differing_names() + differing_formats(requests, answers[: len(cases)])
    return int(bool(wrong + taken + differing_fields()))


if __name__ == "__main__":
    sys.exit(main())

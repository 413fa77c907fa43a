"""Random requests to Megatron-LM: what the rules allow must run as planned, what they refuse must be refused.

Usage: megatron_requests.py [--requests N] [--seed S]

Hypothesis draws models, machines, batches, precisions and degrees. A layout that the rules allow is exported, and the
real parser must accept the arguments and build exactly the planned layers. A layout that they refuse is written as
arguments without asking the rules, and the real parser must refuse it too, but for rules whose own table says that the
framework notices only in the first forward pass, or never.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import real
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from megatron_plans import ATTEMPTS, MODELS, UNLIKE, USER, file_words, model_named, random_job, random_plan

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.workload.model import ModelSpec
from hardware.catalog import cluster
from hardware.errors import InputError
from planner.export.bridge import export_bridge, overrides_of_arguments
from planner.export.hosts import Site, site_of
from planner.export.launch import Planned
from planner.export.megatron import export_megatron, run_arguments
from planner.export.megatron_layers import LAYERS_FILE, layers_text
from planner.export.megatron_model import model_arguments
from planner.export.nemo import export_nemo
from planner.request import Framework
from planner.rules import check_layout
from planner.rules.table import CORE, NEWEST

CLUSTERS = ("dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "p4d", "p5", "mi300x-8")
MOST_GPUS = 1024


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request: what is asked, whether the rules allow it, and its arguments."""

    spec: ModelSpec
    job: TrainingJob
    layout: Layout
    rules: tuple[str, ...]
    late: bool
    words: tuple[str, ...]
    environment: dict[str, str]


def drawn_requests(options: argparse.Namespace, make: Callable[[int, str, str, bool], Request | None]) -> list[Request]:
    """Draw ``options.requests`` requests with hypothesis, the same ones for a seed; half of them legal where any is."""
    found: list[Request] = []
    count: int = options.requests

    @seed(options.seed)
    @settings(
        max_examples=4 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        draw_seed=st.integers(0, 2**32 - 1),
        name=st.sampled_from(MODELS),
        machine=st.sampled_from(CLUSTERS),
        legal=st.booleans(),
    )
    def draw(draw_seed: int, name: str, machine: str, legal: bool) -> None:
        if len(found) < count:
            request = make(draw_seed, name, machine, legal)
            found.extend([request] if request else [])

    draw()
    return found


def request_of(
    draw_seed: int, name: str, machine: str, legal: bool, *, framework: Framework = Framework.MEGATRON
) -> Request | None:
    """A random layout of a model on a machine; legal or not, as wanted; None when none is found."""
    if name == UNLIKE and framework is not Framework.MEGATRON:  # recipes build such models, no override does
        return None
    rng = random.Random(draw_seed)
    spec = model_named(name, rng)
    for _ in range(ATTEMPTS):
        job = random_job(rng)
        if not legal and rng.random() < 0.3:
            job = replace(job, seq=rng.choice((1022, 4100, 6144, 32768)))
        layout = random_plan(rng, spec, job, odd=not legal and rng.random() < 0.7)
        if layout.gpus > MOST_GPUS or (spec.learned_positions and job.seq > spec.learned_positions):
            continue
        broken = check_layout(layout, spec, job, framework=framework)
        if bool(broken) == legal:
            continue
        try:
            words, environment = WORDS[framework](spec, job, layout, machine, legal)
        except InputError:  # what no arguments say cannot be asked
            continue
        return Request(
            spec=spec,
            job=job,
            layout=layout,
            rules=tuple(sorted({violation.rule for violation in broken})),
            late=not any(violation.refused_at_launch for violation in broken),
            words=words,
            environment=environment,
        )
    return None


def megatron_words(
    spec: ModelSpec, job: TrainingJob, layout: Layout, machine: str, legal: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment: exported where the rules allow the layout, else without asking them."""
    if legal:
        export = export_megatron(Planned(model=spec, job=job, layout=layout, site=site_on(machine, layout.gpus)))
        words = (*export.arguments, *file_words(export.files))
        return words, {name: value for name, value in export.environment if value}
    built = list(model_arguments(spec, job.seq))
    if spec.max_positions:  # the exporter would stretch the model's range of positions to the sequence
        built[built.index("--max-position-embeddings") + 1] = str(spec.max_positions)
    files = ((LAYERS_FILE, layers_text(spec)),) if spec.unlike_layers else ()
    words = (*built, *run_arguments(spec, job, layout, NEWEST[Framework.MEGATRON]), *file_words(files))
    return words, {} if layout.first.zero > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def site_on(machine: str, gpus: int) -> Site:
    """Hosts of a machine of the catalogue with so many GPUs."""
    per_node = cluster(f"{machine}:1").gpus
    return site_of(cluster(f"{machine}:{-(-gpus // per_node)}"), gpus, ())


def override_words(
    spec: ModelSpec, job: TrainingJob, layout: Layout, machine: str, legal: bool, *, framework: Framework
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Overrides: exported where the rules allow the layout, else without asking them."""
    if legal:
        planned = Planned(model=spec, job=job, layout=layout, site=site_on(machine, layout.gpus))
        export = EXPORTERS[framework](planned)
        return export.arguments, {name: value for name, value in export.environment if value}
    built = model_arguments(spec, job.seq)
    run = run_arguments(spec, job, layout, CORE[framework])
    words = overrides_of_arguments((*built, *run), built, job.precision.name, framework)
    return words, {} if layout.first.zero > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


EXPORTERS = {Framework.BRIDGE: export_bridge, Framework.NEMO: export_nemo}
WORDS = {
    Framework.MEGATRON: megatron_words,
    Framework.BRIDGE: partial(override_words, framework=Framework.BRIDGE),
    Framework.NEMO: partial(override_words, framework=Framework.NEMO),
}


def problem_of(request: Request, answer: dict[str, object]) -> str:
    """What differs between the rules and the real parser; empty when nothing does."""
    if not request.rules:
        if not answer["accepted"]:
            return f"allowed by the rules, refused: {answer['error']}"
        wanted = [list(chunks) for chunks in request.layout.layers_per_stage]
        return "" if answer["layers"] == wanted else f"layers {answer['layers']}, planned {wanted}"
    if answer["accepted"] and not request.late:
        return f"refused by {', '.join(request.rules)}, accepted"
    return ""


def differing_formats(requests: Sequence[Request], answers: Sequence[Mapping[str, Any]]) -> int:
    """Launches whose number formats are not those of their plans."""
    wrong = 0
    for request, answer in zip(requests, answers, strict=True):
        job, formats = request.job, answer.get("formats")
        width = job.software.gradient_bytes or job.precision.gradient_bytes
        if formats and (formats["fp32_gradients"], bool(formats["fp8"])) != (width == 4.0, job.precision.gemm == "fp8"):
            print(f"{request.spec.name} in {job.precision.name} with gradients of {width:g} bytes runs with {formats}")
            wrong += 1
    return wrong


def options_of(usage: str | None, requests: int) -> argparse.Namespace:
    """How many requests to draw, and from which seed."""
    parser = argparse.ArgumentParser(description=usage.splitlines()[0] if usage else "")
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    """Ask the real parser and print what differs."""
    options = options_of(__doc__, 500)
    requests = drawn_requests(options, request_of)
    cases = [
        {
            "name": request.spec.name,
            "world_size": request.layout.gpus,
            "args": [*request.words, *USER],
            "environment": request.environment,
        }
        for request in requests
    ]
    return compared(requests, real.answers(cases, build=True), options.requests)


def compared(requests: list[Request], answers: list[dict[str, object]], wanted: int) -> int:
    """Print what differs; the exit code says whether anything does."""
    failures, lacking = 0, Counter[str]()
    for request, answer in zip(requests, answers, strict=True):
        problem = problem_of(request, answer)
        if request.rules and request.late and answer["accepted"]:
            lacking.update(request.rules)
        if problem:
            failures += 1
            print(f"{request.spec.name} on {request.layout.gpus} GPUs: {problem}\n{' '.join(request.words)}\n")
    legal = sum(not request.rules for request in requests)
    rules = Counter(rule for request in requests for rule in request.rules)
    print(f"{len(requests)} requests, {legal} allowed, {len(requests) - legal} refused by {len(rules)} rules")
    print(f"rules that are noticed late or never, as their table says: {dict(lacking)}")
    print(f"{failures} differ")
    return int(failures > 0 or len(requests) < wanted)


if __name__ == "__main__":
    sys.exit(main())

"""Random launches of users: ``plan check`` must say of them what DeepSpeed, torchtitan and Megatron-Bridge say.

Usage: launch_fuzz.py [--deepspeed N] [--torchtitan N] [--bridge N] [--seed S]

Where both take a launch, its layers, batch and formats must be the same. Rules that a framework's checks on a CPU do
not see (their table says so, or they are the program's) are passed over. The settings of torchtitan's configurations
are compared with the project's table of them.
"""

import argparse
import json
import random
import sys
from collections import Counter
from typing import Any

import real
from random_launches import Case, bridge_case, deepspeed_case, titan_case

from costmodels.workload.presets import model
from planner.ingest.judge import judge_launch
from planner.ingest.judged import JudgedLaunch, LaunchInput
from planner.ingest.launch_text import LaunchText
from planner.ingest.torchtitan.models import registry
from planner.ingest.torchtitan.words import option_table
from planner.request import Framework
from planner.rules import Found
from planner.rules.table import resolve_version

UNSEEN = {
    Framework.DEEPSPEED: (Found.GROUPS, Found.BUILD, Found.FORWARD, Found.NEVER),
    Framework.TORCHTITAN: (Found.BUILD, Found.FORWARD, Found.NEVER),
    Framework.BRIDGE: (Found.FORWARD, Found.NEVER),
}
OF_THE_PROGRAM = ("heads-tp", "kv-heads-tp", "experts-ep", "ffn-tp")  # Megatron-DeepSpeed asks, not DeepSpeed
DRAWS = {Framework.DEEPSPEED: deepspeed_case, Framework.TORCHTITAN: titan_case, Framework.BRIDGE: bridge_case}
HARNESSES = {
    Framework.DEEPSPEED: "deepspeed_harness.py",
    Framework.TORCHTITAN: "titan_harness.py",
    Framework.BRIDGE: "bridge_harness.py",
}


def judged(case: Case, framework: Framework) -> JudgedLaunch:
    """What the project says of a case."""
    text = LaunchText(arguments=tuple(case["words"]), config=json.dumps(case["config"]) if "config" in case else "")
    named = None if framework is Framework.TORCHTITAN else model(case["name"])
    version = resolve_version(framework, None)
    given = LaunchInput(text=text, framework=framework, version=version, world=case["world_size"], model=named)
    return judge_launch(given)


def problem_of(told: JudgedLaunch, answer: dict[str, Any]) -> str:
    """What differs; empty when nothing does."""
    framework = told.framework
    own = OF_THE_PROGRAM if framework is Framework.DEEPSPEED else ()
    seen = [v for v in told.violations if v.found not in UNSEEN[framework] and v.rule not in own]
    if answer["accepted"] and seen:
        return f"taken, refused here: {'; '.join(violation.message for violation in seen)}"
    if not answer["accepted"]:
        return "" if told.violations else f"{answer['step']}: {answer['error'][-300:]}; legal here"
    if told.layout is None:
        return ""
    wanted, found = _built(told, answer)
    wrong = [f"{name} {wanted[name]}, really {value}" for name, value in found.items() if wanted[name] != value]
    return "; ".join(wrong)


def _built(told: JudgedLaunch, answer: dict[str, Any]) -> tuple[Case, Case]:
    """What the project and the framework make of a launch that both take."""
    layout = told.layout
    assert layout is not None
    layers = [list(chunks) for chunks in layout.layers_per_stage]
    batch = layout.micro_batch * layout.num_microbatches * layout.first.dp
    if told.framework is Framework.DEEPSPEED:
        formats = [told.precision == "bf16", told.precision == "fp16"]
        ours = {"layers": [sum(chunks) for chunks in layers], "batch": batch, "zero": layout.first.zero}
        ours |= {"formats": formats, "unread": list(told.unknown)}
        theirs = {"layers": answer["layers"], "batch": answer["batch"][0], "zero": answer["stage"]}
        return ours, {**theirs, "formats": answer["precision"], "unread": answer["unread"]}
    ours = {"layers": layers, "microbatches": layout.num_microbatches}
    theirs = {name: answer[name] for name in ours}
    if told.framework is Framework.TORCHTITAN and told.proposal is not None:
        launch = answer["launch"]
        ours |= {"batch": batch, "seq": told.proposal.seq, "dp": layout.first.dp}
        theirs |= {"batch": launch["batch"], "seq": launch["seq"], "dp": launch["replicate"] * launch["shard"]}
    return ours, theirs


def differing_settings() -> int:
    """Configurations of torchtitan whose settings the project's table has otherwise."""
    entries = [entry for entry in registry() if "precision" not in entry]  # others need packages for fp8
    pairs = [f"{entry['module']}:{entry['config']}" for entry in entries]
    answers = json.loads(real.asked("titan_harness.py", "--settings", *pairs))
    wrong = []
    for entry, answer in zip(entries, answers, strict=True):
        ours = {name: entry.get(name, {}) for name in answer["changed"]}
        for section in answer["changed"].values():
            if isinstance(section.get("components"), list):
                section["components"] = ",".join(section["components"])
        others = {name: sorted(fields) for name, fields in option_table()["other_sections"].items()}
        same = ours == answer["changed"] and f"{entry['checkpoint']}" == answer["checkpoint"].removesuffix("AC").lower()
        lacking = {name for name, fields in answer["others"].items() if set(fields) - set(others.get(name, []))}
        wrong += [entry["config"]] if not same or lacking else []
    if wrong:
        print(f"settings of configurations differ: {', '.join(wrong)}")
    return len(wrong)


def main() -> int:
    """Draw launches, ask both sides, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for framework, count in ((Framework.DEEPSPEED, 80), (Framework.TORCHTITAN, 6), (Framework.BRIDGE, 6)):
        parser.add_argument(f"--{framework.value}", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failures = differing_settings()
    for framework, draw in DRAWS.items():
        rng = random.Random(options.seed)
        cases = [draw(rng) for _ in range(getattr(options, framework.value))]
        both: Counter[bool] = Counter()
        for case, answer in zip(cases, real.answers(cases, harness=HARNESSES[framework]), strict=True):
            both[answer["accepted"]] += 1
            problem = problem_of(judged(case, framework), answer)
            if problem:
                failures += 1
                print(
                    f"{framework} on {case['world_size']} GPUs: {problem}\n{case.get('config', '')} {case['words']}\n"
                )
        print(f"{framework}: {both[True]} launches taken, {both[False]} refused")
    print(f"{failures} differ")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())

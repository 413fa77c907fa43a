"""Compares the project's rules with the real parser on random Megatron-LM argument lists, legal and illegal.

Half of the lists break no rule, the other half exactly one, every rule about equally often, so that each rule is asked
whether the real parser knows it, and each combination of legal flags whether a rule is missing.

Usage: megatron_fuzz.py [--cases N] [--seed S] [--core VERSION]
"""

import argparse
import json
import random
import sys
from collections import Counter

import real
from random_megatron import random_case
from wide_flags import widened

from planner.ingest.megatron.arguments import Launch, judge, parse_megatron
from planner.ingest.options import megatron_options
from planner.rules import Found

MOST_ATTEMPTS = 400  # random lists tried for each one kept


def chosen_cases(rng: random.Random, count: int, core: str) -> list[dict[str, object]]:
    """Random cases that break at most one rule, no rule more than its share."""
    legal: list[dict[str, object]] = []
    broken: list[dict[str, object]] = []
    share: Counter[str] = Counter()
    known = megatron_options(core)
    for attempt in range(count * MOST_ATTEMPTS):
        case = random_case(rng, f"random {attempt}")
        if attempt % 2:
            case["args"] = widened(rng, _words(case), known)
        verdict = judge(_launch(case, core))
        rules = {violation.rule for violation in verdict.violations}
        if not rules and len(legal) < count // 2:
            legal.append(case)
        elif len(rules) == 1:
            rule = rules.pop()
            if share[rule] < 1 + count // 60 and len(broken) < count - count // 2:
                share[rule] += 1
                broken.append(case)
        if len(legal) + len(broken) == count:
            break
    print(f"{len(legal)} cases break no rule, {len(broken)} break one of {len(share)} rules")
    return legal + broken


def _words(case: dict[str, object]) -> list[str]:
    words = case["args"]
    assert isinstance(words, list)
    return words


def _launch(case: dict[str, object], core: str) -> Launch:
    return parse_megatron(_words(case), world=int(str(case["world_size"])), version=core)


def main() -> int:
    """Compare verdicts and layers; print every case that differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", default="0.19")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    cases = chosen_cases(rng, options.cases, options.core)
    differing = accepted = 0
    for case, answer in zip(cases, real.answers(cases, build=True), strict=True):
        verdict = judge(_launch(case, options.core))
        layers = [list(chunks) for chunks in verdict.layers_per_stage or ()]
        accepted += bool(answer["accepted"])
        expected = all(violation.found is Found.FORWARD for violation in verdict.violations)
        if expected != answer["accepted"] or (answer["accepted"] and layers != answer["layers"]):
            differing += 1
            rules = [violation.rule for violation in verdict.violations if violation.refused_at_launch]
            print(json.dumps({"rules": rules, "built": layers, "real": answer, "case": case}))
    print(f"{len(cases)} cases, {accepted} accepted by the real parser, {differing} differ")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())

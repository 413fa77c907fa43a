"""Write what the planner says of public reports of users as a page.

    python benchmarks/cases.py > docs/cases.md

The reports are those of ``tests/reference/cases.toml`` and ``more_cases.toml``, which the tests hold.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from public_cases import Outcome, cases, outcomes, priced, seen_text

KINDS = {
    "a": "memory",
    "b": "speed",
    "c": "illegal combinations",
    "d": "uneven pipelines",
    "e": "networks",
    "f": "power, heat, slow parts",
    "g": "planning",
}
VERDICTS = ("right", "partly", "wrong", "not asked")
HEAD = """# User reports

What users asked or reported in public, and what the planner says. Written by `benchmarks/cases.py` from
`tests/reference/cases.toml` and `more_cases.toml` (h001 and on: what is right was written down before the planner was
asked); the tests hold the checks that agree and the launches. Variants are priced as
`plan validate` prices rows: predicted step and memory of the fullest GPU, in brackets what was measured. *right*:
every check agrees, or the answer is what the report found; *partly*: some do; *not asked*: the report does not say
enough, or what it asks is outside the planner. Reports about memory are also in [memory-cases.md](memory-cases.md).

The verdicts are today's. Of h070 to h127 the planner had 41 of 57 right when it was first asked: memory 12 of 20,
speed 4 of 5, illegal combinations 10 of 14, uneven pipelines 8 of 8, networks 2 of 3, power 1 of 3, planning 4 of 4;
of h201 to h257 (without h221 to h224) 36 of 52: memory 9 of 14, speed 4 of 6, illegal combinations and launches as
they are 6 of 14, uneven pipelines 4 of 4, networks 4 of 4, power 3 of 3, planning 6 of 7; of h301 to h337 16 of 37:
illegal combinations and launches as they are 8 of 28, uneven pipelines 3 of 4, planning 5 of 5. Of the 25 launches of
Megatron-Bridge's verification cards (h221 to h224) it could read none, and none of 99 that verl and NeMo RL ship
(h307, h313). Of h401 to h431 (without h429), tables with steps and peaks to be met within 10 to 25 %, 13 of 30: memory
10 of 20, speed 2 of 8, networks 1 of 2. Of h501 to h520, peaks to be met within 10 %, 7 of 16 and partly another 5
(four tell too little; figures were read before it was asked). Of h521 to h550 18 of 30: memory 3 of 5, speed 8 of 10,
illegal combinations 2 of 3, uneven pipelines 2 of 2, networks 1 of 7 (five are AWS's tables of mixtures over EFA: what
is faster was mostly right, absolute steps a third to two thirds short), power 0 of 1, planning 2 of 2. What was wrong
for a reason that holds for more than its report was mended.
"""


def verdict_of(case: Mapping[str, Any], found: Sequence[Outcome]) -> str:
    """The reader's verdict, or what the checks say."""
    if case.get("verdict") or not found:
        return str(case.get("verdict", "not asked"))
    agree = sum(outcome.agrees for outcome in found)
    return "right" if agree == len(found) else "partly" if agree else "wrong"


def line(case: Mapping[str, Any]) -> tuple[str, str, str]:
    """Kind, verdict and the row of the page of a case."""
    prices = priced(case)
    found = outcomes(case, prices)
    verdict = verdict_of(case, found)
    agree = sum(outcome.agrees for outcome in found)
    told = [case.get("answer", ""), "; ".join(seen_text(case, prices))]
    told += [f"Differs: {one.asks}{': ' + one.told if one.told else ''}." for one in found if not one.agrees]
    told += [one.told for one in found if one.agrees and one.asks.startswith("launch") and one.told][:1]
    checks = f" ({agree} of {len(found)} checks)" if found else ""
    text = " ".join(part for part in told if part).replace("|", "\\|")
    return case["kind"], verdict, f"| {case['id']} | {case['source']} | {case['asked']} | {text} | {verdict}{checks} |"


def main() -> None:
    """Print the page."""
    lines = [line(case) for case in cases()]
    print(HEAD)
    counts = Counter((kind, verdict) for kind, verdict, _ in lines)
    print(f"| kind | {' | '.join(VERDICTS)} |\n| --- | ---: | ---: | ---: | ---: |")
    for kind, name in KINDS.items():
        print(f"| {kind}: {name} | {' | '.join(str(counts[kind, verdict]) for verdict in VERDICTS)} |")
    print("\n| id | source | asked | the planner says | verdict |\n| --- | --- | --- | --- | --- |")
    print("\n".join(row for _, _, row in lines))


if __name__ == "__main__":
    main()

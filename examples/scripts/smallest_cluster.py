"""How many nodes does a training target need? The smallest cluster whose best layout reaches it.

Run: python examples/scripts/smallest_cluster.py llama3_70b dgx-h100 150000
"""

import sys

from planner.planning import plan
from planner.question import Question, request_of
from planner.report.words import layout_text

NODES = (1, 2, 4, 8, 16, 32, 64)


def main(model: str, preset: str, tokens_per_s: float) -> int:
    """Double the nodes until the target is met; return an exit code."""
    for nodes in NODES:
        request = request_of(Question(model=model, cluster=f"{preset}:{nodes}", global_batch=512, seq=8192, top=1))
        report = plan(request)
        if report.infeasible is not None:
            print(f"{nodes:3} nodes: {report.infeasible.constraint}")
            continue
        best = report.layouts[0]
        print(f"{nodes:3} nodes: {best.cost.tokens_per_s:9,.0f} tokens/s with {layout_text(best.layout)}")
        if best.cost.tokens_per_s >= tokens_per_s:
            return 0
    return 3


if __name__ == "__main__":
    MODEL, PRESET, TARGET = sys.argv[1:] if len(sys.argv) == 4 else ("llama3_70b", "dgx-h100", "50000")
    raise SystemExit(main(MODEL, PRESET, float(TARGET)))

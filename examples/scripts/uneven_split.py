"""What do a few layers more or less on a stage do to time and memory? One layout, several splits.

Run: python examples/scripts/uneven_split.py
"""

from planner.layouts.explicit import ExplicitLayout, layout_of
from planner.planning import estimate
from planner.question import Question, request_of

SPLITS = ("20,20,20,20", "21,21,19,19", "19,21,21,19", "18,21,21,20")


def main() -> None:
    """Print the step time and the memory of the heaviest stage for each split."""
    request = request_of(Question(model="llama3_70b", cluster="dgx-h100:8", global_batch=128, seq=8192))
    for split in SPLITS:
        layout = layout_of(request, ExplicitLayout(tp=8, layers_per_stage=split))
        cost = estimate(request, layout).cost
        heaviest = cost.heaviest
        print(
            f"{split}: {cost.step.total_s:.2f} s a step, {heaviest.total_bytes / 2**30:.1f} GiB on stage "
            f"{heaviest.stage} ({heaviest.verdict})"
        )


if __name__ == "__main__":
    main()

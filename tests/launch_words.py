"""What tests of launches begin with: the words of a small one of Megatron-LM, and the price of one alone."""

from planner.launches.check import LaunchReport, read_launch, request_of_launch
from planner.planning import estimate, over_islands
from planner.question import LaunchQuestion

SIZES = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
BATCH = "--micro-batch-size 1 --global-batch-size 32 --bf16 --vocab-size 32000"


def priced_launch(question: LaunchQuestion) -> LaunchReport:
    """The price of a launch, without the layouts near it and the faster ones that ``check_launch`` looks for."""
    judged = read_launch(question)
    request = request_of_launch(judged, question.cluster)
    assert request is not None
    assert judged.layout is not None
    ranked = estimate(request, over_islands(request, judged.layout))
    return LaunchReport(judged=judged, near=(), request=request, ranked=ranked, faster=())

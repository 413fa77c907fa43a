"""Both grids of ranks written down from the definition of their order, the slow and simple way."""

from costmodels.layout import RankOrder, Strategy
from costmodels.mesh import Axis


def shared_coordinates(
    strategy: Strategy, pp: int, axis: Axis, *, order: RankOrder = RankOrder.DP_INSIDE
) -> list[tuple[int, ...]]:
    """For each rank, the coordinates that members of one group share: tp-cp-ep-dp-pp, or stages before replicas."""
    shared = []
    for rank in range(strategy.gpus * pp):
        tp, rest = rank % strategy.tp, rank // strategy.tp
        cp, replica = rest % strategy.cp, rest // strategy.cp
        etp, rest = rank % strategy.etp, rank // strategy.etp
        ep, expert_replica = rest % strategy.ep, rest // strategy.ep
        if order is RankOrder.PP_INSIDE:
            stage, dp = replica % pp, replica // pp
            assert expert_replica % pp == stage  # Megatron-LM asks that both grids have the same pipelines
            edp = expert_replica // pp
        else:
            dp, stage = replica % strategy.dp, replica // strategy.dp
            edp = expert_replica % strategy.edp
        shared.append(
            {
                Axis.TP: (cp, dp, stage),
                Axis.CP: (tp, dp, stage),
                Axis.DP: (tp, cp, stage),
                Axis.DP_CP: (tp, stage),
                Axis.ETP: (ep, edp, stage),
                Axis.EP: (etp, edp, stage),
                Axis.ETP_EP: (edp, stage),
                Axis.EDP: (etp, ep, stage),
                Axis.PP: (tp, cp, dp),
            }[axis]
        )
    return shared

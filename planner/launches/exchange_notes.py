"""What a launch's exchange of tokens between experts needs of the machine that it is asked on."""

from costmodels.job import Dispatcher
from hardware.cluster import Cluster
from planner.ingest.judged import JudgedLaunch


def exchange_notes(judged: JudgedLaunch, cluster: Cluster) -> tuple[str, ...]:
    """Say where HybridEP's ranks are more than a scale-up domain of the machine joins.

    Parameters
    ----------
    judged : JudgedLaunch
        The launch.
    cluster : Cluster
        Where it would run.

    References
    ----------
    NVIDIA-NeMo/Megatron-Bridge, pull request 6043: recipes of ep 64 failed on B200 with errors of HybridEP's topology,
    and run with ep 8. deepseek-ai/DeepEP, branch hybrid-ep: ranks of several domains need a build with RDMA, and
    NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN says how many one domain has.
    """
    proposal = judged.proposal
    if proposal is None or judged.stated.fields.get("dispatcher") is not Dispatcher.HYBRIDEP:
        return ()
    ranks = proposal.ep * proposal.etp
    joined = min(island.node.scale_up.domain_gpus for island in cluster.islands)
    if ranks <= joined:
        return ()
    fails = f"HybridEP over {ranks} ranks, and the fast links of {cluster.name} join {joined}: recipes have failed so"
    needs = f"a build with RDMA and NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN={joined}"
    return (f"{fails}; it needs {needs}, or ep x etp up to {joined}, or another dispatcher",)

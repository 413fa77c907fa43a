"""Time of collectives on placed groups: constants, fabrics, algorithms and token dispatchers."""

from costmodels.collectives.algorithms import (
    ALL_REDUCE_ALGORITHMS,
    COLLECTIVE_S,
    all_gather_s,
    all_reduce_algorithm,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    reduce_scatter_s,
    send_receive_s,
)
from costmodels.collectives.constants import NetworkConstants, default_network, network_of
from costmodels.collectives.leaving import leaving_bytes, sent_share

__all__ = [
    "ALL_REDUCE_ALGORITHMS",
    "COLLECTIVE_S",
    "NetworkConstants",
    "all_gather_s",
    "all_reduce_algorithm",
    "all_reduce_s",
    "all_to_all_s",
    "broadcast_s",
    "default_network",
    "leaving_bytes",
    "network_of",
    "reduce_scatter_s",
    "send_receive_s",
    "sent_share",
]

"""Time of collectives on placed groups: constants, fabrics, algorithms and token dispatchers."""

from costmodels.collectives.algorithms import (
    COLLECTIVE_S,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    reduce_scatter_s,
    send_receive_s,
)
from costmodels.collectives.constants import NetworkConstants, default_network, network_of

__all__ = [
    "COLLECTIVE_S",
    "NetworkConstants",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "broadcast_s",
    "default_network",
    "network_of",
    "reduce_scatter_s",
    "send_receive_s",
]

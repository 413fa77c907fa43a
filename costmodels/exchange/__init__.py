"""What the ranks of a layout exchange, in seconds and bytes: per part of the model and micro-batch, and per step.

Durations are those of the transfers alone. What of them hides behind compute is decided by the caller.
"""

from costmodels.exchange.boundary import Boundaries, boundary_bytes, boundary_exchange, tied_embedding_s
from costmodels.exchange.layer import LayerExchange, layer_exchange, tensor_calls
from costmodels.exchange.placed import PlacedTable
from costmodels.exchange.states import StateExchange, state_exchange

__all__ = [
    "Boundaries",
    "LayerExchange",
    "PlacedTable",
    "StateExchange",
    "boundary_bytes",
    "boundary_exchange",
    "layer_exchange",
    "state_exchange",
    "tensor_calls",
    "tied_embedding_s",
]

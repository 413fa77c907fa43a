"""Constants of the memory model; values, sources and ranges stand in ``constants.toml``."""

from dataclasses import dataclass, fields
from functools import lru_cache

from hardware.package_table import package_table


@dataclass(frozen=True, kw_only=True)
class MemoryConstants:
    """Numbers that no equation gives.

    Attributes
    ----------
    context_bytes : float
        Memory of a process outside the framework's allocator: driver context, loaded kernels.
    group_bytes : float
        Buffers of one communicator with more than one rank, outside the allocator.
    activation_scale : float
        Activations and what comes and goes while layers run, over what the equations give.
    workspace_bytes : float
        Workspaces that the libraries hold inside the allocator.
    loss_bytes_per_logit : float
        While the loss runs, per logit of the rank: the logits and what the loss makes of them, separate kernels.
    fused_loss_bytes_per_logit : float
        The same with a fused loss.
    gathered_logit_bytes : float
        Further bytes per logit where a loss that is not parallel gathers the logits over tp.
    gathered_weight_layers : float
        Layers whose whole weights are present at once under ZeRO-3: the running one and those fetched ahead.
    reserve_share : float
        What the caching allocator holds beyond live tensors, over the bytes that come and go.
    least_reserve_share : float
        The part of it that stays when memory runs out and the allocator returns its cache.
    layers_ahead : float
        Layers whose kernels the host has queued at most before the device runs them.
    waited_share : float
        Share of a predicted forward pass that its device waits for the host, up to which the device counts as behind.
    risky_share : float
        Use over usable memory from which a verdict turns from fits to risky.
    """

    context_bytes: float
    group_bytes: float
    activation_scale: float
    workspace_bytes: float
    loss_bytes_per_logit: float
    fused_loss_bytes_per_logit: float
    gathered_logit_bytes: float
    gathered_weight_layers: float
    reserve_share: float
    least_reserve_share: float
    layers_ahead: float
    waited_share: float
    risky_share: float


@lru_cache(maxsize=1)
def default_memory() -> MemoryConstants:
    """Return the constants of ``constants.toml``."""
    table = package_table("costmodels.memory", "constants.toml")
    return MemoryConstants(**{field.name: float(table[field.name]["value"]) for field in fields(MemoryConstants)})

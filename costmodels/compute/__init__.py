"""What computing costs: ops of a layer, optimizer steps, and the kernels below them, priced by shape.

``times_of_ops`` prices ops for a whole table of strategies; the modules below hold one kind of kernel each:
``gemm`` (dense and grouped products), ``attention``, ``traffic`` (memory-bound work), ``local`` (what one rank holds).
Equations, sources and errors: ``docs/compute.md``.
"""

from costmodels.compute.joined import input_gradients_s
from costmodels.compute.ops import OpTimes, dispatch_s, times_of_ops
from costmodels.compute.sharding import shard_copies_s
from costmodels.compute.traffic import accumulation_s, host_link_bytes_per_s, optimizer_step_s
from costmodels.efficiency import Efficiency, default_efficiency

__all__ = [
    "Efficiency",
    "OpTimes",
    "accumulation_s",
    "default_efficiency",
    "dispatch_s",
    "host_link_bytes_per_s",
    "input_gradients_s",
    "optimizer_step_s",
    "shard_copies_s",
    "times_of_ops",
]

"""Which framework can be told to keep states in host memory, and the software that it makes."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Software
from hardware.errors import InputError
from planner.choices import Framework, Offload

_KNOWN: Final = MappingProxyType(
    {
        Offload.OPTIMIZER: (Framework.MEGATRON, Framework.BRIDGE, Framework.DEEPSPEED, Framework.NONE),
        Offload.STATES: (Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.NONE),
    }
)
"""Who has a switch for it: ``--optimizer-cpu-offload``, ``offload_optimizer`` with ``offload_param``,
``training.enable_cpu_offload``."""


def with_offload(tools: Software, offload: Offload, framework: Framework) -> Software:
    """Return software with states in host memory as asked; as it is where nothing is asked.

    Raises
    ------
    InputError
        The framework has no switch for it.
    """
    if offload is Offload.NONE:
        return tools
    known = _KNOWN[offload]
    if framework not in known:
        raise InputError(f"--offload {offload} with framework {framework}", allowed=f"{', '.join(known)}")
    return replace(tools, optimizer_offload=offload is Offload.OPTIMIZER, state_offload=offload is Offload.STATES)


def said_offload(tools: Software) -> Offload:
    """Return what software keeps in host memory, in the words of a question."""
    if tools.state_offload:
        return Offload.STATES
    return Offload.OPTIMIZER if tools.optimizer_offload else Offload.NONE

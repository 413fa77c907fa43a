"""Which framework can be told to keep what in host memory, and the software that it makes."""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Software
from hardware.errors import InputError
from planner.choices import Framework, Offload

_KNOWN: Final = MappingProxyType(
    {
        "optimizer": (Framework.MEGATRON, Framework.BRIDGE, Framework.DEEPSPEED, Framework.NONE),
        "states": (Framework.TORCHTITAN, Framework.DEEPSPEED, Framework.NONE),
        "inputs": (Framework.DEEPSPEED, Framework.NONE),
    }
)
"""Who has a switch for it: ``--optimizer-cpu-offload``, ``offload_optimizer`` with ``offload_param``,
``training.enable_cpu_offload``; ``cpu_checkpointing`` of DeepSpeed's ``activation_checkpointing``. Megatron-core's
``cpu_offloading`` of layers goes without recompute."""
_KNOW_MODULES: Final = (Framework.MEGATRON, Framework.BRIDGE, Framework.NONE)
"""Who has ``--offload-modules``; NeMo 2's core, 0.15, has not."""
_CORE: Final = "core_attn"
_PROJECTION: Final = "attn_proj"
"""Module that Megatron-core 0.16 and later refuses to offload without ``core_attn`` (``transformer_config.py``)."""
ALL_LAYERS: Final = 1_000_000
"""More than a stage can have."""
FULL: Final = "full"


def with_offload(tools: Software, offload: Offload, framework: Framework) -> Software:
    """Return software with what is asked in host memory; as it is where nothing is asked.

    Raises
    ------
    InputError
        The framework has no switch for it, or refuses what is asked.
    """
    if tools.offload_modules and framework not in _KNOW_MODULES:
        raise InputError(f"--software offload_modules with framework {framework}", allowed=", ".join(_KNOW_MODULES))
    if _PROJECTION in tools.offload_modules and _CORE not in tools.offload_modules:
        said = "+".join(tools.offload_modules)
        together = "+".join((_CORE, *tools.offload_modules))
        raise InputError(
            f"--software offload_modules={said}: {_PROJECTION} without {_CORE}, whose output it reads",
            allowed=f"offload_modules={together}",
        )
    for part in sorted(offload.parts):
        if framework not in _KNOWN[part]:
            known = ", ".join(_KNOWN[part])
            raise InputError(f"--offload {offload} with framework {framework}", allowed=f"{known} for {part}")
    if offload is Offload.NONE:
        return tools
    return replace(
        tools,
        optimizer_offload="optimizer" in offload.parts,
        state_offload="states" in offload.parts,
        activation_offload_layers=ALL_LAYERS if "inputs" in offload.parts else tools.activation_offload_layers,
    )


def said_offload(tools: Software) -> Offload:
    """Return what software keeps in host memory, in the words of a question."""
    parts = ["states"] if tools.state_offload else ["optimizer"] if tools.optimizer_offload else []
    parts += ["inputs"] if keeps_inputs_there(tools) else []
    return Offload("+".join(parts) or "none")


def keeps_inputs_there(tools: Software) -> bool:
    """Whether inputs of all layers wait in host memory."""
    return tools.activation_offload_layers >= ALL_LAYERS


def recompute_under(tools: Software, recompute: str) -> str:
    """Return the recompute that is searched: full where inputs of layers, which it alone keeps, lie in host memory.

    Raises
    ------
    InputError
        Another kind is asked for.
    """
    if not keeps_inputs_there(tools):
        return recompute
    if recompute not in ("auto", FULL):
        raise InputError(f"--offload inputs with --recompute {recompute}", allowed=f"--recompute {FULL}")
    return FULL

"""Which recompute choices a search tries: those that no other choice beats in both memory and time, by module."""

from itertools import combinations
from typing import Final

from costmodels.layer_costs import part_ops
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Granularity, Recompute
from costmodels.pricing import Pricing
from costmodels.workload.op import SUBMODULES
from hardware.errors import InputError
from planner.request import Framework

SELECTIVE_MODULES: Final = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "moe", "shared_experts")
_FULL_OR_NONE: Final = (Framework.GALVATRON, Framework.DEEPSPEED)
MAX_MODULES: Final = 3


def recompute_options(wanted: str, framework: Framework, pricing: Pricing) -> tuple[Recompute, ...]:
    """Recompute choices for a model, in rising order of what they repeat.

    Parameters
    ----------
    wanted : str
        ``auto``, ``none``, ``full``, ``selective`` or ``selective:module+module``.
    framework : Framework
        Some know only all or nothing.
    pricing : Pricing
        Gives the model's modules and the software's kernels.

    Raises
    ------
    InputError
        An unknown choice or module.
    """
    if wanted == "none":
        return (NO_RECOMPUTE,)
    if wanted == "full":
        return (FULL_RECOMPUTE,)
    if wanted.startswith("selective:"):
        return (_named(wanted),)
    if wanted not in ("auto", "selective"):
        raise InputError(
            f"recompute {wanted!r} is not known", allowed="auto, none, full, selective or selective:module+module"
        )
    selective = () if framework in _FULL_OR_NONE else _selective(pricing)
    return selective if wanted == "selective" else (NO_RECOMPUTE, *selective, FULL_RECOMPUTE)


def _named(wanted: str) -> Recompute:
    modules = tuple(dict.fromkeys(wanted.removeprefix("selective:").split("+")))
    unknown = [module for module in modules if module not in SELECTIVE_MODULES]
    if unknown:
        raise InputError(f"recompute module {unknown[0]!r} is not known", allowed=", ".join(SELECTIVE_MODULES))
    return Recompute(granularity=Granularity.SELECTIVE, modules=modules)


def _selective(pricing: Pricing) -> tuple[Recompute, ...]:
    """Sets of up to three modules that the model has; a set with a module inside another one of it is left out.

    Core attention is offered only where the kernel keeps its matrix: a fused kernel recomputes it anyway.
    """
    present = {op.module for ops in part_ops(pricing) for op in ops}
    keeps_matrix = not pricing.job.software.flash_attention
    modules = [m for m in SELECTIVE_MODULES if m in present and (m != "core_attn" or keeps_matrix)]
    sets = [
        chosen
        for size in range(1, min(MAX_MODULES, len(modules)) + 1)
        for chosen in combinations(modules, size)
        if not any(inner in chosen for outer in chosen for inner in SUBMODULES.get(outer, ()))
    ]
    return tuple(Recompute(granularity=Granularity.SELECTIVE, modules=chosen) for chosen in sets)

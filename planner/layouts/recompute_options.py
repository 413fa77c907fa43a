"""Which recompute choices a search tries: those that no other choice beats in both memory and time, by module."""

from itertools import combinations
from types import MappingProxyType
from typing import Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, PER_OP, TITAN_SELECTIVE, Granularity, Recompute
from costmodels.part_ops import part_ops
from costmodels.pricing import Pricing
from costmodels.workload.op import SUBMODULES
from hardware.errors import InputError
from planner.layouts.recompute_words import MODULES, parse_recompute_words
from planner.request import Framework, PlanRequest

SELECTIVE_MODULES: Final = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe_act", "moe", "shared_experts", "mhc")
OWN_CHOICES: Final = MappingProxyType(
    {Framework.GALVATRON: (), Framework.DEEPSPEED: (), Framework.TORCHTITAN: (TITAN_SELECTIVE,)}
)
"""What frameworks without recompute by modules know between none and all."""
MAX_MODULES: Final = 3


def recompute_options(wanted: str, framework: Framework, pricing: Pricing) -> tuple[Recompute, ...]:
    """Recompute choices for a model, in rising order of what they repeat.

    Parameters
    ----------
    wanted : str
        ``auto``, or the words of :func:`planner.layouts.recompute_words.parse_recompute_words`.
    framework : Framework
        Some know only all or nothing, torchtitan its own list of ops as well.
    pricing : Pricing
        Gives the model's modules and the software's kernels.

    Raises
    ------
    InputError
        Words that are not understood, a number of layers, or what the framework has no option for.
    """
    if wanted == "auto":
        own = OWN_CHOICES.get(framework)
        selective = _selective(pricing) if own is None else own
        return (NO_RECOMPUTE, *selective, FULL_RECOMPUTE)
    recompute, layers = parse_recompute_words(wanted)
    if layers:
        raise InputError(
            f"--recompute {wanted!r} counts layers", allowed="auto, none, selective, full: a search counts"
        )
    own = OWN_CHOICES.get(framework)
    if own is not None and recompute not in (NO_RECOMPUTE, FULL_RECOMPUTE, *own):
        raise InputError(
            f"--recompute {wanted} with framework {framework}: it has no option for that",
            allowed=", ".join(("auto, none, full", *(f"selective:{'+'.join(one.modules)}" for one in own))),
        )
    check_modules(recompute, framework, pricing)
    return (recompute,)


def requested_options(request: PlanRequest, pricing: Pricing) -> tuple[Recompute, ...]:
    """Recompute choices of a request, see :func:`recompute_options`: those that its launcher can be told."""
    found = recompute_options(request.recompute, request.framework, pricing)
    return found if request.sayable.modules else tuple(one for one in found if one in (NO_RECOMPUTE, FULL_RECOMPUTE))


def check_modules(recompute: Recompute, framework: Framework, pricing: Pricing) -> None:
    """Raise InputError for a module that no layer of the model has, and for a list of ops that the framework lacks."""
    if recompute.per_op and framework not in (Framework.TORCHTITAN, Framework.NONE):
        raise InputError(
            f"--recompute {recompute} with framework {framework}", allowed="it with framework torchtitan or none"
        )
    present = {op.module for ops in part_ops(pricing) for op in ops}
    present |= {PER_OP} | {outer for outer, inner in SUBMODULES.items() if present & set(inner)}
    for module in recompute.modules:
        if module not in present:
            raise InputError(
                f"--recompute: {pricing.model.name} has no {module}",
                allowed=", ".join(name for name in MODULES if name in present),
            )


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

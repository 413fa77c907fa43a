"""Ways to save memory that a framework refuses beside a layout: which rule stands against each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from costmodels.layout import FULL_RECOMPUTE, Layout
from planner.layouts.build import with_strategies
from planner.request import Framework, PlanRequest
from planner.rules import broken_rules, check
from planner.rules.proposal import facts_of, proposals_of

MEGATRON_FAMILY: Final = (Framework.MEGATRON, Framework.BRIDGE, Framework.NEMO)
SWITCHED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "activations of a layer in host memory": {"cpu_offload_layers": 1},
        "full recompute with expert exchange beside compute": {
            "overlap_expert_comm": True,
            "recompute_full": True,
            "recompute_method": True,
            "recompute_layers": 1,
            "recompute_layers_given": True,
        },
    }
)
"""Savings that are switches of Megatron-LM, by what they are called."""
ZERO_STAGES: Final = (2, 3)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A saving, and the message of the rule that refuses it."""

    saving: str
    rule: str
    message: str


def refused_savings(request: PlanRequest, layout: Layout) -> tuple[Refused, ...]:
    """List what would save memory and is refused beside a layout.

    Parameters
    ----------
    request : PlanRequest
        Model, job and framework.
    layout : Layout
        Legal by itself; rules that it breaks anyway are left out.

    Returns
    -------
    tuple of Refused
        Offload and overlap of the Megatron family; sharding of gradients and weights, and full recompute, of all.
    """
    own = {found.rule for found in broken_rules(layout, request)}
    found: list[Refused] = []
    for words, switches in SWITCHED.items() if request.framework in MEGATRON_FAMILY else ():
        facts = facts_of(request.model)
        if "overlap_expert_comm" in switches and not facts.experts:
            continue
        first = proposals_of(
            layout, facts, global_batch=request.job.global_batch, seq=request.job.seq, world=layout.gpus
        )[0]
        changed = replace(first, switches=replace(first.switches, **switches))
        found += [
            Refused(saving=words, rule=broken.rule, message=broken.message)
            for broken in check(changed, request.framework)
            if broken.rule not in own
        ]
    others = {"full recompute": with_strategies(layout, recompute=FULL_RECOMPUTE)}
    if layout.first.dp * layout.first.cp > 1:
        others |= {f"ZeRO-{stage}": with_strategies(layout, zero=stage) for stage in ZERO_STAGES}
    for words, other in others.items():
        found += [
            Refused(saving=words, rule=broken.rule, message=broken.message)
            for broken in broken_rules(other, request)
            if broken.rule not in own
        ]
    return tuple(found)

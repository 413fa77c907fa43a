"""What a launch says of a model beside the one that the user names: positions count, other sizes are told."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from costmodels.workload.model import ModelSpec
from planner.ingest.megatron.arguments import Launch
from planner.ingest.options import whole
from planner.rules.proposal import ModelFacts, facts_of

_SIZES: Final = MappingProxyType(
    {
        "--hidden-size": "hidden",
        "--num-attention-heads": "heads",
        "--num-query-groups": "kv_heads",
        "--num-experts": "experts",
        "--moe-router-topk": "top_k",
        "--moe-ffn-hidden-size": "expert_ffn",
        "--mtp-num-layers": "mtp",
    }
)
_WIDTHS: Final = MappingProxyType(
    {"--ffn-hidden-size": "ffn", "--moe-shared-expert-intermediate-size": "shared_ffn"},
)


def with_positions(launch: Launch) -> Launch:
    """The launch with the positions that it states; without a word those of a named model, if it learns them."""
    model = launch.proposal.model
    positions = launch.arguments.number("--max-position-embeddings", model.max_positions)
    return replace(launch, proposal=replace(launch.proposal, model=replace(model, max_positions=positions)))


def with_sizes(facts: ModelFacts, flags: Sequence[str]) -> ModelFacts:
    """Sizes of a model with those that overrides state, which the framework builds; a part that it lacks stays away.

    Parameters
    ----------
    facts : ModelFacts
        Of the named model.
    flags : sequence of str
        Megatron-LM's flags that the overrides stand for.
    """
    said = dict(pairwise(flags))
    stated = {size: whole(said[flag]) or 0 for flag, size in (*_SIZES.items(), *_WIDTHS.items()) if flag in said}
    kept: dict[str, Any] = {size: number for size, number in stated.items() if number and getattr(facts, size)}
    if facts.latent:
        kept.pop("kv_heads", None)
    return replace(facts, **kept)


def unlike_notes(launch: Launch, named: ModelSpec | None) -> list[str]:
    """What the launch states of the model's sizes and the named model has otherwise."""
    if named is None:
        return []
    read, model = launch.arguments, facts_of(named)
    unlike = []
    for flag, size in _SIZES.items():
        has = getattr(model, size)
        if read.has(flag) and read.number(flag, has) != has and not (model.latent and size == "kv_heads"):
            unlike.append(f"{flag} {read.text(flag)} ({has} there)")
    return [f"the model is {named.name} as named, unlike the launch's {', '.join(unlike)}"] if unlike else []


def other_model_notes(named: ModelSpec | None, launch: ModelSpec | None) -> list[str]:
    """A remark where the user names another model than the launch does by a path, a recipe or a configuration."""
    if named is None or launch is None:
        return []
    one, other = facts_of(named), facts_of(launch)
    alike = all(getattr(one, size) == getattr(other, size) for size in ("layers", *_SIZES.values()))
    return [] if alike else [f"the model is {named.name} as named, and the launch's is {launch.name}"]

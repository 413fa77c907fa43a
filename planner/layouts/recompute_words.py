"""What users write for recompute: ``none``, ``selective:core_attn+moe_act``, ``full``, ``full:4``."""

from typing import Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, PER_OP, Granularity, Recompute
from hardware.errors import InputError
from planner.nearest import nearest

MODULES: Final = (
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "mlp_act",
    "moe",
    "moe_act",
    "shared_experts",
    "attn",
    "mamba",
    "gdn",
    "gdn_norm_out",
    "mhc",
    PER_OP,
)
"""Parts of a layer that may be recomputed alone; Megatron-LM's names where it has them; or torchtitan's list of ops."""

_MOST_DIGITS: Final = 9
DEFAULT_MODULES: Final = ("core_attn",)
_ALLOWED: Final = (
    f"none, selective, selective:MODULE+MODULE with MODULE of {', '.join(MODULES)}, full, "
    "full:LAYERS with LAYERS from 1"
)


def parse_recompute_words(text: str) -> tuple[Recompute, int]:
    """Read a recompute option.

    Parameters
    ----------
    text : str
        ``none``, ``selective`` (attention scores), ``selective:module+module``, ``full``, or ``full:K``.

    Returns
    -------
    recompute : Recompute
        What a layer recomputes.
    layers : int
        Number of layers of each pipeline position that do it, from the first on; 0: all of them.

    Raises
    ------
    InputError
        The words are not understood.
    """
    kind, colon, rest = text.strip().lower().partition(":")
    if kind == "none" and not colon:
        return NO_RECOMPUTE, 0
    if kind == "full" and not colon:
        return FULL_RECOMPUTE, 0
    if kind == "full" and rest.isascii() and rest.isdigit() and len(rest) <= _MOST_DIGITS and int(rest):
        return FULL_RECOMPUTE, int(rest)
    if kind == "selective" and (rest or not colon):
        modules = tuple(dict.fromkeys(part.strip() for part in rest.split("+"))) if rest else DEFAULT_MODULES
        if PER_OP in modules and len(modules) > 1:
            raise InputError(f"--recompute {text!r}: {PER_OP} is a list of its own", allowed=f"selective:{PER_OP}")
        for module in modules:
            if module not in MODULES:
                raise InputError(
                    f"recompute module {module!r} is not known{nearest(module, MODULES)}", allowed=", ".join(MODULES)
                )
        return Recompute(granularity=Granularity.SELECTIVE, modules=modules), 0
    raise InputError(f"--recompute {text!r} is not understood", allowed=_ALLOWED)

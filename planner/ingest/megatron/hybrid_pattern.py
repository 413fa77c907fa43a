"""Layer patterns of hybrid models in launch arguments, such as ``M-M*|M-ME/*E``.

One letter a layer: ``M`` Mamba-2, ``*`` attention, ``-`` dense, ``E`` experts; later versions also know ``G`` (gated
delta net), ``D`` (sparse attention) and ``+`` (latent attention). ``|`` parts pipeline positions, ``/`` precedes the
layers of one multi-token prediction. Before core 0.17 the pattern has letters alone.

References
----------
Megatron-LM ``megatron/core/models/hybrid/hybrid_layer_allocation.py`` (core 0.19),
``megatron/core/ssm/mamba_hybrid_layer_allocation.py`` (core 0.13 to 0.17).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from costmodels.workload.model import StateSpace
from hardware.errors import InputError
from planner.ingest.options import MOST_LAYERS, Arguments
from planner.rules.proposal import ModelFacts
from planner.rules.table import version_key

OPTION: Final = "--hybrid-layer-pattern"
OLD_OPTION: Final = "--hybrid-override-pattern"
POSITIONS_SINCE: Final = (0, 17)
_ENDS_SINCE: Final = (0, 16)
DELTA_KEY_HEADS: Final = 16
DELTA_VALUE_HEADS: Final = 32
_HEAD_DIM: Final = 64
_STATE: Final = 128
_GROUPS: Final = 8
_EXPAND: Final = 2
_LETTERS: Final = (((0, 19), "MGD+*-E"), ((0, 18), "MGD*-E"), ((0, 17), "MG*-E"), ((0, 16), "M*-E"), ((0, 13), "M*-"))


@dataclass(frozen=True, kw_only=True)
class HybridPattern:
    """A pattern as read.

    Attributes
    ----------
    segments : tuple of str
        Letters of each pipeline position; one where the pattern parts none.
    ahead : tuple of str
        Letters of the layers of each multi-token prediction.
    """

    segments: tuple[str, ...]
    ahead: tuple[str, ...] = ()

    @property
    def letters(self) -> str:
        """One letter a layer, without prediction layers."""
        return "".join(self.segments)

    @property
    def counts(self) -> Mapping[str, tuple[str, ...]]:
        """Options that the pattern stands for: numbers of layers, and the kind of attention of sparse ones."""
        found = {"--num-layers": (str(len(self.letters)),)}
        found |= {"--mtp-num-layers": (str(len(self.ahead)),)} if self.ahead else {}
        sparse = "D" in self.letters or any("D" in part for part in self.ahead)
        return found | ({"--experimental-attention-variant": ("dsa",)} if sparse else {})


def hybrid_pattern(read: Arguments, version: str) -> HybridPattern | None:
    """The pattern that arguments state; None where the model is no hybrid.

    Parameters
    ----------
    read : Arguments
        Of Megatron-LM.
    version : str
        Core version.

    Raises
    ------
    InputError
        Both names of the option are given, a letter is unknown to the version, prediction layers differ, or the pattern
        has another length than ``--num-layers`` where that counts.
    """
    if read.has(OPTION) and read.has(OLD_OPTION):
        raise InputError(f"{OPTION} together with {OLD_OPTION}", allowed=f"{OPTION} alone")
    name = OPTION if read.has(OPTION) else OLD_OPTION
    text = read.text(name)
    if not text:
        return None
    later = version_key(version) >= POSITIONS_SINCE
    main, *ahead = text.split("/") if later else (text,)
    segments = tuple(main.split("|")) if later else (main,)
    known = next(letters for since, letters in _LETTERS if version_key(version) >= since)
    for part in ("".join(segments), *ahead):
        _check_letters(part, known, name)
    if len(set(ahead)) > 1:
        raise InputError(f"{name} has the prediction layers {', '.join(ahead)}", allowed="equal ones")
    found = HybridPattern(segments=segments, ahead=tuple(part for part in ahead if part))
    layers = read.number("--num-layers", 0)
    if not 0 < len(found.letters) <= MOST_LAYERS or (not later and len(found.letters) != layers):
        allowed = f"{layers}, as --num-layers says" if not later else f"1 to {MOST_LAYERS}"
        raise InputError(f"{name} names {len(found.letters)} layers", allowed=allowed)
    return found


def builds_evenly(version: str, *, ends: bool) -> bool:
    """Whether a core builds equal stages of a hybrid model whatever else is stated.

    Parameters
    ----------
    version : str
        Core version.
    ends : bool
        Whether layers of the first or the last stage are given, which count from core 0.16 on.

    References
    ----------
    Megatron-core ``core/ssm/mamba_block.py``, ``_select_layers_for_pipeline_parallel`` (core 0.13 to 0.16).
    """
    return version_key(version) < (_ENDS_SINCE if ends else POSITIONS_SINCE)


def hybrid_facts(facts: ModelFacts, read: Arguments, pattern: HybridPattern, ffn: int) -> ModelFacts:
    """Sizes of a hybrid model: those of the parts that its letters name.

    Parameters
    ----------
    facts : ModelFacts
        As of a model without a pattern.
    read : Arguments
        Of Megatron-LM.
    pattern : HybridPattern
    ffn : int
        Feed-forward width of dense layers.
    """
    letters = set(pattern.letters).union(*pattern.ahead)
    states = state_sizes(read) if "M" in letters else None
    delta = "G" in letters
    return replace(
        facts,
        ffn=ffn if "-" in letters else 0,
        state_heads=states.heads if states else 0,
        state_groups=states.groups if states else 0,
        delta_key_heads=read.number("--linear-num-key-heads", DELTA_KEY_HEADS) if delta else facts.delta_key_heads,
        delta_value_heads=read.number("--linear-num-value-heads", DELTA_VALUE_HEADS)
        if delta
        else facts.delta_value_heads,
        latent=facts.latent or bool(letters & {"D", "+"}),
    )


def state_sizes(read: Arguments) -> StateSpace:
    """Mamba-2 mixer of a hybrid model: by its options, and as many heads as twice the width holds unless one says."""
    head_dim = max(1, read.number("--mamba-head-dim", _HEAD_DIM))
    heads = _EXPAND * read.number("--hidden-size", 0) // head_dim
    return StateSpace(
        heads=read.number("--mamba-num-heads", heads),
        head_dim=head_dim,
        state=read.number("--mamba-state-dim", _STATE),
        groups=read.number("--mamba-num-groups", _GROUPS),
    )


def _check_letters(part: str, known: str, name: str) -> None:
    strange = sorted(set(part) - set(known))
    if strange:
        raise InputError(f"{name} has the letter {strange[0]!r}", allowed=" ".join(known))
    if "*" in part and set(part) & {"D", "+"}:
        raise InputError(f"{name} has plain beside latent or sparse attention", allowed="one kind of attention")

"""Hybrid models in Megatron-LM's flags: a letter a layer, and positions of the pipeline parted in the same pattern."""

from dataclasses import replace
from itertools import pairwise
from typing import Final

from costmodels.layout import Layout
from costmodels.workload.model import Attention, LayerKind, LayerRun, ModelSpec, MoeFfn, OpaqueLayer, StateSpace
from hardware.errors import InputError
from planner.export.launch import Program
from planner.export.plan_checks import mixer_words
from planner.ingest.megatron.hybrid_pattern import OLD_OPTION, OPTION, POSITIONS_SINCE
from planner.rules.table import version_key

_STACK_SINCE: Final = (0, 18)  # the layers of hybrid models have a module of their own
_SCRIPT_SINCE: Final = (0, 19)
_FOLDER: Final = "/path/to/Megatron-LM/"


def no_flag(model: ModelSpec, part: str, allowed: str) -> InputError:
    """Error for a part of a model that Megatron-LM has no flag for."""
    return InputError(f"model {model.name}: Megatron-LM has no flag for {part}", allowed=allowed)


def is_hybrid(model: ModelSpec) -> bool:
    """Whether every layer is one part: a mixer or a feed-forward part."""
    kinds = model.kinds()
    return all(isinstance(kind, LayerKind) and (kind.mixer is None) != (kind.ffn is None) for kind in kinds)


def has_state_blocks(model: ModelSpec) -> bool:
    """Whether blocks of a mixer and a feed-forward part have Mamba-2 mixers among them (Granite 4, Bamba)."""
    kinds = [kind for kind in model.kinds() if isinstance(kind, LayerKind)]
    return any(isinstance(kind.mixer, StateSpace) and kind.ffn is not None for kind in kinds)


def in_parts(model: ModelSpec, layout: Layout) -> tuple[ModelSpec, Layout]:
    """A model of blocks as one of parts, each behind a norm of its own, and its layout: two layers for every block.

    Parameters
    ----------
    model : ModelSpec
        Every layer is a mixer and a feed-forward part, one after the other.
    layout : Layout
        Of its blocks.

    Raises
    ------
    InputError
        A layer is no such block.
    """
    runs: list[LayerRun] = []
    for kind in model.layer_kinds():
        whole = isinstance(kind, LayerKind) and None not in (kind.mixer, kind.ffn) and kind.norm_count == 2
        if not isinstance(kind, LayerKind) or not whole or kind.parallel or kind.side_width or model.mtp_layers:
            raise no_flag(model, f"a layer of kind {kind.name} beside Mamba-2", "a mixer and a feed-forward part each")
        rest = kind.norm_parameters - model.final_norm_parameters
        mixer = replace(kind, name=f"{kind.name}: mixer", ffn=None, norm_count=1, norm_parameters=rest)
        ffn = replace(kind, name=f"{kind.name}: feed-forward", mixer=None, norm_count=1)
        ffn = replace(ffn, norm_parameters=model.final_norm_parameters)
        runs += [LayerRun(kind=mixer, count=1), LayerRun(kind=ffn, count=1)]
    stages = tuple(
        replace(
            stage,
            layers_per_chunk=tuple(2 * count for count in stage.layers_per_chunk),
            strategies=tuple(replace(run, count=2 * run.count) for run in stage.strategies),
        )
        for stage in layout.stages
    )
    return replace(model, runs=tuple(runs)), replace(layout, stages=stages)


def hybrid_layer(model: ModelSpec, kind: object) -> LayerKind:
    """One layer of a hybrid model, or the reason why it has no letter.

    Raises
    ------
    InputError
        Attention over a window, biases inside a Mamba-2 mixer, or norms beside the one before the part.
    """
    if not isinstance(kind, LayerKind) or kind.norm_count != 1 or kind.side_width:
        raise no_flag(model, "norms or embeddings of a layer beside the norm before its part", "one norm a layer")
    mixer = kind.mixer
    if isinstance(mixer, Attention) and mixer.window:
        raise no_flag(model, "windows of attention in a hybrid model", "attention to all earlier tokens")
    if isinstance(mixer, StateSpace) and not mixer.norm:
        raise no_flag(model, "Mamba-2 without a norm behind its gate", "one with that norm")
    if isinstance(mixer, StateSpace) and (mixer.projection_bias or not mixer.conv_bias):
        raise no_flag(model, "these biases of a Mamba-2 mixer", "a bias of its convolution alone")
    if mixer is not None and not isinstance(mixer, Attention | StateSpace):
        raise no_flag(model, mixer_words(mixer), "Mamba-2, attention, dense and expert layers")
    return kind


def state_arguments(model: ModelSpec, kinds: list[LayerKind]) -> list[str]:
    """Sizes of the Mamba-2 mixers.

    Raises
    ------
    InputError
        They differ between layers.
    """
    found = {kind.mixer for kind in kinds if isinstance(kind.mixer, StateSpace)}
    if not found:
        return []
    if len(found) > 1:
        raise no_flag(model, f"{len(found)} different kinds of Mamba-2 mixers", "equal ones")
    state = found.pop()
    return [
        *("--mamba-num-heads", str(state.heads), "--mamba-head-dim", str(state.head_dim)),
        *("--mamba-state-dim", str(state.state), "--mamba-num-groups", str(state.groups)),
    ]


def pattern_arguments(model: ModelSpec, layout: Layout, version: str) -> list[str]:
    """The layer pattern with the positions of the pipeline, and the stack that builds it.

    Parameters
    ----------
    model : ModelSpec
        A hybrid.
    layout : Layout
        Its layers by stage and chunk.
    version : str
        Core version.

    Raises
    ------
    InputError
        Stages are unequal or have several chunks, or layers are predicted, before core 0.17.
    """
    letters = layer_letters(model)
    stack = "hybrid.hybrid_layer_specs hybrid_stack_spec"
    if version_key(version) < _STACK_SINCE:
        stack = "mamba.mamba_layer_specs mamba_stack_spec"
    spec = ["--spec", *f"megatron.core.models.{stack}".split()]
    split = layout.layers_per_stage
    if version_key(version) < POSITIONS_SINCE:
        if len({count for stage in split for count in stage}) > 1 or layout.vpp > 1 or model.mtp_layers:
            raise InputError(
                f"layers per stage {split} of a hybrid model",
                allowed=f"equal stages without chunks and predictions in core {version}; core 0.17 takes any"
                + nearest_equal(model.layers, layout.pp),
            )
        old = [] if version_key(version) >= (0, 16) else ["--is-hybrid-model"]
        return ["--num-layers", str(model.layers), OLD_OPTION, letters, *old, *spec]
    counts = [stage[chunk] for chunk in range(layout.vpp) for stage in split]
    bounds = [sum(counts[:index]) for index in range(len(counts) + 1)]
    positions = "|".join(letters[low:high] for low, high in pairwise(bounds))
    ahead = model.mtp_kind
    predicted = ("/*E" if isinstance(ahead.ffn, MoeFfn) else "/*-") * model.mtp_layers if ahead else ""
    return [OPTION, positions + predicted, *spec]


def nearest_equal(layers: int, pp: int) -> str:
    """Words that name the nearest equal stages, where the layers divide over so many, or over fewer."""
    fewer = next(stages for stages in range(pp, 0, -1) if layers % stages == 0)
    told = ",".join([str(layers // fewer)] * fewer)
    return f"; the nearest that it can: --layers-per-stage {told} (plan estimate prices it)"


def layer_letters(model: ModelSpec) -> str:
    """A letter for every layer of a hybrid model."""
    return "".join(map(_letter, model.layer_kinds()))


def hybrid_program(version: str) -> Program:
    """The script that trains hybrid models, which core 0.19 gave another name."""
    name = "pretrain_hybrid.py" if version_key(version) >= _SCRIPT_SINCE else "pretrain_mamba.py"
    return Program(script=_FOLDER + name)


def _letter(kind: LayerKind | OpaqueLayer) -> str:
    if isinstance(kind, OpaqueLayer):
        return ""
    if kind.mixer is not None:
        return "*" if isinstance(kind.mixer, Attention) else "M"
    return "E" if isinstance(kind.ffn, MoeFfn) else "-"

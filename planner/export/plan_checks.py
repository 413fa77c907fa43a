"""What every exporter asks of a plan before it writes a word: sizes, batch, one grid, and the framework's rules."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from costmodels.job import TrainingJob
from costmodels.layout import Granularity, Layout, Strategy
from costmodels.workload.model import (
    Attention,
    DeltaNet,
    LayerKind,
    Lightning,
    Mixer,
    ModelSpec,
    SelectiveScan,
    ShortConvolution,
    SideBySide,
    StateSpace,
)
from hardware.errors import InputError
from planner.export.launch import Planned
from planner.plan_report import RankPlace
from planner.request import Framework
from planner.rules.proposal import grid_of
from planner.rules.verdict import check_layout


def check_sizes(plan: Planned) -> None:
    """Refuse a plan whose GPUs, layers or samples are not those of site, model and job.

    Raises
    ------
    InputError
        The numbers differ; the message has both.
    """
    model, job, layout = plan.model, plan.job, plan.layout
    if plan.site.gpus != layout.gpus:
        raise InputError(
            f"the layout uses {layout.gpus} GPUs, the site offers {plan.site.gpus}", allowed="equal numbers"
        )
    if layout.layers != model.layers:
        raise InputError(
            f"the layout holds {layout.layers} layers, the model has {model.layers}", allowed="every layer exactly once"
        )
    if layout.vocabulary_spread:
        raise InputError("the vocabulary is spread over all stages", allowed="embedding first and head last")
    dp = layout.first.dp
    samples = layout.micro_batch * dp * layout.num_microbatches
    if samples != job.global_batch:
        raise InputError(
            f"micro-batch {layout.micro_batch} x dp {dp} x {layout.num_microbatches} micro-batches "
            f"are {samples} samples, the global batch is {job.global_batch}",
            allowed="a product equal to the global batch",
        )


def refuse_linear_loss(job: TrainingJob, name: str, why: str) -> None:
    """Refuse a loss that is computed with the output matrix, for a framework without a word for it.

    Parameters
    ----------
    job : TrainingJob
        Its software has the loss.
    name : str
        The framework, in words.
    why : str
        Where such a loss is, or that there is none.

    Raises
    ------
    InputError
        The plan has such a loss.
    """
    loss = job.software.linear_loss
    if loss is not None:
        raise InputError(f"loss {loss.name} cannot be said to {name}: {why}", allowed="a plan with --loss whole")


def refuse_adapters(job: TrainingJob, name: str) -> None:
    """Refuse a plan that trains adapters, for a framework without a word for them.

    Raises
    ------
    InputError
        The plan trains adapters.
    """
    if job.trained_share < 1.0:
        raise InputError(
            f"adapters of rank {job.adapter_rank} cannot be said to {name}",
            allowed="a plan with --framework bridge, or one without --lora-rank",
        )


def check_rules(plan: Planned, framework: Framework, version: str) -> None:
    """Refuse a plan that breaks a rule of the framework.

    Raises
    ------
    InputError
        Names every broken rule's numbers.
    """
    broken = check_layout(plan.layout, plan.model, plan.job, framework=framework, version=version)
    if broken:
        reasons = "; ".join(violation.message for violation in broken)
        raise InputError(f"{framework} {version} would refuse this plan: {reasons}")


def one_grid(layout: Layout, name: str) -> Strategy:
    """The grid of every layer, without its recompute.

    Parameters
    ----------
    layout : Layout
        Any layout.
    name : str
        The framework's name in messages.

    Raises
    ------
    InputError
        Layers use different grids.
    """
    grids = {grid_of(run.strategy) for stage in layout.stages for run in stage.strategies}
    if len(grids) > 1:
        raise InputError(
            f"the layout has {len(grids)} different grids of tp, cp, dp, ep, etp and ZeRO among its layers",
            allowed=f"one grid for the whole model in {name}",
        )
    return grids.pop()


def whole_or_no_recompute(layout: Layout, name: str) -> bool:
    """Whether every layer recomputes wholly; False when none recomputes anything.

    Raises
    ------
    InputError
        Some layers do, or parts of layers: the framework has one switch for all.
    """
    found = {run.strategy.recompute for stage in layout.stages for run in stage.strategies if run.count}
    kinds = {recompute.granularity for recompute in found} or {Granularity.NONE}
    if len(kinds) > 1 or Granularity.SELECTIVE in kinds:
        told = ", ".join(sorted(str(recompute) for recompute in found))
        raise InputError(
            f"recompute {told} cannot be said to {name}",
            allowed="the nearest that can: recompute full on every layer (less memory), or none (more memory)",
        )
    return kinds == {Granularity.FULL}


CROSS: Final = "a decoder that attends to an encoder"
IDLE: Final = "experts that compute nothing"
STREAMS: Final = "several residual streams (hyper-connections)"
ALTERNATING: Final = "residual streams that one of them corrects (alternating updates)"
COMPRESSED: Final = "compressed keys beside a window of attention"
_MIXERS: Final[Mapping[type, str]] = MappingProxyType(
    {
        DeltaNet: "a gated delta rule",
        Lightning: "lightning attention",
        SelectiveScan: "Mamba-1",
        ShortConvolution: "short convolutions",
        SideBySide: "attention and Mamba-2 side by side in a layer",
        StateSpace: "Mamba-2",
    }
)


def mixer_words(mixer: Mixer) -> str:
    """Name what mixes tokens in a layer, where it is not attention alone."""
    if isinstance(mixer, DeltaNet) and mixer.channel_decay:
        return "a delta rule with a decay for every channel"
    return _MIXERS[type(mixer)]


def other_mixers(model: ModelSpec) -> tuple[str, ...]:
    """Name what mixes tokens in a model beside attention alone."""
    kinds = [kind for kind in model.kinds() if isinstance(kind, LayerKind)]
    mixers = [kind.mixer for kind in kinds]
    unlike = (mixer for mixer in mixers if mixer is not None and not isinstance(mixer, Attention))
    crossing = (CROSS,) if any(kind.cross for kind in kinds) else ()
    compressed = any(isinstance(mixer, Attention) and mixer.compress for mixer in mixers)
    further = (
        *crossing,
        *((COMPRESSED,) if compressed else ()),
        *((ALTERNATING if model.alternating else STREAMS,) if model.streams > 1 else ()),
    )
    return tuple(dict.fromkeys((*map(mixer_words, unlike), *further)))


def norm_of(model: ModelSpec) -> str:
    """Name of a model's norms, in Megatron-LM's words: those of an RMSNorm have a scale alone."""
    return "RMSNorm" if model.final_norm_parameters == model.hidden else "LayerNorm"


def activation_of(model: ModelSpec, *, gated: bool) -> str:
    """Name of a model's activation: the usual one of its form where nothing says which."""
    return model.known_details.activation or ("silu" if gated else "gelu")


def placed_environment(placement: Sequence[RankPlace]) -> tuple[tuple[str, str], ...]:
    """Variable that makes GPU numbers those of ``nvidia-smi``, when ranks are placed."""
    return (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),) if placement else ()

"""Adapters that are trained in the place of a model: from a user's words to the job, and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costmodels.job import TrainingJob
from costmodels.workload.adapters import TARGETS, adapter_parameters, target_modules
from costmodels.workload.counts import parameter_count
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from planner.choices import Framework

MOST_RANK: Final = 4096
USUAL_TARGETS: Final = ("attn", "mlp")
"""All linear layers of a transformer, as Megatron-Bridge, NeMo and LLaMA-Factory adapt where nothing is said."""
_OF_EXPERTS: Final = "mlp"
_TRAINERS: Final = (Framework.BRIDGE, Framework.NEMO, Framework.DEEPSPEED, Framework.NONE)
_SEPARATE: Final = (Framework.DEEPSPEED,)
"""Whose modules of queries, keys, values, gate and up projection are apart: Hugging Face's."""


def targets_of(words: str) -> tuple[str, ...]:
    """Return what adapters stand beside.

    Parameters
    ----------
    words : str
        Such as ``attn+mlp``; empty: the usual ones.

    Raises
    ------
    InputError
        A word is not known.
    """
    found = tuple(dict.fromkeys(word.strip().lower() for word in words.split("+") if word.strip()))
    unknown = [word for word in found if word not in TARGETS]
    if unknown:
        raise InputError(f"--lora-targets {words}: {unknown[0]!r}", allowed=f"{', '.join(TARGETS)}, joined by +")
    return found or USUAL_TARGETS


def asked_adapters(job: TrainingJob, model: ModelSpec, framework: Framework, rank: int, words: str) -> TrainingJob:
    """Return a job that trains adapters, as a user asks for on the command line; as it is for rank 0.

    Parameters
    ----------
    job, model, framework
        Who trains what.
    rank : int
        Of every adapter.
    words : str
        As of :func:`targets_of`.

    Raises
    ------
    InputError
        The framework has no adapters, the rank is out of range, or the model has none of the targets.
    """
    targets = targets_of(words)
    if not rank:
        if words:
            raise InputError(f"--lora-targets {words} without a rank", allowed="--lora-rank N with it")
        return job
    if framework not in _TRAINERS:
        raise InputError(f"--lora-rank with framework {framework}", allowed=", ".join(_TRAINERS))
    if not 1 <= rank <= MOST_RANK:
        raise InputError(f"--lora-rank {rank}", allowed=f"1 to {MOST_RANK}")
    if framework is Framework.BRIDGE and beside_experts(model, targets):
        raise InputError(
            f"--lora-targets {'+'.join(targets)}: in Megatron-Bridge mlp names the routed experts of {model.name} too, "
            "whose adapters have no price",
            allowed="--lora-targets attn",
        )
    return with_adapters(job, model, rank, targets, separate=framework in _SEPARATE)


def beside_experts(model: ModelSpec, targets: Sequence[str]) -> bool:
    """Whether adapters beside ``targets`` stand beside routed experts in Megatron-core too, by their names.

    Parameters
    ----------
    model : ModelSpec
        Whose layers are adapted.
    targets : sequence of str
        As of :func:`targets_of`.
    """
    return _OF_EXPERTS in targets and model.has_experts


def with_adapters(
    job: TrainingJob, model: ModelSpec, rank: int, targets: Sequence[str], *, separate: bool
) -> TrainingJob:
    """Return a job that trains adapters beside a frozen model.

    Parameters
    ----------
    job, model
        Who trains what.
    rank : int
        Of every adapter.
    targets : sequence of str
        As of :func:`targets_of`.
    separate : bool
        As of :func:`costmodels.workload.adapters.adapter_parameters`.

    Raises
    ------
    InputError
        The model has none of the targets.
    """
    modules = target_modules(targets)
    trained = adapter_parameters(model, rank, modules, separate=separate)
    if not trained:
        parts = (name for name in TARGETS if adapter_parameters(model, rank, target_modules([name]), separate=separate))
        raise InputError(
            f"{model.name} has no products of {', '.join(targets)} for adapters",
            allowed=", ".join(parts) or "a model with products of attention or of a dense feed-forward part",
        )
    share = trained / parameter_count(model).total
    return replace(job, trained_share=share, adapter_modules=modules, adapter_rank=rank)


def with_adapters_of(job: TrainingJob, other: TrainingJob) -> TrainingJob:
    """Return a job that trains what another one trains: its adapters, or the whole model."""
    return replace(
        job,
        trained_share=other.trained_share,
        adapter_modules=other.adapter_modules,
        adapter_rank=other.adapter_rank,
    )


def without_adapters(job: TrainingJob) -> TrainingJob:
    """Return a job that trains the whole model."""
    return replace(job, trained_share=1.0, adapter_modules=(), adapter_rank=0)


def said_targets(job: TrainingJob) -> str:
    """Return the targets of a job in a user's words; empty without adapters."""
    return "+".join(word for word, modules in TARGETS.items() if set(modules) <= set(job.adapter_modules))

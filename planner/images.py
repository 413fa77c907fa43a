"""Images of a model with a vision tower: from a user's words to the job, what is assumed, and how a framework runs it.

References
----------
Megatron-Bridge 0.6 ``models/qwen_vl/modelling_qwen3_vl/transformer_config.py``, ``get_vision_model_config``: degrees of
tensor parallelism and recompute are those of the language model; ``models/*/modeling_*.py`` of other models build
Hugging Face's towers on the first stage, whole, without gradient checkpointing. Who trains such models on Megatron-core
by flags is ms-swift (``swift/megatron``): Hugging Face's towers, whole, with checkpointing where nothing is said.

Checkpointing of Hugging Face's modules asks for gradients of the first input of a tower's layers, frozen or not:
Transformers 5 ``modeling_utils.py``, ``gradient_checkpointing_enable`` and ``enable_input_require_grads`` (hooks on the
embeddings of every model inside the model, which a run of a small model shows to be followed by a backward pass);
ms-swift ``trainers/base.py``, ``_prepare_vit_gradient_checkpointing``.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Images, TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from costmodels.workload.counts import parameter_count
from costmodels.workload.model import ModelSpec, Tower
from hardware.errors import InputError
from planner.choices import Framework

USUAL_SHARE: Final = 0.5
"""Of a sequence that stands for images where nothing is said: a choice, not a measurement."""
_RECIPES: Final = (Framework.BRIDGE, Framework.NEMO)
_TEXT_ALONE: Final = MappingProxyType(
    {
        Framework.MEGATRON: "pretrain_gpt.py",
        Framework.DEEPSPEED: "Megatron-DeepSpeed's pretrain_gpt.py",
        Framework.TORCHTITAN: "torchtitan's configuration",
        Framework.GALVATRON: "Galvatron",
    }
)
"""Programs whose arguments are written, and that train the language model alone."""
_UNCOUNTED: Final = ("the language model", "the vision encoder")
_PASSED: Final = (
    "where its layers recompute, a backward pass runs through the frozen tower: checkpointing asks for gradients "
    "(not ms-swift's with --vit_gradient_checkpointing false, nor LLaMA-Factory's)"
)
_PARTS: Final = ("tower", "projector")
_ALLOWED: Final = "TOKENS of a sequence, COUNTxTOKENS such as 2x1024, or 0 for text alone"


def asked_images(job: TrainingJob, model: ModelSpec, framework: Framework, words: str, freeze: str) -> TrainingJob:
    """Return a job with the images that a user asks for on the command line, or those that are assumed.

    Of a job that has images already, as a launch or a report says, what no word says stays as it is.

    Parameters
    ----------
    job, model, framework
        Who trains what.
    words : str
        ``TOKENS`` of a sequence, ``COUNTxTOKENS``, or ``0``; empty: half of the sequence.
    freeze : str
        ``tower``, ``projector``, both joined by +, or ``none``; empty: none, with adapters both.

    Raises
    ------
    InputError
        The model has no tower, or the words do not say images of it.
    """
    tower = model.tower
    if tower is None:
        refuse_images(model, words, freeze)
        return job
    own, adapted = job.images, job.trained_share < 1.0
    frozen = _frozen(freeze, adapted=adapted) if freeze or own is None or adapted else _frozen_of(own)
    if words:
        count, tokens = stated_images(words, tower, job.seq)
    elif own is not None and own.all_tokens <= job.seq:
        count, tokens = own.count, own.tokens
    else:
        count, tokens = usual_images(tower, job.seq)
    asked = images_of(tower, framework, count, tokens, frozen)
    if own is not None:
        asked = replace(asked, divided=own.divided, recompute=own.recompute, asks_gradients=own.asks_gradients)
    return replace(job, images=asked)


def refuse_images(model: ModelSpec, words: str, freeze: str = "") -> None:
    """Refuse what is said of images where a model sees none.

    Raises
    ------
    InputError
        Some word says something.
    """
    for option, told in (("--images", words), ("--freeze", freeze)):
        if told:
            raise InputError(
                f"{option} {told}: {model.name} has no vision tower, or none that is counted",
                allowed="a model with one, see docs/models.md",
            )


def images_of(tower: Tower, framework: Framework, count: int, tokens: int, frozen: tuple[str, ...]) -> Images:
    """Return images as a framework runs them.

    Parameters
    ----------
    tower : Tower
        Of the model.
    framework : Framework
        Who runs it.
    count, tokens : int
        Images of a sequence, and tokens that each stands for.
    frozen : tuple of str
        Parts that are not trained: ``tower``, ``projector``.
    """
    divided = framework in _RECIPES and tower.megatron_modules
    recompute: Recompute | None = None
    if framework is Framework.MEGATRON:
        recompute = FULL_RECOMPUTE
    elif framework in _RECIPES and not divided:
        recompute = NO_RECOMPUTE
    return Images(
        count=count,
        tokens=tokens,
        trains_tower="tower" not in frozen,
        trains_projector="projector" not in frozen,
        divided=divided,
        recompute=recompute,
        asks_gradients=framework not in _RECIPES,
    )


def usual_images(tower: Tower, seq: int) -> tuple[int, int]:
    """Images that are assumed of a sequence of ``seq`` tokens, and tokens of each: whole ones, in half of it."""
    share = max(1, int(USUAL_SHARE * seq))
    tokens = tower.image_tokens if tower.fixed else min(tower.image_tokens, share)
    return max(1, share // tokens), tokens


def of_its_length(job: TrainingJob, model: ModelSpec, seq: int) -> TrainingJob:
    """Return a job whose images, if they were assumed of sequences of ``seq`` tokens, are those of its own length."""
    if job.images is None or model.tower is None or said_images(replace(job, seq=seq), model):
        return job
    count, tokens = usual_images(model.tower, job.seq)
    return replace(job, images=replace(job.images, count=count, tokens=tokens))


def said_images(job: TrainingJob, model: ModelSpec) -> str:
    """Return the images of a job in a user's words; empty where they are those that are assumed, or there are none."""
    images, tower = job.images, model.tower
    if images is None or tower is None or (images.count, images.tokens) == usual_images(tower, job.seq):
        return ""
    return f"{images.count}x{images.tokens}" if images.count else "0"


def said_freeze(job: TrainingJob) -> str:
    """Return what of a tower is frozen in a user's words; empty where that is what is assumed."""
    images = job.images
    if images is None:
        return ""
    frozen = _frozen_of(images)
    return "" if frozen == _frozen("", adapted=job.trained_share < 1.0) else "+".join(frozen) or "none"


def images_note(images: Images | None, model: ModelSpec, assumed: str) -> tuple[str, ...]:
    """Say how images are counted; a remark each, none where there are none to count.

    Parameters
    ----------
    images, model
        Of a job.
    assumed : str
        What to say of how many images there are, where nobody said it.
    """
    count = parameter_count(model)
    if images is None or model.tower is None:
        return ()
    many = f"{images.count} image{'s' if images.count != 1 else ''} of {images.tokens:,} tokens"
    which = f" ({assumed})" if assumed else ""
    seen = f"{many} in every sequence{which}" if images.count else f"no images{which}"
    parts = ((count.tower, images.trains_tower), (count.projector, images.trains_projector))
    told = [f"{number / 1e6:,.0f} million parameters, {'trained' if trains else 'frozen'}" for number, trains in parts]
    where = "divided over tp" if images.divided else "whole on every tensor-parallel rank"
    passed = () if images.trains_tower or not images.asks_gradients else (_PASSED,)
    return (f"{seen}; vision tower ({told[0]}) and projector ({told[1]}) on the first stage, {where}", *passed)


def uncounted_notes(model: ModelSpec) -> tuple[str, ...]:
    """Notes of a model that say what of it beside the language model is not counted."""
    return tuple(note for note in model.notes if note.startswith(_UNCOUNTED))


def program_notes(job: TrainingJob, model: ModelSpec, framework: Framework) -> tuple[str, ...]:
    """Say what of a model with a vision tower a framework's own training program lacks; a remark each.

    Parameters
    ----------
    job, model
        Who trains what.
    framework : Framework
        Whose arguments are written.
    """
    images, tower = job.images, model.tower
    if images is None or tower is None:
        return ()
    if program := _TEXT_ALONE.get(framework, ""):
        return (f"{program} builds no vision tower: a program that does (ms-swift, or yours) takes these degrees",)
    if framework in _RECIPES:
        where = "divided over tp" if images.divided else "whole on every tensor-parallel rank"
        return (f"MODEL_RECIPE must be one with the vision tower; it is planned on the first stage, {where}",)
    return ()


def _frozen_of(images: Images) -> tuple[str, ...]:
    """Parts of a tower that images say are not trained."""
    trained = (images.trains_tower, images.trains_projector)
    return tuple(part for part, trains in zip(_PARTS, trained, strict=True) if not trains)


def _frozen(words: str, *, adapted: bool) -> tuple[str, ...]:
    """Parts of a tower that a user freezes."""
    found = tuple(dict.fromkeys(word.strip().lower() for word in words.split("+") if word.strip()))
    if not found:
        return _PARTS if adapted else ()
    if found == ("none",):
        found = ()
    if unknown := [word for word in found if word not in _PARTS]:
        raise InputError(f"--freeze {words}: {unknown[0]!r}", allowed=f"none, {', '.join(_PARTS)}, joined by +")
    if adapted and found != _PARTS:
        raise InputError(
            f"--freeze {words} beside adapters: a trained tower beside them is not priced",
            allowed="--freeze tower+projector, or no --lora-rank",
        )
    return found


def stated_images(words: str, tower: Tower, seq: int) -> tuple[int, int]:
    """Images of a sequence and tokens of each, from a user's words."""
    left, times, right = words.lower().partition("x")
    if not left.isdecimal() or (times and not right.isdecimal()):
        raise InputError(f"--images {words}", allowed=_ALLOWED)
    if int(left) == 0:
        return 0, tower.image_tokens
    if times:
        count, tokens = int(left), int(right)
    else:
        count = max(1, round(int(left) / tower.image_tokens))
        tokens = tower.image_tokens if tower.fixed else max(1, int(left) // count)
    if tokens < 1 or (tower.fixed and tokens != tower.image_tokens):
        raise InputError(f"--images {words}: its images have {tower.image_tokens} tokens each", allowed=_ALLOWED)
    asked = count * tokens if times else int(left)
    if asked > seq or count * tokens > seq:
        raise InputError(
            f"--images {words}: {max(asked, count * tokens):,} tokens of images in sequences of {seq:,}",
            allowed="as many as the sequence has: image tokens are part of it",
        )
    return count, tokens

"""Images and frozen parts of a launch whose model has a vision tower, in the words of the trainers that have them.

References
----------
LLaMA-Factory ``hparams/finetuning_args.py`` (``freeze_vision_tower`` and ``freeze_multi_modal_projector`` are true
where nothing is said) and ``hparams/model_args.py`` (``image_max_pixels``); ms-swift ``arguments/tuner_args.py`` and
``megatron/arguments/megatron_args.py`` (``freeze_vit``, ``freeze_aligner`` true; ``vit_gradient_checkpointing`` of
Megatron-SWIFT true), whose Megatron models hold Hugging Face's towers whole; Qwen-VL's ``train_qwen.py``
(``tune_mm_vision``, ``tune_mm_mlp``, ``tune_mm_llm``); InternVL's ``internvl_chat_finetune.py`` (``freeze_backbone``,
``freeze_mlp``, ``freeze_llm``); Megatron-Bridge's providers (``freeze_vision_model``, ``freeze_vision_projection``) and
recipes (``recipes/qwen_vl``: on mock data they train the projector alone).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from costmodels.job import Images
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE
from costmodels.workload.model import Tower
from planner.images import images_note, images_of, refuse_images, stated_images, uncounted_notes, usual_images
from planner.ingest.judged import ASSUMED_SEQ, JudgedLaunch
from planner.ingest.launch_text import LaunchText
from planner.ingest.trainers.filled_in import trainer_of
from planner.ingest.trainers.swift import is_swift
from planner.ingest.trainers.words import told_options

_FREEZE: Final = (  # part, options that freeze it, options that train it
    (
        "tower",
        ("--freeze-vision-tower", "--freeze-vit", "--freeze-backbone", "model.freeze_vision_model"),
        "--tune-mm-vision",
    ),
    (
        "projector",
        (
            "--freeze-multi-modal-projector",
            "--freeze-aligner",
            "--freeze-merger",
            "--freeze-mlp",
            "model.freeze_vision_projection",
        ),
        "--tune-mm-mlp",
    ),
    ("language", ("--freeze-language-model", "--freeze-llm", "model.freeze_language_model"), "--tune-mm-llm"),
)
_FREEZES_BOTH: Final = ("llamafactory", "swift")
"""Trainers that train neither tower nor projector where nothing is said."""
_MOCK: Final = "_mock_config"
_MADE_OF_MOCK: Final = "qwen3_vl"
_PIXELS: Final = ("--image-max-pixels", "--max-pixels", "MAX_PIXELS")
_TOKENS: Final = ("IMAGE_MAX_TOKEN_NUM",)
_CHECKPOINTS: Final = "--vit-gradient-checkpointing"
_ASKS_NOTHING: Final = "llamafactory"
"""Its checkpointing asks for gradients of modules with trained parameters alone (``model_utils/checkpointing.py``)."""
_TRUE: Final = ("", "true", "1", "yes", "y", "t", "on")
_FALSE: Final = ("false", "0", "no", "n", "f", "off", "none", "null")
_SWITCHES: Final = (*(name for _, freezing, training in _FREEZE for name in (*freezing, training)), _CHECKPOINTS)
_SIZES: Final = (*_TOKENS, *_PIXELS)
BOTH: Final = ("tower", "projector")
TRAINED_BESIDE: Final = "a tower or projector trained beside adapters has no price here: it is priced frozen"
LANGUAGE_FROZEN: Final = "the language model is frozen, which has no price here: it is priced as trained"


def with_images(judged: JudgedLaunch, text: LaunchText, words: str = "") -> JudgedLaunch:
    """Return a judged launch with the images that its sequences are taken to have, and what of the tower it trains.

    Parameters
    ----------
    judged : JudgedLaunch
        The launch; one whose model has no tower that is counted says so where it should have one.
    text : LaunchText
        What it says.
    words : str
        What the user says of a sequence's images beside it, as :func:`planner.images.asked_images` reads it.

    Raises
    ------
    InputError
        The user's words say no images of this model.
    """
    if judged.model is None:
        return judged
    tower = judged.model.tower
    if tower is None:
        refuse_images(judged.model, words)
        left = [note for note in uncounted_notes(judged.model) if note not in judged.notes]
        return replace(judged, notes=(*judged.notes, *left))
    told, adapted = _told(text), judged.adapters is not None
    frozen = _frozen(told, BOTH if adapted or _freezes_both(text) else _of_recipe(text.recipe))
    seq = (judged.proposal.seq if judged.proposal else 0) or ASSUMED_SEQ
    most = _most_tokens(told, tower)
    own = replace(tower, image_patches=most * tower.merge) if most and not tower.fixed else tower
    count, tokens = stated_images(words, own, seq) if words else usual_images(own, seq)
    parts = tuple(part for part in frozen if part != "language")
    notes = (*_unread(told), *((LANGUAGE_FROZEN,) if "language" in frozen else ()))
    if adapted and parts != BOTH:
        parts, notes = BOTH, (*notes, TRAINED_BESIDE)
    images = _of_trainer(images_of(tower, judged.framework, count, tokens, parts), text, told)
    assumed = "" if words else "assumed, --images says otherwise"
    notes = (*judged.notes, *images_note(images, judged.model, assumed), *notes)
    unjudged = tuple(name for name in judged.unjudged if _as_told(name) not in (*_SWITCHES, *_SIZES))
    return replace(judged, images=images, notes=notes, unjudged=unjudged)


def _told(text: LaunchText) -> Mapping[str, str]:
    """Options, overrides and the environment of a launch by name."""
    overrides = (word.lstrip("+").partition("=") for word in text.arguments if "=" in word and word[:2] != "--")
    return {
        **(text.environment or {}),
        **told_options(text.arguments),
        **{name: value.strip("'\"") for name, _, value in overrides},
    }


def _freezes_both(text: LaunchText) -> bool:
    return is_swift(text) or trainer_of(text, told_options(text.arguments)) in _FREEZES_BOTH


def _of_recipe(recipe: str) -> tuple[str, ...]:
    """Parts that a recipe of Megatron-Bridge freezes: those on mock data, and speed recipes that are made of them."""
    name = recipe.rpartition(".")[2]
    mock = name.endswith(_MOCK) or (name.startswith(_MADE_OF_MOCK) and "_pretrain" in name)
    return ("tower", "language") if mock else ()


def _frozen(told: Mapping[str, str], usual: tuple[str, ...]) -> tuple[str, ...]:
    """Parts that a launch freezes: as it says, else as its trainer does."""
    found = []
    for part, freezing, training in _FREEZE:
        freezes = part in usual
        for name in freezing:
            freezes = _on(told[name]) if _is_switch(told.get(name)) else freezes
        if _is_switch(told.get(training)):
            freezes = not _on(told[training])
        if freezes:
            found.append(part)
    return tuple(found)


def _as_told(name: str) -> str:
    """An option as :func:`told_options` names it; an override as it is."""
    return name.replace("_", "-") if name.startswith("--") else name


def _unread(told: Mapping[str, str]) -> tuple[str, ...]:
    """Remarks on values that are neither true nor false, or no number."""
    switches = (name for name in _SWITCHES if name in told and not _is_switch(told[name]))
    sizes = (name for name in _SIZES if told.get(name) and not told[name].isdecimal())
    return (
        *(f"{name} {told[name]} is neither true nor false: it is left out" for name in switches),
        *(f"{name} {told[name]} is no number: it is left out" for name in sizes),
    )


def _is_switch(value: str | None) -> bool:
    """Whether an option is told, as true or as false."""
    return value is not None and value.strip().lower() in (*_TRUE, *_FALSE)


def _on(value: str) -> bool:
    return value.strip().lower() in _TRUE


def _most_tokens(told: Mapping[str, str], tower: Tower) -> int:
    """Tokens of an image of as many pixels as the launch allows; 0: it does not say."""
    tokens = next((int(told[name]) for name in _TOKENS if told.get(name, "").isdecimal()), 0)
    pixels = next((int(told[name]) for name in _PIXELS if told.get(name, "").isdecimal()), 0)
    return tokens or (max(1, int(pixels / (tower.patch_side**2 * tower.merge))) if pixels else 0)


def _of_trainer(images: Images, text: LaunchText, told: Mapping[str, str]) -> Images:
    """Images as the trainer runs them: whether the tower recomputes, and asks for gradients in order to."""
    if trainer_of(text, told_options(text.arguments)) == _ASKS_NOTHING:
        return replace(images, asks_gradients=False)
    stated = told.get(_CHECKPOINTS)
    if stated is None or not _is_switch(stated):
        return images
    recompute = FULL_RECOMPUTE if _on(stated) else NO_RECOMPUTE
    return replace(images, recompute=recompute, asks_gradients=_on(stated))

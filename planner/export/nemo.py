"""A plan as overrides of a NeMo 2 recipe on nemo_run's command line.

NeMo's strategy takes any keyword without a word, so that a misspelt key would be lost; the keys here are those of one
table, and every export is read back before it is handed out.

References
----------
NeMo 2.7: ``nemo/lightning/pytorch/strategies/megatron_strategy.py``, ``nemo/collections/llm/recipes``.
"""

from dataclasses import replace
from typing import Final

from planner.export.bridge import RECIPE_NOTE, in_words_of, override_words
from planner.export.launch import Export, Planned, Program
from planner.export.megatron import export_megatron
from planner.export.plan_checks import check_rules, refuse_adapters
from planner.ingest.megatron.software_flags import attention_words
from planner.request import Framework
from planner.rules.table import CORE, resolve_version

_BACKEND: Final = "the recipe's code must set model.config.attention_backend = AttnBackend.{name}: no override can"
_PROGRAM: Final = Program(
    target=(
        '"$(command -v nemo)" llm pretrain '
        '--factory "${MODEL_RECIPE:?set MODEL_RECIPE to a recipe such as llama3_8b}" --yes'
    ),
    script="",
    user_words="trainer.max_steps=20",
    user_says="further overrides, such as data, log and optim settings",
)


def _kernel_notes(plan: Planned) -> tuple[str, ...]:
    """The kernels of attention, where they are others than Transformer Engine's usual choice."""
    words = attention_words(plan.job.software)
    return (_BACKEND.format(name=words[-1]),) if words else ()


def export_nemo(plan: Planned) -> Export:
    """Write a plan as overrides of a NeMo 2 recipe.

    Parameters
    ----------
    plan : Planned
        One grid for the whole model.

    Returns
    -------
    Export
        Accepted by the rules, read back as the same layout.

    Raises
    ------
    InputError
        A part of the model or of the layout cannot be said; the message names it.
    """
    refuse_adapters(plan.job, "NeMo, whose recipes set them up by name")
    known = resolve_version(Framework.NEMO, plan.version)
    with in_words_of(Framework.NEMO):
        words = override_words(plan, Framework.NEMO)
        check_rules(plan, Framework.NEMO, known)
        core = export_megatron(replace(plan, version=CORE[Framework.NEMO], recipe=True))
    machines = (f"trainer.num_nodes={len(plan.nodes)}", f"trainer.devices={plan.site.gpus_per_node}")
    return Export(
        framework=Framework.NEMO,
        version=known,
        arguments=(*machines, *words),
        environment=core.environment,
        nodes=plan.nodes,
        ranks=plan.ranks,
        notes=(
            RECIPE_NOTE,
            "NeMo accepts misspelt keys of trainer.strategy silently: change keys with care",
            *_kernel_notes(plan),
        ),
        program=_PROGRAM,
    )

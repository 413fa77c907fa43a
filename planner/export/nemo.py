"""A plan as overrides of a NeMo 2 recipe on nemo_run's command line.

NeMo's strategy takes any keyword without a word, so that a misspelt key would be lost; the keys here are those of one
table, and every export is read back before it is handed out.

References
----------
NeMo 2.7: ``nemo/lightning/pytorch/strategies/megatron_strategy.py``, ``nemo/collections/llm/recipes``.
"""

from collections.abc import Sequence
from typing import Final

from costmodels.job import TrainingJob
from costmodels.layout import Layout
from costmodels.workload.model import ModelSpec
from planner.export.bridge import override_words
from planner.export.launch import Export, Program, Site, node_rows, rank_rows
from planner.export.megatron import export_megatron
from planner.export.plan_checks import check_rules
from planner.ingest.bridge import CORE
from planner.plan_report import RankPlace
from planner.request import Framework
from planner.rules.table import resolve_version

_PROGRAM: Final = Program(
    target=(
        '"$(command -v nemo)" llm pretrain '
        '--factory "${MODEL_RECIPE:?set MODEL_RECIPE to a recipe such as llama3_8b}" --yes'
    ),
    script="",
    user_words="trainer.max_steps=20",
    user_says="further overrides, such as data, log and optim settings",
)


def export_nemo(
    model: ModelSpec,
    job: TrainingJob,
    layout: Layout,
    site: Site,
    *,
    placement: Sequence[RankPlace] = (),
    version: str | None = None,
) -> Export:
    """Write a plan as overrides of a NeMo 2 recipe.

    Parameters
    ----------
    model, job : ModelSpec, TrainingJob
        What is trained.
    layout : Layout
        The plan; one grid for the whole model.
    site : Site
        Hosts and GPUs, as many as the layout uses.
    placement : sequence of RankPlace, optional
        Which GPU each rank gets; identity by default.
    version : str, optional
        Such as ``2.7``; the newest known by default.

    Returns
    -------
    Export
        Accepted by the rules, read back as the same layout.

    Raises
    ------
    InputError
        A part of the model or of the layout cannot be said; the message names it.
    """
    known = resolve_version(Framework.NEMO, version)
    words = override_words(model, job, layout, site, framework=Framework.NEMO)
    check_rules(model, job, layout, Framework.NEMO, known)
    nodes = node_rows(site, placement)
    machines = (f"trainer.num_nodes={len(nodes)}", f"trainer.devices={site.gpus_per_node}")
    core = export_megatron(model, job, layout, site, placement=placement, version=CORE[Framework.NEMO])
    return Export(
        framework=Framework.NEMO,
        version=known,
        arguments=(*machines, *words),
        environment=core.environment,
        nodes=nodes,
        ranks=rank_rows(layout, nodes),
        notes=(
            "MODEL_RECIPE names the recipe; its model must be that of the plan: layers, sizes, experts",
            "NeMo accepts misspelt keys of trainer.strategy silently: change keys with care",
        ),
        program=_PROGRAM,
    )

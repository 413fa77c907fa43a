"""nanotron's YAML configuration read into the layout that it launches.

References
----------
nanotron ``src/nanotron/config/config.py`` and ``parallelism_config.py`` (sections and defaults),
``parallel/context.py`` (the product of the degrees is the number of processes),
``parallel/pipeline_parallel/engine.py`` (1F1B wants a micro-batch for every stage but one), ``helpers.py`` (ZeRO-1 is
the one stage), ``models/base.py`` (stages by shares of the compute).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Layout, Strategy
from costmodels.pipeline.schedules import Schedule
from costmodels.workload.architecture import Architecture
from costmodels.workload.model import ModelSpec
from hardware.errors import InputError
from hardware.package_table import package_table
from planner.evidence.stage_layers import nanotron_layers
from planner.ingest.judged import JudgedLaunch, LaunchInput, fault_violations, unknown_names
from planner.ingest.launch_text import LaunchText
from planner.ingest.options import Fault, close_name, whole
from planner.ingest.plain_layout import StatedLayout, uniform_stages
from planner.ingest.trainers.policies import number_of, settings_told
from planner.request import Framework
from planner.rules.proposal import facts_of
from planner.rules.verdict import accepted_at_launch, check

_SIGNS: Final = ("parallelism.dp", "parallelism.tp", "tokens.micro_batch_size")
_DEGREES: Final = ("dp", "tp", "pp", "context_parallel_size")
_MODEL: Final = "model.model_config"
_SIZES: Final = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
_EXPERTS: Final = ("moe_config.num_experts", "moe_num_experts")
_CHOSEN: Final = ("moe_config.top_k", "num_experts_per_tok")
_SOURCE: Final = "nanotron parallel/context.py and pipeline_parallel/engine.py"
_ONE_F_ONE_B: Final = "1f1b"


def is_nanotron(text: LaunchText) -> bool:
    """Whether a launch has the sections of a configuration of nanotron."""
    told = {word.partition("=")[0] for word in text.arguments}
    return all(sign in told for sign in _SIGNS)


def gpus_of_nanotron(text: LaunchText) -> int:
    """Processes that its degrees multiply to."""
    told = settings_told(text.arguments)
    product = 1
    for name in _DEGREES:
        product *= number_of(told, f"parallelism.{name}", 1)
    return product


def judge_nanotron(given: LaunchInput) -> JudgedLaunch:
    """Read and judge a launch of nanotron, whatever framework is asked about.

    Raises
    ------
    InputError
        Its model is neither named nor sized.
    """
    told = settings_told(given.text.arguments)
    model = given.model or _model(told)
    dp, tp, pp, cp = (number_of(told, f"parallelism.{name}", 1) for name in _DEGREES)
    micro, steps = (
        number_of(told, f"tokens.{name}", 1) for name in ("micro_batch_size", "batch_accumulation_per_replica")
    )
    schedule = told.get("parallelism.pp_engine", "afab").lower()
    strategy = Strategy(
        tp=tp,
        cp=cp,
        dp=dp,
        ep=number_of(told, "parallelism.expert_parallel_size", 1),
        sequence_parallel=tp > 1 and told.get("parallelism.tp_mode", "").upper() == "REDUCE_SCATTER",
        zero=min(1, whole(told.get("optimizer.zero_stage", "0")) or 0),
        recompute=FULL_RECOMPUTE if told.get("parallelism.recompute_layer", "") == "true" else NO_RECOMPUTE,
    )
    layout = Layout(
        stages=uniform_stages([(count,) for count in nanotron_layers(model, pp)], strategy),
        micro_batch=micro,
        num_microbatches=steps,
        schedule=Schedule.ONE_F_ONE_B if schedule == _ONE_F_ONE_B else Schedule.GPIPE,
    )
    stated = StatedLayout(
        layout=layout, global_batch=micro * steps * dp, seq=number_of(told, "tokens.sequence_length", 4096)
    )
    proposal = stated.proposals(facts_of(model), given.world)[0]
    faults = (*_unread(told), *_faults(schedule, pp, steps))
    own = fault_violations(faults, _SOURCE)
    found = (*own, *check(proposal, Framework.NONE, ""))
    accepted = accepted_at_launch(found)
    return JudgedLaunch(
        title="nanotron",
        framework=Framework.NONE,
        version="",
        world=given.world,
        violations=found,
        accepted=accepted,
        proposal=proposal,
        built=layout.layers_per_stage if accepted else None,
        layout=layout if accepted else None,
        model=model,
        precision="bf16",
        software="nanotron",
        unknown=unknown_names(faults),
        notes=given.text.notes,
    )


def _table() -> Mapping[str, Any]:
    return package_table("planner.ingest.trainers", "nanotron_keys.toml")


def _unread(told: Mapping[str, str]) -> Iterator[Fault]:
    """Keys that its dataclasses do not have (read strictly), and those without a default that are not told."""
    keys, needed = _table()["known"], _table()["needed"]
    known = tuple(f"{section}.{name}" for section, names in keys.items() for name in names)
    for name in told:
        section, _, rest = name.partition(".")
        if section in keys and (field := rest.partition(".")[0]) not in keys[section]:
            elsewhere = [key for key in known if key.endswith(f".{field}")]
            near = next(iter(elsewhere), "") or close_name(f"{section}.{field}", known)
            hint = f"; did you mean {near}?" if near else ""
            yield Fault(rule="nanotron-unknown-key", argument=name, message=f"{name} is unknown to nanotron{hint}")
    for name in needed:
        if name not in told:
            message = f"{name} is not told, and nanotron has no default; allowed: a whole number above 0"
            yield Fault(rule="nanotron-missing-key", argument=name, message=message)


def _faults(schedule: str, pp: int, steps: int) -> tuple[Fault, ...]:
    if schedule != _ONE_F_ONE_B or steps >= pp - 1:
        return ()
    name = "batch_accumulation_per_replica"
    message = f"1f1b of {pp} stages with {name} {steps}; allowed: {pp - 1} and more, or pp_engine afab"
    return (Fault(rule="nanotron-microbatches", argument=name, message=message),)


def _first(told: Mapping[str, str], names: Sequence[str]) -> int:
    return next(filter(None, (number_of(told, f"{_MODEL}.{name}", 0) for name in names)), 0)


def _model(told: Mapping[str, str]) -> ModelSpec:
    sizes = {name: whole(told.get(f"{_MODEL}.{name}", "")) or 0 for name in _SIZES}
    if not all(sizes.values()):
        missing = ", ".join(name for name, size in sizes.items() if not size)
        raise InputError(f"{_MODEL} does not say {missing}", allowed="them, or --model MODEL")
    experts, top_k = (_first(told, names) for names in (_EXPERTS, _CHOSEN))
    facts = Architecture(
        layers=sizes["num_hidden_layers"],
        hidden=sizes["hidden_size"],
        heads=sizes["num_attention_heads"],
        kv_heads=number_of(told, f"{_MODEL}.num_key_value_heads", 0),
        vocab=sizes["vocab_size"],
        ffn=sizes["intermediate_size"],
        gated=True,
        norm="rms",
        rotary=True,
        tied=told.get(f"{_MODEL}.tie_word_embeddings", "") == "true",
        max_positions=number_of(told, f"{_MODEL}.max_position_embeddings", 0),
        experts=experts,
        top_k=(top_k or 1) if experts else 0,
    )
    return facts.build("model of the configuration", sources=("nanotron configuration",), where=_MODEL)

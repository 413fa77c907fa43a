"""Megatron-LM arguments read into what they launch: grid, batch, split into stages, model sizes and switches.

The parser's defaults are those of megatron-core 0.19 (and 0.13 where they differ); nothing is evaluated or imported.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from costmodels.layout import Granularity, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from hardware.errors import InputError
from planner.ingest.megatron.hybrid_pattern import (
    DELTA_KEY_HEADS,
    DELTA_VALUE_HEADS,
    OPTION,
    HybridPattern,
    builds_evenly,
    hybrid_facts,
    hybrid_pattern,
)
from planner.ingest.megatron.layer_pattern import moe_pattern
from planner.ingest.megatron.layers_file import PATH, common_width, without_idle
from planner.ingest.megatron.option_facts import RAMPS_BEFORE, batches_of, option_facts
from planner.ingest.megatron.switches import LATER, switches_of
from planner.ingest.open_values import supposed
from planner.ingest.options import Arguments, Fault, megatron_options, read_arguments, rest_stands
from planner.request import Framework
from planner.rules.proposal import (
    ModelFacts,
    Proposal,
    Split,
    Switches,
    group_of,
    rank_order_of,
    replicas_of,
    shard_group_of,
)
from planner.rules.split import Layers, layers_built, virtual_degree
from planner.rules.table import SPLIT_CHECK, Found, all_rules, resolve_version, version_key
from planner.rules.verdict import Violation, accepted_at_launch, check, in_all

_REQUIRED: Final = (
    "--hidden-size",
    "--num-attention-heads",
    "--max-position-embeddings",
    "--seq-length",
    "--micro-batch-size",
)
_REQUIRED_OF_ANY_MODEL: Final = ("--seq-length", "--micro-batch-size")
_ENCODER: Final = (("--num-layers", "--encoder-num-layers"), ("--seq-length", "--encoder-seq-length"))
_VIRTUAL: Final = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage")
_LAYOUT: Final = "--pipeline-model-parallel-layout"
_ENDS: Final = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
MOST_WORLD: Final = 100_000_000
_STRATEGY_ZERO: Final = MappingProxyType({"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3})


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch of Megatron-LM as read from its arguments.

    Attributes
    ----------
    version : str
        Core version whose parser is meant.
    proposal : Proposal
        What the rules judge; meaningful where the arguments have no faults.
    faults : tuple of Fault
        Arguments that the parser refuses: unknown, of the wrong type, missing.
    arguments : Arguments
        Every option with its values.
    supposed : tuple of Proposal
        The same with other values of options whose own are wrong or missing; empty where none are.
    unsure : tuple of str
        These options.
    """

    version: str
    proposal: Proposal
    faults: tuple[Fault, ...]
    arguments: Arguments
    supposed: tuple[Proposal, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Layers of the model, without those that do nothing."""
        return without_idle(self.arguments, ((self.proposal.model.layers,),))[0][0]


@dataclass(frozen=True, kw_only=True)
class LaunchVerdict:
    """Judgement on a launch.

    Attributes
    ----------
    legal : bool
        No rule is broken.
    accepted : bool
        The framework would let it start; it may still fail in the first forward pass.
    violations : tuple of Violation
        What is wrong.
    layers_per_stage : tuple of tuples of int, or None
        Layers that would be built for each stage and virtual chunk; None when the split is refused before.
    """

    legal: bool
    accepted: bool
    violations: tuple[Violation, ...]
    layers_per_stage: tuple[tuple[int, ...], ...] | None


def parse_megatron(
    arguments: Sequence[str],
    *,
    world: int,
    version: str | None = None,
    environment: Mapping[str, str] | None = None,
    model: ModelFacts | None = None,
    unsure: Sequence[str] = (),
) -> Launch:
    """Read a Megatron-LM argument list.

    Parameters
    ----------
    arguments : sequence of str
        As after ``pretrain_gpt.py``.
    world : int
        Number of ranks.
    version : str, optional
        Core version such as ``0.13``; the newest known by default.
    environment : mapping of str to str, optional
        Environment of the launch; without it nothing is said about environment variables.
    model : ModelFacts, optional
        Sizes of the model, where the arguments do not build it; then they need not state any.
    unsure : sequence of str
        Options that a value was meant for which cannot be read.

    Returns
    -------
    Launch
        Also when the arguments are wrong: what is wrong stands in its faults, and :func:`judge` finds the rest.

    Raises
    ------
    InputError
        The version is not understood or older than the rules, or no job has so many ranks.
    """
    if not 1 <= world <= MOST_WORLD:
        raise InputError(f"--world-size {world}", allowed=f"1 to {MOST_WORLD} GPUs")
    known = resolve_version(Framework.MEGATRON, version)
    read = read_arguments(arguments, megatron_options(known))
    pattern, unread = _pattern(read, known)
    read = _with_decoder_names(replace(read, given={**read.given, **pattern.counts}) if pattern else read)
    missing = _missing(read, () if unread else ("--num-layers",), own=model is None)
    faults = (*read.faults, *missing, *unread)

    def proposed(words: Arguments) -> Proposal:
        switches = replace(switches_of(words, known, environment), **(_built_elsewhere(model) if model else {}))
        facts = _model(words, pattern) if model is None else model
        return _proposal_of(words, world, facts, switches, known, pattern)

    layers = ("--num-layers",) if unread else ()
    names = (*(fault.argument for fault in faults if not fault.unknown), *unsure, *layers)
    return Launch(
        version=known,
        proposal=proposed(read),
        faults=faults,
        arguments=read,
        supposed=tuple(map(proposed, supposed(read, megatron_options(known), dict.fromkeys(names)))),
        unsure=names,
    )


def _with_decoder_names(read: Arguments) -> Arguments:
    """Arguments whose older names of a model's sizes are those of today."""
    for name, other in _ENCODER:
        if not read.has(name) and read.has(other):
            renamed = {name if option == other else option: values for option, values in read.given.items()}
            read = replace(read, given=renamed)
    return read


def _proposal_of(
    words: Arguments, world: int, facts: ModelFacts, switches: Switches, known: str, pattern: HybridPattern | None
) -> Proposal:
    """What arguments propose; a virtual stage alone is interleaved by early cores."""
    segments = tuple(map(len, pattern.segments)) if pattern else ()
    proposal = _proposal(words, world, facts, switches, version=known, segments=segments)
    if version_key(known) < LATER and proposal.vpp == 1 and any(words.has(name) for name in _VIRTUAL):
        return replace(proposal, switches=replace(switches, interleaved_one=True))
    return proposal


def judge(launch: Launch) -> LaunchVerdict:
    """Judge a launch by the rules of its version.

    Returns
    -------
    LaunchVerdict
        Faults of single arguments come first; where a value is wrong or missing, what is wrong whatever it would be.
    """
    faults = tuple(
        Violation(
            rule=fault.rule,
            message=fault.message,
            values={"argument": fault.argument},
            found=fault.found,
            source="Megatron-LM arguments.py, parse_args and validate_args",
        )
        for fault in launch.faults
    )
    stands = rest_stands(launch.faults)
    found = (*faults, *broken_rules(launch, Framework.MEGATRON, launch.version))
    splits = (rule.id for rule in all_rules() if rule.check == SPLIT_CHECK and rule.found is not Found.NEVER)
    uncounted = {"degrees-positive", *splits}
    counted = stands and not uncounted & {violation.rule for violation in found}
    return LaunchVerdict(
        legal=not found,
        accepted=accepted_at_launch(found),
        violations=found,
        layers_per_stage=layers_built(launch.proposal) if counted else None,
    )


def broken_rules(launch: Launch, framework: Framework, version: str) -> tuple[Violation, ...]:
    """Rules of a framework that a launch breaks; where values are wrong or missing, whatever they would be.

    Parameters
    ----------
    launch : Launch
        As read.
    framework, version : Framework, str
        Whose rules count: Megatron-LM, or one that builds on its core.
    """
    if rest_stands(launch.faults):
        return check(launch.proposal, framework, version)
    found = in_all([check(proposal, framework, version) for proposal in launch.supposed or (launch.proposal,)])
    if not {_LAYOUT, OPTION} & set(launch.unsure):
        return found
    splits = {rule.id for rule in all_rules() if rule.check == SPLIT_CHECK}  # which a text that is wrong decides on
    return tuple(one for one in found if one.rule not in splits)


def _missing(read: Arguments, layers: tuple[str, ...], *, own: bool) -> list[Fault]:
    """Options that must be given and are not, with sizes where a launch builds its own model; a layout without text."""
    found = []
    if read.has(_LAYOUT) and not read.text(_LAYOUT).strip():
        message = f'option {_LAYOUT} is empty; allowed: stages such as "Et*16|t*16L", or to leave it out'
        found.append(Fault(rule="megatron-option-value", argument=_LAYOUT, message=message))
    required = (*layers, *_REQUIRED) if own else _REQUIRED_OF_ANY_MODEL
    missing = [name for name in required if not read.has(name)]
    return found + [
        Fault(rule="megatron-option-missing", argument=name, message=f"option {name} is missing") for name in missing
    ]


def _pattern(read: Arguments, version: str) -> tuple[HybridPattern | None, tuple[Fault, ...]]:
    try:
        return hybrid_pattern(read, version), ()
    except InputError as error:
        return None, (Fault(rule="megatron-option-value", argument=OPTION, message=str(error)),)


def _model(read: Arguments, hybrid: HybridPattern | None) -> ModelFacts:
    layers, hidden = read.number("--num-layers", 0), read.number("--hidden-size", 0)
    heads = read.number("--num-attention-heads", 0)
    experts = read.number("--num-experts", 0)
    pattern: tuple[bool, ...] = (experts > 0,) * layers
    if experts and not hybrid:
        with suppress(InputError):  # a pattern that does not fit the layers is told by a rule
            pattern = moe_pattern(read.text("--moe-layer-freq", "1"), layers)
    ffn = read.number("--ffn-hidden-size", _default_ffn(hidden, read.has("--swiglu")))
    grouped = read.has("--group-query-attention")
    latent = read.has("--multi-latent-attention")
    delta = read.text("--experimental-attention-variant") == "gated_delta_net"
    facts = ModelFacts(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=read.number("--num-query-groups", 1) if grouped else heads,
        ffn=0 if experts and all(pattern) else common_width(read, ffn),
        experts=experts,
        top_k=read.number("--moe-router-topk", 2) if experts else 0,
        expert_ffn=read.number("--moe-ffn-hidden-size", ffn) if experts else 0,
        shared_ffn=read.number("--moe-shared-expert-intermediate-size", 0) if experts else 0,
        vocab=read.number("--vocab-size", 0),
        mtp=abs(read.number("--mtp-num-layers", 0)),  # Megatron-LM asks whether it is 0
        max_positions=read.number("--max-position-embeddings", 0),
        delta_key_heads=read.number("--linear-num-key-heads", DELTA_KEY_HEADS) if delta else 0,
        delta_value_heads=read.number("--linear-num-value-heads", DELTA_VALUE_HEADS) if delta else 0,
        latent=latent,
        untied=read.has("--untie-embeddings-and-output-weights"),
        linear_bias=not read.has("--disable-bias-linear"),
        unlike_layers=read.has(PATH),
    )
    return hybrid_facts(facts, read, hybrid, ffn) if hybrid else facts


def _built_elsewhere(model: ModelFacts) -> dict[str, bool]:
    """Switches of a model that a recipe builds: its own sizes are stated and go together."""
    return {
        "rope_or_no_positions": True,
        "head_dim_given": True,
        "query_groups_given": not model.latent,
        "expert_ffn_given": model.experts > 0,
        "sigmoid_router": True,
        "pre_softmax": True,
    }


def _default_ffn(hidden: int, gated: bool) -> int:
    """Feed-forward width when none is given: four times the hidden size, two thirds of it when gated."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _proposal(
    read: Arguments, world: int, model: ModelFacts, switches: Switches, *, version: str, segments: tuple[int, ...]
) -> Proposal:
    tp = read.number("--tensor-model-parallel-size", 1)
    pp = read.number("--pipeline-model-parallel-size", 1)
    cp = read.number("--context-parallel-size", 1)
    etp = read.number("--expert-tensor-parallel-size", tp)
    gtp = max(1, switches.weight_shards // tp) if tp > 0 else 1
    split = Split(
        virtual_stages=_stated(read, "--num-virtual-stages-per-pipeline-rank"),
        layers_per_virtual_stage=_stated(read, "--num-layers-per-virtual-pipeline-stage"),
        first=_stated(read, "--decoder-first-pipeline-num-layers"),
        last=_stated(read, "--decoder-last-pipeline-num-layers"),
        account_embedding=read.has("--account-for-embedding-in-pipeline-split"),
        account_loss=read.has("--account-for-loss-in-pipeline-split"),
        layout=read.text(_LAYOUT),
        segments=segments,
        even=bool(segments) and builds_evenly(version, ends=any(read.has(name) for name in _ENDS)),
    )
    micro_batch = read.number("--micro-batch-size", 1)
    replicas = replicas_of(world, tp, pp, cp, gtp)
    first, last = batches_of(read, micro_batch * replicas, ramps=version_key(version) < RAMPS_BEFORE)
    return Proposal(
        world=world,
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=virtual_degree(split, model.layers, pp),
        ep=read.number("--expert-model-parallel-size", 1),
        etp=etp,
        gtp=gtp,
        egtp=max(1, switches.expert_weight_shards // etp) if etp > 0 else 1,
        zero=_zero(read, switches),
        micro_batch=micro_batch,
        global_batch=last,
        seq=read.number("--seq-length", 1),
        sequence_parallel=read.has("--sequence-parallel") and tp > 1,
        model=model,
        split=split,
        switches=replace(switches, first_batch=first if first != last else 0),
        options=tuple({**read.given, **option_facts(read, model.layers, micro_batch * replicas, version)}.items()),
    )


def _stated(read: Arguments, name: str) -> int:
    """Number of a split's option: -1 when it is not given, 0 for all that are below 1."""
    return max(0, read.number(name, 0)) if read.has(name) else -1


def _zero(read: Arguments, switches: Switches) -> int:
    """ZeRO stage that the sharding flags amount to."""
    if switches.torch_fsdp:
        return 3
    if switches.megatron_fsdp:
        default = "no_shard" if read.has("--use-custom-fsdp") else "optim_grads_params"
        return _STRATEGY_ZERO.get(read.text("--data-parallel-sharding-strategy", default), 3)
    return int(switches.distributed_optimizer)


def layout_of(launch: Launch) -> Layout:
    """State an accepted launch as a layout.

    Parameters
    ----------
    launch : Launch
        Its arguments have no faults and its split can be built.

    Returns
    -------
    Layout
        With the recompute of each layer.

    Raises
    ------
    InputError
        The launch is refused before its layers are known.
    """
    verdict = judge(launch)
    built = verdict.layers_per_stage
    if built is None or not verdict.accepted:
        first = verdict.violations[0].message if verdict.violations else "its layers cannot be counted"
        raise InputError(f"these arguments do not launch: {first}")
    return layout_built(launch, built)


def layout_built(launch: Launch, built: Layers) -> Layout:
    """State a launch as a layout, whatever rules it breaks.

    Parameters
    ----------
    launch : Launch
        Its arguments have no faults.
    built : tuple of tuples of int
        Layers of each stage and virtual chunk; those that do nothing are left out of the layout.
    """
    proposal, read = launch.proposal, launch.arguments
    dp = proposal.world // (proposal.tp * proposal.pp * proposal.cp * proposal.gtp)
    plain = Strategy(
        tp=proposal.tp,
        cp=proposal.cp,
        dp=dp,
        ep=proposal.ep,
        etp=proposal.etp if proposal.model.experts else 1,
        sequence_parallel=proposal.sequence_parallel,
        zero=proposal.zero,
        shard_group=shard_group_of(proposal, dp),
    )
    stages = tuple(
        Stage(layers_per_chunk=chunks, strategies=_runs(plain, chunks, read, proposal))
        for chunks in without_idle(read, built)
    )
    return Layout(
        stages=stages,
        micro_batch=proposal.micro_batch,
        num_microbatches=proposal.global_batch // (proposal.micro_batch * dp),
        schedule=Schedule.INTERLEAVED if proposal.vpp > 1 else Schedule.ONE_F_ONE_B,
        rank_order=rank_order_of(proposal, dp),
        microbatch_group=group_of(proposal),
    )


def _runs(plain: Strategy, chunks: tuple[int, ...], read: Arguments, proposal: Proposal) -> tuple[StrategyRun, ...]:
    """Strategies of a stage in layer order; ``block`` recomputes the first layers of every chunk."""
    switches = proposal.switches
    if switches.recompute_selective:
        modules = read.texts("--recompute-modules") or ("core_attn",)
        recompute = Recompute(granularity=Granularity.SELECTIVE, modules=tuple(modules))
        return _merged([(replace(plain, recompute=recompute), sum(chunks))])
    if not switches.recompute_full:
        return _merged([(plain, sum(chunks))])
    full = replace(plain, recompute=Recompute(granularity=Granularity.FULL))
    if read.text("--recompute-method") == "uniform":
        return _merged([(full, sum(chunks))])
    pieces = []
    for count in chunks:
        recomputed = min(count, switches.recompute_layers)
        pieces += [(full, recomputed), (plain, count - recomputed)]
    return _merged(pieces)


def _merged(pieces: list[tuple[Strategy, int]]) -> tuple[StrategyRun, ...]:
    """Join equal neighbours and drop empty pieces; a stage without layers keeps one empty run."""
    runs: list[StrategyRun] = []
    for strategy, count in pieces:
        if runs and runs[-1].strategy == strategy:
            runs[-1] = StrategyRun(strategy=strategy, count=runs[-1].count + count)
        elif count or not runs:
            runs.append(StrategyRun(strategy=strategy, count=count))
    return tuple(run for run in runs if run.count) or (runs[0],)

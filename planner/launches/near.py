"""What is legal near a launch that is not, in the words that its user would write, each judged again."""

from dataclasses import replace
from typing import Final

from hardware.errors import InputError
from planner.ingest.deepspeed import configuration
from planner.ingest.judge import judge_launch
from planner.ingest.judge_stated import deepspeed_text
from planner.ingest.judged import JudgedLaunch, LaunchInput, no_layout_rule
from planner.ingest.options import megatron_options, without_unknown
from planner.ingest.torchtitan import command_line, switches
from planner.ingest.torchtitan.words import before_checkpoint
from planner.ingest.trainers.words import without_options
from planner.launches.restated import restated
from planner.request import Framework
from planner.rules.nearest import Neighbour, nearest_legal
from planner.rules.proposal import Proposal, replicas_of

NAMED: Final = 3
_TRIED: Final = 12
_P: Final = "--parallelism."
_T: Final = "--training."
Written = tuple[tuple[str, str, int, int], ...]
"""Changes: option, its short name, old and new value."""


def near_launch(judged: JudgedLaunch, given: LaunchInput) -> tuple[Neighbour, ...]:
    """Find the legal launches nearest to one that is not.

    Every one is written into the launch, in its own words, and judged as that launch is. torchtitan's batch follows
    from the local one, and its micro-batches from both: changes of it are stated as its options. Arguments that are
    not known are left out of a launch in flags or overrides.

    Parameters
    ----------
    judged : JudgedLaunch
        The answer on the launch.
    given : LaunchInput
        The launch.

    Returns
    -------
    tuple of Neighbour
        Fewest changes first; empty for a legal launch and where nothing near is legal.
    """
    if has_unknown(judged):
        given = _without_unknown(judged, given)
        again = _judged(given, legal=False)
        judged = again if again is not None and not has_unknown(again) else judged
    proposal = judged.proposal
    if proposal is None or judged.legal or not judged.version:  # without a version: of a trainer that has no degrees
        return ()
    if any(violation.rule == no_layout_rule(Framework.DEEPSPEED) for violation in judged.violations):
        mended = _mended_batches(proposal, given)
        if mended:
            return mended
    if {judged.framework, given.framework} != {Framework.TORCHTITAN}:  # FSDP by accelerate is judged as torchtitan's
        return _legal_as_written(judged, given)
    near = nearest_legal(proposal, judged.framework, version=judged.version, count=_TRIED)
    mends = tuple((switch, switches.MENDING[switch], 0, 1) for switch in _switches_needed(judged))
    read = command_line.read_torchtitan(given.text.arguments, world=given.world)
    candidates = [proposal, _filled(proposal), *(one.proposal for one in near)]
    written = dict.fromkeys((*_written(candidate, read), *mends) for candidate in candidates)
    found: list[Neighbour] = []
    for changes in sorted(filter(None, written), key=len):
        again = _judged_again(changes, given)
        told = tuple((name, old, new) for _, name, old, new in changes)
        if again is None or again.proposal is None or any(set(one.changes) <= set(told) for one in found):
            continue
        built = again.built or ()
        found.append(Neighbour(proposal=again.proposal, changes=told, layers_per_stage=built, split=False))
        if len(found) == NAMED:
            break
    return tuple(found)


def _legal_as_written(judged: JudgedLaunch, given: LaunchInput) -> tuple[Neighbour, ...]:
    """What is near by degrees, each written into the launch and judged as it then stands."""
    found: list[Neighbour] = []
    proposal = judged.proposal
    near = nearest_legal(proposal, judged.framework, version=judged.version, count=_TRIED) if proposal else ()
    for one in near:
        stated = (one.changes or one.split) and one.proposal.said_by(judged.sayable)
        written = restated(one, given) if stated else None  # none: what is wrong is no degree, or none that is told
        again = _judged(written) if written else None
        if again is not None and again.proposal is not None:
            found.append(replace(one, proposal=again.proposal, layers_per_stage=again.built or one.layers_per_stage))
        if len(found) == NAMED:
            break
    return tuple(found)


def _mended_batches(proposal: Proposal, given: LaunchInput) -> tuple[Neighbour, ...]:
    """The launch of DeepSpeed with one of the numbers of its batch changed so that the three multiply out."""
    text = deepspeed_text(given)
    launch = configuration.parse_deepspeed(text.config, text.arguments, world=given.world)
    dp = replicas_of(given.world, proposal.tp, proposal.cp, proposal.pp)
    return tuple(
        Neighbour(proposal=proposal, changes=(change,), layers_per_stage=(), split=False)
        for change in configuration.mended_batches(launch, dp)
    )


def _switches_needed(judged: JudgedLaunch) -> tuple[str, ...]:
    """Switches that mend what no degree does."""
    needed = {violation.values.get("argument") for violation in judged.violations}
    return tuple(dict.fromkeys(switch for switch in switches.MENDING if switch in needed))


def _filled(proposal: Proposal) -> Proposal:
    """The same grid with a batch whose micro-batches fill the pipeline."""
    dp = replicas_of(proposal.world, proposal.tp, proposal.cp, proposal.pp)
    return replace(proposal, dp=0, global_batch=dp * proposal.micro_batch * proposal.pp)


def _written(wanted: Proposal, read: command_line.TitanLaunch) -> Written:
    """Options that differ from those of the launch; none where its options cannot say it."""
    grid = max(1, wanted.tp * wanted.cp * wanted.pp)
    dp, number = wanted.world // grid, read.arguments.number
    replicas = max(1, number(f"{_P}data_parallel_replicate_degree", 1))
    if wanted.world != read.world or dp < 1 or wanted.global_batch % dp or dp % replicas:
        return ()
    local = wanted.global_batch // dp if wanted.pp > 1 else wanted.micro_batch
    settings = [
        (f"{_P}tensor_parallel_degree", "tp", 1, wanted.tp),
        (f"{_P}pipeline_parallel_degree", "pp", 1, wanted.pp),
        (f"{_P}context_parallel_degree", "cp", 1, wanted.cp),
        (f"{_P}expert_parallel_degree", "ep", 1, wanted.ep),
        (f"{_T}local_batch_size", "local_batch_size", 8, local),
    ]
    if wanted.pp > 1:
        settings.append((f"{_P}pipeline_parallel_microbatch_size", "micro_batch", 1, wanted.micro_batch))
    if number(f"{_T}global_batch_size", -1) > 0:
        settings.append((f"{_T}global_batch_size", "global_batch", -1, wanted.global_batch))
    if number(f"{_P}data_parallel_shard_degree", -1) > 0:
        settings.append((f"{_P}data_parallel_shard_degree", "data_parallel_shard_degree", -1, dp // replicas))
    told = [(option, name, number(option, default), new) for option, name, default, new in settings]
    return tuple(change for change in told if change[2] != change[3])


def _judged_again(changes: Written, given: LaunchInput) -> JudgedLaunch | None:
    """The answer on a launch with the changes behind it; None where it is not legal."""
    words = [
        word
        for option, _, _, new in changes
        for word in ((option,) if option in switches.MENDING else (option, str(new)))
    ]
    arguments = before_checkpoint(given.text.arguments, words)
    return _judged(replace(given, text=replace(given.text, arguments=arguments)))


def has_unknown(judged: JudgedLaunch) -> bool:
    """Whether a launch is refused for an argument that is not known."""
    return any("unknown" in found.rule for found in judged.violations if found.refused_at_launch)


def _without_unknown(judged: JudgedLaunch, given: LaunchInput) -> LaunchInput:
    """A launch in flags or overrides without those that its framework, or trainer, does not know."""
    words = given.text.arguments
    if given.framework is Framework.MEGATRON:
        words, _ = without_unknown(words, megatron_options(given.version))
    elif given.framework is Framework.DEEPSPEED:
        words = without_options(words, judged.unknown)
    elif given.framework in (Framework.BRIDGE, Framework.NEMO):
        words = tuple(word for word in words if word.lstrip("+").partition("=")[0] not in judged.unknown)
    return replace(given, text=replace(given.text, arguments=words))


def _judged(given: LaunchInput, *, legal: bool = True) -> JudgedLaunch | None:
    """The answer on a launch; None where it cannot be read, or is not legal and must be."""
    try:
        again = judge_launch(given)
    except InputError:
        return None
    return again if again.legal or not legal else None

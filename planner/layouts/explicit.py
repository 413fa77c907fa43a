"""A layout that the user spells out degree by degree, completed and checked."""

import re
from dataclasses import dataclass, replace
from typing import Final

from costmodels.layout import NO_RECOMPUTE, Layout, RankOrder, Recompute, Stage, Strategy, StrategyRun
from costmodels.pipeline.schedules import Schedule
from costmodels.pricing import Constants, Pricing
from hardware.errors import InputError
from planner.layouts.grids import expert_count
from planner.layouts.recompute_options import check_modules
from planner.layouts.recompute_words import parse_recompute_words
from planner.layouts.splits import even_chunks
from planner.nearest import choice
from planner.offloads import recompute_under
from planner.request import Framework, PlanRequest

MOST_POSITIONS: Final = 10_000
_ITEM: Final = re.compile(r"(?P<counts>\d+(?:/\d+)*)(?:x(?P<times>\d+))?")


@dataclass(frozen=True, kw_only=True)
class ExplicitLayout:
    """Degrees and choices as the user gave them; None means not given.

    Attributes
    ----------
    layers_per_stage : str or None
        ``21,21,19,19``; virtual chunks ``11/10,11/10,10/9,10/9``; repeats ``21x2,19x2``.
    zero : int or None
        ZeRO stage; None: the framework's own.
    shard_group : int or None
        Ranks that ZeRO shards over; None: all of dp x cp.
    recompute : str
        As in :func:`planner.layouts.recompute_words.parse_recompute_words`.
    """

    tp: int = 1
    pp: int | None = None
    cp: int = 1
    vpp: int | None = None
    ep: int = 1
    etp: int | None = None
    dp: int | None = None
    zero: int | None = None
    shard_group: int | None = None
    micro_batch: int = 1
    layers_per_stage: str | None = None
    sequence_parallel: bool | None = None
    schedule: str | None = None
    recompute: str = "none"
    rank_order: str | None = None


def layout_of(request: PlanRequest, wanted: ExplicitLayout) -> Layout:
    """Complete an explicit layout.

    Parameters
    ----------
    request : PlanRequest
        Model, cluster and job.
    wanted : ExplicitLayout
        What the user gave. Without ``dp`` the rest of the GPUs is data parallel; without ``etp`` experts are not
        split when they are spread (``ep`` above 1), else split as the dense layers are; without ``layers_per_stage``
        the split is even, as frameworks make it.

    Returns
    -------
    Layout

    Raises
    ------
    InputError
        The degrees do not multiply to GPUs that the cluster has, the batch does not divide, or the layers do not add
        up to the model's.
    """
    chunks = None if wanted.layers_per_stage is None else parse_layers(wanted.layers_per_stage)
    schedule, pp, vpp = _pipeline(wanted, chunks)
    strategy = _strategy(request, wanted, pp)
    recompute, first_layers = parse_recompute_words(recompute_under(request.job.software, wanted.recompute))
    island = request.cluster.islands[0]
    check_modules(
        recompute,
        request.framework,
        Pricing(model=request.model, job=request.job, island=island, constants=Constants()),
    )
    split = _split(request, chunks, pp, vpp)
    longest = max(map(max, split))
    if first_layers > longest:
        part = "virtual chunk" if vpp > 1 else "stage"
        raise InputError(
            f"--recompute {wanted.recompute!r}: no {part} has more than {longest} layers",
            allowed=f"full:1 to full:{longest}, or full for all of them",
        )
    return Layout(
        stages=tuple(_stage(counts, strategy, recompute, first_layers) for counts in split),
        micro_batch=wanted.micro_batch,
        num_microbatches=_num_microbatches(request, strategy.dp, wanted.micro_batch),
        schedule=schedule,
        rank_order=choice(RankOrder, wanted.rank_order or RankOrder.DP_INSIDE, "--rank-order"),
    )


def parse_layers(text: str) -> tuple[tuple[int, ...], ...]:
    """Read layers per stage, such as ``21,21,19,19``, ``11/10,11/10`` or ``10x8``.

    Returns
    -------
    tuple of tuples of int
        Per stage, the layers of each virtual chunk as written; stages that name one number have one chunk.

    Raises
    ------
    InputError
        The text is not understood.
    """
    stages: list[tuple[int, ...]] = []
    for item in text.split(","):
        found = _ITEM.fullmatch(item.strip().lower())
        times = int(found["times"] or 1) if found else 0
        if found is None or not 1 <= times <= MOST_POSITIONS - len(stages):
            raise InputError(
                f"--layers-per-stage {text!r}: {item.strip()!r} is not understood",
                allowed="counts such as 21,21,19,19, chunks such as 11/10,11/10, repeats such as 10x8",
            )
        stages += [tuple(int(count) for count in found["counts"].split("/"))] * times
    return tuple(stages)


def own_zero(framework: Framework, pp: int) -> int:
    """ZeRO stage of a framework that is told none.

    torchtitan shards everything, and gathers weights again for the backward pass unless there is a pipeline
    (``reshard_after_forward_policy``); Galvatron replicates (``default_dp_type ddp``); of the others the optimizer's
    states are sharded, as their recipes are.
    """
    if framework is Framework.TORCHTITAN:
        return 3 if pp == 1 else 2
    return 0 if framework is Framework.GALVATRON else 1


def _pipeline(wanted: ExplicitLayout, chunks: tuple[tuple[int, ...], ...] | None) -> tuple[Schedule, int, int]:
    """Schedule, pipeline degree and virtual chunks, from what is given and what it implies."""
    pp = wanted.pp or (len(chunks) if chunks else 1)
    if chunks and len(chunks) != pp:
        raise InputError(f"--layers-per-stage names {len(chunks)} stages and --pp {pp}", allowed="the same number")
    written = {len(stage) for stage in chunks or ()}
    if len(written) > 1:
        raise InputError(
            f"--layers-per-stage {wanted.layers_per_stage!r} gives stages unlike numbers of chunks",
            allowed="equally many chunks on every stage",
        )
    implied = max(written, default=1)
    schedule = None if wanted.schedule is None else choice(Schedule, wanted.schedule, "--schedule")
    fixed = schedule.fixed_vpp if schedule else None
    vpp = wanted.vpp or (implied if implied > 1 else fixed or 1)
    if implied > 1 and implied != vpp:
        raise InputError(f"--layers-per-stage gives {implied} chunks per stage and --vpp {vpp}", allowed="one number")
    if schedule is None:
        schedule = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    elif schedule is Schedule.ONE_F_ONE_B and vpp > 1:
        schedule = Schedule.INTERLEAVED
    if pp == 1 and vpp > 1:
        told = (
            f"--vpp {vpp}"
            if wanted.vpp or not fixed
            else f"--schedule {schedule}, which has {vpp} virtual chunks a stage,"
        )
        raise InputError(f"{told} with --pp 1", allowed="--pp 2 or more with virtual chunks")
    return schedule, pp, vpp


def _strategy(request: PlanRequest, wanted: ExplicitLayout, pp: int) -> Strategy:
    dp = wanted.dp or _rest(request.cluster.gpus, wanted, pp)
    used = wanted.tp * wanted.cp * pp * dp
    if used > request.cluster.gpus:
        raise InputError(
            f"tp {wanted.tp} x cp {wanted.cp} x pp {pp} x dp {dp} is {used} GPUs and {request.cluster.name} has "
            f"{request.cluster.gpus}",
            allowed=f"degrees that multiply to {request.cluster.gpus} or fewer",
        )
    ep, etp = _experts(request, wanted, wanted.tp * wanted.cp * dp)
    zero = own_zero(request.framework, pp) if wanted.zero is None else wanted.zero
    if request.job.software.state_offload and zero != 3:
        raise InputError(f"--offload states with ZeRO-{zero}", allowed="--zero 3")
    ranks = dp * wanted.cp
    group = wanted.shard_group or ranks
    if group != ranks and (not zero or ranks % group):
        raise InputError(
            f"--shard-group {group} with ZeRO-{zero} over dp {dp} x cp {wanted.cp}",
            allowed=f"a divisor of {ranks}, with --zero 1 to 3",
        )
    return Strategy(
        tp=wanted.tp,
        cp=wanted.cp,
        dp=dp,
        ep=ep,
        etp=etp,
        sequence_parallel=wanted.tp > 1 and wanted.sequence_parallel is not False,
        zero=zero if ranks > 1 else 0,
        shard_group=group if group != ranks else 0,
    )


def _rest(gpus: int, wanted: ExplicitLayout, pp: int) -> int:
    """Data-parallel degree that the other degrees leave."""
    model_gpus = wanted.tp * wanted.cp * pp
    dp, rest = divmod(gpus, model_gpus)
    if rest or not dp:
        raise InputError(
            f"tp {wanted.tp} x cp {wanted.cp} x pp {pp} = {model_gpus} does not divide the cluster's {gpus} GPUs",
            allowed=f"degrees whose product divides {gpus}, or --dp to leave GPUs idle",
        )
    return dp


def _experts(request: PlanRequest, wanted: ExplicitLayout, stage_gpus: int) -> tuple[int, int]:
    experts = expert_count(request.model)
    if not experts:
        if wanted.ep > 1 or (wanted.etp or 1) > 1:
            raise InputError(
                f"--ep {wanted.ep} --etp {wanted.etp or 1}: {request.model.name} has no experts",
                allowed="--ep 1 and no --etp",
            )
        return 1, 1
    etp = wanted.etp or (1 if wanted.ep > 1 else wanted.tp)
    if experts % wanted.ep:
        raise InputError(f"--ep {wanted.ep} does not divide {experts} experts", allowed=f"a divisor of {experts}")
    if stage_gpus % (wanted.ep * etp):
        raise InputError(
            f"ep {wanted.ep} x etp {etp} does not divide the {stage_gpus} GPUs of a stage",
            allowed=f"ep x etp that divides tp x cp x dp = {stage_gpus}",
        )
    return wanted.ep, etp


def _num_microbatches(request: PlanRequest, dp: int, micro_batch: int) -> int:
    batch = request.job.global_batch
    count, rest = divmod(batch, dp * micro_batch)
    if rest or not count:
        raise InputError(
            f"global batch {batch} is no multiple of micro-batch {micro_batch} x dp {dp} = {micro_batch * dp}",
            allowed=f"a multiple of {micro_batch * dp}, another --micro-batch, or fewer replicas",
        )
    return count


def _split(
    request: PlanRequest, chunks: tuple[tuple[int, ...], ...] | None, pp: int, vpp: int
) -> tuple[tuple[int, ...], ...]:
    layers = request.model.layers
    if chunks is None:
        if pp * vpp > layers + 2:
            raise InputError(
                f"{pp} stages x {vpp} chunks for the {layers} layers of {request.model.name}",
                allowed=f"pp x vpp up to {layers}",
            )
        return even_chunks(layers, pp, vpp)
    if sum(map(sum, chunks)) != layers:
        raise InputError(
            f"--layers-per-stage adds up to {sum(map(sum, chunks))} and {request.model.name} has {layers} layers",
            allowed=f"counts that add up to {layers}",
        )
    if vpp > 1 and len(chunks[0]) == 1:
        return tuple(_even(stage[0], vpp) for stage in chunks)
    return chunks


def _even(layers: int, vpp: int) -> tuple[int, ...]:
    """Spread a stage's layers over its chunks, the larger chunks first."""
    return tuple(layers // vpp + (chunk < layers % vpp) for chunk in range(vpp))


def _stage(counts: tuple[int, ...], strategy: Strategy, recompute: Recompute, first_layers: int) -> Stage:
    """One stage; with ``first_layers`` only so many layers of each chunk recompute."""
    again = replace(strategy, recompute=recompute)
    keeps = replace(strategy, recompute=NO_RECOMPUTE)
    runs: list[StrategyRun] = []
    for count in counts:
        repeated = min(count, first_layers) if first_layers else count
        for used, number in ((again, repeated), (keeps, count - repeated)):
            if number and runs and runs[-1].strategy == used:
                runs[-1] = replace(runs[-1], count=runs[-1].count + number)
            elif number:
                runs.append(StrategyRun(strategy=used, count=number))
    return Stage(layers_per_chunk=counts, strategies=tuple(runs) or (StrategyRun(strategy=again, count=0),))

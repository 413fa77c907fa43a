"""One layout in words: where its time, memory and power go, and how sure that is."""

import math
from collections.abc import Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from costmodels.goodput import goodput
from costmodels.layout import Layout, RankOrder
from costmodels.power.node import capped_island, gpu_limit_w
from costmodels.results import Evidence, LayoutCost, MemoryUse, Moment, StepTime, Verdict
from costmodels.workload.counts import parameter_count
from hardware.nouns import count
from planner.layouts.splits import runs_of
from planner.plan_report import RankedLayout
from planner.profile import MachineProfile
from planner.report.console import Bars, section
from planner.report.ranking import STYLES
from planner.report.tables import WholeTable, ruled_table
from planner.report.words import (
    GIGA,
    choices_text,
    digits,
    duration,
    gib,
    grids_text,
    interval,
    large,
    layers_words,
    layout_text,
    percent,
    recompute_text,
    seconds,
    strategy_text,
    uniform,
)
from planner.request import PlanRequest
from planner.rules import Violation
from planner.search.objective import JOULES_PER_KWH, run_cost

_NEARNESS: Final = MappingProxyType(
    {
        "calibrated": "near runs that the profile was fitted on",
        "measured": "near a measured run",
        "near": "some way from the nearest measured run",
        "extrapolated": "far from the nearest measured run",
    }
)
_FITS: Final = MappingProxyType({Verdict.FITS: "fits", Verdict.RISKY: "fits, if barely", Verdict.OOM: "does not fit"})
TERA: Final = 1e12
_SMALLEST_PART: Final = 0.0005  # of the step; parts below it are left out of the bars
_SMALLEST_COMPONENT: Final = 0.005  # of the memory
_VERDICTS: Final = MappingProxyType(
    {
        Verdict.FITS: "fits",
        Verdict.RISKY: "fits, but with less room than allocators need to be safe",
        Verdict.OOM: "does not fit",
    }
)
_PARTS: Final = (
    ("compute", "compute_s"),
    ("exchange that nothing hides", "exposed_comm_s"),
    ("pipeline bubble", "bubble_s"),
    ("waiting for the slowest rank", "sync_s"),
    ("checkpoints", "io_s"),
)


def job_line(request: PlanRequest, *, machine: bool = True) -> Text:
    """Say what was asked, in one or two lines, with the machine or without."""
    job, model, cluster = request.job, request.model, request.cluster
    kinds = ", ".join(f"{island.gpus:,} x {island.node.accelerator.name}" for island in cluster.islands)
    batch = (
        count(job.global_batch, "sequence") + f" of {count(job.seq, 'token')}"
        if model.hidden
        else f"{job.global_batch:,}"
    )
    parameters = f"{parameters_text(parameter_count(model).total)} parameters"
    pinned = "".join(f", {name}={value}" for name, value in request.fixed)
    where = f" on {cluster.name} ({kinds})" if machine else ""
    return Text(
        f"{model.name} ({parameters}, {count(model.layers, 'layer')}){where}\n"
        f"batch {batch}, {job.precision.name}, for {request.program}{pinned}"
    )


def facts(title: str, ranked: RankedLayout, request: PlanRequest, broken: Sequence[Violation] = ()) -> RenderableType:
    """Return the layout's facts as labelled lines under a title, which says whether it has broken rules."""
    layout, cost = ranked.layout, ranked.cost
    rows = [
        ("step", f"{seconds(cost.step.total_s)}{_interval(ranked)}; {_rate(cost, layout.gpus, request)}"),
        ("grid", _grid_words(ranked, request)),
        ("pipeline", _pipeline_words(ranked)),
        ("layers", _layers_line(layout)),
        ("memory", memory_words(ranked)),
        *power_rows(ranked, request),
        *_run_rows(ranked, request),
        *_placement_rows(ranked),
        ("long runs", _goodput_words(request, layout)),
        *evidence_rows(ranked.evidence, request),
    ]
    if choices_text(ranked):
        rows.insert(1, ("tried", choices_text(ranked)))
    if layout.gpus < request.cluster.gpus:
        rows.insert(1, ("GPUs", f"{layout.gpus:,} of {request.cluster.gpus:,}; the others stay idle"))
    if len(request.cluster.islands) > 1:
        rows.insert(1, ("islands", _islands_words(layout, request)))
    legal = f", not legal for {request.program}" if broken else ""
    return section(f"{title}{legal}: {layout_text(layout)}, {_FITS[cost.heaviest.verdict]}", labelled(rows))


def refusals(broken: Sequence[Violation], request: PlanRequest) -> Sequence[RenderableType]:
    """Return the section that says why the framework does not run a layout; nothing where it does."""
    lines = [f"{violation.message} ({violation.rule})" for violation in broken]
    return (section(f"{request.program} does not run this layout", bullets(lines)),) if lines else ()


def _run_rows(ranked: RankedLayout, request: PlanRequest) -> list[tuple[str, str]]:
    """Say what a billion tokens cost, where the cluster states prices."""
    run = run_cost(request, ranked.layout, ranked.cost, 1e9)
    if run.money <= 0.0:
        return []
    energy = f"{digits(run.building_j / JOULES_PER_KWH)} kWh with hosts, fans and PUE {request.cluster.pue:g}"
    return [("cost", f"{digits(run.money)} {request.cluster.currency} a billion {_noun(request)}s; {energy}")]


def evidence_rows(evidence: Evidence, request: PlanRequest) -> list[tuple[str, str]]:
    """Say how sure a prediction is, and which profile it was made with."""
    rows = [("evidence", nearness(evidence))]
    if request.profile is not None:
        rows.append(("profile", f"{profile_words(request.profile)}{'' if evidence.profile else '; not used here'}"))
    return rows


def nearness(evidence: Evidence) -> str:
    """Say how near a prediction is to something measured; nothing is measured of the layout itself."""
    words = _NEARNESS.get(evidence.label, evidence.label)
    if evidence.unmeasured:
        words = f"no run on {evidence.unmeasured} was measured, hence wide ranges; {words}"
    elif evidence.few_runs:
        words = f"measured: {evidence.few_runs}, hence wide ranges; {words}"
    name = evidence.nearest
    if name.count("(") > name.count(")"):  # a name that was cut inside its remark
        name = name[: name.rindex("(")].rstrip()
    return f"{words}: {name}" if name else words


def profile_words(profile: MachineProfile) -> str:
    """Return a profile in one line: what it was fitted on, and its error on runs that were left out."""
    trusted = profile.trusted
    if not trusted:
        return f"{profile.name}, of {profile.accelerator}: kernels and links alone, no runs"
    errors = sorted(abs(math.expm1(run.left_out)) for run in trusted)
    gpus = [run.traits.gpus for run in trusted]
    return (
        f"{profile.name}, fitted on {count(len(trusted), 'run')} on {min(gpus):,.0f} to {max(gpus):,.0f} "
        f"{profile.accelerator}; error of left-out runs {percent(errors[len(errors) // 2])}"
    )


def _layers_line(layout: Layout) -> str:
    total = f", {layout.layers} in all" if layout.pp > 1 else ""
    return f"{layers_words(layout)}{total}; recompute {recompute_text(layout)}"


def _islands_words(layout: Layout, request: PlanRequest) -> str:
    """Say which stages lie on which island, by the machines that it has."""
    words, first = [], 0
    for island, group in groupby(stage.island for stage in layout.stages):
        last = first + len(list(group)) - 1
        stages = f"stage {first}" if first == last else f"stages {first} to {last}"
        words.append(f"{stages} on island {island} ({request.cluster.islands[island].node.accelerator.name})")
        first = last + 1
    return ", ".join(words)


def _placement_rows(ranked: RankedLayout) -> list[tuple[str, str]]:
    """Say that ranks are placed otherwise than in order."""
    if not ranked.placement:
        return []
    text = "nodes in another order, for the network; plan export writes who runs where"
    if ranked.in_order:
        text = f"{len(ranked.placement):,} ranks by coolness; plan export writes who runs where"
        saved = 1.0 - ranked.cost.step.total_s / ranked.in_order.step_time_s
        gap = f"hottest to coolest GPU {ranked.cost.power.gap_c:.0f} C, not {ranked.in_order.gap_c:.0f}"
        text += f"; in order {seconds(ranked.in_order.step_time_s)} ({percent(saved)} saved, {gap})"
    return [("placement", text)]


def _goodput_words(request: PlanRequest, layout: Layout) -> str:
    """Say what failures and checkpoints leave of a long run."""
    found = goodput(request.model, request.job, request.cluster, layout.gpus)
    storage = f"{digits(found.storage_bytes_per_s / GIGA, 3)} GB/s of storage" + (
        ", assumed" if found.storage_assumed else ""
    )
    return (
        f"a failure about every {duration(found.failure_interval_s)}; checkpoints of "
        f"{digits(gib(found.checkpoint_bytes), 3)} GiB every {duration(found.interval_s)}, "
        f"{duration(found.write_s)} each ({storage}); {percent(found.share)} of the time is useful"
    )


def _noun(request: PlanRequest) -> str:
    return "token" if request.model.hidden else "sample"


def labelled(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return rows of a label and a text that wraps behind it."""
    table = WholeTable.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for label, text in rows:
        table.add_row(f"  {label}", Text(text))
    return table


def bullets(lines: Sequence[str]) -> RenderableType:
    """Return lines that wrap with a hanging indent."""
    table = WholeTable.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for line in lines:
        table.add_row("  -", Text(line))
    return table


def _interval(ranked: RankedLayout) -> str:
    """Return the interval of a step, with its unit where that is not the unit of the step beside it."""
    evidence, unit = ranked.evidence, seconds(ranked.cost.step.total_s).split()[-1]
    if evidence.high_s <= 0.0:
        return ""
    return f" (likely {interval(evidence.low_s, evidence.high_s).removesuffix(f' {unit}')})"


def _rate(cost: LayoutCost, gpus: int, request: PlanRequest) -> str:
    noun = f"{_noun(request)}s"
    gemm = request.job.precision.gemm
    rate = f"{digits(cost.tokens_per_s)} {noun}/s, {digits(cost.tokens_per_s / gpus)} per GPU"
    peaks = {getattr(island.node.accelerator.peak, gemm) for island in request.cluster.islands}
    of = f": {digits(cost.mfu * max(peaks) / TERA)} of {digits(max(peaks) / TERA)} TFLOP/s" if len(peaks) == 1 else ""
    return f"{rate}; MFU {percent(cost.mfu)} of the dense {gemm} peak{of}"


def _grid_words(ranked: RankedLayout, request: PlanRequest) -> str:
    layout = ranked.layout
    first = layout.first
    words = [f"{grids_text(layout)}, pp {layout.pp}"]
    words += [f"ranks in the order {layout.rank_order}"] if layout.rank_order is not RankOrder.DP_INSIDE else []
    words += ["sequence parallel"] if first.sequence_parallel else []
    if first.dp * first.cp > 1:
        over = f" over groups of {first.shard_group} ranks" if first.shard_group else ""
        words.append(f"ZeRO-{first.zero}{over}" if first.zero else "no ZeRO")
    if first.ep > 1:
        words.append(f"{request.job.software.dispatcher} dispatcher")
    if not uniform(layout):
        words.append("layers differ: plan explain lists each")
    return "; ".join(words)


def _pipeline_words(ranked: RankedLayout) -> str:
    layout, step = ranked.layout, ranked.cost.step
    micro = f"{count(layout.num_microbatches, 'micro-batch', 'micro-batches')} of {layout.micro_batch}"
    if layout.pp == 1:
        return f"one stage; {micro}"
    chunks = f", {layout.vpp} virtual chunks a stage" if layout.vpp > 1 else ""
    chunks += f" in groups of {layout.microbatch_group} micro-batches" if layout.microbatch_group else ""
    bubble = percent(step.bubble_s / step.total_s)
    return f"{layout.pp} stages{chunks}, {layout.schedule}; {micro}; bubble {bubble} of the step"


def memory_words(ranked: RankedLayout) -> str:
    """Say what the heaviest rank holds, how sure that is, and whether it fits."""
    use, evidence = ranked.cost.heaviest, ranked.evidence
    where = f"a GPU of stage {use.stage}" if len(ranked.cost.memory) > 1 else "each GPU"
    total, usable = gib(use.total_bytes), gib(use.usable_bytes)
    verdict = _VERDICTS[use.verdict]
    if use.moment is not Moment.NONE:
        verdict += f" (fails at {use.moment})"
    text = f"{where} holds {total:.1f} of {usable:.1f} GiB"
    if evidence.high_peak_bytes > 0.0:
        text += f" (likely {gib(evidence.low_peak_bytes):.1f} to {gib(evidence.high_peak_bytes):.1f})"
    text += f": {verdict}"
    if use.host_bytes > 0.0:
        text += f"; {gib(use.host_bytes):.1f} GiB in the host for each GPU"
    return f"{text}; {components_words(use)}"


def components_words(use: MemoryUse) -> str:
    """List the components of a rank's memory, largest first, without those that do not count."""
    large_ones = [item for item in use.components if item[1] > _SMALLEST_COMPONENT * use.total_bytes]
    ordered = sorted(large_ones, key=lambda item: -item[1])
    return ", ".join(f"{name} {gib(size):.1f}" for name, size in ordered)


def power_rows(ranked: RankedLayout, request: PlanRequest) -> list[tuple[str, str]]:
    """Say what the GPUs draw; nothing for a part whose power is not modelled."""
    power, noun = ranked.cost.power, _noun(request)
    if power.gpu_w <= 0.0:
        return []
    text = f"{power.gpu_w:.0f} W per GPU (peak {power.peak_gpu_w:.0f}{_over_the_limit(ranked, request)})"
    text += f" at {power.clock_hz / 1e6:,.0f} MHz" if power.clock_hz > 0.0 else ""
    slowest = min(power.slots, key=lambda slot: slot.clock_hz, default=None)
    if "measured" in (power.limited_by, slowest.limited_by if slowest else ""):
        text += " of the slowest, as measured"
    elif power.limited_by not in ("none", ""):
        text += f", {power.limited_by} limits the clock"
    if power.max_temp_c > 0.0:
        text += f", hottest die {power.max_temp_c:.0f} C{_measured_words(request)}"
    rows = [("power", f"{text}; {digits(power.energy_j_per_token, 3)} J per {noun}")]
    if power.limited_by == "heat" and not (request.thermal or ranked.in_order):
        rows.append(("heat", "the step above does not count that heat lowers the clock; --thermal does, and is slower"))
    return rows


def _over_the_limit(ranked: RankedLayout, request: PlanRequest) -> str:
    """What a peak above the limit of all accelerators in use means."""
    used = {stage.island for stage in ranked.layout.stages}
    nodes = (capped_island(request.cluster, request.cluster.islands[number]).node for number in used)
    limit_w = max(gpu_limit_w(node, request.job.power_cap_w) for node in nodes)
    if not 0.0 < limit_w < ranked.cost.power.peak_gpu_w - 0.5:
        return ""
    return f" for tenths of a second, before the limit of {limit_w:.0f} W takes hold"


def _measured_words(request: PlanRequest) -> str:
    """Say what the hottest of the measured accelerators showed: under another draw the model has it at another one."""
    devices = [device for island in request.cluster.islands for device in island.devices if device.temperature_c]
    if not devices:
        return ""
    hottest = max(devices, key=lambda device: device.temperature_c)
    draw = f", at {hottest.power_w:.0f} W" if hottest.power_w else ""
    return f" at these draws (measured: up to {hottest.temperature_c:.0f} C{draw})"


def breakdown(step: StepTime, bars: Bars) -> RenderableType:
    """Return the parts of a step as bars; they sum to the step."""
    table = WholeTable.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for name, field in _PARTS:
        value = getattr(step, field)
        share = value / step.total_s
        if abs(share) < _SMALLEST_PART:
            continue
        table.add_row(f"  {name}", seconds(value), percent(share), bars.draw(0.0, share))
    return section(f"Where the {seconds(step.total_s)} go", table)


def stages(ranked: RankedLayout) -> RenderableType:
    """Return one row per stage: layers, time of a micro-batch, memory. Equal neighbours share a row."""
    layout, cost = ranked.layout, ranked.cost
    table = ruled_table()
    for title in ("stage", "layers", "ms a micro-batch", "GiB", "memory"):
        table.add_column(title, justify="left" if title in ("stage", "memory") else "right")
    rows = [
        (
            f"{stage.layers}" + (f" = {runs_of(stage.layers_per_chunk)}" if layout.vpp > 1 else ""),
            f"{1e3 * cost.stage_times_s[number]:.1f}",
            f"{gib(cost.memory[number].total_bytes):.1f}",
            cost.memory[number].verdict,
        )
        for number, stage in enumerate(layout.stages)
    ]
    first = 0
    for number, row in enumerate(rows):
        if number + 1 < len(rows) and rows[number + 1] == row:
            continue
        name = str(number) if first == number else f"{first}-{number}"
        table.add_row(name, *row[:3], Text(row[3].value, style=STYLES[row[3]]))
        first = number + 1
    return table


def strategies(ranked: RankedLayout) -> Sequence[RenderableType]:
    """List the strategies of the layers in order, for a layout whose layers differ; nothing for one that is uniform."""
    layout = ranked.layout
    if len({run.strategy for stage in layout.stages for run in stage.strategies}) == 1:
        return ()
    rows = [
        (f"stage {number}", "; ".join(f"{run.count} x {strategy_text(run.strategy)}" for run in stage.strategies))
        for number, stage in enumerate(layout.stages)
    ]
    return (section("Layers in order", labelled(rows)),)


def parameters_text(parameters: int) -> str:
    """Return a parameter count for people, such as ``70.55 billion``."""
    return f"{digits(parameters / 1e9)} billion" if parameters >= 1e9 else large(parameters)

"""From a measured run to what the cost models price: model, cluster, job and layout."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from costmodels.job import Precision, Software, TrainingJob
from costmodels.layout import (
    FULL_RECOMPUTE,
    NO_RECOMPUTE,
    TITAN_SELECTIVE,
    Granularity,
    Layout,
    Recompute,
    Stage,
    Strategy,
    StrategyRun,
)
from costmodels.memory.offloaded import OFFLOAD_MODULES
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision, with_wide_weights
from costmodels.software import RunText, SoftwareMatch, software_for
from costmodels.workload import presets
from costmodels.workload.model import ModelSpec
from costmodels.workload.stated import StatedArchitecture, model_from_architecture
from hardware.catalog import cluster_of_run
from hardware.cluster import Cluster, PeakRates
from hardware.errors import InputError
from hardware.segments import in_segments
from planner.choices import Framework
from planner.evidence.beyond import check_possible
from planner.evidence.measured import MeasuredRun, RunGrid
from planner.evidence.sharding import shard_group, zero_stage
from planner.evidence.source_facts import source_facts
from planner.evidence.stage_layers import deepspeed_layers, libai_layers, nanotron_layers, redistributed_layers
from planner.images import asked_images
from planner.layouts.grids import expert_count
from planner.layouts.splits import even_chunks

BITS_PER_BYTE: Final = 8.0
BYTES_PER_GBIT: Final = 1e9 / BITS_PER_BYTE
BILLION: Final = 1e9
PERCENT: Final = 100.0
FORWARD_PARTS: Final = 3.0  # forward and backward of a layer over its forward
ADAPTER_SHARE: Final = (
    0.001  # parameters of low-rank adapters over those of the model (rank 16 of a width of thousands)
)
MLPERF_ADAPTERS: Final = ("attn",)
"""MLPerf's fine-tuning benchmark (llama2_70b_lora) adapts the projections of attention, no others."""
MLPERF_RANK: Final = 16  # training_rules.adoc, hyperparameters of llama2_70b_lora
UNSTATED_VARIANTS: Final = MappingProxyType({"V100 (not stated)": "V100-SXM2-32GB"})
"""What a part is taken for whose table leaves its memory open: the variant that can hold more."""
OMNI_PATH_SHARE: Final = 0.5
"""Share of an Omni-Path adapter's rate that NCCL reaches through verbs without a plugin, on one adapter of the node.

One group of all ranks moves 5 to 7 of the 50 GB/s of four adapters. Source: github.com/bigscience-workshop/bigscience
experiments/bandwidth (A100, 4 nodes; V100, 16 nodes). Range 0.4 to 0.56; inside it fitted to 31 steps of Lucie with a
sequence of 2,048 (mean error 12.5, 5.1 and 5.2 % at 0.4, 0.5 and 0.56); the 10 with 4,096, held out, err by 8.4, 13.0
and 15.4 %."""
OMNI_PATH_NODE_SHARE: Final = 0.28
"""Share of all adapters of a node that its groups reach together, however many.

Fitted to 101 steps of BLOOM and its tuning runs, where 4 and 8 groups meet (0.25 to 0.34 give the same error); the 41
of Lucie with 1 and 2 groups are priced by the adapters alone."""
OMNI_PATH_GBPS: Final = 100.0  # of one adapter
TITAN_LAYERS_APART: Final = 2
"""Of ``selective_ac_option`` in torchtitan's ``train_configs`` of 2024: every so many layers one runs again."""
CORE_ATTENTION: Final = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",))
EIGHT_BIT_ADAM_BYTES: Final = 2.0
"""Per parameter: both moments of Adam in 8 bits, as bitsandbytes holds them (Dettmers et al., arXiv 2110.02861)."""
Mix = tuple[tuple[int, Recompute], ...]
"""Layers of a stage by what they recompute, in order."""
_ACESO_OPS: Final = 13
"""Ops of a layer in Aceso's GPT: two norms, four products, scores, softmax, context, activation, three dropouts."""
_SCORE_OPS: Final = 4  # of those: scores, softmax, dropout and context
_DROPPED_SHARE: Final = 0.6  # mask (1) and dropped matrix (2) of the bytes per score; the softmax's output has 2
STATED_MODULES: Final = (("activation function", "mlp_act"), ("norm", "layernorm"))
"""Recompute modules by the words of a remark."""
MOST_EXTRA_MODULES: Final = 8  # modules of a pipeline that are no layers
MODULES_AFTER_LAYERS: Final = 4
"""Of those, the ones behind the layers: transpose back, final norm, head and the cast to fp32. Before the layers stand
the embedding, a transpose and in later releases a cast (``GPT2ModelPipe`` in Megatron-LM-v1.1.5-3D_parallelism's
``megatron/model/gpt2_model.py``; ``GPTModelPipe`` in Megatron-DeepSpeed)."""
CORE_FRAMEWORKS: Final = ("megatron", "bridge", "nemo")
SEQUENCE_PARALLEL_FRAMEWORKS: Final = ("megatron", "bridge", "nemo", "torchtitan")

INTERLEAVING_FRAMEWORKS: Final = ("nemo", "bridge")
"""Every dense recipe of theirs with a pipeline interleaves (20 of 20 in NeMo's launcher and Megatron-Bridge's
``perf_recipes``); tables that leave the virtual stages out mean the recipe's."""
_ENDS_COUNT: Final = r"transformer\|embed|rebalanc"
"""Words of runs whose pipelines count the embedding as a layer: Megatron-DeepSpeed's ``--pp-partition-method``, with
which BLOOM's tuning "rebalanced" its layers."""
RECIPE_CHUNK_LAYERS: Final = 2  # layers of a chunk in those recipes: 1 to 4

_SCHEDULES: Final = (
    ("zb-2p", Schedule.ZB_2P),
    ("zb-1p", Schedule.ZB_H1),
    ("zbv", Schedule.ZBV),
    ("gpipe", Schedule.GPIPE),
)


@dataclass(frozen=True, kw_only=True)
class PricedRun:
    """What one run asks the cost models."""

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    layout: Layout


def question_of(run: MeasuredRun) -> PricedRun:
    """Return what a run asks; its grid must be complete.

    Raises
    ------
    InputError
        The run names an unknown model, machine or precision, its layout cannot hold its model, or its hardware cannot
        have what was measured.
    """
    grid = run.grid
    if grid is None:
        raise InputError(run.skipped or "the layout is not complete")
    if re.search(r"one (transformer )?layer", run.text("model").lower()):
        raise InputError("states the time of a single layer, not of a step")
    model = _model(run)
    software = _software(run)
    adapted = "lora" in run.text("model").lower()
    by_rules = adapted and "mlcommons" in run.text("source").lower()
    cluster = _cluster(run)
    recipe = _precision(run, software, cluster.islands[0].node.accelerator.peak)
    job = TrainingJob(
        global_batch=grid.global_batch,
        seq=grid.seq,
        precision=recipe,
        software=software,
        optimizer_bytes=EIGHT_BIT_ADAM_BYTES if "bnb optimizer" in run.text("notes") else recipe.moment_bytes,
        trained_share=ADAPTER_SHARE if adapted else 1.0,
        adapter_modules=MLPERF_ADAPTERS if by_rules else (),
        adapter_rank=MLPERF_RANK if by_rules else 0,
    )
    job = _with_images(run, model, job)
    layout = placed_on_islands(_layout(run, grid, model, job), cluster)
    check_possible(run, model, cluster, job, layout)
    return PricedRun(model=model, cluster=cluster, job=job, layout=layout)


def _with_images(run: MeasuredRun, model: ModelSpec, job: TrainingJob) -> TrainingJob:
    """The job with the images that a run states of its sequences; without any its language model is priced alone.

    Its tower runs as that of a plan for the same framework; other software runs Hugging Face's, as on DeepSpeed.
    """
    words = run.text("images")
    if not words:
        return job
    name = job.software.framework
    framework = Framework(name) if name in CORE_FRAMEWORKS else Framework.DEEPSPEED
    return asked_images(job, model, framework, words, run.text("freeze"))


def software_of(run: MeasuredRun) -> SoftwareMatch:
    """Return the preset of a run with its remarks, and why it is that one."""
    return software_for(_words(run))


def _software(run: MeasuredRun) -> Software:
    """The preset of the run with its remarks, its experts' capacity, and the layers whose activations it offloads."""
    found = software_of(run).software
    if found.framework == "deepspeed" and run.text("zero") == "0" and "bf16" in run.text("precision").lower():
        # Its BF16_Optimizer, as in sharding.zero_stage; ZeRO-1 lets PyTorch add gradients in 16 bits.
        found = replace(found, cast_gradients=found.separate_accumulation)
    capacity = re.search(r"capacity factor ([0-9]{1,2}(?:\.[0-9]{1,4})?)", run.text("token_routing").lower())
    if capacity:
        found = replace(found, capacity_factor=float(capacity.group(1)))
    share = re.search(r"activation offload (?:ratio )?(?:alpha=)?([01]?\.?[0-9]{1,9})", run.text("notes"))
    if share and run.grid:
        layers = float(share.group(1)) * (run.number("layers") or 0.0) / run.grid.pp
        return replace(found, activation_offload_layers=round(layers))
    modules = re.search(r"fine-grained activation offload: ([a-z0-9_, ]{1,99})", run.text("offload").lower())
    if modules:
        names = (name.strip() for name in modules.group(1).split(","))
        return replace(found, offload_modules=tuple(name for name in names if name in OFFLOAD_MODULES))
    offloaded = re.search(r"activation (?:cpu )?offload ([0-9]{1,6}) layers", run.text("offload").lower())
    if not offloaded:
        return found
    grid = run.grid
    return replace(found, activation_offload_layers=int(offloaded.group(1)) // max(1, grid.pp if grid else 1))


def _precision(run: MeasuredRun, software: Software, peak: PeakRates) -> Precision:
    """The recipe that a run states; where it states none that is known, 16 bits as its hardware has them."""
    sixteen_bits = "bf16" if peak.bf16 > 0.0 else "fp16"
    for words in (run.text("dtype"), run.text("precision")):
        if words:
            try:
                found = precision(words, framework=software.framework)
            except InputError:
                continue
            if getattr(peak, found.gemm) > 0.0:
                return with_wide_weights(found) if software.wide_weights else found
    if software.unstated_precision:
        usual = precision(software.unstated_precision, framework=software.framework)
        return usual if getattr(peak, usual.gemm) > 0.0 else precision("fp32", framework=software.framework)
    return precision(sixteen_bits, framework=software.framework)


def _words(run: MeasuredRun) -> RunText:
    renamed = {"version": "source_version", "dispatcher": "moe_dispatcher", "routing": "token_routing"}
    renamed["gpus"] = "n_gpus"
    words = {field.name: run.text(renamed.get(field.name, field.name)) for field in fields(RunText)}
    words["source"] = f"{words['source']} {run.id}"  # ids carry the name of the study
    return RunText(**words)


def _model(run: MeasuredRun) -> ModelSpec:
    """The model that a run states, with the vocabulary that its source is known to use."""
    model = _stated_model(run)
    vocab = source_facts(run.text("source")).vocab
    if not (vocab and run.grid):
        return model
    return replace(model, vocab=vocab - vocab % run.grid.tp, vocab_multiple=1)


def _stated_model(run: MeasuredRun) -> ModelSpec:
    layers = int(run.number("layers") or 0)
    if not run.number("hidden_size"):
        found = presets.find(run.text("model"))
        if found is not None:
            return presets.proxy(found, layers) if layers and layers != found.layers else found
    return model_from_architecture(
        StatedArchitecture(
            name=run.text("model"),
            layers=layers,
            hidden=int(run.number("hidden_size") or 0),
            ffn=int(run.number("ffn_hidden_size") or 0),
            heads=int(run.number("heads") or 0),
            kv_heads=int(run.number("kv_heads") or 0),
            vocab=int(run.number("vocab") or source_facts(run.text("source")).vocab),
            experts=int(run.number("experts") or 0),
            top_k=int(run.number("topk") or 0),
            seq=int(run.number("seq_len") or 0),
            parameters=(run.number("params_b") or 0.0) * BILLION,
        )
    )


def _cluster(run: MeasuredRun) -> Cluster:
    rate = run.number("scaleout_gbps_per_node")
    if rate and run.grid and "omni-path" in run.text("interconnect").lower():
        rate *= omni_path_share(run.grid, int(run.number("gpus_per_node") or 0), rate / OMNI_PATH_GBPS)
    machine = cluster_of_run(
        UNSTATED_VARIANTS.get(run.text("hardware"), run.text("hardware")),
        int(run.number("n_gpus") or 0),
        int(run.number("gpus_per_node") or 0),
        rate * BYTES_PER_GBIT if rate else None,
        run.text("intra_node"),
        run.text("interconnect"),
    )
    return replace(machine, islands=tuple(in_segments(island) for island in machine.islands))


def omni_path_share(grid: RunGrid, node_gpus: int, adapters: float) -> float:
    """Share of a node's Omni-Path rate that its groups reach: each takes one adapter, by chance one that is taken.

    Of n adapters g groups use ``n (1 - (1 - 1/n)^g)`` in the mean. The groups are those of data parallelism, which most
    bytes belong to; where they lie inside nodes, the pairs of accelerators that pass activations on.
    """
    count = max(adapters, 1.0)
    members = min(grid.dp * grid.cp, node_gpus // grid.tp)
    leaves = grid.dp * grid.cp > members >= 1
    groups = node_gpus / members if leaves else float(node_gpus)
    used: float = 1.0 - (1.0 - 1.0 / count) ** groups
    return min(OMNI_PATH_SHARE * used, OMNI_PATH_NODE_SHARE)


def _layout(run: MeasuredRun, grid: RunGrid, model: ModelSpec, job: TrainingJob) -> Layout:
    software = job.software
    words = f"{run.text('schedule_kind')} {run.text('schedule')}".lower()
    schedule = next((known for word, known in _SCHEDULES if word in words), Schedule.ONE_F_ONE_B)
    vpp = _virtual_stages(run, grid, model, software)
    if vpp > 1 and grid.pp > 1:
        schedule = Schedule.INTERLEAVED
    vpp = schedule.fixed_vpp or vpp
    strategy = Strategy(
        tp=grid.tp,
        cp=grid.cp,
        dp=grid.dp,
        ep=grid.ep,
        etp=(grid.etp or (1 if grid.ep > 1 else grid.tp)) if expert_count(model) else 1,
        sequence_parallel=grid.tp > 1 and _sequence_parallel(run, software),
        zero=zero_stage(run, software, job.precision, grid),
        shard_group=shard_group(run, grid),
        recompute=_recompute(run, job),
    )
    if grid.tp * grid.cp * grid.dp % (strategy.ep * strategy.etp):
        raise InputError(f"expert grid {strategy.etp} x {strategy.ep} does not divide {strategy.gpus} GPUs of a stage")
    chunks = _chunks(run, model, software, grid.pp, vpp)
    mixes = whole_layers(run, software, chunks) or mixed_recompute(run.text("notes"), chunks)
    stages = tuple(map(_stage, chunks, mixes, [strategy] * grid.pp))
    return Layout(
        stages=stages,
        micro_batch=grid.micro_batch,
        num_microbatches=grid.num_microbatches,
        schedule=schedule,
        vocabulary_spread="vocab-parallel" in words or "interlaced vocab" in words,
        extra_in_flight=_held_for_vocabulary(f"{words} {run.id}", grid.pp),
        optimizer_on_host=optimizer_on_host(run.text("notes"), grid.pp),
    )


def _virtual_stages(run: MeasuredRun, grid: RunGrid, model: ModelSpec, software: Software) -> int:
    """Return the virtual stages that a run states; where it leaves them out, what its framework's recipes have."""
    unstated = not run.text("vpp") and grid.pp > 1 and not expert_count(model)
    if not unstated or software.framework not in INTERLEAVING_FRAMEWORKS or grid.num_microbatches % grid.pp:
        return grid.vpp
    per_stage, rest = divmod(model.layers, grid.pp)
    return grid.vpp if rest or per_stage % RECIPE_CHUNK_LAYERS else per_stage // RECIPE_CHUNK_LAYERS


def placed_on_islands(layout: Layout, cluster: Cluster) -> Layout:
    """Put the stages of a layout on the islands of unlike machines, in order, each whole on one.

    Where a stage would lie on machines of two kinds, all of them stay on the first kind.
    """
    island, used, stages = 0, 0, []
    for stage in layout.stages:
        if used >= cluster.islands[island].gpus:
            island, used = island + 1, 0
        used += stage.gpus
        if island >= len(cluster.islands) or used > cluster.islands[island].gpus:
            return layout
        stages.append(replace(stage, island=island))
    return replace(layout, stages=tuple(stages))


def optimizer_on_host(words: str, pp: int) -> tuple[float, ...]:
    """Share of each stage's optimizer states in host memory, of ``offload(W,G,O,A)=[(0.0, 0.0, 0.5, 0.0), ...]``.

    Mist states one such row per stage: weights, gradients, optimizer, activations. Empty where there is none.
    """
    rows = re.search(r"offload\(w,g,o,a\)=\[(.*?)\]", words.lower())
    found = re.findall(r"\([\d.]+, [\d.]+, ([\d.]+), [\d.]+\)", rows.group(1)) if rows else []
    return tuple(map(float, found)) if len(found) == pp else ()


def _held_for_vocabulary(words: str, pp: int) -> int:
    """Micro-batches in flight beyond 1F1B's where the vocabulary is spread over the stages (arXiv 2411.05288).

    Its first algorithm holds ``pp + 2``, its second ``pp + 1`` (figure 10), interlaced pipelines ``1.5 pp``.
    """
    if "interlaced" in words:
        return pp // 2
    return next((extra for name, extra in (("vocab-1", 2), ("vocab-2", 1)) if name in words), 0)


def _stage(chunks: tuple[int, ...], mix: Mix | None, strategy: Strategy) -> Stage:
    """One stage; ``mix``: layers by what they recompute, in order; None: all alike."""
    runs = [StrategyRun(strategy=strategy, count=sum(chunks))]
    if mix is not None:
        runs = [StrategyRun(strategy=replace(strategy, recompute=what), count=n) for n, what in mix if n]
    return Stage(layers_per_chunk=chunks, strategies=tuple(runs))


def mixed_recompute(words: str, chunks: Sequence[tuple[int, ...]]) -> tuple[Mix | None, ...]:
    """Layers of each stage by what they recompute; None where nothing is stated.

    Layers that recompute in full stand as ``layers per stage: [2, 1] of [7, 8]``; ops as ``recomputed ops per stage
    ['22/29', '14/30']``.
    """
    layers = [sum(counts) for counts in chunks]
    found = re.search(r"layers per stage:? \[([\d, ]+)\]", words)
    counts = _wholes(found.group(1)) if found else list(map(int, re.findall(r"'([0-9]{1,9})/[0-9]{1,9}'", words)))
    mixes = tuple(map(_full_or_none if found else _mix_of_ops, counts, layers))
    usable = len(counts) == len(layers) and all(count >= 0 for mix in mixes for count, _ in mix)
    return mixes if usable else (None,) * len(layers)


def _mix_of_ops(ops: int, layers: int) -> Mix:
    """Layers of a stage by what they recompute, from how many of its ops do: those that save most come first.

    The dropout of the scores, one op, saves three of the five bytes that a layer keeps per score (mask and output); the
    other two go when the products around it and the softmax run again as well, three ops more. What is left over of the
    stage's ops makes whole layers of 13. A layer that saves a part counts as a part of one that saves all.
    """
    full = min(layers, max(0, ops - _SCORE_OPS * layers) // (_ACESO_OPS - _SCORE_OPS))
    dropped = _DROPPED_SHARE * min(layers, ops)
    rest = (1.0 - _DROPPED_SHARE) * min(float(layers), max(0, ops - layers) / (_SCORE_OPS - 1))
    scores = min(layers - full, round(dropped + rest))
    return (full, FULL_RECOMPUTE), (scores, CORE_ATTENTION), (layers - full - scores, NO_RECOMPUTE)


def whole_layers(run: MeasuredRun, software: Software, chunks: Sequence[tuple[int, ...]]) -> tuple[Mix, ...]:
    """Layers of each stage that recompute in full where selective checkpointing wraps every n-th.

    torchtitan's tables call it "selective (layer)", of every second. FSDP's runs give it away by the hardware
    utilisation that they state beside their MFU: a layer that runs again adds a third to its operations. Empty where
    neither is so.
    """
    if software.framework == "torchtitan" and run.text("recompute").lower().startswith("selective (layer"):
        return tuple(_full_or_none(sum(counts) // TITAN_LAYERS_APART, sum(counts)) for counts in chunks)
    used = re.search(r"\bHFU ([\d.]+)", run.text("notes"))
    mfu = (run.number("mfu") or 0.0) / PERCENT
    plain = run.text("recompute").strip().lower() == "selective"
    if not (used and mfu and plain and software.framework == "fsdp"):
        return ()
    share = min(1.0, max(0.0, FORWARD_PARTS * (float(used.group(1)) / mfu - 1.0)))
    return tuple(_full_or_none(round(share * sum(counts)), sum(counts)) for counts in chunks)


def _full_or_none(full: int, layers: int) -> Mix:
    """Some layers that recompute in full, and others nothing."""
    return (full, FULL_RECOMPUTE), (layers - full, NO_RECOMPUTE)


def _recompute(run: MeasuredRun, job: TrainingJob) -> Recompute:
    """Return what a run recomputes; "selective" means other modules in torchtitan than in Megatron-LM."""
    per_layer = "layer" in run.text("recompute").lower()
    selective = run.recompute.granularity is Granularity.SELECTIVE and not per_layer
    remark = re.search(r"recompute as stated: selective \((.*?)\)", run.text("notes"))
    stated = tuple(module for words, module in STATED_MODULES if remark and words in remark.group(1).lower())
    if selective and stated:
        return Recompute(granularity=Granularity.SELECTIVE, modules=stated)
    if selective and job.software.framework == "torchtitan":
        return TITAN_SELECTIVE
    return run.recompute


def _chunks(run: MeasuredRun, model: ModelSpec, software: Software, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage: as the run states them, as its framework splits, or even."""
    if pp > 1 and vpp == 1:
        words = f"{run.text('schedule')} {run.text('notes')}"
        counts = stated_split(words, pp, model.layers) or stated_layers(words, pp, model.layers)
        if not counts and software.framework == "nanotron":
            counts = nanotron_layers(model, pp)
        if not counts and "libai" in run.text("framework").lower():
            counts = libai_layers(model.layers, pp)
        if not counts and "megatron-deepspeed" in run.text("framework").lower():
            ends = re.search(_ENDS_COUNT, f"{words} {run.text('source')}".lower()) is not None
            counts = deepspeed_layers(model.layers, pp, ends=ends)
        if not counts and "layer redistribution" in words:
            counts = redistributed_layers(model, pp, run.grid.seq if run.grid else 0)
        if counts:
            return tuple((count,) for count in counts)
    if model.mtp_layers and model.layers % (pp * vpp):
        return _front_loaded(model.layers, pp, vpp)
    return even_chunks(model.layers, pp, vpp)


def _front_loaded(layers: int, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Equal chunks from the front and the rest on the last one, which holds multi-token prediction and loss as well.

    As the pipeline layouts of Megatron-Bridge's recipes for DeepSeek-V3 (``recipes/deepseek/deepseek_v3.py``): 61
    layers on 16 chunks are 15 times 4 and 1.
    """
    each = -(-layers // (pp * vpp))
    flat = [min(each, max(layers - each * chunk, 0)) for chunk in range(pp * vpp)]
    return tuple(tuple(flat[chunk * pp + stage] for chunk in range(vpp)) for stage in range(pp))


def _wholes(words: str) -> list[int]:
    """Whole numbers of a remark, in order; none has more digits than layers or modules can have."""
    return [int(text) for text in re.findall(r"[0-9]{1,6}", words)]


def stated_split(words: str, pp: int, layers: int) -> tuple[int, ...]:
    """Layers per stage from ``layer split [0, 8, 14, 20, 30]``: where every stage begins among the pipeline's modules.

    Frameworks count modules beside the layers; those stand at the ends and are taken from there. Empty when nothing
    usable is stated.
    """
    found = re.search(r"layer split \[([\d, ]+)\]", words)
    bounds = _wholes(found.group(1)) if found else []
    extra = bounds[-1] - layers if bounds else -1
    if len(bounds) != pp + 1 or not 0 <= extra <= MOST_EXTRA_MODULES:
        return ()
    before = max(extra - MODULES_AFTER_LAYERS, 0)
    starts = [min(max(bound - before, 0), layers) for bound in bounds[:-1]]
    counts = tuple(end - start for start, end in zip(starts, [*starts[1:], layers], strict=True))
    return counts if min(counts) >= 0 else ()


def stated_layers(words: str, pp: int, layers: int) -> tuple[int, ...]:
    """Layers per stage from ``layers per stage: [recomputed] of [7, 8, 9, 8]``; empty when that does not add up."""
    found = re.search(r"layers per stage:? \[[\d, ]+\] of \[([\d, ]+)\]", words)
    counts = tuple(_wholes(found.group(1))) if found else ()
    return counts if len(counts) == pp and sum(counts) == layers and min(counts) > 0 else ()


def _sequence_parallel(run: MeasuredRun, software: Software) -> bool:
    """Where a run does not say, it is on in the frameworks that came after it (arXiv 2205.05198)."""
    stated = run.text("sequence_parallel").lower()
    return stated in ("1", "yes", "true") if stated else software.framework in SEQUENCE_PARALLEL_FRAMEWORKS

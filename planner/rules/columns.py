"""Numbers of proposals as columns: one array of integers for each name that a rule may use, all of one length.

Rules judge columns, so that one proposal (length 1) and a million candidates take the same path.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from costmodels.job import TrainingJob
from costmodels.pipeline.schedules import Schedule
from costmodels.table import Ints, StrategyTable
from hardware.errors import InputError
from planner.rules.proposal import (
    ModelFacts,
    Proposal,
    Switches,
    job_switches,
    recompute_switches,
    schedule_switches,
)

Columns = Mapping[str, Ints]
LARGEST: Final = 10**12
"""Of a number that is judged, so that products of columns mostly stay integers of 64 bits."""

_GRID: Final = tuple(
    f.name for f in dataclasses.fields(Proposal) if f.name not in ("model", "split", "switches", "options")
)

_NUMBERS: Final = MappingProxyType(
    {"zero_count": 0, "one": 1, "two": 2, "three": 3, "below_billion": 10**9 - 1, "billion": 10**9}
)
"""Columns that are the same everywhere."""


def _numbers(value: ModelFacts | Switches) -> dict[str, int]:
    return {f.name: int(getattr(value, f.name)) for f in dataclasses.fields(value)}


def proposal_columns(proposal: Proposal) -> Columns:
    """Columns of length 1 for one proposal; InputError for a number that no launch can mean."""
    numbers = {name: int(getattr(proposal, name)) for name in _GRID}
    numbers |= _numbers(proposal.model) | _numbers(proposal.switches)
    numbers["layout_mtp"] = proposal.split.layout.count("m")
    numbers["last_alone"] = int(proposal.split.last >= 0 and proposal.split.first < 0)
    for name, number in numbers.items():
        if abs(number) > LARGEST:
            raise InputError(f"{name.replace('_', ' ')} {number}", allowed=f"whole numbers up to {LARGEST}")
    return with_derived({name: np.array([number], dtype=np.int64) for name, number in numbers.items()})


def table_columns(
    table: StrategyTable, model: ModelFacts, job: TrainingJob, *, vpp: Ints | int, schedule: Schedule | None = None
) -> Columns:
    """Columns for many candidates of one model and job, each on exactly the GPUs that it uses.

    Parameters
    ----------
    table : StrategyTable
        Candidates, one row each, shape (S,).
    model : ModelFacts
        See :func:`planner.rules.proposal.facts_of`.
    job : TrainingJob
        Batch, sequence and precision.
    vpp : array of shape (S,) or int
        Virtual chunks per stage.
    schedule : Schedule, optional
        Of pipelines, where it is another than 1F1B and interleaved.

    Returns
    -------
    Columns
        Switches are those that an export of the candidate would set.
    """
    size = len(table)
    base = Proposal(world=1, global_batch=job.global_batch, seq=job.seq)
    switches = job_switches(model, job)
    numbers = {name: int(getattr(base, name)) for name in _GRID} | _numbers(model) | _numbers(switches)
    numbers |= {name: int(value) for name, value in schedule_switches(schedule).items()}
    columns = {name: np.full(size, number, dtype=np.int64) for name, number in numbers.items()}
    for name in ("tp", "pp", "cp", "dp", "ep", "etp", "zero", "shard_group", "micro_batch"):
        columns[name] = getattr(table, name)
    columns["layout_mtp"] = columns["last_alone"] = np.zeros(size, dtype=np.int64)
    columns["sequence_parallel"] = table.sequence_parallel.astype(np.int64)
    columns["vpp"] = np.broadcast_to(np.asarray(vpp, dtype=np.int64), (size,))
    columns["world"] = table.gpus * table.pp
    columns["distributed_optimizer"] = (table.zero > 0).astype(np.int64)
    for name in ("megatron_fsdp", "checkpoint_fsdp_dtensor"):
        columns[name] = (table.zero > 1).astype(np.int64)
    columns["full_shard"] = (table.zero == 3).astype(np.int64)
    columns["optimizer_instances"] = np.maximum(1, table.dp * table.cp // table.zero_group)
    told = [recompute_switches((recompute,)) for recompute in table.recomputes]
    for name in told[0] if told else ():
        columns[name] = np.array([int(switch[name]) for switch in told], dtype=np.int64)[table.recompute]
    return with_derived(columns)


def with_derived(given: Mapping[str, Ints]) -> Columns:
    """Add what follows from the given columns: dp, microbatches, expert grid, and yes-no columns for conditions."""
    columns = dict(given)
    one = np.ones_like(columns["world"])
    grid = np.maximum(one, columns["tp"] * columns["cp"] * columns["pp"] * columns["gtp"])
    columns["model_parallel"] = columns["tp"] * columns["cp"] * columns["pp"] * columns["gtp"]
    columns["dp"] = np.where(columns["dp"] > 0, columns["dp"], columns["world"] // grid)
    columns["expert_parallel"] = columns["etp"] * columns["ep"] * columns["pp"] * columns["egtp"]
    columns["edp"] = columns["world"] // np.maximum(one, columns["expert_parallel"])
    columns["stage_gpus"] = columns["tp"] * columns["cp"] * columns["dp"]
    columns["used"] = columns["stage_gpus"] * columns["pp"] * columns["gtp"]
    columns["shard_ranks"] = columns["dp"] * columns["cp"]
    columns |= _sharding(columns)
    columns["samples"] = columns["micro_batch"] * columns["dp"]
    columns["microbatches"] = columns["global_batch"] // np.maximum(one, columns["samples"])
    stated = (columns["microbatch_group"] > 0) | (columns["microbatch_group_given"] > 0)
    columns["group"] = np.where(stated, columns["microbatch_group"], columns["pp"])
    columns["remainder"] = columns["microbatches"] % np.maximum(one, columns["group"])
    columns |= _first_step(columns)
    columns["rounds"] = np.maximum(one, columns["microbatches"] // np.maximum(one, columns["pp"]))
    columns["positions"] = columns["pp"] * columns["vpp"]
    columns["layers_and_ends"] = columns["layers"] + 2 * columns["ends_alone"]
    columns |= _sequence(columns)
    columns["tp_heads"] = columns["heads"] // np.maximum(one, columns["tp"])
    columns["tp_kv_heads"] = np.maximum(one, columns["kv_heads"] // np.maximum(one, columns["tp"]))
    columns["tp_state_groups"] = np.maximum(one, columns["state_groups"] // np.maximum(one, columns["tp"]))
    columns["tp_cp"] = columns["tp"] * columns["cp"]
    columns |= {name: number * one for name, number in _NUMBERS.items()}
    columns["weight_sharded"] = ((columns["gtp"] > 1) | (columns["egtp"] > 1)).astype(np.int64)
    columns["layers_of_stage"] = columns["layers"] // np.maximum(one, columns["pp"])
    for name in ("tp", "pp", "cp", "ep", "etp", "vpp", "gtp", "edp", "dp"):
        columns[f"has_{name}"] = (columns[name] > 1).astype(np.int64)
    columns["has_vpp"] = columns["has_vpp"] | columns["interleaved_one"]
    columns["has_experts"] = (columns["experts"] > 0).astype(np.int64)
    columns["experts_over_tp"] = (columns["tp"] > columns["ep"] * columns["etp"]).astype(np.int64)
    columns["group_fits"] = (columns["group"] <= columns["microbatches"]).astype(np.int64)
    columns["edp_differs"] = (columns["edp"] != columns["shard_ranks"]).astype(np.int64)
    columns["grid_whole"] = (columns["used"] == columns["world"]).astype(np.int64)
    experts_grid = np.maximum(one, columns["etp"] * columns["ep"] * columns["egtp"])
    columns["expert_grid_implied"] = (columns["tp_cp"] * columns["gtp"] % experts_grid == 0).astype(np.int64)
    columns["fsdp"] = columns["megatron_fsdp"] | columns["torch_fsdp"]
    columns["cpu_offload_next"] = columns["cpu_offload_layers"] + 1
    columns["has_tp_cp"] = (columns["tp_cp"] > 1).astype(np.int64)
    columns["top_1_softmax"] = ((columns["top_k"] == 1) & (columns["sigmoid_router"] == 0)).astype(np.int64)
    columns["recompute"] = columns["recompute_full"] | columns["recompute_selective"]
    return columns


def _sequence(columns: Columns) -> dict[str, Ints]:
    """A rank's part of a sequence, what the whole is a multiple of over cp, tp and chunks, and the next such length."""
    one = np.ones_like(columns["world"])
    cp, tp, chunks = (np.maximum(one, columns[name]) for name in ("cp", "tp", "loss_chunks"))
    unit = np.lcm(cp * np.where(columns["sequence_parallel"] > 0, tp, one), np.where(cp > 1, 2 * cp, one))
    of_chunks = np.lcm(unit, cp * chunks)
    units = {"padded_seq": unit, "padded_to_cp": cp, "padded_to_chunks": of_chunks}
    lengths = {name: -(-columns["seq"] // size) * size for name, size in units.items()}
    local = columns["seq"] // cp
    pieces = {"two_cp": 2 * columns["cp"], "local_seq": local, "fewer_chunks": np.gcd(local, columns["loss_chunks"])}
    return {**pieces, **lengths, "seq_unit": unit, "chunks_unit": of_chunks}


def _first_step(columns: Columns) -> dict[str, Ints]:
    """Micro-batches of the first step where the batch grows, and whether they leave a group too small."""
    one = np.ones_like(columns["world"])
    count = columns["first_batch"] // np.maximum(one, columns["samples"])
    rest = count % np.maximum(one, columns["group"])
    short = (count >= columns["group"]) & (rest > 0) & (rest < columns["pp"])
    return {"first_microbatches": count, "first_rest_short": short.astype(np.int64)}


def _sharding(columns: Columns) -> dict[str, Ints]:
    """What follows from the ZeRO stage; FSDP2 shards over cp even where data-parallel ranks are copies."""
    zero, group, ranks = columns["zero"], columns["shard_group"], columns["shard_ranks"]
    grouped = (zero > 0) & (group > 0) & (group < ranks)
    sharded = np.where(zero > 0, np.where(grouped, group, ranks), columns["cp"])
    return {
        "zero_0": (zero == 0).astype(np.int64),
        "zero_1": (zero == 1).astype(np.int64),
        "zero_above_1": (zero > 1).astype(np.int64),
        "grouped": grouped.astype(np.int64),
        "shard_tp": columns["tp"] * sharded,
    }

"""Every field of the machine-readable answers and its type, command by command.

A field that is missing, has another type, or stands in no table here is a change of the contract: add new ones below
and to docs/json.md; take none away.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner.cli import app

RUN = CliRunner()
ROOT = Path(__file__).parent.parent


class Maybe:
    """A value that may be null."""

    def __init__(self, of: object) -> None:
        self.of = of


class Free:
    """An object whose keys are names of things: one kind of value each."""

    def __init__(self, of: object) -> None:
        self.of = of


STRATEGY = {
    "tp": int, "cp": int, "dp": int, "ep": int, "etp": int, "sequence_parallel": bool, "zero": int, "shard_group": int,
    "recompute": {"granularity": str, "modules": [str]},
}  # fmt: skip
MEMORY = {
    "total_gib": float, "usable_gib": float, "verdict": str, "moment": str, "host_gib": float,
    "components": Free(float),
}  # fmt: skip
BREAKDOWN = dict.fromkeys(("compute_s", "exposed_comm_s", "bubble_s", "sync_s", "io_s"), float)
SLOT = {
    "island": int, "node": int, "gpu": int, "stage": int, "mean_w": float, "busy_w": float, "peak_w": float,
    "clock_mhz": float, "temperature_c": float, "peak_c": float, "limited_by": str,
}  # fmt: skip
TRAFFIC = {
    "stage": int,
    "bottleneck": str,
    "axes": [
        {
            "purpose": str, "axis": str, "collective": str, "algorithm": str, "ranks": int, "domains": int,
            "message_bytes": float, "count": float, "tier": str, "busy_s": float, "slow_bytes_per_token": float,
            "exposed_share": Maybe(float),
        }
    ],
    "links": [{"name": str, "tier": str, "busy_s": float, "share": float, "users": Free(float)}],
    "sharing": dict.fromkeys(("step_s", "sends", "reduction_s", "gather_s", "waits_s", "checkpoint"), float),
    "adapters": [str],
    "uneven": [{"axis": str, "pattern": str, "speed": float, "link": str}],
}  # fmt: skip
LAYOUT = {
    "rank": int, "name": str, "why": str,
    "tp": int, "pp": int, "cp": int, "ep": int, "etp": int, "dp": int, "vpp": int, "zero": int, "shard_group": int,
    "micro_batch": int, "num_microbatches": int, "schedule": str, "sequence_parallel": bool, "gpus": int,
    "recompute": {"granularity": str, "modules": [str], "layers": int},
    "layers_per_stage": [[int]], "rank_order": str, "microbatch_group": int,
    "stages": [
        {
            "mesh": dict.fromkeys(("gpus", "island", "tp", "cp", "dp", "ep", "etp", "edp"), int),
            "layers": int,
            "strategies": [{"layers": int, **STRATEGY}],
            "time_s": float,
            "memory_gib": float,
            "memory": MEMORY,
        }
    ],
    "step_time_s": float, "tokens_per_s": float, "tokens_per_s_per_gpu": float, "mfu": float, "peak_flops_per_s": float,
    "breakdown": BREAKDOWN,
    "details_s": Free(float),
    "memory": {
        "heaviest_rank": int, "heaviest_stage": int, **MEMORY, "logits_tensor_gib": float, "logits_loss_gib": float,
    },
    "power": {
        "gpu_w": float, "peak_gpu_w": float, "clock_mhz": float, "limited_by": str, "energy_j_per_token": float,
        "max_temp_c": float, "gap_c": float, "node_energy_j_per_token": float, "slots": [SLOT],
    },
    "per_trillion_tokens": {
        "days": float, "gpu_kwh": float, "building_kwh": float, "electricity_cost": float, "cost": float,
        "currency": str,
    },
    "goodput": {
        "share": float, "tokens_per_s": float, "failure_interval_s": float, "checkpoint_gib": float,
        "checkpoint_write_s": float, "checkpoint_interval_s": float, "checkpoint_interval_steps": int,
        "restart_s": float, "storage_assumed": bool,
    },
    "placement": [{"rank": int, "host": str, "gpu": int}],
    "choices?": Free(str),
    "in_order?": {"step_time_s": float, "energy_j_per_token": float, "gap_c": float, "max_temp_c": float},
    "traffic": TRAFFIC,
    "evidence": {
        "label": str, "nearest": str, "low_s": float, "high_s": float, "low_peak_gib": float, "high_peak_gib": float,
        "profile": str, "unmeasured": str, "few_runs": str,
    },
}  # fmt: skip
HEADING = {"schema": int, "planner": str}
REQUEST = {
    "model": str, "cluster": str, "global_batch": int, "seq": int, "precision": str, "framework": str,
    "objective": str, "recompute": str, "top": int, "time_limit_s": float, "power_cap_w": float, "thermal": bool,
    "launcher": str, "loss": str, "lora_rank": int, "lora_targets": str, "offload": str,
    "fixed": Free(int), "telemetry?": [str], "profile?": str, "tries?": [str], "images?": str, "freeze?": str,
    "resolved": {
        "model": str, "layers": int, "parameters": int, "cluster": str, "gpus": int, "nodes": int, "precision": str,
        "software": str, "hosts?": [str],
    },
}  # fmt: skip
SEARCH = {
    **HEADING,
    "request": REQUEST,
    "layouts": [LAYOUT],
    "search": {
        "enumerated": int, "pruned": Free(int), "solved": int, "lower_bound_s": float, "gap": float,
        "proven_optimal": bool, "wall_s": float, "work_s": float, "by_clock": bool, "cut": Free(int),
    },
    "rejected": Free(int),
    "notes": [str],
    "roomier?": {"rank": int, "slower": float, "freed_gib": float},
    "unconstrained_s?": float,
    "infeasible?": {"constraint": str, "nearest_change": str},
    "stragglers?": {
        "devices": [{"node": int, "gpu": int, "pace": float}],
        "healthy_s": float, "as_is_s": float, "replanned_s": float, "left_out": [int], "without_s": float,
        "cut": bool,
    },
    "rebalance?": {"now_s": float, "gain": float, "restart_s": float, "payback_steps": int},
    "port?": {
        "recipe": str, "start": str, "forced": [{"change": str, "why": str}], "carried": Maybe(LAYOUT),
        "further": [str], "program": str, "notes": [str],
    },
}  # fmt: skip
VIOLATION = {"rule": str, "message": str, "values": Free(object), "found": str, "source": str}
ESTIMATE = {**HEADING, "request": REQUEST, "layout": LAYOUT, "legal": bool, "violations": [VIOLATION]}
SIZE = {
    "gpus": int,
    "cut_at_gpus": int,
    "first": Maybe(LAYOUT),
    "safe": Maybe(LAYOUT),
    "below": Maybe(
        {"gpus": int, "decides": str, "states_gib": float, "usable_gib": float, "memory": Maybe(MEMORY)},
    ),
}
FEWEST = {**HEADING, "request": REQUEST, "machines": [{"machine": str, **SIZE, "offloaded": SIZE}]}
COMPARE = {
    **HEADING,
    "request": REQUEST,
    "by": str,
    "values": [
        {
            "value": int, "seq": int, "layout": Maybe(LAYOUT), "why_not": str, "logits_gib": float,
            "gathered_gib": float,
        }
    ],
}  # fmt: skip
CHECK = {
    **HEADING,
    "framework": str, "framework_version": str, "trainer": str, "world_size": int, "legal": bool,
    "accepted_at_launch": bool, "violations": [VIOLATION],
    "layers_per_stage": Maybe([[int]]),
    "layers_counted_unchecked": Maybe(int),
    "grids": Maybe(
        {
            "attention": dict.fromkeys(("tp", "cp", "dp", "pp"), int),
            "experts": Maybe(dict.fromkeys(("etp", "ep", "edp", "pp"), int)),
            "rank_order": str,
        }
    ),
    "unknown": [str], "unjudged": [str], "notes": [str],
    "nearest": [
        {
            "changes": [{"name": str, "from": int, "to": int}], "layers_per_stage": [[int]], "words": str,
            "layout": Maybe(LAYOUT),
        }
    ],
    "prediction": Maybe(LAYOUT),
    "fastest": [{"changes": [str], "layout": LAYOUT}],
}  # fmt: skip
ERRORS = {"name": str, "rows": int, "median_error": float, "p90_error": float, "median_ratio": float}
VALIDATE = {
    **HEADING,
    "rows": [
        {
            "id": str, "step_time_s": Maybe(float), "peak_mem_gb": Maybe(float), "verdict": Maybe(str),
            "skipped": Maybe(str),
        }
    ],
    "summary": {
        "runs": int, "predicted": int,
        "all": [ERRORS], "by_hardware": [ERRORS], "by_family": [ERRORS], "by_kind": [ERRORS], "memory": [ERRORS],
        "verdicts": dict.fromkeys(("out_of_memory", "called_oom", "called_risky", "ran", "wrongly_oom"), int),
        "skipped": Free(int),
        "assumed": Free(int),
        "profile?": {"file": str, "accelerator": str, "frameworks": [str], "applied": int},
        "fitted_constants": Free(object),
    },
}  # fmt: skip
POINT = {
    "nodes": int, "gpus": int, "global_batch": int, "layout": str, "step_s": float, "tokens_per_s": float,
    "efficiency": float,
}  # fmt: skip
LINKS = {
    **HEADING,
    "rank": int,
    "traffic": TRAFFIC,
    "networks": [{"factor": float, "order": [int], "step_s": [float]}],
    "scaling?": {"fixed_batch": [POINT], "scaled_batch": [POINT], "helps_until_gpus": int},
}
MODEL = {
    "name": str, "family": str, "parameters": int, "active_parameters": int, "embedding_parameters": int,
    "head_parameters": int, "mtp_parameters": int, "layers": int, "mtp_layers": int,
    "layer_kinds": [{"name": str, "parameters": int, "count": int}], "sources": [str], "notes": [str],
    "hidden?": int, "vocab?": int, "seq?": int, "flops_per_token": float, "flops_per_token_full_scores?": float,
    "flops_convention": str, "tower_parameters?": int, "projector_parameters?": int, "image_tokens?": int,
}  # fmt: skip
ACCELERATOR = {
    "name": str, "vendor": str, "memory_gib": float, "allocatable_gib": float, "memory_gb_per_s": float,
    "dense_tflops": Free(float), "fp8_blocks": [int], "fp4_blocks": [int], "multiprocessors": int,
    "peak_clock_mhz": float, "max_clock_mhz": float, "tdp_w": float, "idle_w": float,
    "slowdown_c": float, "sources": [str],
}  # fmt: skip
CLUSTER = {
    "name": str, "gpus": int, "nodes": int, "nics": int,
    "islands": [
        {
            "node": str, "nodes": int, "gpus": int, "gpus_per_node": int, "accelerator": str,
            "memory_gib_per_gpu": float,
            "scale_up": {
                "kind": str, "shape": str, "domain_gpus": int, "gb_per_s_per_gpu": float, "latency_us": float,
            },
            "nics": {"kind": str, "per_node": int, "gbit_per_s": float, "latency_us": float},
            "fabric": [{"name": str, "nodes": int, "oversubscription": float}],
            "cooling": str, "price_per_node_hour": float,
        }
    ],
    "inter_island_gb_per_s": float, "electricity_per_kwh": float, "pue": float, "currency": str, "sources": [str],
}  # fmt: skip


def faults(value: object, kind: object, place: str) -> Iterator[str]:
    """Where a value differs from its table: one line for each field."""
    if isinstance(kind, Maybe):
        yield from () if value is None else faults(value, kind.of, place)
    elif isinstance(kind, dict | Free):
        yield from _fields(value, kind, place) if isinstance(value, dict) else [f"{place}: no object"]
    elif isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{place}: no list"
            return
        for number, item in enumerate(value):
            yield from faults(item, kind[0], f"{place}[{number}]")
    elif kind is not object and type(value) not in ((float, int) if kind is float else (kind,)):
        yield f"{place}: {value!r} is no {kind}"


def _fields(value: dict, table: dict | Free, place: str) -> Iterator[str]:
    if isinstance(table, Free):
        table = dict.fromkeys(value, table.of)
    known = {key.removesuffix("?"): kind for key, kind in table.items()}
    yield from (f"{place}.{key}: in no table" for key in value if key not in known)
    yield from (f"{place}.{key}: missing" for key in table if key not in value and not key.endswith("?"))
    for key, kind in known.items():
        if key in value:
            yield from faults(value[key], kind, f"{place}.{key}")


def answer(*arguments: str, code: int = 0) -> dict:
    result = RUN.invoke(app, [*arguments, "--json", "-"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


JOB = ("--global-batch", "16", "--seq", "2048")
PINNED = ("--fix", "tp=2", "--fix", "pp=1", "--micro-batch", "1")
SLOW = '[[island]]\nnode = "dgx-h100"\nnodes = 1\n[[island.device]]\nnode = 0\ngpu = 3\nspeed = 0.8\n'
RUNS = """id,model,hardware,n_gpus,seq_len,global_batch_size,micro_batch_size,tp,pp,step_time_s,peak_mem_gb,status
a1,llama32_1b,H100,8,2048,128,1,1,1,1.5,20,ok
a2,llama32_1b,H100,8,2048,128,1,2,1,2.0,16,ok
b3,llama32_1b,H100,8,2048,128,1,4,1,2.5,,oom
c4,llama32_1b,H100,8,2048,128,1,3,1,3.0,,ok
"""
LAUNCH = [
    *("--num-layers", "16", "--hidden-size", "2048", "--num-attention-heads", "16", "--seq-length", "2048"),
    *("--max-position-embeddings", "2048", "--micro-batch-size", "1", "--global-batch-size", "64", "--bf16"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "plan.json"
    path.write_text(json.dumps(answer("search", "llama32_1b", "dgx-h100:2", *JOB, *PINNED, "--top", "2")))
    return path


def test_the_tables_notice_what_differs():
    table = {"a": int, "b?": [str], "c": Maybe({"d": float}), "e": Free(int)}
    assert not list(faults({"a": 1, "c": None, "e": {"x": 1}}, table, ""))
    wrong = {"a": True, "b": ["x", 1], "c": {"d": "fast"}, "e": {"x": 1.5}, "f": 0}
    assert [line.split(":")[0] for line in faults(wrong, table, "")] == [".f", ".a", ".b[1]", ".c.d", ".e.x"]
    assert next(faults({"c": None, "e": []}, table, "")) == ".a: missing"


def test_search(saved):
    data = json.loads(saved.read_text())
    assert not list(faults(data, SEARCH, "search"))
    assert len(data["layouts"]) == 2
    limited = {layout["power"]["limited_by"] for layout in data["layouts"]}
    assert limited <= {"power", "heat", "none"}


def test_search_of_what_does_not_fit():
    data = answer("search", "llama3_70b", "dgx-h100:1", *JOB, *PINNED, code=3)
    assert not list(faults(data, SEARCH, "search"))
    assert data["layouts"] == []
    assert data["infeasible"]["nearest_change"]


def test_search_with_slow_devices(tmp_path):
    (tmp_path / "slow.toml").write_text(SLOW)
    data = answer("search", "llama32_1b", str(tmp_path / "slow.toml"), *JOB, *PINNED, "--top", "1")
    assert not list(faults(data, SEARCH, "search"))
    assert data["stragglers"]["devices"]


def test_search_from_a_report(saved):
    moved = answer("search", "dgx-a100:1", "--from", str(saved), "--top", "1")
    assert not list(faults(moved, SEARCH, "search"))
    assert moved["port"]["carried"]
    again = answer("search", "--from", str(saved))
    assert not list(faults(again, SEARCH, "search"))
    assert again["rebalance"]


def test_estimate():
    data = answer(
        "estimate",
        "llama32_1b",
        "dgx-h100:1",
        *JOB,
        "--tp",
        "2",
        "--thermal",
        "--framework",
        "galvatron",
        "--zero",
        "1",
    )
    assert not list(faults(data, ESTIMATE, "estimate"))
    assert data["layout"]["in_order"]
    assert len(data["layout"]["power"]["slots"]) == 8
    assert data["violations"]


def test_fewest():
    data = answer("fewest", "llama3_8b", "dgx-h100", *JOB, "--fix", "pp=1")
    assert not list(faults(data, FEWEST, "fewest"))
    assert data["machines"][0]["below"]


def test_compare():
    data = answer("compare", "llama32_1b", "dgx-h100:1", "--by", "cp", *JOB, *PINNED)
    assert not list(faults(data, COMPARE, "compare"))
    assert len(data["values"]) > 1


def test_traffic(saved):
    data = answer("traffic", str(saved), "--scaling")
    assert not list(faults(data, LINKS, "traffic"))
    assert data["networks"]
    assert data["scaling"]["fixed_batch"]


def test_check():
    experts = ("--num-experts", "6", "--expert-model-parallel-size", "4")
    wrong = RUN.invoke(app, ["check", "--world-size", "8", "--json", "-", "--", *LAUNCH, *experts])
    assert wrong.exit_code == 3, wrong.output
    data = json.loads(wrong.stdout)
    assert not list(faults(data, CHECK, "check"))
    assert data["violations"]
    assert data["nearest"]
    assert data["grids"]["experts"]
    command = ["check", "--world-size", "8", "--cluster", "dgx-h100", "--json", "-", "--", *LAUNCH]
    right = RUN.invoke(app, command)
    assert right.exit_code == 0, right.output
    data = json.loads(right.stdout)
    assert not list(faults(data, CHECK, "check"))
    assert data["prediction"]


def test_validate(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    data = answer("validate", str(tmp_path / "runs.csv"))
    assert not list(faults(data, VALIDATE, "validate"))
    assert data["summary"]["memory"]
    assert {row["verdict"] for row in data["rows"]} <= {"fits", "risky", "oom", None}
    assert [row["skipped"] is None for row in data["rows"]] == [True, True, True, False]


@pytest.mark.parametrize(
    ("kind", "name", "table"),
    [
        ("models", "mixtral_8x7b", MODEL),
        ("models", str(ROOT / "examples/models/wide_resnet.toml"), MODEL),
        ("accelerators", "h100-sxm-80gb", ACCELERATOR),
        ("clusters", "gb200-nvl72:36", CLUSTER),
        ("clusters", str(ROOT / "examples/clusters/mixed-generations.toml"), CLUSTER),
    ],
)
def test_catalog(kind, name, table):
    assert not list(faults(answer("catalog", kind, name), table, kind))
    assert not list(faults(answer("catalog", kind), {kind: [str]}, kind))


def keys(table: object) -> Iterator[str]:
    if isinstance(table, dict):
        for key, kind in table.items():
            yield key.removesuffix("?")
            yield from keys(kind)
    elif isinstance(table, list):
        yield from keys(table[0])
    elif isinstance(table, Maybe | Free):
        yield from keys(table.of)


def test_every_field_stands_in_the_documentation():
    text = (ROOT / "docs" / "json.md").read_text()
    tables = (SEARCH, ESTIMATE, FEWEST, COMPARE, CHECK, VALIDATE, LINKS, MODEL, ACCELERATOR, CLUSTER)
    named = {key for table in tables for key in keys(table)}
    assert sorted(key for key in named if f"`{key}`" not in text and f"`{key}[]`" not in text) == []

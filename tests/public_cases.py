"""Public reports of users as checks on the planner: ``reference/cases.toml`` and ``more_cases.toml`` read and judged.

A check on time or memory prices the variants of a case as ``plan validate`` prices rows; one on legality asks the rules
of ``plan check``; a launch is judged as ``plan check`` judges it.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.evidence.measured import parse_run
from planner.evidence.validate import Prediction, predict
from planner.launches.check import read_launch
from planner.layouts.splits import even_chunks
from planner.question import LaunchQuestion
from planner.request import Framework
from planner.rules import ModelFacts, Proposal, Split, check
from planner.rules.split import layers_unchecked, virtual_degree

FILES = tuple(Path(__file__).with_name("reference") / name for name in ("cases.toml", "more_cases.toml"))
NEAR_LIMIT = 0.9
GB = 1e9
GIB = 2.0**30
COLUMNS = {
    "layers": "layers",
    "hidden": "hidden_size",
    "ffn": "ffn_hidden_size",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "vocab": "vocab",
    "experts": "experts",
    "topk": "topk",
    "n_gpus": "n_gpus",
    "gpus_per_node": "gpus_per_node",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "vpp": "vpp",
    "ep": "ep",
    "etp": "etp",
    "dp": "dp",
    "zero": "zero",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "seq": "seq_len",
    "offload": "offload",
    "dispatcher": "moe_dispatcher",
    "overlap": "overlap",
    "routing": "token_routing",
    "intra_node": "intra_node",
    "network_gbps": "scaleout_gbps_per_node",
    "network": "interconnect",
    "cuda_graphs": "cuda_graphs",
    "notes": "notes",
    "sequence_parallel": "sequence_parallel",
    "images": "images",
    "freeze": "freeze",
}
CARDS = {
    "A100-80GB": "A100-SXM-80GB",
    "H200-141GB": "H200-SXM-141GB",
    "V100-32GB / A100-40GB": "A100-SXM-40GB",
    "H100-80GB": "H100-SXM-80GB",
    "H100-95GB": "H100-96GB",
}
WHOLE_RECOMPUTE = ("none", "full", "selective")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One check: what it asks, whether the planner agrees, and with which numbers."""

    asks: str
    agrees: bool
    told: str


def cases() -> tuple[Mapping[str, Any], ...]:
    """Every case in the order of the files."""
    return tuple(case for file in FILES for case in tomllib.loads(file.read_text(encoding="utf-8"))["case"])


def setting(case: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """The case's setting with a variant's fields over it; what follows from a field follows the variant's."""
    arch = dict(case.get("arch", {}))
    variant = dict(variant)
    if "heads" in variant and arch.get("kv_heads") == arch.get("heads"):
        variant.setdefault("kv_heads", variant["heads"])  # multi-head attention stays it
    if "hidden" in variant and arch.get("ffn") == 4 * arch.get("hidden", 0):
        variant.setdefault("ffn", 4 * variant["hidden"])  # and so does the usual width of the feed-forward
    own = {key: case[key] for key in ("n_gpus", "gpus_per_node", "gpu") if key in case}
    return {**arch, **own, **case.get("config", {}), **variant}


def row_of(case: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, str]:
    """A setting as a row of measured runs."""
    row = {"tp": "1", "pp": "1"}
    row |= {column: str(told[name]) for name, column in COLUMNS.items() if told.get(name) is not None}
    row["id"] = f"{case['id']}-{told.get('name', '')}"
    row["framework"] = str(told.get("framework", case["framework"])).lower()
    row["model"] = case.get("preset", case["id"])
    row["hardware"] = CARDS.get(told["gpu"], told["gpu"])
    row["precision"] = str(told.get("precision", "bf16")).split()[0]
    recompute = str(told.get("recompute", ""))
    plain = not recompute or recompute.startswith(WHOLE_RECOMPUTE)
    row["recompute"] = recompute if plain else f"selective:{recompute}"
    if case.get("network") == "omni-path":
        row = {"scaleout_gbps_per_node": "400", **row, "interconnect": "omni-path"}
    row["source"] = case["source"]
    row.setdefault("global_batch_size", str(int(told.get("dp") or told.get("n_gpus") or 1) * int(told.get("mbs") or 1)))
    return row


def priced(case: Mapping[str, Any]) -> dict[str, Prediction]:
    """Price every variant of a case."""
    found = {}
    for variant in case.get("variant", ()):
        used = variant.get("seen", {}).get("dispatcher")
        told = {**variant["config"], "name": variant["name"], **({"dispatcher": used} if used else {})}
        found[variant["name"]] = predict(parse_run(row_of(case, setting(case, told))))
    return found


def outcomes(case: Mapping[str, Any], found: Mapping[str, Prediction]) -> list[Outcome]:
    """Every check of a case, with its launches."""
    checked = [CHECKS[entry["type"]](case, entry, found) for entry in case.get("check", ())]
    return [*checked, *map(launched, case.get("launch", ()))]


def launched(launch: Mapping[str, Any]) -> Outcome:
    """Judge a launch as plan check does; ``file`` and ``text`` are a file that it is given."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / launch["file"] if "file" in launch else None
        if file is not None:
            file.write_text(launch["text"], encoding="utf-8")
        judged = read_launch(
            LaunchQuestion(
                framework=launch["framework"],
                version=launch.get("version"),
                world=launch["world"],
                arguments=tuple(launch.get("args", ())),
                file=file,
                model=launch.get("model", ""),
            )
        )
    rules = [violation.rule for violation in judged.violations]
    agrees = judged.legal == launch["legal"] and ("rule" not in launch or launch["rule"] in rules)
    if "built" in launch:
        agrees = agrees and judged.built is not None and [sum(stage) for stage in judged.built] == launch["built"]
    if "unchecked" in launch and judged.proposal is not None:
        agrees = agrees and layers_unchecked(judged.proposal) == launch["unchecked"]
    asks = f"launch of {launch['world']} GPUs is {'legal' if launch['legal'] else 'refused'}"
    return Outcome(asks=asks, agrees=agrees, told="; ".join(violation.message for violation in judged.violations))


def _share(prediction: Prediction) -> float:
    use = prediction.cost.heaviest if prediction.cost else None
    return use.total_bytes / use.usable_bytes if use else 0.0


def _memory_is(wanted: Callable[[Prediction], bool]) -> Callable[..., Outcome]:
    def judged(_: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
        wrong = [name for name in entry["variants"] if not wanted(found[name])]
        told = ", ".join(f"{name} {found[name].verdict or found[name].skipped}" for name in wrong)
        asks = f"{entry['type'].replace('_', ' ')}: {', '.join(entry['variants'])}"
        return Outcome(asks=asks, agrees=not wrong, told=told)

    return judged


def _within(case: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    measured = {variant["name"]: variant.get("seen", {}) for variant in case["variant"]}
    errors = {}
    for name in entry["variants"]:
        told = measured[name].get("mem_gb") or measured[name].get("mem_gib")
        size = found[name].peak_mem_bytes
        errors[name] = size / GIB / told - 1.0 if size and told else 9.0
    wrong = {name: error for name, error in errors.items() if abs(error) > entry["tol"]}
    told = ", ".join(f"{name} {error:+.0%}" for name, error in wrong.items())
    return Outcome(asks=f"memory within {entry['tol']:.0%}: {len(errors)}", agrees=not wrong, told=told)


def _faster(case: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    one, other = found[entry["a"]], found[entry["b"]]
    ratio = 0.0
    if one.step_time_s and other.step_time_s:
        ratio = other.step_time_s / one.step_time_s
        if entry["type"] == "faster_tokens":
            rates = [_tokens_per_gpu(case, name) for name in (entry["a"], entry["b"])]
            ratio *= rates[0] / rates[1]
    least = entry.get("min_ratio", 1.0)
    asks = f"{entry['a']} faster than {entry['b']}" + (f" by {least}" if least > 1 else "")
    return Outcome(asks=asks, agrees=ratio >= least, told=f"{ratio:.3f}")


def _tokens_per_gpu(case: Mapping[str, Any], name: str) -> float:
    variant = next(variant for variant in case["variant"] if variant["name"] == name)
    row = row_of(case, setting(case, variant["config"]))
    return float(row["global_batch_size"]) * float(row["seq_len"]) / float(row["n_gpus"])


def _ratio(_: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    one, other = found[entry["a"]].step_time_s or 0.0, found[entry["b"]].step_time_s or 1.0
    agrees = abs(one / other / entry["expect"] - 1.0) <= entry["tol_rel"]
    asks = f"step {entry['a']} / {entry['b']} = {entry['expect']}"
    return Outcome(asks=asks, agrees=agrees, told=f"{one / other:.3f}")


def _steps_within(case: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    measured = {variant["name"]: variant.get("seen", {}).get("step_s", 0.0) for variant in case["variant"]}
    ratios = {name: (found[name].step_time_s or 0.0) / measured[name] for name in entry["variants"]}
    wrong = {name: ratio for name, ratio in ratios.items() if abs(ratio - 1.0) > entry["tol"]}
    told = ", ".join(f"{name} {ratio - 1.0:+.0%}" for name, ratio in wrong.items())
    return Outcome(asks=f"step within {entry['tol']:.0%}: {len(ratios)}", agrees=not wrong, told=told)


def _order(_: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    sizes = [found[entry[key]].peak_mem_bytes or 0.0 for key in ("heavier", "lighter")]
    asks = f"{entry['heavier']} holds more than {entry['lighter']}"
    return Outcome(asks=asks, agrees=sizes[0] > sizes[1], told=" and ".join(f"{size / GB:.1f} GB" for size in sizes))


def _component(_: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    cost = found[entry["variant"]].cost
    parts = dict(cost.heaviest.components) if cost else {}
    size = sum(parts.get(name, 0.0) for name in ("weights", "gradients", "optimizer")) / GB
    asks = f"{entry['component']} of {entry['min_gb']} to {entry['max_gb']} GB"
    return Outcome(asks=asks, agrees=entry["min_gb"] <= size <= entry["max_gb"], told=f"{size:.1f} GB")


def _legality(case: Mapping[str, Any], entry: Mapping[str, Any], _: Mapping[str, Prediction]) -> Outcome:
    told = {**case.get("arch", {}), **entry["with"]}
    broken, built = judged_setting(told, str(case["framework"]), stated="layers" in entry["with"])
    legal = entry["type"] == "legal"
    agrees = legal == (not broken) and built in (entry.get("built", built), None)
    asks = f"{entry['type']}: {' '.join(f'{key} {value}' for key, value in entry['with'].items())}"
    words = "; ".join(broken) + (f"; {built} layers would be built" if broken and "built" in entry else "")
    return Outcome(asks=asks, agrees=agrees, told=words)


def judged_setting(told: Mapping[str, Any], framework: str, *, stated: bool = True) -> tuple[list[str], int]:
    """Messages of the broken rules of a bare setting, and the layers that would be built without them.

    ``stated`` is whether its flags state how layers are split.
    """
    pp, layers = int(told.get("pp") or 1), int(told.get("layers") or 0)
    split = Split(
        virtual_stages=int(told.get("vpp") or -1), first=int(told.get("first") or -1), last=int(told.get("last") or -1)
    )
    tp, cp = int(told.get("tp") or 1), int(told.get("cp") or 1)
    world = int(told.get("n_gpus") or tp * cp * pp)
    if not stated:  # the split is not what is asked: any will do
        split = Split(explicit=even_chunks(layers or 4 * pp, pp, 1))
    proposal = Proposal(
        world=world,
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=virtual_degree(split, layers, pp),
        ep=int(told.get("ep") or 1),
        etp=int(told.get("etp") or tp),
        micro_batch=1,
        global_batch=max(1, world // (tp * pp * cp)) * pp * 4,
        seq=4096,
        sequence_parallel=tp > 1,
        model=ModelFacts(
            layers=layers or 4 * pp,
            heads=int(told.get("heads") or 0),
            kv_heads=int(told.get("kv_heads") or 0),
            experts=int(told.get("experts") or (512 if told.get("ep") else 0)),
            top_k=2,
        ),
        split=split,
    )
    known = Framework.BRIDGE if "bridge" in framework.lower() else Framework.MEGATRON
    broken = [violation.message for violation in check(proposal, known) if violation.refused_at_launch]
    return broken, layers_unchecked(proposal)


CHECKS: dict[str, Callable[..., Outcome]] = {
    "oom": _memory_is(lambda prediction: prediction.verdict == "oom"),
    "fits": _memory_is(lambda prediction: prediction.verdict in ("fits", "risky")),
    "near_limit": _memory_is(lambda prediction: _share(prediction) > NEAR_LIMIT),
    "oom_or_near_limit": _memory_is(lambda prediction: _share(prediction) > NEAR_LIMIT),
    "mem_within": _within,
    "mem_order": _order,
    "mem_component": _component,
    "faster": _faster,
    "faster_tokens": _faster,
    "step_ratio": _ratio,
    "step_within": _steps_within,
    "legal": _legality,
    "illegal": _legality,
}


def seen_text(case: Mapping[str, Any], found: Mapping[str, Prediction]) -> Iterator[str]:
    """Every priced variant in words: predicted (measured)."""
    for variant in case.get("variant", ()):
        prediction, seen = found[variant["name"]], variant.get("seen", {})
        if prediction.cost is None or prediction.peak_mem_bytes is None:
            if case.get("check"):
                yield f"{variant['name']}: not priced ({prediction.skipped})"
            continue
        memory = seen.get("mem_gb") or seen.get("mem_gib") or ("oom" if seen.get("oom") else "")
        step = f"{prediction.cost.step.total_s:.4g}" + (f" ({seen['step_s']:g})" if "step_s" in seen else "") + " s"
        size = f"{prediction.peak_mem_bytes / GIB:.1f}" + (f" ({memory})" if memory else "")
        yield f"{variant['name']}: {step}, {size} GiB {prediction.verdict}"

"""Answer public user reports and say, check by check, whether the planner says what a right one must.

    python benchmarks/cases.py CASES.jsonl [--out docs/cases.md]

CASES.jsonl holds one report a line: its setting, variants of it, and checks. A check on time or memory prices the
variants as ``plan validate`` does; one on legality asks the rules of ``plan check``. What reports without checks need,
and why a check fails, is told in ``cases_notes.toml``.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.errors import InputError
from planner.measured import parse_run
from planner.request import Framework
from planner.rules import ModelFacts, Proposal, Split, check
from planner.rules.split import layers_unchecked, virtual_degree
from planner.splits import even_chunks
from planner.validate import Prediction, predict

NEAR_LIMIT = 0.9
GB = 1e9
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
    "recompute": "recompute",
    "offload": "offload",
    "dispatcher": "moe_dispatcher",
}
CARDS = {
    "A100-80GB": "A100-SXM-80GB",
    "A100-40GB": "A100-SXM-40GB",
    "V100-32GB / A100-40GB": "A100-SXM-40GB",
    "H100-80GB": "H100-SXM-80GB",
    "H100-95GB": "H100-96GB",
}
SIZES = ("hidden_size", "ffn_hidden_size", "experts", "topk", "layers", "heads", "kv_heads", "vocab")
NAMES = {"DeepSeek-V3-16B": "deepseek_v2_lite"}  # torchtitan's configuration of these sizes
BY_NAME = {"Qwen3", "Moonlight", "DeepSeek"}  # models whose kinds of layers a report does not state: presets have them


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One check: what it asks, whether the planner agrees, and with which numbers."""

    asks: str
    agrees: bool
    told: str


def setting(case: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """The case's setting with a variant's fields over it."""
    if "heads" in variant and "kv_heads" not in variant and case["arch"].get("kv_heads") == case["arch"].get("heads"):
        variant = {**variant, "kv_heads": variant["heads"]}  # multi-head attention stays it
    own = {key: value for key, value in case.items() if key in ("n_gpus", "gpus_per_node", "gpu")}
    return {**case.get("arch", {}), **own, **case["config"], **variant}


def of_variant(case: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, str]:
    """A variant of a case as a row of measured runs."""
    used = variant.get("observed", {}).get("dispatcher")
    told = {**variant["config"], "name": variant["name"], **({"dispatcher": used} if used else {})}
    return row_of(case, setting(case, told))


def row_of(case: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, str]:
    """A setting as a row of measured runs."""
    row = {column: str(told[name]) for name, column in COLUMNS.items() if told.get(name) is not None}
    named = any(word in case["model"] for word in BY_NAME)
    if named:
        row = {
            key: value for key, value in row.items() if key not in ("hidden_size", "ffn_hidden_size", "experts", "topk")
        }
    row = {"tp": "1", "pp": "1", **row}
    row["id"] = f"{case['id']}-{told.get('name', '')}"
    row["framework"] = str(case["framework"]).lower()
    name = case["model"].split(" (")[0].split(" pretrain")[0]
    row["model"] = NAMES.get(name, name.replace(" ", "_")) if named else case["id"]
    row["hardware"] = CARDS.get(told["gpu"], told["gpu"])
    row["precision"] = str(told.get("precision", "bf16")).split()[0]
    row["notes"] = case.get("note", "") or ""
    if "140 Gbps" in str(case["network"]):
        row |= {"scaleout_gbps_per_node": "400", "interconnect": "omni-path"}
    if told.get("ep_overlap"):
        row["overlap"] = "ep: overlap_moe_expert_parallel_comm"
    row["source"] = case["source"]
    row.setdefault("global_batch_size", str(int(told.get("dp") or told.get("n_gpus") or 1) * int(told.get("mbs") or 1)))
    return row


def priced(case: Mapping[str, Any]) -> dict[str, Prediction]:
    """Price every variant of a case."""
    variants = case.get("variants") or []
    return {variant["name"]: predict(parse_run(of_variant(case, variant))) for variant in variants}


def outcomes(case: Mapping[str, Any]) -> list[Outcome]:
    """Every check of a case."""
    found = priced(case)
    return [CHECKS[entry["type"]](case, entry, found) for entry in case.get("checks") or []]


def _verdicts(entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> dict[str, str]:
    return {name: found[name].verdict or str(found[name].skipped) for name in entry["variants"]}


def _share(prediction: Prediction) -> float:
    use = prediction.cost.heaviest if prediction.cost else None
    return use.total_bytes / use.usable_bytes if use else 0.0


def _memory_is(wanted: Callable[[Prediction], bool]) -> Callable[..., Outcome]:
    def judged(_: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
        wrong = [name for name in entry["variants"] if not wanted(found[name])]
        told = ", ".join(f"{name} {verdict}" for name, verdict in _verdicts(entry, found).items() if name in wrong)
        asks = f"{entry['type'].replace('_', ' ')}: {', '.join(entry['variants'])}"
        return Outcome(asks=asks, agrees=not wrong, told=told)

    return judged


def _within(case: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    measured = {variant["name"]: variant.get("observed", {}) for variant in case["variants"]}
    errors = {}
    for name in entry["variants"]:
        told = measured[name].get("mem_gb") or measured[name].get("mem_gib")
        size = found[name].peak_mem_bytes
        errors[name] = size / 2**30 / told - 1.0 if size and told else 9.0
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
    variant = next(variant for variant in case["variants"] if variant["name"] == name)
    row = row_of(case, setting(case, variant["config"]))
    return float(row["global_batch_size"]) * float(row["seq_len"]) / float(row["n_gpus"])


def _ratio(_: Mapping[str, Any], entry: Mapping[str, Any], found: Mapping[str, Prediction]) -> Outcome:
    one, other = found[entry["a"]].step_time_s or 0.0, found[entry["b"]].step_time_s or 1.0
    agrees = abs(one / other / entry["expect"] - 1.0) <= entry["tol_rel"]
    asks = f"step {entry['a']} / {entry['b']} = {entry['expect']}"
    return Outcome(asks=asks, agrees=agrees, told=f"{one / other:.3f}")


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
    broken, built = judged_setting(
        {**case.get("arch", {}), **entry["with"]}, str(case["framework"]), stated="layers" in entry["with"]
    )
    legal = entry["type"] == "legal"
    agrees = legal == (not broken) and built in (entry.get("built", built), None)
    asks = f"{entry['type']}: {' '.join(f'{key} {value}' for key, value in entry['with'].items())}"
    told = "; ".join(broken) + (f"; {built} layers would be built" if broken and "built" in entry else "")
    return Outcome(asks=asks, agrees=agrees, told=told)


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
    vpp = virtual_degree(split, layers, pp)
    proposal = Proposal(
        world=world,
        tp=tp,
        pp=pp,
        cp=cp,
        vpp=vpp,
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
    "legal": _legality,
    "illegal": _legality,
}


def _priced_text(case: Mapping[str, Any]) -> str:
    """Prices of the variants of a report that states no check: step, memory, verdict, or why there is none."""
    told = []
    for name, prediction in priced(case).items():
        if prediction.cost is None:
            told.append(f"{name} not priced ({prediction.skipped})")
        else:
            use = prediction.cost.heaviest
            size = f"{use.total_bytes / 2**30:.0f} of {use.usable_bytes / 2**30:.0f} GiB {use.verdict.value}"
            told.append(f"{name} {size}, {prediction.cost.step.total_s:.3g} s")
    return f"Priced: {'; '.join(told)}." if told else ""


def page(cases: list[dict[str, Any]], notes: Mapping[str, Any]) -> str:
    """Write the page."""
    told = {case["id"]: outcomes(case) for case in cases}
    every = [outcome for found in told.values() for outcome in found]
    by_kind = {}
    for case in cases:
        if told[case["id"]]:
            right, all_ = by_kind.get(case["kind"], (0, 0))
            found = told[case["id"]]
            by_kind[case["kind"]] = (right + sum(outcome.agrees for outcome in found), all_ + len(found))
    kinds = ", ".join(f"{kind} {right} of {total}" for kind, (right, total) in sorted(by_kind.items()))
    lines = [
        "# User reports",
        "",
        "`python benchmarks/cases.py CASES.jsonl --out docs/cases.md` writes this page: public reports of users, each",
        "with what the planner answers. Kinds: a memory, b speed, c legality, d uneven pipelines, e networks, f power,",
        "heat and slow parts, g planning. A check is a statement that a right planner must agree with.",
        "",
        f"{sum(outcome.agrees for outcome in every)} of {len(every)} checks hold ({kinds}).",
        "",
        "| id | report | checks | answer |",
        "| --- | --- | --- | --- |",
    ]
    for case in cases:
        found, note = told[case["id"]], notes.get(case["id"], {})
        wrong = [f"{outcome.asks}: {outcome.told}" for outcome in found if not outcome.agrees]
        share = f"{len(found) - len(wrong)} of {len(found)}" if found else ""
        prices = [] if found else [_priced_text(case)]
        answer = " ".join([note.get("answer", ""), *prices, *(f"Differs: {text}." for text in wrong)]).strip()
        lines.append(f"| {case['id']} | {note.get('title', case['model'])} | {share} | {answer.replace('|', ' ')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Answer the cases and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    notes = tomllib.loads(Path(__file__).with_name("cases_notes.toml").read_text(encoding="utf-8"))
    cases = [json.loads(line) for line in options.cases.read_text(encoding="utf-8").splitlines() if line.strip()]
    try:
        text = page(cases, notes)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

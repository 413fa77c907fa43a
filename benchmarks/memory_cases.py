"""Write what the memory model says of public reports as a page.

    python benchmarks/memory_cases.py > docs/memory-cases.md

The reports are those of ``tests/reference/memory_cases.toml``, which the tests hold.
"""

import sys
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from memory_cases import GIB, Report, heaviest, peak_gib, reports, states_gb

HEAD = """# Public reports about memory

What users reported, and what the memory model says of the same layouts. Written by `benchmarks/memory_cases.py` from
`tests/reference/memory_cases.toml`; the tests hold the verdicts, the moments and, where a report states one, the peak.
Peaks are GiB in the quantity of the report (the whole device unless it says otherwise); *states* are weights, gradients
and optimizer of the fullest rank in 1e9 bytes.
"""
TAIL = """## Reports without a layout to price

- Reinforcement learning (verl issues 3364, 3124, 3620; 88 GB for Qwen2-7B in verl_megatron_practice issue 2): rollout
  engine and reference model share the device; neither is modelled. What the trainer takes is.
- Models without a published architecture (Automodel issues 2546 and 3962) and design questions (ms-swift issue 9191:
  tp64 over eight nodes) have no figures to compare; `plan search` and `plan check` answer them on the machine at hand.
- Host memory (verl issue 7685): `MemoryUse.host_bytes` is what the host holds for one rank, so a node of 16 ranks needs
  16 times that.
- A rank that runs out of memory shows as a hang of the others (torchtitan issue 1558): the verdict names the fullest
  stage.
"""


def row(report: Report) -> str:
    """Return one line of a table."""
    uses = report.uses()
    use = heaviest(uses)
    verdict = use.verdict.value + (f", {use.moment.value}" if use.moment.value != "none" else "")
    host = f", host {use.host_bytes / 1e9:.0f} GB" if use.host_bytes else ""
    said = f"{verdict}; {peak_gib(report, uses):.1f} of {use.usable_bytes / GIB:.1f}{host}"
    return f"| {report.layout['name']} | {report.layout['seen']} | {said} | {states_gb(use):.1f} |"


def main() -> None:
    """Print the page."""
    print(HEAD)
    for _, group in groupby(reports(), key=lambda report: report.case["name"]):
        found = list(group)
        case = found[0].case
        print(f"## {case['name']}\n\n{case['source']}.\n")
        print("| layout | reported | the model says: verdict; peak GiB | states |")
        print("| --- | --- | --- | --- |")
        print("\n".join(map(row, found)) + "\n")
    print(TAIL.strip())


if __name__ == "__main__":
    main()

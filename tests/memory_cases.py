"""Public reports about memory, as facts to price: ``reference/memory_cases.toml``."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodels.job import TrainingJob
from costmodels.layout import FULL_RECOMPUTE, NO_RECOMPUTE, Granularity, Layout, Recompute, Stage, Strategy, StrategyRun
from costmodels.memory import allocated_bytes, logits_bytes, reserved_bytes, stage_memory
from costmodels.pipeline.schedules import Schedule
from costmodels.precision import precision
from costmodels.results import MemoryUse
from costmodels.software import software
from costmodels.table import table_of
from costmodels.workload import presets
from costmodels.workload.architecture import Architecture
from costmodels.workload.model import ModelSpec
from hardware.catalog import accelerator
from planner.layouts.splits import even_chunks

FILE = Path(__file__).with_name("reference") / "memory_cases.toml"
GIB = 2.0**30
STATES = ("weights", "gradients", "optimizer")
READ = {"allocated": allocated_bytes, "reserved": reserved_bytes, "device": lambda use: use.total_bytes}


@dataclass(frozen=True)
class Report:
    """One layout of a report: what was asked, what was seen, and what the memory model says."""

    case: Mapping[str, Any]
    layout: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.case['name']}: {self.layout['name']}"

    def get(self, key: str, default: Any = None) -> Any:
        """What the layout states, or else the whole case."""
        return self.layout.get(key, self.case.get(key, default))

    def uses(self) -> tuple[MemoryUse, ...]:
        """Memory of every stage."""
        model, strategy, batch = self._model(), self._strategy(), self.layout["batch"]
        pp, vpp = (self.layout["grid"].get(name, 1) for name in ("pp", "vpp"))
        split = self.get("layers")
        chunks = [(count,) for count in split] if split else even_chunks(model.layers, pp, vpp)
        layout = Layout(
            stages=tuple(
                Stage(layers_per_chunk=tuple(c), strategies=(StrategyRun(strategy=strategy, count=sum(c)),))
                for c in chunks
            ),
            micro_batch=batch["micro"],
            num_microbatches=batch["count"],
            schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        )
        return stage_memory(layout, model, self._job(strategy), accelerator(self.get("gpu")))

    def logits_gib(self) -> float:
        """All that the loss holds of the logits at its peak [GiB]."""
        strategy = self._strategy()
        table = table_of([strategy], pp=[1], micro_batch=[self.layout["batch"]["micro"]])
        _, at_peak = logits_bytes(self._model(), self._job(strategy), table)
        return float(at_peak[0]) / GIB

    def _strategy(self) -> Strategy:
        grid = {name: size for name, size in self.layout["grid"].items() if name not in ("pp", "vpp")}
        return Strategy(**grid, recompute=_recompute(self.get("recompute", "none")))

    def _job(self, strategy: Strategy) -> TrainingJob:
        of, batch = software(self.get("software")), self.layout["batch"]
        return TrainingJob(
            global_batch=batch["micro"] * batch["count"] * strategy.dp,
            seq=self.get("seq"),
            precision=replace(
                precision(self.get("precision"), framework=of.framework), **self.get("precision_traits", {})
            ),
            software=replace(of, **self.get("traits", {})),
            optimizer_bytes=self.get("optimizer_bytes", 8.0),
            trained_share=self.get("trained_share", 1.0),
        )

    def _model(self) -> ModelSpec:
        model = self.get("model")
        found = Architecture(**model).build("case") if isinstance(model, Mapping) else presets.find(model)
        assert found is not None, model
        return found


def _recompute(words: str) -> Recompute:
    if words in ("none", "full"):
        return NO_RECOMPUTE if words == "none" else FULL_RECOMPUTE
    return Recompute(granularity=Granularity.SELECTIVE, modules=tuple(words.split("+")))


def reports() -> Iterator[Report]:
    """Every layout of every case."""
    for case in tomllib.loads(FILE.read_text(encoding="utf-8"))["case"]:
        for layout in case["layout"]:
            yield Report(case, layout)


def heaviest(uses: tuple[MemoryUse, ...]) -> MemoryUse:
    """Return the stage that holds most."""
    return max(uses, key=lambda use: use.total_bytes)


def peak_gib(report: Report, uses: tuple[MemoryUse, ...]) -> float:
    """Peak in the quantity that the report states [GiB]."""
    return max(READ[report.get("read", "device")](use) for use in uses) / GIB


def states_gb(use: MemoryUse) -> float:
    """Weights, gradients and optimizer of a rank [1e9 B]."""
    return sum(size for name, size in use.components if name in STATES) / 1e9

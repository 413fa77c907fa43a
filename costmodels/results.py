"""What the cost models answer, as frozen, printable values."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step on the critical path; the five parts sum to ``total_s`` exactly.

    ``details`` refines the parts (name, seconds), such as ``("tp_exchange", 0.12)``; each detail belongs to one part.
    """

    compute_s: float
    exposed_comm_s: float
    bubble_s: float
    sync_s: float
    io_s: float
    details: tuple[tuple[str, float], ...] = ()

    @property
    def total_s(self) -> float:
        """Step time."""
        return self.compute_s + self.exposed_comm_s + self.bubble_s + self.sync_s + self.io_s


class Verdict(StrEnum):
    """Whether the heaviest rank fits."""

    FITS = "fits"
    RISKY = "risky"
    OOM = "oom"


class Moment(StrEnum):
    """When a job that does not fit fails."""

    NONE = "none"
    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer creation"
    FIRST_STEP = "first step"


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes on one rank; ``components`` sum to ``total_bytes``. ``host_bytes`` is what the host holds for the rank."""

    stage: int
    components: tuple[tuple[str, float], ...]
    usable_bytes: float
    verdict: Verdict
    moment: Moment = Moment.NONE
    host_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Bytes of all components."""
        return sum(size for _, size in self.components)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One accelerator in use, over a step.

    ``node`` counts within the island. ``mean_w`` is over the step, ``busy_w`` over its work, ``peak_w`` what a sensor
    shows of bursts; ``temperature_c`` that of the die in the mean over the step, ``peak_c`` its highest with bursts.
    ``limited_by`` is power, heat, measured or none.
    """

    island: int
    node: int
    gpu: int
    stage: int
    mean_w: float
    busy_w: float
    peak_w: float
    clock_hz: float
    temperature_c: float
    peak_c: float
    limited_by: str


@dataclass(frozen=True, kw_only=True)
class PowerState:
    """Steady power, clock and temperature of the accelerators over a step.

    ``gpu_w`` is the mean over accelerators in use and over the step, ``clock_hz`` the clock of the slowest one,
    ``max_temp_c`` the highest temperature of any die, bursts included. ``node_energy_j_per_token`` counts hosts and
    fans of the nodes in use too. ``slots`` lists the accelerators by place where heat was priced.
    """

    gpu_w: float
    peak_gpu_w: float
    clock_hz: float
    limited_by: str  # power, heat, measured (the clock of the slowest is), none
    energy_j_per_token: float
    max_temp_c: float
    node_energy_j_per_token: float = 0.0
    slots: tuple[SlotState, ...] = ()

    @property
    def gap_c(self) -> float:
        """Hottest less coolest die in the mean over the step [degree C]; 0.0 where slots are not listed."""
        degrees = [slot.temperature_c for slot in self.slots]
        return max(degrees) - min(degrees) if degrees else 0.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How near a request is to something measured: a label, its source, and intervals.

    Four of five runs like it take ``low_s`` to ``high_s`` [s], and their fullest GPU holds ``low_peak_bytes`` to
    ``high_peak_bytes`` [bytes], zero where a report says nothing of it. ``profile`` is the file of the machine's
    profile that the prediction was made with; empty without one. ``unmeasured`` names the accelerator when no run on it
    was measured; empty when one was. ``few_runs`` says how many runs of such software on such parts were measured when
    those are too few to know its error; empty when they are not.
    """

    label: str
    nearest: str
    low_s: float
    high_s: float
    low_peak_bytes: float = 0.0
    high_peak_bytes: float = 0.0
    profile: str = ""
    unmeasured: str = ""
    few_runs: str = ""


def heaviest(memory: Sequence[MemoryUse]) -> MemoryUse:
    """Memory of the stage that uses the largest share of its limit, as verdicts go; ties go to the earliest stage."""
    return max(memory, key=lambda use: (use.total_bytes / use.usable_bytes, -use.stage))


@dataclass(frozen=True, kw_only=True)
class LayoutCost:
    """Everything the cost models say about one layout."""

    step: StepTime
    memory: tuple[MemoryUse, ...]  # the heaviest rank of each stage, in stage order
    power: PowerState
    stage_times_s: tuple[float, ...]  # forward and backward of one micro-batch, per stage
    tokens_per_s: float
    mfu: float

    @property
    def heaviest(self) -> MemoryUse:
        """Memory of the stage nearest to its limit; see :func:`heaviest`."""
        return heaviest(self.memory)

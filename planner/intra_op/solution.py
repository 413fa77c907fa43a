"""What the intra-op solver answers, how it may be limited, and a cache of answers."""

from dataclasses import dataclass, field
from enum import StrEnum

from planner.intra_op.problem import Assignment


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"  # a limit stopped the proof; lower_bound_s says how far it got
    TOO_BIG = "does not fit"  # shortfall_bytes says by how much
    NO_ASSIGNMENT = "no assignment"  # the constraints contradict each other, whatever the memory
    UNKNOWN = "unknown"  # a limit stopped the search before it found anything


class Method(StrEnum):
    """What settled the answer: the last step that was needed."""

    CLOSED_FORM = "closed form"  # the fastest assignment fits
    DUAL = "lagrangian dual"  # the bound met a feasible assignment
    LABELS = "label search"
    HALVES = "sums of halves"
    CP_SAT = "cp-sat"


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """Limits of a solve; all deterministic.

    Parameters
    ----------
    relative_gap : float
        An answer is called optimal when no other is faster by more than this share of its time (and the rounding of
        the grid, below 1e-9 unless the dearest assignment is 1000 times the best). Zero proves to the last unit.
    max_labels : int
        Labels that each side of the label search may keep, and a quarter of the sums of halves that may be listed,
        before CP-SAT takes over; 0 sends everything to CP-SAT.
    max_deterministic_s : float
        CP-SAT's deterministic time limit per subproblem.
    """

    relative_gap: float = 1e-5
    max_labels: int = 200_000
    max_deterministic_s: float = 2.0


@dataclass(frozen=True, kw_only=True)
class SolveStats:
    """Work done: sizes before and after dominance, subproblems by uniform value and transient cap, and effort.

    ``labels`` counts sums of halves too.
    """

    strategies: int = 0
    undominated: int = 0
    subproblems: int = 0
    dual_steps: int = 0
    labels: int = 0
    branches: int = 0
    deterministic_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class IntraOpSolution:
    """Answer to an :class:`planner.intra_op.problem.IntraOpProblem`.

    ``time_s`` and ``memory_bytes`` are repriced from the problem, not taken from a solver. ``lower_bound_s`` holds for
    every assignment and includes the rounding of the grid. Without an assignment, times are infinite; a stage that
    does not fit says how many bytes its leanest assignment exceeds the limit by.
    """

    status: Status
    assignment: Assignment = ()
    time_s: float = float("inf")
    memory_bytes: int = 0
    lower_bound_s: float = float("inf")
    shortfall_bytes: int = 0
    method: Method = Method.CLOSED_FORM
    stats: SolveStats = field(default_factory=SolveStats)

    @property
    def proven_optimal(self) -> bool:
        """Whether no assignment is faster by more than the gap asked for; ``gap`` says what was proven."""
        return self.status is Status.OPTIMAL

    @property
    def gap(self) -> float:
        """Proven relative gap, ``1 - lower_bound_s / time_s``."""
        return 1.0 - self.lower_bound_s / self.time_s if 0.0 < self.time_s < float("inf") else 0.0


class SolutionCache:
    """Answers by problem signature and options; owned by the caller."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, SolveOptions], IntraOpSolution] = {}
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        """Return the number of answers held."""
        return len(self._found)

    def get(self, signature: bytes, options: SolveOptions) -> IntraOpSolution | None:
        """Return the answer if it is known, and count the look-up."""
        found = self._found.get((signature, options))
        self.hits += found is not None
        self.misses += found is None
        return found

    def put(self, signature: bytes, options: SolveOptions, solution: IntraOpSolution) -> None:
        """Keep an answer."""
        self._found[signature, options] = solution

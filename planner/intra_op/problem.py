"""The intra-op ILP as data: runs of equal layers, strategies, edges, memory. Imports no solver.

Layers ``l = 0..N-1`` come in runs of equal layers; layer ``l`` of run ``r`` picks one strategy ``s_l`` of the run:

    minimise    sum_l time_s[r(l)][s_l] + sum_l edge_s[l][s_l, s_{l+1}]
    subject to  fixed_bytes + sum_l persistent_bytes[r(l)][s_l] + max_l transient_bytes[r(l)][s_l] <= limit_bytes
                and the constraints

``edge_s`` is the run's ``switch_s`` between two layers of one run, and ``edges_s[r]`` between runs r and r+1.
An infinite time or edge forbids the choice. ``reprice`` evaluates an assignment from this data alone.
"""

import hashlib
import itertools
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.intra_op.constraints import Constraint, Ordered, Restrict, Uniform

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Assignment = tuple[tuple[tuple[int, int], ...], ...]
"""Per run, blocks ``(strategy, count)`` in layer order."""


MAX_STRATEGIES: Final = 512


class Price(NamedTuple):
    """Time and memory of an assignment."""

    time_s: float
    memory_bytes: int


def _frozen_floats(values: ArrayLike, name: str) -> Floats:
    array = np.array(values, dtype=np.float64)
    if np.isnan(array).any() or (array < 0).any():
        raise ValueError(f"{name} must be non-negative numbers or infinity, got {array}")
    array.setflags(write=False)
    return array


def _frozen_bytes(values: ArrayLike, name: str) -> Ints:
    """Whole bytes, rounded up, so that a sum that fits also fits in reality."""
    array = np.array(values)
    if not np.isfinite(array).all() or (array < 0).any() or (array > 2**45).any():
        raise ValueError(f"{name} must be between 0 and 2**45 bytes, got {array}")
    whole: Ints = np.ceil(array).astype(np.int64)
    whole.setflags(write=False)
    return whole


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """``count`` equal layers in a row and what each strategy costs one of them.

    Parameters
    ----------
    count : int
        Number of layers, at least 1.
    time_s : array of shape (S,)
        Seconds per layer.
    persistent_bytes : array of shape (S,)
        Bytes that each layer holds for as long as the stage lives; they add up. Rounded up to whole bytes.
    transient_bytes : array of shape (S,), optional
        Bytes that a layer needs only while it runs; the largest of all layers counts once. Rounded up.
    switch_s : array of shape (S, S), optional
        Seconds between a layer with strategy ``s`` and the next layer of this run with strategy ``t``; zero if absent.
    attributes : tuple of (name, tuple of S values), optional
        Labels of the strategies that constraints refer to.
    name : str, optional
        For printing; not part of the problem's signature.

    Raises
    ------
    ValueError
        On shapes that do not match, negative or undefined numbers.
    """

    count: int
    time_s: Floats
    persistent_bytes: Ints
    transient_bytes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    switch_s: Floats | None = None
    attributes: tuple[tuple[str, tuple[Hashable, ...]], ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Freeze the arrays and check them."""
        if self.count < 1:
            raise ValueError(f"a run needs at least one layer, got count={self.count}")
        object.__setattr__(self, "time_s", _frozen_floats(self.time_s, "time_s"))
        object.__setattr__(self, "persistent_bytes", _frozen_bytes(self.persistent_bytes, "persistent_bytes"))
        transient = self.transient_bytes if np.size(self.transient_bytes) else np.zeros_like(self.persistent_bytes)
        object.__setattr__(self, "transient_bytes", _frozen_bytes(transient, "transient_bytes"))
        size = self.time_s.size
        if not 1 <= size <= MAX_STRATEGIES or {
            self.time_s.shape,
            self.persistent_bytes.shape,
            self.transient_bytes.shape,
        } != {(size,)}:
            raise ValueError("time_s, persistent_bytes and transient_bytes must be vectors of one length in 1..512")
        if self.switch_s is not None:
            object.__setattr__(self, "switch_s", _frozen_floats(self.switch_s, "switch_s"))
            if self.switch_s.shape != (size, size):
                raise ValueError(f"switch_s must have shape {(size, size)}, got {self.switch_s.shape}")
        for name, values in self.attributes:
            if len(values) != size:
                raise ValueError(f"attribute {name!r} needs {size} values, got {len(values)}")

    @property
    def strategies(self) -> int:
        """Number of strategies."""
        return int(self.time_s.size)

    def values(self, attribute: str) -> tuple[Hashable, ...]:
        """Value of ``attribute`` for each strategy.

        Raises
        ------
        ValueError
            If the run has no such attribute.
        """
        for name, values in self.attributes:
            if name == attribute:
                return values
        raise ValueError(f"run {self.name!r} has no attribute {attribute!r}; it has {[n for n, _ in self.attributes]}")


@dataclass(frozen=True, kw_only=True, eq=False)
class IntraOpProblem:
    """A stage to solve; see the module's docstring for the equations.

    Parameters
    ----------
    runs : tuple of Run
        In layer order.
    limit_bytes : int
        Memory of the heaviest rank.
    fixed_bytes : int, optional
        Bytes that do not depend on the choice.
    edges_s : tuple of (array of shape (S_r, S_{r+1}) or None), optional
        One entry per pair of consecutive runs; None is zero, and so is an empty tuple.
    constraints : tuple of Constraint, optional
        See :mod:`planner.intra_op.constraints`.

    Raises
    ------
    ValueError
        On shapes that do not match or constraints that name unknown attributes or runs.
    """

    runs: tuple[Run, ...]
    limit_bytes: int
    fixed_bytes: int = 0
    edges_s: tuple[Floats | None, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        """Freeze the edges and check them."""
        if not self.runs:
            raise ValueError("a stage needs at least one run")
        pairs = len(self.runs) - 1
        edges = self.edges_s or (None,) * pairs
        if len(edges) != pairs:
            raise ValueError(f"{len(self.runs)} runs need {pairs} edge matrices, got {len(edges)}")
        frozen = tuple(None if e is None else _frozen_floats(e, f"edges_s[{r}]") for r, e in enumerate(edges))
        for r, edge in enumerate(frozen):
            shape = (self.runs[r].strategies, self.runs[r + 1].strategies)
            if edge is not None and edge.shape != shape:
                raise ValueError(f"edges_s[{r}] must have shape {shape}, got {edge.shape}")
        object.__setattr__(self, "edges_s", frozen)
        object.__setattr__(self, "limit_bytes", math.floor(self.limit_bytes))
        object.__setattr__(self, "fixed_bytes", math.ceil(self.fixed_bytes))
        for constraint in self.constraints:
            self._check(constraint)

    def _check(self, constraint: Constraint) -> None:
        covered = self.covered(constraint)
        if not covered or any(not 0 <= r < len(self.runs) for r in covered):
            raise ValueError(f"{constraint} covers runs {covered}, the problem has {len(self.runs)}")
        if isinstance(constraint, Ordered) and covered != tuple(range(covered[0], covered[-1] + 1)):
            raise ValueError(f"{constraint} must cover consecutive runs, got {covered}")
        for r in covered:
            self.runs[r].values(constraint.attribute)

    def covered(self, constraint: Constraint) -> tuple[int, ...]:
        """Return the indices of the runs that a constraint covers."""
        return tuple(range(len(self.runs))) if constraint.runs is None else constraint.runs

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(run.count for run in self.runs)

    def signature(self) -> bytes:
        """Digest of every number and constraint (not of names): equal problems have equal signatures."""
        digest = hashlib.blake2b(digest_size=20)
        labels = [(run.count, run.attributes) for run in self.runs]
        digest.update(repr((labels, self.limit_bytes, self.fixed_bytes, self.constraints)).encode())
        for array in self._arrays():
            digest.update(b"-" if array is None else repr(array.shape).encode() + array.tobytes())
        return digest.digest()

    def _arrays(self) -> Iterator[Floats | Ints | None]:
        for run in self.runs:
            yield from (run.time_s, run.persistent_bytes, run.transient_bytes, run.switch_s)
        yield from self.edges_s


def layer_strategies(assignment: Assignment) -> tuple[tuple[int, int], ...]:
    """List ``(run, strategy)`` of every layer, in layer order."""
    return tuple((r, s) for r, blocks in enumerate(assignment) for s, count in blocks for _ in range(count))


def reprice(problem: IntraOpProblem, assignment: Assignment) -> Price:
    """Price an assignment from the problem's data alone.

    Parameters
    ----------
    problem : IntraOpProblem
        The stage.
    assignment : tuple per run of (strategy, count) blocks
        In layer order.

    Returns
    -------
    Price
        Seconds (infinite if a forbidden choice is made) and bytes.

    Raises
    ------
    ValueError
        If a run's blocks do not cover its layers.
    """
    for r, (run, blocks) in enumerate(zip(problem.runs, assignment, strict=True)):
        if sum(count for _, count in blocks) != run.count or any(count < 1 for _, count in blocks):
            raise ValueError(f"blocks {blocks} of run {r} do not cover its {run.count} layers")
    layers = layer_strategies(assignment)
    times = [float(problem.runs[r].time_s[s]) for r, s in layers]
    for (r, s), (q, t) in itertools.pairwise(layers):
        edge = problem.runs[r].switch_s if r == q else problem.edges_s[r]
        times.append(0.0 if edge is None else float(edge[s, t]))
    persistent = sum(int(problem.runs[r].persistent_bytes[s]) for r, s in layers)
    transient = max(int(problem.runs[r].transient_bytes[s]) for r, s in layers)
    return Price(math.fsum(times), problem.fixed_bytes + persistent + transient)


def violations(problem: IntraOpProblem, assignment: Assignment) -> tuple[str, ...]:
    """Say in words which constraints an assignment breaks; empty if it is legal."""
    price = reprice(problem, assignment)
    found = []
    if not math.isfinite(price.time_s):
        found.append("a forbidden strategy or transition is used")
    if price.memory_bytes > problem.limit_bytes:
        found.append(f"memory {price.memory_bytes} exceeds {problem.limit_bytes}")
    for constraint in problem.constraints:
        covered = problem.covered(constraint)
        layers = [(r, s) for r, s in layer_strategies(assignment) if r in covered]
        values = [problem.runs[r].values(constraint.attribute)[s] for r, s in layers]
        if not _obeys(constraint, values):
            found.append(f"{constraint} is broken by {values}")
    return tuple(found)


def _obeys(constraint: Constraint, values: list[Hashable]) -> bool:
    match constraint:
        case Restrict():
            return all(value in constraint.values for value in values)
        case Uniform():
            return len(set(values)) <= 1
        case Ordered():
            if any(value not in constraint.order for value in values):
                return False
            ranks = [constraint.order.index(value) for value in values]
            return ranks == sorted(ranks)

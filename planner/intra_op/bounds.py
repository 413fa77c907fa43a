"""Lower bounds on a chain: shortest completions for several prices of memory at once, and the Lagrangian dual.

For a price ``p >= 0`` (units per byte) and any path x with persistent memory(x) <= room:

    time(x) >= time(x) + p (memory(x) - room) >= min_y [time(y) + p memory(y)] - p room =: L(p)

so every L(p) is a lower bound; ``dual`` maximises it exactly, walking the corners of the lower hull of
(memory, time) (Handler and Zang, Networks 10, 1980), and returns the best feasible path met on the way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.intra_op.chain import FORBIDDEN, Chain, Link
from planner.intra_op.problem import Floats, Ints

MAX_DUAL_STEPS: Final = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Completions:
    """Cheapest way to finish from each layer, for K weightings ``a * time + b * memory``.

    Lists run over layers; arrays have shape (K, S) for the strategies of that layer. Costs exclude the layer itself.
    ``step`` holds the next layer's strategy (absent for the last layer), ``peak`` the largest transient bytes.
    """

    cost: list[Floats]
    time: list[Ints]
    memory: list[Ints]
    peak: list[Ints]
    step: list[Ints]

    def path(self, k: int, layer: int, strategy: int) -> list[int]:
        """Strategies after ``layer`` on the cheapest way to finish, weighting ``k``."""
        found = []
        for step in self.step[layer:]:
            strategy = int(step[k, strategy])
            found.append(strategy)
        return found


def completions(chain: Chain, weights: Sequence[tuple[float, float]]) -> Completions:
    """Run the backward recursion over layers for all weightings at once.

    Parameters
    ----------
    chain : Chain
        The problem; its budget is not looked at.
    weights : sequence of (a, b)
        Weights of time and memory.
    """
    a = np.array([w[0] for w in weights])
    b = np.array([w[1] for w in weights])
    owners, links = chain.layer_runs(), chain.transitions()
    own_cost = [a[:, None] * run.time + b[:, None] * run.memory for run in chain.runs]
    different = {id(link): link for link in links if link is not None}
    backward = {key: _Backward(link, a) for key, link in different.items()}
    shape = (len(weights), chain.runs[-1].keep.size)
    none = np.zeros(shape, dtype=np.int64)
    cost, time, memory, peak = [np.zeros(shape)], [none], [none], [none]
    steps: list[Ints] = []
    rows = np.arange(len(weights))[:, None]
    for layer in range(len(owners) - 2, -1, -1):
        after = chain.runs[owners[layer + 1]]
        through = own_cost[owners[layer + 1]] + cost[-1]  # (K, T)
        link = links[layer]
        if link is None:
            step = np.broadcast_to(through.argmin(axis=1)[:, None], (len(weights), chain.runs[owners[layer]].keep.size))
            best, extra = through[rows, step], np.zeros((), dtype=np.int64)
        else:
            best, step, extra = backward[id(link)].step(through)
        cost.append(best)
        time.append(np.minimum(time[-1][rows, step] + after.time[step] + extra, FORBIDDEN))
        memory.append(memory[-1][rows, step] + after.memory[step])
        peak.append(np.maximum(peak[-1][rows, step], after.transient[step]))
        steps.append(step)
    return Completions(cost=cost[::-1], time=time[::-1], memory=memory[::-1], peak=peak[::-1], step=steps[::-1])


class _Backward:
    """One step of the recursion over a link, for K weightings: first within column classes, then between classes."""

    def __init__(self, link: Link, time_weight: Floats) -> None:
        self.link = link
        self.rows = np.arange(time_weight.size)[:, None]
        self.core = np.where(link.core >= FORBIDDEN, np.inf, time_weight[:, None, None] * link.core)  # (K, R, C)
        self.plain = link.members.shape == (link.column.size, 1)

    def step(self, through: Floats) -> tuple[Floats, Ints, Ints]:
        """Least cost, next strategy and link units, shape (K, S) each; ``through`` has shape (K, T)."""
        link = self.link
        if self.plain:  # every class has one member
            chosen: Ints = link.members[:, 0]
            cheapest = through[:, chosen]
            chosen = np.broadcast_to(chosen, cheapest.shape)
        else:
            padded = np.concatenate((through, np.full((len(through), 1), np.inf)), axis=1)
            member = padded[:, link.members].argmin(axis=2)  # (K, C)
            chosen = link.members[np.arange(len(link.members)), member]
            cheapest = padded[self.rows, chosen]
        total = self.core + cheapest[:, None, :]
        target = total.argmin(axis=2)  # (K, R)
        best = total.min(axis=2)[:, link.row]
        target = target[:, link.row]
        step = np.minimum(chosen[self.rows, target], link.column.size - 1)  # padding only where all is forbidden
        return best, step, np.where(np.isinf(best), FORBIDDEN, link.core[link.row, target])


@dataclass(frozen=True, kw_only=True)
class Path:
    """One strategy per layer, its units and its bytes."""

    layers: tuple[int, ...]
    time: int
    memory: int


def cheapest(chain: Chain, weight: tuple[float, float]) -> Path | None:
    """Path with the least ``a * time + b * memory``; None if every path is forbidden."""
    done = completions(chain, [weight])
    first = chain.runs[0]
    total = weight[0] * first.time + weight[1] * first.memory + done.cost[0][0]
    s = int(total.argmin())
    time = int(first.time[s] + done.time[0][0, s])
    if time >= FORBIDDEN:
        return None
    return Path(layers=(s, *done.path(0, 0, s)), time=time, memory=int(first.memory[s] + done.memory[0][0, s]))


def rounding_margin(chain: Chain, time: float, price: float) -> float:
    """Bound on the floating-point error of ``time + price * (memory - room)`` summed along a path, in units.

    Each of the at most ``3 N + 3`` operations errs by 2**-53 of a magnitude of at most time + 2 price * room.
    """
    return (3 * chain.layers + 3) * 2.0**-53 * (abs(time) + 2 * price * abs(chain.room))


@dataclass(frozen=True, kw_only=True)
class Dual:
    """Best Lagrangian bound in units, its price in units per byte, and the best path met that fits.

    ``bound`` is safe: the rounding of floating point is already taken off. It is infinite if persistent memory alone
    does not fit whatever is chosen.
    """

    bound: float
    price: float
    fitting: Path | None
    steps: int


def dual(chain: Chain) -> Dual:
    """Maximise the Lagrangian bound of the memory limit.

    Starts from the fastest path (if it has room, the bound is its time and the price zero) and the leanest one.
    """
    fast, lean = cheapest(chain, (1.0, 0.0)), cheapest(chain, (0.0, 1.0))
    if fast is None or lean is None or lean.memory > chain.room:
        return Dual(bound=math.inf, price=0.0, fitting=None, steps=2)
    met, bound, price = [fast, lean], float(fast.time), 0.0
    while fast.memory > chain.room and lean.time > fast.time and len(met) < MAX_DUAL_STEPS:
        slope = (lean.time - fast.time) / (fast.memory - lean.memory)
        middle = cheapest(chain, (1.0, slope))
        if middle is None:
            break
        met.append(middle)
        value = middle.time + slope * (middle.memory - chain.room)
        safe = value - rounding_margin(chain, middle.time, slope)
        if safe > bound:
            bound, price = safe, slope
        hull = fast.time + slope * (fast.memory - chain.room)
        known = {(fast.memory, fast.time), (lean.memory, lean.time)}
        if value >= hull - 1e-9 * abs(hull) or (middle.memory, middle.time) in known:
            break
        if middle.memory <= chain.room:
            lean = middle
        else:
            fast = middle
    fitting = [path for path in met if chain.fits(path.memory, path.layers)]
    best = min(fitting, key=lambda path: path.time, default=None)
    return Dual(bound=bound, price=price, fitting=best, steps=len(met))

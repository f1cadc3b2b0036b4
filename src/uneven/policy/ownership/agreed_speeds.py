"""The workers' agreement on their speeds at a refresh, and the decision whether to change owners."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uneven.policy.ownership.placement import Item, Placement

_GAIN = 0.05  # minimum share of a step to save: a change of owners moves the statistics
_SPREAD = 0.1  # minimum relative spread of the shares to separate fixed costs from proportional ones
_IDLE_CORES = 0.5  # with as many on every worker's machine, "auto" refreshes in the background


@dataclass(slots=True)
class OwnWork:
    """This worker's own work since the last refresh started."""

    cost: float = 0.0  # in the unit of the placement
    busy_s: float = 0.0  # processor seconds; wall-clock seconds on an accelerator
    steps: int = 0  # number of steps it was spread over

    def add(self, cost: float, busy_s: float) -> None:
        self.cost += cost
        self.busy_s += busy_s

    def and_(self, other: "OwnWork") -> "OwnWork":
        """Return the sum of both."""
        return OwnWork(self.cost + other.cost, self.busy_s + other.busy_s, self.steps + other.steps)


class WorkerRow(NamedTuple):
    """A worker's report at a refresh; NaN for unknown values."""

    rate: float  # cost of own work per processor second
    pace: float  # processor seconds per second of work
    other: float  # cost of all other work in a step, samples included
    idle: float  # idle cores of its machine
    samples: float  # in this step
    opinion: float  # a value of the preconditioner, see `Preconditioner.opinion`


def told(own: OwnWork, local_s: float, local_cpu_s: float, exchange_cpu_s: float, **more: float) -> WorkerRow:
    """Return this worker's report from its own work and its times per iteration.

    It is based on processor time. A worker limited to 0.1 core runs in bursts, so the wall-clock time of one short
    decomposition does not reveal its speed.
    """
    rate = own.cost / own.busy_s if own.busy_s > 0.0 and own.cost > 0.0 else math.nan
    known = local_s > 0.0 and local_cpu_s > 0.0
    other_s = local_cpu_s + exchange_cpu_s - own.busy_s / max(1, own.steps)
    return WorkerRow(rate, local_cpu_s / local_s if known else 1.0, max(0.0, other_s) if known else math.nan, **more)


class AgreedSpeeds(NamedTuple):
    """The speeds on which all workers agree."""

    speeds: tuple[float, ...]  # of the ranks in order, cost per second
    fixed: float  # cost of each worker's step that does not depend on its samples, without owned squares
    other: float  # of all workers together, samples included
    idle: bool  # whether every worker has a core to spare


def agreed(rows: Sequence[WorkerRow]) -> AgreedSpeeds:
    """Combine the reports of all workers.

    A worker that owned nothing gets the mean rate. Before any measurement, speeds are proportional to batch shares. The
    fixed cost is the intercept of other work over samples, at most the least other work; 0 for equal shares.
    """
    rates = [row.rate for row in rows if row.rate > 0.0]
    shares = [row.samples for row in rows]
    idle = all(row.idle >= _IDLE_CORES for row in rows)
    if not rates:
        return AgreedSpeeds(tuple(max(1.0, share) for share in shares), 0.0, 0.0, idle)
    usual = sum(rates) / len(rates)
    each = [row.rate if row.rate > 0.0 else usual for row in rows]
    speeds = tuple(rate * row.pace for rate, row in zip(each, rows, strict=True))
    others = [rate * row.other for rate, row in zip(each, rows, strict=True)]
    if any(math.isnan(one) for one in others):
        return AgreedSpeeds(speeds, 0.0, 0.0, idle)
    return AgreedSpeeds(speeds, _intercept(shares, others), sum(others), idle)


def _intercept(shares: Sequence[float], costs: Sequence[float]) -> float:
    mean, middle = sum(shares) / len(shares), sum(costs) / len(costs)
    apart = sum((share - mean) ** 2 for share in shares)
    if apart < len(shares) * (_SPREAD * mean) ** 2:
        return 0.0
    slope = sum((share - mean) * (cost - middle) for share, cost in zip(shares, costs, strict=True)) / apart
    return min(max(0.0, middle - slope * mean), min(costs))


def better(
    now: Placement, then: Placement, items: Sequence[Item], table: AgreedSpeeds, members: Sequence[int], period: int
) -> Placement | None:
    """Return ``then`` if a step takes 5 % less with it, otherwise None.

    Samples move to free workers, so a step takes as long as all work on all workers; or, if longer, as the fixed and
    owned work of one worker.
    """
    if now == then:
        return None

    def longest_s(placed: Placement) -> float:
        loads = [placed.load(items, rank, period) for rank in members]
        alone_s = max((table.fixed + load) / speed for load, speed in zip(loads, table.speeds, strict=True))
        return max(alone_s, (table.other + sum(loads)) / sum(table.speeds))

    return then if longest_s(then) < (1.0 - _GAIN) * longest_s(now) else None

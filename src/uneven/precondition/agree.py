"""What workers tell each other of their speed at a refresh, and whether others should own what. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uneven.precondition.place import Item, Placement

_GAIN = 0.05
"""Share of a step that must be saved for owners to change: what is kept of a square has to move."""

_SPREAD = 0.1
"""Relative spread of the shares from which what is fixed can be told from what grows with them."""

_IDLE_CORES = 0.5
"""From so many idle cores on, on every worker's machine, "auto" refreshes beside the training."""


@dataclass(slots=True)
class OwnWork:
    """This worker's own work since the last refresh began.

    Attributes:
        cost: as the placement reckons it.
        busy_s: processor seconds; seconds, where the work is not a processor's.
        steps: how many it was in.
    """

    cost: float = 0.0
    busy_s: float = 0.0
    steps: int = 0

    def add(self, cost: float, busy_s: float) -> None:
        self.cost += cost
        self.busy_s += busy_s

    def and_(self, other: OwnWork) -> OwnWork:
        """Both together."""
        return OwnWork(self.cost + other.cost, self.busy_s + other.busy_s, self.steps + other.steps)


class WorkerRow(NamedTuple):
    """What a worker tells the others at a refresh; NaN for what it does not know.

    Attributes:
        rate: cost of its own work that it does in a processor second.
        pace: processor seconds that it gets in a second in which it works.
        other: cost of what else it does in a step, samples included.
        idle: cores of its machine.
        samples: in this step.
        opinion: of the preconditioner's own.
    """

    rate: float
    pace: float
    other: float
    idle: float
    samples: float
    opinion: float


def told(own: OwnWork, local_s: float, local_cpu_s: float, exchange_cpu_s: float, **more: float) -> WorkerRow:
    """The row of a worker, from its own work and from its time in an iteration.

    A worker that gets a tenth of a core in bursts takes no longer than others for a short decomposition, so what a
    clock on the wall says of it means little. Processor time says what the work takes, and all of its steps together
    how much of a processor it gets.
    """
    rate = own.cost / own.busy_s if own.busy_s > 0.0 and own.cost > 0.0 else math.nan
    known = local_s > 0.0 and local_cpu_s > 0.0
    other_s = local_cpu_s + exchange_cpu_s - own.busy_s / max(1, own.steps)
    return WorkerRow(rate, local_cpu_s / local_s if known else 1.0, max(0.0, other_s) if known else math.nan, **more)


class AgreedSpeeds(NamedTuple):
    """What all know alike.

    Attributes:
        speeds: of the ranks in order, cost per second.
        fixed: cost of what every worker has to do in a step however few samples it takes, besides what it owns.
        other: of all workers together, samples included.
        idle: whether every worker has a core to spare.
    """

    speeds: tuple[float, ...]
    fixed: float
    other: float
    idle: bool


def agreed(rows: Sequence[WorkerRow]) -> AgreedSpeeds:
    """From everybody's rows.

    A worker that owned nothing is taken to have a processor like the others'. Before anybody has measured, workers
    are as fast as their shares of the batch are large. What is fixed is the intercept of what workers do besides their
    own work over their samples, at most what the one that does least does; 0 where all have as many samples.
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
    """``then``, if a step takes a twentieth less with it.

    Samples go where there is time, so the step takes as long as all of the work on all workers; or, if that is longer,
    as what is fixed and owned takes on one of them.
    """
    if now == then:
        return None

    def longest_s(placed: Placement) -> float:
        loads = [placed.load(items, rank, period) for rank in members]
        alone_s = max((table.fixed + load) / speed for load, speed in zip(loads, table.speeds, strict=True))
        return max(alone_s, (table.other + sum(loads)) / sum(table.speeds))

    return then if longest_s(then) < (1.0 - _GAIN) * longest_s(now) else None

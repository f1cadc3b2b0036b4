"""What workers tell each other of their speed at a refresh, and whether others should own what. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from uneven.precondition.place import Item, Placement

_GAIN = 0.1
"""Share of the slowest worker's time that must be saved for owners to change: what is kept of a square has to move."""

_IDLE_CORES = 0.5
"""From so many idle cores on, on every worker's machine, "auto" refreshes beside the training."""


@dataclass(slots=True)
class OwnWork:
    """This worker's own work since the last refresh began: cost, as the placement reckons it, and seconds."""

    cost: float = 0.0
    seconds: float = 0.0

    def add(self, cost: float, seconds: float) -> None:
        """Some more."""
        self.cost += cost
        self.seconds += seconds

    @property
    def speed(self) -> float:
        """Cost per second; NaN where nothing was done."""
        return self.cost / self.seconds if self.seconds > 0.0 and self.cost > 0.0 else math.nan


class AgreedSpeeds(NamedTuple):
    """What all know alike.

    Attributes:
        speeds: of the ranks in order, cost per second; empty while nobody has measured.
        idle: whether every worker has a core to spare.
    """

    speeds: tuple[float, ...]
    idle: bool


def agreed(rows: Sequence[Sequence[float]], shares: Sequence[int]) -> AgreedSpeeds:
    """From everybody's (speed, idle cores).

    A worker that owned nothing has measured nothing. It is taken to be as much faster than the others as its share of
    the batch is larger; at first, that holds for all.
    """
    speeds = [row[0] for row in rows]
    each = [max(1, share) for share in shares]
    rates = [speed / share for speed, share in zip(speeds, each, strict=True) if speed > 0.0]
    rate = sum(rates) / len(rates) if rates else 1.0
    known = tuple(speed if speed > 0.0 else rate * share for speed, share in zip(speeds, each, strict=True))
    return AgreedSpeeds(known, all(row[1] >= _IDLE_CORES for row in rows))


def better(
    now: Placement, then: Placement, items: Sequence[Item], speeds: Sequence[float], members: Sequence[int], period: int
) -> Placement | None:
    """``then``, if the worker that takes longest takes a tenth less with it."""
    if now == then:
        return None

    def longest_s(placed: Placement) -> float:
        loads = [placed.load(items, rank, period) for rank in members]
        return max(load / speed for load, speed in zip(loads, speeds, strict=True))

    return then if longest_s(then) < (1.0 - _GAIN) * longest_s(now) else None

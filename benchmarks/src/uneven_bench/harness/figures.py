"""Medians with their middle half, over rounds in which all arms take turns."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from uneven_bench.harness.show import Progress


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and the middle half of a list of ratios or seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the spread of at least one value."""
        each = list(values)
        if len(each) < 2:
            return cls(each[0], each[0], each[0])
        low, _, high = statistics.quantiles(each, n=4, method="inclusive")
        return cls(statistics.median(each), low, high)

    @classmethod
    def ratio(cls, above: Sequence[float], below: Sequence[float]) -> "Spread":
        """Return the spread of the ratios of common rounds, in which both met the same machine."""
        return cls.of(a / b for a, b in zip(above, below, strict=True))

    @property
    def pair(self) -> list[float]:
        """The middle half."""
        return [self.low, self.high]

    @property
    def three(self) -> list[float]:
        """The median and the middle half."""
        return [self.median, self.low, self.high]


def in_turns(progress: Progress, phase: str, *each: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield all combinations, the last one changes first, and report how far they are. The first is mostly a range of
    rounds, so that in each all others take turns."""
    jobs = list(product(*each))
    for number, job in enumerate(jobs):
        progress(phase, ", ".join(str(one) for one in job if isinstance(one, str)), number / len(jobs))
        yield job
    progress(phase, "done", 1.0)


def by_turns(
    arms: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    least_s: float = 0.0,
    warm: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each arm, round by round, after ``warm`` rounds that do not count. An arm repeats within
    its turn for ``least_s``, and its mean counts; each round begins with another arm."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    repeats = dict.fromkeys(arms, 1)
    names = list(arms)
    for number in range(-warm, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began_s = clock()
            for _ in range(repeats[name]):
                arms[name]()
            taken_s = (clock() - began_s) / repeats[name]
            if number >= 0:
                found[name].append(taken_s)
            elif number == -1:
                repeats[name] = max(1, int(least_s / max(1e-9, taken_s)))
    return found


Curve = Sequence[tuple[float, float]]  # place on an axis, and the loss there


def value_at(curve: Curve, place: float) -> float:
    """Return the loss at a place, interpolated linearly; NaN beyond the ends."""
    for (low, before), (high, after) in pairwise(curve):
        if low <= place <= high and high > low:
            return before + (place - low) / (high - low) * (after - before)
    return math.nan


def place_of(curve: Curve, target: float) -> float | None:
    """Return the first place with a loss of ``target`` or less, interpolated linearly; None if there is none."""
    if curve and curve[0][1] <= target:
        return curve[0][0]
    for (low, before), (high, after) in pairwise(curve):
        if before > target >= after:
            return low + (before - target) / (before - after) * (high - low)
    return None

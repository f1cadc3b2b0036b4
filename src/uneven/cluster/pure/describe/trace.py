"""A quantity over time."""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from uneven.cluster.pure.describe.spec_checks import LEAST, MOST, POSITIVE, POSITIVE_TIME, TIME, Time, bounded
from uneven.errors import ConfigError
from uneven.policy.core.cost import Affine, Cost
from uneven.policy.core.tables import check


@dataclass(frozen=True, slots=True)
class Saturating:
    """The curve Γ(x) = max(floor, overhead + x · per_sample): below saturation a smaller batch takes the same time.
    From LB-BSP's 2018 poster (specification §1.1, §1.8); its fitted form is ours."""

    floor_s: Time
    overhead_s: Time
    per_sample_s: Time

    def __post_init__(self) -> None:
        check(self, "saturating cost: ")

    def seconds(self, samples: int) -> float:
        return max(self.floor_s, self.overhead_s + self.per_sample_s * samples)


@dataclass(frozen=True, slots=True)
class Measured:
    """A curve through measured points: linear between them and beyond the last two, flat before the first."""

    samples: tuple[int, ...]  # batch sizes, ascending, at least two
    seconds_each: tuple[float, ...]  # local time at each of them, not descending

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.seconds_each) or len(self.samples) < 2:
            raise ConfigError(
                f"a measured cost has {len(self.samples)} batch sizes and {len(self.seconds_each)} times: "
                f"give at least two points of both"
            )
        if self.samples[0] < 0 or any(left >= right for left, right in pairwise(self.samples)):
            raise ConfigError(f"a measured cost has the batch sizes {list(self.samples)}: they must ascend from 0 or 1")
        for x, seconds in zip(self.samples, self.seconds_each, strict=True):
            bounded("a measured cost: samples", max(x, 1), POSITIVE)
            bounded(f"a measured cost of {x} samples: time_s", seconds, POSITIVE_TIME)
        points = list(zip(self.samples, self.seconds_each, strict=True))
        for (x0, y0), (x1, y1) in pairwise(points):
            if y1 < y0:
                raise ConfigError(
                    f"a measured cost falls from {y0} s for {x0} samples to {y1} s for {x1}: a larger batch cannot "
                    f"take less time; take medians of several runs, or leave the point out"
                )

    def seconds(self, samples: int) -> float:
        if samples <= self.samples[0]:
            return self.seconds_each[0]
        right = min(bisect_right(self.samples, samples), len(self.samples) - 1)
        x0, x1 = self.samples[right - 1], self.samples[right]
        y0, y1 = self.seconds_each[right - 1], self.seconds_each[right]
        return y0 + (y1 - y0) * (samples - x0) / (x1 - x0)


def check_cost(cost: Cost) -> None:
    """Check a curve for the simulator. Raises ConfigError for a negative parameter, or if a batch takes no time."""
    if isinstance(cost, Affine):
        bounded("affine cost: overhead_s", cost.overhead_s, TIME)
        bounded("affine cost: per_sample_s", cost.per_sample_s, TIME)
    if not cost.seconds(1) > 0:
        raise ConfigError(f"{cost}: a batch of one sample takes no time: give a per_sample_s above 0")


SHORTEST_S = 1e-6  # the shortest duration of a value: shorter changes have no effect, and the simulator visits each one


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A quantity over time: one value for each time step, repeated from the start at the end. Raises ConfigError
    without values, with a negative or infinite one, or with a step or speed-up that is not positive."""

    values: tuple[float, ...]  # at least one
    step_s: float = math.inf  # seconds that each value lasts, as recorded; infinite for a constant
    speedup: float = 1.0  # replay speed, in multiples of the recorded speed
    source: str = ""  # its origin, for messages and reports
    constant: bool = field(init=False, repr=False, compare=False)  # True if it never changes; computed from the others

    def __post_init__(self) -> None:
        name = f"trace {self.source}: " if self.source else ""
        if not self.values:
            raise ConfigError(f"{name}no values: give at least one")
        for place, value in enumerate(self.values):
            if not 0 <= value <= MOST:
                raise ConfigError(f"{name}value {place} is {value!r}: it must be zero or more, and at most {MOST:g}")
        if not (self.step_s > 0 and LEAST <= self.speedup <= MOST):
            raise ConfigError(f"{name}step_s = {self.step_s} and speedup = {self.speedup}: both must be positive")
        if self.lasts_s < SHORTEST_S:
            raise ConfigError(
                f"{name}step_s = {self.step_s} at speedup = {self.speedup}: each value lasts {self.lasts_s:g} s, "
                f"less than {SHORTEST_S:g} s: give a larger step_s, or a smaller speedup"
            )
        constant = math.isinf(self.step_s) or min(self.values) == max(self.values)
        object.__setattr__(self, "constant", constant)

    @property
    def lasts_s(self) -> float:
        return self.step_s / self.speedup

    def at(self, time_s: float) -> float:
        """Return the value at a time, in seconds from the start."""
        return self.values[0] if self.constant else self.values[self._steps(time_s) % len(self.values)]

    def next_change_s(self, time_s: float) -> float:
        """Return the first time after ``time_s`` at which another step begins; infinite for a constant."""
        return math.inf if self.constant else (self._steps(time_s) + 1) * self.lasts_s

    def _steps(self, time_s: float) -> int:
        """Return the largest k with k · lasts_s ≤ time_s, in float arithmetic."""
        lasts_s = self.lasts_s
        steps = math.floor(time_s / lasts_s)
        # The quotient alone can be off by one at the start of a step. A simulator that advances to the next change
        # would then still see the old value.
        while steps * lasts_s > time_s:
            steps -= 1
        while (steps + 1) * lasts_s <= time_s:
            steps += 1
        return steps


def steady(value: float) -> Trace:
    return Trace(values=(value,))

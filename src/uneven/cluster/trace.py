"""A quantity over time. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from uneven.cluster.checks import LEAST, MOST
from uneven.errors import ConfigError

SHORTEST_S = 1e-6
"""What a value lasts at least: nobody feels a change sooner, and the simulator goes from one to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A quantity over time: one value for each step of time, from the start again when it is over.

    Attributes:
        values: at least one.
        step_s: seconds that each value lasts, as recorded; infinite for what never changes.
        speedup: how many times faster than recorded it is replayed.
        source: where it comes from, for messages and reports.
        constant: whether it never changes; follows from the others.

    Raises:
        ConfigError: no values, or one that is negative or infinite; no positive step or speed-up.
    """

    values: tuple[float, ...]
    step_s: float = math.inf
    speedup: float = 1.0
    source: str = ""
    constant: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = f"trace {self.source}: " if self.source else ""
        if not self.values:
            raise ConfigError(f"{name}there are no values: give at least one")
        for place, value in enumerate(self.values):
            if not 0 <= value <= MOST:
                raise ConfigError(f"{name}value {place} is {value!r}: it must be zero or more, and at most {MOST:g}")
        if not (self.step_s > 0 and LEAST <= self.speedup <= MOST):
            raise ConfigError(f"{name}step_s = {self.step_s} and speedup = {self.speedup}: both must be positive")
        if self.lasts_s < SHORTEST_S:
            raise ConfigError(
                f"{name}step_s = {self.step_s} at speedup = {self.speedup}: each value lasts {self.lasts_s:g} s, "
                f"which is below {SHORTEST_S:g} s: give a larger step_s, or a smaller speedup"
            )
        constant = math.isinf(self.step_s) or min(self.values) == max(self.values)
        object.__setattr__(self, "constant", constant)

    @property
    def lasts_s(self) -> float:
        """Seconds that each value lasts when it is replayed."""
        return self.step_s / self.speedup

    def at(self, time_s: float) -> float:
        """The value at a time, in seconds from the start."""
        return self.values[0] if self.constant else self.values[self._steps(time_s) % len(self.values)]

    def next_change_s(self, time_s: float) -> float:
        """The first time after ``time_s`` at which another step begins; infinite for a constant."""
        return math.inf if self.constant else (self._steps(time_s) + 1) * self.lasts_s

    def _steps(self, time_s: float) -> int:
        """How many steps are over: the largest k with k · lasts_s ≤ time_s, in the arithmetic of floats.

        The quotient alone is off by one now and then where a step begins. A simulator that moves on to the next
        change would then see the old value there.
        """
        lasts_s = self.lasts_s
        steps = math.floor(time_s / lasts_s)
        while steps * lasts_s > time_s:
            steps -= 1
        while (steps + 1) * lasts_s <= time_s:
            steps += 1
        return steps


def steady(value: float) -> Trace:
    """What never changes."""
    return Trace(values=(value,))

"""A quantity over time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from uneven.cluster.pure.describe.spec_checks import LEAST, MOST
from uneven.errors import ConfigError

SHORTEST_S = 1e-6  # the shortest duration of a value: shorter changes have no effect, and the simulator visits each one


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A quantity over time: one value for each time step, repeated from the start at the end. Raises ConfigError
    without values, for a negative or infinite one, or for a step or speed-up that is not positive."""

    values: tuple[float, ...]  # at least one
    step_s: float = math.inf  # seconds that each value lasts, as recorded; infinite for a constant
    speedup: float = 1.0  # replay speed, in multiples of the recorded speed
    source: str = ""  # its origin, for messages and reports
    constant: bool = field(init=False, repr=False, compare=False)  # True if it never changes; computed from the others

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

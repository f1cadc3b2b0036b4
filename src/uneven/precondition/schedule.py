"""Which step does what: plain, factors taken, bases refreshed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from uneven.errors import ConfigError

Value = float | Callable[[int], float]
"""A number, or what gives it for a step (counted from 0)."""


class Due(NamedTuple):
    """What a step does."""

    factors: bool
    refresh: bool


def value(what: Value, step: int) -> float:
    """A number as it is at a step."""
    return float(what(step)) if callable(what) else float(what)


@dataclass(slots=True)
class Schedule:
    """Factors every so many steps, a refresh every so many; both may change with the step.

    Args:
        factors, refresh: periods in steps. A refresh comes at the first step and then at multiples.
        early: whether refreshes come at steps 1, 3, 7, … too, until the first period is over: the first basis is of one
            batch, and weights move most then.

    Raises:
        ConfigError: a period is below one step, or the second is no multiple of the first.
    """

    factors: Value
    refresh: Value
    early: bool = False

    def __post_init__(self) -> None:
        self.periods(0)

    def periods(self, step: int) -> tuple[int, int]:
        """Both, as they are at ``step``."""
        often, seldom = (round(value(one, step)) for one in (self.factors, self.refresh))
        if often < 1 or seldom % often:
            raise ConfigError(
                f"periods = ({often}, {seldom}) at step {step}: both must be at least one step, and the second a "
                f"multiple of the first, for instance (10, 100)"
            )
        return often, seldom

    def due(self, step: int) -> Due:
        """What ``step`` does."""
        often, seldom = self.periods(step)
        early = self.early and step < seldom and (step + 1) & step == 0
        return Due(early or step % often == 0, early or step % seldom == 0)


@dataclass(slots=True)
class RunningAverage:
    """F ← α F + (1 − α) new, kept as sums to which nothing but additions is made.

    New terms are added with a growing coefficient instead of having all old ones decay, so a factor step makes no pass
    over the sums, and a worker that has nothing to add does nothing. Being linear, sums of all workers may be added up
    at any time: F ← ``kept`` · F + ``fade`` · Σ sums.

    Args:
        decay: α, or "exp" for min(1 − 1/k, 0.95) at the k-th factor step.

    Attributes:
        fade: what the sums have to be multiplied by.
        kept: what the average before has to be multiplied by.
        taken: factor steps so far.

    Raises:
        ConfigError: decay is not in 0 … 1.
    """

    decay: Value | str
    fade: float = 1.0
    kept: float = 1.0
    taken: int = 0

    def __post_init__(self) -> None:
        if self.decay != "exp":
            self._alpha(0)

    def step(self) -> tuple[float, float]:
        """A factor step begins.

        Returns:
            What the sums are to be multiplied by now (1 nearly always), and the coefficient of the new terms.
        """
        alpha = self._alpha(self.taken)
        self.taken += 1
        self.kept *= alpha
        fade = self.fade * alpha
        if fade > _SMALL:
            self.fade = fade
            return 1.0, (1.0 - alpha) / fade
        self.fade = 1.0
        return fade, 1.0 - alpha

    def folded(self) -> None:
        """The sums have gone into the average, and begin anew."""
        self.fade = self.kept = 1.0

    def _alpha(self, taken: int) -> float:
        if isinstance(self.decay, str):
            if self.decay != "exp":
                raise ConfigError(f"factor_decay = {self.decay!r}: give a number from 0 up to 1, a callable, or 'exp'")
            return min(1.0 - 1.0 / (taken + 1), 0.95)
        alpha = value(self.decay, taken)
        if not 0.0 <= alpha < 1.0:
            raise ConfigError(f"factor_decay = {alpha!r} at factor step {taken} must be at least 0 and below 1")
        return alpha


_SMALL = 1e-4
"""Below it the sums are multiplied out, as the coefficient of new terms would grow beyond what float32 adds well."""

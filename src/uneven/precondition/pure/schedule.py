"""The schedule of steps: plain, factors updated, bases refreshed; and adaptive damping."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from uneven.errors import ConfigError

_MOST = 100.0  # maximum growth at a refresh
_RANGE = 1e5  # maximum factor between λ and its start, either way


@dataclass(slots=True)
class AdaptiveDamping:
    """λ that grows with the overshoot of steps, and shrinks while the slope keeps its sign.

    Levenberg and Marquardt compare the loss with the model's, but a part does not see the loss. Along a step δ the
    quadratic model also predicts the slope ⟨∇, δ⟩: −m before the step; after it, still −m if the curvature is hardly
    noticeable, 0 at the minimum of the model, and positive beyond it. The rule is ours.
    """

    start: float  # initial λ, above 0
    shrink: float = 0.8  # factor if the slope after a step has the same sign as before
    now: float = 0.0  # λ
    _before: float = 0.0
    _after: float = 0.0

    def __post_init__(self) -> None:
        self.now = self.start

    def seen(self, before: float, after: float) -> None:
        """Record one step's slopes, ⟨∇, δ⟩ before and after it."""
        self._before += before
        self._after += after

    def proposed(self) -> float:
        """Return λ by the steps since the last refresh, and forget them.

        With r = after ÷ before, λ grows by −r, 1 to 100, or shrinks if r > 0. It grows by 100 if a slope is not finite,
        and stays as it is without steps, or if steps go uphill.
        """
        before, after, self._before, self._after = self._before, self._after, 0.0, 0.0
        if not (math.isfinite(before) and math.isfinite(after)):
            factor = _MOST
        elif before >= 0.0:
            factor = 1.0
        else:
            ratio = after / before
            factor = self.shrink if ratio > 0.0 else min(max(1.0, -ratio), _MOST)
        return min(max(self.now * factor, self.start / _RANGE), self.start * _RANGE)


Value = float | Callable[[int], float]
"""A number, or a function of the step, counted from 0."""


class Due(NamedTuple):
    """The tasks of a step."""

    factors: bool
    refresh: bool


def value(what: Value, step: int) -> float:
    """Return the value at a step."""
    return float(what(step)) if callable(what) else float(what)


@dataclass(slots=True)
class Schedule:
    """Periods of factor updates and refreshes, which may change with the step.

    Args:
        factors, refresh: periods in steps. A refresh comes at the first step and then at multiples.
        early: whether to refresh at steps 1, 3, 7, … of the first period, too: the first basis is of one batch, and
            weights move most then.

    Raises:
        ConfigError: a period is below one step, or the second is not a multiple of the first.
    """

    factors: Value
    refresh: Value
    early: bool = False

    def __post_init__(self) -> None:
        self.periods(0)

    def periods(self, step: int) -> tuple[int, int]:
        """Return both periods at ``step``."""
        often, seldom = (round(value(one, step)) for one in (self.factors, self.refresh))
        if often < 1 or seldom % often:
            raise ConfigError(
                f"factor_update_steps = {often}, inv_update_steps = {seldom} at step {step}: give at least 1, and a "
                "second one that is a multiple of the first, for instance 10 and 100"
            )
        return often, seldom

    def due(self, step: int) -> Due:
        """Return the tasks of ``step``."""
        often, seldom = self.periods(step)
        early = self.early and step < seldom and (step + 1) & step == 0  # step + 1 is a power of two
        return Due(early or step % often == 0, early or step % seldom == 0)


@dataclass(slots=True)
class RunningAverage:
    """F ← α F + (1 − α) new, kept as sums that are only added to: F ← ``kept`` · F + ``fade`` · Σ sums.

    New terms get a growing coefficient instead of decaying all old ones. So a factor step does not touch all sums, and
    a worker without samples does nothing. The sums are linear, so those of all workers can be added at any time.
    """

    decay: Value | str  # α, or "exp" for min(1 − 1/k, 0.95) at the k-th factor step
    fade: float = 1.0  # factor of the sums
    kept: float = 1.0  # factor of the previous average
    taken: int = 0  # factor steps so far

    def __post_init__(self) -> None:
        if self.decay != "exp":
            self._alpha(0)

    def step(self) -> tuple[float, float]:
        """Start a factor step; return the factor to apply to the sums now (nearly always 1), and that of new terms."""
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
        """Record that the sums were added to the average, and are empty."""
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


_SMALL = 1e-4  # below, rescale the sums: the coefficient of new terms would exceed float32's precision

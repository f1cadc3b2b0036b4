"""Asynchronous successive halving, the form that stops: Ray's rule, number by number. Pure."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from uneven.errors import ConfigError
from uneven.search.rulings import GO_ON, Move, Progress, Ruling
from uneven.search.schedulers.base import Scheduler, checked_rungs
from uneven.search.space import Params, Space


def percentile(ordered: list[float], share: float) -> float:
    """The value below which so large a share lies, linearly interpolated, to the bit as NumPy reckons it.

    Args:
        ordered: at least one number, in ascending order.
        share: 0 … 1, times 100 and back, as it reaches NumPy.
    """
    place = (len(ordered) - 1) * (share * 100 / 100)
    low = math.floor(place)
    if low >= len(ordered) - 1:
        return ordered[-1]
    part, a, b = place - low, ordered[low], ordered[low + 1]
    return b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part


@dataclass(slots=True)
class Rung:
    """Where trials are compared: after as much training, with whoever has been there before.

    Attributes:
        recorded: trials that have been here.
        ordered: their scores but for those that are no number, ascending.
    """

    milestone: float
    recorded: set[int] = field(default_factory=set)
    ordered: list[float] = field(default_factory=list)

    def cutoff(self, reduction_factor: float) -> float | None:
        """The least score that goes on; None where nobody has been here."""
        if not self.recorded:
            return None
        return percentile(self.ordered, 1 - 1 / reduction_factor) if self.ordered else math.nan

    def record(self, trial: int, score: float) -> None:
        """A trial has been here."""
        self.recorded.add(trial)
        if not math.isnan(score):
            insort(self.ordered, score)


def milestones(max_t: float, grace_period: float, reduction_factor: float, bracket: int = 0) -> list[float]:
    """The rungs of a bracket, the lowest first: grace_period · reduction_factor^(k + bracket)."""
    count = int(math.log(max_t / grace_period) / math.log(reduction_factor) - bracket + 1)
    return [grace_period * reduction_factor ** (k + bracket) for k in range(count)]


class StoppingAsha(Scheduler):
    """ASHA as Ray has it: a trial below the best 1/reduction_factor of those before it at a rung is stopped for good.

    At each report the highest rung that the trial has reached and is not recorded at is looked at, and no other. The
    first trial at a rung passes, so one worker after the other learns little: see
    :class:`~uneven.search.schedulers.promotion.PromotingAsha`.

    Args:
        max_t: a trial is done after so much training.
        grace_period: no trial is stopped before.
        reduction_factor: of each rung, about one in so many goes on.
        brackets: trials are dealt to so many rows of rungs, whose first rungs are higher and higher.

    Raises:
        ConfigError: max_t below the grace period, and other numbers that make no sense.
    """

    def __init__(
        self, max_t: float = 100, grace_period: float = 1, reduction_factor: float = 4, brackets: int = 1
    ) -> None:
        checked_rungs(max_t, grace_period, reduction_factor)
        if brackets < 1:
            raise ConfigError(f"brackets={brackets}: at least one row of rungs is needed")
        self.max_t = max_t
        self._factor = reduction_factor
        self.brackets = [
            [Rung(at) for at in reversed(milestones(max_t, grace_period, reduction_factor, s))] for s in range(brackets)
        ]
        if not all(self.brackets):
            raise ConfigError(
                f"brackets={brackets}: the last has no rung below max_t={max_t}: give fewer, or raise max_t"
            )
        self._of: dict[int, int] = {}
        self._random = Random(0)

    def begin(self, space: Space, seed: int) -> None:
        self._random = Random(f"asha {seed}")

    def added(self, trial: int, params: Params) -> None:
        """It is dealt to a bracket, in proportion to e to the power of the bracket's rungs."""
        if len(self.brackets) > 1 and trial not in self._of:
            weights = [math.exp(len(rungs) - len(self.brackets[0])) for rungs in self.brackets]
            self._of[trial] = self._random.choices(range(len(weights)), weights)[0]

    def on_result(self, progress: Progress) -> Ruling:
        if self.max_t is not None and progress.t >= self.max_t:
            return Ruling(Move.STOP, f"trained to max_t={self.max_t:g}")
        for rung in self.brackets[self._of.get(progress.trial, 0)]:
            if progress.t < rung.milestone or progress.trial in rung.recorded:
                continue
            cutoff = rung.cutoff(self._factor)
            rung.record(progress.trial, progress.score)
            if cutoff is not None and progress.score < cutoff:
                return Ruling(Move.STOP, f"not among the best 1/{self._factor:g} at rung {rung.milestone:g}")
            break
        return GO_ON

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        return {}

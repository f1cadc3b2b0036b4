"""Asynchronous successive halving that stops trials: Ray's rule, with identical results."""

import math
from bisect import insort
from dataclasses import dataclass, field
from random import Random

from uneven.errors import ConfigError
from uneven.search.pure.decisions import GO_ON, Move, Progress, Ruling
from uneven.search.pure.schedulers.scheduler import Scheduler, checked_rungs
from uneven.search.pure.space import Params, Space


def percentile(ordered: list[float], share: float) -> float:
    """Return the percentile of ascending numbers, linearly interpolated, bit for bit as NumPy computes it."""
    # Times 100 and back, with the rounding that the value gets on its way to NumPy.
    place = (len(ordered) - 1) * (share * 100 / 100)
    low = math.floor(place)
    if low >= len(ordered) - 1:
        return ordered[-1]
    part, a, b = place - low, ordered[low], ordered[low + 1]
    # NumPy interpolates from the nearer end; the other formula differs in the last bit.
    return b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part


@dataclass(slots=True)
class Rung:
    """A level of training at which trials are compared with those that reached it before."""

    milestone: float
    recorded: set[int] = field(default_factory=set)  # trials that have reached it
    ordered: list[float] = field(default_factory=list)  # their scores in ascending order, without NaN

    def cutoff(self, reduction_factor: float) -> float | None:
        """Return the lowest score that continues; None for the first trial."""
        if not self.recorded:
            return None
        return percentile(self.ordered, 1 - 1 / reduction_factor) if self.ordered else math.nan

    def record(self, trial: int, score: float) -> None:
        self.recorded.add(trial)
        # A NaN would break the order of the list.
        if not math.isnan(score):
            insort(self.ordered, score)


def milestones(max_t: float, grace_period: float, reduction_factor: float, bracket: int = 0) -> list[float]:
    """Return the rungs of a bracket, lowest first: grace_period · reduction_factor^(k + bracket)."""
    count = int(math.log(max_t / grace_period) / math.log(reduction_factor) - bracket + 1)
    return [grace_period * reduction_factor ** (k + bracket) for k in range(count)]


class StoppingAsha(Scheduler):
    """ASHA as in Ray: a trial below the best 1/reduction_factor of the earlier trials at a rung is stopped.

    Each report is compared at the highest rung that the trial has reached and is not recorded at. The first trial at a
    rung passes, so a single worker learns little: see :class:`~uneven.search.pure.schedulers.promotion.PromotingAsha`.

    Args:
        max_t: training after which a trial is done.
        grace_period: training before which no trial is stopped.
        reduction_factor: about one in ``reduction_factor`` trials of a rung continues.
        brackets: number of series of rungs, with increasing first rungs, among which trials are divided.

    Raises:
        ConfigError: max_t is below the grace period, or another number is invalid.
    """

    def __init__(
        self, max_t: float = 100, grace_period: float = 1, reduction_factor: float = 4, brackets: int = 1
    ) -> None:
        checked_rungs(max_t, grace_period, reduction_factor)
        if brackets < 1:
            raise ConfigError(f"brackets={brackets}: give at least 1")
        self.max_t = max_t
        self._factor = reduction_factor
        self.brackets = [
            [Rung(at) for at in reversed(milestones(max_t, grace_period, reduction_factor, s))] for s in range(brackets)
        ]
        if not all(self.brackets):
            raise ConfigError(
                f"brackets={brackets}: the last bracket has no rung below max_t={max_t}: give fewer, or raise max_t"
            )
        self._of: dict[int, int] = {}
        self._random = Random(0)

    def begin(self, space: Space, seed: int) -> None:
        self._random = Random(f"asha {seed}")

    def added(self, trial: int, params: Params) -> None:
        if len(self.brackets) > 1 and trial not in self._of:
            # As in Ray: in proportion to e to the power of the bracket's number of rungs.
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

"""Asynchronous successive halving that promotes trials."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from uneven.search.pure.decisions import GO_ON, Move, Progress, Ruling
from uneven.search.pure.schedulers.asha import milestones
from uneven.search.pure.schedulers.scheduler import Scheduler, checked_rungs

_Place = tuple[float, int]
"""Minus the score, and the trial: sorts the best first, and the earlier of equal ones first."""


@dataclass(slots=True)
class Ladder:
    """One rung, whose best trials are promoted."""

    milestone: float
    all: list[_Place] = field(default_factory=list)  # trials that have reached it, the best first
    waiting: list[_Place] = field(default_factory=list)  # those that were not promoted yet
    places: dict[int, _Place] = field(default_factory=dict)

    def record(self, trial: int, score: float) -> None:
        # A NaN counts as the worst score, because it would break the order of the lists.
        place = (math.inf if math.isnan(score) else -score, trial)
        self.places[trial] = place
        insort(self.all, place)
        insort(self.waiting, place)

    def promotable(self, reduction_factor: float) -> int | None:
        """Return the best waiting trial if it is among the best 1/reduction_factor of all at this rung."""
        if not self.waiting:
            return None
        good = bisect_left(self.all, self.waiting[0]) < int(len(self.all) / reduction_factor)
        return self.waiting[0][1] if good else None

    def forget(self, trial: int) -> None:
        place = self.places.get(trial)
        at = bisect_left(self.waiting, place) if place is not None else len(self.waiting)
        if at < len(self.waiting) and self.waiting[at] == place:
            del self.waiting[at]


class PromotingAsha(Scheduler):
    """ASHA that pauses every trial at a rung and resumes those that turn out to be among the best there.

    A free device goes to the promotable trial at the highest rung, or to a new trial. So the first few results decide
    nothing, and one worker is enough.

    Args:
        max_t: training after which a trial is done.
        grace_period: the first rung.
        reduction_factor: one in ``reduction_factor`` trials of a rung is promoted; rungs grow by this factor.

    Raises:
        ConfigError: max_t is below the grace period, or another number is invalid.
    """

    def __init__(self, max_t: float = 100, grace_period: float = 1, reduction_factor: float = 4) -> None:
        checked_rungs(max_t, grace_period, reduction_factor)
        self.max_t: float = max_t
        self._factor = reduction_factor
        self.rungs = [Ladder(at) for at in milestones(max_t, grace_period, reduction_factor) if at < max_t]
        self._at: dict[int, int] = {}
        """Trial → number of rungs that it has passed."""

    def on_result(self, progress: Progress) -> Ruling:
        trial = progress.trial
        if progress.t >= self.max_t:
            self._at.pop(trial, None)
            return Ruling(Move.STOP, f"trained to max_t={self.max_t:g}")
        at = self._at.get(trial, 0)
        reached = at
        while reached < len(self.rungs) and progress.t >= self.rungs[reached].milestone:
            reached += 1
        if reached == at:
            return GO_ON
        self._at[trial] = reached
        rung = self.rungs[reached - 1]
        rung.record(trial, progress.score)
        if self._promoted() == trial:
            rung.forget(trial)
            return GO_ON
        return Ruling(Move.PAUSE, f"waits at rung {rung.milestone:g}")

    def started(self, trial: int) -> None:
        if self._at.get(trial, 0):
            self.rungs[self._at[trial] - 1].forget(trial)

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        for rung in self.rungs:
            rung.forget(trial)
        return {}

    def choose(self, pending: Collection[int], paused: Collection[int]) -> int | None:
        promoted = self._promoted()
        if promoted is not None and promoted in paused:
            return promoted
        return next(iter(pending), None)

    def _promoted(self) -> int | None:
        for rung in reversed(self.rungs):
            trial = rung.promotable(self._factor)
            if trial is not None:
                return trial
        return None

"""Synchronous HyperBand, as in Ray."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from uneven.search.pure.decisions import GO_ON, Move, Progress, Ruling
from uneven.search.pure.schedulers.scheduler import Scheduler, checked_rungs
from uneven.search.pure.space import Params


@dataclass(slots=True)
class Bracket:
    """A group of trials that is halved repeatedly."""

    room: int  # n, its capacity; after a halving, the number of trials kept
    milestone: int  # r, training of each trial before the next halving
    halvings: int  # number of remaining halvings
    work: float  # training of the whole bracket, in samples, epochs or reports
    live: dict[int, tuple[float, float]] = field(default_factory=dict)  # trial → (training, score) of its last report
    resumable: set[int] = field(default_factory=set)  # paused trials that were kept
    done: float = 0.0  # finished part of it

    @property
    def reached(self) -> bool:
        return all(t >= self.milestone for t, _ in self.live.values())

    @property
    def progress(self) -> float:
        """The finished share of the bracket, 0 … 1."""
        return 1.0 if self.halvings == 0 and self.reached else min(self.done / self.work, 1.0)

    def heard(self, trial: int, t: float, score: float) -> None:
        self.done += t - self.live[trial][0]
        self.live[trial] = t, score
        self.resumable.discard(trial)

    def halve(self, eta: float, max_t: float) -> list[int]:
        """Keep the best ⌈n / η⌉, raise the milestone, and return the trials that are not kept."""
        self.halvings -= 1
        self.room = math.ceil(self.room / eta)
        self.milestone = int(min(self.milestone * eta, max_t))
        order = sorted(self.live, key=lambda trial: _worth(self.live[trial][1]))
        return order[: -self.room]


class HyperBand(Scheduler):
    """HyperBand: brackets that trade the number of trials against the training of each, and halve them at milestones.

    Brackets are filled in the order s = 0, 1, 2, …: bracket s takes ⌈(s_max + 1) / (s + 1) · η^s⌉ trials and first
    trains them to max_t · η^−s. A bracket that is not full is halved when all its trials are there. It keeps as many as
    a full one, so a small search may keep all trials.

    Args:
        max_t: training after which a trial is done.
        reduction_factor: η; one in η trials of a bracket continues.

    Raises:
        ConfigError: a number is invalid.
    """

    ahead = math.inf

    def __init__(self, max_t: float = 81, reduction_factor: float = 3) -> None:
        checked_rungs(max_t, 1, reduction_factor)
        self.max_t: float = max_t
        self._eta = reduction_factor
        self._rows = round(math.log(max_t) / math.log(reduction_factor)) + 1
        self.bands: list[list[Bracket | None]] = [[]]
        self._of: dict[int, Bracket] = {}
        self._past = 0
        """Number of leading bands without live trials."""

    def size(self, s: int) -> tuple[int, int]:
        return math.ceil(self._rows / (s + 1) * self._eta**s), int(self.max_t * self._eta ** (-s))

    def added(self, trial: int, params: Params) -> None:
        if trial in self._of:
            self._of[trial].live.setdefault(trial, (0.0, -math.inf))
            return
        bracket = self.bands[-1][-1] if self.bands[-1] else None
        # A bracket that has started to train takes no further trials.
        while bracket is None or len(bracket.live) == bracket.room or bracket.done:
            if len(self.bands[-1]) == self._rows:
                self.bands.append([])
            s = len(self.bands[-1])
            n0, r0 = self.size(s)
            bracket = Bracket(n0, r0, s, self._work(n0, r0, s)) if r0 else None
            self.bands[-1].append(bracket)
        bracket.live[trial] = 0.0, -math.inf
        self._of[trial] = bracket

    def on_result(self, progress: Progress) -> Ruling:
        bracket = self._of[progress.trial]
        bracket.heard(progress.trial, progress.t, progress.score)
        if progress.t < bracket.milestone:
            return GO_ON
        others = self._halved(bracket)
        own = others.pop(progress.trial, None)
        if own is not None:
            return Ruling(own.move, own.why, others=others)
        # The report may have completed a halving, which raised the milestone.
        if bracket.live[progress.trial][0] < bracket.milestone:
            bracket.resumable.discard(progress.trial)
            return Ruling(others=others)
        return Ruling(Move.PAUSE, f"waits for its bracket at {bracket.milestone}", others=others)

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        bracket = self._of[trial]
        bracket.live.pop(trial, None)
        bracket.resumable.discard(trial)
        # The others may have waited only for this trial.
        return self._halved(bracket)

    def choose(self, pending: Collection[int], paused: Collection[int]) -> int | None:
        """Return the first runnable trial: by band, then by the least advanced bracket."""
        while self._past < len(self.bands) - 1 and not any(one and one.live for one in self.bands[self._past]):
            self._past += 1
        for band in self.bands[self._past :]:
            for bracket in sorted((one for one in band if one is not None), key=lambda one: one.progress):
                for trial in bracket.live:
                    if trial in pending or (trial in paused and trial in bracket.resumable):
                        return trial
        return None

    def _halved(self, bracket: Bracket) -> dict[int, Ruling]:
        """Halve a bracket whose trials are all there, and return which trials stop; the others may be resumed."""
        rulings: dict[int, Ruling] = {}
        while bracket.live and bracket.reached:
            if bracket.halvings == 0:
                rulings.update(dict.fromkeys(bracket.live, Ruling(Move.STOP, f"trained to max_t={self.max_t:g}")))
                bracket.live.clear()
                break
            at, kept = bracket.milestone, math.ceil(bracket.room / self._eta)
            for trial in bracket.halve(self._eta, self.max_t):
                del bracket.live[trial]
                rulings[trial] = Ruling(Move.STOP, f"not among the best {kept} of its bracket at {at}")
            bracket.resumable = {trial for trial, (t, _) in bracket.live.items() if t < bracket.milestone}
        return rulings

    def _work(self, n: int, r: float, s: int) -> float:
        total, first = 0, r
        for _ in range(s + 1):
            total += n * int(r)
            n, r = math.ceil(n / self._eta), min(r * self._eta, self.max_t - first)
        return max(total, 1)


def _worth(score: float) -> float:
    return -math.inf if math.isnan(score) else score

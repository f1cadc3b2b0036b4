"""What one worker has taken from the counter of all and not used yet. Pure: who asks may wait.

To move the counter on is a question to another process, maybe on another machine, over links that exchanges of
parameters may fill. So it is asked ahead, beside the training, and the next epoch's when this one has nothing left. How
far ahead is measured: as many batches as are used while three answers come: the last samples of an epoch may be in the
first and none in the second.

While much is left a worker takes several batches with one question, and fewer the less is left, as guided
self-scheduling does (Polychronopoulos and Kuck, 1987): none holds many at the end, when others have nothing to do any
more; but as many as an answer lasts, for to wait for one takes no less.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_AT_ONCE, _ROUNDS = 16, 8
"""Batches taken with one question at most, where answers come at once; and by how many such rounds of all workers what
is left has to last."""

EPOCHS = 1
"""How many epochs ahead."""

_IN_A_ROW = 3
"""Answers for which enough is held: the last samples of an epoch, nothing, and the first ones of the next epoch."""

_KEPT, _NEW, _PAUSE = 0.9, 0.1, 4.0
"""What is kept of the longest answer at each further one; the weight of a new time between batches in their mean; and
how many times the mean counts of one that is longer, in which the user may have evaluated."""

Interval = tuple[int, int]
"""Positions from the first up to, not including, the second."""


class SamplesWanted(NamedTuple):
    """What a worker asks the counter of an epoch for.

    Attributes:
        samples: so many, where so many are left.
        lower: a rest that is smaller goes along.
        length: positions in the list that the counter runs over.
    """

    samples: int
    lower: int
    length: int

    def run(self, first: int, until: int) -> Interval:
        """What of these positions it gets."""
        end = min(first + self.samples, until)
        return first, until if until - end < self.lower else end

    def fresh(self, first: int) -> Interval | None:
        """What it gets where the counter has come to ``first``; None where nothing is left, or so little that it went
        with the batch before."""
        left = self.length - first
        return self.run(first, self.length) if left > 0 and (first == 0 or left >= self.lower) else None


class PendingRun(Protocol):
    """A run of positions that may still be under way.

    Attributes:
        took_s: how long it was, in seconds, once it is here.
    """

    took_s: float

    def done(self) -> bool:
        """Whether it is here."""
        ...

    def result(self) -> Interval | None:
        """It, None where nothing is left; waits for it.

        Raises:
            PeerError: there is none.
        """
        ...


class SampleCounter(Protocol):
    """The counters that all workers share, one for each epoch, and what they have reported to each other of the rest.

    Attributes:
        ahead: whether to ask ahead. Not where workers wait for each other's steps: each is to have as many.
        least: in a meeting of all, the first epoch that one of them is in; else None.
    """

    ahead: bool

    @property
    def least(self) -> int | None: ...

    def take(self, epoch: int, wanted: SamplesWanted) -> PendingRun:
        """Move the counter of an epoch on; what it has passed is the worker's, as soon as that is known."""
        ...

    def reached(self, epoch: int) -> int:
        """Where the counter of an epoch is. Waits.

        Raises:
            PeerError: there is no answer.
        """
        ...

    def restart(self) -> None:
        """Count from 0 again; every worker says so, after it has loaded a state."""
        ...

    def known(self, epoch: int) -> tuple[int, list[Interval]] | None:
        """Where the counter of an epoch is, and what has been handed out by it and not been trained on.

        None where nothing is known of the others, as outside of a meeting of all.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Question:
    epoch: int
    answer: PendingRun


class Supply:
    """Runs of positions of one worker, in the order in which they are to be used.

    Args:
        workers: that take from the same counter.
        lower: least samples in a batch, the same on all workers. A rest that is smaller goes with the batch before it.
        length_of: epoch → positions in the list that its counter runs over.
        now: time in seconds.
    """

    def __init__(
        self, counter: SampleCounter, workers: int, lower: int, length_of: Callable[[int], int],
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._counter = counter
        self._workers = workers
        self.lower = lower
        self._length_of = length_of
        self._now = now
        self._runs: deque[tuple[int, Interval]] = deque()  # with their epochs
        self._question: _Question | None = None
        self._through = 0  # the first epoch that may have something left to be taken
        self._reached = 0  # where its counter was
        self._answer_s = self._batch_s = 0.0  # how long an answer takes, and how long a batch lasts
        self._made = 0  # batches so far
        self._since: tuple[float, int] | None = None  # a moment, and how many of them had been used by then

    def begin(self, epoch: int) -> None:
        """What was taken of epochs before this one is forgotten."""
        self._since = None
        if self._question is not None and self._question.epoch < epoch:
            self._question = None
        self._runs = deque(one for one in self._runs if one[0] >= epoch)
        if self._through < epoch:
            self._to(epoch)

    def reopen(self, epoch: int) -> None:
        """Something of an epoch may be left after all, as a worker that had it is gone."""
        if self._through > epoch:
            self._to(epoch)

    def restart(self) -> None:
        """Nothing is taken; the counters begin at 0."""
        self._runs.clear()
        self._question = None
        self._to(0)

    def front(self, epoch: int, share: int, kept: int) -> Interval | None:
        """The next run of an epoch; None where it has none left for this worker. Waits for an answer if it must.

        Args:
            share: samples of this worker in a batch; with 0 it takes no more, and uses what it has.
            kept: batches that were made and not been used yet, as readers hold them.

        Raises:
            PeerError: there is none.
        """
        self._time(kept)
        if self._question is not None and self._question.answer.done():
            self._take_in()
        while not self._has(epoch) and (self._asked(epoch) or (share > 0 and self._through <= epoch)):
            if self._question is None:
                self._ask(epoch, share, kept)
            self._take_in()
        return self._runs[0][1] if self._has(epoch) else None

    def use(self, size: int, batches: int, share: int, kept: int) -> None:
        """Cut the first samples at hand into so many batches, and ask the counter for more if few are left."""
        self._since = self._now(), self._made - kept
        self._made += batches
        epoch, (start, end) = self._runs.popleft()
        if start + size * batches < end:
            self._runs.appendleft((epoch, (start + size * batches, end)))
        if share > 0 and self._wants(epoch, share, kept):
            self._ask(max(epoch, self._through), share, kept)

    def give_back(self, epoch: int, runs: Iterable[Interval]) -> None:
        """Batches that were made of these runs were not used."""
        self._runs.extendleft((epoch, run) for run in reversed(tuple(runs)))

    def held(self, epoch: int) -> list[Interval]:
        """All runs of an epoch that this worker has taken, also by what is still under way.

        Raises:
            PeerError: there is no answer.
        """
        if self._question is not None:
            self._take_in()
        return [run for of, run in self._runs if of == epoch]

    def _wants(self, epoch: int, share: int, kept: int) -> bool:
        if not self._counter.ahead or self._question is not None or self._through > epoch + EPOCHS:
            return False
        return self._held(share) + kept <= min(self._lasts(_IN_A_ROW), self._equal_part(epoch, share))

    def _has(self, epoch: int) -> bool:
        return bool(self._runs) and self._runs[0][0] == epoch

    def _asked(self, epoch: int) -> bool:
        return self._question is not None and self._question.epoch == epoch

    def _held(self, share: int) -> int:
        return sum((end - start) // share for _, (start, end) in self._runs)

    def _to(self, epoch: int) -> None:
        self._through, self._reached = epoch, 0

    def _time(self, kept: int) -> None:
        """The batches that have been used since the last ones were made have lasted until now."""
        since_s, before = self._since if self._since is not None else (0.0, self._made - kept)
        used = self._made - kept - before
        if used <= 0:
            return
        lasted_s = (self._now() - since_s) / used
        if self._batch_s > 0.0:
            lasted_s = min(lasted_s, _PAUSE * self._batch_s)
        self._batch_s += (lasted_s - self._batch_s) * (_NEW if self._batch_s > 0.0 else 1.0)

    def _lasts(self, answers: int) -> int:
        """Batches that are used until so many answers have come, one after the other."""
        return math.ceil(answers * self._answer_s / self._batch_s) if self._batch_s > 0.0 else 1

    def _equal_part(self, epoch: int, share: int) -> int:
        """One worker's equal part of an epoch, in batches: no worker holds more, but for those in use."""
        return max(1, self._length_of(epoch) // (self._workers * share))

    def _ask(self, epoch: int, share: int, kept: int) -> None:
        if epoch != self._through:
            self._to(epoch)
        rounds = (self._length_of(epoch) - self._reached) // (_ROUNDS * self._workers * share)
        wanted = 1
        if self._counter.ahead:  # and one more answer, while this one comes
            held = self._held(share) + kept
            wanted = min(self._lasts(_IN_A_ROW + 1), self._equal_part(epoch, share)) - held
        samples = share * max(1, wanted, min(_AT_ONCE, rounds))
        answer = self._counter.take(epoch, SamplesWanted(samples, self.lower, self._length_of(epoch)))
        self._question = _Question(epoch, answer)

    def _take_in(self) -> None:
        question, self._question = self._question, None
        assert question is not None
        run, epoch = question.answer.result(), question.epoch
        self._answer_s = max(question.answer.took_s, _KEPT * self._answer_s)
        if run is not None:
            before = sum(1 for of, _ in self._runs if of <= epoch)  # those of the next epoch may be here already
            self._runs.insert(before, (epoch, run))
            self._reached = max(self._reached, run[1])
        if epoch == self._through and (run is None or run[1] >= self._length_of(epoch)):
            self._to(epoch + 1)

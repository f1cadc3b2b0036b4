"""The samples that one worker has taken from the common counter and not used yet. Pure: a caller may have to wait.

To advance the counter is a request to another process, perhaps on another machine, over links that may be busy. So
requests are made ahead, concurrently with the training, and for the next epoch once this one has nothing left. The
distance is measured: as many batches as are used during three answers. The first answer may have the last samples of an
epoch, and the second none.

While much is left, a worker takes several batches with one request; the less is left, the fewer. Guided self-scheduling
does the same (Polychronopoulos and Kuck, 1987). So no worker holds many at the end, when others have no work
left. But it holds enough for the duration of an answer.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# Most batches of one request if answers are immediate, and the number of such rounds of all workers that the rest must
# last.
_AT_ONCE, _ROUNDS = 16, 8

EPOCHS = 1  # epochs to request ahead

_IN_A_ROW = 3  # answers to hold batches for: the last samples of an epoch, none, and the first of the next epoch

# Decay of the longest answer with each further one; weight of a new time between batches in their mean; and the limit
# of a longer one in units of the mean, because the user may have evaluated in it.
_KEPT, _NEW, _PAUSE = 0.9, 0.1, 4.0

Interval = tuple[int, int]  # positions from the first up to, not including, the second


class SamplesWanted(NamedTuple):
    """A request to the counter of an epoch."""

    samples: int  # number of samples, if these are left
    lower: int  # a smaller rest is added
    length: int  # positions in the list that the counter runs over

    def run(self, first: int, until: int) -> Interval:
        end = min(first + self.samples, until)
        return first, until if until - end < self.lower else end

    def fresh(self, first: int) -> Interval | None:
        """Return the run with the counter at ``first``; None if nothing is left, or a small rest that an earlier
        batch has taken."""
        left = self.length - first
        return self.run(first, self.length) if left > 0 and (first == 0 or left >= self.lower) else None


class PendingRun(Protocol):
    """A run of positions that may still be under way."""

    took_s: float  # how long the answer took in seconds, once it has arrived

    def done(self) -> bool:
        """Return whether it has arrived."""

    def result(self) -> Interval | None:
        """Wait and return the run, or None if nothing is left; raises PeerError without an answer."""


class SampleCounter(Protocol):
    """The counters that all workers share, one for each epoch, and their reports of unused samples."""

    ahead: bool  # whether to request ahead; False if workers wait for each other's steps, to give each the same number

    @property
    # In a meeting of all workers, the first epoch that one of them is in; otherwise None.
    def least(self) -> int | None: ...

    def take(self, epoch: int, wanted: SamplesWanted) -> PendingRun:
        """Advance the counter of an epoch and return the pending run that it passes."""

    def reached(self, epoch: int) -> int:
        """Wait and return the counter of an epoch; raises PeerError without an answer."""

    def restart(self) -> None:
        """Count from 0 again; every worker calls it after it has loaded a state."""

    def known(self, epoch: int) -> tuple[int, list[Interval]] | None:
        """Return the counter of an epoch and the unused runs below it; None outside of a meeting of all workers."""


@dataclass(frozen=True, slots=True)
class _Question:
    epoch: int
    answer: PendingRun


class Supply:
    """Runs of positions of one worker, in the order of their use."""

    def __init__(
        self,
        counter: SampleCounter,
        workers: int,  # number of workers that share the counter
        lower: int,  # least samples in a batch, the same on all workers; a smaller rest joins the batch before it
        length_of: Callable[[int], int],  # epoch → positions in the list that its counter runs over
        now: Callable[[], float],  # returns the time in seconds
    ) -> None:
        self._counter = counter
        self._workers = workers
        self.lower = lower
        self._length_of = length_of
        self._now = now
        self._runs: deque[tuple[int, Interval]] = deque()  # with their epochs
        self._question: _Question | None = None
        self._through = 0  # the first epoch that may have samples left
        self._reached = 0  # its counter in the newest answer
        self._answer_s = self._batch_s = 0.0  # duration of an answer, and of a batch
        self._made = 0  # batches so far
        self._since: tuple[float, int] | None = None  # a time, and the number of batches used by then

    def begin(self, epoch: int) -> None:
        self._since = None
        if self._question is not None and self._question.epoch < epoch:
            self._question = None
        self._runs = deque(one for one in self._runs if one[0] >= epoch)
        if self._through < epoch:
            self._to(epoch)

    def reopen(self, epoch: int) -> None:
        """Request samples of an epoch again, because those of a failed worker may have been requeued."""
        if self._through > epoch:
            self._to(epoch)

    def restart(self) -> None:
        """Forget all samples; the counters start at 0."""
        self._runs.clear()
        self._question = None
        self._to(0)

    def front(self, epoch: int, share: int, kept: int) -> Interval | None:
        """Return the next run of an epoch, waiting for an answer if needed; None if this worker has none left.

        ``kept`` batches are held by readers. With a ``share`` of 0 it takes none. Raises PeerError without an answer.
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
        """Cut the first samples into ``batches`` batches of ``size``, and request more if few are left."""
        self._since = self._now(), self._made - kept
        self._made += batches
        epoch, (start, end) = self._runs.popleft()
        if start + size * batches < end:
            self._runs.appendleft((epoch, (start + size * batches, end)))
        if share > 0 and self._wants(epoch, share, kept):
            self._ask(max(epoch, self._through), share, kept)

    def give_back(self, epoch: int, runs: Iterable[Interval]) -> None:
        self._runs.extendleft((epoch, run) for run in reversed(tuple(runs)))

    def held(self, epoch: int) -> list[Interval]:
        """Return all runs of an epoch that this worker has taken; raises PeerError if the last request is not
        answered."""
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
        since_s, before = self._since if self._since is not None else (0.0, self._made - kept)
        used = self._made - kept - before
        if used <= 0:
            return
        lasted_s = (self._now() - since_s) / used
        if self._batch_s > 0.0:
            lasted_s = min(lasted_s, _PAUSE * self._batch_s)
        self._batch_s += (lasted_s - self._batch_s) * (_NEW if self._batch_s > 0.0 else 1.0)

    def _lasts(self, answers: int) -> int:
        """Return the number of batches used during this number of consecutive answers."""
        return math.ceil(answers * self._answer_s / self._batch_s) if self._batch_s > 0.0 else 1

    def _equal_part(self, epoch: int, share: int) -> int:
        """Return one worker's equal part of an epoch, in batches: the most that a worker holds, without those in
        use."""
        return max(1, self._length_of(epoch) // (self._workers * share))

    def _ask(self, epoch: int, share: int, kept: int) -> None:
        if epoch != self._through:
            self._to(epoch)
        rounds = (self._length_of(epoch) - self._reached) // (_ROUNDS * self._workers * share)
        wanted = 1
        if self._counter.ahead:  # one answer more, because batches are used while this one is under way
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
            before = sum(1 for of, _ in self._runs if of <= epoch)  # runs of the next epoch may have arrived already
            self._runs.insert(before, (epoch, run))
            self._reached = max(self._reached, run[1])
        if epoch == self._through and (run is None or run[1] >= self._length_of(epoch)):
            self._to(epoch + 1)

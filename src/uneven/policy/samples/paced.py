"""Which sample is used when, where each worker streams at its own pace from one shared order.

One permutation per epoch, as in ``order``. A counter that all workers share says how many positions of it have been
handed out; a worker that wants a batch moves the counter on and takes what it has passed::

    order of the epoch   │ r0 │ r1 │ r1 │ r0 │ r1 │ r1 │ r0 │     each chunk to who asks for it
                         0                                  length

So every sample is handed out exactly once an epoch, whoever is fast. What was left when a state was saved is a list of
positions; the counter then runs over that list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.policy.samples.leases import merged
from uneven.policy.samples.order import Cursor, Portion, SplitSource
from uneven.policy.samples.supply import Interval, SampleCounter, Supply

_AT_ONCE = 8
"""Batches made at once, at most."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart(Portion):
    """A batch that ``rank`` has taken for itself; the other shares say what such a batch of theirs would be.

    Attributes:
        start: first position in the list that the counter runs over.
        size: what the shares add up to; not all of it lies behind ``start``.
    """

    rank: int

    @property
    def end(self) -> int:
        return self.start + self.batch(self.rank)

    def offset(self, rank: int) -> int:
        return 0


def intervals(positions: npt.ArrayLike) -> list[Interval]:
    """The same positions in the same order, as runs."""
    every = np.asarray(positions, dtype=np.int64)
    begins = np.diff(every, prepend=-2) != 1  # no position is below 0
    ends = np.roll(begins, -1)  # a run ends where another begins behind it, or nothing is
    return list(zip(every[begins].tolist(), (every[ends] + 1).tolist(), strict=True))


def positions_of(runs: Iterable[Sequence[int]]) -> Positions:
    """Inverse of :func:`intervals`: int64, shape (number of positions,)."""
    return np.concatenate([np.arange(0, dtype=np.int64), *(np.arange(a, b, dtype=np.int64) for a, b in runs)])


class PacedSampler:
    """The indices of one worker's batches, for torch's ``DataLoader``. It knows nothing of the loader.

    Args:
        shares_for: iteration → samples of each rank in a batch of its own.
        order_of: epoch → index of the sample at every position.
        usable: positions of a whole epoch that are handed out; less than its samples where the last are left out.
        lower: least samples in a batch. A rest that is smaller goes with the batch before it.
        workers: that take from the same counter.
        now: time in seconds, by which it is seen how far ahead to ask.
        unused: batches that the user was handed and that are in no model yet.
        members: iteration → workers in the order of ``shares_for`` where they come and go; None where these are 0, 1, …

    Attributes:
        drawn: drawn by torch, not yet handed out.
        usable: see above.
    """

    def __init__(
        self,
        *,
        rank: int,
        shares_for: SplitSource,
        order_of: Callable[..., Positions],
        usable: int,
        lower: int,
        counter: SampleCounter,
        workers: int,
        now: Callable[[], float],
        unused: Callable[[], Sequence[Portion]],
        members: Callable[[int], tuple[int, ...]] | None = None,
    ) -> None:
        self._unused = unused
        self._members = members
        self.drawn: deque[Portion] = deque()
        self._rank = rank
        self._shares_for = shares_for
        self._order_of = order_of
        self.usable, self._counter = usable, counter
        self._supply = Supply(counter, workers, lower, self._length, now)
        self._cursor = Cursor()
        self._left: tuple[int, Positions] | None = None  # epoch, and what is left of it
        self._cut: deque[Portion] = deque()  # made into batches, and not drawn yet
        self._exhausted = False
        self._begun: int | None = None  # the newest epoch of which this worker has taken a batch

    def at_least(self, lower: int) -> None:
        """No batch is to be smaller. The same on all workers, for the rest that one leaves another one has to take."""
        self._supply.lower = lower

    def start(self, cursor: Cursor) -> None:
        """Forget what was drawn; the next pass is over the epoch of ``cursor``."""
        if cursor.epoch == self._cursor.epoch:
            self._supply.give_back(cursor.epoch, ((part.start, part.end) for part in (*self.drawn, *self._cut)))
        self._cursor, self._exhausted = cursor, False
        self._supply.begin(cursor.epoch)
        self._supply.reopen(cursor.epoch)
        self._cut.clear()
        self.drawn.clear()

    @property
    def epoch(self) -> int:
        """That the next batch of this worker is from, or the first one in hand that is not used yet."""
        over = self._exhausted and not self.drawn
        return min([self._cursor.epoch + int(over), *(part.epoch for part in self._unused())])

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order_of(epoch=self._cursor.epoch)
        if (left := self._left_of(self._cursor.epoch)) is not None:
            order = order[left]
        while self._cut or self._take():
            part = self._cut.popleft()
            self.drawn.append(part)
            yield order[part.start : part.end].tolist()

    def more(self) -> bool:
        """Whether this worker has another batch in the epoch; one that is not drawn yet is taken for it now."""
        return bool(self.drawn or self._cut) or self._take()

    def undone(self, epoch: int) -> list[Interval]:
        """What this worker has taken of an epoch and not used, as positions of it.

        Raises:
            PeerError: what it has asked for last is not answered.
        """
        parts = (*self._unused(), *self.drawn, *self._cut)
        held = [(part.start, part.end) for part in parts if part.epoch == epoch] + self._supply.held(epoch)
        left = self._left_of(epoch)
        if left is None:
            return held
        return [run for first, end in held for run in intervals(left[first:end])]

    def place(self, epoch: int) -> dict[str, Any]:
        """What is left of an epoch, for the loader's state.

        In a meeting at which workers are in different epochs it is the first of them: what has been trained on of later
        ones will be again. Outside of a meeting it is what this worker knows: the others may have some in hand, or have
        begun already.
        """
        if (least := self._counter.least) is not None:
            epoch = min(epoch, least)
        known = self._counter.known(epoch)
        if known is not None:
            counter, undone = known
        elif self._begun is not None and self._begun >= epoch:
            undone = self.undone(epoch)
            counter = self._counter.reached(epoch)
        else:
            counter, undone = 0, []
        order = self._left_of(epoch)
        rest = [(counter, self.usable)] if order is None else intervals(order[counter:])
        left = merged([*undone, *rest])
        return {"epoch": epoch, "cursor": left[0][0] if left else self.usable, "left": [list(run) for run in left]}

    def resume(self, epoch: int, left: Iterable[Sequence[int]]) -> None:
        """The epoch has only these positions left, or none."""
        self._counter.restart()
        self._supply.restart()
        self.drawn.clear()
        self._cut.clear()
        positions = positions_of(left)
        self._left, self._begun = (epoch, positions), None
        self.start(Cursor(epoch=epoch))

    def left(self) -> tuple[int, list[Interval]] | None:
        """The epoch of which only some positions were left when a state was loaded, and these; for a newcomer."""
        return None if self._left is None else (self._left[0], intervals(self._left[1]))

    def adopt(self, left: tuple[int, Iterable[Sequence[int]]] | None) -> None:
        """Inverse of :meth:`left`, on the newcomer."""
        self._left = None if left is None else (left[0], positions_of(left[1]))

    @property
    def unused(self) -> Sequence[Portion]:
        """Batches that the user was handed and that are in no model yet."""
        return self._unused()

    @property
    def cut(self) -> int:
        """Iterations whose batches are cut; shares of later ones may still change."""
        return self._cursor.iteration

    @property
    def pass_over(self) -> int:
        """The epoch that the newest pass is over."""
        return self._cursor.epoch

    def _left_of(self, epoch: int) -> Positions | None:
        """None where that is all."""
        return self._left[1] if self._left is not None and self._left[0] == epoch else None

    def _length(self, epoch: int) -> int:
        """Positions in the list, which is not made for that: a whole epoch's is as long as the data set."""
        left = self._left_of(epoch)
        return self.usable if left is None else len(left)

    def _take(self) -> bool:
        """Make the next batches, as large as this worker's share; a smaller one or none at the end.

        Several at once where they are taken ahead anyway: right after a step, when the caches hold the model, to make
        one costs as much as to make eight.
        """
        iteration = self._cursor.iteration
        shares = tuple(self._shares_for(iteration))
        members = None if self._members is None else self._members(iteration)
        place = self._rank if members is None else members.index(self._rank)
        share = shares[place]
        kept, lower = len(self.drawn), self._supply.lower
        front = self._supply.front(self._cursor.epoch, share, kept)
        if front is None:
            self._exhausted = True
            return False
        length = front[1] - front[0]
        size = min(share or length, length)  # who is to have no more still uses what it has taken
        if length - size < lower:
            size = length
        count = 1
        if self._counter.ahead and size == share:
            count = max(1, min(_AT_ONCE, (length - lower) // size))
        own = shares if size == share else (*shares[:place], size, *shares[place + 1 :])
        for number in range(count):
            self._add(front[0] + number * size, own, members)
        self._supply.use(size, count, share, kept)
        self._begun = self._cursor.epoch
        return True

    def _add(self, start: int, shares: tuple[int, ...], members: tuple[int, ...] | None) -> None:
        part = OwnPart(
            iteration=self._cursor.iteration,
            epoch=self._cursor.epoch,
            start=start,
            size=sum(shares),
            shares=shares,
            members=members,
            rank=self._rank,
        )
        self._cursor = self._cursor.after(part)
        self._cut.append(part)

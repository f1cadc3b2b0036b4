"""The samples of workers that stream asynchronously from one common order.

There is one permutation per epoch, as in ``order``. A counter that all workers share is the number of positions handed
out; a worker that needs a batch advances the counter and takes the positions that it has passed::

    order of the epoch   │ r0 │ r1 │ r1 │ r0 │ r1 │ r1 │ r0 │     each chunk to the rank that requests it
                         0                                  length

So every sample is handed out exactly once per epoch. A saved state lists the positions that were left; after a resume
the counter runs over that list.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.policy.samples.leases import merged
from uneven.policy.samples.order import Cursor, Portion, SplitSource
from uneven.policy.samples.supply import Interval, SampleCounter, Supply

_AT_ONCE = 8  # batches made together, at most

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart(Portion):
    """A batch that ``rank`` has taken; the other shares are the sizes that such batches of other ranks would have.

    Not all ``size`` positions from ``start`` on, in the list of the counter, belong to this batch.
    """

    rank: int

    @property
    def end(self) -> int:
        return self.start + self.batch(self.rank)

    def offset(self, rank: int) -> int:
        return 0


def intervals(positions: npt.ArrayLike) -> list[Interval]:
    """Return positions, shape (positions,), as runs in the same order."""
    every = np.asarray(positions, dtype=np.int64)
    begins = np.diff(every, prepend=-2) != 1  # no position is below 0
    ends = np.roll(begins, -1)  # a run ends where another begins behind it, or nothing is
    return list(zip(every[begins].tolist(), (every[ends] + 1).tolist(), strict=True))


def positions_of(runs: Iterable[Sequence[int]]) -> Positions:
    """Return the positions of runs: int64, shape (positions,)."""
    return np.concatenate([np.arange(0, dtype=np.int64), *(np.arange(a, b, dtype=np.int64) for a, b in runs)])


class PacedSampler:
    """The indices of one worker's batches, for torch's ``DataLoader``; without a reference to the loader."""

    def __init__(
        self,
        *,
        rank: int,
        shares_for: SplitSource,  # iteration → samples of each rank in its own batches
        order_of: Callable[..., Positions],  # epoch → index of the sample at every position
        usable: int,  # positions of a whole epoch that are handed out; fewer than its samples if the last are left out
        lower: int,  # least samples in a batch; a smaller rest joins the batch before it
        counter: SampleCounter,
        workers: int,  # number of workers that share the counter
        now: Callable[[], float],  # returns the time in seconds, to measure how far ahead to request
        unused: Callable[[], Sequence[Portion]],  # returns the in-flight batches
        # iteration → workers of `shares_for`; None for 0, 1, …
        members: Callable[[int], tuple[int, ...]] | None = None,
    ) -> None:
        self._unused = unused
        self._members = members
        self.drawn: deque[Portion] = deque()  # drawn by torch, not yet yielded
        self._rank = rank
        self._shares_for = shares_for
        self._order_of = order_of
        self.usable = usable
        self._counter = counter
        self._supply = Supply(counter, workers, lower, self._length, now)
        self._cursor = Cursor()
        self._left: tuple[int, Positions] | None = None  # epoch of a loaded state, and its positions that are left
        self._cut: deque[Portion] = deque()  # batches that are made and not drawn yet
        self._exhausted = False
        self._begun: int | None = None  # the newest epoch from which this worker has taken a batch

    def at_least(self, lower: int) -> None:
        """Set the least batch size, the same on all workers, because one must take the rest that another leaves."""
        self._supply.lower = lower

    def start(self, cursor: Cursor) -> None:
        """Return undrawn batches to the supply; the next pass reads the epoch of ``cursor``."""
        if cursor.epoch == self._cursor.epoch:
            self._supply.give_back(cursor.epoch, ((part.start, part.end) for part in (*self.drawn, *self._cut)))
        self._cursor, self._exhausted = cursor, False
        self._supply.begin(cursor.epoch)
        self._supply.reopen(cursor.epoch)
        self._cut.clear()
        self.drawn.clear()

    @property
    def epoch(self) -> int:
        """The epoch of this worker's next batch, or of its first in-flight batch."""
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
        """Return whether this worker has another batch in the epoch, and take one if none is drawn."""
        return bool(self.drawn or self._cut) or self._take()

    def undone(self, epoch: int) -> list[Interval]:
        """Return the positions of an epoch that this worker has taken and not used; raises PeerError without an
        answer."""
        parts = (*self._unused(), *self.drawn, *self._cut)
        held = [(part.start, part.end) for part in parts if part.epoch == epoch] + self._supply.held(epoch)
        return self.positions(epoch, held)

    def positions(self, epoch: int, runs: list[Interval]) -> list[Interval]:
        """Return the positions of an epoch for runs of places in the list of its samples that were left."""
        left = self._left_of(epoch)
        return runs if left is None else [run for first, end in runs for run in intervals(left[first:end])]

    def place(self, epoch: int) -> dict[str, Any]:
        """Return the positions of an epoch that are left; the loader's state has them.

        Outside of a meeting of all workers it is only what this worker knows: others may have batches in flight.
        """
        # Workers may be in different epochs: the state is that of the first, and steps on later epochs are repeated.
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
        if counter and self._length(epoch) - counter < self._supply.lower:
            counter = self._length(epoch)  # an earlier batch has taken the small rest
        order = self._left_of(epoch)
        rest = [(counter, self.usable)] if order is None else intervals(order[counter:])
        left = merged([*undone, *rest])
        return {"epoch": epoch, "cursor": left[0][0] if left else self.usable, "left": [list(run) for run in left]}

    def resume(self, epoch: int, left: Iterable[Sequence[int]]) -> None:
        """Start an epoch in which only these positions are left, or none."""
        self._counter.restart()
        self._supply.restart()
        self.drawn.clear()
        self._cut.clear()
        positions = positions_of(left)
        self._left, self._begun = (epoch, positions), None
        self.start(Cursor(epoch=epoch))

    def left(self) -> tuple[int, list[Interval]] | None:
        """Return the loaded epoch and its remaining positions, which a newcomer gets; None if no state was loaded."""
        return None if self._left is None else (self._left[0], intervals(self._left[1]))

    def adopt(self, left: tuple[int, Iterable[Sequence[int]]] | None) -> None:
        self._left = None if left is None else (left[0], positions_of(left[1]))

    @property
    def unused(self) -> Sequence[Portion]:
        return self._unused()

    @property
    def cut(self) -> int:
        """The number of iterations whose batches are made; shares of later ones may still change."""
        return self._cursor.iteration

    @property
    def pass_over(self) -> int:
        return self._cursor.epoch

    def _left_of(self, epoch: int) -> Positions | None:
        """Return the positions of an epoch that are left, shape (positions,); None for a whole epoch."""
        return self._left[1] if self._left is not None and self._left[0] == epoch else None

    def _length(self, epoch: int) -> int:
        left = self._left_of(epoch)
        return self.usable if left is None else len(left)

    def _take(self) -> bool:
        """Make the next batches of this worker's share, a smaller one at the end; return False if there is none."""
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
        size = min(share or length, length)  # with a share of 0 it still uses the samples that it has taken
        if length - size < lower:
            size = length
        count = 1
        # Right after a step the caches hold the model, and to make one batch costs as much as to make eight.
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

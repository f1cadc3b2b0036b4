"""Which sample is used when, where each worker streams at its own pace from one shared order. Pure.

One permutation per epoch, as in ``order``. A counter that all workers share says how many positions of it have been
handed out; a worker that wants a batch moves the counter on and takes what it has passed::

    order of the epoch   │ r0 │ r1 │ r1 │ r0 │ r1 │ r1 │ r0 │     each chunk to who asks for it
                         0                                  length

So every sample is handed out exactly once an epoch, whoever is fast. What was left when a state was saved is a list of
positions; the counter then runs over that list.

To move the counter on is a question to another process, maybe on another machine. So while much is left a worker takes
several batches with one question, and fewer the less is left, as guided self-scheduling does (Polychronopoulos and
Kuck, 1987): none holds many at the end, when others have nothing to do any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from uneven.data.order import Cursor, Part, SplitSource

_AT_ONCE, _ROUNDS = 8, 4
"""Batches taken with one question at most; and by how many such rounds of all workers what is left has to last."""

Positions = npt.NDArray[np.int64]
Interval = tuple[int, int]
"""Positions from the first up to, not including, the second."""


class HandOut(Protocol):
    """The counters that all workers share, one for each epoch, and what they have told each other of the rest."""

    def take(self, epoch: int, samples: int) -> int:
        """Move the counter of an epoch on by so many; where it was before."""
        ...

    def anew(self) -> None:
        """Count from 0 again; every worker says so, after it has loaded a state."""
        ...

    def told(self, epoch: int, own: list[Interval]) -> tuple[int, list[Interval]]:
        """Where the counter of an epoch is, and what has been handed out by it and not been trained on.

        Args:
            own: of this worker, for a time at which nothing is known of the others.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart(Part):
    """A batch that ``rank`` has taken for itself; the other shares say what such a batch of theirs would be.

    Attributes:
        start: first position in the list that the counter runs over.
        size: what the shares add up to; not all of it lies behind ``start``.
    """

    rank: int

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self.start + self.shares[self.rank]

    def offset(self, rank: int) -> int:
        """It begins with its own samples."""
        return 0


def intervals(positions: Iterable[int]) -> list[Interval]:
    """The same positions in the same order, as runs."""
    found: list[Interval] = []
    for one in positions:
        if found and found[-1][1] == one:
            found[-1] = (found[-1][0], one + 1)
        else:
            found.append((one, one + 1))
    return found


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
        hand_out: HandOut,
    ) -> None:
        self.drawn: deque[Part] = deque()
        self._rank, self._shares_for, self._order_of = rank, shares_for, order_of
        self.usable, self._lower, self._hand_out = usable, lower, hand_out
        self._cursor = Cursor()
        self._left: tuple[int, Positions] | None = None  # epoch, and what is left of it
        self._reserved: Part | None = None
        self._run: Interval = (0, 0)  # taken from the counter, and not made into batches yet
        self._exhausted = False

    def start(self, cursor: Cursor) -> None:
        """Forget what was drawn; the next pass is over the epoch of ``cursor``."""
        self._cursor, self._reserved, self._run, self._exhausted = cursor, None, (0, 0), False
        self.drawn.clear()

    @property
    def epoch(self) -> int:
        """That the next batch of this worker is from."""
        over = self._exhausted and not self.drawn
        return self._cursor.epoch + int(over)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order_of(epoch=self._cursor.epoch)[self._positions(self._cursor.epoch)]
        while (part := self._next()) is not None:
            self.drawn.append(part)
            yield order[part.start : part.end].tolist()

    def more(self) -> bool:
        """Whether this worker has another batch in the epoch; one that is not drawn yet is taken for it now."""
        if not self.drawn and self._reserved is None:
            self._reserved = self._take()
        return bool(self.drawn) or self._reserved is not None

    def undone(self) -> list[Interval]:
        """What this worker has taken and not handed to the user, as positions of the epoch."""
        parts = [*self.drawn, *([] if self._reserved is None else [self._reserved])]
        positions = self._positions(self._cursor.epoch)
        held = [*((part.start, part.end) for part in parts), self._run]
        return [run for first, end in held for run in intervals(positions[first:end].tolist())]

    def place(self, epoch: int) -> dict[str, Any]:
        """What is left of an epoch, for the loader's state."""
        own = self.undone() if epoch == self._cursor.epoch else []
        counter, undone = self._hand_out.told(epoch, own)
        positions = self._positions(epoch)
        counter = min(counter, len(positions))
        left = [*undone, *intervals(positions[counter:].tolist())]
        reached = int(positions[counter - 1]) + 1 if counter else self.usable - len(positions)
        return {"cursor": reached, "left": [list(run) for run in left]}

    def resume(self, epoch: int, left: Iterable[Sequence[int]]) -> bool:
        """The epoch has only these positions left; whether there are any."""
        self._hand_out.anew()
        positions = positions_of(left)
        self._left = (epoch, positions)
        self.start(Cursor(epoch=epoch))
        return len(positions) > 0

    def _positions(self, epoch: int) -> Positions:
        if self._left is not None and self._left[0] == epoch:
            return self._left[1]
        return np.arange(self.usable, dtype=np.int64)

    def _length(self, epoch: int) -> int:
        """Positions in the list, which is not made for that: a whole epoch's is as long as the data set."""
        left = self._left
        return len(left[1]) if left is not None and left[0] == epoch else self.usable

    def _next(self) -> Part | None:
        reserved, self._reserved = self._reserved, None
        return reserved if reserved is not None else self._take()

    def _take(self) -> Part | None:
        """The next batch, as large as this worker's share; a smaller one or none at the end."""
        shares = tuple(self._shares_for(self._cursor.iteration))
        share = shares[self._rank]
        start, end = self._run if self._run[0] < self._run[1] or not share else self._ask(shares)
        if start >= end:
            self._exhausted = True
            return None
        size = min(share or end - start, end - start)  # who is to have no more still uses what it has taken
        if end - start - size < self._lower:
            size = end - start
        self._run = (start + size, end)
        own = shares if size == share else (*shares[: self._rank], size, *shares[self._rank + 1 :])
        part = OwnPart(
            iteration=self._cursor.iteration,
            epoch=self._cursor.epoch,
            start=start,
            size=sum(own),
            shares=own,
            rank=self._rank,
        )
        self._cursor = self._cursor.after(part)
        return part

    def _ask(self, shares: tuple[int, ...]) -> Interval:
        """What the counter gives: whole batches, but at the end of the list; nothing where there is nothing left."""
        epoch, share = self._cursor.epoch, shares[self._rank]
        length = self._length(epoch)
        rounds = (length - self._run[1]) // (_ROUNDS * len(shares) * share)  # as of the last answer
        samples = share * max(1, min(_AT_ONCE, rounds))
        start = self._hand_out.take(epoch, samples)
        if start > 0 and length - start < self._lower:  # a rest that went with the batch before
            return (length, length)
        end = min(start + samples, length)
        return (start, length if length - end < self._lower else end)

"""Numbers that ride on a bucket of gradients, so that saying them costs no message of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from uneven.run.gradients.instep import mark
from uneven.run.lines.transport import Rows

_MOST_RANKS = 64
"""Of larger groups no rows ride: each adds a table of all to the sum, which is mostly zeros."""

_WIDE = (torch.float32, torch.float64)
"""Types of gradients in whose sum a number keeps its 24 bits."""


class Heard(NamedTuple):
    """What the others had to say of their own accord, the same on every rank.

    Attributes:
        called: whether anybody called.
        rows: rank → the row that it called with; empty where rows cannot ride, or everybody's rode.
    """

    called: bool
    rows: dict[int, list[float]]


NOTHING = Heard(False, {})


class Passenger:
    """A row of this rank's that rides with the next exchange, and in the end everybody's."""

    def __init__(self, row: Sequence[float]) -> None:
        self.row = np.array(row, np.float64)
        self._rows: Rows | None = None

    def arrive(self, rows: Rows) -> None:
        """Everybody's rows are there."""
        self._rows = rows

    def result(self) -> Rows | None:
        """See :class:`uneven.run.lines.transport.Pending`."""
        return self._rows


class _Stage:
    """A bucket with seats behind it: in the memory that is its own, which is made longer once, or in a copy where that
    cannot be, because an array of the user's looks at it for instance. What is summed up is as long in either case.

    Args:
        ranks: with a seat each, and two more for the call and the mark.
        length: of a row; 0 where no rows can ride.

    Attributes:
        bucket: that it was made for.
        whole: what is summed up.
        call, mark: shape (1,).
        table: the rows, shape (ranks, 2, length), in the same memory; None where there are none.
    """

    def __init__(self, bucket: torch.Tensor, ranks: int, length: int) -> None:
        size, more = bucket.numel(), 2 + 2 * ranks * length
        whole = _lengthened(bucket, more)
        self._apart = whole is None
        self.whole = torch.empty(size + more, dtype=bucket.dtype) if whole is None else whole
        seats = self.whole[size:].zero_()
        self._room = self.whole[:size]
        self.call = seats[:1]
        self.mark = seats[1:2]
        self._seats = seats.numpy() if length else None
        self.table = None if self._seats is None else self._seats[2:].reshape(ranks, 2, length)
        self.bucket = bucket
        self._taken = False

    def fill(self, mark: float, called: bool, row: npt.NDArray[np.float64] | None, rank: int) -> None:
        """Before the exchange."""
        if self._apart:
            self._room.copy_(self.bucket)
        if self._seats is None:
            self.mark.fill_(mark)
        else:
            self._seats[1] = mark
        if self._taken or called or row is not None:
            self.call.fill_(float(called))
            if self.table is not None:
                _sit(row, self.table, rank)
            self._taken = called or row is not None

    def empty(self) -> tuple[bool, bool]:
        """After the exchange: whether somebody called, and whether some were at another place than others."""
        if self._apart:
            self.bucket.copy_(self._room)
        call, mark = (self.call.item(), self.mark.item()) if self._seats is None else self._seats[:2]
        self._taken = self._taken or call > 0  # by others
        return bool(call > 0), bool(mark != 0.0)


def _lengthened(bucket: torch.Tensor, more: int) -> torch.Tensor | None:
    """The bucket and so many numbers behind it, in its own memory, which moves: every tensor that looks at it follows.
    None where it cannot be made longer."""
    memory = bucket.untyped_storage()
    if memory.nbytes() != bucket.nbytes or not memory.resizable():
        return None
    memory.resize_(memory.nbytes() + more * bucket.element_size())
    return torch.empty(0, dtype=bucket.dtype).set_(memory, 0, (bucket.numel() + more,))  # type: ignore[call-overload]


class Rider:
    """Carries behind the smallest bucket of an exchange whether anybody calls, with the callers' rows, now and then
    everybody's, and a mark of each one's place in the loop.

    For gradients in host memory, and in exchanges that are sums. Which bucket that is follows from the sizes of the
    last exchange, which are the same on every rank. A table of which each rank fills in its own row, and leaves the
    others zero, adds up to everybody's rows. Each number is carried as what its type holds of it and what is left of
    that, so that 48 bits arrive. Nobody knows before whether somebody will call, so the table rides in every exchange:
    a few hundred numbers.

    Args:
        rank, size: of the group whose gradients are added up.
        length: of a row.

    Attributes:
        apart: whether those of the last exchange were at different places; see :mod:`uneven.run.gradients.instep`.
    """

    def __init__(self, rank: int, size: int, length: int) -> None:
        self.heard = NOTHING
        self.apart = False
        self._call: npt.NDArray[np.float64] | None = None
        self._rank = rank
        self._size = size
        self._length = length
        self._buckets: list[torch.Tensor] = []  # of the last exchange, in order, those of this one in their places
        self._place = 0  # of the next bucket of this exchange
        self._changed = False  # whether one of them was another in the last exchange
        self._index = -1  # the place of the one that is ridden on
        self._wide = False  # whether it can carry rows
        self._passenger: Passenger | None = None
        self._stage: _Stage | None = None
        self._mounted = False

    def carry(self, row: Sequence[float]) -> Passenger | None:
        """Take this rank's row along with the next exchange; every rank says so before it.

        Returns:
            What will hold everybody's rows; None where they cannot ride, which is the same on every rank.
        """
        if not self._seats() or self._index < 0 or self._passenger is not None:
            return None
        self._passenger = Passenger(row)
        return self._passenger

    def call(self, row: Sequence[float]) -> None:
        """Let everybody hear in the next exchange that this rank calls, and its row with that, which may be empty,
        where rows can ride."""
        self._call = np.array(row, np.float64)

    def mount(self, bucket: torch.Tensor, epoch: int, iteration: int) -> torch.Tensor:
        """What is to be summed up instead of ``bucket``: itself, or with more numbers at its end.

        Args:
            epoch, iteration: of the batch that the gradients are of, the same on every rank if all is well.
        """
        place, self._place = self._place, self._place + 1
        if place >= len(self._buckets) or self._buckets[place] is not bucket:
            self._buckets[place:], self._changed = [bucket], True
        if place != self._index:
            return bucket
        stage = self._stage
        if stage is None or stage.bucket is not bucket:
            stage = self._stage = _Stage(bucket, self._size, self._seats())
        row = self._call if self._passenger is None else self._passenger.row
        at = mark(epoch, iteration, self._rank, self._size, bucket.dtype)
        stage.fill(at, self._call is not None, row, self._rank)
        self._call, self._mounted = None, True
        return stage.whole

    def _seats(self) -> int:
        """Numbers of a row that can ride."""
        return self._length if self._wide and self._size <= _MOST_RANKS else 0

    def dismount(self) -> None:
        """All sums are there: give the bucket its own, hear whether anybody called, and let a passenger off."""
        if self._mounted and self._stage is not None:
            called, self.apart = self._stage.empty()
            if called or self._passenger is not None:
                self._listen(self._stage, called)
        if self._changed or self._place != len(self._buckets):
            del self._buckets[self._place :]
            self._index = min(range(self._place), key=lambda place: self._buckets[place].nbytes)
            self._wide = self._buckets[self._index].dtype in _WIDE
        self._place, self._changed, self._mounted = 0, False, False

    def _listen(self, stage: _Stage, called: bool) -> None:
        if self._passenger is not None and stage.table is not None:
            self._passenger.arrive(stage.table.sum(1, dtype=np.float64))
            self._passenger = None
            self.heard = Heard(called or self.heard.called, {})  # what was said before has been said again
        elif called:
            rows = {} if stage.table is None else _said(stage.table.sum(1, dtype=np.float64))
            self.heard = Heard(True, self.heard.rows | rows)

    def take(self) -> Heard | None:
        """What was heard since this was last asked, the same on every rank; None where nobody can call."""
        heard, self.heard = self.heard, NOTHING
        return heard if self._index >= 0 else None


def _said(rows: Rows) -> dict[int, list[float]]:
    """Of those that are not all zeros, by rank."""
    return {int(rank): rows[rank].tolist() for rank in np.flatnonzero(rows.any(axis=1))}


def _sit(row: npt.NDArray[np.float64] | None, table: npt.NDArray[np.floating], rank: int) -> None:
    table[:] = 0.0
    if row is None or not len(row):
        return
    with np.errstate(over="ignore", invalid="ignore"):  # an absurd number arrives as one, and is judged there
        table[rank, 0] = row
        left = row - table[rank, 0]
    table[rank, 1] = np.where(np.isfinite(left), left, 0.0)

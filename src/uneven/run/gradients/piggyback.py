"""Piggybacks a few numbers on a bucket of gradients, so that they cost no message of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from uneven.run.gradients.instep import mark
from uneven.run.lines.transport import Rows

MOST_RANKS = 64
"""Larger groups piggyback no rows: each rank adds a table of all ranks to the sum, which is mostly zeros."""

WIDE = (torch.float32, torch.float64)
"""Types of gradients in whose sum a number keeps its 24 bits."""


class Heard(NamedTuple):
    """What the others had to say of their own accord, the same on every rank.

    Attributes:
        called: whether anybody called.
        rows: rank → the row that it called with; empty where rows do not fit, or where all ranks sent theirs.
    """

    called: bool
    rows: dict[int, list[float]]


NOTHING = Heard(False, {})


class PendingRows:
    """This rank's row, sent with the next exchange; once that has ended, the rows of all ranks."""

    def __init__(self, row: Sequence[float]) -> None:
        self.row = np.array(row, np.float64)
        self._rows: Rows | None = None

    def complete(self, rows: Rows) -> None:
        """The rows of all ranks are there; shape (ranks, length of a row)."""
        self._rows = rows

    def result(self) -> Rows | None:
        return self._rows


class _ExtendedBucket:
    """A bucket with slots for more numbers at its end: in its own memory, made longer once, or in a copy where that
    is impossible, for instance because an array of the user's shares it. The sum is equally long in both cases.

    Args:
        ranks: each has a slot; two more are for the call and the mark.
        length: of a row; 0 where rows do not fit.

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
        slots = self.whole[size:].zero_()
        self._gradients = self.whole[:size]
        self.call = slots[:1]
        self.mark = slots[1:2]
        self._slots = slots.numpy() if length else None
        self.table = None if self._slots is None else self._slots[2:].reshape(ranks, 2, length)
        self.bucket = bucket
        self._used = False

    def fill(self, mark: float, called: bool, row: npt.NDArray[np.float64] | None, rank: int) -> None:
        if self._apart:
            self._gradients.copy_(self.bucket)
        if self._slots is None:
            self.mark.fill_(mark)
        else:
            self._slots[1] = mark
        if self._used or called or row is not None:
            self.call.fill_(float(called))
            if self.table is not None:
                fill_row(row, self.table, rank)
            self._used = called or row is not None

    def empty(self) -> tuple[bool, bool]:
        """After the exchange: whether somebody called, and whether some were at another place than others."""
        if self._apart:
            self.bucket.copy_(self._gradients)
        call, mark = (self.call.item(), self.mark.item()) if self._slots is None else self._slots[:2]
        self._used = self._used or call > 0  # by others
        return bool(call > 0), bool(mark != 0.0)


def _lengthened(bucket: torch.Tensor, more: int) -> torch.Tensor | None:
    """The bucket and so many numbers behind it, in its own memory, which moves: every tensor that looks at it follows.
    None where it cannot be made longer."""
    memory = bucket.untyped_storage()
    if memory.nbytes() != bucket.nbytes or not memory.resizable():
        return None
    memory.resize_(memory.nbytes() + more * bucket.element_size())
    return torch.empty(0, dtype=bucket.dtype).set_(memory, 0, (bucket.numel() + more,))  # type: ignore[call-overload]


class Piggyback:
    """Carries in slots behind the smallest bucket of an exchange whether any rank calls, with the callers' rows, now
    and then the rows of all ranks, and a mark of each one's place in the loop.

    For gradients in host memory, and in exchanges that are sums. Which bucket that is follows from the sizes of the
    last exchange, which are the same on every rank. A table of which each rank fills in its own row, and leaves the
    others zero, adds up to everybody's rows. Each number is carried as what its type holds of it and what is left of
    that, so that 48 bits arrive. No rank knows beforehand whether another will call, so every exchange carries the
    table: a few hundred numbers.

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
        self._index = -1  # the place of the one with the slots
        self._wide = False  # whether it can carry rows
        self._pending: PendingRows | None = None
        self._extended: _ExtendedBucket | None = None
        self._attached = False

    def carry(self, row: Sequence[float]) -> PendingRows | None:
        """Take this rank's row along with the next exchange; every rank says so before it.

        Returns:
            What will hold the rows of all ranks; None where rows do not fit, which is the same on every rank.
        """
        if not self._row_slots() or self._index < 0 or self._pending is not None:
            return None
        self._pending = PendingRows(row)
        return self._pending

    def call(self, row: Sequence[float]) -> None:
        """Let everybody hear in the next exchange that this rank calls, and its row with that, which may be empty,
        where rows fit."""
        self._call = np.array(row, np.float64)

    def attach(self, bucket: torch.Tensor, epoch: int, iteration: int) -> torch.Tensor:
        """What is to be summed up instead of ``bucket``, shape (numbers,): itself, or with more numbers at its end.

        Args:
            epoch, iteration: of the batch that the gradients are of, the same on every rank if all is well.
        """
        place, self._place = self._place, self._place + 1
        if place >= len(self._buckets) or self._buckets[place] is not bucket:
            self._buckets[place:], self._changed = [bucket], True
        if place != self._index:
            return bucket
        extended = self._extended
        if extended is None or extended.bucket is not bucket:
            extended = self._extended = _ExtendedBucket(bucket, self._size, self._row_slots())
        row = self._call if self._pending is None else self._pending.row
        at = mark(epoch, iteration, self._rank, self._size, bucket.dtype)
        extended.fill(at, self._call is not None, row, self._rank)
        self._call, self._attached = None, True
        return extended.whole

    def _row_slots(self) -> int:
        """Numbers of a row that fit: all or none."""
        return self._length if self._wide and self._size <= MOST_RANKS else 0

    def collect(self) -> None:
        """All sums are there: give the bucket its own, hear whether any rank called, and complete pending rows."""
        if self._attached and self._extended is not None:
            called, self.apart = self._extended.empty()
            if called or self._pending is not None:
                self._listen(self._extended, called)
        if self._changed or self._place != len(self._buckets):
            del self._buckets[self._place :]
            self._index = min(range(self._place), key=lambda place: self._buckets[place].nbytes)
            self._wide = self._buckets[self._index].dtype in WIDE
        self._place, self._changed, self._attached = 0, False, False

    def _listen(self, extended: _ExtendedBucket, called: bool) -> None:
        if self._pending is not None and extended.table is not None:
            self._pending.complete(extended.table.sum(1, dtype=np.float64))
            self._pending = None
            self.heard = Heard(called or self.heard.called, {})  # what was said before has been said again
        elif called:
            rows = {} if extended.table is None else rows_said(extended.table.sum(1, dtype=np.float64))
            self.heard = Heard(True, self.heard.rows | rows)

    def take(self) -> Heard | None:
        """What was heard since this was last asked, the same on every rank; None where nobody can call."""
        heard, self.heard = self.heard, NOTHING
        return heard if self._index >= 0 else None


def rows_said(rows: Rows) -> dict[int, list[float]]:
    """The rows that are not all zeros, by rank."""
    return {int(rank): rows[rank].tolist() for rank in np.flatnonzero(rows.any(axis=1))}


def fill_row(row: npt.NDArray[np.float64] | None, table: npt.NDArray[np.floating], rank: int) -> None:
    table[:] = 0.0
    if row is None or not len(row):
        return
    with np.errstate(over="ignore", invalid="ignore"):  # an absurd number arrives as one, and is judged there
        table[rank, 0] = row
        left = row - table[rank, 0]
    table[rank, 1] = np.where(np.isfinite(left), left, 0.0)

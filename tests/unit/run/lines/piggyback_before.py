"""Transport of a few numbers in a bucket of gradients, which saves a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from uneven.run.lines.in_step import mark
from uneven.run.lines.transport import Rows

MOST_RANKS = 64
"""The largest group whose buckets carry rows: each rank adds a table of all ranks to the sum, mostly zeros."""

WIDE = (torch.float32, torch.float64)
"""Gradient types whose sum keeps the 24 bits of a number."""


class Heard(NamedTuple):
    """The calls of other ranks, the same on every rank.
    ``rows`` are those of the callers; empty if rows do not fit, or if all ranks sent theirs."""

    called: bool
    rows: dict[int, list[float]]


NOTHING = Heard(False, {})


class PendingRows:
    """This rank's row, sent with the next exchange; after that, the rows of all ranks."""

    def __init__(self, row: Sequence[float]) -> None:
        self.row = np.array(row, np.float64)
        self._rows: Rows | None = None

    def complete(self, rows: Rows) -> None:
        self._rows = rows

    def result(self) -> Rows | None:
        return self._rows


class _ExtendedBucket:
    """A bucket with slots for a call, a mark and a table of rows, shape (ranks, 2, length), at its end."""

    def __init__(self, bucket: torch.Tensor, ranks: int, length: int) -> None:
        size = bucket.numel()
        more = 2 + 2 * ranks * length
        # A copy holds both if the memory cannot grow, for example because a user's array shares it. The sum then still
        # has the same length as on other ranks.
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
        """Return, after the exchange, whether a rank called, and whether ranks were at different places."""
        if self._apart:
            self.bucket.copy_(self._gradients)
        call, mark = (self.call.item(), self.mark.item()) if self._slots is None else self._slots[:2]
        self._used = self._used or call > 0  # the sum of other ranks must be cleared next time
        return bool(call > 0), bool(mark != 0.0)


def _lengthened(bucket: torch.Tensor, more: int) -> torch.Tensor | None:
    """Return the bucket followed by ``more`` numbers, in its own storage; None if that cannot be resized."""
    memory = bucket.untyped_storage()
    if memory.nbytes() != bucket.nbytes or not memory.resizable():
        return None
    # The memory moves, but every tensor on this storage, DDP's views included, follows it.
    memory.resize_(memory.nbytes() + more * bucket.element_size())
    return torch.empty(0, dtype=bucket.dtype).set_(memory, 0, (bucket.numel() + more,))  # type: ignore[call-overload]


class Piggyback:
    """Slots behind the smallest bucket of an exchange: calls of ranks with their rows, and a mark of each rank's place.

    It needs gradients in host memory, and exchanges that are sums. Each rank fills its own row of a table and leaves
    the others zero, so the sum holds all rows. No rank knows beforehand if another will call, so every exchange carries
    the table: a few hundred numbers. ``apart`` is true if the marks of :mod:`uneven.run.lines.in_step` did not
    cancel.
    """

    def __init__(self, rank: int, size: int, length: int) -> None:
        self.heard = NOTHING
        self.apart = False
        self._call: npt.NDArray[np.float64] | None = None
        self._rank = rank
        self._size = size
        self._length = length
        self._buckets: list[torch.Tensor] = []  # of the last exchange, in order; this exchange's replace them
        self._place = 0  # of the next bucket of this exchange
        self._changed = False  # whether a bucket differs from the last exchange's
        self._index = -1  # the place of the bucket with the slots
        self._wide = False  # whether that bucket can carry rows
        self._pending: PendingRows | None = None
        self._extended: _ExtendedBucket | None = None
        self._attached = False

    def carry(self, row: Sequence[float]) -> PendingRows | None:
        """Send this rank's row with the next exchange; every rank must call this before it.
        Returns the object for the rows of all ranks; None if rows do not fit, which is the same on every rank."""
        if not self._row_slots() or self._index < 0 or self._pending is not None:
            return None
        self._pending = PendingRows(row)
        return self._pending

    def call(self, row: Sequence[float]) -> None:
        """Signal to all ranks in the next exchange that this rank calls, with its row if rows fit; it may be empty."""
        self._call = np.array(row, np.float64)

    def attach(self, bucket: torch.Tensor, epoch: int, iteration: int) -> torch.Tensor:
        """Return the tensor to sum instead of ``bucket``, flat (numbers,): the bucket itself, or a longer one."""
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
        return self._length if self._wide and self._size <= MOST_RANKS else 0

    def collect(self) -> None:
        """Restore the buckets after all sums have arrived, note calls, and complete pending rows."""
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
            self.heard = Heard(called or self.heard.called, {})  # the new rows supersede those of earlier calls
        elif called:
            rows = {} if extended.table is None else rows_said(extended.table.sum(1, dtype=np.float64))
            self.heard = Heard(True, self.heard.rows | rows)

    def take(self) -> Heard | None:
        """Return the calls since the last time, the same on every rank; None if ranks cannot call yet."""
        heard, self.heard = self.heard, NOTHING
        return heard if self._index >= 0 else None


def rows_said(rows: Rows) -> dict[int, list[float]]:
    """Return the rows that are not all zeros, by rank; ``rows`` has shape (ranks, length of a row)."""
    return {int(rank): rows[rank].tolist() for rank in np.flatnonzero(rows.any(axis=1))}


def fill_row(row: npt.NDArray[np.float64] | None, table: npt.NDArray[np.floating], rank: int) -> None:
    """Write ``row`` (length,) into ``table`` (ranks, 2, length) at ``rank``, and zeros elsewhere."""
    # Each number is sent as its rounded value and the remainder, so 48 bits arrive through a float32 sum.
    table[:] = 0.0
    if row is None or not len(row):
        return
    with np.errstate(over="ignore", invalid="ignore"):  # the receiver validates numbers, this rank does not
        table[rank, 0] = row
        left = row - table[rank, 0]
    table[rank, 1] = np.where(np.isfinite(left), left, 0.0)

"""Numbers that ride on a bucket of gradients, so that saying them costs no message of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from uneven.transport.base import Rows

_LARGEST_BYTES = 1 << 20
"""A bucket up to this size is copied to make room for the numbers; DDP's first bucket is never larger unless a single
parameter is. Where all are larger, nothing rides."""

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
        """See :class:`uneven.transport.base.Pending`."""
        return self._rows


class _Stage(NamedTuple):
    """A copy of a bucket with seats behind it."""

    whole: torch.Tensor
    room: torch.Tensor
    call: torch.Tensor  # shape (1,)
    table: npt.NDArray[np.floating] | None  # the rows, shape (ranks, 2, length of a row), in the same memory

    @classmethod
    def of(cls, bucket: torch.Tensor, ranks: int, length: int) -> _Stage:
        size = bucket.numel()
        whole = torch.empty(size + 1 + 2 * ranks * length, dtype=bucket.dtype)
        table = whole[size + 1 :].view(ranks, 2, length).numpy() if length else None
        return cls(whole, whole[:size], whole[size : size + 1], table)


class Rider:
    """Carries on the smallest bucket of an exchange whether anybody calls, with the callers' rows, and now and then
    everybody's.

    For gradients in host memory, and in exchanges that are sums. Which bucket that is follows from the sizes of the
    last exchange, which are the same on every rank. A table of which each rank fills in its own row, and leaves the
    others zero, adds up to everybody's rows. Each number is carried as what its type holds of it and what is left of
    that, so that 48 bits arrive. Nobody knows before whether somebody will call, so the table rides in every exchange:
    a few hundred numbers.

    Args:
        rank, size: of the group whose gradients are added up.
        length: of a row.
    """

    def __init__(self, rank: int, size: int, length: int) -> None:
        self.heard = NOTHING
        self._call: npt.NDArray[np.float64] | None = None
        self._rank, self._size, self._length = rank, size, length
        self._sizes: list[int] = []  # bytes of each bucket of this exchange, in order
        self._types: list[torch.dtype] = []
        self._index = -1  # the bucket of this exchange that is ridden on
        self._wide = False  # whether it can carry rows
        self._passenger: Passenger | None = None
        self._bucket: torch.Tensor | None = None  # the one that is ridden on now
        self._stage: _Stage | None = None

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

    def mount(self, bucket: torch.Tensor) -> torch.Tensor:
        """What is to be summed up instead of ``bucket``: itself, or a copy with more numbers at its end."""
        index = len(self._sizes)
        self._sizes.append(bucket.numel() * bucket.element_size())
        self._types.append(bucket.dtype)
        if index != self._index:
            return bucket
        stage = self._stage_for(bucket)
        stage.room.copy_(bucket)
        stage.call.fill_(float(self._call is not None))
        if stage.table is not None:
            _sit(self._call if self._passenger is None else self._passenger.row, stage.table, self._rank)
        self._call = None
        self._bucket = bucket
        return stage.whole

    def _seats(self) -> int:
        """Numbers of a row that can ride."""
        return self._length if self._wide and self._size <= _MOST_RANKS else 0

    def _stage_for(self, bucket: torch.Tensor) -> _Stage:
        stage = self._stage
        if stage is None or stage.room.numel() != bucket.numel() or stage.room.dtype != bucket.dtype:
            stage = self._stage = _Stage.of(bucket, self._size, self._seats())
        return stage

    def dismount(self) -> None:
        """All sums are there: give the bucket its own, hear whether anybody called, and let a passenger off."""
        if self._bucket is not None and self._stage is not None:
            self._bucket.copy_(self._stage.room)
            self._listen(self._stage)
        smallest = min(self._sizes)
        self._index = self._sizes.index(smallest) if smallest <= _LARGEST_BYTES else -1
        self._wide = self._types[self._index] in _WIDE
        self._sizes, self._types, self._bucket = [], [], None

    def _listen(self, stage: _Stage) -> None:
        called = stage.call.item() > 0
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

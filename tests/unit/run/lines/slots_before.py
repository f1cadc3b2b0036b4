"""Numbers behind the last bucket of an elastic exchange, so that they need no message.

They are those of :class:`~piggyback_before.Piggyback`, and one announcement of each member for the end of
this step. The memory belongs to the exchange, so DDP's buckets do not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
from piggyback_before import MOST_RANKS, NOTHING, WIDE, Heard, PendingRows, fill_row, rows_said

from uneven.run.lines.abortable_group import AbortableGroup
from uneven.run.lines.in_step import mark

# No announcement; this member leaves after this step; a worker waits to join; it only takes part, until all announce
# this.
NONE, LEAVING, JOIN_PENDING, IDLE = 0.0, 1.0, 2.0, 3.0


class Slots:
    """The announcements and reports of one exchange, with the methods of ``Piggyback``."""

    def __init__(self, length: int) -> None:
        self.apart = False  # whether members were at different places in the last exchange
        # by place, in the last exchange
        self.announced: tuple[float, ...] = ()  # what the members announced in it, by place
        self._length = length  # numbers in a row of a report
        self._place = 0
        self._size = 1
        self._call: np.ndarray | None = None
        self._pending: PendingRows | None = None
        self._heard = NOTHING

    def renew(self, place: int, size: int) -> None:
        """Start with other members and drop what the old ones had under way."""
        self._place, self._size = place, size
        self._call, self._pending, self._heard = None, None, NOTHING

    def count(self, dtype: torch.dtype) -> int:
        """Return how many numbers follow a bucket of that type."""
        return 2 + self._size + 2 * self._size * self._row(dtype)

    def carry(self, row: Sequence[float]) -> PendingRows | None:
        """Add a row to the next exchange, at most one at a time."""
        if self._size > MOST_RANKS or self._pending is not None:
            return None
        self._pending = PendingRows(row)
        return self._pending

    def call(self, row: Sequence[float]) -> None:
        self._call = np.array(row, np.float64)

    def fill(self, slots: torch.Tensor, epoch: int, iteration: int, announces: float) -> None:
        """Write this member's numbers before the exchange; ``slots`` is on the host, of shape ``(count,)``."""
        numbers, size = slots.numpy(), self._size
        numbers[:] = 0.0
        # The marks of members at the same place sum to 0; see `instep`.
        numbers[0] = mark(epoch, iteration, self._place, size, slots.dtype)
        numbers[1] = float(self._call is not None)
        numbers[2 + self._place] = announces
        row = self._call if self._pending is None else self._pending.row
        if self._row(slots.dtype):
            fill_row(row, numbers[2 + size :].reshape(size, 2, self._length), self._place)
        self._call = None

    def tell(self, slots: torch.Tensor, circle: AbortableGroup) -> Telling:
        """Start the exchange of filled slots of shape ``(count,)`` that follow no bucket."""
        # All-to-all instead of a sum: a sum goes round a ring, and on shared cores each of its messages wakes all
        # workers in turn.
        return Telling(slots, self._place, circle)

    def read(self, slots: torch.Tensor) -> None:
        """Read ``slots``, shape ``(count,)``, after an exchange of the same members as in :meth:`fill`."""
        numbers, size = slots.numpy(), (slots.numel() - 2) // (1 + 2 * self._row(slots.dtype))
        self.apart, called = bool(numbers[0] != 0.0), bool(numbers[1] > 0.0)
        self.announced = tuple(numbers[2 : 2 + size].tolist())
        # Each number travels in two parts, so that 48 of its bits arrive if the slots are float32.
        table = numbers[2 + size :].reshape(size, 2, -1).sum(1, dtype=np.float64) if self._row(slots.dtype) else None
        if self._pending is not None and table is not None:
            self._pending.complete(table)
            self._pending = None
            self._heard = Heard(called or self._heard.called, {})
        elif called:
            rows = {} if table is None else rows_said(table)
            self._heard = Heard(True, self._heard.rows | rows)

    def take(self) -> Heard:
        heard, self._heard = self._heard, NOTHING
        return heard

    def _row(self, dtype: torch.dtype) -> int:
        return self._length if dtype in WIDE and self._size <= MOST_RANKS else 0


class Telling:
    """The exchange of all members' slots, shape ``(count,)``; has ``wait`` as an exchange does."""

    def __init__(self, slots: torch.Tensor, place: int, circle: AbortableGroup) -> None:
        self._slots: np.ndarray = slots.numpy()
        own = np.concatenate((self._slots[:2], self._slots[2 + place, None], self._table(circle.size)[place]))
        self._said = np.empty((circle.size, own.size), own.dtype)
        sizes = [own.size] * circle.size
        sent = np.tile(own, circle.size)
        self._work = circle.swap(torch.from_numpy(sent), torch.from_numpy(self._said.reshape(-1)), sizes, sizes)

    def wait(self, within: timedelta) -> None:
        """Wait and fill the slots with the numbers of all; raises RuntimeError after a failure or a time-out."""
        self._work.wait(within)
        said, size = self._said, len(self._said)
        self._slots[:2] = said[:, :2].sum(0)
        self._slots[2 : 2 + size] = said[:, 2]
        self._table(size)[:] = said[:, 3:]

    def _table(self, size: int) -> np.ndarray:
        return self._slots[2 + size :].reshape(size, -1)

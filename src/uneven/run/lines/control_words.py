"""A few numbers of each worker that travel with an exchange: calls for reports, reports, announcements, and a mark.

The layout is::

    mark · number of calls · an announcement of each member, if they come and go · table (members, 2, length of a row)

The mark is that of :mod:`uneven.run.lines.in_step`. There are two placements. :class:`BehindBucket` puts the words
behind the smallest bucket of gradients, which saves a message. :class:`WordsMessage` sends them separately.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.run.lines.abortable_group import AbortableGroup
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.in_step import mark
from uneven.run.lines.transport import Rows

MOST_RANKS = 64
"""The largest group whose exchanges carry rows: each rank adds a table of all ranks to the sum, mostly zeros."""

# No announcement; this member leaves after this step; a worker waits to join; it only takes part, until all announce
# this.
NONE, LEAVING, JOIN_PENDING, IDLE = 0.0, 1.0, 2.0, 3.0

_WIDE = (torch.float32, torch.float64)  # types whose sum keeps the 24 bits of a number


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
        self.rows: Rows | None = None

    def result(self) -> Rows | None:
        return self.rows


class ControlWords:
    """One worker's words in the next exchange, and those of all in the exchanges before.

    Each worker fills its own row of the table and leaves the others zero, so a sum holds all rows. No worker knows
    beforehand if another will call, so every exchange carries the table: a few hundred numbers.

    Args:
        length: numbers in a row of a report.
        dtype: type of the words; None until it is known, and rows cannot be sent before.
        announces: whether each member announces something in each exchange.

    Attributes:
        apart: whether workers were at different places in the last exchange.
        announced: the members' announcements in it, by place.
    """

    def __init__(
        self, place: int, size: int, length: int, dtype: torch.dtype | None = None, *, announces: bool = False
    ) -> None:
        self.dtype = dtype
        self.apart = False
        self.announced: tuple[float, ...] = ()
        self._length = length
        self._announces = announces
        self.renew(place, size)

    def renew(self, place: int, size: int) -> None:
        """Start with other members and drop what the old ones had under way."""
        self._place, self._size = place, size
        self._call: npt.NDArray[np.float64] | None = None
        self._pending: PendingRows | None = None
        self._heard = NOTHING

    def carry(self, row: Sequence[float]) -> PendingRows | None:
        """Send this worker's row with the next exchange, at most one at a time; every worker must call this before it.
        Returns the object for the rows of all; None if rows do not fit, which is the same on every worker."""
        if self._pending is not None or self.dtype is None or not self._row(self.dtype):
            return None
        self._pending = PendingRows(row)
        return self._pending

    def call(self, row: Sequence[float]) -> None:
        """Signal to all workers in the next exchange that this one calls, with its row if rows fit; it may be empty."""
        self._call = np.array(row, np.float64)

    def take(self) -> Heard | None:
        """Return the calls since the last time, the same on every worker; None if workers cannot call yet."""
        heard, self._heard = self._heard, NOTHING
        return heard if self.dtype is not None else None

    def count(self, dtype: torch.dtype) -> int:
        """Return the number of words of that type."""
        return 2 + self._size * (self._announces + 2 * self._row(dtype))

    def _row(self, dtype: torch.dtype) -> int:
        return self._length if dtype in _WIDE and self._size <= MOST_RANKS else 0

    def write(self, words: Tensor, at: RoundPlace, announcement: float = NONE) -> None:
        """Write this worker's numbers before the exchange into ``words``, in host memory, shape (count,)."""
        numbers: Any = words.numpy() if words.dtype in _WIDE else words
        numbers[:] = 0.0
        numbers[0] = mark(at.epoch, at.place, self._place, self._size, words.dtype)
        numbers[1] = float(self._call is not None)
        if self._announces:
            numbers[2 + self._place] = announcement
        row = self._call if self._pending is None else self._pending.row
        if row is not None and len(row) and self._row(words.dtype):
            # Each number is sent as its rounded value and the remainder, so 48 bits arrive through a float32 sum.
            mine = self._table(numbers)[self._place]
            with np.errstate(over="ignore", invalid="ignore"):  # the receiver validates numbers, this worker does not
                mine[0] = row
                left = row - mine[0]
            mine[1] = np.where(np.isfinite(left), left, 0.0)
        self._call = None

    def read(self, words: Tensor) -> None:
        """Read ``words``, shape (count,), after an exchange of the same members as in :meth:`write`."""
        numbers: Any = words.numpy() if words.dtype in _WIDE else words
        self.apart, called = bool(numbers[0] != 0.0), bool(numbers[1] > 0.0)
        if self._announces:
            self.announced = tuple(numbers[2 : 2 + self._size].tolist())
        if not called and self._pending is None:
            return
        rows = self._table(numbers).sum(1, dtype=np.float64) if self._row(words.dtype) else None
        if self._pending is not None and rows is not None:
            self._pending.rows, self._pending = rows, None
            self._heard = Heard(called or self._heard.called, {})  # the new rows supersede those of earlier calls
        elif called:
            said = {} if rows is None else {rank: row.tolist() for rank, row in enumerate(rows) if row.any()}
            self._heard = Heard(True, self._heard.rows | said)

    def _table(self, numbers: Any) -> Any:
        return numbers[2 + self._size * self._announces :].reshape(self._size, 2, self._length)


class BehindBucket:
    """Places words behind the smallest bucket of each exchange.

    It needs gradients in host memory. The first exchange of any buckets carries no words, because the smallest one is
    not known yet.
    """

    def __init__(self, words: ControlWords) -> None:
        self._words = words
        self._buckets: list[Tensor] = []  # of the last exchange, in order; this exchange's replace them
        self._place = 0  # of the next bucket of this exchange
        self._changed = False  # whether a bucket differs from the last exchange's
        self._index = -1  # the place of the bucket with the words
        self._bucket: Tensor | None = None  # that bucket, in `_whole`, or apart from it
        self._apart = False
        self._whole = self._tail = torch.empty(0)
        self._attached = False

    def attach(self, bucket: Tensor, at: RoundPlace) -> Tensor:
        """Return the tensor to sum instead of ``bucket``, flat (numbers,): the bucket itself, or a longer one."""
        place, self._place = self._place, self._place + 1
        if place >= len(self._buckets) or self._buckets[place] is not bucket:
            self._buckets[place:], self._changed = [bucket], True
        if place != self._index:
            return bucket
        if self._bucket is not bucket:
            count = self._words.count(bucket.dtype)
            # A copy holds both if the memory cannot grow, for example because a user's array shares it. The sum then
            # still has the same length as on other ranks.
            longer = _lengthened(bucket, count)
            self._bucket, self._apart = bucket, longer is None
            self._whole = torch.empty(bucket.numel() + count, dtype=bucket.dtype) if longer is None else longer
            self._tail = self._whole[bucket.numel() :]
        if self._apart:
            self._whole[: bucket.numel()] = bucket
        self._words.write(self._tail, at)
        self._attached = True
        return self._whole

    def collect(self) -> None:
        """Restore the buckets after all sums have arrived, and read the words."""
        if self._attached and self._bucket is not None:
            if self._apart:
                self._bucket.copy_(self._whole[: self._bucket.numel()])
            self._words.read(self._tail)
        if self._changed or self._place != len(self._buckets):
            del self._buckets[self._place :]
            floats = [place for place in range(self._place) if self._buckets[place].is_floating_point()]
            self._index = min(floats, key=lambda place: self._buckets[place].nbytes)
            self._words.dtype = self._buckets[self._index].dtype
        self._place, self._changed, self._attached = 0, False, False


def _lengthened(bucket: Tensor, more: int) -> Tensor | None:
    """Return the bucket followed by ``more`` numbers, in its own storage; None if that cannot be resized."""
    memory = bucket.untyped_storage()
    if memory.nbytes() != bucket.nbytes or not memory.resizable():
        return None
    # The memory moves, but every tensor on this storage, DDP's views included, follows it.
    memory.resize_(memory.nbytes() + more * bucket.element_size())
    return torch.empty(0, dtype=bucket.dtype).set_(memory, 0, (bucket.numel() + more,))  # type: ignore[call-overload]


class WordsMessage:
    """The exchange of all members' words with announcements, shape (count,); has ``wait`` as an exchange does."""

    # All-to-all instead of a sum: a sum goes round a ring, and on shared cores each of its messages wakes all workers
    # in turn.
    def __init__(self, words: Tensor, place: int, circle: AbortableGroup) -> None:
        self._words: np.ndarray = words.numpy()
        own = np.concatenate((self._words[:2], self._words[2 + place, None], self._table(circle.size)[place]))
        self._said = np.empty((circle.size, own.size), own.dtype)
        sizes = [own.size] * circle.size
        sent = np.tile(own, circle.size)
        self._work = circle.swap(torch.from_numpy(sent), torch.from_numpy(self._said.reshape(-1)), sizes, sizes)

    def wait(self, within: timedelta) -> None:
        """Wait and fill the words with the numbers of all; raises RuntimeError after a failure or a time-out."""
        self._work.wait(within)
        said, size = self._said, len(self._said)
        self._words[:2] = said[:, :2].sum(0)
        self._words[2 : 2 + size] = said[:, 2]
        self._table(size)[:] = said[:, 3:]

    def _table(self, size: int) -> np.ndarray:
        return self._words[2 + size :].reshape(size, -1)

"""The cache of rows on disk: which rows are in memory, and which ones make room for others.

::

    id ──hash──▶ set of WAYS slots; the row is in one of them, or on disk alone

A row's value combines frequency and recency (LRFU, Lee et al., 2001). Each lookup counts 1, and all counts halve in the
time of HALF_LIFE lookups per slot. A stored value is the logarithm of a count at time 0, so it changes with lookups
alone. A new row evicts the least valuable one of its set, or stays on disk if it is worth less. So a scan of rare ids
does not displace frequent ones.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.embedding.pure.dynamic_ids import bucket
from uneven.embedding.pure.row_optimizers import Floats, Ids

Slots = npt.NDArray[np.int64]

WAYS = 16
HALF_LIFE = 8
UNCOUNTED = 2.0**-8
"""The weight of a lookup that is not counted, as in an evaluation: its row takes a free slot, or that of an old row."""


def slot_bytes(dim: int) -> int:
    """Return the bytes of a row in memory: its numbers and Adagrad's sum; id, value and mark in the cache."""
    return 4 * (dim + 1) + 9


class RowCache:
    """The rows in memory. ``slots`` is a multiple of ``WAYS``.

    Attributes:
        ids: row number in each slot, shape (sets, WAYS) int32; −1 if it is free.
        changed: whether the row in memory is newer than the one on disk, shape (slots,).
    """

    def __init__(self, slots: int) -> None:
        self.ids = np.full((slots // WAYS, WAYS), -1, np.int32)
        self.changed = np.zeros(slots, bool)
        self._value = np.full(slots, -np.inf, np.float32)
        self._now = 0.0  # half-lives so far

    def find(self, ids: Ids) -> Slots:
        """Return the slots (n,) of ids (n,); −1 for rows that are not in memory."""
        found = np.full(len(ids), -1)
        if not self._now:  # no row was ever placed: a table is being loaded
            return found
        sets = bucket(ids.astype(np.int64), len(self.ids))
        hit, way = np.nonzero(self.ids[sets] == ids[:, None])
        found[hit] = sets[hit] * WAYS + way
        return found

    def see(self, ids: Ids, slots: Slots, often: Floats) -> Slots:
        """Count the lookups (n,) of distinct ids (n,) in ``slots`` (n,) of :meth:`find`. Return the slots (n,) that
        missing rows take, −1 for all others; :meth:`place` must follow."""
        self._now += float(often.sum()) / (HALF_LIFE * len(self.changed))
        value = np.log2(often) + np.float32(self._now)
        there, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self._value[slots[there]] = np.logaddexp2(self._value[slots[there]], value[there])
        found = np.full(len(ids), -1)
        if not len(missing):
            return found
        sets = bucket(ids[missing].astype(np.int64), len(self.ids))
        order = np.lexsort((-value[missing], sets))  # in each set the most valuable row first
        missing, sets = missing[order], sets[order]
        number = np.arange(len(sets)) - np.searchsorted(sets, sets)  # of a row among those of its set
        least = np.argsort(self._value.reshape(-1, WAYS)[sets], axis=1, kind="stable")
        at = sets * WAYS + least[np.arange(len(sets)), np.minimum(number, WAYS - 1)]
        enters = (number < WAYS) & (value[missing] > self._value[at])
        found[missing[enters]] = at[enters]
        self._value[at[enters]] = value[missing[enters]]
        return found

    def leaving(self, slots: Slots) -> tuple[Slots, Ids]:
        """Return the slots (m,) among ``slots`` (n,) whose rows must be written first, and the ids (m,), ascending."""
        slots = slots[self.changed[slots]]
        order = np.argsort(ids := self.ids.reshape(-1)[slots])
        return slots[order], ids[order]

    def place(self, ids: Ids, slots: Slots) -> None:
        """Note that slots (n,) hold rows (n,) as they are on disk."""
        self.ids.reshape(-1)[slots] = ids
        self.changed[slots] = False

    def clear(self) -> None:
        self.ids[:], self.changed[:], self._value[:], self._now = -1, False, -np.inf, 0.0


def runs(ids: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Return the start and length of each run of neighbours in ascending ids (n,): one read or write each."""
    starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
    return list(zip(ids[starts].tolist(), np.diff(starts, append=len(ids)).tolist(), strict=True))

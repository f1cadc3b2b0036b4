"""Maps from arbitrary ids to rows: open addressing, admission, eviction.

::

    id ──mix──▶ position in the index; if another id is there, the next one (linear probing, at most half full)
       └──────▶ slot of its row; slot 0 is the row of all ids without one

An id gets a row after enough lookups (counted in a count-min sketch, Cormode and Muthukrishnan, 2005), or with a given
probability. The sketch's counters are halved as ids arrive. When all rows are taken, 1/16 of them are evicted together:
those looked up least recently, or least often. Rows of the last few batches stay, because their gradients are still to
come.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.policy.core.exact import splitmix64

Ids64 = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]

_EMPTY = np.int32(-1)
_WIDTH, _DEPTH = 4, 4  # the sketch's counters per possible row, and its hashes
_MOST_SEEN = 255
_BATCHES = 4  # between two halvings of the sketch, at least, also if a batch has more ids than the sketch has counters
_PART = 16  # 1/16 of the rows is evicted together: each eviction rebuilds the index
PINNED = 64  # rows of the last 64 batches stay: their gradients are still to come


def bucket(ids: Ids64, buckets: int) -> Ids64:
    """Return the bucket, below ``buckets`` < 2³², of each id (n,); shards divide a growing table by buckets."""
    return ((splitmix64(ids, 8) >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)


def begin_by_id(ids: Ids64, seed: int, dim: int, spread: tuple[float, float]) -> npt.NDArray[np.float32]:
    """Return the initial rows of ids (n,), shape (n, dim), uniform in ``spread``; they depend on the id alone."""
    columns = np.arange(dim, dtype=np.uint64) * np.uint64(0x632BE59BD9B4E019)
    bits = splitmix64(splitmix64(ids, seed + 1)[:, None] + columns, 4) >> np.uint64(40)  # 24 bits: exact in float32
    chance = bits.astype(np.float32) * np.float32(2.0**-24)
    least, most = spread
    return chance * np.float32(most - least) + np.float32(least)


@dataclass(slots=True)
class IdMap:
    """The map from ids to rows."""

    most: int  # maximum number of rows, without slot 0
    admit: float = 1  # lookups until an id gets a row; or, below 1, the probability at each lookup
    evict: str = "age"  # "age" or "count"
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # admitted, waiting, evicted, full
    held: bool = False  # no eviction while rows are being saved
    used: int = 1  # slots ever taken, including slot 0
    ids: Ids64 = field(init=False)  # of each slot; that of slot 0 is meaningless
    _seen: npt.NDArray[np.int64] = field(init=False)  # each slot's last batch
    _often: npt.NDArray[np.int64] = field(init=False)
    _places: Slots = field(init=False)
    _sketch: npt.NDArray[np.uint8] = field(init=False)
    _sights: int = 0  # counted since the sketch was halved
    _free: list[int] = field(default_factory=list)
    _batch: int = 0

    def __post_init__(self) -> None:
        self.ids, self._seen, self._often = (np.zeros(self.most + 1, np.int64) for _ in range(3))
        self._places = np.full(_power(2 * self.most), _EMPTY, np.int32)
        counted = self.admit > 1
        self._sketch = np.zeros((_DEPTH, _power(_WIDTH * self.most) if counted else 1), np.uint8)

    def clear(self) -> None:
        self.used, self._batch = 1, 0
        self._free.clear()
        self._sights = 0
        self._places[:], self._sketch[:], self._often[:], self._seen[:] = _EMPTY, 0, 0, 0

    def find(self, ids: Ids64) -> Slots:
        """Return the slots (n,) of ids (n,), 0 for those without one; nothing is counted."""
        place = (splitmix64(ids) & np.uint64(len(self._places) - 1)).astype(np.int64)
        found = np.zeros(len(ids), np.int32)
        open_ = np.arange(len(ids))
        while len(open_):
            slots = self._places[place[open_]]
            hit = (slots != _EMPTY) & (self.ids[slots] == ids[open_])
            found[open_[hit]] = slots[hit]
            open_ = open_[(slots != _EMPTY) & ~hit]  # collided with another id: probe on
            place[open_] = (place[open_] + 1) & (len(self._places) - 1)
        return found

    def see(self, ids: Ids64) -> tuple[Slots, Slots]:
        """Count the lookups of a batch's ids (n,); return their slots (n,), and new slots (m,) to initialize."""
        self._batch += 1
        each, inverse, often = np.unique(ids, return_inverse=True, return_counts=True)
        slots = self.find(each)
        self._seen[slots] = self._batch  # so that admitting one id cannot evict another one of this batch
        new = np.flatnonzero(slots == 0)
        ready = new[self._ready(each[new], often[new])]
        self.counts["waiting"] += len(new) - len(ready)
        made = self._take(len(ready))
        self.counts["full"] += len(ready) - len(made)
        slots[ready[: len(made)]] = made
        self.place(each[ready[: len(made)]], made)
        self._seen[slots], self._often[slots] = self._batch, self._often[slots] + often
        return slots[inverse.reshape(-1)], made

    def place(self, ids: Ids64, slots: Slots) -> None:
        """Assign ids (n,) without a row to free slots (n,)."""
        self.ids[slots] = ids
        self.used = max(self.used, int(slots.max(initial=0)) + 1)
        self.counts["admitted"] += len(ids)
        self._index(ids, slots)

    def take(self, ids: Ids64) -> Slots:
        """Return slots (n,) for saved ids (n,), as far as slots are free; 0 for the rest."""
        slots = np.zeros(len(ids), np.int32)
        made = self._take(len(ids))
        slots[: len(made)] = made
        self.place(ids[: len(made)], made)
        return slots

    def taken(self) -> Slots:
        """Return the slots (m,) in use."""
        free = np.zeros(self.used, bool)
        free[[0, *(one for one in self._free if one < self.used)]] = True
        return np.flatnonzero(~free).astype(np.int32)

    def _ready(self, ids: Ids64, often: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        if self.admit == 1:
            return np.ones(len(ids), bool)
        if self.admit < 1:
            chance = np.random.default_rng([self.seed, self._batch]).random(len(ids))
            return np.asarray(chance < 1 - (1 - self.admit) ** often)  # at least one success in `often` trials
        self._sights += len(ids)
        # With more ids than counters, those that came once would share all of theirs, and pass.
        if self._sights > max(self._sketch.shape[1], _BATCHES * len(ids)):
            self._sights = len(ids)
            self._sketch >>= 1
        # Count-min: collisions only add, so the least counter is the best estimate.
        least = np.full(len(ids), _MOST_SEEN, np.int64)
        for row in range(_DEPTH):
            at = (splitmix64(ids, row + 12) & np.uint64(self._sketch.shape[1] - 1)).astype(np.int64)
            before = self._sketch[row, at].astype(np.int64) + often
            np.maximum.at(self._sketch[row], at, np.minimum(before, _MOST_SEEN).astype(np.uint8))
            least = np.minimum(least, before)
        return least >= self.admit

    def _take(self, wanted: int) -> Slots:
        fresh = min(wanted, self.most + 1 - self.used)
        missing = wanted - fresh - len(self._free)
        if missing > 0 and not self.held:
            self._evict(max(missing, self.most // _PART))
        again = [self._free.pop() for _ in range(min(wanted - fresh, len(self._free)))]
        return np.array([*range(self.used, self.used + fresh), *again], np.int32)

    def _evict(self, many: int) -> None:
        taken = self.taken()
        old = taken[self._seen[taken] <= self._batch - PINNED]
        first = self._often[old] if self.evict == "count" else self._seen[old]
        gone = old[np.lexsort((self._seen[old], first))[:many]]
        if not len(gone):
            return
        self._free += gone.tolist()
        self._often[gone] = 0
        self.counts["evicted"] += len(gone)
        self._places[:] = _EMPTY  # a gap would end the probing of ids behind it, so rebuild the index
        left = self.taken()
        self._index(self.ids[left], left)

    def _index(self, ids: Ids64, slots: Slots) -> None:
        place = (splitmix64(ids) & np.uint64(len(self._places) - 1)).astype(np.int64)
        open_ = np.arange(len(ids))
        while len(open_):
            free = open_[self._places[place[open_]] == _EMPTY]
            self._places[place[free]] = slots[
                free
            ]  # if several ids want a position, numpy keeps the last; the others probe on
            open_ = open_[self._places[place[open_]] != slots[open_]]
            place[open_] = (place[open_] + 1) & (len(self._places) - 1)


def _power(least: int) -> int:
    return 1 << max(4, (least - 1).bit_length())


def load_of(distinct: float, rows: int) -> float:
    """Return the expected ids per used row if ``distinct`` ids are taken modulo ``rows``."""
    return distinct / (rows * -np.expm1(-distinct / rows)) if distinct > 0 else 1.0


class DistinctIds:
    """An estimate of the number of distinct ids by linear counting (Whang et al., 1990), within a few % up to 2²⁰."""

    def __init__(self) -> None:
        self._seen = np.zeros(1 << 18, bool)

    def add(self, ids: Any) -> None:
        self._seen[(splitmix64(ids, 6) & np.uint64(len(self._seen) - 1)).astype(np.int64)] = True

    @property
    def many(self) -> float:
        free = len(self._seen) - int(self._seen.sum())
        return len(self._seen) * float(np.log(len(self._seen) / max(free, 1)))

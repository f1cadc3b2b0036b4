"""Incremental clustering of features, in one pass, with a bound on how many clusters may still grow. Pure.

Rule (Focus, OSDI 2018, section 2.3 on clustering): an object joins the nearest active cluster if it is at most
``threshold`` away, else it begins one. When there is one active cluster more than ``most``, the smallest is sealed: it
stays in the index and takes no more members. The paper leaves open whether a centroid moves and whether the newcomer
itself may be sealed. Here the centroid is the first object and stays, and the newcomer is spared, for else it would be
sealed at once whenever all others have two members; of equally small ones, the least recently used is sealed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError

MOST_ACTIVE = 100
"""The paper's C; it says that its value has almost no effect."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What became of a batch of objects.

    Attributes:
        cluster: of each object, int64 [n].
        began: whether the object began its cluster, bool [n]; it is then the cluster's centroid.
        sealed: clusters that take no more members from now on, in order.
    """

    cluster: npt.NDArray[np.int64]
    began: npt.NDArray[np.bool_]
    sealed: tuple[int, ...]


class Clusters:
    """The active clusters, and the number of the next one.

    Args:
        threshold: T, the greatest distance (Euclidean) to a centroid of those who join it.
        dim: length of a feature.
        most: C, how many clusters may be active.
        spare_newcomer: False seals by the rule's letter, the newcomer too.

    Raises:
        ConfigError: a threshold below 0, or no cluster may be active.
    """

    def __init__(
        self, threshold: float, dim: int, most: int = MOST_ACTIVE, first: int = 0, spare_newcomer: bool = True
    ) -> None:
        if not threshold >= 0 or most < 1:
            raise ConfigError(f"threshold={threshold}, most={most}: give a distance, and at least one active cluster")
        self.threshold = threshold
        self.most = most
        self.next = first
        self._spare = spare_newcomer
        self._centroids = np.zeros((most + 1, dim), np.float32)  # a row of room for the newcomer
        self._ids = np.full(most + 1, -1, np.int64)
        self._sizes = np.zeros(most + 1, np.int64)
        self._used = np.zeros(most + 1, np.int64)  # when it was last joined, in objects
        self._active = 0
        self._clock = 0

    def add(self, features: npt.NDArray[np.float32]) -> Grown:
        """Take the next objects, in order.

        Args:
            features: float32 [n, dim].
        """
        count = len(features)
        cluster, began, sealed = np.zeros(count, np.int64), np.zeros(count, bool), []
        for at in range(count):
            row, distance = self._nearest(features[at])
            self._clock += 1
            if distance > self.threshold:
                gone = self._begin(features[at])
                cluster[at], began[at] = self.next - 1, True
                sealed += gone
                continue
            self._sizes[row] += 1
            self._used[row] = self._clock
            cluster[at] = self._ids[row]
        return Grown(cluster, began, tuple(sealed))

    def join(self, cluster: int) -> bool:
        """One more member for a cluster that is known to be right; False if it takes no more."""
        rows = np.flatnonzero(self._ids[: self._active] == cluster)
        if not len(rows):
            return False
        self._clock += 1
        self._sizes[rows[0]] += 1
        self._used[rows[0]] = self._clock
        return True

    @property
    def active(self) -> tuple[int, ...]:
        """Clusters that may still grow."""
        return tuple(int(one) for one in self._ids[: self._active])

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """All that :meth:`load` needs to go on exactly here."""
        count = self._active
        return {
            "centroids": self._centroids[:count].copy(), "ids": self._ids[:count].copy(),
            "sizes": self._sizes[:count].copy(), "used": self._used[:count].copy(),
            "counters": np.array([self.next, self._clock]),
        }  # fmt: skip

    def load(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Go on where a state was taken."""
        self._active = count = len(state["ids"])
        for mine, name in ((self._centroids, "centroids"), (self._ids, "ids"), (self._sizes, "sizes"),
                           (self._used, "used")):  # fmt: skip
            mine[:count] = state[name]
        self.next, self._clock = (int(one) for one in state["counters"])

    def _nearest(self, feature: npt.NDArray[np.float32]) -> tuple[int, float]:
        if not self._active:
            return -1, math.inf
        apart = self._centroids[: self._active] - feature  # and not by squares: equal features are 0 apart
        squares = np.einsum("cd,cd->c", apart, apart)
        row = int(squares.argmin())
        return row, math.sqrt(squares[row])

    def _begin(self, feature: npt.NDArray[np.float32]) -> list[int]:
        row = self._active
        self._centroids[row], self._ids[row], self._sizes[row], self._used[row] = feature, self.next, 1, self._clock
        self._active += 1
        self.next += 1
        return [self._seal()] if self._active > self.most else []

    def _seal(self) -> int:
        """Take the smallest out, of equals the least recently used; the last one takes its row."""
        candidates = self._active - (1 if self._spare else 0)
        row = int(np.lexsort((self._used[:candidates], self._sizes[:candidates]))[0])
        gone, last = int(self._ids[row]), self._active - 1
        for column in (self._centroids, self._ids, self._sizes, self._used):
            column[row] = column[last]
        self._active = last
        return gone

"""Incremental clustering of features in one pass, with a bounded number of active clusters.

Rule (Focus, OSDI 2018, section 2.3): an object joins the nearest active cluster if its distance is at most
``threshold``; otherwise it starts a cluster. When more than ``most`` clusters are active, the smallest is sealed: it
stays in the index without new members. The paper does not specify whether centroids move; here each is its first
object.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError

MOST_ACTIVE = 100  # the paper's C; according to the paper its value has almost no effect


@dataclass(frozen=True, slots=True)
class Grown:
    """The clusters of a batch of n objects."""

    cluster: npt.NDArray[np.int64]  # of each object, (n,) int64
    began: npt.NDArray[np.bool_]  # whether the object is the first of its cluster and so its centroid, (n,) bool
    sealed: tuple[int, ...]  # clusters sealed by this batch, in order


class Clusters:
    """The active clusters, and the number of the next one.

    Args:
        threshold: T, the maximum Euclidean distance of a member to its centroid.
        dim: length of a feature.
        most: C, the maximum number of active clusters.
        first: the number of the first cluster.
        spare_newcomer: False follows the paper literally, so a new cluster may be sealed immediately.

    Raises:
        ConfigError: the threshold is below 0, or ``most`` below 1.
    """

    def __init__(
        self, threshold: float, dim: int, most: int = MOST_ACTIVE, first: int = 0, spare_newcomer: bool = True
    ) -> None:
        if not threshold >= 0 or most < 1:
            raise ConfigError(
                f"threshold={threshold}, most={most}: give a distance above 0, and at least one active cluster"
            )
        self.threshold = threshold
        self.most = most
        self.next = first
        self._spare = spare_newcomer
        # One extra row: a new cluster is added before another is sealed.
        self._centroids = np.zeros((most + 1, dim), np.float32)
        self._ids = np.full(most + 1, -1, np.int64)
        self._sizes = np.zeros(most + 1, np.int64)
        self._used = np.zeros(most + 1, np.int64)  # the time of the last join, counted in objects
        self._columns: dict[str, npt.NDArray[Any]] = {"centroids": self._centroids, "ids": self._ids}
        self._columns |= {"sizes": self._sizes, "used": self._used}
        self._active = 0
        self._clock = 0

    def add(self, features: npt.NDArray[np.float32]) -> Grown:
        """Add the next objects, ``features`` (n, dim) float32, in order."""
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
        """Add a member to a cluster that is known to be the right one; return False if it is sealed."""
        rows = np.flatnonzero(self._ids[: self._active] == cluster)
        if not len(rows):
            return False
        self._clock += 1
        self._sizes[rows[0]] += 1
        self._used[rows[0]] = self._clock
        return True

    @property
    def active(self) -> tuple[int, ...]:
        """The clusters that may still grow."""
        return tuple(int(one) for one in self._ids[: self._active])

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return copies of the arrays, (active, dim) and (active,), from which :meth:`load` continues exactly."""
        rows = {name: column[: self._active].copy() for name, column in self._columns.items()}
        return {**rows, "counters": np.array([self.next, self._clock])}

    def load(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Continue from a state, with the shapes of :meth:`state`: (active, dim) and (active,)."""
        self._active = len(state["ids"])
        for name, column in self._columns.items():
            column[: self._active] = state[name]
        self.next, self._clock = (int(one) for one in state["counters"])

    def _nearest(self, feature: npt.NDArray[np.float32]) -> tuple[int, float]:
        if not self._active:
            return -1, math.inf
        # Not by |a|² - 2ab + |b|², which rounds: equal features must have distance 0.
        apart = self._centroids[: self._active] - feature
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
        # The newcomer is in the last row. It is exempt: it would be sealed immediately whenever all others have two
        # members (our choice). The order is by size, then by the last join.
        candidates = self._active - (1 if self._spare else 0)
        row = int(np.lexsort((self._used[:candidates], self._sizes[:candidates]))[0])
        gone, last = int(self._ids[row]), self._active - 1
        # The last cluster moves into the free row, so active rows stay contiguous.
        for column in self._columns.values():
            column[row] = column[last]
        self._active = last
        return gone

"""The choice of centroids that a query asks about, and the spreading of verdicts. Pure; ours, not the paper's.

Verdicts on whether centroids are of one class come in rounds. After each, a centroid is settled if the nearest judged
one is much nearer than the nearest one with the opposite verdict::

    settled  =  near ≤ spread · far     near: distance to the nearest judged one, whose verdict is then adopted
                                        far:  to the nearest with the opposite verdict; at most the largest distance

The greatest near ÷ far are asked next: first outliers, then those between the class and the rest. With ``spread = 0`` a
verdict holds within a cluster's radius: near ≤ T. :mod:`uneven.focus.pure.sweep` chooses the spread on the sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUND = 32  # centroids to ask about before verdicts are spread again


@dataclass(frozen=True, slots=True)
class Precedents:
    """The verdicts that a query need not ask for."""

    cluster: npt.NDArray[np.int64]  # of each centroid, (n,) int64; negative for objects of the sample
    feature: npt.NDArray[np.float32]  # by the network whose centroids are asked about, (n, dim) float32
    label: npt.NDArray[np.int64]  # the truth network's, (n,)
    score: npt.NDArray[np.float32]  # (n,)

    @classmethod
    def sample(
        cls, feature: npt.NDArray[np.float32], label: npt.NDArray[np.int64], score: npt.NDArray[np.float32]
    ) -> "Precedents":
        """Return the precedents of sample objects, numbered from -1 down; shapes as in the class, feature (n, dim)."""
        return cls(-1 - np.arange(len(label)), feature, label, score)

    def joined(self, other: "Precedents") -> "Precedents":
        return Precedents.sample(
            np.concatenate([self.feature, other.feature]),
            np.concatenate([self.label, other.label]),
            np.concatenate([self.score, other.score]),
        )


NO_PRECEDENTS = Precedents.sample(np.zeros((0, 0), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))


class Spreading:
    """A query for one class on the centroids of one network; ``spread`` 0 uses the threshold T."""

    def __init__(
        self,
        features: npt.NDArray[np.float32],  # of the centroids, (n, dim)
        threshold: float,
        spread: float,
        before: tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]],  # precedents (m, dim); of the class? (m,)
    ) -> None:
        count = len(features)
        self._features = features
        self._threshold = threshold
        # Without a precedent of the class, verdicts are not spread: a class that the cheap network never learned could
        # be rejected without a check.
        self._spread = spread if before[1].any() else 0.0
        self._apart = np.full((2, count), np.inf, np.float32)  # distance to the nearest [not of, of] the class
        self._speaker = np.full((2, count), -1)
        self._judged = np.zeros(count, bool)
        self._widest = float(self._from(0).max()) if count else 0.0
        if count:
            self._recall(*before)

    def tell(self, rows: Sequence[int], is_it: Sequence[bool]) -> None:
        """Record the truth network's verdicts on some rows."""
        for row, side in zip(rows, map(int, is_it), strict=True):
            apart = self._from(row)
            nearer = apart < self._apart[side]
            self._apart[side][nearer], self._speaker[side][nearer] = apart[nearer], row
            self._judged[row] = True

    def _recall(self, features: npt.NDArray[np.float32], is_it: npt.NDArray[np.bool_]) -> None:
        for side in (0, 1):
            if len(those := np.flatnonzero(is_it == bool(side))):
                nearest = _nearest(self._features, features[those])
                self._speaker[side] = -1 - those[nearest]  # numbers below 0 are precedents
                apart = self._features - features[those[nearest]]
                self._apart[side] = np.sqrt(np.einsum("nd,nd->n", apart, apart))

    def ask(self, most: int) -> list[int]:
        """Return the rows of the next round, at most ``most``; none when all are settled."""
        near, far = self._apart.min(0), np.minimum(self._apart.max(0), self._widest)
        limit = self._spread * far if self._spread else self._threshold
        far = np.maximum(far, np.float32(1e-12))
        found: list[int] = []
        while len(found) < most:
            open_ = (near > limit) & ~self._judged
            open_[found] = False
            if not open_.any():
                break
            found.append(int(np.where(open_, near / far, -1.0).argmax() if self._spread else open_.argmax()))
            near = np.minimum(near, self._from(found[-1]))  # any verdict on it will hold for its neighbours, too
        return found

    def speakers(self) -> npt.NDArray[np.int64]:
        """Return the row whose verdict each row has, (n,) int64, when all are settled; -1 - i is precedent i."""
        nearest = self._speaker[self._apart.argmin(0), np.arange(len(self._judged))]
        return np.where(self._judged, np.arange(len(self._judged)), nearest)

    def _from(self, row: int) -> npt.NDArray[np.float32]:
        apart = self._features - self._features[row]  # not by squares, see `Clusters`
        return np.asarray(np.sqrt(np.einsum("nd,nd->n", apart, apart)), np.float32)


def _nearest(of: npt.NDArray[np.float32], among: npt.NDArray[np.float32], batch: int = 512) -> npt.NDArray[np.int64]:
    # By squares and a matrix product, which is fast; rounding may confuse candidates of almost equal distance.
    # Centring keeps the squares small.
    centre = among.mean(0)
    here, there = of - centre, among - centre
    squares = np.einsum("md,md->m", there, there)
    parts = [(squares - 2 * here[at : at + batch] @ there.T).argmin(1) for at in range(0, len(of), batch)]
    return np.concatenate(parts)


def played(
    features: npt.NDArray[np.float32],
    is_it: npt.NDArray[np.bool_],
    threshold: float,
    spread: float,
    before: tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Simulate a query with known verdicts ``is_it``; return the rows accepted and asked about, all (n,) bool."""
    spreading, asked = Spreading(features, threshold, spread, before), np.zeros(len(features), bool)
    while rows := spreading.ask(ROUND):
        spreading.tell(rows, is_it[rows].tolist())
        asked[rows] = True
    said = np.concatenate([is_it, before[1][::-1]])  # precedent i has index -1 - i
    return said[spreading.speakers()], asked

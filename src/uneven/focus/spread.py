"""Which centroids a query asks about, and whose verdict holds for the others. Pure; ours, not the paper's.

A query asks of each centroid only whether it is of one class. Verdicts come in rounds; after each one, a centroid is
settled where the nearest judged one lies far nearer than the nearest one that was judged otherwise::

    settled  =  near ≤ spread · far     near: to the nearest judged one, whose verdict then holds for this one, too
                                        far:  to the nearest judged otherwise; before there is one, as wide as all lie

The next ones to be asked are those with the greatest near ÷ far: first what lies far from everything, then what lies
between the class and the rest. With ``spread = 0`` verdicts hold as far as clusters reach: near ≤ T. How far they may
be spread is chosen on the sample, by playing this very game on it (:mod:`uneven.focus.sweep`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROUND = 32
"""Centroids asked about before verdicts are spread again."""


class Spreading:
    """One class's query, on the centroids of one network.

    Args:
        features: of the centroids, float32 [n, dim]; of those that are equally open, the first is asked about.
        threshold: T.
        spread: how near, as a share of ``far``; 0 goes by T.
    """

    def __init__(self, features: npt.NDArray[np.float32], threshold: float, spread: float) -> None:
        count = len(features)
        self._features = features
        self._threshold = threshold
        self._spread = spread
        self._apart = np.full((2, count), np.inf, np.float32)  # to the nearest one that is not of the class, that is
        self._speaker = np.full((2, count), -1)
        self._judged = np.zeros(count, bool)
        self._widest = float(self._from(0).max()) if count else 0.0

    def tell(self, rows: Sequence[int], is_it: Sequence[bool]) -> None:
        """What the truth network has said of some."""
        for row, side in zip(rows, map(int, is_it), strict=True):
            apart = self._from(row)
            nearer = apart < self._apart[side]
            self._apart[side][nearer], self._speaker[side][nearer] = apart[nearer], row
            self._judged[row] = True

    def ask(self, most: int) -> list[int]:
        """The next round: at most so many rows; none when all are settled."""
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
            near = np.minimum(near, self._from(found[-1]))  # whatever it will be, it speaks for those near it
        return found

    def speakers(self) -> npt.NDArray[np.int64]:
        """Whose verdict is each one's, int64 [n]: its own, if it was asked about; -1 where there is none at all."""
        nearest = self._speaker[self._apart.argmin(0), np.arange(len(self._judged))]
        return np.where(self._judged, np.arange(len(self._judged)), nearest)

    def _from(self, row: int) -> npt.NDArray[np.float32]:
        apart = self._features - self._features[row]  # and not by squares: equal features are 0 apart
        return np.asarray(np.sqrt(np.einsum("nd,nd->n", apart, apart)), np.float32)


def played(
    features: npt.NDArray[np.float32], is_it: npt.NDArray[np.bool_], threshold: float, spread: float
) -> npt.NDArray[np.int64]:
    """Whose verdict each one would get, where all are known: int64 [n], see :meth:`Spreading.speakers`."""
    spreading = Spreading(features, threshold, spread)
    while rows := spreading.ask(ROUND):
        spreading.tell(rows, is_it[rows].tolist())
    return spreading.speakers()

"""Which centroids a query asks about, and whose verdict holds for the others. Pure; ours, not the paper's.

A query asks of each centroid only whether it is of one class. Verdicts come in rounds; after each one, a centroid is
settled where the nearest judged one lies far nearer than the nearest one that was judged otherwise::

    settled  =  near ≤ spread · far     near: to the nearest judged one, whose verdict then holds for this one, too
                                        far:  to the nearest judged otherwise; before there is one, as wide as all lie

The next ones to be asked are those with the greatest near ÷ far: first what lies far from everything, then what lies
between the class and the rest. With ``spread = 0`` verdicts hold as far as clusters reach: near ≤ T. How far they may
be spread is chosen on the sample, by playing this very game on it (:mod:`uneven.focus.sweep`).

A query begins with precedents: what the truth network has said in earlier queries, and of the sample. Where none of
them is of the class, verdicts are not spread: a class that the small network has never learnt may lie among the others,
and all of it would pass for them before one was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROUND = 32
"""Centroids asked about before verdicts are spread again."""


@dataclass(frozen=True, slots=True)
class Precedents:
    """Verdicts that a query need not ask for.

    Attributes:
        cluster: of each centroid, int64 [n]; an object of the sample has a number below 0.
        feature: by the network whose centroids are asked about, float32 [n, dim].
        label, score: what the truth network has said, int64 and float32 [n].
    """

    cluster: npt.NDArray[np.int64]
    feature: npt.NDArray[np.float32]
    label: npt.NDArray[np.int64]
    score: npt.NDArray[np.float32]

    @classmethod
    def sample(
        cls, feature: npt.NDArray[np.float32], label: npt.NDArray[np.int64], score: npt.NDArray[np.float32]
    ) -> Precedents:
        """Objects of the sample, numbered from -1 down."""
        return cls(-1 - np.arange(len(label)), feature, label, score)

    def joined(self, other: Precedents) -> Precedents:
        """Objects of two parts of a sample as one."""
        return Precedents.sample(
            np.concatenate([self.feature, other.feature]), np.concatenate([self.label, other.label]),
            np.concatenate([self.score, other.score]),
        )  # fmt: skip

NO_PRECEDENTS = Precedents.sample(np.zeros((0, 0), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
"""Nothing is known."""


class Spreading:
    """One class's query, on the centroids of one network.

    Args:
        features: of the centroids, float32 [n, dim]; of those that are equally open, the first is asked about.
        threshold: T.
        spread: how near, as a share of ``far``; 0 goes by T.
        before: of the precedents, features float32 [m, dim], and whether each is of the class.
    """

    def __init__(
        self, features: npt.NDArray[np.float32], threshold: float, spread: float,
        before: tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]],
    ) -> None:  # fmt: skip
        count = len(features)
        self._features = features
        self._threshold = threshold
        self._spread = spread if before[1].any() else 0.0
        self._apart = np.full((2, count), np.inf, np.float32)  # to the nearest one that is not of the class, that is
        self._speaker = np.full((2, count), -1)
        self._judged = np.zeros(count, bool)
        self._widest = float(self._from(0).max()) if count else 0.0
        if count:
            self._recall(*before)

    def tell(self, rows: Sequence[int], is_it: Sequence[bool]) -> None:
        """What the truth network has said of some."""
        for row, side in zip(rows, map(int, is_it), strict=True):
            apart = self._from(row)
            nearer = apart < self._apart[side]
            self._apart[side][nearer], self._speaker[side][nearer] = apart[nearer], row
            self._judged[row] = True

    def _recall(self, features: npt.NDArray[np.float32], is_it: npt.NDArray[np.bool_]) -> None:
        for side in (0, 1):
            if len(those := np.flatnonzero(is_it == bool(side))):
                nearest = _nearest(self._features, features[those])
                self._speaker[side] = -1 - those[nearest]
                apart = self._features - features[those[nearest]]
                self._apart[side] = np.sqrt(np.einsum("nd,nd->n", apart, apart))

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
        """Whose verdict is each one's when all are settled, int64 [n]: a row, its own if it was asked about; or
        -1 - i, of the precedent i."""
        nearest = self._speaker[self._apart.argmin(0), np.arange(len(self._judged))]
        return np.where(self._judged, np.arange(len(self._judged)), nearest)

    def _from(self, row: int) -> npt.NDArray[np.float32]:
        apart = self._features - self._features[row]  # and not by squares: equal features are 0 apart
        return np.asarray(np.sqrt(np.einsum("nd,nd->n", apart, apart)), np.float32)


def _nearest(of: npt.NDArray[np.float32], among: npt.NDArray[np.float32], batch: int = 512) -> npt.NDArray[np.int64]:
    """For each row, which other one is nearest, int64 [n]; rounding may mistake what is almost as near."""
    centre = among.mean(0)
    here, there = of - centre, among - centre
    squares = np.einsum("md,md->m", there, there)
    parts = [(squares - 2 * here[at : at + batch] @ there.T).argmin(1) for at in range(0, len(of), batch)]
    return np.concatenate(parts)


def played(
    features: npt.NDArray[np.float32], is_it: npt.NDArray[np.bool_], threshold: float, spread: float,
    before: tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:  # fmt: skip
    """The game where all verdicts are known: which are taken to be of the class, and which were asked about.

    Args:
        before: as of :class:`Spreading`.
    """
    spreading, asked = Spreading(features, threshold, spread, before), np.zeros(len(features), bool)
    while rows := spreading.ask(ROUND):
        spreading.tell(rows, is_it[rows].tolist())
        asked[rows] = True
    said = np.concatenate([is_it, before[1][::-1]])  # precedent i has place -1 - i
    return said[spreading.speakers()], asked

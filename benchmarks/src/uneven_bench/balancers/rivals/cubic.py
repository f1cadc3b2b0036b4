"""LBB's profile: seconds of a batch as a cubic in its size, and the split from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uneven.errors import ConfigError

LEAST_SIZES = 4  # the least number of different batch sizes, equal to the number of coefficients


@dataclass(frozen=True, slots=True)
class Cubic:
    """A cost t(b) = a0 + a1 b + a2 b² + a3 b³, in seconds."""

    a0: float  # the cost of a batch of any size; never negative here
    a1: float
    a2: float = 0.0
    a3: float = 0.0

    def seconds(self, samples: int) -> float:
        """Return t(b). A fit may fall between measured sizes; the caller guards against that."""
        return self.a0 + samples * (self.a1 + samples * (self.a2 + samples * self.a3))

    @classmethod
    def fit(cls, sizes: Sequence[int], times_s: Sequence[float]) -> "Cubic":
        """Fit a cubic to the points of a profile by least squares.

        The authors measure b = 2, 4, … 256 before the training, nine times each without the three fastest and the three
        slowest. A fitted a0 below zero counts as zero, or the refit would divide by more than the time measured.

        ``sizes``: at least four different batch sizes; ``times_s``: seconds of each. Raises ConfigError: fewer sizes
        than a cubic has coefficients.
        """
        if len(set(sizes)) < LEAST_SIZES:
            raise ConfigError(f"a cubic needs at least four different batch sizes, not {sorted(set(sizes))}")
        largest = float(max(sizes))
        x = np.array(sizes, float) / largest
        found, *_ = np.linalg.lstsq(np.vander(x, 4, increasing=True), np.array(times_s, float), rcond=None)
        a0, a1, a2, a3 = (float(a) / largest**power for power, a in enumerate(found))
        if a0 >= 0.0:
            return cls(a0, a1, a2, a3)
        through_zero, *_ = np.linalg.lstsq(np.vander(x, 4, increasing=True)[:, 1:], np.array(times_s), rcond=None)
        a1, a2, a3 = (float(a) / largest ** (power + 1) for power, a in enumerate(through_zero))
        return cls(0.0, a1, a2, a3)

"""Whole numbers of samples for all workers, in proportion to weights.

The real-valued problem comes first. The share of rank i grows with a common level until it meets a limit; the shares
add up at the level that is searched. Lower and upper limits apply in the same pass. Then the shares are rounded. Every
machine computes the same answer: see :mod:`uneven.policy.core.exact`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.policy.core.exact import Floats, Wholes, column, exact_sum
from uneven.policy.core.views import Limits

MOST_SAMPLES = 2**40  # the largest total: up to here the rounding of all shares together stays far below one sample
_SAME = 1e-6  # samples; remainders that differ by less are equal, so the last bit decides nothing
_QUICK_ROUNDS = 8  # of Newton's method; two to four usually suffice
_RANGE = 1e100  # a weight smaller than the largest by this factor counts as zero


def proportional(weights: Sequence[float], total: int, limits: Limits | None = None) -> tuple[int, ...]:
    """Return whole shares in proportion to ``weights`` within limits, by largest remainder (LB-BSP's rule on CPU).

    The real-valued shares are clamp(λ · weight, lower, upper), with the one λ at which they add up to ``total``. Each
    is rounded down, and the other samples go one each to the largest remainders (on ties, to lower ranks). O(n log n).

    Args:
        weights: one per rank, for example samples per second. Zero gets the lower limit only; NaN means unknown and
            counts as the mean of the known ones. If all are zero or unknown, all are equal.
        total: samples to split.
        limits: least and greatest share of each rank; by default 0 and ``total``.

    Returns:
        One share per rank; their sum is ``total``.

    Raises:
        ConfigError: infeasible limits, a negative or infinite weight, or a total out of range.
    """
    lower, upper = bounds(len(weights), total, limits)
    shares = _largest_remainder(_known(column(weights)), total, lower, upper)
    return tuple(shares.tolist())


class SpeedLines(NamedTuple):
    """The lines x_i = clamp(level · slope_i − offset_i, lower_i, upper_i) and the total of the shares.

    The sum of the shares is a rising piecewise linear function of the level. Newton's method follows the line at the
    current level to the total, then determines again which ranks are at a limit. If this set is unchanged, the level is
    exact. If the iteration does not settle, :meth:`halve` bisects the sorted corners.
    """

    slopes: Floats
    offsets: Floats
    lower: Floats
    upper: Floats
    total: int

    def solve(self) -> tuple[float, Floats]:
        """Return the level at which the real-valued shares add up to the total, and these shares, shape (n,)."""
        level = (self.total + exact_sum(self.offsets)) / exact_sum(self.slopes)
        shares = level * self.slopes - self.offsets
        if (shares >= self.lower).all() and (shares <= self.upper).all():
            return level, shares
        starts, ends = (self.lower + self.offsets) / self.slopes, (self.upper + self.offsets) / self.slopes
        level = self.newton(starts, ends, level)
        return level, self.at(level)

    def at(self, level: float) -> Floats:
        """Return the real-valued shares at this level, shape (n,)."""
        shares = level * self.slopes - self.offsets
        return np.where(shares < self.lower, self.lower, np.where(shares <= self.upper, shares, self.upper))

    def newton(self, starts: Floats, ends: Floats, level: float) -> float:
        """Return the level by Newton's method from ``level``; rank i is within its limits from ``starts[i]`` to
        ``ends[i]``."""
        held = -1, -1
        for _ in range(_QUICK_ROUNDS):
            now, better = self._follow(starts, ends, level)
            if now == held:  # levels are ordered, so the sets of ranks at a limit nest: equal counts, equal sets
                return level
            if math.isnan(better):
                break
            held, level = now, better
        return self.halve(starts, ends)

    def halve(self, starts: Floats, ends: Floats) -> float:
        """Return the level, found by bisection over the sorted corners ``starts`` and ``ends``, both of shape (n,)."""
        corners: list[float] = np.unique(np.concatenate([starts, ends])).tolist()
        first, last = 0, len(corners) - 1
        while last - first > 1:
            middle = (first + last) // 2
            fits = exact_sum(self.at(corners[middle])) <= self.total
            first, last = (middle, last) if fits else (first, middle)
        between = corners[first] + (corners[last] - corners[first]) / 2
        _, level = self._follow(starts, ends, between)
        return between if math.isnan(level) else min(max(level, corners[first]), corners[last])

    def _follow(self, starts: Floats, ends: Floats, level: float) -> tuple[tuple[int, int], float]:
        """Return the counts of ranks at their limits, and the level for these sets (NaN if no rank is free)."""
        low, high = starts > level, ends < level
        free = ~(low | high)
        held = exact_sum(self.lower[low]) + exact_sum(self.upper[high])
        slope = exact_sum(self.slopes[free])
        counts = int(np.count_nonzero(low)), int(np.count_nonzero(high))
        return counts, (self.total - held + exact_sum(self.offsets[free])) / slope if slope > 0.0 else math.nan


def _largest_remainder(slopes: Floats, total: int, lower: Floats, upper: Floats) -> Wholes:
    if slopes.min() == 0.0:
        return _around_zeros(slopes, total, lower, upper)
    _, exact = SpeedLines(slopes, np.zeros(len(slopes)), lower, upper, total).solve()
    shares = exact.astype(np.int64)
    left = total - int(shares.sum())
    if left:
        shares[_largest(exact - shares, left)] += 1
    return shares


def _largest(remainders: Floats, count: int) -> npt.NDArray[np.intp]:
    """Return the positions of the ``count`` largest; on ties the first."""
    place = len(remainders) - count
    edge = np.partition(remainders, place)[place]
    sure = np.flatnonzero(remainders > edge + _SAME)
    equal = np.flatnonzero((remainders >= edge - _SAME) & (remainders <= edge + _SAME))
    return np.concatenate([sure, equal[: count - len(sure)]])


def _around_zeros(weights: Floats, total: int, lower: Floats, upper: Floats) -> Wholes:
    """Keep ranks of weight zero at their lower limit, unless the others cannot take the rest."""
    none = weights == 0.0
    some = ~none
    part = int(min(total - exact_sum(lower[none]), exact_sum(upper[some])))
    shares = np.zeros(len(weights), np.int64)
    shares[some] = _largest_remainder(weights[some], part, lower[some], upper[some])
    shares[none] = _largest_remainder(weights[none] + 1.0, total - part, lower[none], upper[none])
    return shares


def _known(weights: Floats) -> Floats:
    """Return usable weights: unknown ones filled in, negligible ones zero."""
    top = float(weights.max())  # NaN if one of them is
    if 1 / _RANGE < top < _RANGE and weights.min() > top / _RANGE:
        return weights
    bad = (weights < 0.0) | (weights == math.inf)
    if bad.any():
        rank = int(np.argmax(bad))
        raise ConfigError(f"weight of rank {rank} is {weights[rank]}: give 0 or more, NaN if unknown")
    unknown = np.isnan(weights)
    top = float(np.where(unknown, 0.0, weights).max())
    if top == 0.0:
        return np.ones(len(weights))
    scaled = np.ldexp(weights, -math.frexp(top)[1])  # by a power of two, so that no digit changes
    known = scaled[~unknown]
    scaled[unknown] = exact_sum(known) / len(known)
    return np.where(scaled > 1 / _RANGE, scaled, 0.0)


@lru_cache(maxsize=8)
def bounds(workers: int, total: int, limits: Limits | None) -> tuple[Floats, Floats]:
    """Return least and greatest share of each rank, shape (n,). They are cached for the run, so they are read-only.
    Raises ConfigError for infeasible limits or a total out of range."""
    if workers == 0:
        raise ConfigError(f"a batch of {total} samples for 0 workers: give at least one")
    if not 0 <= total <= MOST_SAMPLES:
        raise ConfigError(f"a batch of {total} samples: give 0 to {MOST_SAMPLES}")
    if limits is None:
        return _kept(np.zeros(workers)), _kept(np.full(workers, float(total)))
    if not len(limits.lower) == len(limits.upper) == workers:
        raise ConfigError(
            f"limits for {len(limits.lower)} (lower) and {len(limits.upper)} (upper) for {workers} workers: give "
            "one each"
        )
    lower, upper = _kept(column(limits.lower)), _kept(column(limits.upper))
    fit = sum(limits.lower) <= total <= sum(limits.upper)
    if not (fit and lower.min() >= 0.0 and (lower <= upper).all()):
        limits.check(total)  # raises, and names the rank or the sum
    return lower, upper


def _kept(numbers: Floats) -> Floats:
    numbers.flags.writeable = False
    return numbers

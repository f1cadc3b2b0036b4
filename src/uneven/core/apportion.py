"""Whole samples for every worker: by proportion, or so that the last one finishes first. Pure.

Both functions solve the problem in real numbers first. There, the share of rank i grows with a common level
until it meets a limit, x_i = clamp(level · slope_i − offset_i, lower_i, upper_i), and the level is the one at
which the shares add up. Limits on both sides are met at once. Then the shares are made whole.

Only IEEE arithmetic and ``math.fsum``, which rounds once, are used: every machine comes to the same answer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import compress
from operator import le, sub

from uneven.core.views import Limits
from uneven.errors import ConfigError

MOST_SAMPLES = 2**40
"""Largest total: up to here the rounding of all shares together stays far below one sample."""

_SAME = 1e-6  # samples; remainders that differ by less are equal, so that the last bit decides nothing
_QUICK_ROUNDS = 8  # of Newton's method; nearly always two to four are enough
_RANGE = 1e100  # a weight that is so many times smaller than the largest counts as zero


def proportional(weights: Sequence[float], total: int, limits: Limits | None = None) -> tuple[int, ...]:
    """Shares in proportion to ``weights``, by largest remainder, within limits (LB-BSP's rule on CPU).

    The real-valued shares are clamp(λ · weight, lower, upper), with the one λ at which they add up to
    ``total``. Each is rounded down, and the samples left over go one each to the largest remainders; of equal
    remainders, the lower rank's comes first. O(n log n).

    Args:
        weights: one per rank, for instance samples per second. Zero asks for the lower limit only; NaN means
            unknown and counts as the mean of the known ones. If all are zero or unknown, all count alike.
        total: samples to hand out.
        limits: least and greatest share of each rank; by default 0 and ``total``.

    Returns:
        One share per rank. They add up to ``total`` exactly.

    Raises:
        ConfigError: limits that cannot be met, a negative or infinite weight, a total out of range.
    """
    bounds = _checked(len(weights), total, limits)
    slopes = _known(weights)
    if min(slopes) == 0.0:
        return _around_zeros(slopes, total, bounds)
    _, exact = _solve(slopes, [0.0] * len(slopes), total, bounds)
    shares = list(map(int, exact))
    left = total - sum(shares)
    for i in _largest(list(map(sub, exact, shares)), left):
        shares[i] += 1
    return tuple(shares)


def fastest_finish(
    overhead_s: Sequence[float], per_sample_s: Sequence[float], total: int, limits: Limits | None = None
) -> tuple[int, ...]:
    """Shares for which the last rank finishes as early as possible: least max_i (overhead_i + cost_i · x_i).

    As good as handing out one sample at a time to the rank that would finish earliest with it (specification
    of LB-BSP, §1.5), which is optimal for every cost that grows with the batch. Here all but the last few
    samples, about one per rank at most, are handed out at once. O(n log n).

    Args:
        overhead_s: seconds that rank i needs whatever its share.
        per_sample_s: seconds that each sample adds.
        total: samples to hand out.
        limits: least and greatest share of each rank; by default 0 and ``total``.

    Returns:
        One share per rank. They add up to ``total`` exactly.

    Raises:
        ConfigError: limits that cannot be met, a cost that makes no sense, a total out of range.
    """
    bounds = _checked(len(per_sample_s), total, limits)
    _check_costs(overhead_s, per_sample_s)
    slopes = [1.0 / seconds for seconds in per_sample_s]
    offsets = [a / b for a, b in zip(overhead_s, per_sample_s, strict=True)]
    level, exact = _solve(slopes, offsets, total, bounds)
    shares = list(map(int, exact))
    left = total - sum(shares)
    if left > len(shares) // 8:  # a little later, most of what rounding down left over has found its place
        columns = zip(slopes, bounds.lower, exact, bounds.upper, strict=True)
        growth = math.fsum([w for w, low, x, high in columns if low < x < high])
        later = list(map(int, _shares_at(level + 0.9 * left / growth, slopes, offsets, bounds)))
        if sum(later) <= total:
            shares, left = later, total - sum(later)
    if left > 0:
        _hand_out(shares, left, overhead_s, per_sample_s, bounds.upper)
    elif left < 0:  # where overheads dwarf the cost of a sample, rounding can hand out one too many
        _take_back(shares, -left, overhead_s, per_sample_s, bounds.lower)
    return tuple(shares)


def _solve(slopes: Sequence[float], offsets: list[float], total: int, bounds: Limits) -> tuple[float, list[float]]:
    """The level at which the real-valued shares add up to ``total``, and these shares."""
    level = (total + math.fsum(offsets)) / math.fsum(slopes)
    shares = [level * w - c for w, c in zip(slopes, offsets, strict=True)]
    if all(map(le, bounds.lower, shares)) and all(map(le, shares, bounds.upper)):
        return level, shares
    level = _Levels(slopes, offsets, total, bounds).solve(level)
    return level, _shares_at(level, slopes, offsets, bounds)


def _shares_at(level: float, slopes: Sequence[float], offsets: list[float], bounds: Limits) -> list[float]:
    """The real-valued shares clamp(level · slope − offset, lower, upper)."""
    shares = [level * w - c for w, c in zip(slopes, offsets, strict=True)]
    columns = zip(bounds.lower, shares, bounds.upper, strict=True)
    return [x if low <= x <= high else low if x < low else high for low, x, high in columns]


class _Levels:
    """Finds the level at which the clamped shares add up.

    The sum of the shares is a rising chain of straight lines. Newton's method follows the line at the current
    level to the goal and looks again who is held at a limit there; when nobody new is, the level is exact.
    Should it not settle, the corners of the chain are sorted and halved, and the last line is followed.
    """

    def __init__(self, slopes: Sequence[float], offsets: list[float], total: int, bounds: Limits) -> None:
        self.slopes, self.offsets, self.total, self.bounds = slopes, offsets, total, bounds
        self.starts = [(low + c) / w for w, c, low in zip(slopes, offsets, bounds.lower, strict=True)]
        self.ends = [(high + c) / w for w, c, high in zip(slopes, offsets, bounds.upper, strict=True)]

    def solve(self, level: float) -> float:
        """The level, searched from a first guess."""
        held = -1, -1
        for _ in range(_QUICK_ROUNDS):
            now, better = self._follow(level)
            if now == held:  # levels are ordered, so whoever is held nests: equal counts, equal sets
                return level
            if math.isnan(better):
                break
            held, level = now, better
        return self._halve()

    def _follow(self, level: float) -> tuple[tuple[int, int], float]:
        """How many are held at their limits here, and the level at which the shares add up if just these are.

        NaN if nobody is free.
        """
        low = [x for x, start in zip(self.bounds.lower, self.starts, strict=True) if start > level]
        high = [x for x, end in zip(self.bounds.upper, self.ends, strict=True) if end < level]
        free = [start <= level <= end for start, end in zip(self.starts, self.ends, strict=True)]
        rest = self.total - sum(low) - sum(high) + math.fsum(compress(self.offsets, free))
        slope = math.fsum(compress(self.slopes, free))
        return (len(low), len(high)), rest / slope if slope > 0.0 else math.nan

    def _halve(self) -> float:
        """The level, by halving the sorted corners."""
        corners = sorted({*self.starts, *self.ends})
        first, last = 0, len(corners) - 1
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if self._sum(corners[middle]) <= self.total else (first, middle)
        between = corners[first] + (corners[last] - corners[first]) / 2
        _, level = self._follow(between)
        return between if math.isnan(level) else min(max(level, corners[first]), corners[last])

    def _sum(self, level: float) -> float:
        return math.fsum(_shares_at(level, self.slopes, self.offsets, self.bounds))


def _largest(remainders: list[float], count: int) -> list[int]:
    """The positions of the ``count`` largest; among equals the first."""
    if not count:
        return []
    edge = sorted(remainders)[-count]
    near = [i for i, r in enumerate(remainders) if r >= edge - _SAME]
    sure = [i for i in near if remainders[i] > edge + _SAME]
    return sure + [i for i in near if remainders[i] <= edge + _SAME][: count - len(sure)]


def _around_zeros(weights: Sequence[float], total: int, bounds: Limits) -> tuple[int, ...]:
    """Ranks of weight zero stay at their lower limit, unless the others cannot take the rest."""
    groups = [i for i, w in enumerate(weights) if w > 0.0], [i for i, w in enumerate(weights) if w == 0.0]
    some, none = (
        Limits(lower=tuple(bounds.lower[i] for i in group), upper=tuple(bounds.upper[i] for i in group))
        for group in groups
    )
    part = min(total - sum(none.lower), sum(some.upper))
    shares = [0] * len(weights)
    for i, share in zip(groups[0], proportional([weights[i] for i in groups[0]], part, some), strict=True):
        shares[i] = share
    for i, share in zip(groups[1], proportional([1.0] * len(groups[1]), total - part, none), strict=True):
        shares[i] = share
    return tuple(shares)


def _hand_out(
    shares: list[int], left: int, overhead_s: Sequence[float], cost_s: Sequence[float], upper: Sequence[int]
) -> None:
    """One sample at a time to the rank that finishes earliest with it; the lower rank first."""
    columns = zip(overhead_s, cost_s, shares, upper, strict=True)
    ends = [a + b * (x + 1) if x < high else math.inf for a, b, x, high in columns]
    # Each of the earliest ``left`` takes one or somebody earlier takes two: nobody later than these gets any.
    latest = sorted(ends)[min(left, len(ends)) - 1]
    heap = [(end, i) for i, end in enumerate(ends) if end <= latest and end < math.inf]
    heapq.heapify(heap)
    for _ in range(left):
        i = heap[0][1]
        shares[i] += 1
        if shares[i] < upper[i]:
            heapq.heapreplace(heap, (overhead_s[i] + cost_s[i] * (shares[i] + 1), i))
        else:
            heapq.heappop(heap)


def _take_back(
    shares: list[int], over: int, overhead_s: Sequence[float], cost_s: Sequence[float], lower: Sequence[int]
) -> None:
    """One sample at a time from the rank that finishes last; the higher rank first."""
    for _ in range(over):
        movable = (i for i, share in enumerate(shares) if share > lower[i])
        shares[max(movable, key=lambda i: (overhead_s[i] + cost_s[i] * shares[i], i))] -= 1


def _known(weights: Sequence[float]) -> Sequence[float]:
    """The weights as numbers that can be reckoned with: the unknown filled in, the negligible made zero."""
    top = max(weights)
    if 1 / _RANGE < top < _RANGE and min(weights) > top / _RANGE and not any(map(math.isnan, weights)):
        return weights
    for rank, weight in enumerate(weights):
        if weight < 0.0 or weight == math.inf:
            raise ConfigError(f"weight of rank {rank} is {weight}: it must be zero or positive, NaN if unknown")
    known = [weight for weight in weights if weight == weight]
    top = max(known, default=0.0)
    if top == 0.0:
        return [1.0] * len(weights)
    shift = -math.frexp(top)[1]  # a power of two, so that no digit changes
    scaled = [math.ldexp(weight, shift) for weight in weights]
    mean = math.fsum(weight for weight in scaled if weight == weight) / len(known)
    scaled = [weight if weight == weight else mean for weight in scaled]
    return [weight if weight > 1 / _RANGE else 0.0 for weight in scaled]


def _checked(workers: int, total: int, limits: Limits | None) -> Limits:
    if workers == 0:
        raise ConfigError(f"a batch of {total} samples cannot be split over 0 workers: name at least one")
    if not 0 <= total <= MOST_SAMPLES:
        raise ConfigError(f"a batch of {total} samples cannot be split: it must be 0 … {MOST_SAMPLES}")
    bounds = Limits.uniform(workers, total, lower=0) if limits is None else limits
    if not len(bounds.lower) == len(bounds.upper) == workers:
        raise ConfigError(
            f"limits for {len(bounds.lower)} (lower) and {len(bounds.upper)} (upper) workers do not fit "
            f"{workers} workers: give one of each per worker"
        )
    bounds.check(total)
    return bounds


def _check_costs(overhead_s: Sequence[float], per_sample_s: Sequence[float]) -> None:
    if len(overhead_s) != len(per_sample_s):
        raise ConfigError(
            f"{len(overhead_s)} overheads do not fit {len(per_sample_s)} costs per sample: give one of each"
        )
    for rank, (a, b) in enumerate(zip(overhead_s, per_sample_s, strict=True)):
        if not 1e-300 < b < math.inf:
            raise ConfigError(f"cost per sample of rank {rank} is {b} s: it must be positive and finite")
        if not 0.0 <= a <= b * MOST_SAMPLES:
            raise ConfigError(
                f"overhead of rank {rank} is {a} s, with {b} s per sample: it must be zero or positive, and "
                f"worth at most {MOST_SAMPLES} samples"
            )

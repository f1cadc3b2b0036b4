"""What ``proportional`` computes, in plain Python, slow and without checks, for tests.

The same formulas in the same order, so the shares must be identical, in the last bit too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from uneven.policy.core.views import Limits


def proportional(weights: list[float], total: int, limits: Limits) -> list[int]:
    """Largest remainder of clamp(level · weight, lower, upper); zero and NaN as documented there."""
    slopes = known(weights)
    if 0.0 in slopes:
        return around_zeros(slopes, total, limits)
    _, exact = Lines(slopes, [0.0] * len(slopes), total, limits).solve()
    shares = [int(x) for x in exact]
    left = total - sum(shares)
    if left:
        rests = [x - share for x, share in zip(exact, shares, strict=True)]
        edge = sorted(rests)[-left]
        sure = [i for i, rest in enumerate(rests) if rest > edge + 1e-6]
        equal = [i for i, rest in enumerate(rests) if edge - 1e-6 <= rest <= edge + 1e-6]
        for i in sure + equal[: left - len(sure)]:
            shares[i] += 1
    return shares


def around_zeros(weights: list[float], total: int, limits: Limits) -> list[int]:
    some = [i for i, weight in enumerate(weights) if weight > 0.0]
    none = [i for i, weight in enumerate(weights) if weight == 0.0]
    part = min(total - sum(limits.lower[i] for i in none), sum(limits.upper[i] for i in some))
    shares = [0] * len(weights)
    for group, samples in ((some, part), (none, total - part)):
        bounds = Limits(lower=tuple(limits.lower[i] for i in group), upper=tuple(limits.upper[i] for i in group))
        given = proportional([weights[i] or 1.0 for i in group], samples, bounds)
        for i, share in zip(group, given, strict=True):
            shares[i] = share
    return shares


def known(weights: list[float]) -> list[float]:
    numbers = [weight for weight in weights if weight == weight]
    top = max(numbers, default=0.0)
    if top == 0.0:
        return [1.0] * len(weights)
    if len(numbers) == len(weights) and 1e-100 < top < 1e100 and min(weights) > top / 1e100:
        return weights
    scaled = [math.ldexp(weight, -math.frexp(top)[1]) for weight in weights]
    mean = math.fsum(weight for weight in scaled if weight == weight) / len(numbers)
    return [weight if weight > 1e-100 else 0.0 for weight in (mean if w != w else w for w in scaled)]


@dataclass
class Lines:
    """x_i = clamp(level · slope_i − offset_i, lower_i, upper_i)."""

    slopes: list[float]
    offsets: list[float]
    total: int
    limits: Limits

    def solve(self) -> tuple[float, list[float]]:
        level = (self.total + math.fsum(self.offsets)) / math.fsum(self.slopes)
        shares = [level * slope - offset for slope, offset in zip(self.slopes, self.offsets, strict=True)]
        if shares == self.at(level):
            return level, shares
        level = self.newton(level)
        return level, self.at(level)

    def at(self, level: float) -> list[float]:
        columns = zip(self.slopes, self.offsets, self.limits.lower, self.limits.upper, strict=True)
        return [min(max(level * slope - offset, low), high) for slope, offset, low, high in columns]

    def newton(self, level: float) -> float:
        held = -1, -1
        for _ in range(8):
            now, better = self.follow(level)
            if now == held:
                return level
            if math.isnan(better):
                break
            held, level = now, better
        return self.halve()

    def follow(self, level: float) -> tuple[tuple[int, int], float]:
        starts, ends = self.corners()
        low = [x for x, start in zip(self.limits.lower, starts, strict=True) if start > level]
        high = [x for x, end in zip(self.limits.upper, ends, strict=True) if end < level]
        free = [i for i, start in enumerate(starts) if start <= level <= ends[i]]
        slope = math.fsum(self.slopes[i] for i in free)
        rest = self.total - sum(low) - sum(high) + math.fsum(self.offsets[i] for i in free)
        return (len(low), len(high)), rest / slope if slope else math.nan

    def halve(self) -> float:
        starts, ends = self.corners()
        corners = sorted({*starts, *ends})
        first, last = 0, len(corners) - 1
        while last - first > 1:
            middle = (first + last) // 2
            if math.fsum(self.at(corners[middle])) <= self.total:
                first = middle
            else:
                last = middle
        between = corners[first] + (corners[last] - corners[first]) / 2
        _, level = self.follow(between)
        return between if math.isnan(level) else min(max(level, corners[first]), corners[last])

    def corners(self) -> tuple[list[float], list[float]]:
        columns = list(zip(self.slopes, self.offsets, self.limits.lower, self.limits.upper, strict=True))
        starts = [(low + offset) / slope for slope, offset, low, _ in columns]
        return starts, [(high + offset) / slope for slope, offset, _, high in columns]

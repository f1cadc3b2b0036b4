"""The split with the earliest end for costs that are made of straight lines. Pure.

A worker's time is the largest of several lines, none of which falls: a floor, computing, an exchange that the backward
pass hides in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from uneven.core.exact import Floats, Wholes, column

_CLOSE = 1e-12
"""Relative width of the bracket within which times count as equal."""


class CostLines(NamedTuple):
    """start_s + slope_s · x for every worker, shape (n,) both; slopes are positive."""

    start_s: Floats
    slope_s: Floats


class Costs(NamedTuple):
    """Seconds of an iteration of each worker: the largest of its floor and its lines.

    Attributes:
        floor_s: shape (n,).
    """

    floor_s: Floats
    lines: tuple[CostLines, ...]

    def seconds(self, shares: Wholes | Floats) -> Floats:
        """Seconds that each of the n workers takes for its share; ``shares`` and the answer have shape (n,)."""
        found = self.floor_s
        for line in self.lines:
            found = np.maximum(found, line.start_s + line.slope_s * shares)
        return found


def earliest_end(costs: Costs, total: int, lower: Floats, upper: Floats, start: Sequence[int]) -> tuple[int, ...]:
    """Shares for which the last worker finishes as early as possible.

    A worker takes as many samples as it can finish by a time T. The least T by which all together finish ``total`` is
    searched between two bounds, until a sample makes the difference. That is the exact integer min-max for every cost
    that does not fall (specification, §1.5). Samples over, where several finish at the same T, are taken from the
    higher ranks.

    Args:
        costs: of each worker.
        total: samples to hand out.
        lower, upper: least and greatest share of each worker, shape (n,); they fit the total.
        start: any split that keeps them.
    """
    early_s, late_s = 0.0, float(costs.seconds(column(start)).max()) * (1.0 + 1e-9)
    few, many = lower, _by(costs, late_s, lower, upper)
    short, over = total - int(few.sum()), int(many.sum()) - total
    rounds = 0
    while short > 0 and over > 0 and late_s - early_s > _CLOSE * late_s:
        # Where the shares lie on straight lines this hits; halving now and then ends it where they do not.
        part = 0.5 if rounds % 3 == 2 else min(max((short + 0.5) / (short + over), 0.02), 0.98)
        middle_s, rounds = early_s + part * (late_s - early_s), rounds + 1
        shares = _by(costs, middle_s, lower, upper)
        more = int(shares.sum()) - total  # whole numbers, so the sum is exact in any order
        if more < 0:
            early_s, few, short = middle_s, shares, -more
        else:
            late_s, many, over = middle_s, shares, more
    if short == 0:
        many, over = few, 0
    return _without(few.astype(np.int64), many.astype(np.int64), total)


def _by(costs: Costs, time_s: float, lower: Floats, upper: Floats) -> Floats:
    """How many whole samples each worker can finish by a time, within its limits."""
    shares = upper
    for line in costs.lines:
        shares = np.minimum(shares, (time_s - line.start_s) / line.slope_s)
    shares = np.where(costs.floor_s <= time_s, np.floor(shares), lower)
    found: Floats = np.maximum(shares, lower)
    return found


def _without(few: Wholes, many: Wholes, total: int) -> tuple[int, ...]:
    """``many`` less what is over, taken from the higher ranks, nobody below ``few``."""
    over = int(many.sum()) - total
    loose = (many - few)[::-1]
    before = np.cumsum(loose) - loose
    taken = np.clip(over - before, 0, loose)
    return tuple((many - taken[::-1]).tolist())

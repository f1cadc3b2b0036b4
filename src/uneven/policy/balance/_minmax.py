"""The min-max split for costs with a floor and a slope."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from uneven.policy.balance._fitting import Curve
from uneven.policy.core.exact import Floats, Wholes, column

_CLOSE = 1e-12  # relative width of the bracket within which times count as equal


def earliest_end(costs: Curve, total: int, lower: Floats, upper: Floats, start: Sequence[int]) -> tuple[int, ...]:
    """Return the shares that sum to ``total`` with which the last worker finishes as early as possible.

    This is the exact integer min-max (specification, §1.5); slopes must be positive. Surplus samples, if several
    workers finish at the same T, are taken from the higher ranks. ``lower`` and ``upper`` have shape (n,); ``start`` is
    any split within them.
    """
    early_s, late_s = 0.0, float(costs.seconds(column(start)).max()) * (1.0 + 1e-9)
    # Search the least time T by which all workers together finish ``total`` samples, until the bracket holds one split.
    few, many = lower, _by(costs, late_s, lower, upper)
    short, over = total - int(few.sum()), int(many.sum()) - total
    rounds = 0
    while short > 0 and over > 0 and late_s - early_s > _CLOSE * late_s:
        # Interpolation hits on straight lines; halving every third time bounds the search otherwise.
        part = 0.5 if rounds % 3 == 2 else min(max((short + 0.5) / (short + over), 0.02), 0.98)
        middle_s, rounds = early_s + part * (late_s - early_s), rounds + 1
        shares = _by(costs, middle_s, lower, upper)
        more = int(shares.sum()) - total  # integers, so the sum is exact in any order
        if more < 0:
            early_s, few, short = middle_s, shares, -more
        else:
            late_s, many, over = middle_s, shares, more
    if short == 0:
        many, over = few, 0
    return _without(few.astype(np.int64), many.astype(np.int64), total)


def _by(costs: Curve, time_s: float, lower: Floats, upper: Floats) -> Floats:
    # The integer number of samples that each worker can finish by the time, within its limits.
    shares = np.minimum(upper, (time_s - costs.overhead_s) / costs.per_sample_s)
    shares = np.where(costs.floor_s <= time_s, np.floor(shares), lower)
    found: Floats = np.maximum(shares, lower)
    return found


def _without(few: Wholes, many: Wholes, total: int) -> tuple[int, ...]:
    # Take the surplus of ``many`` from the higher ranks, none below ``few``.
    over = int(many.sum()) - total
    loose = (many - few)[::-1]
    before = np.cumsum(loose) - loose
    taken = np.clip(over - before, 0, loose)
    return tuple((many - taken[::-1]).tolist())

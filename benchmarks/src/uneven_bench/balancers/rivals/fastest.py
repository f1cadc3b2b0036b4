"""Whole samples for every worker, so that the last one finishes first; costs are affine."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.core.apportion import MOST_SAMPLES, SpeedLines, bounds
from uneven.policy.core.exact import Floats, Wholes, column, exact_sum
from uneven.policy.core.views import Limits
from uneven_bench.balancers.rivals.greedy import hand_out, take_back


def fastest_finish(
    overhead_s: Sequence[float], per_sample_s: Sequence[float], total: int, limits: Limits | None = None
) -> tuple[int, ...]:
    """Return the shares for which the last rank finishes as early as possible: least max_i (overhead_i + cost_i · x_i).

    The result equals that of giving one sample at a time to the rank that would finish earliest with it (specification
    of LB-BSP, §1.5), which is optimal for every cost that grows with the batch. O(n log n). Raises ConfigError: limits
    that cannot be met, a negative or infinite cost, a total out of range.

    ``overhead_s``: seconds that rank i needs for any share; ``per_sample_s``: seconds that each sample adds; ``total``:
    samples to hand out; ``limits``: least and greatest share of each rank; by default 0 and ``total``. Returns one
    share per rank. They add up to ``total`` exactly.
    """
    lower, upper = bounds(len(per_sample_s), total, limits)
    if len(overhead_s) != len(per_sample_s):
        raise ConfigError(
            f"{len(overhead_s)} overheads do not fit {len(per_sample_s)} costs per sample: give one of each"
        )
    a, b = column(overhead_s), column(per_sample_s)
    with np.errstate(over="ignore"):  # a cost near the largest number overflows to infinity, which is late enough
        _check_costs(a, b)
        lines = SpeedLines(1.0 / b, a / b, lower, upper, total)
        shares, left = _nearly_all(lines)
        if left > 0:
            hand_out(shares, left, a, b, upper)
        elif left < 0:  # if overheads dwarf the cost of a sample, rounding can give one too many
            take_back(shares, -left, a, b, lower)
    return tuple(shares.tolist())


def _nearly_all(lines: SpeedLines) -> tuple[Wholes, int]:
    """Return whole shares not above the best ones, rounding aside, and the number of samples left over."""
    level, exact = lines.solve()
    shares = exact.astype(np.int64)
    left = lines.total - int(shares.sum())
    if left > len(shares) // 8:  # a slightly later finish places most samples that rounding down left over
        growth = exact_sum(lines.slopes[(lines.lower < exact) & (exact < lines.upper)])
        later = lines.at(level + 0.9 * left / growth).astype(np.int64)
        spare = lines.total - int(later.sum())
        if spare >= 0:
            return later, spare
    return shares, left


def _check_costs(overhead_s: Floats, per_sample_s: Floats) -> None:
    usable = (per_sample_s > 1e-300) & (per_sample_s < math.inf)
    good = usable & (overhead_s >= 0.0) & (overhead_s <= per_sample_s * MOST_SAMPLES)
    if good.all():
        return
    rank = int(np.argmin(good))
    a, b = float(overhead_s[rank]), float(per_sample_s[rank])
    if not usable[rank]:
        raise ConfigError(f"cost per sample of rank {rank} is {b} s: it must be positive and finite")
    raise ConfigError(
        f"overhead of rank {rank} is {a} s, with {b} s per sample: it must be zero or positive, and "
        f"worth at most {MOST_SAMPLES} samples"
    )

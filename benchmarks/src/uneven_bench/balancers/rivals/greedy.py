"""One sample at a time: the last stage of :func:`~uneven_bench.balancers.rivals.fastest.fastest_finish`.

Rank i finishes x samples after overhead_i + cost_i · x seconds. All arrays have shape (n,); ``shares`` changes in
place.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
import numpy.typing as npt

from uneven.policy.core.exact import Floats, Wholes

Ranks = npt.NDArray[np.intp]

_BATCH = 100  # from this number of samples, handing them out together pays


def hand_out(shares: Wholes, left: int, overhead_s: Floats, cost_s: Floats, upper: Floats) -> None:
    """Give one sample at a time to the rank that finishes earliest with it; the lower rank first. Arrays have shape
    (n,)."""
    worth_it = max(_BATCH, len(shares) // 8)
    while left > worth_it:
        takers = _one_each(shares, left, overhead_s, cost_s, upper)
        shares[takers] += 1
        left -= len(takers)
        if len(takers) < worth_it:
            break
    if left == 0:
        return
    near, ends = _earliest(shares, left, overhead_s, cost_s, upper)
    a, b, x, most = (values[near].tolist() for values in (overhead_s, cost_s, shares, upper))
    heap = list(zip(ends.tolist(), range(len(near)), strict=True))
    heapq.heapify(heap)
    for _ in range(left):
        i = heap[0][1]
        x[i] += 1
        if x[i] < most[i]:
            heapq.heapreplace(heap, (a[i] + b[i] * (x[i] + 1), i))
        else:
            heapq.heappop(heap)
    shares[near] = x


def _earliest(shares: Wholes, left: int, overhead_s: Floats, cost_s: Floats, upper: Floats) -> tuple[Ranks, Floats]:
    """Return the ranks that may get some of the ``left`` samples, ascending, and the time of each with one more."""
    ends = np.where(shares < upper, overhead_s + cost_s * (shares + 1), math.inf)
    # Each of the earliest ``left`` ranks takes one, or an earlier one takes two: no later rank gets any.
    place = min(left, len(ends)) - 1
    edge = np.partition(ends, place)[place]
    sure = np.flatnonzero(ends < edge)
    equal = np.flatnonzero((ends == edge) & (ends < math.inf))
    near = np.sort(np.concatenate([sure, equal[: left - len(sure)]]))
    return near, ends[near]


def _one_each(shares: Wholes, left: int, overhead_s: Floats, cost_s: Floats, upper: Floats) -> Ranks:
    """Return the ranks that get one of the ``left`` samples before any rank gets a second."""
    near, ends = _earliest(shares, left, overhead_s, cost_s, upper)
    after = shares[near] + 1
    seconds = np.where(after < upper[near], overhead_s[near] + cost_s[near] * (after + 1), math.inf)
    takers: Ranks = near[ends < seconds.min()]
    return takers


def take_back(shares: Wholes, over: int, overhead_s: Floats, cost_s: Floats, lower: Floats) -> None:
    """Take one sample at a time from the rank that finishes last; the higher rank first. Arrays have shape (n,)."""
    for _ in range(over):
        ends = np.where(shares > lower, overhead_s + cost_s * shares, -math.inf)
        shares[len(ends) - 1 - int(np.argmax(ends[::-1]))] -= 1

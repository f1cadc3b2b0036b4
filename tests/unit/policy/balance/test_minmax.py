"""The integer min-max for costs with a floor and a slope, against trying one sample at a time."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.policy.balance._fitting import Curve
from uneven.policy.balance.analytic import earliest_end
from uneven.policy.core.apportion import proportional
from uneven.policy.core.exact import column
from uneven.policy.core.views import Limits


def one_at_a_time(costs: Curve, total: int, limits: Limits) -> float:
    """Seconds of the best split: samples go one by one to whoever would finish earliest with it."""
    n = len(limits.lower)

    def seconds(i: int, x: int) -> float:
        return float(costs.seconds(np.full(n, float(x)))[i])

    shares = list(limits.lower)
    heap = [(seconds(i, x + 1), i) for i, x in enumerate(shares) if x < limits.upper[i]]
    heapq.heapify(heap)
    for _ in range(total - sum(shares)):
        _, i = heapq.heappop(heap)
        shares[i] += 1
        if shares[i] < limits.upper[i]:
            heapq.heappush(heap, (seconds(i, shares[i] + 1), i))
    return max(seconds(i, x) for i, x in enumerate(shares))


def within(costs: Curve, total: int, limits: Limits, start: tuple[int, ...]) -> tuple[int, ...]:
    return earliest_end(costs, total, column(limits.lower), column(limits.upper), start)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Curve, int, Limits]:
    n = draw(st.integers(1, 6))

    def row(low: float, high: float) -> np.ndarray:
        return np.array(draw(st.lists(st.floats(low, high), min_size=n, max_size=n)))

    lower = tuple(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    upper = tuple(low + draw(st.integers(0, 60)) for low in lower)
    total = draw(st.integers(sum(lower), sum(upper)))
    return Curve(row(0.0, 0.8), row(0.0, 0.5), row(1e-4, 1e-2)), total, Limits(lower=lower, upper=upper)


@settings(max_examples=100)
@given(problem=problems())
def test_it_is_as_early_as_one_sample_at_a_time(problem: tuple[Curve, int, Limits]) -> None:
    costs, total, limits = problem
    shares = within(costs, total, limits, proportional([1.0] * len(limits.lower), total, limits))
    assert sum(shares) == total
    assert all(low <= x <= high for low, x, high in zip(limits.lower, shares, limits.upper, strict=True))
    assert float(costs.seconds(np.array(shares, float)).max()) <= one_at_a_time(costs, total, limits) * (1 + 1e-9)


def test_samples_over_at_equal_times_are_taken_from_the_higher_ranks() -> None:
    alike = Curve(np.zeros(3), np.zeros(3), np.ones(3))
    assert within(alike, 10, Limits.uniform(3, 10), (4, 3, 3)) == (4, 3, 3)


def test_below_a_floor_samples_cost_nothing() -> None:
    costs = Curve(np.array([1.0, 0.0]), np.zeros(2), np.array([0.01, 0.02]))
    shares = within(costs, 110, Limits.uniform(2, 110), (55, 55))
    assert float(costs.seconds(np.array(shares, float)).max()) == 1.0

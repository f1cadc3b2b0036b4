"""The exact sum, against ``math.fsum``."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.policy.core.exact import column, exact_sum

MANY = settings(max_examples=100)


@MANY
@given(st.lists(st.floats(-1e300, 1e300), max_size=300))
def test_any_values_add_up_as_fsum_says(values: list[float]) -> None:
    assert exact_sum(column(values)) == math.fsum(values)


@pytest.mark.parametrize("spread", [0, 3, 30, 300, 900])
@pytest.mark.parametrize("count", [99, 100, 1023, 1024, 10_000])
def test_many_values_of_every_spread_add_up_as_fsum_says(count: int, spread: int) -> None:
    rng = random.Random(f"{count} {spread}")
    values = [rng.choice((-1, 1, 1)) * math.ldexp(rng.random(), -rng.randint(0, spread)) for _ in range(count)]
    assert exact_sum(column(values)) == math.fsum(values)


def test_the_order_does_not_matter_where_it_does_for_a_plain_sum() -> None:
    rng = random.Random(3)
    values = [rng.lognormvariate(0.0, 4.0) for _ in range(5000)]
    orders = [values, values[::-1], sorted(values), sorted(values, reverse=True)]
    assert len({exact_sum(column(order)) for order in orders}) == 1
    assert len({float(np.cumsum(column(order))[-1]) for order in orders}) > 1


def test_what_cancels_leaves_the_smallest() -> None:
    big = [1e200, 1.0, -1e200, 2.0**-60] * 50
    assert exact_sum(column(big)) == 50.0 + 50 * 2.0**-60 == math.fsum(big)
    assert exact_sum(column([1e16, 1.0, -1e16] * 100)) == 100.0


@pytest.mark.parametrize("count", [3, 300])
def test_the_edges(count: int) -> None:
    assert exact_sum(column([0.0] * count)) == 0.0
    assert exact_sum(column([5e-324] * count)) == count * 5e-324
    assert exact_sum(column([1e305] * count)) == math.fsum([1e305] * count)
    assert exact_sum(column([math.inf] * count)) == math.inf


def test_whole_numbers_become_a_column_of_floats() -> None:
    made = column((1, 2, 2**53))
    assert (made.dtype, made.tolist()) == (np.float64, [1.0, 2.0, 2.0**53])
    assert column(()).shape == (0,)

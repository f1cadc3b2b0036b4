"""Exact apportionment, against slow and obvious solutions of the same problem."""

from __future__ import annotations

import itertools
import math
import random
import sys
from fractions import Fraction

import numpy as np
import plain_apportion
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.policy.core import apportion
from uneven.policy.core.apportion import MOST_SAMPLES, proportional
from uneven.policy.core.exact import column
from uneven.policy.core.views import Limits

MANY = settings(max_examples=100)


@st.composite
def problems(draw: st.DrawFn, most_workers: int = 8, most_each: int = 40) -> tuple[int, int, Limits]:
    """Number of workers, total and limits that can be met."""
    n = draw(st.integers(1, most_workers))
    lower = draw(st.lists(st.integers(0, most_each // 4), min_size=n, max_size=n))
    upper = [low + draw(st.integers(0, most_each)) for low in lower]
    total = draw(st.integers(sum(lower), sum(upper)))
    return n, total, Limits(lower=tuple(lower), upper=tuple(upper))


def clamp(x: Fraction, low: int, high: int) -> Fraction:
    return min(max(x, Fraction(low)), Fraction(high))


def by_the_book(weights: list[int], total: int, limits: Limits) -> tuple[int, ...]:
    """Water filling in fractions, corner by corner, then largest remainder; the lower rank first."""
    rows = list(zip(weights, limits.lower, limits.upper, strict=True))
    corners = sorted({Fraction(x, w) for w, low, high in rows for x in (low, high)})

    def reached(level: Fraction) -> Fraction:
        return sum((clamp(level * w, low, high) for w, low, high in rows), Fraction(0))

    level = corners[0]
    for here, there in itertools.pairwise(corners):
        level = here
        if reached(there) >= total:
            rise = reached(there) - reached(here)
            level += (there - here) * (total - reached(here)) / rise if rise else 0
            break
    exact = [clamp(level * w, low, high) for w, low, high in rows]
    shares = [math.floor(x) for x in exact]
    order = sorted(range(len(rows)), key=lambda i: (shares[i] - exact[i], i))
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def fits(shares: tuple[int, ...], total: int, limits: Limits) -> bool:
    inside = all(low <= x <= high for low, x, high in zip(limits.lower, shares, limits.upper, strict=True))
    return inside and sum(shares) == total


# --- proportional -------------------------------------------------------------------------------------------


@MANY
@given(problem=problems(), data=st.data())
def test_it_is_water_filling_and_largest_remainder(problem: tuple[int, int, Limits], data: st.DataObject) -> None:
    n, total, limits = problem
    weights = data.draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n))
    assert proportional(weights, total, limits) == by_the_book(weights, total, limits)


@MANY
@given(problem=problems(), data=st.data())
def test_sum_and_limits_hold_for_any_weights(problem: tuple[int, int, Limits], data: st.DataObject) -> None:
    n, total, limits = problem
    strange = st.one_of(st.floats(0, 1e300, allow_subnormal=True), st.sampled_from([0.0, math.nan, 5e-324, 1e300, 1.0]))
    weights = data.draw(st.lists(strange, min_size=n, max_size=n))
    assert fits(proportional(weights, total, limits), total, limits)


def test_the_papers_rule_without_limits() -> None:
    assert proportional([0.6, 0.4, 0.2, 0.1], 512) == (236, 158, 79, 39)


def test_ties_go_to_the_lower_rank() -> None:
    assert proportional([1, 1, 1], 5) == (2, 2, 1)
    assert proportional([0.3, 0.1], 2) == (2, 0), "0.3 is not 3 · 0.1 in binary; that must decide nothing"


def test_both_sides_are_clamped_at_once() -> None:
    # Clamping the lower side first would hold rank 2 at 5; with rank 0 capped it earns 15.
    limits = Limits(lower=(1, 1, 5), upper=(10, 100, 100))
    assert proportional([100, 2, 3], 35, limits) == (10, 10, 15)


def test_zero_asks_for_the_lower_limit_only() -> None:
    limits = Limits(lower=(1, 1, 1), upper=(9, 9, 9))
    assert proportional([0, 1, 1], 11, limits) == (1, 5, 5)
    assert proportional([0, 0, 1], 19, limits) == (5, 5, 9), "but somebody has to take the rest"


def test_unknown_counts_as_the_mean_and_nothing_known_as_equal() -> None:
    assert proportional([math.nan, 1, 3], 12) == (4, 2, 6)
    assert proportional([math.nan, math.nan], 4) == (2, 2)
    assert proportional([0, 0], 4) == (2, 2)


def test_a_giant_beside_dwarfs() -> None:
    limits = Limits(lower=(0, 0, 0), upper=(4, 100, 100))
    assert proportional([1e15, 3.0, 1.0], 12, limits) == (4, 6, 2)


def test_totals_at_the_edge() -> None:
    assert proportional([1, 2], 0) == (0, 0)
    assert sum(proportional([1 / 3, 1 / 7, 1 / 11], MOST_SAMPLES)) == MOST_SAMPLES


@MANY
@given(problem=problems(), data=st.data())
def test_halving_comes_to_the_same_as_newton(problem: tuple[int, int, Limits], data: st.DataObject) -> None:
    n, total, limits = problem
    slopes = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=n, max_size=n))
    lower, upper, slope = column(limits.lower), column(limits.upper), column(slopes)
    lines = apportion.SpeedLines(slope, np.zeros(n), lower, upper, total)
    corners = lower / slope, upper / slope
    found = [lines.newton(*corners, total / math.fsum(slopes)), lines.halve(*corners)]
    for level in found:
        shares = (min(max(level * w, lo), hi) for w, lo, hi in zip(slopes, limits.lower, limits.upper, strict=True))
        assert math.isclose(math.fsum(shares), total, rel_tol=1e-12, abs_tol=1e-9)


# --- in the last bit ------------------------------------------------------------------------------------

KINDS = {
    "log-normal": lambda rng: rng.lognormvariate(4.0, 0.5),
    "few values": lambda rng: rng.choice((0.1, 0.3, 1.0, 2.0, 3.0)),
    "all the same": lambda rng: 50.0,
    "whole": lambda rng: float(rng.randint(1, 1000)),
    "wide": lambda rng: 10.0 ** rng.uniform(-40, 40),
    "strange": lambda rng: rng.choice((0.0, math.nan, 5e-324, 1e300, 1.0, 7.3, 1e-90)),
}


def random_limits(rng: random.Random, workers: int, most: int) -> Limits:
    lower = tuple(rng.randint(0, most // 4) for _ in range(workers))
    upper = tuple(low + rng.randint(0, most) for low in lower)
    return Limits(lower=lower, upper=rng.choice((upper, (10**6,) * workers, (sys.maxsize,) * workers)))


@pytest.mark.parametrize("workers", [1, 2, 5, 40, 99, 100, 700])
@pytest.mark.parametrize("kind", KINDS)
def test_the_shares_are_those_of_plain_python(kind: str, workers: int) -> None:
    rng = random.Random(f"{kind} {workers}")
    for most in (1, 3, 40, 1000, 10**6):
        limits = random_limits(rng, workers, most)
        total = rng.randint(sum(limits.lower), min(sum(limits.upper), sum(limits.lower) + workers * most))
        weights = [KINDS[kind](rng) for _ in range(workers)]
        assert list(proportional(weights, total, limits)) == plain_apportion.proportional(weights, total, limits)


def test_the_shares_are_plain_integers() -> None:
    assert {type(x) for x in proportional([0.6, 0.4], 10)} == {int}


def test_limits_beyond_every_machine_integer_hold_nobody_back() -> None:
    limits = Limits(lower=(0, 0), upper=(10**25, 10**25))
    assert proportional([3.0, 1.0], 8, limits) == (6, 2)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "total", "limits", "names"),
    [
        ([], 4, None, "0 workers"),
        ([1.0, -2.0], 4, None, "rank 1 is -2.0"),
        ([1.0, math.inf], 4, None, "rank 1 is inf"),
        ([1.0], -1, None, "batch of -1"),
        ([1.0], MOST_SAMPLES + 1, None, str(MOST_SAMPLES + 1)),
        ([1.0, 1.0], 4, Limits(lower=(1,), upper=(4,)), "2 workers"),
        ([1.0, 1.0], 4, Limits(lower=(3, 3), upper=(4, 4)), "global batch of 4"),
        ([1.0, 1.0], 9, Limits(lower=(1, 1), upper=(4, 4)), "global batch of 9"),
    ],
)
def test_what_cannot_be_split_is_refused(weights: list[float], total: int, limits: Limits | None, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        proportional(weights, total, limits)


def test_limits_may_be_lists_and_are_those_that_hold_now() -> None:
    lower = [1, 1]
    assert proportional([1.0, 9.0], 10, Limits(lower=lower, upper=[9, 5])) == (5, 5)  # type: ignore[arg-type]
    lower[0] = 7
    assert proportional([1.0, 9.0], 10, Limits(lower=lower, upper=[9, 5])) == (7, 3)  # type: ignore[arg-type]

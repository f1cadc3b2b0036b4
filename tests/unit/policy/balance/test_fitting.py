"""Curves through a few points."""

from __future__ import annotations

import numpy as np
import pytest

from uneven.policy.balance._fitting import Curve, Points, fit


def points(*rows: tuple[float, float, float]) -> Points:
    """Size, seconds, iterations; one worker, and one slot that is empty."""
    filled = (*rows, (np.inf, 0.0, 0.0))
    size, local_s, weight = (np.array(values, float)[:, None] for values in zip(*filled, strict=True))
    return Points(size, local_s, weight)


def drawn(found: Curve) -> tuple[float, float, float]:
    return float(found.floor_s[0]), float(found.overhead_s[0]), float(found.per_sample_s[0])


QUIET = np.array([0.02])


def test_one_size_is_taken_for_proportional() -> None:
    floor_s, overhead_s, per_sample_s = drawn(fit(points((40, 0.2, 8)), QUIET))
    assert (floor_s, per_sample_s) == (0.0, pytest.approx(0.005))
    assert overhead_s == pytest.approx(0.0, abs=1e-9)


def test_a_constant_part_is_found() -> None:
    rows = [(x, 0.09 + 0.001 * x, 20) for x in (20, 60, 90)]
    floor_s, overhead_s, per_sample_s = drawn(fit(points(*rows), QUIET))
    assert floor_s == 0.0
    assert (overhead_s, per_sample_s) == (pytest.approx(0.09, rel=0.02), pytest.approx(0.001, rel=0.05))


def test_saturation_is_found() -> None:
    rows = [(x, max(0.03, 0.002 + 0.0004 * x), 20) for x in (10, 30, 60, 100, 140)]
    found = fit(points(*rows), QUIET)
    floor_s, overhead_s, per_sample_s = drawn(found)
    assert floor_s == pytest.approx(0.03, rel=0.01)
    assert (overhead_s, per_sample_s) == (pytest.approx(0.002, abs=5e-4), pytest.approx(0.0004, rel=0.05))
    assert found.seconds(np.array([1.0]))[0] == pytest.approx(0.03, rel=0.01)


def test_noise_is_not_taken_for_saturation() -> None:
    rng = np.random.default_rng(3)
    floors = 0
    for _ in range(50):
        rows = [(x, (0.05 + 0.001 * x) * (1 + 0.1 * rng.standard_normal() / 2), 4) for x in (20, 40, 60, 80)]
        floors += drawn(fit(points(*rows), np.array([0.1])))[0] > 0.0
    assert floors <= 2


def test_no_curve_falls_and_none_begins_below_zero() -> None:
    falling = drawn(fit(points((20, 0.3, 10), (40, 0.2, 10)), QUIET))
    assert falling[2] > 0.0
    convex = drawn(fit(points((20, 0.1, 10), (40, 0.4, 10)), QUIET))
    assert convex[1] == 0.0


def test_empty_slots_count_for_nothing() -> None:
    some = points((40, 0.2, 8), (np.inf, 0.0, 0.0))
    assert drawn(fit(some, QUIET)) == drawn(fit(points((40, 0.2, 8)), QUIET))

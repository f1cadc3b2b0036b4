"""Views: when everybody counts as having reported."""

from __future__ import annotations

import itertools
import math

import pytest

from uneven.policy.core.views import BalanceView, Limits


def view(speeds: tuple[float, ...]) -> BalanceView:
    n = len(speeds)
    return BalanceView(
        iteration=1,
        global_batch=8 * n,
        members=tuple(range(n)),
        shares=(8,) * n,
        observed=(None,) * n,
        predicted_per_s=speeds,
        limits=Limits.uniform(n, 8 * n),
    )


@pytest.mark.parametrize("missing", [math.nan, 0.0, -1.0, -math.inf])
def test_one_without_a_speed_at_any_place_is_enough_to_wait_for(missing: float) -> None:
    for speeds in itertools.permutations((2.0, 1e300, math.inf, missing)):
        assert not view(speeds).ready


def test_any_positive_speeds_are_ready() -> None:
    assert view((5e-324, 1.0, 1e308, 1e308)).ready
    assert view((3.0, math.inf, math.inf)).ready

"""LBB: profile, refit, single samples."""

from __future__ import annotations

import dataclasses
import itertools
from itertools import pairwise

import pytest
from test_rival_epoch_rules import at_start, seen

from uneven.errors import ConfigError
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven.testing.contracts import BalancerContract
from uneven_bench.balancers.earliest import earliest
from uneven_bench.balancers.rivals.cubic import Cubic
from uneven_bench.balancers.rivals.lbb import Lbb, one_sample, refit, straggling

LOOSE = Limits.uniform(4, 1000)


def measured(view: BalanceView, costs: list[Cubic], iteration: int) -> BalanceView:
    rows = tuple(
        Observation(iteration=iteration, samples=x, local_s=cost.seconds(x))
        for x, cost in zip(view.shares, costs, strict=True)
    )
    return dataclasses.replace(view, iteration=iteration, observed=rows, predicted_per_s=(1.0,) * len(rows))


def test_a_cubic_is_found_again() -> None:
    true = Cubic(0.02, 0.003, 1e-5, 2e-8)
    sizes = [2**power for power in range(1, 9)]
    found = Cubic.fit(sizes, [true.seconds(size) for size in sizes])
    assert found.seconds(100) == pytest.approx(true.seconds(100))
    assert found.a0 == pytest.approx(0.02)


def test_a_profile_never_starts_below_zero() -> None:
    found = Cubic.fit([2, 4, 8, 16], [0.0, 0.1, 0.3, 0.7])
    assert found.a0 == 0.0
    with pytest.raises(ConfigError, match="four different"):
        Cubic.fit([2, 4, 4, 8], [1.0, 2.0, 2.0, 4.0])


def test_the_profile_splits_so_that_all_finish_together() -> None:
    costs = [Cubic(0.1, 0.01), Cubic(0.0, 0.01), Cubic(0.0, 0.005, 1e-5)]
    seconds = [cost.seconds for cost in costs]
    shares = earliest(seconds, 100, Limits.uniform(3, 100))
    times = [cost.seconds(x) for cost, x in zip(costs, shares, strict=True)]
    assert sum(shares) == 100
    assert max(times) - min(times) < 0.011
    assert earliest(seconds, 100, Limits(lower=(30, 1, 1), upper=(100, 100, 40)))[0] == 30


def test_a_cubic_that_falls_does_not_draw_everything() -> None:
    falling = Cubic(0.0, 0.02, -2e-4)  # rises up to 50, falls from there
    shares = earliest([falling.seconds, Cubic(0.0, 0.01).seconds], 120, Limits.uniform(2, 120))
    assert sum(shares) == 120
    assert shares[1] >= 49, "where it falls, its largest value counts"


def test_no_split_finishes_earlier_and_of_equals_the_lower_rank_takes_a_sample() -> None:
    costs, limits = [Cubic(0.3, 0.1), Cubic(0.0, 0.2), Cubic(0.1, 0.05)], Limits(lower=(0, 1, 0), upper=(8, 8, 5))

    def finish(split: tuple[int, ...]) -> float:
        return max(cost.seconds(x) for cost, x in zip(costs, split, strict=True) if x)

    splits = [one for one in itertools.product(range(9), range(1, 9), range(6)) if sum(one) == 12]
    assert finish(earliest([cost.seconds for cost in costs], 12, limits)) == min(map(finish, splits))
    assert earliest([Cubic(0.0, 0.1).seconds] * 2, 13, Limits.uniform(2, 13)) == (7, 6)
    with pytest.raises(ConfigError, match="global batch of 40"):
        earliest([cost.seconds for cost in costs], 40, limits)


def test_se_is_the_range_over_the_mean() -> None:
    assert straggling([1.0, 1.0, 2.0]) == pytest.approx(0.75)


def test_exactly_one_sample_moves_although_the_listing_adds_one() -> None:
    shares, times_s = (25, 25, 25, 25), [1.0, 1.1, 1.2, 1.05]
    taken, given = 1 // 2, -(-1 // 2)  # the listing with its step of 1
    assert sum(shares) - taken + given == 101
    assert one_sample(shares, times_s, LOOSE) == (26, 25, 24, 25)
    assert one_sample((1, 9), [2.0, 1.0], Limits.uniform(2, 10)) == (1, 9), "never below the limit"
    assert one_sample((5, 5), [1.0, 1.0], Limits.uniform(2, 10)) == (5, 5)


def test_the_refit_goes_through_a0_and_the_measurement() -> None:
    # Two workers with t = 0.5 + 0.1 b and t = 0.2 + 0.02 b, measured at 10 and 10, for X = 60: equal at 7.5 and 52.5.
    assert refit((10, 10), (1.5, 0.4), (0.5, 0.2), 60, Limits.uniform(2, 60)) == (7, 53)
    # A profile that is above what was measured: half of the time counts.
    assert sum(refit((10, 10), (0.3, 0.4), (0.5, 0.2), 60, Limits.uniform(2, 60))) == 60


def play(balancer: Lbb, costs: list[Cubic], iterations: range, shares: tuple[int, ...]) -> list[BalanceView]:
    view = dataclasses.replace(at_start(sum(shares), len(shares)), shares=shares)
    views = []
    for iteration in iterations:
        view = measured(view, costs, iteration)
        view = dataclasses.replace(view, shares=balancer.split(view).shares)
        views.append(view)
    return views


def test_far_apart_it_refits_once_and_then_moves_single_samples() -> None:
    balancer = Lbb(window=30)
    slow_and_fast = [Cubic(0.0, 0.04), Cubic(0.0, 0.01)]
    at_first = play(balancer, slow_and_fast, range(2), (50, 50))
    assert [view.shares for view in at_first] == [(50, 50), (20, 80)]
    # Their costs change places: within the window, 30 iterations, single samples only; then it fits anew.
    swapped = play(balancer, slow_and_fast[::-1], range(2, 40), (20, 80))
    moves = [abs(after.shares[0] - before.shares[0]) for before, after in pairwise(swapped)]
    assert moves[:29] == [1] * 29
    assert moves[29] > 1
    assert swapped[-1].shares == (80, 20)


def test_a_measurement_under_another_split_is_not_acted_on() -> None:
    balancer, view = Lbb(), at_start(100, 2)
    balancer.split(view)
    stale = dataclasses.replace(seen(view, (4.0, 1.0), 0), shares=(60, 40))
    assert balancer.split(stale).shares == (60, 40)
    fresh = seen(dataclasses.replace(view, shares=(60, 40)), (4.0, 1.0), 1)
    assert balancer.split(fresh).shares == (80, 20)
    assert balancer.split(dataclasses.replace(seen(view, (1.0, 1.0), 1), shares=(50, 50))).shares == (50, 50)


def test_the_profile_is_of_these_workers() -> None:
    with pytest.raises(ConfigError, match="none of rank 1"):
        Lbb(profile=[Cubic(0.0, 1.0)]).split(at_start(10, 2))
    assert Lbb(profile=[Cubic(0.0, 0.03), Cubic(0.0, 0.01)]).split(at_start(100, 2)).shares == (25, 75)


def test_what_the_session_profiles_is_a_profile_too() -> None:
    sizes = (1, 2, 4, 8)
    profiles = {
        rank: Profile(sizes=sizes, seconds=tuple(x * each_s for x in sizes)) for rank, each_s in enumerate((0.03, 0.01))
    }
    balancer, view = Lbb(), at_start(100, 2)
    assert balancer.split(view).shares == (50, 50)
    balancer.profiled(profiles)
    assert balancer.split(view).shares == (25, 75)
    coarse = Lbb()
    coarse.profiled({rank: Profile(sizes=(1, 2), seconds=(0.1, 0.2)) for rank in range(2)})
    assert coarse.split(view).shares == (50, 50), "too few sizes for a cubic"


class TestLbb(BalancerContract):
    def make(self) -> Lbb:
        return Lbb()

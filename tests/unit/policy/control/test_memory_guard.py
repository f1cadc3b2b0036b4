"""Nobody's share grows where its memory is full, and profiles become limits and a first split."""

from __future__ import annotations

import math

import numpy as np
import pytest

from uneven.errors import ConfigError
from uneven.policy.balance import Numerical, balancers
from uneven.policy.balance.bounds import not_growing, profiled_limits, still_held
from uneven.policy.balance.profiled import Profile
from uneven.policy.control import Decider, Report, ReportTable
from uneven.policy.core.views import Limits

X = 64
FREE = Limits.uniform(2, X)


def decider(balancer: str = "proportional:predictor=last", limits: Limits = FREE, **profiles: Profile) -> Decider:
    measured = {int(name[1:]): profile for name, profile in profiles.items()}
    made = balancers.resolve(balancer)
    made.profiled(measured)
    return Decider(made, (0, 1), limits, global_batch=X, lookahead=0, budget=0.005, profiles=measured)


def reports(of: Decider, speeds: tuple[float, float], memory: tuple[float, float], iteration: int) -> ReportTable:
    rows = [
        Report(
            iteration=iteration, iterations=1, samples=share, local_s=share / speed, exchange_s=0.01, transfer_s=0.0,
            control_s=0.0, cost_s=0.0, cpu=0.5, memory=full, predicted_per_s=speed, doubt=0.01, urgent=0.0,
            no_early_reports=0.0,
            split=of.fingerprint(),
        )
        for share, speed, full in zip(of.newest, speeds, memory, strict=True)
    ]  # fmt: skip
    return ReportTable(rows)


def shares_after(of: Decider, speeds: tuple[float, float], memory: tuple[float, float], iteration: int) -> list[int]:
    of.decide(iteration, iteration, reports(of, speeds, memory, iteration))
    return list(of.newest)


def test_a_full_worker_keeps_or_gives_but_does_not_take() -> None:
    one = decider()
    assert shares_after(one, (300.0, 100.0), (0.95, 0.2), 0) == [32, 32]
    assert shares_after(one, (100.0, 300.0), (0.95, 0.2), 1) == [16, 48]
    assert shares_after(one, (300.0, 100.0), (0.95, 0.2), 2) == [32, 32], "it may come back to where it was"
    assert shares_after(one, (300.0, 100.0), (0.5, 0.2), 3) == [48, 16], "there is room again"


def test_an_unknown_use_of_memory_stops_nobody() -> None:
    assert shares_after(decider(), (300.0, 100.0), (math.nan, math.nan), 0) == [48, 16]


def test_what_a_full_worker_holds_survives_a_restart() -> None:
    old, new = decider(), decider()
    shares_after(old, (100.0, 300.0), (0.95, 0.95), 0)
    assert new.load_state_dict(old.state_dict())
    assert shares_after(new, (300.0, 100.0), (0.95, 0.2), 1) == [32, 32]
    for held in ([], [32, 32, 32]):  # of a run before there was such a thing, or with others
        fresh = decider()
        assert fresh.load_state_dict(old.state_dict() | {"held": held})
        assert shares_after(fresh, (300.0, 100.0), (0.2, 0.2), 1) == [48, 16]


def test_limits_of_all_who_are_full_can_still_be_met() -> None:
    held = still_held(np.zeros(2, np.int64), (40, 24), np.array([0.95, 0.91]))
    assert not_growing(FREE, held).upper == (40, 24)
    assert not_growing(FREE, still_held(held, (40, 24), np.array([0.5, math.nan]))) is FREE
    assert not_growing(Limits(lower=(48, 1), upper=(X, X)), held).upper == (48, 24), "never below the lower limit"


QUICK = Profile(sizes=(1, 2, 4, 8, 16, 32), seconds=(0.02, 0.02, 0.02, 0.02, 0.024, 0.048))
SLOW = Profile(sizes=(1, 2, 4, 8, 16, 32), seconds=(0.02, 0.03, 0.05, 0.09, 0.17, 0.33))


def test_memory_becomes_a_limit_and_saturation_does_not() -> None:
    full = Profile(sizes=(1, 2, 4, 8, 16), seconds=(1.0, 2.0, 3.0, 4.0, 5.0), failed=32)
    assert profiled_limits(FREE, {0: QUICK, 1: SLOW}, X) == FREE
    assert profiled_limits(FREE, {0: QUICK, 1: full}, X) == Limits(lower=(1, 1), upper=(X, 14))
    asked = Limits(lower=(1, 20), upper=(X, X))
    assert profiled_limits(asked, {0: QUICK, 1: full}, X).upper == (X, 20), "what the user asks for holds"
    with pytest.raises(ConfigError, match=r"14/14 samples, 28 in total, less than the\s+global batch of 64"):
        profiled_limits(FREE, {0: full, 1: full}, X)


@pytest.mark.parametrize("balancer", ["lb-bsp", "proportional", "analytic"])
def test_the_first_split_is_made_from_profiles(balancer: str) -> None:
    fast, slow = decider(balancer, r0=QUICK, r1=SLOW).newest
    assert fast >= 50, "32 samples take 0.048 s here, 0.33 s there"
    assert fast + slow == X
    assert decider(balancer).newest == (32, 32), "without them nobody knows"


def test_equal_profiles_leave_equal_shares() -> None:
    noisy = Profile(sizes=SLOW.sizes, seconds=tuple(1.03 * t for t in SLOW.seconds))
    assert decider("lb-bsp", r0=SLOW, r1=noisy).newest == (32, 32)


def test_the_first_split_is_told() -> None:
    first = decider("lb-bsp", r0=QUICK, r1=SLOW).first()
    assert (first.iteration, first.decided_at, sum(first.shares)) == (0, -1, X)
    assert first.predicted_per_s[0] > 6 * first.predicted_per_s[1]
    assert first.reason


def test_balancers_take_what_they_can_use() -> None:
    numerical, given = Numerical(), Numerical(saturation=(4, 4))
    for balancer in (numerical, given):
        balancer.profiled({0: QUICK, 1: SLOW})
    assert numerical._saturation == (QUICK.saturation, SLOW.saturation)
    assert given._saturation == (4, 4), "what the user says holds"

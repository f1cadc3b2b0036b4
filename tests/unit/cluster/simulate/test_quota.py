"""Processor time in periods, by hand: 3 ms in each of 10, ticks at 0.5, 4.5, 8.5, … ms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.cluster.pure.simulate.compute import Quota
from uneven.errors import ConfigError

MS = 1e-3


def of_three_tenths() -> Quota:
    return Quota(period_s=0.01, next_s=0.0, ticks_s=(0.5 * MS, 0.5 * MS), own_s=[0.0, 0.0])


def three_tenths(time_s: float) -> float:
    return 0.3


def end_ms(quota: Quota, core: int, start_ms: float, work_ms: float) -> float:
    return quota.run(core, start_ms * MS, work_ms * MS, three_tenths)[0] / MS


def test_what_is_used_up_is_noticed_at_a_tick_and_paid_for_afterwards() -> None:
    # 0 … 4.5 (1.5 too much), 10 … 12.5 (of 1.5; 1 too much), and the last 3 of 10 from 20 on
    assert end_ms(of_three_tenths(), 0, 0.0, 10.0) == pytest.approx(23.0, abs=1e-3)


def test_a_debt_that_a_period_does_not_pay_waits_for_the_next() -> None:
    quota = of_three_tenths()
    quota.own_s[0] = -4.0 * MS
    assert end_ms(quota, 0, 1.0, 0.5) == pytest.approx(10.5, abs=1e-3)  # 3 of 4 at once, the last at 10


def test_who_has_rested_has_a_whole_period_and_a_millisecond_more() -> None:
    quota = of_three_tenths()
    assert end_ms(quota, 0, 0.0, 1.5) == pytest.approx(1.5)  # took all 3, keeps 1 and gives half a one back
    assert (quota.own_s[0] / MS, quota.left_s / MS) == pytest.approx((1.0, 0.5))
    assert end_ms(quota, 0, 50.6, 3.9) == pytest.approx(54.5)
    assert (quota.own_s[0] + quota.left_s) / MS == pytest.approx(0.1)


def test_a_quota_is_with_the_core_that_took_it() -> None:
    quota = of_three_tenths()
    assert end_ms(quota, 0, 0.0, 2.5) == pytest.approx(2.5)  # half a millisecond is left, and kept
    assert end_ms(quota, 1, 2.5, 0.2) == pytest.approx(10.2)
    assert end_ms(quota, 0, 10.2, 0.4) == pytest.approx(10.6)


def test_what_others_use_up_is_gone_and_debts_stay() -> None:
    quota = of_three_tenths()
    end_ms(quota, 0, 0.0, 1.0)
    quota.own_s[1] = -1.0 * MS
    quota.lose(1.0 * MS, three_tenths)
    assert quota.left_s == 0.0
    assert quota.own_s == [0.0, -1.0 * MS]
    assert end_ms(quota, 0, 2.0, 0.5) == pytest.approx(10.5)


def test_a_limit_cuts_it_short() -> None:
    assert of_three_tenths().run(0, 0.0, 1.0, three_tenths, 0.0112) == pytest.approx((0.0112, 0.0057), abs=1e-6)
    assert of_three_tenths().run(0, 0.0, 1.0, three_tenths, 0.007) == pytest.approx((0.007, 0.0045), abs=1e-6)


def test_a_copy_is_another_one() -> None:
    quota = of_three_tenths()
    quota.copy().run(0, 0.0, 0.01, three_tenths)
    assert quota == of_three_tenths()


# Above 0.8 of a core a period may end before its quota is used up, and that rest is lost: up to 5 % of the time.
@given(cores=st.floats(0.05, 0.8), seed=st.integers(0, 1000), work_s=st.floats(0.1, 2.0))
def test_in_the_long_run_it_is_what_it_says(cores: float, seed: int, work_s: float) -> None:
    end_s, done_s = Quota.begun(0.01, 1, (seed,)).run(0, 0.0, work_s, lambda time_s: cores)
    assert done_s == pytest.approx(work_s)
    # At either end a period; 4 ms more at most before a tick, which are paid for later, or not any more.
    assert end_s == pytest.approx(work_s / cores, abs=0.02 + 0.004 / cores)


def test_where_it_begins_is_given_by_the_seed() -> None:
    first = Quota.begun(0.01, 2, (1, 2))
    assert first == Quota.begun(0.01, 2, (1, 2)) != Quota.begun(0.01, 2, (1, 3))
    assert -0.01 <= first.next_s <= 0.0


def test_work_that_waits_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"more than 100,000 periods of 0\.01 s: give the node a longer period_s"):
        of_three_tenths().run(0, 0.0, 10.0, lambda time_s: 1e-7)

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.runtime.throttle.share_rule import Account, ShareRule, advance


class Job:
    """A process under the rule, in virtual time; every look is late by up to ``late_s``."""

    def __init__(self, rule: ShareRule, *, threads: float = 1.0, late_s: float = 0.0003, seed: int = 0) -> None:
        self.rule, self.threads, self.late_s = rule, threads, late_s
        self.account = Account()
        self.now_s = self.used_s = 0.0
        self.stops = self.looks = 0
        self._random = random.Random(seed)

    def work(self, cpu_s: float, until_s: float = float("inf"), core: float = 1.0) -> float:
        """Use ``cpu_s`` of CPU time, getting the fraction ``core`` of what is wanted; the seconds it took."""
        began, left = self.now_s, cpu_s
        while left > 1e-9 and self.now_s < until_s:
            step = self.account.check_in_s + self._random.uniform(0, self.late_s)
            rate = 0.0 if self.account.stopped else self.threads * core
            if rate:
                step = min(step, left / rate)
            used = rate * step
            self._advance(step, used, 0.0 if self.account.stopped else (1 - core) * step)
            left -= used
        return self.now_s - began

    def rest(self, seconds: float) -> None:
        until = self.now_s + seconds
        while self.now_s < until:
            step = min(self.account.check_in_s + self._random.uniform(0, self.late_s), until - self.now_s)
            self._advance(step, 0.0, 0.0)

    def _advance(self, step_s: float, used_s: float, waited_s: float) -> None:
        self.now_s += step_s
        self.used_s += used_s
        before = self.account.stopped
        self.account = advance(self.rule, self.account, step_s, used_s, waited_s)
        self.looks += 1
        self.stops += self.account.stopped and not before


@given(share=st.floats(0.05, 0.95), threads=st.sampled_from([1, 2, 4]), late_s=st.floats(0, 0.002))
def test_a_busy_process_gets_its_share_over_two_seconds(share: float, threads: int, late_s: float) -> None:
    job = Job(ShareRule(share=share), threads=threads, late_s=late_s)
    job.work(float("inf"), until_s=2.0)
    assert job.used_s / job.now_s == pytest.approx(share, rel=0.05)


def test_one_period_is_the_length_of_a_cycle() -> None:
    job = Job(ShareRule(share=0.4, period_s=0.02), late_s=0.0)
    job.work(float("inf"), until_s=10.0)
    assert job.stops == pytest.approx(500, rel=0.02)
    assert job.looks <= 2.1 * job.stops  # one look to stop it, one to let it go on


def test_a_share_above_one_core_holds_for_threads() -> None:
    job = Job(ShareRule(share=1.5), threads=4)
    job.work(float("inf"), until_s=4.0)
    assert job.used_s / job.now_s == pytest.approx(1.5, rel=0.05)
    alone = Job(ShareRule(share=1.5), threads=1)
    alone.work(float("inf"), until_s=4.0)
    assert alone.stops == 0


@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.8])
def test_waiting_neither_helps_nor_harms(share: float) -> None:
    """A job of W seconds takes W ÷ share on average, however long the process waited before it."""
    job, took, rng = Job(ShareRule(share=share)), 0.0, random.Random(1)
    for _ in range(400):
        job.rest(rng.uniform(0.03, 0.2))
        took += job.work(0.1 * share)
    assert took / 400 == pytest.approx(0.1, rel=0.05)


def test_an_idle_process_saves_up_less_than_a_quantum() -> None:
    rule = ShareRule(share=0.5, period_s=0.02)
    job = Job(rule)
    job.rest(100.0)
    assert 0 < job.account.credit_s <= rule.slice_s / 2 < rule.quantum_s


def test_a_process_that_had_no_core_catches_up() -> None:
    rule = ShareRule(share=0.4)
    account = advance(rule, Account(), 0.1, 0.0, waited_s=0.1)
    assert account.credit_s == pytest.approx(0.04)
    for _ in range(100):
        account = advance(rule, account, 0.1, 0.0, waited_s=0.1)
    assert account.credit_s == pytest.approx(5 * rule.quantum_s)


def test_a_debt_of_many_periods_is_remembered_up_to_the_limit() -> None:
    rule = ShareRule(share=0.5, max_debt_s=1.0)
    account = advance(rule, Account(), 0.1, 0.4)
    assert account.stopped
    assert account.credit_s == pytest.approx(-0.35)
    assert account.check_in_s == pytest.approx((0.35 + rule.slice_s) / 0.5)
    assert advance(rule, account, 0.1, 0.0).stopped
    assert not advance(rule, account, account.check_in_s, 0.0).stopped
    assert advance(rule, Account(), 1.0, 50.0).credit_s == -1.0


@pytest.mark.parametrize("bad", [0, -0.1, float("nan"), float("inf"), "0.4", None])
def test_bad_values_are_named(bad: object) -> None:
    with pytest.raises(ConfigError, match=r"share = .* must be a positive number"):
        ShareRule(share=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="period_s"):
        ShareRule(share=0.5, period_s=bad)  # type: ignore[arg-type]

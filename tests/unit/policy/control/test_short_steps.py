"""Steps of a few milliseconds on shares of a core, dealt by the rule of the throttle in virtual time."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import pytest

from uneven.policy.balance import LbBsp
from uneven.policy.control import Controller, Decider, Forecaster
from uneven.policy.control.controller import Loopback
from uneven.policy.core.records import SplitRecord
from uneven.policy.core.views import Limits, Observation
from uneven.policy.predict import predictors
from uneven.runtime.throttle.share_rule import Account, ShareRule, advance

UNEQUAL = (0.6, 0.4, 0.2, 0.1)
ITERATIONS = 160
LOOK_S, IDLE_LOOK_S = 0.0002, 0.002
STOP_S = 0.04  # mean length of the time in which a busy machine lets a worker wait for a core


class Step(NamedTuple):
    """Processor seconds of a step: at any batch, for each sample, and for each of three hops of the exchange."""

    fixed_s: float
    sample_s: float
    hop_s: float


LINEAR = Step(0.0018, 1e-6, 0.0003)  # one layer of 64 × 10
CONVOLUTION = Step(0.003, 6e-5, 0.0005)


class Machine:
    """A worker's share of a core; the whole core without one."""

    def __init__(self, share: float | None) -> None:
        self.now_s = 0.0
        self._rule, self._account = None if share is None else ShareRule(share=share), Account()

    def compute(self, cpu_s: float) -> None:
        while cpu_s > 1e-9:
            if self._account.stopped:
                self._pass(self._account.check_in_s, 0.0)
            else:
                used_s = cpu_s if self._rule is None else min(max(self._account.check_in_s, LOOK_S), cpu_s)
                self._pass(used_s, used_s)
                cpu_s -= used_s

    def wait(self, until_s: float) -> None:
        while self.now_s < until_s - 1e-9:
            self._pass(min(IDLE_LOOK_S, until_s - self.now_s), 0.0)
        while self._account.stopped:
            self._pass(self._account.check_in_s, 0.0)

    def _pass(self, elapsed_s: float, used_s: float) -> None:
        self.now_s += elapsed_s
        if self._rule is not None:
            self._account = advance(self._rule, self._account, elapsed_s, used_s)


def play(shares: tuple[float | None, ...], step: Step, total: int, *, busy: float, seed: int) -> list[tuple[int, ...]]:
    """Every split of a run under the default balancer.

    Args:
        busy: chance that a worker has to wait for a core while it computes, and the same in its exchange.
    """
    dice, n = random.Random(seed), len(shares)
    decider = Decider(LbBsp(), tuple(range(n)), Limits.uniform(n, total), global_batch=total, lookahead=0, budget=0.01)
    run = Loopback(Controller(decider, lambda: Forecaster(predictors.resolve("light"))))
    machines, splits = [Machine(share) for share in shares], [decider.newest]

    def noise() -> float:
        return math.exp(dice.gauss(0.0, 0.1))

    def stop(chance: float) -> float:
        return dice.expovariate(1.0 / STOP_S) if dice.random() < chance else 0.0

    for k in range(ITERATIONS):
        batches = run.controller.shares(k)
        began_s = [one.now_s for one in machines]
        cpu_s = [(step.fixed_s + step.sample_s * batch) * noise() for batch in batches]
        for one, each_s in zip(machines, cpu_s, strict=True):
            one.compute(each_s)
            one.now_s += stop(busy)
        ready_s = [one.now_s for one in machines]
        for _ in range(3):
            for one in machines:
                one.compute(step.hop_s * noise())
                one.now_s += stop(busy / 3)
            last_s = max(one.now_s for one in machines)
            for one in machines:
                one.wait(last_s)
        for rank, one in enumerate(machines):
            local_s, exchange_s = ready_s[rank] - began_s[rank], one.now_s - ready_s[rank]
            moved_s = min(exchange_s, 3 * step.hop_s * local_s / cpu_s[rank])
            run.measured(rank, Observation(k, batches[rank], local_s, exchange_s=exchange_s, transfer_s=moved_s))
        for rank in range(n):
            splits += [one.shares for one in run.ended(rank, k, 3e-4) if isinstance(one, SplitRecord)]
    return splits


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("step", "total"), [(LINEAR, 512), (CONVOLUTION, 128)])
def test_unequal_workers_leave_equal_shares_and_do_not_return(step: Step, total: int, seed: int) -> None:
    even, *later = play(UNEQUAL, step, total, busy=0.0, seed=seed)
    assert later
    assert even not in later
    assert later[-1][0] > later[-1][2] > later[-1][3]


@pytest.mark.parametrize(("share", "busy"), [(None, 0.01), (0.5, 0.0), (0.25, 0.0)])
def test_equal_workers_stay_equal(share: float | None, busy: float) -> None:
    for seed in range(3):
        assert set(play((share,) * 4, LINEAR, 512, busy=busy, seed=seed)) == {(128,) * 4}

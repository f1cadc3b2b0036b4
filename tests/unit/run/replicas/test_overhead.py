"""What exchanges cost the training, by how much longer its steps are, and how rare that makes them."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from uneven.run.replicas.background_thread import OverheadBudget

STEP_S, EXCHANGE_S = 0.02, 0.3


def trained(
    load: float, extra: float, *, later_s: float = 0.0, noise: float = 0.0, seconds: float = 400.0,
    first_s: float = 0.0,
) -> tuple[float, int]:  # fmt: skip
    """Train in made-up time: a step of 20 ms takes 1 + ``extra`` times as long while an exchange is under way.

    Args:
        later_s: what an exchange costs in addition, after its end, spread over half a second.
        first_s: how much longer the first six steps take, which is no loss.

    Returns:
        The part of the time that was lost, and the number of exchanges.
    """
    budget, draws = OverheadBudget(), random.Random(0)
    now_s, bare_s, through_s, begun = 0.0, 0.0, -math.inf, 0
    while now_s < seconds:
        busy = now_s < through_s
        own_s = STEP_S * (1.0 + noise * draws.uniform(-1.0, 1.0))
        late_s = later_s * own_s / 0.5 if 0.0 <= now_s - through_s < 0.5 and begun else 0.0
        own_s += first_s * (begun == 0)
        took_s = own_s * (1.0 + extra * busy) + late_s
        now_s, bare_s = now_s + took_s, bare_s + own_s
        under_way = now_s < through_s
        budget.stepped(took_s, 0.0 if under_way else now_s - through_s)
        if not under_way and budget.allows(load):
            budget.begin(load)
            begun, through_s = begun + 1, now_s + EXCHANGE_S
    return 1.0 - bare_s / now_s, begun


@pytest.mark.parametrize("load", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_no_more_time_is_lost_than_may_be(load: float, noise: float) -> None:
    lost, begun = trained(load, extra=0.5, noise=noise)
    assert 0.5 * load < lost < (1.3 if noise else 1.05) * load
    assert begun > 10


def test_that_the_first_steps_are_long_is_soon_forgotten() -> None:
    lost, _ = trained(0.02, extra=0.5, first_s=STEP_S, seconds=40.0)
    assert lost < 0.035  # where the first step alone counted for fifty others it was 0.18


def test_what_is_paid_for_after_the_end_counts_too() -> None:
    lost, begun = trained(0.02, extra=0.2, later_s=0.1)
    assert lost < 0.021  # two thirds of it in steps in which nothing was under way
    assert begun > 20


def test_where_they_cost_nothing_they_follow_each_other_nearly_without_a_pause() -> None:
    lost, begun = trained(0.02, extra=0.0, noise=0.5)
    assert lost == pytest.approx(0.0)
    # An exchange, a tenth of a second, a step or two of which something is learnt; and noise looks like a cost.
    assert begun > 0.6 * 400.0 / (EXCHANGE_S + 0.1 + 2 * STEP_S)


def test_the_first_one_waits_until_it_is_known_how_long_a_step_is() -> None:
    budget = OverheadBudget()
    asked = []
    for _ in range(6):
        asked.append(budget.allows(0.5))
        budget.stepped(1.0, math.inf)
    assert asked == [False] * 5 + [True]
    budget.begin(0.5)
    assert not budget.allows(0.5)
    budget.stepped(1.0, 0.0)
    assert not budget.allows(0.5)  # under way, at no cost, but no step has been undisturbed since
    budget.stepped(1.0, 2.0)
    assert budget.allows(0.5)


def test_a_step_that_was_long_for_another_reason_is_soon_paid() -> None:
    budget = OverheadBudget()
    for _ in range(5):
        budget.stepped(0.01, math.inf)
    budget.begin(0.1)
    budget.stepped(3600.0, 0.0)  # the machine was asleep
    steps = itertools.count()
    while not budget.allows(0.1):
        budget.stepped(0.01, 10.0)
        next(steps)
    assert next(steps) < 101  # as if it had taken ten times as long as usual


def test_allowances_are_not_saved_up_for_long() -> None:
    budget = OverheadBudget()
    for _ in range(100_000):
        budget.stepped(0.01, math.inf)
    budget.begin(0.01)
    for _ in range(10):
        budget.stepped(0.02, 0.0)
    budget.stepped(0.01, 10.0)
    assert not budget.allows(0.01)  # 0.1 s was lost, and 0.01 s are for free


def test_a_worker_that_has_become_slower_for_good_goes_on_exchanging() -> None:
    budget, begun, now_s, through_s = OverheadBudget(), [], 0.0, -math.inf
    while now_s < 4000.0:
        step_s = 0.02 if now_s < 100.0 else 0.04
        busy = now_s < through_s
        now_s += step_s * (1.3 if busy else 1.0)
        budget.stepped(step_s * (1.3 if busy else 1.0), 0.0 if now_s < through_s else now_s - through_s)
        if now_s >= through_s and budget.allows(0.02):
            budget.begin(0.02)
            begun.append(now_s)
            through_s = now_s + EXCHANGE_S
    apart = [after - before for before, after in itertools.pairwise(begun)]
    before = [gap for gap, at in zip(apart, begun[1:], strict=True) if at < 100.0]
    after = [gap for gap, at in zip(apart, begun[1:], strict=True) if at > 1000.0]
    assert max(apart) < 301.0
    assert max(after) < 2.0 * max(before), "it has learnt how long a step is now"


def test_patience_may_be_shorter() -> None:
    budget = OverheadBudget(patience_s=20.0)
    for _ in range(5):
        budget.stepped(1.0, math.inf)
    budget.begin(1e-9)
    budget.stepped(3.0, 0.0)
    assert [budget.stepped(1.0, 1000.0) or budget.allows(1e-9) for _ in range(17)] == [False] * 16 + [True]


def test_five_minutes_without_an_exchange_are_enough() -> None:
    budget, trained_s = OverheadBudget(), 0.0
    for _ in range(5):
        budget.stepped(1.0, math.inf)
    budget.begin(1e-9)
    budget.stepped(3.0, 0.0)
    while not budget.allows(1e-9):
        budget.stepped(1.0, 1000.0)
        trained_s += 1.0
    assert trained_s == 297.0  # and the three of the step that it cost
    budget.begin(1e-9)
    budget.stepped(1.0, 1000.0)
    assert budget.allows(1e-9), "what seemed to be lost is forgotten"

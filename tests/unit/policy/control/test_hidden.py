"""Own work in an exchange counts only where nobody's link hides it."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from uneven.policy.balance import balancers
from uneven.policy.control import Decider, Forecaster, Report, ReportTable
from uneven.policy.core.views import Limits, Observation
from uneven.policy.predict import predictors

LOCAL_S = 0.1, 0.1  # both compute for as long
OWN_S = 0.01, 0.05  # but the second one is slow at moving bytes, too
LINK_S = 0.3

ITERATIONS = itertools.count(1)


def told(
    decider: Decider, iteration: int, waited_s: tuple[float, float], own_s: tuple[float, float] = OWN_S
) -> list[Report]:
    """Of two iterations, with what each foretells of itself."""
    reports = []
    for share, local, waited, own in zip((60, 40), LOCAL_S, waited_s, own_s, strict=True):
        forecaster = Forecaster(predictors.resolve("last"))
        forecaster.hidden_s = decider.hidden_s
        forecaster.observe(
            Observation(
                iteration=iteration, samples=2 * share, local_s=2 * local, iterations=2, exchange_s=2 * waited,
                transfer_s=2 * own,
            )
        )  # fmt: skip
        forecast = forecaster.tell()
        reports.append(
            Report(
                iteration=iteration, iterations=2, samples=2 * share, local_s=2 * local, exchange_s=2 * waited,
                transfer_s=2 * own, control_s=0.0, cost_s=0.0, cpu=math.nan, memory=math.nan,
                predicted_per_s=forecast.predicted_per_s, doubt=0.0, urgent=0.0, no_early_reports=0.0,
                split=decider.fingerprint(),
            )
        )  # fmt: skip
    return reports


def decider() -> Decider:
    balancer = balancers.resolve("proportional:predictor=last")
    return Decider(balancer, (0, 1), Limits.uniform(2, 100), global_batch=100, lookahead=0, budget=0.005)


def after(made: Decider, waited_s: tuple[float, float], rounds: int = 5) -> tuple[int, ...]:
    """The split when both have reported so often."""
    for _ in range(rounds):
        iteration = next(ITERATIONS)
        made.decide(iteration, iteration - 1, ReportTable(told(made, iteration, waited_s)))
    return made.newest


def test_where_nobody_waits_for_a_link_own_work_counts() -> None:
    assert after(decider(), waited_s=(0.05, 0.05)) == (67, 33)  # 60 samples in 0.11 s, 40 in 0.15 s


def test_where_a_link_makes_all_wait_it_does_not() -> None:
    made = decider()
    assert after(made, waited_s=(LINK_S, LINK_S)) == (60, 40)
    assert made.hidden_s == pytest.approx(LINK_S - max(OWN_S))


def test_what_the_link_does_not_hide_counts_still() -> None:
    made = decider()
    assert after(made, waited_s=(0.08, 0.09)) == (64, 36)  # 0.03 s are hidden: 60 in 0.1 s, 40 in 0.12 s
    assert made.hidden_s == pytest.approx(0.03)


def test_where_workers_take_turns_at_being_last_there_is_no_link() -> None:
    last, first = (0.2, 0.0), (0.1, 0.1)  # seconds of computing, and of waiting for the other
    local_s, waited_s = (sum(pair) for pair in zip(last, first, strict=True))
    report = told(decider(), 1, (waited_s / 2, waited_s / 2), (0.02, 0.02))[0]
    report = report._replace(local_s=local_s)
    assert ReportTable([report, report]).hidden_s() == 0.0
    assert ReportTable([report._replace(exchange_s=1.0)] * 2).hidden_s() == pytest.approx(0.48)


def test_who_says_nothing_changes_nothing() -> None:
    made = decider()
    after(made, (LINK_S, LINK_S))
    first, second = told(made, next(ITERATIONS), (LINK_S, LINK_S))
    made.decide(next(ITERATIONS), next(ITERATIONS), ReportTable([first, second._replace(iterations=0, samples=0)]))
    assert made.hidden_s > 0.0


def test_one_exchange_in_several_iterations_is_hidden_as_a_whole() -> None:
    forecaster = Forecaster(predictors.resolve("last"))
    forecaster.hidden_s = 0.02
    for iteration in range(16):
        own_s = 0.08 if iteration % 4 == 3 else 0.0
        seen = Observation(iteration=iteration, samples=10, local_s=0.1, exchange_s=own_s, transfer_s=own_s)
        forecaster.observe(seen)
        assert forecaster.tell().predicted_per_s == pytest.approx(100.0)
    forecaster.observe(seen)  # a second one at once, for which nothing has been put by but this iteration's own
    assert forecaster.tell().predicted_per_s == pytest.approx(10 / 0.16)


def test_a_wait_has_to_be_there_three_times_in_a_row() -> None:
    made = decider()
    assert after(made, (LINK_S, LINK_S), rounds=2) == (67, 33)
    after(made, (LINK_S, LINK_S), rounds=1)
    assert after(made, (LINK_S, LINK_S), rounds=1) == (60, 40)  # foretold by who knows it
    after(made, (0.05, 0.05), rounds=1)
    assert after(made, (0.05, 0.05), rounds=1) == (67, 33)


def test_a_resumed_run_knows_what_was_hidden() -> None:
    made, other = decider(), decider()
    after(made, (LINK_S, LINK_S))
    assert other.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert other.hidden_s == made.hidden_s > 0.0


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -1.0])
def test_an_absurd_report_hides_nothing(spoilt: float) -> None:
    first, second = told(decider(), 1, (LINK_S, LINK_S))
    assert ReportTable([first, second]).hidden_s() > 0.0
    assert ReportTable([first, second._replace(exchange_s=spoilt)]).hidden_s() == 0.0
    assert ReportTable([first, second._replace(transfer_s=spoilt)]).hidden_s() == 0.0
    assert ReportTable([first, second._replace(iterations=0)]).hidden_s() is None
    assert ReportTable([]).hidden_s() == 0.0

"""Whatever balances and predicts: who stays keeps what was learnt of it, and others can come."""

from __future__ import annotations

import json
import math

import pytest

from uneven.policy.balance import balancers
from uneven.policy.control import Controller, Decider, Forecaster, GiveReport, Load, Loopback, ReportTable
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven.policy.predict import predictors
from uneven_bench.balancers.rivals.cubic import Cubic
from uneven_bench.balancers.rivals.lbb import Lbb

X = 120
SPEEDS = {0: 60.0, 1: 40.0, 2: 20.0, 3: 30.0, 7: 30.0}

LIGHT = ["last", "ema", "steady", "arima", "light"]
BALANCERS = [*(f"lb-bsp:predictor={one}" for one in LIGHT), "analytic", "numerical", "even", "dbs", "omnilearn", "lbb"]


def controller(balance: str, members: tuple[int, ...], lookahead: int = 1) -> Controller:
    made = balancers.resolve(balance)
    decider = Decider(made, members, Limits.uniform(len(members), X), global_batch=X, lookahead=lookahead, budget=0.5)
    return Controller(decider, lambda: Forecaster(predictors.resolve(made.predictor)))


def play(one: Controller, iterations: range) -> None:
    """All members compute, and wait for the slowest."""
    loopback = Loopback(one)
    for k in iterations:
        members = one.members
        shares = dict(zip(members, one.shares(k), strict=True))
        assert sum(shares.values()) == X
        times_s = {rank: share / SPEEDS[rank] * (1.0 + 0.01 * ((k + rank) % 3)) for rank, share in shares.items()}
        for rank in members:
            waited_s = max(times_s.values()) - times_s[rank]
            seen = Observation(iteration=k, samples=shares[rank], local_s=times_s[rank], exchange_s=waited_s)
            loopback.measured(rank, seen)
        for rank in members:
            loopback.ended(rank, k, 1e-4)


def change(one: Controller, first: int, members: tuple[int, ...]) -> None:
    one.members_changed(first, members, Limits.uniform(len(members), X))


def forecasts(one: Controller, members: tuple[int, ...]) -> dict[int, object]:
    """What all believe of each worker's speed."""
    said = one.state_dict(members[0])["predicted_per_s"]
    return {rank: said[one.members.index(rank)] for rank in members}


@pytest.mark.parametrize("balance", BALANCERS)
def test_who_stays_keeps_its_predictor_its_forecast_and_its_part(balance: str) -> None:
    one, stay = controller(balance, (0, 1, 2, 3)), (0, 2, 3)
    play(one, range(40))
    shares = dict(zip(one.members, one.newest, strict=True))
    learnt = {rank: one.reporter(rank).forecaster.state_dict() for rank in stay}
    believed = forecasts(one, stay)
    change(one, 40, stay)
    assert {rank: one.reporter(rank).forecaster.state_dict() for rank in stay} == learnt
    assert forecasts(one, stay) == believed
    assert (None in believed.values()) == (not one.adapts), "something was learnt"
    of_three = sum(shares[rank] for rank in stay)
    for rank, share in zip(stay, one.newest, strict=True):
        assert abs(share - X * shares[rank] / of_three) < 1.0 or not one.adapts
    play(one, range(40, 80))
    if balance.startswith("lb-bsp"):
        assert max(abs(a - b) for a, b in zip(one.newest, (66, 22, 33), strict=True)) <= 4


@pytest.mark.parametrize("balance", BALANCERS)
def test_a_newcomer_begins_with_the_mean_and_finds_its_part(balance: str) -> None:
    one = controller(balance, (0, 1, 2))
    play(one, range(40))
    believed = forecasts(one, (0, 1, 2))
    change(one, 40, (0, 1, 2, 7))
    assert abs(one.newest[3] - X / 4) < 1.0
    assert forecasts(one, (0, 1, 2)) == believed
    play(one, range(40, 100))
    if balance.startswith("lb-bsp"):
        assert max(abs(a - b) for a, b in zip(one.newest, (48, 32, 16, 24), strict=True)) <= 4


@pytest.mark.parametrize("balance", BALANCERS)
def test_a_newcomers_own_controller_decides_as_those_of_the_others(balance: str) -> None:
    """It is given the decider's state, and hears the same reports from there on."""
    one = controller(balance, (0, 1, 2))
    play(one, range(40))
    change(one, 40, (0, 1, 2, 7))
    its = controller(balance, (0, 1, 2, 7))
    its.take_over(one.for_newcomers())
    assert (its.members, its.newest, its.shares(40)) == (one.members, one.newest, one.shares(40))
    assert its.state_dict(7)["predicted_per_s"] == one.state_dict(7)["predicted_per_s"]
    for k in range(40, 60):
        reports = {}
        for rank, share in zip(one.members, one.shares(k), strict=True):
            which = its if rank == 7 else one
            which.measured(rank, Observation(k, share, share / SPEEDS[rank], exchange_s=0.01))
            told = which.ended(rank, k, Load(), 1e-4)
            reports |= {it.rank: it.report for it in told if isinstance(it, GiveReport)}
        assert its.newest == one.newest
        assert len(reports) in (0, 4), "all report at the same iterations"
        if reports:
            table = [reports[rank] for rank in one.members]
            one.gathered(ReportTable(table))
            its.gathered(ReportTable(table))


def test_a_newcomer_knows_the_splits_of_iterations_that_were_drawn_before_it_joined() -> None:
    """If all leave their loop then, they draw those again, and a second newcomer needs them, too."""
    one, its = controller("even", (0, 1), lookahead=2), controller("even", (0, 1, 7), lookahead=2)
    change(one, 3, (0, 1, 7))
    its.take_over(json.loads(json.dumps(one.for_newcomers())))
    assert [its.shares(k) for k in range(1, 4)] == [one.shares(k) for k in range(1, 4)] == [(60, 60)] * 2 + [(40,) * 3]
    change(its, 4, (0, 1, 7, 9))
    other = controller("even", (0, 1, 7, 9), lookahead=2)
    other.take_over(its.for_newcomers())
    assert other.shares(2) == (60, 60)


def test_lbb_fits_a_newcomer_of_whom_it_has_no_profile() -> None:
    made = Lbb(profile=[Cubic(0.0, 0.001)] * 3, window=0)
    view = BalanceView(
        iteration=9, global_batch=X, members=(0, 1, 7), shares=(40, 40, 40), limits=Limits.uniform(3, X),
        observed=tuple(Observation(8, 40, time_s) for time_s in (1.0, 2.0, 4.0)), predicted_per_s=(math.nan,) * 3,
    )  # fmt: skip
    made._started = True
    shares = made.split(view).shares
    assert shares[0] > shares[1] > shares[2]


@pytest.mark.parametrize("balance", BALANCERS)
def test_what_is_saved_after_members_changed_is_taken_up_by_others(balance: str) -> None:
    """They have other numbers; each goes on with what was known of the member in its place."""
    one = controller(balance, (0, 1, 2, 3))
    play(one, range(40))
    change(one, 40, (1, 2, 3, 7))
    saved = one.state_dict(2)
    for rank in range(4):
        its = controller(balance, (0, 1, 2, 3))
        its.load_state_dict(rank, saved)
        assert (its.newest, its.state_dict(rank)["past"]) == (one.newest, saved["past"])
        if rank == 1:
            assert its.state_dict(rank)["forecaster"] == saved["forecaster"]

"""The slow loop as a state machine: what each event leads to, in one world as in the other."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from uneven.policy.balance import Balancer, balancers
from uneven.policy.control import (
    CallForReports,
    Complaint,
    Controller,
    Decider,
    Forecaster,
    GiveReport,
    Instruction,
    Load,
    Loopback,
    Report,
    ReportTable,
)  # fmt: skip
from uneven.policy.control.controller import Told
from uneven.policy.core.records import SplitRecord
from uneven.policy.core.views import Limits, Observation
from uneven.policy.predict import predictors

X = 120
COST_S = 1e-4
HERE = Load()


def controller(
    members: tuple[int, ...] = (0, 1, 2), balance: str | Balancer = "proportional:predictor=last", lookahead: int = 0
) -> Controller:
    made = balancers.resolve(balance)
    limits = Limits.uniform(len(members), X)
    decider = Decider(made, members, limits, global_batch=X, lookahead=lookahead, budget=0.5)
    return Controller(decider, lambda: Forecaster(predictors.resolve(made.predictor)))


def observation(iteration: int, samples: int, speed: float, exchange_s: float = 0.0) -> Observation:
    return Observation(iteration=iteration, samples=samples, local_s=samples / speed, exchange_s=exchange_s)


def end(one: Controller, rank: int, iteration: int, speed: float = 60.0) -> list[Instruction]:
    one.measured(rank, observation(iteration, 10, speed))
    return one.ended(rank, iteration, HERE, COST_S)


class Together:
    """One controller with all workers, who keep step, as the simulator and the benches drive it."""

    def __init__(self, one: Controller) -> None:
        self.controller = one
        self.loopback = Loopback(one)
        self.told: list[Told] = []

    def step(self, k: int, speeds: dict[int, float]) -> None:
        shares = dict(zip(speeds, self.controller.shares(k), strict=True))
        times_s = {rank: shares[rank] / speed for rank, speed in speeds.items()}
        for rank, speed in speeds.items():
            waited_s = max(times_s.values()) - times_s[rank]
            self.loopback.measured(rank, observation(k, shares[rank], speed, waited_s))
        for rank in speeds:
            self.told += self.loopback.ended(rank, k, COST_S)

    @property
    def decided(self) -> list[SplitRecord]:
        return [one for one in self.told if isinstance(one, SplitRecord)]


class Apart:
    """One controller for each worker, as a real run drives them; rows arrive one iteration later."""

    def __init__(self, ones: Sequence[Controller]) -> None:
        self.controllers = ones
        self.decided: list[list[SplitRecord]] = [[] for _ in ones]
        self.called = 0
        self.under_way: list[Report] = []

    def step(self, k: int, speeds: dict[int, float]) -> None:
        shares = self.controllers[0].shares(k)
        times_s = [share / speeds[rank] for rank, share in enumerate(shares)]
        calls = [one.begins(rank, k, HERE, COST_S) for rank, one in enumerate(self.controllers)]
        reports = {call.rank: call.report for call in calls if call is not None and call.report is not None}
        self.called += any(calls)
        arrived, self.under_way = self.under_way, []
        for rank, one in enumerate(self.controllers):
            one.measured(rank, observation(k, shares[rank], speeds[rank], max(times_s) - times_s[rank]))
            if not one.due(k, called=any(calls)):
                continue
            if arrived:
                one.gathered(ReportTable(arrived))
            if any(calls):
                one.called(k, reports)
            for instruction in one.ended(rank, k, HERE, COST_S):
                if isinstance(instruction, GiveReport):
                    self.under_way.append(instruction.report)
                elif isinstance(instruction, SplitRecord):
                    self.decided[rank].append(instruction)


@pytest.mark.parametrize("balance", ["lb-bsp", "proportional:predictor=last", "numerical", "static", "even"])
@pytest.mark.parametrize("lookahead", [0, 3])
def test_one_controller_for_all_decides_as_one_for_each(balance: str, lookahead: int) -> None:
    """The simulator's world and that of a run: the same splits in the same iterations, for the same reasons."""
    together = Together(controller(balance=balance, lookahead=lookahead))
    apart = Apart([controller(balance=balance, lookahead=lookahead) for _ in range(3)])
    dice, speeds = random.Random(balance), {0: 60.0, 1: 40.0, 2: 20.0}
    for k in range(120):
        if k % 40 == 30:
            speeds = {rank: speed * dice.choice([0.4, 1.0, 2.5]) for rank, speed in speeds.items()}
        now = {rank: speed * dice.uniform(0.95, 1.05) for rank, speed in speeds.items()}
        together.step(k, now)
        apart.step(k, now)
    assert all(repr(decided) == repr(together.decided) for decided in apart.decided)  # no NaN equals another
    assert bool(together.decided) == (balance != "even")
    assert bool(apart.called) == (balance not in ("static", "even"))


def test_reports_are_given_at_the_end_of_the_second_iteration_and_decided_by_at_that_of_the_third() -> None:
    one = controller((0, 1), lookahead=2)
    assert [end(one, rank, 0) for rank in (0, 1)] == [[], []], "the first iteration warms up"
    (fast,), (slow,) = end(one, 0, 1, speed=80.0), end(one, 1, 1, speed=40.0)
    assert isinstance(fast, GiveReport)
    assert isinstance(slow, GiveReport)
    assert (fast.rank, fast.iteration, fast.report.iteration, fast.report.iterations) == (0, 1, 1, 1)
    assert (fast.report.predicted_per_s, fast.report.samples, fast.report.cost_s) == (80.0, 10, COST_S)
    assert one.due(2, called=False), "a report is under way"
    assert one.reported(0, fast.report) == one.reported(1, slow.report) == []
    split, *rest = end(one, 0, 2, speed=80.0)
    assert isinstance(split, SplitRecord)
    assert (split.decided_at, split.iteration, split.shares) == (2, 5, (80, 40))
    assert [one.shares(k) for k in (4, 5)] == [(60, 60), (80, 40)]
    assert [type(told) for told in rest] == [GiveReport], "the first few reports do not mind the budget"


def test_workers_that_cannot_foretell_yet_keep_their_shares() -> None:
    """Their iterations are too short: one is no measure of a speed."""
    one = controller((0, 1))
    for rank in (0, 1):
        assert end(one, rank, 0) == []
    for rank, speed in enumerate((8000.0, 400.0)):
        (given,) = end(one, rank, 1, speed)
        assert isinstance(given, GiveReport)
        assert math.isnan(given.report.predicted_per_s)
        one.reported(rank, given.report)
    assert [type(told) for told in end(one, 0, 2, 8000.0)] == [GiveReport]
    assert one.newest == (60, 60)


def test_where_workers_do_not_keep_step_the_last_report_decides() -> None:
    """The split holds from the first iteration that nobody has begun."""
    one = controller((0, 1))
    for k in range(3):
        told = end(one, 0, k, speed=80.0)
        for given in told:
            assert isinstance(given, GiveReport)
            assert one.reported(given.rank, given.report, newest=3) == []
    assert end(one, 1, 0) == []
    (given,) = end(one, 1, 1, speed=40.0)
    assert isinstance(given, GiveReport)
    (split,) = one.reported(1, given.report, newest=7)
    assert isinstance(split, SplitRecord)
    assert (split.decided_at, split.iteration) == (7, 8)


def reporting(balance: str) -> Together:
    """Quiet since long, so that no report is due for a while."""
    run = Together(controller((0, 1), balance))
    for k in range(60):
        run.step(k, {0: 80.0, 1: 40.0})
    assert not run.controller.due(60, called=False)
    return run


def test_who_leaves_its_forecast_calls_and_all_decide_by_its_word_at_once() -> None:
    run = reporting("proportional:predictor=last")
    one = run.controller
    for k in (60, 61):
        assert one.begins(0, k, HERE, COST_S) is None
        one.measured(0, observation(k, 80, 20.0))
        assert [one.ended(rank, k, HERE, COST_S) for rank in (0, 1)] == [[], []]
    call = one.begins(0, 62, HERE, COST_S)
    assert isinstance(call, CallForReports)
    assert call.report is not None
    assert (call.rank, call.iteration, call.report.predicted_per_s) == (0, 62, 20.0)
    one.called(62, {0: call.report})
    assert one.due(62, called=True)
    split, first = one.ended(0, 62, HERE, COST_S)
    (second,) = one.ended(1, 62, HERE, COST_S)
    assert isinstance(split, SplitRecord)
    assert (split.decided_at, split.iteration, split.shares) == (62, 63, (40, 80))
    assert isinstance(first, GiveReport)
    assert isinstance(second, GiveReport)
    assert (first.report.urgent, second.report.urgent) == (1.0, 0.0)
    for k in (62, 63):
        one.measured(1, observation(k, 40, 5.0))
    assert one.begins(1, 64, HERE, COST_S) is None, "reports are under way"
    one.gathered(ReportTable([first.report, second.report]))
    one.ended(1, 63, HERE, COST_S)
    assert one.begins(1, 64, HERE, COST_S) is None, "its report has just told it"


def test_a_call_says_nothing_of_itself_where_the_balancer_needs_everybody() -> None:
    run = reporting("numerical")
    one = run.controller
    for k in (60, 61):
        one.measured(0, observation(k, 60, 10.0))
        assert [one.ended(rank, k, HERE, COST_S) for rank in (0, 1)] == [[], []]
    assert one.begins(0, 62, HERE, COST_S) == CallForReports(0, 62, None)
    one.called(62, {})
    told = [told for rank in (0, 1) for told in one.ended(rank, 62, HERE, COST_S)]
    assert [type(given) for given in told] == [GiveReport, GiveReport]


def test_a_report_that_is_not_believed_is_complained_about() -> None:
    one = controller((0, 1))
    for k in range(2):
        for rank in (0, 1):
            for given in end(one, rank, k):
                assert isinstance(given, GiveReport)
                report = given.report._replace(local_s=-1.0) if rank else given.report
                assert one.reported(rank, report) == []
    (complaint, *_) = end(one, 0, 2)
    assert isinstance(complaint, Complaint)
    assert (complaint.rank, complaint.iteration) == (1, 2)


def test_a_step_that_came_too_late_is_reported_and_not_shown_to_the_forecaster() -> None:
    one = controller((0, 1))
    end(one, 0, 0)
    one.measured(0, observation(1, 10, 60.0))
    one.measured(0, observation(2, 10, 20.0), late=True)
    (given,) = one.ended(0, 2, HERE, COST_S)
    assert isinstance(given, GiveReport)
    assert (given.report.iterations, given.report.samples, given.report.predicted_per_s) == (2, 20, 60.0)


# -------------------------------------------------------------------- members come and go


def limits(workers: int) -> Limits:
    return Limits.uniform(workers, X)


def settled() -> Together:
    run = Together(controller())
    for k in range(20):
        run.step(k, {0: 60.0, 1: 40.0, 2: 20.0})
    assert run.controller.newest == (60, 40, 20)
    return run


def test_who_stays_keeps_its_speed_and_a_newcomer_gets_the_mean() -> None:
    one = settled().controller
    one.members_changed(25, (0, 2), limits(2))
    assert one.newest == (90, 30)
    one.members_changed(30, (0, 2, 5), limits(3))
    assert one.newest == (60, 20, 40)
    assert [one.shares(k) for k in (24, 25, 29, 30)] == [(60, 40, 20), (90, 30), (90, 30), (60, 20, 40)]
    run = Together(one)
    for k in range(30, 34):
        run.step(k, {0: 60.0, 2: 20.0, 5: 10.0})
    assert one.newest == (80, 27, 13)
    (split,) = run.decided
    assert split.shares == (80, 0, 27, 0, 0, 13), "columns by rank"
    assert math.isnan(split.speeds_per_s[1])


def test_a_newcomer_gets_what_others_on_machines_of_its_kind_have() -> None:
    one = settled().controller
    kinds = {0: "fast", 1: "slow", 2: "slow", 5: "slow", 6: "new"}
    one.members_changed(30, (0, 1, 2, 5), limits(4), kinds=kinds)
    assert one.newest == (48, 32, 16, 24), "60, 40, 20 and the mean of the slow ones, of 150"
    one.members_changed(40, (0, 1, 2, 5, 6), limits(5), kinds=kinds)
    assert one.newest[4] == 24, "the mean of all"
    one.members_changed(50, (0, 1, 2, 5, 6, 7), limits(6), kinds=kinds)
    assert one.newest[5] == 20, "of which nothing is known, the same"


def test_a_change_before_anybody_began_with_the_last_one_replaces_it() -> None:
    one = settled().controller
    one.members_changed(25, (0, 2), limits(2))
    one.members_changed(25, (0, 1), limits(2))
    assert one.shares(25) == one.newest
    assert sum(one.newest) == X
    assert one.shares(24) == (60, 40, 20)


def test_reports_under_way_are_dropped_and_the_next_are_due_after_the_first_iteration() -> None:
    one = controller()
    for k in range(2):
        for rank in range(3):
            end(one, rank, k)
    assert one.due(2, called=False)
    one.members_changed(5, (0, 2), limits(2))
    assert not one.due(5, called=False)
    assert end(one, 1, 9) == [], "it is no member any more"
    assert end(one, 0, 4) == end(one, 0, 5) == []
    (given,) = end(one, 0, 6)
    assert isinstance(given, GiveReport)
    assert given.report.iterations == 3, "what was measured under the old members counts"


def test_who_comes_back_is_a_stranger_and_what_its_forerunner_still_measures_is_not_its_own() -> None:
    one = settled().controller
    one.members_changed(25, (0, 2), limits(2))
    one.members_changed(30, (0, 1, 2), limits(3))
    one.measured(1, observation(24, 10, 1.0))
    for k, speed in ((30, 7.0), (31, 50.0)):
        one.measured(1, observation(k, 10, speed))
        one.ended(1, k - 1, HERE, COST_S)
    (given,) = one.ended(1, 31, HERE, COST_S)
    assert isinstance(given, GiveReport)
    assert (given.report.iterations, given.report.predicted_per_s) == (1, 50.0), "its first one warmed up"


def test_a_full_memory_is_remembered_of_its_own_worker() -> None:
    """Not of whoever has its place now."""
    one = controller((0, 1, 2))
    for k in range(3):
        for rank in range(3):
            one.measured(rank, observation(k, 40, 60.0))
            for told in one.ended(rank, k, Load(memory=0.99 if rank == 1 else 0.1), COST_S):
                if isinstance(told, GiveReport):
                    one.reported(told.rank, told.report)
    assert one.state_dict(0)["held"] == [0, 40, 0]
    one.members_changed(5, (0, 2, 3), limits(3))
    assert one.state_dict(0)["held"] == [0, 0, 0]


def test_alone_nothing_is_measured_or_reported() -> None:
    one = settled().controller
    one.members_changed(25, (2,), limits(1))
    assert not one.adapts
    assert one.newest == (X,)
    assert end(one, 2, 25) == end(one, 2, 26) == []
    one.members_changed(30, (1, 2), limits(2))
    assert one.adapts


def test_shares_that_were_given_stay_with_others() -> None:
    one = controller((0, 1), "static:shares=3/1")
    assert one.newest == (90, 30)
    assert not one.adapts
    kept = replace(limits(2), upper=(60, X))
    one.members_changed(5, (0, 1), kept)
    assert one.newest == (60, 60)

"""The slow loop without a network: all ranks decide the same, on time, and believe no nonsense."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence

import pytest
from slow_crew import Crew, X

from uneven.errors import ConflictError, PeerError
from uneven.policy.balance import Balancer
from uneven.policy.control import Load, Report
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView


class Moving(Balancer):
    """Another split after every report."""

    def split(self, view: BalanceView) -> Split:
        weights = [1.0 + (7 * view.iteration + 3 * rank) % 11 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


def test_all_ranks_hold_the_same_split_whatever_the_timings() -> None:
    chance = random.Random(5)
    crew = Crew([100, 50, 25, 10], "lb-bsp")
    for _ in range(200):
        crew.speeds = [speed * chance.uniform(0.3, 3.0) for speed in (100, 50, 25, 10)]
        crew.run(1)  # Crew.run compares the ranks
    assert len(set(crew.used)) > 3
    assert all(splits == crew.splits[0] for splits in crew.splits)


def test_unequal_workers_get_what_they_can_do() -> None:
    crew = Crew([60, 40, 20])
    crew.run(5)
    assert crew.used[0] == (40, 40, 40)
    assert crew.used[-1] == (60, 40, 20)


def test_each_report_says_what_its_rank_foretells() -> None:
    crew = Crew([60, 40, 20])
    crew.run(30)
    for speed, told in zip(crew.speeds, crew.foretold, strict=True):
        assert [one.iteration - 1 for one in told] == crew.gathers
        assert told[-1].predicted_per_s == pytest.approx(speed)


@pytest.mark.parametrize("lookahead", [0, 1, 4])
def test_a_split_is_in_force_just_when_it_was_announced(lookahead: int) -> None:
    """What is decided after iteration k holds from k + 1 + lookahead, and not one iteration earlier."""
    crew = Crew([60, 40, 20], lambda rank: Moving(), lookahead=lookahead)
    crew.run(40)
    splits = crew.splits[0]
    assert len(splits) > 10
    for before, split, after in zip(splits, splits[1:], [*splits[2:], None], strict=False):
        assert split.iteration == split.decided_at + 1 + lookahead
        if split.iteration < 40:
            assert crew.used[split.iteration - 1] == before.shares
            until = min(after.iteration if after else 40, 40)
            assert set(crew.used[split.iteration : until]) == {split.shares}


@pytest.mark.parametrize("lookahead", [0, 4])
def test_an_answer_once_given_never_changes(lookahead: int) -> None:
    """Loaders with and without readers ask for the same iteration at different times."""
    crew = Crew([60, 40, 20], lambda rank: Moving(), lookahead=lookahead)
    asked: dict[int, tuple[int, ...]] = {}
    for _ in range(40):
        ahead = crew.iteration + lookahead
        asked[ahead] = crew.loops[0].shares(ahead)
        crew.run(1)
    late = {iteration: shares for iteration, shares in enumerate(crew.used) if iteration in asked}
    assert late == {iteration: asked[iteration] for iteration in late}


def falsify(**values: float) -> Callable[[int, list[float]], Sequence[float]]:
    """From the sixth report on, these fields of it are replaced; "…_times" multiplies."""

    def lie(count: int, row: list[float]) -> Sequence[float]:
        if count < 6:
            return row
        report = Report(*row)
        for name, value in values.items():
            field = name.removesuffix("_times")
            report = report._replace(**{field: getattr(report, field) * value if field != name else value})
        return report

    return lie


BAD = {
    "NaN time": {"local_s": math.nan},
    "infinite time": {"local_s": math.inf},
    "no time": {"local_s": 0.0},
    "negative time": {"local_s": -1.0},
    "negative exchange": {"exchange_s": -1.0},
    "NaN exchange": {"exchange_s": math.nan},
    "NaN transfer": {"transfer_s": math.nan},
    "negative transfer": {"transfer_s": -0.5},
    "infinite transfer": {"transfer_s": math.inf},
    "NaN samples": {"samples": math.nan},
    "negative samples": {"samples": -5.0},
    "absurdly fast": {"local_s_times": 1e-9},
    "absurdly slow": {"local_s_times": 1e9},
    "NaN iteration": {"iteration": math.nan, "local_s": math.nan},
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_report_changes_nothing_and_is_complained_about(kind: str) -> None:
    crew = Crew([60, 40, 20], lies={1: falsify(**BAD[kind])})
    crew.run(5)
    settled = crew.used[-1]
    assert settled == (60, 40, 20)
    crew.run(40)
    assert set(crew.used[5:]) == {settled}
    assert crew.complaints[0], "nobody complained"
    assert {rank for rank, _, _ in crew.complaints[0]} == {1}
    assert all(told == crew.complaints[0] for told in crew.complaints)
    assert "serves" in crew.complaints[0][0][2]


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1.0, 1e300])
def test_a_bad_cost_breaks_nothing(cost: float) -> None:
    crew = Crew([60, 40, 20], lies={1: falsify(cost_s=cost)})
    crew.run(50)
    assert crew.used[-1] == (60, 40, 20)


def test_a_report_without_samples_is_no_fault() -> None:
    crew = Crew([60, 40, 20], lies={1: falsify(samples=0, iterations=0, local_s=0)})
    crew.run(50)
    assert crew.used[-1] == (60, 40, 20)
    assert crew.complaints[0] == []


def test_a_lasting_change_is_followed_after_a_bad_time() -> None:
    """The last good report serves only until there is a better one."""
    crew = Crew([60, 40, 20], lies={1: lambda n, row: [math.nan] * len(row[:-1]) + row[-1:] if n == 6 else row})
    crew.run(10)
    crew.speeds = [20, 40, 60]
    crew.run(60)
    assert crew.used[-1] == (20, 40, 60)


class Fickle(Balancer):
    """Answers one rank differently: what a balancer must never do."""

    def __init__(self, odd: bool) -> None:
        self._odd = odd

    def split(self, view: BalanceView) -> Split:
        weights = [1.0] * len(view.members)
        if view.iteration >= 5:
            weights[-1 if self._odd else 0] = 2.0
        return Split(proportional(weights, view.global_batch, view.limits))


def ticks(crew: Crew, iterations: range, ranks: int) -> None:
    """Turns of the first ranks only, without any measurement."""
    for iteration in iterations:
        for loop in crew.loops[:ranks]:
            loop.tick(iteration, Load(), 0.0, None)


def test_a_balancer_that_is_not_deterministic_is_caught() -> None:
    crew = Crew([10, 10, 10], lambda rank: Fickle(odd=rank == 2))
    with pytest.raises(ConflictError, match=r"rank 2 decided another split than rank 0.*deterministic"):
        ticks(crew, range(60), ranks=3)


def test_a_rank_that_sends_nothing_is_named() -> None:
    crew = Crew([60, 40, 20])
    crew.run(2)
    with pytest.raises(PeerError, match="rank 2"):
        ticks(crew, range(2, 20), ranks=2)


@pytest.mark.parametrize("balance", ["even", "static:shares=1/2/3"])
def test_what_never_changes_is_never_gathered(balance: str) -> None:
    crew = Crew([60, 40, 20], balance)
    crew.run(30)
    assert len(set(crew.used)) == 1
    assert crew.gathers == []
    assert all(loop._pending is None for loop in crew.loops)


@pytest.mark.parametrize("budget", [0.05, 0.005])
@pytest.mark.parametrize("cost_s", [1e-3, 1e-2])
def test_gathers_stay_within_the_budget(budget: float, cost_s: float) -> None:
    crew = Crew([60, 40, 20], budget=budget)
    crew.cost_s = cost_s
    crew.run(3000)
    late = [iteration for iteration in crew.gathers if iteration >= 100]
    time_s = sum(max(s / v for s, v in zip(used, crew.speeds, strict=True)) for used in crew.used[100:])
    assert len(late) * cost_s <= budget * time_s
    assert late or cost_s / budget > 100


def test_state_goes_to_a_file_and_back() -> None:
    crew = Crew([60, 40, 20], "lb-bsp")
    crew.run(30)
    other = crew.resumed(balance="lb-bsp")
    assert other.loops[0].shares(30) == crew.loops[0].newest
    for mine, theirs in zip(crew.loops, other.loops, strict=True):
        assert json.dumps(theirs.state_dict()) == json.dumps(mine.state_dict())
    other.run(30)
    assert all(shares == other.used[0] for shares in other.used), "the split moved although nothing did"


def test_a_state_of_another_balancer_is_not_taken_over() -> None:
    crew = Crew([60, 40, 20], "lb-bsp")
    crew.run(30)
    assert crew.used[-1] != (40, 40, 40)
    assert crew.resumed(balance="even").loops[0].newest == (40, 40, 40)
    assert crew.resumed(balance="static:shares=1/1/4").loops[0].newest == (20, 20, 80)


def test_a_state_of_another_number_of_workers_starts_afresh() -> None:
    crew = Crew([60, 40, 20])
    crew.run(30)
    other = crew.resumed(speeds=[60, 40])
    assert other.loops[0].newest == (X // 2, X // 2)
    other.run(10)
    assert other.used[-1] == (72, 48)


def test_going_back_in_the_same_run_forgets_what_is_undone() -> None:
    crew = Crew([60, 40, 20])
    crew.run(4)
    early = [loop.state_dict() for loop in crew.loops]
    crew.run(300)
    for loop, state in zip(crew.loops, early, strict=True):
        loop.load_state_dict(state)
    crew.iteration = 4
    crew.speeds = [20, 40, 60]
    crew.run(20)
    assert crew.used[-1] == (20, 40, 60)


def test_a_change_is_told_at_once_however_long_all_was_quiet() -> None:
    crew = Crew([60, 40, 20], "lb-bsp", budget=0.05)
    crew.run(600)
    quiet = [b - a for a, b in zip(crew.gathers[-3:], crew.gathers[-2:], strict=False)]
    assert min(quiet) > 20
    assert not crew.calls
    crew.speeds = [20, 40, 60]
    crew.run(8)
    assert crew.calls == [602]  # two iterations were measured, and in the third one everybody hears
    assert crew.gathers[-1] >= 602
    assert crew.used[602] == (60, 40, 20)
    assert crew.used[603] != (60, 40, 20), "all have decided by what they heard"
    assert crew.used[-1] == (20, 40, 60)


def test_who_is_far_off_does_not_wait_until_the_last_report_is_paid_for() -> None:
    crew = Crew([60, 40, 20], "lb-bsp", budget=0.005)
    crew.cost_s = 0.04  # as much as 13 iterations may spend, and a twenty-fifth of one
    crew.run(600)
    for change, calls in (([20, 40, 60], [602]), ([60, 40, 20], [602, 608])):
        crew.speeds = change
        crew.run(6)
        assert crew.calls == calls
    crew.speeds = [52, 40, 20]  # off by less than a quarter: that is worth no debt
    crew.run(6)
    assert crew.calls == [602, 608]


def test_where_a_report_is_dear_who_is_far_off_waits() -> None:
    crew = Crew([60, 40, 20], "lb-bsp", budget=0.005)
    crew.cost_s = 0.08  # more than a twentieth of an iteration of a second; those of a wrong split take three
    crew.run(600)
    for _ in range(20):
        crew.speeds = crew.speeds[::-1]
        crew.run(6)
    gaps = [b - a for a, b in zip(crew.calls, crew.calls[1:], strict=False)]
    assert len(gaps) > 2
    assert min(gaps) > 6, "else at each change"


def test_calls_are_made_within_the_budget() -> None:
    """A worker that changes all the time does not get to talk all the time."""
    crew = Crew([60, 40, 20], "lb-bsp", budget=0.005)
    crew.cost_s = 0.1
    for _ in range(100):
        crew.speeds = crew.speeds[::-1]
        crew.run(20)
    late = [iteration for iteration in crew.gathers if iteration >= 100]
    assert len(crew.calls) > 60
    # An iteration takes at least a second: 120 samples at 120 a second.
    assert len(late) * crew.cost_s <= 0.005 * (crew.iteration - 100) * 1.5


def test_a_rank_learns_from_its_own_past_out_of_another_ranks_file() -> None:
    crew = Crew([60, 40, 20], "lb-bsp")
    crew.run(60)
    saved = json.dumps(crew.loops[0].state_dict(), allow_nan=False)
    other = Crew([60, 40, 20], "lb-bsp")
    for loop in other.loops:
        loop.load_state_dict(json.loads(saved))
    other.iteration = crew.iteration
    assert [loop._reporter.forecaster.tell().predicted_per_s for loop in other.loops] == pytest.approx([60, 40, 20])
    other.run(60)
    assert set(other.used) == {(60, 40, 20)}


@pytest.mark.parametrize("told", [math.nan, math.inf, 0.0, -1.0, 1e30])
def test_a_forecast_out_of_all_proportion_is_not_believed(told: float) -> None:
    crew = Crew([60, 40, 20], lies={1: falsify(predicted_per_s=told, doubt=told)})
    crew.run(50)
    assert crew.used[-1] == (60, 40, 20)


def test_after_a_sudden_change_one_more_report_comes_at_once() -> None:
    crew = Crew([60, 40, 20], "lb-bsp", budget=0.005)
    crew.cost_s = 0.02  # 6 iterations of one second pay for it
    crew.run(600)
    before = len(crew.gathers)
    crew.speeds = [20, 40, 60]
    crew.run(8)
    assert crew.gathers[before + 1] - crew.gathers[before] == 1

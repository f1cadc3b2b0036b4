"""A planner that believes what members show: rates follow, a slow surprise ends the round, others do not."""

import pytest

from ensembles import EQUAL, EXAMPLE
from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.flotillas import Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet_plan.learning import LearningPlanner
from uneven_bench.fleet_plan.simulate import play

NOBODY = Flotilla()


def test_it_plans_as_the_planner_until_somebody_is_slower_than_believed() -> None:
    learner, planner = LearningPlanner(Planner(EXAMPLE, 4)), Planner(EXAMPLE, 4)
    first = learner.next_flotilla(EXAMPLE.members, 4, NOBODY)
    assert first == planner.next_flotilla(EXAMPLE.members, 4, NOBODY)
    learner.observe({"D1": (1, 100.0), "D4": (3, 105.0)})
    assert not learner.round_ends(4)
    assert learner.round_ends(3)
    learner.observe({"D1": (1, 130.0), "D4": (3, 98.0)})  # the pace is 98 where 100 was planned: within 10 %
    assert not learner.round_ends(4)
    assert learner.planner.rates.per_s("D1", 2) == pytest.approx(247)
    learner.observe({"D1": (1, 130.0), "D4": (3, 60.0)})
    assert learner.round_ends(4)


def test_the_surprise_is_over_with_the_next_round() -> None:
    learner = LearningPlanner(Planner(EXAMPLE, 4))
    learner.observe({"D4": (3, 60.0)})
    assert learner.round_ends(4)
    assert learner.next_flotilla(("D1",), 1, Flotilla({"D2": 3})) == NOBODY
    assert learner.round_ends(4)
    learner.next_flotilla(EXAMPLE.members, 4, NOBODY)
    assert not learner.round_ends(4)
    learner.observe({})
    assert not learner.round_ends(4)


def test_a_rate_that_cannot_be_is_refused_and_changes_nothing() -> None:
    learner = LearningPlanner(Planner(EXAMPLE, 4))
    with pytest.raises(ConfigError, match="'D1' cannot have trained"):
        learner.observe({"D4": (3, 60.0), "D1": (1, -1.0)})
    assert learner.planner.rates is EXAMPLE
    assert not learner.round_ends(4)


def test_a_wrong_profile_costs_less_when_members_are_believed() -> None:
    wrong = Rates(
        {"D1": (60, 115, 160, 210), "D2": (80, 150, 220, 280), "D3": (160, 300, 400, 480), "D4": (40, 75, 105, 120)}
    )
    learner = LearningPlanner(Planner(wrong, 4))
    learnt, once = play(EQUAL, learner, told=learner.observe), play(EQUAL, Planner(wrong, 4))
    assert learnt.wall_s < once.wall_s
    first = [bar for bar in learnt.bars if bar.start_s == 0]
    assert {bar.end_s for bar in first} == {
        1000 / 80
    }  # one epoch, at the pace of D3, of which twice as much was thought
    assert not any(bar.ended for bar in first)


def test_members_are_told_of_once_after_each_start() -> None:
    told: list[str] = []
    found = play(EQUAL, Planner(EXAMPLE, 4), told=lambda seen: told.extend(seen))
    assert sorted(told) == sorted(bar.member for bar in found.bars)

"""Yardsticks: the bound is never beaten, the search finds the best rounds, and both are right where one can see."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings

from ensembles import EQUAL, EXAMPLE, ensembles, methods
from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.flotillas import Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet_plan.optimal import MOST_PLANS, best_rounds_s, least_wall_s, round_s
from uneven_bench.fleet_plan.simulate import EnsembleWork, play


def test_bounds_that_one_can_see() -> None:
    linear = Rates({"a": (10, 20, 30, 40), "b": (20, 40, 60, 80)})
    work = EnsembleWork(linear, {"a": 3, "b": 6}, samples=100, nodes=(range(4),))
    assert least_wall_s(work) == pytest.approx((30 + 30) / 4)  # device-seconds over devices: scaling is perfect
    flat = Rates({"a": (10, 10, 10, 10), "b": (20, 20, 20, 20)})
    assert least_wall_s(EnsembleWork(flat, {"a": 3, "b": 5}, samples=100, nodes=(range(4),))) == pytest.approx(30)
    starved = EnsembleWork(linear, {"a": 3, "b": 6}, samples=100, nodes=(range(4),), prepared_per_s=5.0)
    assert least_wall_s(starved) == pytest.approx(600 / 20)


def test_the_best_rounds_of_the_example() -> None:
    best_s = best_rounds_s(EQUAL)
    assert best_s == pytest.approx(10_000 * (1 / 350 + 1 / 75))  # D1 alone, then the rest at 75 samples/s
    rounds = ({"D1": 4}, {"D2": 1, "D3": 1, "D4": 2})
    assert math.fsum(round_s(EQUAL, one) for one in rounds) == pytest.approx(best_s)
    greedy = play(EQUAL, Planner(EXAMPLE, 4, alpha=0.0)).wall_s
    assert greedy / best_s == pytest.approx((1 / 100 + 1 / 150) / (1 / 350 + 1 / 75))  # 2.9 % more


def brute_force(work: EnsembleWork) -> float:
    """Every partition into rounds and every number of devices, without any cleverness."""
    names = list(work.rates.members)
    best = math.inf
    for labels in itertools.product(range(len(names)), repeat=len(names)):
        total = 0.0
        for label in set(labels):
            group = [name for name, one in zip(names, labels, strict=True) if one == label]
            counts = itertools.product(range(1, work.devices + 1), repeat=len(group))
            times = [round_s(work, dict(zip(group, one, strict=True))) for one in counts if sum(one) <= work.devices]
            total += min(times, default=math.inf)
        best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_the_search_is_exact(seed: int) -> None:
    rng = random.Random(seed)
    rates = Rates({f"m{i}": sorted(rng.uniform(5, 100) for _ in range(3)) for i in range(4)})
    epochs = {name: rng.randint(1, 9) for name in rates.members}
    work = EnsembleWork(rates, epochs, samples=100, nodes=(range(3),), prepared_per_s=rng.choice((15.0, math.inf)))
    assert best_rounds_s(work) == pytest.approx(brute_force(work))


def test_a_round_takes_what_the_simulator_plays() -> None:
    work = EnsembleWork(EXAMPLE, {"D1": 2, "D2": 9, "D3": 4, "D4": 4}, samples=100, nodes=(range(4),))
    first = Planner(EXAMPLE, 4, alpha=0.0).next_flotilla(EXAMPLE.members, 4, Flotilla())
    played = play(work, Planner(EXAMPLE, 4, alpha=0.0))
    ends = max(bar.end_s for bar in played.bars if bar.start_s == 0)
    assert round_s(work, first.members) == pytest.approx(ends)
    assert round_s(work, {"D1": 9}) == math.inf


def test_a_large_ensemble_is_refused_and_memory_is_heeded() -> None:
    many = Rates({f"m{i}": (1.0,) for i in range(30)})
    with pytest.raises(ConfigError, match=f"more than {MOST_PLANS}"):
        best_rounds_s(EnsembleWork(many, dict.fromkeys(many.members, 1), samples=1, nodes=(range(30),)))
    large = Rates({"a": (10.0, 20.0, 30.0)}).at_least({"a": 3})
    with pytest.raises(ConfigError, match="does not fit on all devices"):
        best_rounds_s(EnsembleWork(large, {"a": 1}, samples=1, nodes=(range(2),)))


@settings(max_examples=30)
@given(work=ensembles)
def test_no_method_beats_the_bound_and_no_whole_rounds_beat_the_best(work: EnsembleWork) -> None:
    bound, best = least_wall_s(work), best_rounds_s(work)
    assert bound <= best * (1 + 1e-9)
    for plans in methods(work).values():
        assert play(work, plans).wall_s >= bound * (1 - 1e-9)
    assert play(work, Planner(work.rates, work.devices, alpha=0.0)).wall_s >= best * (1 - 1e-9)

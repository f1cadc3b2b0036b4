"""Our rule: the pace at which devices do the most work, found among all rates, within devices and memory."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensembles import EQUAL, EXAMPLE
from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet.pure.planning.allocate import Flotilla, create_flotilla
from uneven.fleet.pure.planning.flotillas import Paradigm
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet_plan.densest import DensestPlanner, densest_flotilla
from uneven_bench.fleet_plan.simulate import play


def work(rates: Rates, flotilla: Flotilla) -> float:
    """What a flotilla does, in members training alone on one device."""
    pace = flotilla.pace_per_s(rates)
    return math.fsum(pace / rates.per_s(name, 1) for name in flotilla.members)


def test_members_of_one_rate_train_on_one_device_each() -> None:
    rates = Rates(dict.fromkeys("abcd", (50.0, 95.0, 135.0, 170.0)))
    assert dict(densest_flotilla(rates, "abcd", 4).members) == dict.fromkeys("abcd", 1)
    assert dict(densest_flotilla(rates, "ab", 4).members) == {"a": 2, "b": 2}
    assert dict(densest_flotilla(rates, "a", 4).members) == {"a": 4}


def test_the_example_of_the_slides() -> None:
    best = densest_flotilla(EXAMPLE, EXAMPLE.members, 4)
    papers = create_flotilla(EXAMPLE, EXAMPLE.members, 4)
    assert dict(best.members) == {"D2": 1, "D3": 1, "D4": 2}  # at 75 samples/s, worth 3.75 of the four devices
    assert (work(EXAMPLE, best), work(EXAMPLE, papers)) == pytest.approx((3.75, 3.5))
    assert work(EXAMPLE, best) == pytest.approx(most_work(EXAMPLE, 4))


def test_one_large_member_is_not_kept_out_by_a_small_one() -> None:
    rates = Rates({"small": (40.0,), "large": (10.0, 19.9, 29.8, 39.9)})
    assert dict(densest_flotilla(rates, rates.members, 4).members) == {"large": 4}  # with small it could use three


def test_a_fast_member_is_left_out_where_it_would_mostly_wait() -> None:
    rates = Rates({"fast": (100.0, 150.0), "a": (10.0, 19.0), "b": (10.0, 19.0)})
    assert set(densest_flotilla(rates, rates.members, 2).members) == {"a", "b"}


def test_what_is_left_raises_the_slowest_and_never_lowers_it() -> None:
    rates = Rates({"a": (50.0, 60.0, 40.0)})
    assert dict(densest_flotilla(rates, ["a"], 3).members) == {"a": 2}


def test_newcomers_reach_a_given_pace() -> None:
    found = densest_flotilla(EXAMPLE, ("D2", "D3", "D4"), 3, pace_per_s=100.0)
    assert dict(found.members) == {"D4": 3}  # 100 samples/s need three of its devices and are worth 2.5
    assert dict(densest_flotilla(EXAMPLE, ("D2", "D4"), 2, pace_per_s=100.0).members) == {"D2": 2}
    assert densest_flotilla(EXAMPLE, ("D4",), 2, pace_per_s=100.0) == Flotilla()


def test_memory_nobody_and_nonsense() -> None:
    large = EXAMPLE.at_least({"D1": 3})
    assert densest_flotilla(large, ["D1"], 2) == Flotilla()
    assert dict(densest_flotilla(large, ["D1"], 4).members) == {"D1": 4}
    assert densest_flotilla(EXAMPLE, [], 4) == Flotilla()
    with pytest.raises(ConfigError, match="on -1 devices"):
        densest_flotilla(EXAMPLE, ["D1"], -1)
    with pytest.raises(ConfigError, match="'D1' is in the queue twice"):
        densest_flotilla(EXAMPLE, ["D1", "D1"], 4)
    with pytest.raises(UnknownNameError):
        densest_flotilla(EXAMPLE, ["E1"], 4)


def test_the_planner_takes_it_in_every_paradigm() -> None:
    for paradigm in Paradigm:
        planner = DensestPlanner(EXAMPLE, 4, paradigm)
        assert planner.next_flotilla(EXAMPLE.members, 4, Flotilla()) == densest_flotilla(EXAMPLE, EXAMPLE.members, 4)
        assert sum(bar.ended for bar in play(EQUAL, planner).bars) == 4
    refill = DensestPlanner(EXAMPLE, 4, Paradigm.REFILL)
    assert dict(refill.next_flotilla(("D2", "D4"), 2, Flotilla({"D1": 1})).members) == {"D2": 2}


def most_work(rates: Rates, devices: int) -> float:
    """Of all flotillas and numbers of devices, one by one."""
    counts = itertools.product(range(devices + 1), repeat=len(rates.members))
    plans: list[Any] = [dict(zip(rates.members, one, strict=True)) for one in counts if 0 < sum(one) <= devices]
    return max(work(rates, Flotilla({name: count for name, count in plan.items() if count})) for plan in plans)


@settings(max_examples=40)
@given(
    rows=st.lists(st.lists(st.floats(5.0, 200.0), min_size=4, max_size=4).map(sorted), min_size=1, max_size=4),
    devices=st.integers(1, 4),
)
def test_it_is_feasible_and_near_the_most_work(rows: list[list[float]], devices: int) -> None:
    rates = Rates({f"m{place}": row for place, row in enumerate(rows)})
    found = densest_flotilla(rates, rates.members, devices)
    assert 0 < found.devices <= devices
    assert min(found.members.values()) >= 1
    best = most_work(rates, devices)
    assert best / 2 * (1 - 1e-9) <= work(rates, found) <= best * (1 + 1e-9)

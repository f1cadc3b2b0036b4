"""Flotillas: the worked example of FLEET's slides in all its subsets, ties, memory, options."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet.pure.planning.allocate import Closeness, Flotilla, create_flotilla
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet_plan.learning import corrected

EXAMPLE = Rates(
    {"D1": (100, 190, 270, 350), "D2": (80, 150, 220, 280), "D3": (80, 150, 200, 240), "D4": (40, 75, 105, 120)}
)
"""Four members on four devices; the paper's slides."""

FLOTILLAS = {
    "1234": ({"D1": 1, "D4": 3}, 100),
    "234": ({"D2": 1, "D3": 1, "D4": 2}, 75),
    "123": ({"D1": 1, "D2": 2, "D3": 1}, 80),
    "124": ({"D1": 1, "D4": 3}, 100),
    "134": ({"D1": 1, "D4": 3}, 100),
    "12": ({"D1": 2, "D2": 2}, 150),
    "13": ({"D1": 2, "D3": 2}, 150),
    "23": ({"D2": 2, "D3": 2}, 150),
    "14": ({"D1": 1, "D4": 3}, 100),
    "24": ({"D2": 1, "D4": 3}, 80),
    "34": ({"D3": 1, "D4": 3}, 80),
    "1": ({"D1": 4}, 350),
    "2": ({"D2": 4}, 280),
    "3": ({"D3": 4}, 240),
    "4": ({"D4": 4}, 120),
}
"""Who waits → the flotilla and its pace, reckoned by hand from the rule."""

ALONE_AT_19 = {"123", "12", "13"}
"""Where the example's gap of exactly 20 decides."""


def names(who: str) -> list[str]:
    return [f"D{digit}" for digit in who]


def test_the_example_lists_every_subset() -> None:
    subsets = {"".join(one) for size in (1, 2, 3, 4) for one in itertools.combinations("1234", size)}
    assert set(FLOTILLAS) == subsets


@pytest.mark.parametrize("who", FLOTILLAS)
def test_every_subset_of_the_example(who: str) -> None:
    wanted, pace = FLOTILLAS[who]
    found = create_flotilla(EXAMPLE, names(who), 4)
    assert dict(found.members) == wanted
    assert found.pace_per_s(EXAMPLE) == pace


@pytest.mark.parametrize("who", FLOTILLAS)
def test_a_gap_of_exactly_delta_counts_as_near(who: str) -> None:
    found = create_flotilla(EXAMPLE, names(who), 4, closeness=Closeness(delta_per_s=19))
    assert dict(found.members) == ({"D1": 4} if who in ALONE_AT_19 else FLOTILLAS[who][0])


def test_of_equal_gaps_fewer_devices_win_then_the_earlier_member() -> None:
    rates = Rates({"fast": (100, 0.5), "late": (90, 110), "two": (95, 105)})
    assert dict(create_flotilla(rates, rates.members, 2).members) == {"fast": 1, "two": 1}
    twins = Rates({"a": (50,), "b": (50,), "c": (50,)})
    assert list(create_flotilla(twins, ("c", "b", "a"), 2).members) == ["a", "b"]


def test_a_relative_delta_follows_the_reference() -> None:
    thousands = Rates({"a": (5000, 9000), "b": (4100, 7900), "c": (3900, 7000)})
    close = Closeness(delta_share=0.2)
    assert dict(create_flotilla(thousands, thousands.members, 2).members) == {"a": 2}
    assert dict(create_flotilla(thousands, thousands.members, 2, closeness=close).members) == {"a": 1, "b": 1}
    assert dict(create_flotilla(thousands, ("a", "c"), 2, closeness=close).members) == {"a": 2}


def test_left_over_devices_are_all_handed_out_unless_they_must_gain() -> None:
    turning = Rates({"a": (50, 60, 61, 40)})
    assert dict(create_flotilla(turning, ["a"], 4).members) == {"a": 3}
    for least_gain, count in ((None, 4), (0.0, 3), (0.1, 2), (0.5, 1)):  # None is the paper's rule, where it hurts
        found = create_flotilla(turning, ["a"], 4, closeness=Closeness(least_gain=least_gain))
        assert dict(found.members) == {"a": count}


def test_a_rate_that_comes_back_to_the_reference_is_not_taken_on_the_way_down() -> None:
    rates = Rates({"fast": (100,), "hill": (60, 98, 130, 120, 110, 100), "slow": (50, 90)})
    found = create_flotilla(rates, rates.members, 7)  # as printed, hill on six devices has the smallest gap
    assert dict(found.members) == {"fast": 1, "hill": 3, "slow": 2}
    printed = Closeness(least_gain=None, falling=True)
    assert dict(create_flotilla(rates, rates.members, 7, closeness=printed).members) == {"fast": 1, "hill": 6}


def test_who_can_use_no_more_is_passed_over() -> None:
    rates = Rates({"short": (10,), "long": (11, 12, 13)})
    assert dict(create_flotilla(rates, rates.members, 4).members) == {"long": 3, "short": 1}


def test_memory_is_a_rate_of_zero() -> None:
    large = EXAMPLE.at_least({"D1": 2})
    assert (large.least("D1"), large.per_s("D1", 1), large.per_s("D1", 2)) == (2, 0.0, 190.0)
    found = create_flotilla(large, large.members, 4, closeness=Closeness(delta_per_s=40))
    assert dict(found.members) == {"D1": 2, "D2": 2}  # the reference is its rate on two, 190
    assert create_flotilla(large, ["D1"], 1) == Flotilla()


def test_a_given_reference_is_kept() -> None:
    assert dict(create_flotilla(EXAMPLE, ["D2", "D4"], 3, reference_per_s=150).members) == {"D2": 3}
    assert create_flotilla(EXAMPLE, ["D4"], 2, reference_per_s=150) == Flotilla()


def test_nobody_or_nothing_gives_an_empty_flotilla_and_nonsense_is_refused() -> None:
    assert create_flotilla(EXAMPLE, [], 4) == Flotilla()
    assert create_flotilla(EXAMPLE, ["D1"], 0) == Flotilla()
    with pytest.raises(ConfigError, match="empty flotilla has no rate"):
        Flotilla().pace_per_s(EXAMPLE)
    with pytest.raises(UnknownNameError, match="did you mean 'D4'"):
        create_flotilla(EXAMPLE, ["D44"], 4)
    with pytest.raises(ConfigError, match="'D1' is in the queue twice"):
        create_flotilla(EXAMPLE, ["D1", "D1"], 4)
    with pytest.raises(ConfigError, match="on -1 devices"):
        create_flotilla(EXAMPLE, ["D1"], -1)
    with pytest.raises(ConfigError, match="delta_share is -1"):
        Closeness(delta_share=-1)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({}, "without members"),
        ({"a": (1.0, -2.0)}, "on 2 devices is -2.0"),
        ({"a": (float("nan"),)}, "on 1 devices is nan"),
        ({"a": (0.0, 0.0)}, "does not fit on any number"),
        ({"a": (1.0, 0.0, 2.0)}, "not on all numbers between"),
    ],
)
def test_impossible_rates_are_refused(table: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Rates(table)


def test_a_member_that_runs_differently_is_rescaled_as_a_whole() -> None:
    seen = corrected(EXAMPLE, {"D1": (2, 95.0), "D2": (1, 86.0)})
    assert seen.table[0].tolist() == [50, 95, 135, 175]
    assert seen.table[1].tolist() == EXAMPLE.table[1].tolist()  # 7.5 % is no change
    for wrong in ((2, 0.0), (9, 100.0)):
        with pytest.raises(ConfigError, match="'D1' cannot have trained"):
            corrected(EXAMPLE, {"D1": wrong})


def test_beyond_the_profile_only_the_extrapolation_is_corrected() -> None:
    seen = corrected(EXAMPLE, {"D1": (4, 175.0)}, profiled=2)
    assert seen.table[0].tolist() == pytest.approx([100, 190, 270 * 0.5**0.5, 175])
    assert corrected(EXAMPLE, {"D1": (2, 95.0)}, profiled=2).table[0].tolist() == [50, 95, 135, 175]


ensembles = st.lists(st.lists(st.floats(1.0, 200.0), min_size=1, max_size=9).map(sorted), min_size=1, max_size=9).map(
    lambda rows: Rates({f"m{place}": row for place, row in enumerate(rows)})
)


@settings(max_examples=50)
@given(rates=ensembles, devices=st.integers(1, 12), delta=st.floats(0.0, 60.0))
def test_what_always_holds(rates: Rates, devices: int, delta: float) -> None:
    full = create_flotilla(rates, rates.members, devices, closeness=Closeness(delta))
    bare = create_flotilla(rates, rates.members, devices, closeness=Closeness(delta, least_gain=1e9))
    assert min(full.members.values()) >= 1
    usable = sum(int((rates.table[rates.place(name)] > 0).sum()) for name in full.members)
    assert full.devices == min(devices, usable)
    assert list(full.members) == list(bare.members)
    fastest = max(rates.per_s(name, 1) for name in rates.members)
    first = next(iter(bare.members))
    assert (bare.members[first], rates.per_s(first, 1)) == (1, fastest)
    assert all(abs(rate - fastest) <= delta for rate in bare.per_s(rates).values())


@settings(max_examples=50)
@given(rates=ensembles, devices=st.integers(1, 12), delta=st.floats(0.0, 60.0))
def test_the_single_walk_finds_what_the_paper_searches_again_and_again(
    rates: Rates, devices: int, delta: float
) -> None:
    """Algorithm 2 word for word, without left-over devices."""
    order = list(rates.members)
    fast = max(order, key=lambda name: (rates.per_s(name, 1), -order.index(name)))
    chosen, used = {fast: 1}, 1
    while True:
        open_pairs = [
            (abs(rates.per_s(name, count) - rates.per_s(fast, 1)), count, order.index(name))
            for name in order
            for count in range(1, devices - used + 1)
            if name not in chosen and rates.per_s(name, count) > 0
        ]
        near = [pair for pair in open_pairs if pair[0] <= delta]
        if not near:
            break
        _, count, place = min(near)
        chosen[order[place]], used = count, used + count
    found = create_flotilla(rates, order, devices, closeness=Closeness(delta, least_gain=1e9))
    assert dict(found.members) == chosen

"""Rounds: when they end, who follows, and that a whole training comes to its end in both paradigms."""

import itertools
from typing import Any

import pytest

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.flotillas import Paradigm, Planner
from uneven.fleet.pure.planning.rates import Rates

EXAMPLE = Rates(
    {"D1": (100, 190, 270, 350), "D2": (80, 150, 220, 280), "D3": (80, 150, 200, 240), "D4": (40, 75, 105, 120)}
)


def histories(planner: Planner) -> set[tuple[tuple[frozenset[Any], str], ...]]:
    """Every order in which members can converge one at a time: the flotillas, and who ended each."""
    found = set()

    def play(waiting: frozenset[str], past: tuple[tuple[frozenset[Any], str], ...]) -> None:
        if not waiting:
            found.add(past)
            return
        flotilla = planner.next_flotilla(waiting, planner.devices, Flotilla())
        for name, count in flotilla.members.items():
            assert planner.round_ends(flotilla.devices - count)
            play(waiting - {name}, (*past, (frozenset(flotilla.members.items()), name)))

    play(frozenset(planner.rates.members), ())
    return found


def test_the_example_has_always_four_rounds_and_twelve_histories() -> None:
    found = histories(Planner(EXAMPLE, devices=4))
    assert {len(one) for one in found} == {4}
    assert len(found) == 12
    assert all(one[0][0] == {("D1", 1), ("D4", 3)} for one in found)


def test_two_flotillas_when_both_run_to_the_end() -> None:
    planner = Planner(EXAMPLE, devices=4, alpha=0.0)
    first = planner.next_flotilla(EXAMPLE.members, 4, Flotilla())
    assert dict(first.members) == {"D1": 1, "D4": 3}
    assert not planner.round_ends(1)
    assert planner.round_ends(0)
    assert dict(planner.next_flotilla(("D2", "D3"), 4, Flotilla()).members) == {"D2": 2, "D3": 2}


def test_a_round_goes_on_at_exactly_the_share_and_ends_below() -> None:
    rates, harder = Rates({"a": (1.0,)}), 0
    for percent in range(1, 100):
        for devices in (20, 25, 50, 100, 700):
            edge, rest = divmod(percent * devices, 100)
            if rest == 0:
                planner = Planner(rates, devices, alpha=percent / 100)
                assert not planner.round_ends(edge)
                assert planner.round_ends(edge - 1)
                harder += edge < percent / 100 * devices
    assert harder > 0  # a product of floats lies above the whole number, and is not believed


def test_fleet_g_waits_for_the_round_and_fleet_l_refills_at_once() -> None:
    running = Flotilla({"D4": 3})
    assert Planner(EXAMPLE, 4).next_flotilla(("D2", "D3"), 1, running) == Flotilla()
    local = Planner(EXAMPLE, 4, Paradigm.LOCAL)
    assert dict(local.next_flotilla(("D2", "D3"), 1, running).members) == {"D2": 1}
    assert not local.round_ends(1)
    assert local.round_ends(0)


def test_newcomers_may_be_held_to_the_running_pace() -> None:
    careful = Planner(EXAMPLE, 4, Paradigm.LOCAL, at_running_pace=True)
    assert dict(careful.next_flotilla(("D2", "D4"), 2, Flotilla({"D1": 1})).members) == {"D2": 2}
    assert careful.next_flotilla(("D4",), 1, Flotilla({"D1": 1})) == Flotilla()
    assert dict(careful.next_flotilla(("D4",), 4, Flotilla()).members) == {"D4": 4}


@pytest.mark.parametrize("paradigm", Paradigm)
@pytest.mark.parametrize("epochs", list(itertools.permutations((2, 3, 5, 9))))
def test_every_member_is_trained_once_and_the_training_ends(paradigm: Paradigm, epochs: tuple[int, ...]) -> None:
    planner = Planner(EXAMPLE, devices=4, paradigm=paradigm)
    left = dict(zip(EXAMPLE.members, epochs, strict=True))
    waiting, running, rounds = set(left), {}, 0
    while waiting or running:
        free = 4 - sum(running.values())
        started = planner.next_flotilla(waiting, free, Flotilla(running))
        rounds += bool(started.members)
        running |= started.members
        waiting -= set(started.members)
        assert running
        for name in list(running):
            left[name] -= 1
            if left[name] == 0:
                del running[name]
        if planner.round_ends(sum(running.values())):
            waiting |= set(running)
            running = {}
    assert set(left.values()) == {0}
    assert rounds <= 4


def test_nonsense_is_refused_before_anything_trains() -> None:
    with pytest.raises(ConfigError, match="0 devices"):
        Planner(EXAMPLE, 0)
    with pytest.raises(ConfigError, match=r"alpha is 1\.2"):
        Planner(EXAMPLE, 4, alpha=1.2)
    with pytest.raises(ConfigError, match="'D2' needs 3 devices, but there are 2"):
        Planner(EXAMPLE.at_least({"D2": 3}), 2)
    with pytest.raises(ConfigError, match="3 devices in use and 2 free are more than the 4"):
        Planner(EXAMPLE, 4).next_flotilla(("D1",), 2, Flotilla({"D4": 3}))
    with pytest.raises(ConfigError, match="'D4' is both running and waiting"):
        Planner(EXAMPLE, 4).next_flotilla(("D4",), 1, Flotilla({"D4": 3}))

"""Members that take turns on the slots of a processor: who starts, who gets more slots, when all is planned anew."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.flotillas import MEMORY_SHARE, Together, places_for, takes_turns
from uneven.fleet.pure.planning.rates import Rates

NONE = Flotilla()
RATES = Rates({"fast": [800.0, 1500.0], "middle": [300.0, 310.0], "slow": [100.0, 150.0]})
ALL = ("fast", "middle", "slow")


def test_all_start_at_once_whatever_their_rates() -> None:
    assert Together(RATES, slots=2, places=3).next_flotilla(ALL, 3, NONE).members == {"slow": 1, "middle": 1, "fast": 1}


def test_where_memory_does_not_hold_all_the_slowest_begin_and_others_follow_one_by_one() -> None:
    planner = Together(RATES, slots=1, places=2)
    first = planner.next_flotilla(ALL, 2, NONE)
    assert list(first.members) == ["slow", "middle"]
    assert planner.next_flotilla(("fast",), 0, first).members == {}
    assert planner.next_flotilla(("fast",), 1, Flotilla({"slow": 1})).members == {"fast": 1}


def test_slots_left_over_go_to_the_slowest_while_it_gains_by_them() -> None:
    planner = Together(RATES, slots=2, places=2)
    assert planner.next_flotilla(("slow",), 2, NONE).members == {"slow": 2}
    assert planner.next_flotilla(("middle",), 2, NONE).members == {"middle": 1}  # 3 % faster on two
    assert planner.next_flotilla(("fast", "slow"), 2, NONE).members == {"slow": 1, "fast": 1}
    assert planner.next_flotilla(("fast",), 1, Flotilla({"slow": 1})).members == {"fast": 1}
    assert Together(RATES, slots=4, places=3).next_flotilla(ALL, 4, NONE).members == {"slow": 2, "middle": 1, "fast": 1}


def test_a_round_ends_when_fewer_than_alpha_of_the_slots_are_used() -> None:
    planner = Together(RATES, slots=5, places=9, alpha=0.8)
    assert [planner.round_ends(busy) for busy in (9, 5, 4, 3, 0)] == [False, False, False, True, True]


def test_places_are_what_memory_holds() -> None:
    assert places_for(members=6, slots=2, member_bytes=0, free_bytes=10) == 6
    assert places_for(members=6, slots=2, member_bytes=100, free_bytes=int(600 / MEMORY_SHARE) + 1) == 6
    assert places_for(members=6, slots=2, member_bytes=100, free_bytes=int(600 / MEMORY_SHARE) - 1) == 5
    assert places_for(members=6, slots=2, member_bytes=100, free_bytes=1) == 1


def test_slots_are_shared_where_there_is_no_core_beside_them() -> None:
    assert takes_turns(slots=2, cores=2)
    assert takes_turns(slots=6, cores=2)
    assert not takes_turns(slots=2, cores=3)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="0 members at a time on 2 slots"):
        Together(RATES, slots=2, places=0)
    with pytest.raises(ConfigError, match="0 members on 2 slots"):
        places_for(0, 2, 1, 1)

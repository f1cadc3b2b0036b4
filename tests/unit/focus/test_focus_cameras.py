"""Streams on unequal machines."""

import pytest

from uneven.errors import ConfigError
from uneven.focus import place


def test_a_fast_machine_takes_more_and_nobody_waits_longer_than_needed():
    placed = place({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}, {"fast": 3.0, "slow": 1.0})
    assert placed.load == {"fast": pytest.approx(8 / 3), "slow": 2.0}
    assert set(placed.behind) == {"fast", "slow"}


def test_only_the_streams_of_a_machine_that_died_move():
    cost = dict.fromkeys("abcdef", 0.3)
    before = place(cost, {"x": 1.0, "y": 1.0, "z": 1.0})
    after = place(cost, {"x": 1.0, "y": 1.0}, stay=before.machine)
    for stream, machine in before.machine.items():
        assert after.machine[stream] == machine or machine == "z"
    assert not after.behind


def test_no_machine_and_numbers_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="no machine is left"):
        place({"a": 1.0}, {})
    with pytest.raises(ConfigError, match="speed of machine 'x' is 0"):
        place({"a": 1.0}, {"x": 0.0})

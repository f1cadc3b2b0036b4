"""The rule by which a threshold keeps a line within its bandwidth, and uses what is left of it."""

from __future__ import annotations

import pytest

from uneven.policy.select import BandwidthControl


def added(control: BandwidthControl, usage: float, passed_s: float = 1.0) -> float:
    control.measured(usage * passed_s, passed_s)
    return control.added


@pytest.mark.parametrize(("usage", "change"), [(1.11, 0.005), (1.1, 0.0), (1.0, 0.0), (0.9, 0.0), (0.89, -0.005)])
def test_it_moves_outside_of_nine_to_eleven_tenths_of_the_limit(usage: float, change: float) -> None:
    control = BandwidthControl(1000.0, most=0.1)
    control.added = 0.05
    assert added(control, 1000.0 * usage, 2.0) == pytest.approx(0.05 + change)


def test_it_stays_between_nothing_and_the_most() -> None:
    control = BandwidthControl(1000.0, most=0.012)
    assert [round(added(control, 1e6), 4) for _ in range(4)] == [0.005, 0.01, 0.012, 0.012]
    assert [round(added(control, 0.0), 4) for _ in range(4)] == [0.007, 0.002, 0.0, 0.0]
    assert added(control, 5.0, 0.0) == 0.0
    assert control.applied(0.01) == 0.01, "without a soft threshold never below the one that was asked for"


def test_with_room_on_the_line_more_than_is_significant_travels() -> None:
    control = BandwidthControl(1000.0, most=0.005, soft=0.8)
    found = []
    for usage in (0.0, 0.0, 0.0, 1000.0, 2000.0, 2000.0, 2000.0, 0.0, 0.0):
        control.measured(usage, 1.0)
        found.append(round(control.applied(0.01), 5))
    assert found == [0.009, 0.0081, 0.008, 0.008, 0.00889, 0.00988, 0.01, 0.009, 0.0081]
    control.part = 1.0
    assert added(control, 2000.0) == 0.005, "only then it is raised"
    control.measured(0.0, 1.0)
    assert (control.added, control.part) == (0.0, 1.0), "and what was added goes first"

"""The rule by which a threshold keeps a line within its bandwidth."""

from __future__ import annotations

import pytest

from uneven.entries import BandwidthControl


@pytest.mark.parametrize(("usage", "change"), [(1.11, 0.005), (1.1, 0.0), (1.0, 0.0), (0.9, 0.0), (0.89, -0.005)])
def test_it_moves_outside_of_nine_to_eleven_tenths_of_the_limit(usage: float, change: float) -> None:
    control = BandwidthControl(1000.0, most=0.1)
    control.added = 0.05
    assert control.measured(2000.0 * usage, 2.0) == pytest.approx(0.05 + change)


def test_it_stays_between_nothing_and_the_most() -> None:
    control = BandwidthControl(1000.0, most=0.012)
    assert [round(control.measured(1e6, 1.0), 4) for _ in range(4)] == [0.005, 0.01, 0.012, 0.012]
    assert [round(control.measured(0.0, 1.0), 4) for _ in range(4)] == [0.007, 0.002, 0.0, 0.0]
    assert control.measured(5.0, 0.0) == 0.0

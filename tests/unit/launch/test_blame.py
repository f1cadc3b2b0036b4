"""Which death is told when several workers have ended."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from uneven.launch.failure import Death, blame


def death(rank: int, exit_code: int, ended_s: float, **told: Any) -> Death:
    return Death(rank=rank, pid=100 + rank, exit_code=exit_code, ended_s=ended_s, told=told)


ASKED = -signal.SIGTERM


@pytest.mark.parametrize(
    ("deaths", "first"),
    [
        ([death(0, ASKED, 11.0), death(1, 7, 10.0)], 1),
        ([death(0, ASKED, 10.0), death(1, 7, 10.0)], 1),  # both ends were noticed at once
        ([death(0, ASKED, 10.0), death(1, 7, math.inf)], 1),  # it had ended before it was found
        ([death(0, ASKED, math.inf), death(1, 7, 10.0)], 1),
        ([death(0, ASKED, 10.0), death(1, ASKED, 12.0)], 0),  # somebody ended a worker by hand
        ([death(0, 1, 10.0), death(1, -signal.SIGKILL, 11.0)], 1),
        ([death(0, 1, 10.0), death(1, -signal.SIGKILL, 16.0)], 0),  # the launcher killed it, for it did not end
        ([death(0, 1, 10.0, error="PeerError"), death(1, 1, 11.0)], 1),
        ([death(0, 1, 10.0), death(1, 1, 11.0, timestamp=9.0)], 1),
    ],
)
def test_who_died_first_is_told(deaths: list[Death], first: int) -> None:
    error = blame(deaths, first_s=10.0, shutdown_within_s=10.0)
    assert str(error).startswith(f"rank {first} (process {100 + first}) ")

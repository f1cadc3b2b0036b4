"""Which death is told when several workers have ended."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from uneven.runtime.launch.failure import Death, Left, blame, left_alone


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
        ([death(0, 1, 11.0, error="PeerError", timestamp=10.5), death(1, ASKED, 12.0)], 0),  # both miss a third
    ],
)
def test_who_died_first_is_told(deaths: list[Death], first: int) -> None:
    error = blame(deaths, first_s=10.0, shutdown_within_s=10.0)
    assert str(error).startswith(f"rank {first} (process {100 + first}) ")


def test_a_run_that_goes_on_elsewhere_is_not_said_to_have_ended() -> None:
    killed = [death(5, -signal.SIGKILL, 10.0)]
    ended = str(blame(killed, first_s=10.0, shutdown_within_s=10.0))
    said = str(blame(killed, first_s=10.0, shutdown_within_s=10.0, then="and the run continues"))
    assert "was killed by SIGKILL, so the run has been ended" in ended
    assert "was killed by SIGKILL, and the run continues" in said


@pytest.mark.parametrize(("unclosed", "how"), [(False, "(a return or sys.exit"), (True, "during its session")])
def test_one_that_left_before_is_named_by_whoever_misses_it(unclosed: bool, how: str) -> None:
    left = [Left(rank=2, pid=102, unclosed=unclosed)]
    missing = death(0, 1, 11.0, error="PeerError")
    error = blame([missing], first_s=10.0, shutdown_within_s=10.0, left=left)
    assert f"\nrank 2 (process 102) had ended with exit code 0 {how}" in str(error)
    assert "rank 2" not in str(blame([death(0, 7, 11.0)], first_s=10.0, shutdown_within_s=10.0, left=left))
    gone = left_alone([missing], left)
    assert (gone is not None and "rank 2" in str(gone) and gone.exit_code == 1) == unclosed
    assert left_alone([death(0, 7, 11.0)], left) is None, "it did not miss anybody"


def test_one_that_left_before_it_trained_is_named_though_nobody_has_missed_it() -> None:
    assert left_alone([], [Left(rank=2, pid=102, unclosed=True)]) is None, "scripts may end so"
    never = left_alone([], [Left(rank=2, pid=102, unclosed=True, begun=False)])
    assert never is not None
    assert str(never).endswith("(os._exit?), before it trained; the others have finished without it")
    assert never.exit_code == 1
    assert left_alone([], [Left(rank=2, pid=102, unclosed=False, begun=False)]) is None

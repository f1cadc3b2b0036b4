"""Profiles taken together: by threads here, on the public in-process transport."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import nn

from uneven.errors import ConflictError, TrainingError
from uneven.policy.balance.profiled import Profile
from uneven.run.lines.in_process_rendezvous import Hub
from uneven.run.measure.measure_profile import take_profile
from uneven.run.reports.profiling import _shown, profile_together, steps_on


def together(*steps: Callable[[int], object], places: tuple[str, str] = ("here", "here"), **options: Any) -> list[Any]:
    """What each of two workers gets, or the error that it meets."""
    hub = Hub(2, timeout_s=20.0)

    def one(rank: int) -> dict[int, Profile] | Exception:
        own = {name: value[rank] if isinstance(value, tuple) else value for name, value in options.items()}
        keywords: dict[str, Any] = {"least": 1, "most": 8, "within_s": 5.0, **own}
        try:
            return profile_together(
                steps[rank], nn.Linear(1, 1), (), transport=hub.endpoint(rank), place=places[rank], **keywords
            )
        except (ZeroDivisionError, TrainingError, ConflictError) as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_everybody_learns_everybodys() -> None:
    here, there = together(lambda size: None, lambda size: time.sleep(0.002 * size), most=(4, 8))
    assert here == there
    assert (here[0].sizes, here[1].sizes) == ((1, 2, 4), (1, 2, 4, 8))
    assert here[1].seconds[-1] >= 0.016


def test_one_that_fails_is_named_and_nobody_waits() -> None:
    def wrong(size: int) -> None:
        raise ZeroDivisionError("by nothing")

    here, there = together(lambda size: None, wrong)
    assert isinstance(there, ZeroDivisionError)
    assert str(here) == "session.profile: rank 1 failed: ZeroDivisionError: by nothing"


def test_all_must_mean_the_same() -> None:
    errors = together(lambda size: None, lambda size: None, within_s=(1.0, 2.0))
    assert all(isinstance(error, ConflictError) and "within_s" in str(error) for error in errors)


@pytest.mark.parametrize(("places", "sharers"), [(("a", "a"), [2, 2]), (("a", "b"), [1, 1])])
def test_those_in_one_place_share_its_memory(
    monkeypatch: pytest.MonkeyPatch, places: tuple[str, str], sharers: list[int]
) -> None:
    told: list[int] = []

    def heard(*arguments: Any, **options: Any) -> Profile:
        told.append(options["sharers"])
        return take_profile(*arguments, **options)

    monkeypatch.setattr("uneven.run.reports.profiling.take_profile", heard)
    together(lambda size: None, lambda size: None, places=places, most=1)
    assert told == sharers


@pytest.mark.parametrize(("reads", "made"), [(False, [1, 2]), (True, [1, 1, 2])])
def test_a_batch_is_read_again_only_where_reading_is_part_of_a_step(reads: bool, made: list[int]) -> None:
    asked: list[int] = []
    seen: list[str] = []

    def batch_of(samples: int) -> str:
        asked.append(samples)
        return "x" * samples

    run = steps_on(seen.append, batch_of, reads=reads)
    for size in (1, 1, 2):
        run(size)
    assert (asked, seen) == (made, ["x", "x", "xx"])


def test_rank_0_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with _shown(0, 64) as moved:
        assert moved is not None
        moved(8, 0.1)
    assert "8 of up to 64 samples" in screen.getvalue()
    with _shown(1, 64) as silent:
        assert silent is None

"""A worker's word on its own speed, and when it calls for the others to hear a new one."""

from __future__ import annotations

import math
import random

import pytest

from uneven.policy.control.forecast import ChangeDetector, Forecaster
from uneven.policy.core.views import Observation
from uneven.policy.predict import EMA


def expecting(speed_per_s: float = 100.0, noise: float = 0.0, seed: int = 1) -> ChangeDetector:
    """A detector that has heard some iterations about this speed."""
    detector, rng = ChangeDetector(), random.Random(seed)
    detector.expect(speed_per_s)
    for _ in range(200):
        detector.hear(speed_per_s * (1.0 + noise * rng.gauss(0.0, 1.0)))
    detector.expect(speed_per_s)
    return detector


@pytest.mark.parametrize("factor", [0.01, 0.5, 0.8])
def test_a_lone_spike_is_not_worth_a_word_and_two_in_a_row_are(factor: float) -> None:
    detector = expecting()
    for _ in range(5):
        detector.hear(100.0 * factor)
        assert not detector.changed
        for _ in range(5):
            detector.hear(100.0)
    detector.hear(100.0 * factor)
    detector.hear(100.0 * factor)
    assert detector.changed


def test_who_gets_faster_is_heard_too() -> None:
    detector = expecting()
    detector.hear(200.0)
    detector.hear(200.0)
    assert detector.changed


def test_noise_alone_seldom_calls() -> None:
    detector, rng, calls = expecting(noise=0.1), random.Random(2), 0
    for _ in range(10_000):
        detector.hear(100.0 * (1.0 + 0.1 * rng.gauss(0.0, 1.0)))
        calls += detector.changed
        if detector.changed:
            detector.expect(100.0)
    assert 0 < calls < 60


def test_a_small_lasting_change_is_noticed_in_noise() -> None:
    detector, rng = expecting(noise=0.1), random.Random(3)
    for _ in range(30):
        detector.hear(85.0 * (1.0 + 0.1 * rng.gauss(0.0, 1.0)))
    assert detector.changed


def test_who_is_far_off_twice_in_a_row_is_loud_and_wary_in_between() -> None:
    detector = expecting(1.0)
    seen = ((1.0, False, False), (0.7, True, False), (1.4, True, False), (1.4, False, True))
    for speed, suspects_change, changed_much in seen:
        detector.hear(speed)
        assert (detector.suspects_change, detector.changed_much) == (suspects_change, changed_much)
    detector.expect(1.4)
    assert (detector.suspects_change, detector.changed_much) == (False, False)
    detector.expect(1.0)  # what was told does not follow what was seen: the next iteration will tell
    assert detector.suspects_change
    detector.hear(1.4)
    assert detector.changed_much


def test_noise_that_is_usual_is_not_loud() -> None:
    detector, rng = expecting(1.0, noise=0.3), random.Random(3)
    changed_much = 0
    for _ in range(4_000):
        detector.hear(1.0 / max(0.1, rng.gauss(1.0, 0.3)))
        changed_much += detector.changed_much
        if detector.changed_much:
            detector.expect(1.0)
    assert changed_much < 60


def test_what_reports_cost_is_no_reason_for_silence_where_shares_are_far_off() -> None:
    told = (((100.0, 100.0), (0, 0, 0)), ((88.0,) * 12, (1, 0, 0)), ((50.0, 50.0), (1, 1, 0)))
    for speeds, calls in told:  # in an iteration after both are paid for, one, none
        forecaster = Forecaster(EMA(alpha=0.01))
        forecaster.observe(Observation(iteration=0, samples=100, local_s=1.0))
        forecaster.tell()
        for number, speed in enumerate(speeds):
            forecaster.observe(Observation(iteration=1 + number, samples=100, local_s=100.0 / speed))
        assert tuple(forecaster.calls(20, soonest, far) for soonest, far in ((20, 15), (21, 20), (30, 21))) == calls


@pytest.mark.parametrize("nothing", [math.nan, 0.0, -1.0, math.inf])
def test_what_is_no_speed_says_nothing(nothing: float) -> None:
    detector = expecting()
    for _ in range(10):
        detector.hear(nothing)
    assert not detector.changed
    detector.expect(nothing)  # nothing foretold, nothing to be held against
    for _ in range(10):
        detector.hear(1.0)
    assert not detector.changed


def test_a_forecast_that_was_told_is_what_later_speeds_are_held_against() -> None:
    forecaster = Forecaster(EMA(alpha=1.0))
    assert math.isnan(forecaster.tell().predicted_per_s)
    for iteration, local_s in enumerate([1.0, 1.0, 2.0, 2.0, 2.0]):
        forecaster.observe(Observation(iteration=iteration, samples=100, local_s=local_s))
        if iteration == 1:
            assert forecaster.tell().predicted_per_s == 100.0
    assert forecaster.urgent
    assert forecaster.tell().predicted_per_s == 50.0
    assert not forecaster.urgent


def test_short_iterations_make_one_observation_together() -> None:
    """A quota lets a step of 2 ms pass at once, or stops it for 18 ms."""
    forecaster = Forecaster(EMA(alpha=1.0))
    for iteration in range(10):
        local_s = 0.002 if iteration % 2 else 0.02
        forecaster.observe(Observation(iteration, samples=11, local_s=local_s, exchange_s=0.005))
        assert math.isnan(forecaster.tell().predicted_per_s)
    assert not forecaster.urgent
    forecaster.observe(Observation(10, samples=11, local_s=0.08))
    assert forecaster.urgent, "the others have not heard of any speed"
    forecast = forecaster.tell()
    assert forecast.predicted_per_s == pytest.approx(121 / 0.19)
    assert forecast.doubt == 1.0, "one such observation tells next to nothing of its spread"


def test_a_long_iteration_is_an_observation_alone() -> None:
    forecaster = Forecaster(EMA(alpha=1.0))
    for iteration, local_s in enumerate((0.04, 0.1)):
        forecaster.observe(Observation(iteration, samples=10, local_s=local_s))
        assert forecaster.tell() == (10 / local_s, 0.0)

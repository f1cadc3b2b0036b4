"""What each predictor computes; of LB-BSP's acceptance test 5, what applies to these."""

from __future__ import annotations

import math
import random

import pytest

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.views import Observation
from uneven.policy.predict import EMA, Last, Predictor, Steady, predictors


def show(predictor: Predictor, *speeds_per_s: float) -> float:
    for k, speed in enumerate(speeds_per_s):
        predictor.observe(Observation(iteration=k, samples=64, local_s=64 / speed))
    return predictor.predict()


def test_last_is_the_last() -> None:
    assert show(Last(), 10, 20, 40) == 40


def test_ema_weighs_by_age() -> None:
    # Weights 1/2, 1/4, 1/8 of 40, 20, 10, normalised by 7/8.
    assert show(EMA(alpha=0.5), 10, 20, 40) == pytest.approx((20 + 5 + 1.25) / 0.875)


def test_ema_follows_the_recursion_in_the_long_run() -> None:
    predictor = EMA(alpha=0.3)
    before = show(predictor, *[50.0, 60.0] * 50)
    assert show(predictor, 100.0) == pytest.approx(0.3 * 100 + 0.7 * before, rel=1e-9)


def test_ema_of_alpha_one_is_last() -> None:
    assert show(EMA(alpha=1), 10, 20, 40) == show(Last(), 10, 20, 40)


def test_a_slow_first_iteration_does_not_linger() -> None:
    assert show(EMA(), 10, *[100.0] * 9) > 95


def test_a_spike_moves_ema_by_its_weight_and_is_forgotten() -> None:
    predictor = EMA()
    steady = show(predictor, *[100.0] * 50)
    spike = show(predictor, 20.0)
    assert spike == pytest.approx(steady - 0.2 * 80, rel=1e-5)
    assert show(predictor, *[100.0] * 15) == pytest.approx(steady, rel=0.01)


def test_last_takes_a_spike_for_the_truth() -> None:
    assert show(Last(), *[100.0] * 50, 20.0) == 20.0


@pytest.mark.parametrize(("predictor", "within"), [(Last(), 1), (EMA(alpha=0.5), 4), (EMA(), 11)])
def test_a_lasting_slowdown_is_followed(predictor: Predictor, within: int) -> None:
    show(predictor, *[100.0] * 50)
    assert show(predictor, *[50.0] * within) == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.1, math.nan, True, "half"])
def test_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        EMA(alpha=alpha)


def test_names() -> None:
    assert isinstance(predictors.resolve("last"), Last)
    assert predictors.resolve("ema:alpha=0.5").alpha == 0.5  # type: ignore[attr-defined]
    with pytest.raises(UnknownNameError, match="did you mean 'ema'"):
        predictors.resolve("emma")


def _fed(predictor: Predictor, speeds: list[float]) -> float:
    for iteration, speed in enumerate(speeds):
        predictor.observe(Observation(iteration=iteration, samples=100, local_s=100 / speed))
    return predictor.predict()


def test_steady_knows_a_constant_better_than_a_moving_average_can() -> None:
    errors: dict[type[Predictor], float] = {Steady: 0.0, EMA: 0.0}
    for seed in range(20):
        noise = random.Random(seed)
        speeds = [200.0 / (1.0 + noise.gauss(0.0, 0.1)) for _ in range(200)]
        for kind in errors:
            errors[kind] += abs(_fed(kind(), speeds) / 200.0 - 1.0) / 20
    assert errors[Steady] < errors[EMA] / 2
    assert errors[Steady] < 0.02


@pytest.mark.parametrize("spike", [20.0, 2000.0])
def test_steady_is_hardly_moved_by_one_or_two_spikes(spike: float) -> None:
    calm = [200.0, 204.0, 196.0] * 10
    before = _fed(Steady(), calm)
    assert _fed(Steady(), [*calm, spike]) == pytest.approx(before, rel=0.02)
    assert _fed(Steady(), [*calm, spike, spike]) == pytest.approx(before, rel=0.04)


@pytest.mark.parametrize("after", [50.0, 100.0, 400.0])
def test_steady_follows_a_lasting_change_with_the_third_report(after: float) -> None:
    calm = [200.0, 204.0, 196.0] * 10
    assert _fed(Steady(), [*calm, after, after, after]) == pytest.approx(after)


def test_steady_doubts_less_with_every_report_and_more_after_a_change() -> None:
    predictor = Steady()
    assert predictor.doubt() == 0.0
    doubts = []
    for iteration, speed in enumerate([200.0, 220.0, 180.0] * 10 + [50.0] * 3):
        predictor.observe(Observation(iteration=iteration, samples=100, local_s=100 / speed))
        doubts.append(predictor.doubt())
    assert doubts[2] > doubts[8] > doubts[29] > 0.0
    assert doubts[32] > 2 * doubts[29], "after the change it knows three reports only"
    assert EMA().doubt() == 0.0

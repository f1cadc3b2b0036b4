"""ARIMA's fit against processes whose coefficients are known, and its forecasts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from shown import show

from uneven.errors import ConfigError
from uneven.policy.predict import ARIMA, EMA, predictors
from uneven.policy.predict._past import SPEED
from uneven.policy.predict.arima import Arima, errors, fit


def arma(ar: list[float], ma: list[float], n: int, seed: int = 0) -> np.ndarray:
    """n values of the process, after it has settled."""
    noise = np.random.default_rng(seed).normal(0.0, 1.0, n + 200)
    series = np.zeros(n + 200)
    for t in range(5, n + 200):
        series[t] = noise[t]
        series[t] += sum(weight * series[t - lag] for lag, weight in enumerate(ar, 1))
        series[t] += sum(weight * noise[t - lag] for lag, weight in enumerate(ma, 1))
    return series[200:]


@pytest.mark.parametrize(
    ("ar", "ma"), [([0.8], []), ([], [0.6]), ([0.7], [0.4]), ([0.5, 0.3], [-0.6]), ([0.9], [-0.5, 0.2])]
)
def test_known_coefficients_are_found(ar: list[float], ma: list[float]) -> None:
    found_ar, found_ma = fit(arma(ar, ma, 5000), len(ar), len(ma))
    assert found_ar == pytest.approx(ar, abs=0.12)
    assert found_ma == pytest.approx(ma, abs=0.12)


def test_what_is_left_over_is_the_noise() -> None:
    series = arma([0.7], [0.4], 2000)
    left = errors(series, *fit(series, 1, 1))
    assert left.std() == pytest.approx(1.0, abs=0.05)
    assert abs(np.corrcoef(left[1:], left[:-1])[0, 1]) < 0.05


def test_errors_follow_the_difference_equation() -> None:
    series = np.array([1.0, 2.0, -1.0, 0.5, 3.0])
    missed = errors(series, np.array([0.5, 0.25]), np.array([0.4, -0.2]))
    for t in range(5):
        w = [series[t - lag] if t >= lag else 0.0 for lag in (1, 2)]
        e = [missed[t - lag] if t >= lag else 0.0 for lag in (1, 2)]
        assert missed[t] == pytest.approx(series[t] - 0.5 * w[0] - 0.25 * w[1] - 0.4 * e[0] + 0.2 * e[1])


def test_an_explosive_or_noninvertible_fit_is_drawn_in() -> None:
    growing = 1.2 ** np.arange(60)
    (ar,), _ = fit(growing - growing.mean(), 1, 0)
    assert abs(ar) <= 0.98
    ar2, _ = fit(growing - growing.mean(), 2, 0)
    assert np.abs(np.roots([1.0, *-ar2])).max() <= 0.98 + 1e-9
    _, (ma,) = fit(np.diff(np.random.default_rng(0).normal(0, 1, 300)), 0, 1)
    assert -0.98 <= ma < -0.8, "differences of white noise have a moving average at the edge"


def test_too_little_is_no_fit() -> None:
    assert fit(np.ones(4), 1, 1)[0] == pytest.approx([0.0])
    assert fit(np.zeros(50), 1, 1)[1] == pytest.approx([0.0])


def rows(*speeds: float) -> np.ndarray:
    table = np.zeros((len(speeds), 6))
    table[:, SPEED] = speeds
    return table


def test_forecasts_by_hand() -> None:
    random_walk = Arima(0, 1, 0, 100, np.zeros(0), np.zeros(0))
    assert random_walk.forecast(rows(10, 12, 15), 1) == 15
    trend = Arima(0, 2, 0, 100, np.zeros(0), np.zeros(0))
    assert trend.forecast(rows(10, 12, 15), 1) == 18
    assert trend.forecast(rows(10, 12, 15), 3) == 24
    damped = Arima(1, 1, 0, 100, np.array([0.5]), np.zeros(0))
    assert damped.forecast(rows(10, 12, 16), 1) == 18
    assert damped.forecast(rows(10, 12, 16), 2) == 19
    around_mean = Arima(1, 0, 0, 100, np.array([0.5]), np.zeros(0))
    assert around_mean.forecast(rows(8, 12, 10, 14), 1) == pytest.approx(11 + 0.5 * 3)
    averaged = Arima(0, 1, 1, 100, np.zeros(0), np.array([-0.5]))
    assert averaged.forecast(rows(10, 12), 1) == pytest.approx(12 - 0.5 * 2)


def test_it_learns_a_process_that_a_moving_average_cannot() -> None:
    wave = [100 + 20 * (-1) ** k for k in range(200)]
    noise = np.random.default_rng(1).normal(0, 1, 200)
    speeds = [one + more for one, more in zip(wave, noise, strict=True)]
    missed = {kind: np.square(np.subtract(show(kind(), speeds)[100:], speeds[100:])).mean() for kind in (ARIMA, EMA)}
    assert missed[ARIMA] < missed[EMA] / 4


def test_it_agrees_with_statsmodels() -> None:
    from statsmodels.tsa.arima.model import ARIMA as KnownARIMA  # takes seconds to import

    series = 100 + np.cumsum(arma([0.6], [0.3], 100, seed=3))
    theirs = KnownARIMA(series, order=(1, 1, 1)).fit()
    ours = Arima(1, 1, 1, 100, np.zeros(1), np.zeros(1)).study(rows(*series), 1)
    forecast = theirs.forecast(3)
    for steps in (1, 2, 3):
        assert ours.forecast(rows(*series), steps) == pytest.approx(forecast[steps - 1], abs=0.1)


@pytest.mark.parametrize("spec", ["arima:p=-1", "arima:d=3", "arima:q=1.5", "arima:p=0,d=0,q=0", "arima:window=5"])
def test_bad_options_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        predictors.resolve(spec)

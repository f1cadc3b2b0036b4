"""ARIMA by conditional least squares on a sliding window."""

from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.core.plain import as_many, read
from uneven.policy.predict._learner import Learner, SpeedModel, whole
from uneven.policy.predict._past import SPEED, Floats

_LARGEST_ROOT = 0.98  # of the autoregressive and the moving-average polynomial; beyond 1 forecasts run away
_ROUNDS = 4  # of Gauss-Newton


def fit(series: Floats, p: int, q: int) -> tuple[Floats, Floats]:
    """Fit φ and θ of w_t = Σ φ_i w_{t−i} + e_t + Σ θ_j e_{t−j} by conditional least squares (Box and Jenkins).

    Args:
        series: ``(n,)``, with mean zero.
        p: autoregressive terms.
        q: moving-average terms.

    Returns:
        ``(p,)`` and ``(q,)``; zeros if the series is too short.
    """
    order = max(p, q)
    least = 3 * (p + q) + 2
    if len(series) < least or not np.any(series):
        return np.zeros(p), np.zeros(q)
    # Start as Hannan and Rissanen (Biometrika 1982) do, with the errors of a long autoregression for e.
    guess = _errors_of_long_autoregression(series, least) if q else series
    ar, ma = _tame(*_regress(series, series, guess, p, q, order))
    best = errors(series, ar, ma)
    # Gauss-Newton; the derivatives by φ and θ are the series and the errors, filtered by the echo.
    for _ in range(_ROUNDS if q else 0):
        echo = _echo(ma, len(series))
        one, other = np.convolve(series, echo)[: len(series)], np.convolve(best, echo)[: len(series)]
        more_ar, more_ma = _regress(best, one, other, p, q, 0)
        new_ar, new_ma = _tame(ar + more_ar, ma + more_ma)
        after = errors(series, new_ar, new_ma)
        if not after @ after < best @ best:
            break
        ar, ma, best = new_ar, new_ma, after
    return ar, ma


def errors(series: Floats, ar: Floats, ma: Floats) -> Floats:
    """Return e_t = w_t − Σ φ_i w_{t−i} − Σ θ_j e_{t−j}, (n,), with zeros before the first."""
    left = series.copy()
    for lag, weight in enumerate(ar, start=1):
        left[lag:] -= weight * series[:-lag]
    return np.convolve(left, _echo(ma, len(series)))[: len(series)] if len(ma) else left


def _echo(ma: Floats, n: int) -> Floats:
    """Return the impulse response of 1 / (1 + Σ θ_j B^j), (n,)."""
    weights = ma.tolist()
    if len(weights) == 1:
        powers: Floats = (-weights[0]) ** np.arange(n)
        return powers
    response = [1.0]
    for _ in range(n - 1):
        response.append(-sum(weight * before for weight, before in zip(weights, reversed(response), strict=False)))
    return np.array(response)


def _errors_of_long_autoregression(series: Floats, least: int) -> Floats:
    order = min(10, max(least, len(series) // 5) - least + 2)
    ar, _ = _regress(series, series, series, order, 0, order)
    return errors(series, ar, np.zeros(0))


def _regress(target: Floats, one: Floats, other: Floats, p: int, q: int, start: int) -> tuple[Floats, Floats]:
    """Return the weights of the last p values of ``one`` and q of ``other``, by least squares from ``start``."""
    columns = [_delayed(one, lag) for lag in range(1, p + 1)] + [_delayed(other, lag) for lag in range(1, q + 1)]
    if not columns:
        return np.zeros(0), np.zeros(0)
    matrix = np.stack(columns, axis=1)[start:]
    square = matrix.T @ matrix
    # A small ridge keeps the solution finite if columns are dependent.
    square[np.diag_indices(p + q)] += 1e-8 * float(np.trace(square)) + 1e-300
    weights: Floats = np.asarray(np.linalg.solve(square, matrix.T @ target[start:]), dtype=np.float64)
    return weights[:p], weights[p:]


def _delayed(series: Floats, lag: int) -> Floats:
    moved = np.zeros_like(series)
    moved[lag:] = series[:-lag]
    return moved


def _tame(ar: Floats, ma: Floats) -> tuple[Floats, Floats]:
    # Stationary and invertible: scale roots that are too large.
    return _drawn_in(ar), -_drawn_in(-ma)


def _drawn_in(weights: Floats) -> Floats:
    if not len(weights):
        return weights
    if len(weights) == 1:
        largest = abs(float(weights[0]))
    else:
        companion = np.eye(len(weights), k=-1)
        companion[0] = weights
        largest = float(np.abs(np.linalg.eigvals(companion)).max())
    if largest <= _LARGEST_ROOT:
        return weights
    drawn: Floats = weights * (_LARGEST_ROOT / largest) ** np.arange(1, len(weights) + 1)
    return drawn


_ECHOES = 40  # rows whose errors enter a forecast; older ones have died away


class _ArimaState(TypedDict):
    ar: list[float]
    ma: list[float]


@dataclass(frozen=True, slots=True, eq=False)
class Arima(SpeedModel):
    """The orders and coefficients of an ARIMA model; with d = 0 of the differences from the window's mean."""

    p: int
    d: int
    q: int
    window: int
    ar: Floats
    ma: Floats

    def forecast(self, rows: Floats, steps: int) -> float:
        speeds = rows[-(self.window if self.d == 0 else _ECHOES) :, SPEED]
        series, mean = _stationary(speeds, self.d)
        series = series[-_ECHOES:]
        missed = errors(series, self.ar, self.ma)
        w, e = series[-self.p :].tolist() if self.p else [], missed[-self.q :].tolist() if self.q else []
        ar, ma = self.ar.tolist(), self.ma.tolist()
        ends = [float(np.diff(speeds, n=level)[-1]) for level in range(self.d)]
        # The difference equation, with future errors at zero.
        for _ in range(steps):
            new: float = sum(weight * before for weight, before in zip(ar, reversed(w), strict=False))
            new += sum(weight * before for weight, before in zip(ma, reversed(e), strict=False))
            w.append(new)
            e.append(0.0)
            for level in reversed(range(self.d)):  # undo the differences, the last one first
                ends[level] += new
                new = ends[level]
        return new + mean

    def study(self, rows: Floats, number: int) -> "Arima":
        series, _ = _stationary(rows[-self.window :, SPEED], self.d)
        scale = float(np.abs(series).max())
        ar, ma = fit(series / scale if scale else series, self.p, self.q)
        return replace(self, ar=ar, ma=ma)

    def state(self) -> dict[str, Any]:
        return {"ar": self.ar.tolist(), "ma": self.ma.tolist()}

    def restored(self, state: dict[str, Any]) -> "Arima":
        saved = read(_ArimaState, state)
        ar, ma = as_many(saved["ar"], len(self.ar), "ar"), as_many(saved["ma"], len(self.ma), "ma")
        return replace(self, ar=np.array(ar, dtype=float), ma=np.array(ma, dtype=float))


def _stationary(speeds: Floats, d: int) -> tuple[Floats, float]:
    """Return the d-th differences and 0, or the differences from the mean and the mean."""
    if d:
        return np.diff(speeds, n=d), 0.0
    mean = float(speeds.mean())
    return speeds - mean, mean


class ARIMA(Learner):
    """Autoregressive integrated moving average, refitted on a sliding window (Box and Jenkins).

    The settings of the ARIMA in the paper's comparison are unknown. A library's fit takes far longer than an iteration
    may be delayed; this one is conditional least squares in well under a millisecond, see
    :mod:`uneven.policy.predict.arima`.

    Args:
        p: autoregressive terms, 0 … 8.
        d: differences taken, 0 … 2.
        q: moving-average terms, 0 … 8.
        window: iterations to fit, at least 20.
        every: iterations between two fits, at least 1.
        hold: see :class:`~uneven.policy.predict._learner.Learner`; by default spikes are not held back.
    """

    def __init__(
        self, *, p: int = 1, d: int = 1, q: int = 1, window: int = 200, every: int = 10, hold: float = 0.0
    ) -> None:
        for name, value, most in (("p", p, 8), ("d", d, 2), ("q", q, 8)):
            whole(name, value, 0, most)
        whole("window", window, 20)
        if not p + d + q:
            raise ConfigError("arima: p, d and q are all 0, which predicts the mean: use the predictor steady")
        model = Arima(p, d, q, window, np.zeros(p), np.zeros(q))
        super().__init__(model, warm_up=min(window, 30), every=every, memory=window, hold=hold)

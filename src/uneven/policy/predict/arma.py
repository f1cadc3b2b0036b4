"""Conditional least squares for autoregressive moving averages."""

from __future__ import annotations

import numpy as np

from uneven.policy.predict._past import Floats

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

"""ARIMA by conditional least squares on a sliding window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.core.plain import as_many, read
from uneven.policy.predict._learner import Learner, SpeedModel, whole
from uneven.policy.predict._past import SPEED, Floats
from uneven.policy.predict.arma import errors, fit

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

    def study(self, rows: Floats, number: int) -> Arima:
        series, _ = _stationary(rows[-self.window :, SPEED], self.d)
        scale = float(np.abs(series).max())
        ar, ma = fit(series / scale if scale else series, self.p, self.q)
        return replace(self, ar=ar, ma=ma)

    def state(self) -> dict[str, Any]:
        return {"ar": self.ar.tolist(), "ma": self.ma.tolist()}

    def restored(self, state: dict[str, Any]) -> Arima:
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
    :mod:`uneven.policy.predict.arma`.

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
            raise ConfigError("arima: p, d and q are all 0, which predicts the mean: take the predictor steady")
        model = Arima(p, d, q, window, np.zeros(p), np.zeros(q))
        super().__init__(model, warm_up=min(window, 30), every=every, memory=window, hold=hold)

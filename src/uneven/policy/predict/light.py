"""A mixture of the three cheapest predictors, weighted by their recent accuracy."""

import math
from typing import Any, TypedDict

from uneven.errors import ConfigError
from uneven.policy.core.plain import Amount, Count, Misfit, Positive, inside, read
from uneven.policy.core.views import Observation
from uneven.policy.predict.predictor import EMA, EMAState, Predictor, measured
from uneven.policy.predict.steady import Steady, SteadyState

_EXPERTS = 3  # the last speed, the moving average, the mean since the last change
_MOST = 100.0  # times the usual square: limit of a lone spike's cost
_USUAL_WEIGHT = 0.005  # of the newest in the usual square, which is a long-run mean
_FIRST_SQUARE = 0.01  # an error of a tenth; assumed at first …
_FIRST_WORTH = 10  # … with the weight of this many iterations
_LEAST_SQUARE = 0.005**2  # smaller errors do not distinguish the experts


class _LightState(TypedDict):
    last: Positive | None
    ema: EMAState
    steady: SteadyState
    lost: tuple[Amount, Amount, Amount]
    usual: Positive
    seen: Count


class Light(Predictor):
    """The mean of :class:`Last`, :class:`EMA` and :class:`Steady`, weighted by their recent accuracy (ours).

    Each loses the square of its relative error in every iteration; older losses fade. Its weight falls by the
    exponential of half the loss in units of the usual square (Bayes' rule for normal errors), times a rate. An
    iteration costs two microseconds more than ``steady``; :class:`Auto` of the same three costs seventeen more. In the
    loops of ``uneven bench rivals`` both are equally good.

    Args:
        rate: of learning, 0 … 10; 1 is Bayes' rule, 0 the plain mean.
        keep: part of a loss that still counts an iteration later, 0 … 1.
    """

    def __init__(self, *, rate: float = 0.5, keep: float = 0.98) -> None:
        for name, value, most in (("rate", rate, 10.0), ("keep", keep, 1.0)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= most:
                raise ConfigError(f"light: {name} = {value!r} must be a number from 0 to {most:g}")
        self._rate = float(rate)
        self._keep = float(keep)
        self._last = math.nan
        self._ema = EMA()
        self._steady = Steady()
        self._lost = [0.0] * _EXPERTS
        self._usual = _FIRST_SQUARE
        self._seen = 0  # iterations

    def observe(self, seen: Observation) -> None:
        speed = measured(seen)
        if speed is None:
            return
        if self._seen:
            self._compare(speed)
        self._seen += 1
        self._last = speed
        self._ema.observe(seen)
        self._steady.observe(seen)

    def _compare(self, speed: float) -> None:
        most, total, keep = _MOST * self._usual, 0.0, self._keep
        for place, forecast in enumerate((self._last, self._ema.predict(), self._steady.predict())):
            missed = forecast / speed - 1.0
            square = min(missed * missed, most)
            self._lost[place] = keep * self._lost[place] + square
            total += square
        newest = max(_USUAL_WEIGHT, 1.0 / (self._seen + _FIRST_WORTH))
        self._usual = max(_LEAST_SQUARE, self._usual + newest * (total / _EXPERTS - self._usual))

    def weights(self) -> tuple[float, ...]:
        least, unit = min(self._lost), 0.5 * self._rate / self._usual
        # Computed on request only, which keeps an iteration cheap; subtracting the least loss avoids an underflow to 0.
        kept = [math.exp(unit * (least - lost)) for lost in self._lost]
        total = math.fsum(kept)
        return tuple(one / total for one in kept)

    def predict(self, ahead: int = 1) -> float:
        last, ema, steady = self.weights()
        return last * self._last + ema * self._ema.predict() + steady * self._steady.predict()

    def doubt(self) -> float:
        # Steady's error is known from its second iteration on; a mixture's would take a hundred. A balancer with too
        # much doubt leaves unequal workers with equal shares.
        return self._steady.doubt()

    def state_dict(self) -> dict[str, Any]:
        return {
            "last": self._last if self._seen else None,
            "ema": self._ema.state_dict(),
            "steady": self._steady.state_dict(),
            "lost": list(self._lost),
            "usual": self._usual,
            "seen": self._seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_LightState, state)
        last = saved["last"]
        if (last is None) != (saved["seen"] == 0):
            raise Misfit(last, f"the last of {saved['seen']} speeds", "last")
        with inside("steady"):
            self._steady.load_state_dict(state["steady"])
        self._ema.load_state_dict(state["ema"])
        self._last = math.nan if last is None else last
        self._lost, self._usual, self._seen = list(saved["lost"]), saved["usual"], saved["seen"]
